"""Beam search whose outputs contain given phrases (Hokamp and Liu 2017; Post and Vilar 2018, arXiv 1804.06609).

    model.generate(**inputs, num_beams=8, custom_generate=transduct.decoding.beam_search, phrases=[[[17, 4], [9]], []])

- Each source has phrases of its own, maybe none; they may come in any order, or must come in the given one.
- How far a hypothesis is follows from its tokens alone: a phrase is met once its tokens stand there in a row, and begun by as
  many of its first tokens as the hypothesis ends with. So phrases may overlap.
- Beams are shared out among hypotheses of equal progress, so that those which wait for a phrase are not crowded out; at each
  step, the tokens that continue a phrase are candidates whatever their probability.
- No hypothesis ends before it has met them all. When the tokens that are left would not suffice to start anew, nothing but the
  next token of a phrase can be written.

Shapes: `B` sources still searched, `N` beams, `C` phrases a source, `P` tokens of the longest, `K` candidates.
"""

from collections.abc import Sequence
from typing import Any

import torch

from transduct.decoding.beam import NEVER, BeamOptions, BeamSearch, Hypotheses
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows


class Phrases:
    """The phrases of every source, as one table.

    Args:
        phrases: for each source its phrases, each some token ids; ordered: they must come in this order.

    Raises:
        ValueError: for an empty phrase.
    """

    def __init__(self, phrases: Sequence[Sequence[Sequence[int]]], ordered: bool, device: torch.device):
        for number, own in enumerate(phrases):
            if any(len(phrase) == 0 for phrase in own):
                raise ValueError(f"phrases[{number}] holds an empty phrase: leave it out")
        count = max((len(own) for own in phrases), default=0)
        longest = max((len(phrase) for own in phrases for phrase in own), default=0)
        tokens = torch.full((len(phrases), count, longest), -1)  # (sources, C, P)
        for number, own in enumerate(phrases):
            for index, phrase in enumerate(own):
                tokens[number, index, : len(phrase)] = torch.tensor(phrase)
        self.tokens = tokens.to(device)
        self.lengths = (self.tokens >= 0).sum(2)  # (sources, C), 0: no phrase
        self.ordered = ordered

    def progress(self, ids: torch.Tensor, numbers: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """How many first tokens of each phrase the hypotheses end with.

        Args:
            ids: generated tokens (B, K, t); numbers: of the sources (B); free: (B, K), tokens at the end that may count.

        Returns:
            (B, K, C), at most each phrase's length.
        """
        tokens, lengths = self.tokens[numbers], self.lengths[numbers]  # (B, C, P), (B, C)
        begun = torch.zeros(*ids.shape[:2], tokens.shape[1], dtype=torch.long, device=ids.device)  # (B, K, C)
        for size in range(1, min(tokens.shape[2], ids.shape[2]) + 1):
            ending, beginning = ids[:, :, None, -size:], tokens[:, None, :, :size]  # (B, K, 1, size), (B, 1, C, size)
            here = (ending == beginning).all(3) & (size <= lengths[:, None]) & (size <= free[:, :, None])
            begun = torch.where(here, size, begun)
        return begun


class ConstrainedBeamSearch(BeamSearch):
    """Beam search over hypotheses that must contain phrases."""

    def __init__(self, rows: Rows, processors: RowProcessors, criteria: Any, options: BeamOptions, phrases: Phrases):
        super().__init__(rows, processors, criteria, options)
        self.phrases = phrases
        needed = phrases.lengths.sum(1)  # (sources)
        short = (needed + 1 > options.most).nonzero().flatten().tolist()
        if short:
            raise ValueError(
                f"the phrases of source {short[0]} need {int(needed[short[0]])} tokens and an end, but max_length leaves "
                f"{int(options.most[short[0]])}: allow more, or ask for less"
            )
        shape = rows.sources, options.beams
        self.met = (phrases.lengths == 0)[:, None].expand(*shape, -1)  # (B, N, C)
        self.begun = torch.zeros_like(self.met, dtype=torch.long)  # (B, N, C), first tokens of unmet phrases at the end
        self.since = torch.zeros(shape, dtype=torch.long, device=rows.ids.device)  # (B, N), tokens when the last was met

    def step(self) -> None:
        scores, origins, tokens = self.candidates()  # (B, K)
        met, begun, since = self.states(origins, tokens)  # (B, K, C), (B, K, C), (B, K)
        done = self.finished(origins, tokens)
        whole = met.all(2)  # (B, K)
        self.collect(*self.best_done(scores.masked_fill(done & ~whole, NEVER), origins, tokens, done))
        chosen = self.share_out(scores.masked_fill(done, NEVER), met, begun)  # (B, N)
        self.scores = scores.masked_fill(done, NEVER).gather(1, chosen)
        deep = chosen[:, :, None].expand(-1, -1, met.shape[2])
        self.met, self.begun, self.since = met.gather(1, deep), begun.gather(1, deep), since.gather(1, chosen)
        self.advance(origins.gather(1, chosen), tokens.gather(1, chosen))
        self.leave()

    def candidates(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best continuations and all that continue a phrase, each once: scores (B, K), beams and tokens."""
        values = self.forbid_ends(self.processed(self.rows.logits()))  # (B*N, V)
        values = values.view(*self.scores.shape, -1)  # (B, N, V)
        whole = self.met.all(2)  # (B, N)
        ends = torch.zeros(values.shape[2], dtype=torch.bool, device=values.device)
        ends[self.options.end] = True
        values = values.masked_fill(~whole[:, :, None] & ends, NEVER)
        helpful = self.helpful()  # (B, N, C)
        values = self.leave_room(values, helpful)
        scores, origins, tokens = self.best_of(values.flatten(0, 1))  # (B, K)
        wanted = helpful.clamp(min=0)  # (B, N, C)
        further = (values.gather(2, wanted) + self.scores[:, :, None]).masked_fill(helpful < 0, NEVER).flatten(1)  # (B, N*C)
        beams = torch.arange(values.shape[1], device=values.device)[:, None].expand(-1, wanted.shape[2])
        further_origins, further_tokens = beams.flatten().expand_as(further), wanted.flatten(1)
        known = (further_origins[:, :, None] == origins[:, None]) & (further_tokens[:, :, None] == tokens[:, None])
        twice = (further_origins[:, :, None] == further_origins[:, None]) & (
            further_tokens[:, :, None] == further_tokens[:, None]
        )
        twice = twice & torch.ones(twice.shape[1:], dtype=torch.bool, device=twice.device).tril(-1)
        further = further.masked_fill(known.any(2) | twice.any(2), NEVER)
        scores, origins = torch.cat([scores, further], dim=1), torch.cat([origins, further_origins], dim=1)
        return scores, origins, torch.cat([tokens, further_tokens], dim=1)  # (B, K)

    def active(self, met: torch.Tensor) -> torch.Tensor:
        """The phrases (B, N, C) that a hypothesis may work on: all that are unmet, or the first of those."""
        unmet = ~met
        return unmet & (unmet.cumsum(2) == 1) if self.phrases.ordered else unmet

    def helpful(self) -> torch.Tensor:
        """The token (B, N, C) that continues each phrase, -1 where there is none."""
        tokens = self.phrases.tokens[self.alive]  # (B, C, P)
        if not tokens.numel():
            return self.begun - 1
        continued = tokens[:, None].expand(-1, self.begun.shape[1], -1, -1).gather(3, self.begun[..., None]).squeeze(3)
        return continued.masked_fill(~self.active(self.met), -1)

    def leave_room(self, values: torch.Tensor, helpful: torch.Tensor) -> torch.Tensor:
        """The scores (B, N, V), with only helpful tokens where another would leave too few for all that is unmet."""
        needed = self.phrases.lengths[self.alive][:, None].masked_fill(self.met, 0).sum(2)  # (B, N)
        left = self.options.most[self.alive][:, None] - (self.ids.shape[1] - self.prompt) - 1  # (B, 1), but for the end
        tight = (needed > 0) & (left <= needed)  # (B, N)
        if not tight.any():
            return values
        furthest = self.begun == self.begun.amax(2, keepdim=True)  # (B, N, C)
        only = torch.full_like(values, NEVER)
        index = helpful.masked_fill(~furthest, -1)  # (B, N, C)
        kept = values.gather(2, index.clamp(min=0)).masked_fill(index < 0, NEVER)
        only.scatter_reduce_(2, index.clamp(min=0), kept, "amax")
        return torch.where(tight[:, :, None], only, values)

    def states(self, origins: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What candidates (B, K) have met (B, K, C), begun (B, K, C), and where what they begin may start (B, K)."""
        deep = origins[:, :, None].expand(-1, -1, self.met.shape[2])
        met = self.met.gather(1, deep)
        since = self.since.gather(1, origins)
        ids = self.continued(origins, tokens)[:, :, self.prompt :]  # (B, K, t)
        begun = self.phrases.progress(ids, self.alive, ids.shape[2] - since)  # (B, K, C)
        new = self.active(met) & (begun == self.phrases.lengths[self.alive][:, None])  # (B, K, C)
        met = met | new
        if self.phrases.ordered:
            since = torch.where(new.any(2), ids.shape[2], since)
            begun = begun.masked_fill(new.any(2, keepdim=True), 0)
        return met, begun.masked_fill(~self.active(met), 0), since

    def best_done(self, scores: torch.Tensor, origins: torch.Tensor, tokens: torch.Tensor, done: torch.Tensor):
        """The N best candidates that are done, wherever they stand: (B, N) each, as `collect` takes them."""
        best, chosen = scores.masked_fill(~done, NEVER).topk(self.options.beams)
        return best, origins.gather(1, chosen), tokens.gather(1, chosen), done.gather(1, chosen)

    def share_out(self, scores: torch.Tensor, met: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """N candidates (B, N): the best of each bank in turn, those with the most tokens of phrases first."""
        lengths = self.phrases.lengths[self.alive][:, None]  # (B, 1, C)
        bank = lengths.masked_fill(~met, 0).sum(2) + (begun.amax(2) if begun.shape[2] else 0)  # (B, K)
        order = scores.sort(dim=1, descending=True, stable=True).indices
        bank = bank.gather(1, order)
        same = bank[:, :, None] == bank[:, None]  # (B, K, K)
        rank = (same & torch.ones_like(same[0]).tril(-1)).sum(2)  # (B, K), better ones of the same bank
        possible = scores.gather(1, order) > NEVER
        priority = torch.where(possible, rank * (int(lengths.sum(2).max()) + 1) - bank, torch.iinfo(torch.long).max)
        return order.gather(1, priority.sort(dim=1, stable=True).indices[:, : self.options.beams])

    def keep(self, order: torch.Tensor) -> None:
        super().keep(order)
        self.met, self.begun, self.since = self.met[order], self.begun[order], self.since[order]

    def run(self) -> Hypotheses:
        """As a beam search.

        Raises:
            ValueError: if a source has no hypothesis with all its phrases, because a processor forbids one of their tokens.
        """
        found = super().run()
        without = (found.scores[:, 0] == NEVER).nonzero().flatten().tolist()
        if without:
            raise ValueError(f"no output of source {without[0]} can contain all its phrases: another option forbids their tokens")
        return found

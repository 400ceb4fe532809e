"""Beam search whose outputs contain given phrases (arXiv 1704.07138; shared out as in arXiv 1804.06609).

    model.generate(**inputs, num_beams=8, custom_generate=transduct.decoding.beam_search, phrases=[[[17, 4], [9]], []])

- Each source has phrases of its own, maybe none; they may come in any order, or must come in the given one.
- A phrase may have several forms, such as inflections, one of which suffices: `[[17, 4], [17, 5]]` in the place of `[17, 4]`.
- How far a hypothesis is follows from its tokens alone: a phrase is met once its tokens stand there in a row, and begun by as
  many of its first tokens as the hypothesis ends with. So phrases in any order may overlap.
- Beams are shared out among hypotheses of equal progress, so that those which wait for a phrase are not crowded out; at each
  step, the tokens that continue a phrase are candidates whatever their probability.
- No hypothesis ends before it has met them all. When the tokens that are left, one of them for the end, would not suffice to
  begin anew, nothing but the next token of a phrase can be written.

Shapes: `B` sources still searched, `N` beams, `C` forms of phrases a source, `P` tokens of the longest, `K` candidates.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F

from transduct.decoding.beam import NEVER, BeamOptions, BeamSearch
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.decoding.source_error import SourceError

Phrase = Sequence[int] | Sequence[Sequence[int]]
"""Token ids, or several forms of a phrase, each token ids."""


class Phrases:
    """The phrases of every source, as one table.

    Args:
        phrases: for each source its phrases; ordered: they must come in this order.

    Raises:
        ValueError: for a phrase without tokens, or with what is no token id.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]], ordered: bool, device: torch.device):
        rows = [
            [(index, form) for index, phrase in enumerate(own) for form in forms(phrase, f"phrases[{number}][{index}]")]
            for number, own in enumerate(phrases)
        ]
        count = max(1, *map(len, rows))
        longest = max((len(form) for row in rows for _, form in row), default=1)
        tokens = torch.full((len(rows), count, longest), -1)  # (sources, C, P)
        phrase = torch.full((len(rows), count), -1)  # (sources, C), the number of each form's phrase
        for number, row in enumerate(rows):
            for place, (index, form) in enumerate(row):
                tokens[number, place, : len(form)] = torch.tensor(form)
                phrase[number, place] = index
        self.tokens, phrase = tokens.to(device), phrase.to(device)
        self.lengths = (self.tokens >= 0).sum(2)  # (sources, C), 0: no form
        self.alike = phrase[:, :, None] == phrase[:, None]  # (sources, C, C), forms of one phrase
        first = ~(self.alike.tril(-1)).any(2)  # (sources, C), a form that stands for its phrase
        room = self.lengths[:, None].masked_fill(~self.alike, 0).amax(2)  # (sources, C), tokens of the phrase's longest form
        self.room = room.masked_fill(~first, 0)
        self.ordered = ordered

    def endings(self, ids: torch.Tensor, numbers: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
        """Which beginnings of each form the hypotheses end with.

        Args:
            ids: generated tokens (B, K, t); numbers: of the sources (B); free: (B, K), tokens at the end that may count.

        Returns:
            (B, K, C, P): at place p, whether the last p + 1 tokens are the first p + 1 of the form.
        """
        tokens, lengths = self.tokens[numbers][:, None], self.lengths[numbers][:, None]  # (B, 1, C, P), (B, 1, C)
        found = torch.zeros(*ids.shape[:2], *tokens.shape[2:], dtype=torch.bool, device=ids.device)  # (B, K, C, P)
        for size in range(1, min(tokens.shape[3], ids.shape[2]) + 1):
            same = (ids[:, :, None, -size:] == tokens[..., :size]).all(3)  # (B, K, C)
            found[..., size - 1] = same & (size <= lengths) & (size <= free[:, :, None])
        return found

    def of_phrases(self, forms: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """For forms (B, K, C) of the sources (B): whether any form of the same phrase is among them."""
        return (forms[:, :, None] & self.alike[numbers][:, None]).any(3)


def forms(phrase: Any, name: str) -> list[list[int]]:
    """The forms of a phrase; `name` is what a message calls it."""
    several = [phrase] if _is_form(phrase) else phrase
    if not isinstance(several, Sequence) or not several or not all(map(_is_form, several)):
        raise ValueError(f"{name}={phrase!r} must be token ids such as [17, 4], or several forms such as [[17, 4], [17, 5]]")
    return [list(map(int, form)) for form in several]


def _is_form(form: Any) -> bool:
    return isinstance(form, Sequence) and len(form) > 0 and all(isinstance(token, Integral) and int(token) >= 0 for token in form)


class ConstrainedBeamSearch(BeamSearch):
    """Beam search over hypotheses that must contain phrases.

    Raises:
        ValueError: for phrases that no output of a source can contain: too many tokens, end tokens, tokens that do not exist.
    """

    def __init__(self, rows: Rows, processors: RowProcessors, criteria: Any, options: BeamOptions, phrases: Phrases):
        super().__init__(rows, processors, criteria, options)
        self.phrases = phrases
        self._check()
        shape = rows.sources, options.beams
        self.met = (phrases.lengths == 0)[:, None].expand(*shape, -1)  # (B, N, C)
        self.begun = torch.zeros_like(self.met, dtype=torch.long)  # (B, N, C), first tokens of unmet forms at the end
        self.since = torch.zeros(shape, dtype=torch.long, device=rows.ids.device)  # (B, N), tokens when the last was met

    def _check(self) -> None:
        tokens, needed, most = self.phrases.tokens, self.phrases.room.sum(1), self.options.most  # most, needed: (sources)
        short = ((needed > 0) & (needed + 1 > most)).nonzero().flatten().tolist()
        if short:
            raise SourceError(
                short[0],
                f"has phrases that take up to {int(needed[short[0]])} tokens and an end, but its limit is {int(most[short[0]])}: "
                "allow more, or ask for less",
            )
        ends = torch.isin(tokens, self.options.end).flatten(1).any(1).nonzero().flatten().tolist()
        if ends:
            raise SourceError(ends[0], "has a phrase with an end token, behind which nothing is written: leave it out")
        if int(tokens.max()) >= self.rows.vocabulary:
            raise ValueError(f"phrases hold token {int(tokens.max())}, but the vocabulary has {self.rows.vocabulary} tokens")

    def step(self) -> None:
        scores, origins, tokens = self.candidates()  # (B, K)
        met, begun, since = self.states(origins, tokens)  # (B, K, C), (B, K, C), (B, K)
        done = self.finished(origins, tokens)
        best, whole = scores.masked_fill(~met.all(2), NEVER).topk(self.options.beams)  # (B, N), of those that met all
        self.collect(best, *(each.gather(1, whole) for each in (origins, tokens, done)))
        scores = scores.masked_fill(done, NEVER)
        chosen = self.share_out(scores, met, begun)  # (B, N)
        self.scores = scores.gather(1, chosen)
        deep = chosen[:, :, None].expand(-1, -1, met.shape[2])
        self.met, self.begun, self.since = met.gather(1, deep), begun.gather(1, deep), since.gather(1, chosen)
        self.advance(origins.gather(1, chosen), tokens.gather(1, chosen))
        self.leave()

    def candidates(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best continuations and all that continue a phrase, each once: scores (B, K), beams and tokens."""
        values = self.forbid_ends(self.processed(self.rows.logits())).view(*self.scores.shape, -1)  # (B, N, V)
        values = values.clone() if self.processors.keep_scores else values
        end = self.options.end
        values[:, :, end] = values[:, :, end].masked_fill(~self.met.all(2, keepdim=True), NEVER)
        values = self.leave_room(values)
        helpful = self.helpful()  # (B, N, C)
        scores, origins, tokens = self.best_of(values.flatten(0, 1))  # (B, K)
        more = values.gather(2, helpful.clamp(min=0)) + self.scores[:, :, None]  # (B, N, C)
        more = more.masked_fill((helpful < 0) | self._twice(helpful), NEVER).flatten(1)  # (B, N*C)
        beams = torch.arange(values.shape[1], device=values.device).repeat_interleave(helpful.shape[2])  # (N*C)
        more_tokens, more_origins = helpful.clamp(min=0).flatten(1), beams.expand_as(more)
        known = (more_origins[:, :, None] == origins[:, None]) & (more_tokens[:, :, None] == tokens[:, None])  # (B, N*C, K)
        more = more.masked_fill(known.any(2), NEVER)
        both = (scores, more), (origins, more_origins), (tokens, more_tokens)
        scores, origins, tokens = (torch.cat(pair, dim=1) for pair in both)  # (B, K + N*C)
        return scores, origins, tokens

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B*N, V) after the caller's processors, which in greedy search are shown logits, as transformers'."""
        if self.options.beams > 1:
            return super().processed(logits)
        total = 0.0 if self.processors.give_log_probs(self.ids) else logits.logsumexp(-1, keepdim=True)  # (B*N, 1)
        return self.processors(self.ids, logits, self.alive) - total

    @staticmethod
    def _twice(tokens: torch.Tensor) -> torch.Tensor:
        """Which tokens (B, N, C) of a beam stand before, too."""
        return (tokens[..., :, None] == tokens[..., None, :]).tril(-1).any(3)

    def active(self, met: torch.Tensor) -> torch.Tensor:
        """The forms (B, K, C) that a hypothesis may work on: of all phrases that are unmet, or of the first of those."""
        unmet = ~met
        if not self.phrases.ordered:
            return unmet
        return self.phrases.of_phrases(unmet & (unmet.cumsum(2) == 1), self.alive)

    def helpful(self) -> torch.Tensor:
        """The token (B, N, C) that continues each form, -1 where there is none."""
        tokens = self.phrases.tokens[self.alive][:, None].expand(-1, self.begun.shape[1], -1, -1)  # (B, N, C, P)
        continued = tokens.gather(3, self.begun[..., None]).squeeze(3)
        return continued.masked_fill(~self.active(self.met), -1)

    def needed(self, met: torch.Tensor) -> torch.Tensor:
        """Tokens (B, K) that suffice for all phrases that are unmet."""
        return self.phrases.room[self.alive][:, None].masked_fill(met, 0).sum(2)

    def leave_room(self, values: torch.Tensor) -> torch.Tensor:
        """The scores (B, N, V), with only such tokens of phrases where others would leave too few for all that is unmet."""
        needed = self.needed(self.met)  # (B, N)
        left = self.options.most[self.alive][:, None] - (self.ids.shape[1] - self.prompt) - 1  # (B, 1), but for the end
        tight = (needed > 0) & (left <= needed)  # (B, N)
        if not tight.any():
            return values
        ids = self.ids[:, self.prompt :].view(*needed.shape, -1)  # (B, N, t)
        endings = self.phrases.endings(ids, self.alive, ids.shape[2] - self.since)  # (B, N, C, P)
        continued = F.pad(endings[..., :-1], (1, 0), value=True)  # (B, N, C, P), by which token of each form it may go on
        begun = torch.arange(continued.shape[3], device=ids.device)  # (P), tokens of the form before it
        in_time = needed[:, :, None, None] - begun <= left[:, :, None, None]  # (B, N, 1, P)
        tokens = self.phrases.tokens[self.alive][:, None].expand_as(continued)
        allowed = continued & in_time & self.active(self.met)[..., None] & (tokens >= 0)
        index, allowed = tokens.clamp(min=0).flatten(2), allowed.flatten(2)  # (B, N, C*P)
        kept = values.gather(2, index).masked_fill(~allowed, NEVER)
        only = torch.full_like(values, NEVER).scatter_reduce_(2, index, kept, "amax")
        return torch.where(tight[:, :, None], only, values)

    def states(self, origins: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What candidates (B, K) have met (B, K, C), begun (B, K, C), and where what they begin may start (B, K)."""
        met = self.met.gather(1, origins[:, :, None].expand(-1, -1, self.met.shape[2]))
        since = self.since.gather(1, origins)
        ids = self.continued(origins, tokens)[:, :, self.prompt :]  # (B, K, t)
        endings = self.phrases.endings(ids, self.alive, ids.shape[2] - since)  # (B, K, C, P)
        begun = (endings * torch.arange(1, endings.shape[3] + 1, device=ids.device)).amax(3)  # (B, K, C)
        new = self.active(met) & (begun == self.phrases.lengths[self.alive][:, None])  # (B, K, C)
        met = met | self.phrases.of_phrases(new, self.alive)
        if self.phrases.ordered:
            since = torch.where(new.any(2), ids.shape[2], since)
            begun = begun.masked_fill(new.any(2, keepdim=True), 0)
        return met, begun.masked_fill(~self.active(met), 0), since

    def share_out(self, scores: torch.Tensor, met: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
        """N candidates (B, N): the best of each bank in turn, those with the most tokens of phrases first."""
        every = self.phrases.room[self.alive].sum(1, keepdim=True)  # (B, 1)
        bank = every - self.needed(met) + begun.amax(2)  # (B, K)
        order = scores.sort(dim=1, descending=True, stable=True).indices
        bank = bank.gather(1, order)
        rank = (bank[:, :, None] == bank[:, None]).tril(-1).sum(2)  # (B, K), better ones of the same bank
        possible = scores.gather(1, order) > NEVER
        priority = torch.where(possible, rank * (every + 1) - bank, torch.iinfo(torch.long).max)
        return order.gather(1, priority.sort(dim=1, stable=True).indices[:, : self.options.beams])

    def keep(self, order: torch.Tensor) -> None:
        super().keep(order)
        self.met, self.begun, self.since = self.met[order], self.begun[order], self.since[order]

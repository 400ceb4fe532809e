"""Beam search (Vaswani et al. 2017, section 6.1), batched over sources that leave as soon as they are done.

The same hypotheses as transformers' search, at less cost: each beam's best tokens are found first and only they are compared
among beams; a source leaves the batch when it can no longer improve; the beams of a source share it (see `rows.py`). More than
there: four length normalisations, a word reward, exact stopping, and limits of length that depend on the source.

    model.generate(**inputs, num_beams=4, custom_generate=transduct.decoding.beam_search, length_normalization="gnmt")

Where scores are exactly equal, as is common in bfloat16, `torch.topk` decides, and torch leaves the order of equals open. The
candidates of such a source are chosen over again as transformers' search does it, out of the whole vocabulary of all beams at
once, so that its ids are the same there, too.

Exact stopping takes it that no processor adds to a log-probability, as a positive bias of a sequence does.

Shapes: `B` sources still searched, `N` beams, `K` candidates a source, `T` tokens so far, `V` vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from transformers import StoppingCriteriaList

from transduct.decoding.normalization import Scoring
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.decoding.top import best_tokens, top_tokens

NEVER = float("-inf")
Stopping = Literal["heuristic", "first", "exact"]


@dataclass
class Hypotheses:
    """What a search found, best first.

    Args:
        ids: (sources, N, longest), prompts included, padded at the end.
        lengths: (sources, N), generated tokens; scores: normalised; log_probs: their sums. A hypothesis that does not exist
            scores minus infinity.
    """

    ids: torch.Tensor
    lengths: torch.Tensor
    scores: torch.Tensor
    log_probs: torch.Tensor


@dataclass(frozen=True)
class SearchStep:
    """One step, as an observer is shown it.

    Args:
        sources: (B), the numbers of the sources still searched.
        scores: (B, K), log-probabilities of the candidates, in falling order; minus infinity: there is none.
        origins, tokens: (B, K), the beam of the step before that each continues, and by what.
        ended: (B, K), those that are hypotheses now.
        kept: (B, N), those that are the beams now, by their place among the K, best first; then -1 where there are fewer.
    """

    sources: torch.Tensor
    scores: torch.Tensor
    origins: torch.Tensor
    tokens: torch.Tensor
    ended: torch.Tensor
    kept: torch.Tensor


Observer = Callable[[SearchStep], None]


@dataclass(frozen=True)
class BeamOptions:
    """What steers a search.

    Args:
        beams: N; wanted: how many hypotheses of each source are asked for, at most N.
        scoring: how lengths are compared; stopping: when a source is done.
        end: token ids (E) that end a hypothesis; pad: fills up shorter ones.
        most: (sources), tokens that may be generated; least: (sources), tokens before which none may end.
        observer: is shown each step of a plain search.
        scored: whether scores are asked for; greedy search can do without, and then sums logits.
    """

    beams: int
    wanted: int
    scoring: Scoring
    stopping: Stopping
    end: torch.Tensor
    pad: int
    most: torch.Tensor
    least: torch.Tensor | None = None
    observer: Observer | None = None
    scored: bool = True


class BeamSearch:
    """One search over a batch of sources."""

    def __init__(self, rows: Rows, processors: RowProcessors, criteria: StoppingCriteriaList, options: BeamOptions):
        self.rows = rows
        self.processors = processors
        self.criteria = criteria
        self.options = options
        self.prompt = rows.ids.shape[1]
        self.room: torch.Tensor | None = None
        sources, device = len(rows.ids) // options.beams, rows.ids.device
        self.alive = torch.arange(sources, device=device)  # (B), the numbers of the sources still searched
        self.scores = torch.full((sources, options.beams), NEVER, device=device)  # (B, N), log-probabilities
        self.scores[:, 0] = 0.0  # all beams are alike before the first token
        shape = sources, options.beams
        ids = torch.full((*shape, self.prompt + int(options.most.max())), options.pad, device=device)
        ids[:, :, : self.prompt] = rows.ids.view(*shape, -1)
        self.found = Hypotheses(
            ids=ids,
            lengths=torch.zeros(shape, dtype=torch.long, device=device),
            scores=torch.full(shape, NEVER, device=device),
            log_probs=torch.full(shape, NEVER, device=device),
        )

    def run(self) -> Hypotheses:
        """Search until every source is done."""
        while len(self.alive):
            self.step()
        longest = self.prompt + int(self.found.lengths.max())
        self.found.ids = self.found.ids[:, :, :longest]
        return self.found

    @property
    def ids(self) -> torch.Tensor:
        """The tokens (B*N, T) of all beams."""
        return self.rows.ids

    def step(self) -> None:
        """One more token for every beam."""
        scores, origins, tokens = self.candidates()  # (B, K) each
        done = self.finished(origins, tokens)
        best = self.options.beams  # those that end are considered if they are among the N best candidates
        self.collect(scores[:, :best], origins[:, :best], tokens[:, :best], done[:, :best])
        self.scores, chosen = scores.masked_fill(done, NEVER).topk(best)  # (B, N)
        if self.options.observer is not None:
            ended = done & (scores > NEVER) & (torch.arange(scores.shape[1], device=done.device) < best)
            kept = chosen.masked_fill(self.scores == NEVER, -1)
            self.options.observer(SearchStep(self.alive, scores, origins, tokens, ended, kept))
        self.advance(origins.gather(1, chosen), tokens.gather(1, chosen))
        self.leave()

    def candidates(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best continuations: log-probabilities (B, K) in falling order, the beams they continue, and their tokens.

        K is large enough for N unfinished ones. A beam can contribute no more than K, so only its K best tokens take part.
        """
        logits = self.rows.logits()  # (B*N, V)
        if self.options.beams > 1 or self.options.stopping != "first":
            return self.best_of(self.forbid_ends(self.processed(logits)))
        asked = self.options.scored and not self.processors.give_log_probs(self.ids)
        total = logits.logsumexp(-1, keepdim=True) if asked else 0.0  # (B, 1)
        if self.processors or self.options.least is not None:
            logits = self.room_for(logits).copy_(logits)
        logits = self.processors(self.ids, logits, self.alive)  # transformers' greedy search shows them logits
        best, tokens = best_tokens(self.forbid_ends(logits))  # (B, 1); nobody asks for the next best token
        return best - total + self.scores, torch.zeros_like(tokens), tokens

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B*N, V) after the caller's processors."""
        return self.processors(self.ids, self.log_softmax(logits), self.alive)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B*N, V), until the next step."""
        return torch.log_softmax(logits, -1, out=self.room_for(logits))

    def room_for(self, logits: torch.Tensor) -> torch.Tensor:
        """Memory (B*N, V) that each step uses again: for a CPU, new memory of this size costs more than what is written to it."""
        if self.room is None or self.processors.keep_scores:
            self.room = torch.empty_like(logits, memory_format=torch.contiguous_format)
        return self.room[: len(logits)]

    def best_of(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `candidates`, of log-probabilities (B*N, V)."""
        count, beams = self.scores.shape
        keep = max(2, 1 + len(self.options.end)) * beams
        best, tokens = top_tokens(values, min(keep + 1, values.shape[1]))  # (B*N, K + 1), one more to see whether it is as good
        totals = (best.view(count, beams, -1) + self.scores[:, :, None]).flatten(1)  # (B, N*(K + 1))
        scores, chosen = totals.topk(min(keep + 1, totals.shape[1]))  # (B, K + 1)
        equal = ((scores[:, 1:] == scores[:, :-1]) & (scores[:, 1:] > NEVER)).any(1)  # (B)
        origins, tokens = chosen // best.shape[1], tokens.view(count, -1).gather(1, chosen)
        scores, origins, tokens = (each[:, :keep] for each in (scores, origins, tokens))
        if equal.any():
            every = values[equal.repeat_interleave(beams)]  # (b*N, V)
            every = (every.view(-1, beams, every.shape[1]) + self.scores[equal][:, :, None]).flatten(1)  # (b, N*V)
            scores[equal], chosen = every.topk(scores.shape[1])  # (b, K)
            origins[equal], tokens[equal] = chosen // values.shape[1], chosen % values.shape[1]
        return scores, origins, tokens

    def forbid_ends(self, values: torch.Tensor) -> torch.Tensor:
        """The scores (B*N, V) of the next token, without those of ends where a source's least length is not reached."""
        if self.options.least is None:
            return values
        early = self.ids.shape[1] - self.prompt < self.options.least[self.alive] - 1  # (B)
        rows = early.repeat_interleave(self.options.beams).nonzero()  # (rows, 1)
        values = values.clone() if self.processors.keep_scores else values
        values[rows, self.options.end] = NEVER
        return values

    def finished(self, origins: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Which candidates (B, K) end here: at an end token, at their source's limit, or by a caller's criterion."""
        length = self.ids.shape[1] + 1 - self.prompt
        done = torch.isin(tokens, self.options.end) | (length >= self.options.most[self.alive])[:, None]
        if self.criteria:
            done = done | self.criteria(self.continued(origins, tokens).flatten(0, 1), None).view_as(done)
        return done

    def continued(self, origins: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The ids (B, K, T + 1) of candidates: each one's beam and its token."""
        rows = origins + torch.arange(len(origins), device=origins.device)[:, None] * self.options.beams  # (B, K)
        return torch.cat([self.ids[rows], tokens[:, :, None]], dim=2)

    def collect(self, scores: torch.Tensor, origins: torch.Tensor, tokens: torch.Tensor, done: torch.Tensor) -> None:
        """Of the candidates (B, k) that are done and those found before, keep each source's N best."""
        ends = done & (scores > NEVER)  # (B, k)
        if not ends.any():
            return
        length = self.ids.shape[1] + 1 - self.prompt
        sources = ends.any(1).nonzero().squeeze(1)  # (b), of the B
        numbers = self.alive[sources]
        log_probs = scores[sources].masked_fill(~ends[sources], NEVER)  # (b, k)
        lengths = torch.full_like(origins[sources], length)
        room = self.found.ids.shape[2] - self.prompt - length
        ids = F.pad(self.continued(origins, tokens)[sources], (0, room), value=self.options.pad)  # (b, k, longest)
        normalised = self.options.scoring.score(log_probs, lengths)
        if self.rows.coverage is not None:
            rows = origins[sources] + sources[:, None] * self.options.beams  # (b, k)
            normalised = normalised + self.rows.coverage.penalty()[rows]
        found, new = self.found, (ids, lengths, normalised, log_probs)
        old = found.ids[numbers], found.lengths[numbers], found.scores[numbers], found.log_probs[numbers]
        ids, lengths, normalised, log_probs = (torch.cat(pair, dim=1) for pair in zip(old, new, strict=True))  # (b, N + k, ...)
        normalised, best = normalised.topk(self.options.beams)  # (b, N)
        found.scores[numbers], found.lengths[numbers] = normalised, lengths.gather(1, best)
        found.log_probs[numbers] = log_probs.gather(1, best)
        found.ids[numbers] = ids.gather(1, best[:, :, None].expand(-1, -1, ids.shape[2]))

    def advance(self, origins: torch.Tensor, tokens: torch.Tensor) -> None:
        """Go on with these candidates (B, N)."""
        first = torch.arange(len(origins), device=origins.device)[:, None] * self.options.beams  # (B, 1)
        self.rows.append(tokens.flatten(), (origins + first).flatten())

    def leave(self) -> None:
        """Let the sources go that are done."""
        stays = ~self.is_done()  # (B)
        count = int(stays.sum())
        if count == len(stays):
            return
        if count == 0:
            self.alive = self.alive[:0]
            return
        if not self.rows.can_leave:
            self.scores[~stays] = NEVER  # its rows are computed on and find nothing more
            return
        self.keep(self.rows.compact(stays))

    def keep(self, order: torch.Tensor) -> None:
        """Go on with the sources `order` (B' of B)."""
        self.alive, self.scores = self.alive[order], self.scores[order]

    def is_done(self) -> torch.Tensor:
        """Which sources (B) have nothing to gain any more, by the stopping rule."""
        length = self.ids.shape[1] - self.prompt
        best, found = self.scores.amax(1), self.found.scores[self.alive]  # (B), (B, N)
        done = best == NEVER
        if self.options.stopping == "first":
            return done | (found[:, -1] > NEVER)
        if self.options.stopping == "exact":
            bound = self.options.scoring.bound(best, length + 1, self.options.most[self.alive])
            return done | (bound <= found[:, self.options.wanted - 1])
        reach = self.options.scoring.score(best, torch.full_like(self.alive, length))
        return done | (reach <= found[:, -1])

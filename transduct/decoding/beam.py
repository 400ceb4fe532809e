"""Beam search (Vaswani et al. 2017, section 6.1), batched over sources that leave as soon as they are done.

The same hypotheses as transformers' search, at less cost: each beam's best tokens are found first and only they are compared
among beams; a source leaves the batch when it can no longer improve; the beams of a source share it (see `rows.py`). More than
there: four length normalisations, a word reward, exact stopping, and limits of length that depend on the source.

    model.generate(**inputs, num_beams=4, custom_generate=transduct.decoding.beam_search, length_normalization="gnmt")

Shapes: `B` sources still searched, `N` beams, `K` candidates a source, `T` tokens so far, `V` vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from transformers import EosTokenCriteria, GenerationConfig, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from transduct.decoding.ensemble import Mean, make_rows
from transduct.decoding.normalization import Normalization, Scoring
from transduct.decoding.processors import RowProcessors
from transduct.decoding.rows import Rows
from transduct.generation import SourceLengthCriteria

NEVER = float("-inf")
Stopping = Literal["heuristic", "first", "exact"]
STOPPING: dict[Any, Stopping] = {False: "heuristic", True: "first", "never": "exact"}
"""transformers' `early_stopping`: by the current length's score, at the first N hypotheses, or when nothing can improve."""


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
class BeamOptions:
    """What steers a search.

    Args:
        beams: N; wanted: how many hypotheses of each source are asked for, at most N.
        scoring: how lengths are compared; stopping: when a source is done.
        end: token ids (E) that end a hypothesis; pad: fills up shorter ones.
        most: (sources), tokens that may be generated; least: (sources), tokens before which none may end.
    """

    beams: int
    wanted: int
    scoring: Scoring
    stopping: Stopping
    end: torch.Tensor
    pad: int
    most: torch.Tensor
    least: torch.Tensor | None = None


class BeamSearch:
    """One search over a batch of sources."""

    def __init__(self, rows: Rows, processors: RowProcessors, criteria: StoppingCriteriaList, options: BeamOptions):
        self.rows = rows
        self.processors = processors
        self.criteria = criteria
        self.options = options
        self.prompt = rows.ids.shape[1]
        sources, device = rows.sources, rows.ids.device
        self.alive = torch.arange(sources, device=device)  # (B), the numbers of the sources still searched
        self.scores = torch.full((sources, options.beams), NEVER, device=device)  # (B, N), log-probabilities
        self.scores[:, 0] = 0.0  # all beams are alike before the first token
        room = self.prompt + int(options.most.max())
        shape = sources, options.beams
        ids = torch.full((*shape, room), options.pad, device=device)
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

    def step(self) -> None:
        """One more token for every beam."""
        scores, origins, tokens = self.candidates()  # (B, K) each
        done = self.finished(origins, tokens)
        best = self.options.beams  # those that end are considered if they are among the N best candidates
        self.collect(scores[:, :best], origins[:, :best], tokens[:, :best], done[:, :best])
        self.scores, chosen = scores.masked_fill(done, NEVER).topk(best)  # (B, N)
        self.advance(origins.gather(1, chosen), tokens.gather(1, chosen))
        self.leave()

    def candidates(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best continuations: log-probabilities (B, K) in falling order, the beams they continue, and their tokens.

        K is large enough for N unfinished ones. A beam can contribute no more than K, so only its K best tokens take part.
        """
        logits = self.rows.logits()  # (B*N, V)
        if self.processors:
            return self.best_of(self.forbid_ends(self.processed(logits)))
        total = logits.logsumexp(-1, keepdim=True)  # (B*N, 1)
        return self.best_of(self.forbid_ends(logits), total)

    def processed(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B*N, V) after the caller's processors."""
        return self.processors(self.rows.ids, logits.log_softmax(-1), self.alive)

    def best_of(self, values: torch.Tensor, total: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `candidates`, of log-probabilities (B*N, V), or of logits whose log-sum (B*N, 1) is taken from the best alone."""
        count, beams = self.scores.shape
        keep = max(2, 1 + len(self.options.end)) * beams
        best, tokens = values.topk(min(keep, values.shape[-1]))  # (B*N, K)
        best = best if total is None else best - total
        totals = (best.view(count, beams, -1) + self.scores[:, :, None]).flatten(1)  # (B, N*K)
        scores, chosen = totals.topk(min(keep, totals.shape[1]))  # (B, K)
        return scores, chosen // best.shape[1], tokens.view(count, -1).gather(1, chosen)

    def forbid_ends(self, values: torch.Tensor) -> torch.Tensor:
        """The scores (B*N, V) of the next token, without those of ends where a source's least length is not reached."""
        if self.options.least is None:
            return values
        early = self.rows.ids.shape[1] - self.prompt < self.options.least[self.alive] - 1  # (B)
        rows = early.repeat_interleave(self.options.beams).nonzero()  # (rows, 1)
        values[rows, self.options.end] = NEVER
        return values

    def finished(self, origins: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Which candidates (B, K) end here: at an end token, at their source's limit, or by a caller's criterion."""
        length = self.rows.ids.shape[1] + 1 - self.prompt
        done = torch.isin(tokens, self.options.end) | (length >= self.options.most[self.alive])[:, None]
        if self.criteria:
            done = done | self.criteria(self.continued(origins, tokens).flatten(0, 1), None).view_as(done)
        return done

    def continued(self, origins: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The ids (B, K, T + 1) of candidates: each one's beam and its token."""
        rows = origins + torch.arange(len(origins), device=origins.device)[:, None] * self.options.beams  # (B, K)
        return torch.cat([self.rows.ids[rows], tokens[:, :, None]], dim=2)

    def collect(self, scores: torch.Tensor, origins: torch.Tensor, tokens: torch.Tensor, done: torch.Tensor) -> None:
        """Of the candidates (B, k) that are done and those found before, keep each source's N best."""
        ends = done & (scores > NEVER)  # (B, k)
        if not ends.any():
            return
        length = self.rows.ids.shape[1] + 1 - self.prompt
        sources = ends.any(1).nonzero().squeeze(1)  # (b), of the B
        numbers = self.alive[sources]
        log_probs = scores[sources].masked_fill(~ends[sources], NEVER)  # (b, k)
        lengths = torch.full_like(origins[sources], length)
        room = self.found.ids.shape[2] - self.prompt - length
        ids = F.pad(self.continued(origins, tokens)[sources], (0, room), value=self.options.pad)  # (b, k, longest)
        found, new = self.found, (ids, lengths, self.options.scoring.score(log_probs, lengths), log_probs)
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
        order = self.rows.compact(stays)
        self.alive, self.scores = self.alive[order], self.scores[order]

    def is_done(self) -> torch.Tensor:
        """Which sources (B) have nothing to gain any more, by the stopping rule."""
        length = self.rows.ids.shape[1] - self.prompt
        best, found = self.scores.amax(1), self.found.scores[self.alive]  # (B), (B, N)
        done = best == NEVER
        if self.options.stopping == "first":
            return done | (found[:, -1] > NEVER)
        if self.options.stopping == "exact":
            bound = self.options.scoring.bound(best, length + 1, self.options.most[self.alive])
            return done | (bound <= found[:, self.options.wanted - 1])
        reach = self.options.scoring.score(best, torch.full_like(self.alive, length))
        return done | (reach <= found[:, -1])


def beam_search(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    length_normalization: Normalization = "hf",
    length_offset: float = 0.0,
    word_reward: float = 0.0,
    max_length_by_source: tuple[float, float] | None = None,
    min_length_by_source: tuple[float, float] | None = None,
    ensemble: Sequence[Any] = (),
    ensemble_mean: Mean = "probability",
    inputs_tensor: torch.Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateBeamEncoderDecoderOutput:
    """Beam search as `model.generate(custom_generate=beam_search, ...)`; `num_beams=1` is greedy search.

    Args:
        length_normalization, length_offset, word_reward: see `normalization.py`; the exponent is generate's `length_penalty`.
        max_length_by_source: (a, b): at most `a * S + b` tokens for a source of S tokens; (1, 50) is the paper's.
        min_length_by_source: the same for the least.
        ensemble, ensemble_mean: further models, see `ensemble.py`. inputs_tensor: the source, which `generate` passes itself.

    Returns:
        What `generate` returns: ids (sources * num_return_sequences, longest), or an output with `sequences_scores`.

    Raises:
        ValueError: for an option that it cannot honour.
    """
    check_options("beam_search", generation_config, synced_gpus)
    beams = generation_config.num_beams
    rows = make_rows(model, input_ids, beams, generation_config, model_kwargs, ensemble, ensemble_mean, inputs_tensor)
    limits, own = limits_and_criteria(stopping_criteria, rows.sources, input_ids.shape[1])
    most, least = (
        None if ratio is None else length_by_source(name, ratio, source_lengths(model_kwargs, rows.sources))
        for name, ratio in (("max_length_by_source", max_length_by_source), ("min_length_by_source", min_length_by_source))
    )
    if most is not None:
        limits = torch.minimum(limits, most)
    end = generation_config._eos_token_tensor
    options = BeamOptions(
        beams=beams,
        wanted=generation_config.num_return_sequences,
        scoring=Scoring(length_normalization, generation_config.length_penalty, length_offset, word_reward),
        stopping="first" if beams == 1 else STOPPING[generation_config.early_stopping],
        end=limits.new_empty(0) if end is None else end.to(limits.device),
        pad=filler(generation_config),
        most=limits.clamp(min=1),
        least=least,
    )
    with torch.no_grad():
        found = BeamSearch(rows, RowProcessors(logits_processor, rows.sources, beams), own, options).run()
    wanted = options.wanted
    lengths = found.lengths[:, :wanted].max()
    ids = found.ids[:, :wanted, : input_ids.shape[1] + int(lengths)].flatten(0, 1)
    if not generation_config.return_dict_in_generate:
        return ids
    return GenerateBeamEncoderDecoderOutput(sequences=ids, sequences_scores=found.scores[:, :wanted].flatten())


def check_options(search: str, config: GenerationConfig, synced_gpus: bool, sampling: bool = False) -> None:
    """Refuse what would be ignored.

    Raises:
        ValueError: naming the option.
    """
    wrong = {name: getattr(config, name) for name in ("output_attentions", "output_hidden_states", "output_logits")}
    wrong |= {"synced_gpus": synced_gpus} | ({"num_beams": config.num_beams > 1} if sampling else {"do_sample": config.do_sample})
    for name, value in wrong.items():
        if value:
            raise ValueError(f"{name}={value!r} cannot be had with {search}; leave it out, or custom_generate")
    if config.early_stopping not in STOPPING:
        raise ValueError(f"early_stopping={config.early_stopping!r} must be False, True or 'never'")


def filler(config: GenerationConfig) -> int:
    """What follows the end of a shorter hypothesis, as `generate` fills it: padding, but the end token where padding is 0."""
    pad, end = config._pad_token_tensor, config._eos_token_tensor
    filler = 0 if pad is None else int(pad)
    return filler or (0 if end is None else int(end[0]))


def limits_and_criteria(criteria: StoppingCriteriaList, sources: int, prompt: int) -> tuple[torch.Tensor, StoppingCriteriaList]:
    """The most tokens (sources) that may be generated, and the criteria that are neither a limit nor an end token."""
    limits: list[Any] = []
    own = StoppingCriteriaList()
    for criterion in criteria:
        if isinstance(criterion, MaxLengthCriteria):
            limits.append(torch.full((sources,), criterion.max_length - prompt))
        elif isinstance(criterion, SourceLengthCriteria):
            limits.append(criterion.limits - prompt)
        elif not isinstance(criterion, EosTokenCriteria):
            own.append(criterion)
    return torch.stack([limit.to(limits[0].device) for limit in limits]).amin(0), own


def source_lengths(arguments: dict[str, Any], sources: int) -> torch.Tensor:
    """Tokens (sources) of each source, from what `generate` made for the model."""
    mask, states = arguments.get("attention_mask"), arguments["encoder_outputs"][0]  # (rows, S), (rows, S, D)
    every = states.shape[0] // sources  # rows that are repeated for each candidate
    if mask is None:
        return torch.full((sources,), states.shape[1], device=states.device)
    return mask[::every].sum(1)


def length_by_source(name: str, ratio: tuple[float, float], lengths: torch.Tensor) -> torch.Tensor:
    """`a * S + b` tokens (sources), rounded down."""
    if len(ratio) != 2:
        raise ValueError(f"{name}={ratio!r} must be two numbers (a, b), for a * source length + b tokens")
    return (ratio[0] * lengths + ratio[1]).floor().long()

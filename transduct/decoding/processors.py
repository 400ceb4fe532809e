"""transformers' logits processors over a batch that shrinks.

Most processors look at each row alone. Some know the row's number, such as those that look at its source: they are shown a batch
of the first size, in which rows that have left repeat another one. Our own have a method `at_sources`, which is told them.

Those that forbid the same tokens to all rows are done without: transformers' go over the whole vocabulary several times a step.
"""

from collections.abc import Iterable
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from transduct.decoding.prefixes import ForcedPrefixes
from transduct.decoding.tries import InTrie

ROW_BY_ROW = (
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.TypicalLogitsWarper,
)
"""Those that treat each row by its own tokens and scores."""
BY_PLACE = (
    logits_process.EncoderNoRepeatNGramLogitsProcessor,
    logits_process.EncoderRepetitionPenaltyLogitsProcessor,
    logits_process.PrefixConstrainedLogitsProcessor,
)
"""Those that also look at a row's place in the batch, and remember nothing from step to step."""


class Forbidden:
    """Gives tokens minus infinity while an output is short.

    Args:
        tokens: their ids. before: how many tokens a row must have for them to be allowed, prompt included; None: they never are.
    """

    def __init__(self, tokens: Iterable[int], before: int | None):
        self.tokens = torch.tensor(sorted(set(tokens)), dtype=torch.long)  # (F), maybe none
        self.before = before

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Changes scores (B*N, V) of rows (B*N, T) and returns them."""
        if self.before is not None and ids.shape[1] >= self.before:
            return scores
        self.tokens = self.tokens.to(scores.device)
        return scores.index_fill_(1, self.tokens, float("-inf"))


def forbidden_by(processor: Any, vocabulary: int) -> Forbidden | None:
    """What a processor does if it forbids the same tokens of a vocabulary to all rows and nothing else; None: it does more."""
    kind = type(processor)
    if kind is logits_process.NoBadWordsLogitsProcessor:
        words = list(processor.sequence_bias)
        alone = all(len(word) == 1 and word[0] < vocabulary for word in words)  # it refuses others by itself
        return Forbidden([word[0] for word in words], None) if alone else None
    if kind is logits_process.SuppressTokensLogitsProcessor:
        tokens, before = processor.suppress_tokens, None
    elif kind is logits_process.MinLengthLogitsProcessor:
        tokens, before = processor.eos_token_id, processor.min_length
    elif kind is logits_process.MinNewTokensLengthLogitsProcessor:
        tokens, before = processor.eos_token_id, processor.prompt_length_to_skip + processor.min_new_tokens
    else:
        return None
    return Forbidden([token for token in tokens.flatten().tolist() if 0 <= token < vocabulary], before)


class RowProcessors:
    """The processors of a search.

    Args:
        processors: as `generate` made them; sources: how many there were at first; candidates: rows of each.
    """

    def __init__(self, processors: LogitsProcessorList, sources: int, candidates: int):
        self.processors = processors
        self.rows = sources * candidates
        self.candidates = candidates
        own = (*ROW_BY_ROW, *BY_PLACE, ForcedPrefixes, InTrie)
        self.keep_scores = any(type(each) not in own for each in processors)  # maybe: what they were shown must not change
        self.forbidden: list[Forbidden | None] | None = None  # of each processor, as soon as the vocabulary is known

    def __bool__(self) -> bool:
        return len(self.processors) > 0

    def with_memory(self) -> list[str]:
        """The names of those that may remember something from step to step, so that they must see each step once, in order."""
        known = (*ROW_BY_ROW, *BY_PLACE)
        return [type(each).__name__ for each in self.processors if type(each) not in known and not hasattr(each, "at_sources")]

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """Processed scores (B*N, V) of rows (B*N, T) that belong to the sources numbered `alive` (B); may write into `scores`."""
        if self.forbidden is None:
            vocabulary = scores.shape[1]
            self.forbidden = [None if self.keep_scores else forbidden_by(each, vocabulary) for each in self.processors]
        for processor, forbidden in zip(self.processors, self.forbidden, strict=True):
            if forbidden is not None:
                scores = forbidden(ids, scores)
            elif hasattr(processor, "at_sources"):
                scores = processor.at_sources(ids, scores, alive.repeat_interleave(self.candidates))
            elif type(processor) in ROW_BY_ROW or self._is_full(ids, alive):
                scores = processor(ids, scores)
            else:
                scores = self._in_full_batch(processor, ids, scores, alive)
        return scores

    def force(self, ids: torch.Tensor) -> bool:
        """Whether they force the first or the last token of rows (B*N, T), whose score is 0 then, whatever the model thinks."""
        length = ids.shape[1]
        return any(
            (type(each) is logits_process.ForcedBOSTokenLogitsProcessor and length == 1)
            or (type(each) is logits_process.ForcedEOSTokenLogitsProcessor and length == each.max_length - 1)
            for each in self.processors
        )

    def give_log_probs(self, ids: torch.Tensor) -> bool:
        """Whether they make log-probabilities of the logits of rows (B*N, T)."""
        return self.force(ids) or any(type(each) is logits_process.LogitNormalization for each in self.processors)

    def _is_full(self, ids: torch.Tensor, alive: torch.Tensor) -> bool:
        """Whether no source has left or moved."""
        return len(ids) == self.rows and bool((alive == torch.arange(len(alive), device=alive.device)).all())

    def _in_full_batch(self, processor: Any, ids: torch.Tensor, scores: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        numbers = (alive[:, None] * self.candidates + torch.arange(self.candidates, device=alive.device)).flatten()  # (B*N)
        all_ids = ids[:1].repeat(self.rows, 1)
        all_scores = scores[:1].repeat(self.rows, 1)
        all_ids[numbers], all_scores[numbers] = ids, scores
        return processor(all_ids, all_scores)[numbers]

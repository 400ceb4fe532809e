"""transformers' logits processors over a batch that shrinks.

Most processors look at each row alone. Some know the row's number, such as those that look at its source: they are shown a batch
of the first size, in which rows that have left repeat another one. Our own have a method `at_sources`, which is told them.
"""

from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process

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


class RowProcessors:
    """The processors of a search.

    Args:
        processors: as `generate` made them; sources: how many there were at first; candidates: rows of each.
    """

    def __init__(self, processors: LogitsProcessorList, sources: int, candidates: int):
        self.processors = processors
        self.rows = sources * candidates
        self.candidates = candidates

    def __bool__(self) -> bool:
        return len(self.processors) > 0

    def with_memory(self) -> list[str]:
        """The names of those that may remember something from step to step, so that they must see each step once, in order."""
        known = (*ROW_BY_ROW, *BY_PLACE)
        return [type(each).__name__ for each in self.processors if type(each) not in known and not hasattr(each, "at_sources")]

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """Processed scores (B*N, V) of rows (B*N, T) that belong to the sources numbered `alive` (B)."""
        sources = alive.repeat_interleave(self.candidates)  # (B*N)
        in_place = len(ids) == self.rows and bool((alive == torch.arange(len(alive), device=alive.device)).all())
        for processor in self.processors:
            if hasattr(processor, "at_sources"):
                scores = processor.at_sources(ids, scores, sources)
            elif in_place or type(processor) in ROW_BY_ROW:
                scores = processor(ids, scores)
            else:
                scores = self._in_full_batch(processor, ids, scores, alive)
        return scores

    def _in_full_batch(self, processor: Any, ids: torch.Tensor, scores: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        numbers = (alive[:, None] * self.candidates + torch.arange(self.candidates, device=alive.device)).flatten()  # (B*N)
        all_ids = ids[:1].repeat(self.rows, 1)
        all_scores = scores[:1].repeat(self.rows, 1)
        all_ids[numbers], all_scores[numbers] = ids, scores
        return processor(all_ids, all_scores)[numbers]

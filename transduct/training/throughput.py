"""How many tokens a training takes in per second, and how much of what it computes is padding.

Counted from the batches themselves, of whatever data and sampler, over all processes, and added to what the trainer logs: the
progress, the log history and every service of `report_to` get `source_tokens_per_second`, `target_tokens_per_second` (tokens with
a target) and `padding_share` (of the places in sources and targets). Time is that of updates and of waiting for their batches,
without evaluations and checkpoints.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transduct.loss import IGNORE_INDEX


class TokenCounter(TrainerCallback):
    """Counts the tokens of each update. The first of a trainer's callbacks, so that the others see what it logs."""

    def __init__(self, trainer: Any):
        self._accelerator = trainer.accelerator
        self._one_stack = not trainer.model.config.is_encoder_decoder
        self._take = trainer.get_batch_samples
        vars(trainer)["get_batch_samples"] = self._counted
        self._counts = torch.zeros(3, dtype=torch.int64)  # source, target, places; since the last log
        self._seconds = self._started = 0.0

    @classmethod
    def watch(cls, trainer: Any) -> None:
        """Count in this trainer from now on; once is enough."""
        callbacks = trainer.callback_handler.callbacks
        if not any(isinstance(callback, cls) for callback in callbacks):
            callbacks.insert(0, cls(trainer))

    def _counted(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        self._started = time.monotonic()
        batches, items = self._take(epoch_iterator, num_batches, device)
        for batch in batches:
            counts = count_tokens(batch, self._one_stack)
            self._counts = self._counts.to(counts.device) + counts
        return batches, items

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._counts, self._seconds = torch.zeros(3, dtype=torch.int64), 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._seconds += time.monotonic() - self._started

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs=None, **kwargs: Any):
        if not logs or "loss" not in logs or not self._seconds:
            return
        counts = self._accelerator.reduce(self._counts.to(args.device), reduction="sum")
        source, target, places = counts.tolist()
        found = {"source_tokens_per_second": source / self._seconds, "target_tokens_per_second": target / self._seconds}
        if places:
            found["padding_share"] = 1 - (source + (0 if self._one_stack else target)) / places
        logs.update(found)
        state.log_history[-1].update(found)
        self._counts, self._seconds = torch.zeros_like(self._counts), 0.0


def count_tokens(batch: Any, one_stack: bool) -> torch.Tensor:
    """Source tokens, target tokens and places (3) of a batch with `input_ids` or features, and `labels` if it has any.

    Args:
        one_stack: labels lie on the inputs, and only inputs take places.
    """
    none = torch.empty(0, dtype=torch.int64)
    labels = batch.get("labels", none)
    source = batch.get("input_ids", batch.get("attention_mask", none))
    mask = batch.get("segment_ids", batch.get("attention_mask"))
    real = (mask != 0).sum() if mask is not None and mask.shape == source.shape else torch.tensor(source.numel())
    places = torch.tensor(source.numel() + (0 if one_stack else labels.numel()))
    return torch.stack([count.to(labels.device) for count in (real, (labels != IGNORE_INDEX).sum(), places)])

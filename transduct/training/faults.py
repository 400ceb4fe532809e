"""What a run does about a loss or gradient that is not a number: it stops before the update, or leaves the update out.

The trainer computes the norm of the whole gradient for each update, after the processes have shared their gradients. If it is
not finite, the update would ruin the weights, on every process alike; all of them see it at the same step, whatever the
accumulation, and without another message between them. Looking at it costs one synchronisation with the device an update; the
trainer's `logging_nan_inf_filter`, which only keeps such losses out of the log, costs one for each batch already.

An update that is left out changes neither weights nor optimizer; it counts as a step, so that data and schedule go on, and a
moving average goes on as after an update of zero.

With float16 the loss scaler meets infinite gradients as a matter of course and leaves these updates out itself; then only a
loss that is not finite counts.

DeepSpeed updates the weights in its own backward pass: there the training stops after the update, and none can be left out.
"""

import math
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from transduct.training.arguments import TransductTrainingArguments
from transduct.training.checkpoints import WholeCheckpoints

logger = logging.get_logger(__name__)

RECORD = "non_finite_updates"
"""Key of `TrainerState.stateful_callbacks` under which the updates that were left out are counted, over all resumes."""


class NonFiniteGradient(ValueError):
    """A gradient that is not finite; the checkpoints are as they were before it, and so are the weights, but under DeepSpeed."""


def watch_for_faults(trainer: Any) -> None:
    """Make `trainer` write whole checkpoints, and act as its `on_nan` says. Called before each training; once is enough."""
    WholeCheckpoints.watch(trainer)
    watched = any(isinstance(callback, NonFiniteGuard) for callback in trainer.callback_handler.callbacks)
    if isinstance(trainer.args, TransductTrainingArguments) and not watched:
        if trainer.args.on_nan == "skip" and trainer.is_deepspeed_enabled:
            raise ValueError("on_nan='skip' cannot work with DeepSpeed, which updates the weights by itself: use 'stop'")
        trainer.add_callback(NonFiniteGuard(trainer))


class NonFiniteGuard(TrainerCallback):
    """Looks at the gradient of each update before the optimizer uses it; see the top of this file."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.step, self.norm_of = trainer.training_step, trainer._get_grad_norm
        self.batches: list[tuple[dict[str, Any], torch.Tensor]] = []  # of this update, each with its loss
        self.norm: Any = 0.0
        vars(trainer)["training_step"] = self._noted_step
        vars(trainer)["_get_grad_norm"] = self._noted_norm

    def _noted_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        loss = self.step(model, inputs, num_items_in_batch)
        self.batches.append((inputs, loss))
        return loss

    def _noted_norm(self, model: Any, grad_norm: Any = None) -> Any:
        self.norm = self.norm_of(model, grad_norm=grad_norm)
        return self.norm

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.batches.clear()

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if math.isfinite(self.norm) or self._left_to_the_scaler():
            if RECORD in state.stateful_callbacks:
                state.stateful_callbacks[RECORD]["in_a_row"] = 0
            return
        what = f"update {state.global_step + 1}: the gradient is not finite (norm {float(self.norm)}); {self._dumped(state)}"
        if args.on_nan == "stop":
            raise NonFiniteGradient(f"{what}. {self._advice()}")
        record = state.stateful_callbacks.setdefault(RECORD, {"skipped": 0, "in_a_row": 0})
        record["skipped"] += 1
        record["in_a_row"] += 1
        if record["in_a_row"] >= args.on_nan_limit:
            raise NonFiniteGradient(
                f"{what}. So were the updates before it, {record['in_a_row']} in a row, which is on_nan_limit"
            )
        if state.is_world_process_zero:
            logger.warning(f"{what}. The update is left out, {record['skipped']} so far")
        kwargs["model"].zero_grad(set_to_none=True)  # an optimizer passes over weights without a gradient

    def _advice(self) -> str:
        """Which weights are left, and what to do."""
        if self.trainer.is_deepspeed_enabled:
            return (
                "DeepSpeed has updated the weights with it already; the checkpoints are those from before it. Lower "
                "training.learning_rate or training.max_grad_norm, or look at the batch, and go on from the last checkpoint"
            )
        return (
            "The weights and checkpoints are those from before it. Lower training.learning_rate or training.max_grad_norm, "
            "look at the batch, or leave such updates out with training.on_nan=skip"
        )

    def _left_to_the_scaler(self) -> bool:
        """Whether this is a mere overflow in float16. The norm is the same on all processes, so all of them get here."""
        accelerator = self.trainer.accelerator
        if getattr(accelerator, "scaler", None) is None:
            return False
        unusable = torch.stack([~torch.isfinite(loss) for _, loss in self.batches]).any().long()
        return not accelerator.reduce(unusable, "sum").item()

    def _dumped(self, state: TrainerState) -> str:
        """Write the batches whose loss is not finite, or else all of them, and say what they are, on all processes."""
        accelerator, count = self.trainer.accelerator, len(self.batches)
        bad = [i for i, (_, loss) in enumerate(self.batches) if not math.isfinite(loss)]
        others = accelerator.reduce(torch.tensor(len(bad), device=accelerator.device), "sum").item()
        lines = []
        if bad or not others:
            path = self._path(state.global_step + 1)
            chosen = bad or list(range(count))
            where = f"written to {path}" if self._write(path, chosen) else f"which could not be written to {path}"
            lines = [
                f"{f'loss {self.batches[i][1].item()} in ' if bad else ''}batch {i + 1} of {count}"
                f"{self._first_source(self.batches[i][0])}"
                for i in chosen[:4]
            ]
            lines = [f"process {accelerator.process_index}: {', '.join(lines)}, {where}"]
        return "; ".join(gather_object(lines))

    def _path(self, step: int) -> Path:
        process = f"_process{self.trainer.args.process_index}" if self.trainer.args.world_size > 1 else ""
        return Path(self.trainer.args.output_dir) / f"nan_batch_{step}{process}.safetensors"

    def _write(self, path: Path, chosen: list[int]) -> bool:
        """The tensors of the chosen batches, as "0.input_ids" and so on, counted within the update."""
        tensors = {
            f"{i}.{name}": value.detach().cpu().contiguous().clone()
            for i in chosen
            for name, value in self.batches[i][0].items()
            if isinstance(value, torch.Tensor)
        }
        notes = {f"{i}.loss": str(self.batches[i][1].item()) for i in chosen}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, path, metadata=notes)
        except Exception as error:  # what is wrong with the gradient matters more
            logger.warning(f"{path} could not be written: {error}")
            return False
        return True

    def _first_source(self, batch: dict[str, Any]) -> str:
        """The first source as text, if the tokenizer decodes, or as ids."""
        ids = batch.get("input_ids")
        if ids is None:
            return ""
        tokenizer = self.trainer.processing_class
        text = str(ids[0].tolist())
        if callable(getattr(tokenizer, "decode", None)):
            text = repr(tokenizer.decode(ids[0], skip_special_tokens=True))
        return f", {len(ids)} rows, the first {text[:200]}"

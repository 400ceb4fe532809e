"""A moving average of the weights while they are trained (Polyak & Juditsky 1992; the "EMA" of many recipes).

After update t, counted from 0, the average a of weights w becomes `d * a + (1 - d) * w`, with `d = decay`, or with a warm-up
`d = min(decay, (1 + t) / (10 + t))`, so that the first, random weights are soon forgotten. It starts from the weights before the
first update.

`MovingAverage` is the callback behind the training arguments `ema_decay`, `ema_warmup`, `ema_evaluate` and `ema_finish`. The
checkpoints hold the weights, from which a training goes on, and the average in a file of its own beside them.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transduct.training.callbacks import training_was_stopped
from transduct.training.checkpoints import SavesState, WholeCheckpoints
from transduct.training.weights import at_least_float32, copy_each, copy_whole, exchanged, refuse_flat_weights, reshard, whole

AVERAGE = "moving_average.safetensors"
"""File in a checkpoint: the average by the names of the parameters, and in its metadata the number of updates."""


class MovingAverage(TrainerCallback, SavesState):
    """Keeps the average of a trainer's trainable weights in at least float32; frozen ones need none.

    Args:
        trainer: to which it is added with `trainer.add_callback`.
        decay: share of the average that an update leaves, in [0, 1).
        warmup: forget the first weights sooner, see the top of this file.
        finish: when the training is over, the average becomes the model; not so where a signal stopped it.

    Raises:
        ValueError: for a decay out of range, and for a trainer whose weights are in flat pieces.
    """

    def __init__(self, trainer: Any, decay: float, warmup: bool = False, finish: bool = True):
        check_decay(decay)
        refuse_flat_weights(trainer, "ema_decay")
        self.trainer, self.decay, self.warmup, self.finishes = trainer, decay, warmup, finish
        self.updates = 0
        self.names: list[str] = []
        self.weights: list[torch.Tensor] = []
        self.averages: list[torch.Tensor] = []
        WholeCheckpoints.watch(trainer)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._start()
        checkpoint, self.resumed_at = self.resumed_at, None
        if checkpoint is not None:
            self.load(checkpoint)

    @torch.no_grad()
    def _start(self) -> None:
        """The average of no updates: the weights themselves."""
        reshard(self.trainer.model)
        trained = [(name, weight) for name, weight in self.trainer.model.named_parameters() if weight.requires_grad]
        self.names, self.weights = [name for name, _ in trained], [weight for _, weight in trained]
        self.averages = [at_least_float32(weight.detach().clone()) for weight in self.weights]
        self.updates = 0

    @torch.no_grad()
    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.trainer.accelerator.optimizer_step_was_skipped:  # infinite gradients in float16
            return
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        torch._foreach_lerp_(self.averages, [at_least_float32(weight) for weight in self.weights], 1 - decay)
        self.updates += 1

    def save_state(self, folder: Path) -> None:
        tensors = {name: whole(average).cpu().contiguous() for name, average in zip(self.names, self.averages, strict=True)}
        if self.trainer.args.should_save:
            save_file(tensors, folder / AVERAGE, metadata={"updates": str(self.updates)})

    @torch.no_grad()
    def load(self, checkpoint: Path) -> None:
        """Take the average that a checkpoint holds.

        Raises:
            ValueError: if it holds none, or one of other weights.
        """
        if not self.names:
            self._start()
        path = checkpoint / AVERAGE
        if not path.is_file():
            raise ValueError(f"{checkpoint} has no {AVERAGE}: ema_decay was not set where it was written, so leave it out")
        with safe_open(path, framework="pt") as file:
            if sorted(file.keys()) != sorted(self.names):
                differing = sorted({*file.keys()} ^ {*self.names})
                raise ValueError(f"{path} holds the average of other weights: they differ in {differing[0]}")
            for name, average in zip(self.names, self.averages, strict=True):
                copy_whole(average, file.get_tensor(name))
            self.updates = int(file.metadata()["updates"])

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the model's weights are the average."""
        with exchanged(self.trainer.model, self.weights, self.averages):
            yield

    @torch.no_grad()
    def finish(self, checkpoint: Path | None = None) -> None:
        """Make the average the model: that of now, or that of a checkpoint."""
        if checkpoint is not None:
            self.load(checkpoint)
        reshard(self.trainer.model)
        copy_each(self.weights, self.averages)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.finishes and not training_was_stopped(self.trainer):
            best = state.best_model_checkpoint if args.load_best_model_at_end else None
            self.finish(None if best is None else Path(best))


def check_decay(decay: float) -> None:
    """Raises ValueError for a decay out of range."""
    if not 0 <= decay < 1:
        raise ValueError(f"ema_decay={decay} must lie in [0, 1): the share of the average that an update leaves")


def average_in_use(trainer: Any) -> Any:
    """A context in which the trainer's model is its moving average, where it has one that evaluations are to use."""
    averages = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, MovingAverage)]
    wanted = bool(averages) and bool(averages[0].averages) and getattr(trainer.args, "ema_evaluate", True) and trainer.is_in_train
    return averages[0].in_use() if wanted else nullcontext()

"""The base of what takes part in a model's forward pass while it is trained, through torch's own hooks.

Hooks run inside the forward pass, so they work under DDP, FSDP2, mixed precision and activation checkpointing, and see the same
`num_items_in_batch` as the model's loss: what they add is as exact under gradient accumulation as that. An evaluation is as if
they were not there.
"""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transduct.training.adapters import is_adapted


class TrainingHooks(TrainerCallback):
    """Attaches hooks to the trainer's model when a training begins, and removes them when it ends."""

    name: str | None = None
    """What errors call it; None: the name of its class."""

    def __init__(self):
        self._handles: list[Any] = []

    def attach(self, model: nn.Module) -> None:
        """Register hooks on the outermost model that the trainer knows; keep their handles in `_handles`."""
        raise NotImplementedError

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        name = self.name or type(self).__name__
        if args.n_gpu > 1:
            raise ValueError(f"{name} cannot work with torch's DataParallel: start one process for each device, with accelerate")
        if args.torch_compile:
            raise ValueError(f"{name} and torch_compile exclude each other: leave one of them out")
        self.detach()
        self.attach(kwargs["model"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.detach()


def inner_model(model: Any, needs: str) -> Any:
    """The model inside peft's wrapping.

    Raises:
        ValueError: that names `needs`, for a model that is no encoder and decoder with an output projection of transduct.
    """
    inner = model.get_base_model() if is_adapted(model) else model
    if not hasattr(inner, "project") or not getattr(inner.config, "is_encoder_decoder", False):
        raise ValueError(f"{needs} needs a TransductForConditionalGeneration, and the model is a {type(inner).__name__}")
    return inner

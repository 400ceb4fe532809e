"""LayerDrop (Fan et al. 2020) where it needs help.

- `StepsWithoutLayers`: where only some layers are trained, a step may happen to leave all of these out. Its loss then depends on
  no trained weight, and torch refuses to go backward from it. Such a step is to train nothing.
- `SameLayers`: where each process holds a piece of every weight, a layer is put together by all of them or by none.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import TrainerControl, TrainerState, TrainingArguments

from transduct.stacks import Stack
from transduct.training.hooks import TrainingHooks

OPTIONS = ("layer_drop", "decoder_layer_drop", "encoder_layerdrop", "decoder_layerdrop")
"""Of configs, ours and those of transformers: the share of the layers that a step leaves out."""


class StepsWithoutLayers(TrainingHooks):
    """Lets a step go backward that has left out all layers that are trained.

    Nothing gets a gradient from it, and so no optimizer changes anything. Where several processes wait for each other's
    gradients, or a loss scaler looks for one, a single weight gets a gradient of zero.
    """

    name = "layer_drop with frozen weights or adapters"

    def __init__(self, trainer: Any):
        super().__init__()
        self.trainer = trainer

    def attach(self, model: nn.Module) -> None:
        self._handles = [model.register_forward_hook(self._make_differentiable)]

    def _make_differentiable(self, model: nn.Module, args: tuple, output: Any) -> Any:
        key = "logits" if output.get("loss") is None else "loss"  # from logits, the trainer makes a loss itself
        value = output[key]
        if not model.training or not torch.is_grad_enabled() or value.requires_grad:
            return None
        if self.trainer.args.world_size == 1 and self.trainer.accelerator.scaler is None:
            zero = value.new_zeros((), requires_grad=True)
        else:
            weight = next(parameter for parameter in model.parameters() if parameter.requires_grad)
            piece = weight.to_local() if isinstance(weight, DTensor) else weight
            zero = 0 * piece.flatten()[:1].sum()
        output[key] = value + zero.to(value.dtype)
        return output


class SameLayers(TrainingHooks):
    """Lets all processes leave out the same layers, whatever else they have drawn: by seed, step and pass within the step."""

    name = "layer_drop of a model in pieces"

    def __init__(self):
        super().__init__()
        self.draws = torch.Generator()
        self.stacks: list[Stack] = []
        self.seed = self.step = self.passes = 0

    def attach(self, model: nn.Module) -> None:
        self.stacks = stacks_of(model)
        for stack in self.stacks:
            stack.layer_drop_draws = self.draws
        self._handles = [model.register_forward_pre_hook(self._begin)]

    def detach(self) -> None:
        super().detach()
        for stack in self.stacks:
            stack.layer_drop_draws = None
        self.stacks = []

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.seed, self.step, self.passes = args.seed, state.global_step, 0

    def _begin(self, model: nn.Module, args: tuple) -> None:
        if model.training:
            place = self.seed, self.step, self.passes
            self.draws.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))
            self.passes += 1


def stacks_of(model: nn.Module) -> list[Stack]:
    return [module for module in model.modules() if isinstance(module, Stack)]


def drops_layers(model: nn.Module) -> bool:
    return any(getattr(model.config, option, None) for option in OPTIONS)


def may_drop_all(model: nn.Module) -> bool:
    """Whether a model whose layers are dropped has weights that are not trained."""
    return drops_layers(model) and not all(parameter.requires_grad for parameter in model.parameters())


def must_drop_alike(trainer: Any) -> bool:
    """Whether the trainer's processes hold pieces of a model whose layers are dropped.

    Raises:
        ValueError: for such a model of another package, whose draws nothing can reach.
    """
    in_pieces = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    if not in_pieces or not drops_layers(trainer.model):
        return False
    if not stacks_of(trainer.model):
        raise ValueError(
            f"{type(trainer.model).__name__} drops layers: processes that hold pieces of it would drop different ones, and wait "
            "for each other for ever; set its layer drop to 0, or import it with `transduct import`"
        )
    return True

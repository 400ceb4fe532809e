"""LayerDrop (Fan et al. 2020) where only some layers are trained: a step may happen to leave all of these out.

Its loss then depends on no trained weight, and torch refuses to go backward from it. Such a step is to train nothing.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

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


def may_drop_all(model: nn.Module) -> bool:
    """Whether a model whose layers are dropped has weights that are not trained."""
    config: Any = model.config
    drops = any(getattr(config, option, None) for option in OPTIONS)
    return drops and not all(parameter.requires_grad for parameter in model.parameters())

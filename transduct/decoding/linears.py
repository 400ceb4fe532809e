"""Copies of a model whose linear layers compute in another way, for CPUs; see `int8.py` and `packed.py`.

A copy is made to be searched with, not to be trained or saved. What is not replaced (embeddings, norms) takes no memory of its
own: its values are the model's. The model stays as it is, also where the copy is cast or frozen; matrices are those of the moment
when it was made.
"""

import copy
from collections.abc import Callable
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import nn


class CopiedLinear(nn.Module):
    """A linear layer `x W^T + b`, (..., D) -> (..., V), that keeps its weights in a form of its own.

    Args:
        linear: whose product it computes.
    """

    what = ""
    """The name of the form, for messages."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = None if linear.bias is None else linear.bias.detach()

    def check_input(self, input: torch.Tensor) -> None:
        """Raises ValueError for an input that is not on a CPU or not of float32, and for one that wants gradients."""
        if not input.is_cpu:
            check_cpu(self.what, input.device)
        if input.dtype != torch.float32:
            raise ValueError(
                f"{self.what} takes float32, not {str(input.dtype).removeprefix('torch.')}: leave the copy in float32, and call "
                "it without autocast"
            )
        if input.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{self.what} has no gradients: call the copy inside torch.no_grad(), and train the model itself")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiedLinear":
        return self  # nothing in it ever changes, and oneDNN's order of weights cannot be copied

    def _save_to_state_dict(self, *args: Any) -> NoReturn:
        """Raises ValueError: it has no weights in a form that anything could read."""
        raise ValueError("this copy of a model is for searching alone: save the model that it was made of")


def with_linears(what: str, model: nn.Module, make: Callable[[nn.Linear], nn.Module], smallest: int) -> Any:
    """A copy of a model in evaluation mode, in float32, whose linear layers are those that `make` makes of them.

    Args:
        what: the name of the call or option, for messages.
        smallest: weights of a matrix for which it pays; layers with fewer stay.

    Raises:
        ValueError: for a model that is not on a CPU, for one without such matrices of floating point, and where torch has no
            oneDNN, which computes both forms.
    """
    if not torch.backends.mkldnn.is_available():
        raise ValueError(f"{what} needs oneDNN, which this build of torch has not: use the model as it is")
    tensors = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        check_cpu(what, tensor.device)
    precise = all(tensor.dtype == torch.float32 for tensor in tensors if tensor.is_floating_point())
    shared = {id(tensor): _view(tensor) for tensor in tensors} if precise else {}
    copied = copy.deepcopy(model, shared)
    copied = copied if precise else copied.float()
    return replace_linears(what, copied, make, smallest).eval()


def replace_linears(what: str, model: nn.Module, make: Callable[[nn.Linear], nn.Module], smallest: int) -> Any:
    """Put what `make` makes of a model's linear layers in their places, one by one, so that only one of them is there twice.

    Args:
        what, smallest: as of `with_linears`.

    Raises:
        ValueError: for a model without such matrices of floating point.
    """
    made: WeakKeyDictionary[nn.Linear, nn.Module] = WeakKeyDictionary()  # a layer may have several places
    plain = replaced = False
    for parent in [each for each in model.modules() if not isinstance(each, nn.Linear)]:
        for name, child in list(parent._modules.items()):
            if isinstance(child, nn.Linear) and is_plain(child):
                plain = True
                if child.weight.numel() >= smallest:
                    replaced = True
                    if child not in made:
                        made[child] = make(child)
                    parent._modules[name] = made[child]
    if not replaced:
        why = f"no matrix of {smallest:,} weights, and smaller ones gain nothing" if plain else "no matrix of floating point"
        raise ValueError(f"{what}: this {type(model).__name__} has {why}: leave {what} out")
    return model


def check_cpu(what: str, device: Any) -> None:
    """Raises ValueError for a device that is no CPU."""
    kind = torch.device(device).type
    if kind != "cpu":
        raise ValueError(
            f"{what} computes on a CPU, not on {device}: move the model with .to('cpu'), hide the device from the command "
            "(CUDA_VISIBLE_DEVICES=), or leave it out"
        )


def _view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor or parameter of its own over the same values."""
    values = tensor.detach()
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def is_plain(module: nn.Linear) -> bool:
    """Whether its weights are not quantised."""
    return type(module.weight) in (nn.Parameter, torch.Tensor) and module.weight.is_floating_point()

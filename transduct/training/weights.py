"""Weights in and out of a model in training, which may be sharded over processes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


def reshard(model: nn.Module) -> None:
    """Makes FSDP2 forget the gathered weights that a forward pass without a backward pass may have left."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def refuse_flat_weights(trainer: Any, option: str) -> None:
    """Averages of weights need the weights, which DeepSpeed's ZeRO-3 and FSDP's first version keep in pieces.

    Raises:
        ValueError: that names `option`, a training argument.
    """
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_deepspeed_enabled or (trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2):
        raise ValueError(f"{option} needs whole weights: DDP or FSDP's version 2, not DeepSpeed nor FSDP's version 1")


def save_tied_weights_once(model: Any) -> None:
    """Let a model's checkpoints hold one of several tied weights, and loading them miss no other."""
    model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)


@torch.no_grad()
def load_into(model: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy whole tensors into the parameters and buffers of the same names; every process calls this with the same ones.

    Raises:
        ValueError: for a name that the model does not have, and if a parameter is left without a value.
    """
    reshard(model)
    places = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    filled = set()
    for name, tensor in tensors:
        if name not in places:
            raise ValueError(f"{name} is no tensor of this {type(model).__name__}: the checkpoint is of another model")
        copy_whole(places[name], tensor)
        filled.add(id(places[name]))
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in filled]
    if missing:
        raise ValueError(f"there is no value for {missing[0]}: the checkpoint is of another model")


def copy_whole(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a whole tensor into one of the same shape that may be sharded."""
    if place.shape != tensor.shape:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} does not fit into one of shape {tuple(place.shape)}")
    if isinstance(place, DTensor):
        place.copy_(distribute_tensor(tensor.to(place.device, place.dtype), place.device_mesh, place.placements))
    else:
        place.copy_(tensor)


def copy_each(places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into places that are sharded alike; torch's `_foreach_copy_` does not know sharded tensors."""
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded; every process calls this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@contextmanager
def exchanged(model: nn.Module, places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, parameters hold other values; afterwards what they held before, bit by bit."""
    reshard(model)
    with torch.no_grad():
        kept = [place.detach().clone() for place in places]
        copy_each(places, values)
    try:
        yield
    finally:
        reshard(model)
        with torch.no_grad():
            copy_each(places, kept)


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or as it is where that is finer."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

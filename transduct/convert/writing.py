"""Writing a checkpoint: tensors into shards as they come, in a folder that is whole or not there at all.

- `new_folder` gives a folder beside the place of the new one, and moves it there when everything is in it and on the disk.
- `write_weights` holds the tensors of one shard at a time. How many shards there will be is known at the end, so they get their
  names then.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from transduct.convert.checkpoint import SAFETENSORS
from transduct.files import flush

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass
class Weights:
    """What was written."""

    files: list[str] = field(default_factory=list)
    """The files of tensors, in order."""
    parameters: int = 0
    """Numbers in all tensors."""
    bytes: int = 0
    dtype: torch.dtype | None = None
    """The one that holds each number of floating point without rounding."""


@contextmanager
def new_folder(output: str | Path) -> Iterator[Path]:
    """An empty folder that becomes `output` at the end, and is deleted where an exception ends it before.

    Raises:
        ValueError: if `output` holds something already.
    """
    output, given = Path(os.path.abspath(output)), output  # "." has no name
    if output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir()))):
        raise ValueError(f"{str(given)!r} is there already: choose another output, or delete it first")
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        yield part
        for path in (*part.rglob("*"), part):
            flush(path)
        if output.is_dir():
            output.rmdir()
        part.rename(output)
        flush(output.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_weights(
    tensors: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    shard_size: int | str = "5GB",
    dtype: torch.dtype | None = None,
) -> Weights:
    """Write tensors as safetensors: one file, or shards and their index.

    Args:
        shard_size: bytes of one file at most, as "5GB" or a number; a tensor that is larger has a file of its own.
        dtype: of all numbers of floating point; None: as they come.

    Raises:
        ValueError: for a size that is none, and for a tensor with values that `dtype` cannot hold.
        OSError: if the disk is full, or does not take them for another reason.
    """
    limit = bytes_of(shard_size)
    written = Weights()
    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    size = 0

    def finish() -> None:
        try:
            save_file(shard, folder / _draft(len(shards)), metadata={"format": "pt"})
        except SafetensorError as error:  # the disk is full, for one
            raise OSError(f"the weights cannot be written into {str(folder)!r}: {error}") from error
        shards.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        tensor = tensor if dtype is None else _cast(name, tensor, dtype)
        if shard and size + tensor.nbytes > limit:
            finish()
            size = 0
        shard[name] = tensor.contiguous()
        size += tensor.nbytes
        _count(written, tensor)
    finish()
    written.files = _name_shards(folder, shards, written)
    return written


def _count(written: Weights, tensor: torch.Tensor) -> None:
    written.parameters += tensor.numel()
    written.bytes += tensor.nbytes
    if tensor.is_floating_point():
        written.dtype = tensor.dtype if written.dtype is None else torch.promote_types(written.dtype, tensor.dtype)


def _draft(number: int) -> str:
    return f"{number}.draft"


def _name_shards(folder: Path, shards: list[list[str]], written: Weights) -> list[str]:
    """Give the files their names, and write the index if there are several."""
    if len(shards) == 1:
        (folder / _draft(0)).rename(folder / SAFETENSORS)
        return [SAFETENSORS]
    places: dict[str, str] = {}
    files = []
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / _draft(number)).rename(folder / file)
        files.append(file)
        places |= dict.fromkeys(names, file)
    metadata = {"total_parameters": written.parameters, "total_size": written.bytes}
    index = json.dumps({"metadata": metadata, "weight_map": places}, indent=2, sort_keys=True) + "\n"
    (folder / f"{SAFETENSORS}.index.json").write_text(index, encoding="utf-8")
    return files


def _cast(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    cast = tensor.to(dtype)
    if cast.isfinite().sum() < tensor.isfinite().sum():
        largest = tensor[tensor.isfinite()].abs().max().item()
        raise ValueError(
            f"{name} has values up to {largest:g}, which {str(dtype).split('.')[1]} cannot hold: choose another dtype"
        )
    return cast


def bytes_of(size: int | str) -> int:
    """The bytes of "5GB", "300 MB" (decimal, as on the Hub) or a number.

    Raises:
        ValueError: for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?B)?", str(size).upper())
    count = int(float(found[1]) * UNITS[found[2] or "B"]) if found else 0
    if count < 1:
        raise ValueError(f'shard_size={size!r} must be a number of bytes, or one with a unit such as "5GB" or "300MB"')
    return count

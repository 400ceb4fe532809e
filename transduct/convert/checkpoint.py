"""The tensors of a checkpoint by name, wherever they lie: in memory, in safetensors or in `torch.save` files, whole or in shards.

Each tensor is read when it is asked for, so a conversion never holds more than it is writing. Nothing in a file is executed:
`torch.load` runs with `weights_only=True`.
"""

import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"


class Checkpoint:
    """Named tensors, read one at a time.

    Args:
        readers: for each name, what returns its tensor.
        where: for errors.
    """

    def __init__(self, readers: Mapping[str, Callable[[], torch.Tensor]], where: str):
        self.readers = dict(readers)
        self.where = where

    @classmethod
    def of_state_dict(cls, state: Mapping[str, torch.Tensor], where: str) -> "Checkpoint":
        return cls({name: partial(state.__getitem__, name) for name in state}, where)

    @classmethod
    def of_folder(cls, folder: str | Path) -> "Checkpoint":
        """The weights that `from_pretrained` would load from a folder.

        Raises:
            ValueError: if there are none, a shard is missing, or a file is no checkpoint.
        """
        folder = Path(folder)
        for name in (SAFETENSORS, TORCH):
            index = folder / f"{name}.index.json"
            if index.is_file():
                shards = sorted(set(_read_json(index).get("weight_map", {}).values()))
                missing = [shard for shard in shards if not (folder / shard).is_file()]
                if missing or not shards:
                    raise ValueError(f"{index} names shards that are not there: {missing}; copy the whole checkpoint")
                return cls(_readers([folder / shard for shard in shards]), str(folder))
            if (folder / name).is_file():
                return cls(_readers([folder / name]), str(folder))
        raise ValueError(f"{str(folder)!r} holds no weights: neither {SAFETENSORS} nor {TORCH}, nor the index of their shards")

    @property
    def names(self) -> set[str]:
        return set(self.readers)

    def __contains__(self, name: str) -> bool:
        return name in self.readers

    def tensor(self, name: str) -> torch.Tensor:
        return self.readers[name]()

    def find(self, ending: str) -> str:
        """The full name of the tensor called `ending`, perhaps behind a prefix such as "model."; `ending` itself if none is."""
        if ending in self.readers:
            return ending
        return next((name for name in self.readers if name.endswith(f".{ending}")), ending)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors agree bit by bit."""
        first, second = self.tensor(one), self.tensor(other)
        return first.data_ptr() == second.data_ptr() or (first.dtype == second.dtype and torch.equal(first, second))


def _readers(files: list[Path]) -> dict[str, Callable[[], torch.Tensor]]:
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for path in files:
        shard = _SafetensorsFile(path) if path.suffix == ".safetensors" else _TorchFile(path)
        twice = sorted(set(shard.names) & set(readers))
        if twice:
            raise ValueError(f"{path} holds tensors that another shard holds too: {twice}")
        readers |= {name: partial(shard.tensor, name) for name in shard.names}
    return readers


class _SafetensorsFile:
    def __init__(self, path: Path):
        try:
            self.file: Any = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
        self.names = list(self.file.keys())

    def tensor(self, name: str) -> torch.Tensor:
        return self.file.get_tensor(name)


class _TorchFile:
    def __init__(self, path: Path):
        state = load_without_code(path)
        self.state = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        self.names = list(self.state)

    def tensor(self, name: str) -> torch.Tensor:
        return self.state[name]


def load_without_code(path: str | Path) -> Any:
    """What `torch.save` wrote, mapped into memory where its format allows it.

    Raises:
        ValueError: for a file that is damaged, or that holds anything but tensors, containers, numbers and text.
    """
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format of before torch 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{str(path)!r} cannot be read without executing what it holds, or is damaged: {reason}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(values).__name__}")
    return values

"""The tensors of a checkpoint by name, wherever they lie: in memory, in safetensors or in `torch.save` files, whole or in shards.

Each tensor is read when it is asked for, so a conversion holds no more than it is writing, and at most one file of `torch.save`
beside it. Nothing in a file is executed: `torch.load` runs with `weights_only=True`.
"""

import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
MAPPED = 2**25
"""Bytes of a mapped file that may be in memory."""
LFS_POINTER = b"version https://git-lfs"


class Checkpoint:
    """Named tensors, read one at a time.

    Args:
        readers: for each name, what returns its tensor.
        where: for errors.
        files: in which they lie, none in memory.
    """

    def __init__(self, readers: Mapping[str, Callable[[], torch.Tensor]], where: str, files: Sequence[Path] = ()):
        self.readers = dict(readers)
        self.where = where
        self.files = list(files)

    @classmethod
    def of_state_dict(cls, state: Mapping[str, torch.Tensor], where: str) -> "Checkpoint":
        return cls({name: partial(state.__getitem__, name) for name in state}, where)

    @classmethod
    def of_folder(cls, folder: str | Path) -> "Checkpoint":
        """The weights that `from_pretrained` would load: safetensors before files of `torch.save`, one file before shards.

        Raises:
            ValueError: if there are none, a shard is missing, a file is damaged or holds code, or the index names other files.
        """
        folder = Path(folder)
        for name in (SAFETENSORS, TORCH):
            if (folder / name).is_file():
                return cls.of_files([folder / name], str(folder))
            index = folder / f"{name}.index.json"
            if index.is_file():
                places = _places(index)
                checkpoint = cls.of_files([folder / shard for shard in sorted(set(places.values()))], str(folder))
                absent = sorted(set(places) - checkpoint.names)
                if absent:
                    raise ValueError(
                        f"{index} names tensors that its shards do not hold: {_first(absent)}; copy the checkpoint again"
                    )
                return checkpoint
        raise ValueError(f"{str(folder)!r} holds no weights: neither {SAFETENSORS} nor {TORCH}, nor the index of their shards")

    @classmethod
    def of_files(cls, files: Sequence[Path], where: str) -> "Checkpoint":
        """All tensors of files, which are safetensors by their ending, or else what `torch.save` wrote.

        Raises:
            ValueError: for a file that is damaged or holds code, or a tensor that two files hold.
        """
        torch_files = _TorchFiles()
        readers: dict[str, Callable[[], torch.Tensor]] = {}
        for path in files:
            mine = _safetensors_readers(path) if path.suffix == ".safetensors" else torch_files.readers(path)
            twice = sorted(set(mine) & set(readers))
            if twice:
                raise ValueError(f"{path} holds tensors that another shard holds too: {_first(twice)}")
            readers |= mine
        return cls(readers, where, files)

    @property
    def names(self) -> set[str]:
        return set(self.readers)

    def __contains__(self, name: str) -> bool:
        return name in self.readers

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor. From a file, it keeps nothing but itself in memory."""
        return self.readers[name]()

    def find(self, ending: str) -> str:
        """The name of a tensor that is `ending`, or ends in it after a prefix such as "model."; `ending` if there is none."""
        if ending in self.readers:
            return ending
        return next((name for name in self.readers if name.endswith(f".{ending}")), ending)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors agree bit by bit."""
        first, second = self.tensor(one), self.tensor(other)
        return first.data_ptr() == second.data_ptr() or (first.dtype == second.dtype and torch.equal(first, second))


def _places(index: Path) -> dict[str, str]:
    """Tensor -> file beside the index.

    Raises:
        ValueError: for no index, for a file elsewhere, and for one that is not there.
    """
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{index} has no weight_map from names of tensors to names of files")
    elsewhere = sorted({name for name in places.values() if not _plain(name)})
    if elsewhere:
        raise ValueError(f"{index} names files outside its own folder, which are not read: {_first(elsewhere)}")
    missing = sorted({name for name in places.values() if not (index.parent / name).is_file()})
    if missing:
        raise ValueError(f"{index} names shards that are not there: {_first(missing)}; copy the whole checkpoint")
    return places


def _plain(name: str) -> bool:
    """Whether it is the name of a file and no path, on any system."""
    return name not in ("", ".", "..") and PurePosixPath(name).name == name and PureWindowsPath(name).name == name


def _safetensors_readers(path: Path) -> dict[str, Callable[[], torch.Tensor]]:
    """The file is mapped anew for each tensor, so that what was read of the others does not stay in memory."""

    def read(name: str) -> torch.Tensor:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(name)

    try:
        with safe_open(path, framework="pt") as file:
            return {name: partial(read, name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} {_damage(path)} ({error})") from error


class _TorchFiles:
    """Files that `torch.save` wrote, of which one at a time is open.

    One of today's format is mapped into memory, so that what was read stays there while the file is open: it is closed when that
    has become much. One of before torch 1.6 is read as a whole.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.state: dict[str, torch.Tensor] = {}
        self.bytes_read = 0

    def readers(self, path: Path) -> dict[str, Callable[[], torch.Tensor]]:
        return {name: partial(self.read, path, name) for name in self.open(path)}

    def read(self, path: Path, name: str) -> torch.Tensor:
        tensor = self.open(path)[name]
        if not zipfile.is_zipfile(path) and tensor.nbytes == tensor.untyped_storage().nbytes():
            return tensor  # has memory of its own
        tensor = tensor.clone()
        self.bytes_read += tensor.nbytes
        if self.bytes_read > MAPPED:
            self.close()
        return tensor

    def open(self, path: Path) -> dict[str, torch.Tensor]:
        if path != self.path:
            self.close()  # the other, first
            self.path, self.state = path, _state_dict(path)
        return self.state

    def close(self) -> None:
        self.path, self.state, self.bytes_read = None, {}, 0


def _state_dict(path: Path) -> dict[str, torch.Tensor]:
    state = load_without_code(path)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{path} holds no tensors by name, but a {type(state).__name__}")
    others = sorted(name for name, value in state.items() if not isinstance(value, torch.Tensor))
    if others:
        raise ValueError(f"{path} must hold tensors alone, but holds {_first(others)} too: save the model's state dict by itself")
    return {name: value.detach() for name, value in state.items()}


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
    except OSError:
        raise
    except Exception as error:  # whatever the bytes of a damaged file lead to
        code = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if code is not None:
            raise ValueError(
                f"{str(path)!r} holds more than tensors, containers, numbers and text: to read it, {code[1]} would have to be "
                "executed, which is never done. Get its weights as safetensors"
            ) from error
        raise ValueError(f"{str(path)!r} {_damage(Path(path))}, or was not written by torch.save") from error


def _damage(path: Path) -> str:
    """What to say of a file that cannot be read."""
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return "is a pointer of Git LFS, not the file itself: get it with `git lfs pull`"
    return f"of {path.stat().st_size:,} bytes is damaged or cut off: copy it again"


def _first(names: Sequence[str], count: int = 5) -> str:
    """The first few of many names, for errors."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        ValueError: for a file that is not JSON, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the latter: brackets within brackets
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(values).__name__}")
    return values

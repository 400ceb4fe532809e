"""Marian's own files: `.npz` archives and `.bin` files of tensors, each with the model's options as YAML inside.

Tensors are read one at a time, arrays of Python objects never. A `.bin` file is little-endian:

    version (1), number of items; then for each item: length of name, type, number of dimensions, bytes of data      (uint64 each)
    all names, each ending in a zero byte; all shapes (int32); the length of the padding (uint64), the padding; all data
"""

import struct
import zipfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from transduct.convert.checkpoint import Checkpoint

OPTIONS = "special:model.yml"
VERSION = 1
TYPES = {0x0402: np.float16, 0x0404: np.float32, 0x0408: np.float64}
CLASSES = {0x0100: "int", 0x0200: "unsigned int", 0x0400: "float"}
PACKED = {0x0800: "packed", 0x4000: "intgemm"}
"""Bits of a type: what its low byte counts the bytes of, and whether it is laid out for one kind of processor."""
LONGEST = 1 << 20
"""Items and bytes of a name that a file may claim to have; more is damage."""


@dataclass(frozen=True)
class MarianFile:
    """What a file of Marian holds."""

    options: dict[str, Any]
    checkpoint: Checkpoint
    """The tensors under Marian's names, those of `unread` left out."""
    unread: dict[str, str] = field(default_factory=dict)
    """The names of tensors whose type is none of floating point, and that type."""


def is_marian(path: str | Path) -> bool:
    """Whether a file begins as Marian's do: an archive of arrays, or a `.bin` of version 1."""
    path = Path(path)
    if path.suffix == ".npz":
        return True
    with open(path, "rb") as file:
        start = file.read(8)
    return path.suffix == ".bin" and start == struct.pack("<Q", VERSION)


def read_marian(path: str | Path) -> MarianFile:
    """Open a `.npz` or `.bin` of Marian.

    Raises:
        ValueError: for a file that is none, is damaged, or holds no options.
    """
    path = Path(path)
    try:
        return _read_archive(path) if path.suffix == ".npz" else _read_bin(path)
    except (zipfile.BadZipFile, struct.error, UnicodeDecodeError, EOFError) as error:
        raise ValueError(f"{str(path)!r} is no file of Marian, or is damaged: {error}") from error


def _read_archive(path: Path) -> MarianFile:
    with np.load(path, allow_pickle=False) as archive:
        names = [name for name in archive.files if name != OPTIONS]
        if OPTIONS not in archive.files:
            raise ValueError(f"{str(path)!r} has no {OPTIONS!r}: it is no model of Marian")
        options = _options(archive[OPTIONS].astype(np.uint8).tobytes(), path)
    return MarianFile(options, Checkpoint({name: partial(_array, path, name) for name in names}, str(path)))


def _array(path: Path, name: str) -> torch.Tensor:
    with np.load(path, allow_pickle=False) as archive:
        try:
            return torch.from_numpy(archive[name])
        except (ValueError, TypeError) as error:  # an object, or a type that torch lacks
            raise ValueError(f"{str(path)!r}: {name} is no array of numbers: {error}") from error


@dataclass(frozen=True)
class _Item:
    name: str
    type: int
    shape: tuple[int, ...]
    start: int
    length: int


def _read_bin(path: Path) -> MarianFile:
    items = {item.name: item for item in _items(path)}
    if OPTIONS not in items:
        raise ValueError(f"{str(path)!r} has no {OPTIONS!r}: it is no model of Marian")
    text = items.pop(OPTIONS)
    readers = {name: partial(_tensor, path, item) for name, item in items.items() if item.type in TYPES}
    unread = {name: type_name(item.type) for name, item in items.items() if item.type not in TYPES}
    return MarianFile(_options(_bytes(path, text), path), Checkpoint(readers, str(path)), unread)


def _items(path: Path) -> list[_Item]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        version, count = struct.unpack("<QQ", file.read(16))
        if version != VERSION or count > LONGEST:
            raise ValueError(
                f"{str(path)!r} is no .bin file of Marian, whose version would be {VERSION}: {version}, {count} items"
            )
        headers = [struct.unpack("<QQQQ", file.read(32)) for _ in range(count)]
        if any(length > LONGEST or dimensions > 64 for length, _, dimensions, _ in headers):
            raise ValueError(f"{str(path)!r} is damaged: its header has names or shapes of absurd lengths")
        names = [file.read(header[0]).rstrip(b"\0").decode() for header in headers]
        shapes = [struct.unpack(f"<{header[2]}i", file.read(4 * header[2])) for header in headers]
        (padding,) = struct.unpack("<Q", file.read(8))
        start = file.tell() + padding
    items = []
    for name, shape, (_, kind, _, length) in zip(names, shapes, headers, strict=True):
        items.append(_Item(name, kind, shape, start, length))
        start += length
        if start > size:
            raise ValueError(f"{str(path)!r} is damaged: {name} ends {start - size} bytes after the end of the file")
    return items


def _bytes(path: Path, item: _Item) -> bytes:
    with open(path, "rb") as file:
        file.seek(item.start)
        return file.read(item.length)


def _tensor(path: Path, item: _Item) -> torch.Tensor:
    values = np.frombuffer(bytearray(_bytes(path, item)), dtype=np.dtype(TYPES[item.type]).newbyteorder("<"))
    numbers = int(np.prod(item.shape, dtype=np.int64))
    if not 0 <= numbers <= values.size:  # the data may be padded
        raise ValueError(f"{str(path)!r} is damaged: {item.name} of shape {item.shape} has {item.length} bytes")
    return torch.from_numpy(values[:numbers].reshape(item.shape))


def type_name(kind: int) -> str:
    """A type by its bits: 0x4101 -> "intgemm int8"."""
    base = next((name for bits, name in CLASSES.items() if kind & 0x0700 == bits), "bits")
    packed = "".join(f"{name} " for bits, name in PACKED.items() if kind & bits)
    return f"{packed}{base}{8 * (kind & 0xFF)}"


def _options(text: bytes, path: Path) -> dict[str, Any]:
    try:
        options = yaml.safe_load(text.rstrip(b"\0").decode())
    except yaml.YAMLError as error:
        raise ValueError(f"{str(path)!r}: {OPTIONS!r} is not YAML: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"{str(path)!r}: {OPTIONS!r} must hold options by name")
    return options

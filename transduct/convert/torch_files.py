"""Files of `torch.save` that hold more than tensors, read without executing anything.

Training frameworks save options, meters and optimizers beside the weights, as objects of classes of their own. `torch.load` with
`weights_only=True` builds objects of listed classes alone. Here every class that a file names and torch does not list is replaced
by an inert one that keeps what the file says and runs nothing, so the restricted reader does all the work:

- `pickletools` lists the names without building anything; each becomes a class of its own that derives from `StandIn`.
- No module is imported, no function of the file is called, and torch still refuses what it always refuses (`os`, `sys`).
- `plain` turns what stands for `argparse.Namespace` and for OmegaConf's nodes into dictionaries, lists and values.
"""

import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # torch writes the names of Python 2, and reads those of 3
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from transduct.convert.checkpoint import load_without_code

LEGACY_PICKLES = 4
"""Before torch 1.6 a file was a row of pickles: a magic number, a version, the system, and what was saved."""
OBJECT = "data.pkl"
"""The pickle of what was saved, inside the zip archive of newer files."""


CONTAINERS = ("collections.defaultdict",)


class StandIn:
    """What a file holds of an object whose class is not loaded."""

    made_from: tuple
    """Arguments of its constructor."""
    state: Any

    def __new__(cls, *args: Any) -> "StandIn":
        self = object.__new__(cls)
        self.made_from, self.state = args, None
        return self

    def __init__(self, *args: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


def load_with_stand_ins(path: str | Path) -> Any:
    """What `torch.save` wrote, with a `StandIn` for each object that is no tensor, container, number or text.

    Raises:
        ValueError: for a file that is damaged or that no inert object can stand for.
    """
    names = named_globals(path)
    allowed: list = [(_empty if name in CONTAINERS else type(name, (StandIn,), {}), name) for name in sorted(names)]
    try:
        with torch.serialization.safe_globals(allowed):  # what torch lists itself goes before these
            return load_without_code(path)
    except (TypeError, AttributeError, KeyError, IndexError) as error:  # tensors made of something else, or a pickle gone wrong
        raise ValueError(f"{str(path)!r} is no checkpoint that can be read without executing it: {error}") from error


def _empty(*args: Any) -> OrderedDict:
    """What a dictionary with a default becomes: the reader fills dictionaries of torch's own choice alone."""
    return OrderedDict()


def named_globals(path: str | Path) -> set[str]:
    """The classes and functions that a file of `torch.save` names, found without building anything.

    Raises:
        ValueError: for a file that is none, or is damaged.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                member = next((name for name in archive.namelist() if name.endswith(f"/{OBJECT}")), None)
                if member is None:
                    raise ValueError(f"the archive has no {OBJECT}")
                with archive.open(member) as file:
                    return _globals_of(file, 1)
        with open(path, "rb") as file:
            return _globals_of(file, LEGACY_PICKLES)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{str(path)!r} is no file of torch.save, or is damaged: {error}") from error


def _globals_of(file: Any, pickles: int) -> set[str]:
    names = set()
    for _ in range(pickles):
        for opcode, argument, _ in pickletools.genops(cast(BinaryIO, _Plain(file))):
            if opcode.name == "GLOBAL":
                module, name = str(argument).split(" ", 1)
                module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
                names.add(f"{module}.{name}")
    return names


class _Plain:
    """A file without `tell`, so that `pickletools` reads one pickle and leaves the file at its end."""

    def __init__(self, file: BinaryIO):
        self.read, self.readline = file.read, file.readline


def plain(value: Any) -> Any:
    """Namespaces and nodes of OmegaConf as dictionaries, lists and values; what else is unknown stays as it is."""
    if isinstance(value, StandIn):
        state = value.state
        if isinstance(state, dict) and "_content" in state:  # DictConfig, ListConfig
            return plain(state["_content"])
        if isinstance(state, dict) and "_val" in state:  # AnyNode and its kin
            return plain(state["_val"])
        if type(value).__name__ == "argparse.Namespace" and isinstance(state, dict):
            return plain(state)
        if len(value.made_from) == 1 and isinstance(value.made_from[0], (str, int)):  # a member of an enumeration
            return value.made_from[0]
        return value
    if isinstance(value, (dict, OrderedDict)):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value

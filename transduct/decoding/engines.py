"""Other engines behind `translate`: objects that stand where a model does.

What `convert.to_ctranslate2` and `convert.to_onnx` write is run by the engine that it was written for. An engine's model has a
config, a generation config and a `generate`; options that the engine cannot honour are refused by name. "int8" is no other
program: it is a model of torch with other matrices (`int8.py`), with which all options work.
"""

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

Engine = Literal["ctranslate2", "onnx", "int8"]
MARKS: dict[Engine, str] = {"ctranslate2": "transduct.json", "onnx": "export.json"}
"""The file by which the folder of an export is known."""


def engine_of(folder: str | Path) -> Engine | None:
    """The engine that a folder was written for, or None."""
    return next((engine for engine, mark in MARKS.items() if (Path(folder) / mark).is_file()), None)


def load_engine(model: Any, engine: str | None = None, device: Any = "cpu") -> Any:
    """The model of an exported folder, or one with int8 matrices.

    Args:
        model: the folder of an export; for "int8" a model, or a checkpoint's folder or id of the Hub.
        engine: for which it was written; None: known by its files. device: where a folder's model computes.

    Raises:
        ValueError: for an unknown engine, and for a folder that was not written for it.
        ImportError: where its package is missing.
    """
    if engine not in (None, *get_args(Engine)):
        raise ValueError(f"engine={engine!r} must be one of {', '.join(get_args(Engine))}")
    written = engine_of(model) if isinstance(model, (str, Path)) else None
    if engine == "int8":
        return _with_int8(model, written, device)
    if not isinstance(model, (str, Path)):
        raise ValueError(f"engine={engine!r} needs the folder of an exported model, not a {type(model).__name__}")
    if written is None or engine not in (None, written):
        what = "for no engine" if written is None else f"for {written}"
        wanted = engine or "|".join(MARKS)
        raise ValueError(f"{str(model)!r} was written {what}: write one with transduct export MODEL OUT --to {wanted}")
    if written == "ctranslate2":
        from transduct.decoding.ctranslate2_engine import CTranslate2Model

        return CTranslate2Model(model, device)
    from transduct.decoding.onnx_engine import OnnxModel

    return OnnxModel.load(model, device)


def _with_int8(model: Any, written: Engine | None, device: Any) -> Any:
    """A model, or that of a checkpoint, with int8 matrices."""
    from transduct.decoding.int8 import int8_copy
    from transduct.decoding.linears import check_cpu

    if isinstance(model, nn.Module):
        return int8_copy(model)
    if not isinstance(model, (str, Path)):
        raise ValueError(f"engine='int8' needs a model of torch or a checkpoint's folder, not a {type(model).__name__}")
    if written is not None:
        raise ValueError(f"{str(model)!r} was written for {written}, whose weights stay as they were exported: leave int8 out")
    check_cpu("engine='int8'", device)
    from transduct.decoding.commands import load_model

    return int8_copy(load_model(str(model), torch.float32, device))

"""Other engines behind `translate`: exported folders as objects that stand where a model does.

What `convert.to_ctranslate2` and `convert.to_onnx` write is run by the engine that it was written for. An engine's model has a
config, a generation config and a `generate`; options that the engine cannot honour are refused by name.
"""

from pathlib import Path
from typing import Any, Literal, get_args

Engine = Literal["ctranslate2", "onnx"]
MARKS: dict[Engine, str] = {"ctranslate2": "transduct.json", "onnx": "export.json"}
"""The file by which each engine's folder is known."""


def engine_of(folder: str | Path) -> Engine | None:
    """The engine that a folder was written for, or None."""
    return next((engine for engine, mark in MARKS.items() if (Path(folder) / mark).is_file()), None)


def load_engine(folder: str | Path, engine: str | None = None, device: Any = "cpu") -> Any:
    """The model of an exported folder.

    Args:
        engine: for which it was written; None: known by its files.

    Raises:
        ValueError: for an unknown engine, and for a folder that was not written for it.
        ImportError: where its package is missing.
    """
    if engine not in (None, *get_args(Engine)):
        raise ValueError(f"engine={engine!r} must be one of {', '.join(get_args(Engine))}")
    if not isinstance(folder, (str, Path)):
        raise ValueError(f"engine={engine!r} needs the folder of an exported model, not a {type(folder).__name__}")
    written = engine_of(folder)
    if written is None or engine not in (None, written):
        what = "for no engine" if written is None else f"for {written}"
        wanted = engine or "|".join(get_args(Engine))
        raise ValueError(f"{str(folder)!r} was written {what}: write one with transduct export MODEL OUT --to {wanted}")
    engine = written
    if engine == "ctranslate2":
        from transduct.decoding.ctranslate2_engine import CTranslate2Model

        return CTranslate2Model(folder, device)
    from transduct.decoding.onnx_engine import OnnxModel

    return OnnxModel.load(folder, device)

"""Checkpoints of other families: to ours and back, each conversion verified.

- `from_transformers`, `from_fairseq`: theirs as ours. `to_transformers`: ours as theirs.
- `family.py` says what a family is; `t5.py` and its siblings are the families, `families.py` their list.
- `memory.py` converts models in memory, `folders.py` checkpoints on disk; `verifying.py` compares both sides, `offloading.py`
  those that do not fit into memory.
- `ctranslate2.py`, `ctranslate2_whisper.py` and `onnx.py` write ours for other engines; `engine_folders.py` compares what those
  compute.
- `models.py` finds which tensor is which; `checkpoint.py` reads tensors one by one, `options.py` the other family's config;
  `expressible.py` says what must survive.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from transduct.convert.engine_folders import Exported

__all__ = ["from_fairseq", "from_transformers", "to_ctranslate2", "to_onnx", "to_transformers"]


def from_transformers(
    model_or_path: "PreTrainedModel | str | Path",
    verify: bool = True,
    *,
    revision: str | None = None,
    token: str | None = None,
    their_class: str | None = None,
) -> "PreTrainedModel":
    """A model of transformers as ours: the class that fits, with copies of its weights.

    Args:
        model_or_path: a model in memory, whose data type, device, training mode and frozen weights are kept; or a folder or an id
            of the Hub, which is loaded in evaluation mode with the data type of its weights.
        verify: compare both on random inputs, see `verifying.verify`.
        revision, token: for the Hub.
        their_class: transformers' class, where config.json does not say it.

    Raises:
        ValueError: for a family, class or option that is not known here, a checkpoint that does not fit its config, and where
            the two models differ.
    """
    from transduct.convert.memory import import_model
    from transduct.convert.verifying import verify as verify_pair

    if isinstance(model_or_path, (str, Path)):
        from transduct.convert.folders import load

        return load(model_or_path, verify=verify, revision=revision, token=token, their_class=their_class)
    if revision is not None or token is not None:
        raise ValueError("revision and token belong to an id of the Hub, not to a model in memory")
    if their_class is not None:
        raise ValueError(f"their_class={their_class!r} belongs to a folder: a model in memory has its class")
    ours = import_model(model_or_path)
    if verify:
        verify_pair(model_or_path, ours)
    return ours


def to_transformers(model: "PreTrainedModel", to: str | None = None, verify: bool = True) -> "PreTrainedModel":
    """A model of ours as one of transformers' own classes, with copies of its weights.

    Args:
        to: the family, such as "t5" or "bart"; None: that from which the model was imported.
        verify: compare both on random inputs, see `verifying.verify`.

    Raises:
        ValueError: for a family that has no way to say what this model is, naming the fields, and where the two models differ.
    """
    from transduct.convert.memory import export_model
    from transduct.convert.verifying import verify as verify_pair

    theirs = export_model(model, to)
    if verify:
        verify_pair(theirs, model)
    return theirs


def from_fairseq(path: str | Path, **options) -> "PreTrainedModel":
    """A checkpoint of fairseq as our model; see `fairseq.from_fairseq`."""
    from transduct.convert.fairseq import from_fairseq as read

    return read(path, **options)


def to_ctranslate2(model: "PreTrainedModel", tokenizer: Any, folder: str | Path, quantization: str | None = None) -> "Exported":
    """A model of ours in CTranslate2's format; see `ctranslate2.to_ctranslate2`."""
    from transduct.convert.ctranslate2 import to_ctranslate2 as write

    return write(model, tokenizer, folder, quantization)


def to_onnx(model: "PreTrainedModel", tokenizer: Any, folder: str | Path) -> "Exported":
    """A model of ours as graphs for ONNX Runtime; see `onnx.to_onnx`."""
    from transduct.convert.onnx import to_onnx as write

    return write(model, tokenizer, folder)

"""Tensors that a checkpoint holds and its class reads for nothing, kept beside our model for the way back.

transformers 5 ties nothing in BART's kin where `tie_word_embeddings` is false, and still has a matrix `shared` there. Our model
has no place for it and needs none, but a checkpoint that is imported and exported again must come back bit by bit. In memory
the tensors hang on the model, in a folder they are a file of their own; `save_pretrained` leaves them behind.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from transduct.convert.checkpoint import Checkpoint

FILE = "unread.safetensors"
ATTRIBUTE = "_unread_tensors"


def attach(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Keep tensors on a model, where they are no weights: they are neither trained nor saved, and are copied with the model."""
    if tensors:
        setattr(model, ATTRIBUTE, dict(tensors))


def attached(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What `attach` has kept on a model, by their names there."""
    return getattr(model, ATTRIBUTE, {})


def write(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Keep tensors in a folder."""
    if tensors:
        save_file(dict(tensors), folder / FILE, metadata={"format": "pt"})


def read(folder: Path) -> dict[str, torch.Tensor]:
    """What `write` has kept in a folder, by their names there.

    Raises:
        ValueError: for a damaged file.
    """
    if not (folder / FILE).is_file():
        return {}
    checkpoint = Checkpoint.of_files([folder / FILE], str(folder))
    return {name: checkpoint.tensor(name) for name in checkpoint.names}

"""Checkpoints of other programs than transformers, each opened as one description that in-memory and on-disk imports share.

fairseq's `.pt` and Marian's `.npz` and `.bin` hold options and tensors of their own. `Opened` says which of our tensors each one
is, so that writing a checkpoint is the same work for all; see `models.Conversion`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from transduct.convert import unread
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.memory import build
from transduct.convert.models import Conversion


@dataclass(frozen=True)
class Opened:
    """A checkpoint of another program, not yet converted."""

    conversion: Conversion
    checkpoint: Checkpoint
    generation: GenerationConfig | None
    """How that program decodes unless told otherwise; None for a classifier."""
    tokenizer: PreTrainedTokenizerBase | None
    """None: none could be made of the files, or none was asked for."""
    text: str
    """What text the tokenizer expects, or what is missing for one."""
    original: Callable[[], PreTrainedModel] | None = None
    """Makes a model of transformers with the same weights, to compare with; None: the checkpoint is transformers' own, or
    transformers has no such model."""

    def model(self) -> PreTrainedModel:
        """Our model with copies of its weights, in evaluation mode."""
        state = {name: tensor.clone() for name, tensor in self.conversion.to_ours(self.checkpoint)}
        model = build(self.conversion.our_class, self.conversion.config, state)
        unread.attach(model, self.conversion.unread_tensors(self.checkpoint))
        if self.generation is not None:
            model.generation_config = self.generation
        return model


def is_foreign(path: str | Path) -> bool:
    """Whether `open_foreign` is the one to ask: a file, not a folder, by its ending."""
    return Path(path).is_file() and Path(path).suffix in (".pt", ".npz", ".bin")


def open_foreign(
    path: str | Path,
    vocabularies: Sequence[str | Path] = (),
    classification_head: str | None = None,
    tokenizer: bool = True,
) -> Opened:
    """Open a checkpoint of Marian (.npz, .bin) or fairseq (.pt) with the files beside it.

    Args:
        vocabularies: where they are not beside it: the folder of fairseq's dictionaries, or one or two files of Marian's.
        classification_head: of a fairseq model, the head to import; None: the model generates.
        tokenizer: False: do without one.

    Raises:
        ValueError: for any other file, and for whatever cannot be imported, named.
    """
    from transduct.convert.fairseq import open_checkpoint as open_fairseq
    from transduct.convert.marian_files import is_marian
    from transduct.convert.marian_npz import open_checkpoint as open_marian

    if is_marian(path):
        if classification_head is not None:
            raise ValueError(
                f"classification_head={classification_head!r} belongs to fairseq's models; {str(path)!r} is Marian's"
            )
        return open_marian(path, tuple(vocabularies) or None, tokenizer)
    if len(vocabularies) > 1:
        raise ValueError(f"vocabularies={list(map(str, vocabularies))} must be the one folder that holds fairseq's dictionaries")
    folder = vocabularies[0] if vocabularies else None
    return open_fairseq(path, folder, classification_head, tokenizer=tokenizer)

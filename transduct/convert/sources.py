"""Where an imported checkpoint comes from: a folder of transformers, an id of the Hub, or a file of another program.

A folder may have been written by any version of transformers. Files of version 4 and before name classes that were renamed since,
and keep the settings of generation in config.json; those become a generation config exactly as transformers itself makes it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import GenerationConfig

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import SAFETENSORS, TORCH, Checkpoint, read_json
from transduct.convert.families import FAMILIES, family_of
from transduct.convert.foreign import Opened, is_foreign, open_foreign
from transduct.convert.memory import quiet
from transduct.convert.models import import_plan
from transduct.convert.tokenizers import FILES
from transduct.convert.unread import FILE as UNREAD

CONFIG, GENERATION = "config.json", "generation_config.json"
NOTICES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "README.md", "README.original.md")
"""Files that say under which terms the weights may be used."""

RENAMED = {"BartForMaskedLM": "BartForConditionalGeneration", "T5WithLMHeadModel": "T5ForConditionalGeneration"}
"""Classes under the names that they had before transformers 3."""


@dataclass(frozen=True)
class Located:
    """Where the files are."""

    name: str
    """As the user said it."""
    path: Path
    """A folder, or a file of another program."""
    commit: str | None = None
    """Of the Hub's repository."""

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def __str__(self) -> str:
        return self.name if self.commit is None else f"{self.name}@{self.commit}"


def locate(source: str | Path, revision: str | None = None, token: str | None = None) -> Located:
    """The files of a checkpoint, downloaded where `source` is an id of the Hub; safetensors rather than files of `torch.save`.

    Args:
        revision: branch, tag or commit, of the Hub alone; token: for what is not public.

    Raises:
        ValueError: if there is no such file or folder, or the Hub has or gives none.
    """
    path = Path(source)
    if source and path.exists():
        if revision is not None or token is not None:
            raise ValueError(f"revision and token belong to an id of the Hub, but {str(source)!r} is on this disk")
        return Located(str(source), path)
    like_an_id = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", str(source))
    if not like_an_id or path.suffix in (".bin", ".npz", ".pt", ".safetensors"):
        raise ValueError(f"there is no file or folder {str(source)!r}")
    settings = [CONFIG, GENERATION, *FILES, *NOTICES]
    try:
        folder = Path(snapshot_download(str(source), revision=revision, token=token, allow_patterns=settings))
        _check_family(folder)  # before weights are downloaded for nothing
        for weights in (SAFETENSORS, TORCH):
            stem, _, ending = weights.partition(".")
            wanted = [*settings, UNREAD, weights, f"{weights}.index.json", f"{stem}-*.{ending}"]
            folder = Path(snapshot_download(str(source), revision=folder.name, token=token, allow_patterns=wanted))
            if (folder / weights).is_file() or (folder / f"{weights}.index.json").is_file():
                break
    except (GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{str(source)!r} is no folder here, and the Hub does not give it: {reason}") from error
    return Located(str(source), folder, folder.name)


def _check_family(folder: Path) -> None:
    """Raises ValueError if there is a config.json that is neither of a family that is known here nor ours."""
    if not (folder / CONFIG).is_file():
        return
    model_type = read_json(folder / CONFIG).get("model_type")
    if model_type is None:
        raise ValueError(f"{folder / CONFIG} has no model_type: write into it which of {', '.join(FAMILIES)} it is")
    if model_type != TransductConfig.model_type:
        family_of(model_type, str(folder))


def open_source(located: Located, their_class: str | None = None, **foreign: Any) -> Opened:
    """A checkpoint of any program, not yet converted.

    Args:
        their_class: transformers' class that the files are of, where config.json does not say it.
        foreign: options of `foreign.open_foreign`, for a file of another program.

    Raises:
        ValueError: for whatever cannot be imported, named.
    """
    if is_foreign(located.path):
        if their_class is not None:
            raise ValueError(f"class {their_class!r} can be chosen for a folder of transformers alone, not for {located.name!r}")
        return open_foreign(located.path, **foreign)
    if foreign:
        raise ValueError(f"{', '.join(foreign)} can be chosen for a file of fairseq or Marian alone, not for {located.name!r}")
    folder = located.path
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{located.name!r} has no {CONFIG}: it is no checkpoint of transformers")
    _check_family(folder)
    values = read_json(folder / CONFIG)
    if values["model_type"] == TransductConfig.model_type:
        raise ValueError(f"{located.name!r} is a checkpoint of transduct already: it needs no import")
    checkpoint = Checkpoint.of_folder(folder)
    plan = import_plan(values, their_class or named_class(values.get("architectures"), folder), checkpoint, str(folder))
    generates = plan.our_class.can_generate()
    return Opened(plan, checkpoint, generation_config(folder) if generates else None, None, "")


def named_class(architectures: list[str] | None, folder: Path) -> str:
    """The class in config.json, by its name of today.

    Raises:
        ValueError: if there is none, or several.
    """
    if not architectures or len(architectures) > 1:
        raise ValueError(
            f"{folder / CONFIG} has architectures={architectures!r}: choose one class, such as T5ForConditionalGeneration, "
            "with --class (their_class in Python)"
        )
    return RENAMED.get(architectures[0], architectures[0])


def generation_config(folder: Path) -> GenerationConfig:
    """The settings that transformers' own class would generate with: of their own file, or else of config.json.

    Raises:
        ValueError: for settings that transformers refuses, or would leave out without a word.
    """
    values = read_json(folder / CONFIG)
    with quiet():
        if not (folder / GENERATION).is_file():
            return GenerationConfig.from_model_config(values)
        read_json(folder / GENERATION)  # says what is wrong, if it is no object
        config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    if values.get("force_bos_token_to_be_generated") and config.forced_bos_token_id is None:
        raise ValueError(
            f"{folder}: {CONFIG} says force_bos_token_to_be_generated, which is not read where there is a {GENERATION}: write "
            f"forced_bos_token_id={values.get('bos_token_id')} into that, or remove the option"
        )
    return config

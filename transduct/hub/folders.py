"""What of a folder belongs on the Hub: the model, its tokenizer, its code and its documents; nothing of a training, no pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from transformers.dynamic_module_utils import get_relative_import_files

from transduct.configuration import AUTO_MAP
from transduct.convert.checkpoint import SAFETENSORS, TORCH, read_json
from transduct.hub.facts import RECIPE, RECORD
from transduct.hub.private import found_in, without_secrets
from transduct.pretrained import code_files

CARD, INDEX = "README.md", f"{SAFETENSORS}.index.json"
PICKLES = (".bin", ".ckpt", ".dill", ".distcp", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth")
PACKED = (".bz2", ".gz", ".lz4", ".tar", ".xz", ".zip", ".zst")
OF_TRAINING = (
    "trainer_state.json", "manifest.json", "training_report.html", "data_position_*.json", "off_schedule.json",
    "token_budget.json", "predictions/*", "checkpoint-*/*", "events.out.tfevents*", "*/events.out.tfevents*",
)  # fmt: skip
"""Patterns of names in the folder."""


@dataclass(frozen=True)
class File:
    """A file to upload: one of the folder, one of this package, or a text."""

    path: str
    """In the repository."""
    source: Path | bytes

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


@dataclass(frozen=True)
class Contents:
    files: list[File]
    left_out: Mapping[str, str]
    """Why each of these files stays here."""
    notes: list[str]


def model_folder(folder: str | Path) -> Path:
    """The folder with the model: this one, or `model` of the output folder of a run.

    Raises:
        ValueError: if there is none, or what is in it is no whole model of ours.
    """
    from transduct.doctor import examine_folder  # which imports much that a trainer, with a card to write, has no use for

    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}")
    if (path / RECIPE).is_file() and not (path / "config.json").is_file():
        path = path / "model"
        if not path.is_dir():
            raise ValueError(
                f"the run in {str(folder)!r} has no model yet: the command that started it goes on, and writes it at its end"
            )
    if path.name.endswith(".part"):
        raise ValueError(f"{str(path)!r} is half-written: its command was stopped, or is still at work")
    found = examine_folder(path, load=False).problems
    problems = [problem for problem in found if problem.subject != "checkpoint"]  # whether a training can go on is no matter here
    if problems:
        first = f"{problems[0].subject} {problems[0].text}".strip()
        more = f" ({len(problems) - 1} more: `transduct doctor {path}` tells them)" if len(problems) > 1 else ""
        raise ValueError(f"{str(path)!r} cannot be shared: {first}{more}")
    if not weights_of(path):
        raise ValueError(f"{str(path)!r} holds {TORCH}, a pickle: load it and save it again with save_pretrained, as safetensors")
    return path


def contents(folder: Path, token: str | None = None) -> Contents:
    """The files of a model folder that are uploaded, all but its card.

    Raises:
        ValueError: if one of them holds a token.
    """
    files, left_out, notes = [], {}, []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        reason = _stays(name, path, folder)
        if reason is not None:
            left_out[name] = reason
            continue
        if path.suffix != ".safetensors":
            holds_token, names_home = found_in(path, token)
            if holds_token:
                raise ValueError(f"{str(path)!r} holds a token of the Hub or of another service: take it out before you share it")
            if name != RECORD and names_home:
                notes.append(f"{name} names a folder of yours: look at it, for others will see it")
        if name == CARD:
            continue
        files.append(File(name, _public_record(path) if name == RECORD else path))
    away = [file.path for file in files if _leads_away(folder / file.path, folder)]
    if away:
        of_many = f", and so do {len(away) - 1} more" if len(away) > 1 else ""
        notes.append(f"{away[0]} is a link that leads out of the folder{of_many}: what is there is shared")
    if not _has_its_code(folder):
        code = {Path(file).name: Path(file) for file in code_files()}
        files = [*(file for file in files if file.path not in code), *(File(name, path) for name, path in sorted(code.items()))]
        notes.append("the model's code is not all there: that of this package goes with it")
    if not (folder / "tokenizer_config.json").is_file() and not (folder / "preprocessor_config.json").is_file():
        notes.append("there is no tokenizer: save it in the same folder, unless the sources are no text")
    return Contents(files, left_out, notes)


def _has_its_code(folder: Path) -> bool:
    """Whether the modules that config.json names, and all that these import, are there; they may be of an older version."""
    roots = {folder / f"{reference.split('.')[0]}.py" for reference in AUTO_MAP.values()}
    try:
        return all(path.is_file() for path in roots) and bool([get_relative_import_files(path) for path in roots])
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _public_record(path: Path) -> bytes:
    """Where an imported model came from, without the folders of this computer."""
    return (json.dumps(without_secrets(read_json(path)), indent=2, ensure_ascii=False) + "\n").encode()


def _stays(name: str, path: Path, folder: Path) -> str | None:
    """Why a file is not uploaded; None: it is."""
    parts = Path(name).parts
    if any(part.startswith(".") or part == "__pycache__" or part.endswith((".part", ".old")) for part in parts):
        return "hidden, or left by a command that was stopped"
    if not path.is_file():
        return "a link to a folder or to nothing, or no file"
    if _is_pickle(path):
        return "a pickle, which could run anything where it is loaded"
    if name.endswith(".bin.index.json"):
        return "of pickles, which stay here"
    if any(fnmatchcase(name, pattern) for pattern in OF_TRAINING):
        return "of the training"
    if name == "adapter_config.json":
        return "of an adapter, which peft loads on top of the model: merge it into the model, if it belongs there"
    if len(parts) == 1 and (path.suffix == ".safetensors" or name == INDEX) and name not in weights_of(folder):
        return "not read, beside the weights that are"
    return None


def _leads_away(path: Path, folder: Path) -> bool:
    return path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())


def _is_pickle(path: Path) -> bool:
    """Whether a file may be one by its name, packed or not, or is one by its content: a pickle of protocol 2 to 5, alone or, as
    `torch.save` writes it, in an archive."""
    *_, before, last = ["", "", *(suffix.lower() for suffix in path.suffixes)]
    if last in PICKLES or (last in PACKED and before in PICKLES):
        return True
    if last == ".safetensors":  # which begin with a length of any bytes
        return False
    with path.open("rb") as file:
        head = file.read(4)
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return True
    try:
        return head == b"PK\3\4" and any(name.endswith(".pkl") for name in ZipFile(path).namelist())
    except BadZipFile:
        return False


def weights_of(folder: Path) -> set[str]:
    """Names of the files of weights that `from_pretrained` reads, and of their index."""
    if (folder / SAFETENSORS).is_file():
        return {SAFETENSORS}
    index = folder / INDEX
    return {INDEX, *read_json(index)["weight_map"].values()} if index.is_file() else set()

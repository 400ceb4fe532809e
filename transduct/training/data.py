"""Data sets of a run: read, checked and tokenised once into Arrow files in its output folder, then mapped into memory.

A file is used again as long as it would come out the same: its name holds a hash of the rows' description, of the files that
they come from (size and time of change), of the tokenizer and of the limits. What a Python function yields is not known
before it has run, so that such rows are made anew at each start.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter

from transduct.files import naming
from transduct.training.encoding import ROWS_AT_ONCE, Encoder, Example, in_pieces
from transduct.training.reading import BadRow, Row, files, function_file, open_dataset, read
from transduct.training.recipe_data import FILES, SplitSource

VERSION = 1
"""Of what is stored; another one makes all files anew."""

Usable = TypeVar("Usable")


@dataclass
class Skipped:
    """Rows that were left out: how many for each reason, and the first of each."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, bad: BadRow) -> None:
        self.counts[bad.reason] += 1
        self.first.setdefault(bad.reason, str(bad))

    def update(self, other: "Skipped") -> None:
        self.counts.update(other.counts)
        self.first = other.first | self.first

    def copy(self) -> "Skipped":
        return Skipped(self.counts.copy(), self.first.copy())

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        reasons = (f"{count:,} {reason} (the first: {self.first[reason]})" for reason, count in self.counts.most_common())
        return f"{self.counts.total():,} rows skipped: " + ", ".join(reasons)


@dataclass
class Loaded:
    """A data set in memory-mapped files, and what was found on the way."""

    dataset: Dataset
    rows: int
    """Usable rows; a row with several targets is several pairs."""
    skipped: Skipped
    changed: bool = False
    """Whether they replace others, made of other inputs or in another way."""


def usable(rows: Iterable[Usable | BadRow], bad_rows: str, skipped: Skipped) -> Iterator[Usable]:
    """The rows or examples without the bad ones, which are counted ("skip") or raised ("refuse")."""
    for row in rows:
        if not isinstance(row, BadRow):
            yield row
        elif bad_rows == "refuse":
            raise row
        else:
            skipped.add(row)


def load(split: SplitSource, folder: Path, encoder: Encoder, cache: Path, name: str, bad_rows: str = "refuse") -> Loaded:
    """The encoded rows of a split, from an Arrow file that is made if it is not there.

    Args:
        split: where the rows are; its paths are relative to `folder`.
        encoder: makes examples of rows.
        cache: folder of the Arrow files.
        name: what the file is called; files of this name that were made of something else are deleted.
        bad_rows: "refuse" raises the first bad row, "skip" counts them.

    Raises:
        BadRow: (a `ValueError`) for a row that is bad or too long, unless these are skipped.
        ValueError: when nothing is left.
    """
    described = {option: value for option, value in asdict(split).items() if option not in ("name", "weight", "streaming")}
    key = [VERSION, described, inputs_key(split, folder), encoder.key(), bad_rows]
    path = cache / f"{name}-{hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()[:16]}.arrow"
    may_differ = split.function is not None and PartialState().is_local_main_process  # the others take what that one wrote
    note, changed = None if may_differ else _read_note(path), False
    if note is None:
        note = _make(path, split, folder, encoder, bad_rows)
        changed = _delete_others(path, name)
    return Loaded(Dataset.from_file(str(path)), note["rows"], Skipped(Counter(note["counts"]), note["first"]), changed)


def origin_of(number: int, split: SplitSource, folder: Path, encoder: Encoder, bad_rows: str = "refuse") -> str:
    """Where the row stands, "file:line", that became pair `number` (counted from 0) of `load`; the rows are read once more."""
    left = number
    for some in in_pieces(usable(read(split, folder, encoder.documents), bad_rows, Skipped()), ROWS_AT_ONCE):
        made = len(list(usable(encoder(some), bad_rows, Skipped())))
        if left < made:
            return origin_among(some, encoder, left)
        left -= made
    raise IndexError(f"{split} has no pair {number}")


def origin_among(rows: Iterable[Row], encoder: Encoder, number: int) -> str:
    """Where the one of these rows stands whose example is `number`, among the usable examples of all of them."""
    origins = (row.origin for row in rows for _ in usable(encoder([row]), "skip", Skipped()))
    return next(islice(origins, number, None))


def _make(path: Path, split: SplitSource, folder: Path, encoder: Encoder, bad_rows: str) -> dict[str, Any]:
    """Writes the Arrow file and its note, which is returned."""
    skipped, rows = Skipped(), 0

    def counted() -> Iterator[Row]:
        nonlocal rows
        for row in usable(read(split, folder, encoder.documents), bad_rows, skipped):
            rows += 1
            yield row

    if not _write(path, usable(encoder(counted()), bad_rows, skipped), encoder):
        raise ValueError(f"no usable row in {split}" + (f": {skipped}" if skipped else ""))
    note = {"rows": rows, "counts": skipped.counts, "first": skipped.first, "bytes": path.stat().st_size}
    part = _part_of(_note_of(path))
    try:
        with naming(_note_of(path)):
            part.write_text(json.dumps(note), encoding="utf-8")
        part.replace(_note_of(path))
    finally:
        part.unlink(missing_ok=True)
    return note


def _write(path: Path, examples: Iterable[Example], encoder: Encoder) -> int:
    """Writes beside the place and moves there, so that the file is never half written. Returns the number of examples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(path)
    try:
        # a file, for datasets would look for an address in a path, or for the home of a user in "~"
        with naming(path), part.open("wb") as file, ArrowWriter(stream=file, features=encoder.features) as writer:
            for example in examples:
                writer.write(example)
            count, _ = writer.finalize()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def _note_of(path: Path) -> Path:
    return path.with_suffix(".json")


def _read_note(path: Path) -> dict[str, Any] | None:
    """What was noted about a file, or None where the file is missing or cut short."""
    note = _note_of(path)
    if not path.is_file() or not note.is_file():
        return None
    try:
        values = json.loads(note.read_text(encoding="utf-8"))
    except ValueError:  # a machine that lost its power; what is noted there can be made again
        return None
    return values if values["bytes"] == path.stat().st_size else None


def _part_of(path: Path) -> Path:
    """Where a file is written first; several processes that share a folder may be writing the same one."""
    return path.with_name(f"{path.name}.{PartialState().process_index}.part")


def _delete_others(path: Path, name: str) -> bool:
    """What was made of other data, and what this process began and never finished. Whether there were other data."""
    found = False
    for pattern in ("arrow", "json", f"*.{PartialState().process_index}.part"):
        for old in path.parent.glob(f"{name}-{'?' * 16}.{pattern}"):
            if old.stem != path.stem:
                old.unlink(missing_ok=True)
                found = found or pattern == "arrow"
    return found


def inputs_key(split: SplitSource, folder: Path) -> Any:
    """What tells whether the rows of a split may have changed: of files their size and time, of a data set its fingerprint."""
    if split.dataset is not None:
        opened = open_dataset(split, folder)
        return opened._fingerprint if isinstance(opened, Dataset) else "read in part, which has none"
    if split.function is not None:
        return _state(function_file(split.function, folder)[0])
    named = [vars(split)[name] for name in ("source", "target", "alignment", *FILES) if vars(split)[name] is not None]
    return [_state(path) for names in named for path in files(names, folder)]


def _state(path: Path) -> list[Any]:
    found = path.stat()
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]

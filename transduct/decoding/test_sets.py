"""Test sets of any form as examples: a source, and references that are all right.

Read by `training/reading.py`: what a recipe can describe can be evaluated, and bad rows are refused with their file and line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transduct.training.reading import BadRow, Row, read
from transduct.training.recipe_data import SplitSource

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
"""The formats of files by their endings; all but the last may be followed by ".gz"."""


class Example(NamedTuple):
    source: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """Where the texts of a row are, and which rows of a data set count."""

    source: str = "source"
    target: str = "target"
    config: str | None = None
    split: str = "test"
    limit: int | None = None


def open_test_set(names: Sequence[str], columns: Columns) -> Iterator[Example]:
    """The examples of files or of a data set.

    Args:
        names: a file of a known format, or a name or folder of `datasets`; or a file of sources and one of references or several,
            line by line. Where there are several, a line of theirs may be empty: that reference is missing.

    Raises:
        ValueError: for files of unequal numbers of lines, and rows that are empty or no text, naming file and line.
        OSError: for files that are not there.
    """
    if len(names) > 1:
        _check_unused(columns, ("source", "target", "config", "split"), "files of lines")
        return _parallel(names[0], names[1:], columns)
    return examples(read(split_of(names[0], columns), Path()))


def _check_unused(columns: Columns, names: Sequence[str], what: str) -> None:
    """Raises ValueError for what is said about columns in vain."""
    for name in names:
        if getattr(columns, name) != getattr(Columns, name):
            raise ValueError(f"{name}={getattr(columns, name)!r} has no use for {what}: leave it out")


def split_of(name: str, columns: Columns) -> SplitSource:
    """How a recipe would say it."""
    fields: dict[str, Any] = dict(source_field=columns.source, target_field=columns.target, limit=columns.limit)
    kind = FORMATS.get(Path(name.removesuffix(".gz")).suffix)
    if kind is not None:
        _check_unused(columns, ("config", "split"), "a file")
        return SplitSource(**fields | {kind: name})
    if Path(name).is_file():
        known = ", ".join(FORMATS)
        raise ValueError(f"{name} is a file of no known format ({known}): name a file of sources and one of references behind it")
    if name.startswith((".", "/", "~")) and not Path(name).exists():
        raise ValueError(f"there is no file or folder {name!r}")
    return SplitSource(dataset=name, config=columns.config, split=columns.split, **fields)


def examples(rows: Iterable[Row | BadRow]) -> Iterator[Example]:
    """Raises the first bad row."""
    for row in rows:
        if isinstance(row, BadRow):
            raise row
        yield Example(row.source, row.targets)


def _parallel(source: str, targets: Sequence[str], columns: Columns) -> Iterator[Example]:
    """Rows of one file of sources and several of references, of which each needs one that is not empty."""
    streams = [read(SplitSource(source=source, target=target, limit=columns.limit), Path()) for target in targets]
    for rows in zip(*streams, strict=True):
        good = [row for row in rows if isinstance(row, Row)]
        for row in rows:
            if isinstance(row, BadRow) and (row.reason != "empty target" or not good):
                raise row
        yield Example(good[0].source, tuple(text for row in good for text in row.targets))


def examples_of_pairs(pairs: Iterable[Any], columns: Columns) -> Iterator[Example]:
    """Examples of (source, reference or references) pairs, or of rows of a data set.

    Raises:
        ValueError: for what is neither, naming its number counted from 1.
    """
    for number, pair in enumerate(pairs, start=1):
        if isinstance(pair, dict):
            missing = [name for name in (columns.source, columns.target) if name not in pair]
            if missing:
                raise ValueError(f"example {number} has no key {missing[0]!r}; it has {', '.join(map(repr, pair))}")
            pair = pair[columns.source], pair[columns.target]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"example {number} is {pair!r}: it must be a pair of a source and a reference or several of them")
        source, accepted = pair
        references = (accepted,) if isinstance(accepted, str) else tuple(accepted)
        if not references or not all(isinstance(text, str) for text in (source, *references)):
            raise ValueError(f"example {number} must be a text with at least one reference, not {source!r} with {accepted!r}")
        yield Example(source, references)

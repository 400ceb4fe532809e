"""From files to tokenised data sets. Every complaint about a row names its file and line.

- `load_split` reads parallel text, JSON lines, CSV or the results of a Python function into a `datasets.Dataset` with the
  columns `source` (text), `targets` (texts that are all right) and `origin` ("file:line").
- `tokenize` makes `input_ids` and `labels` of it: for training one pair for each target, for evaluation one row for each
  source, with the other targets kept as references.
"""

import csv
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from datasets import Dataset

from transduct.training.recipe import SplitSource

Row = tuple[str, list[str], str]
"""Source, targets, and where they come from."""


class BadRow(ValueError):
    """A row that cannot be used; its message starts with the file and line."""


def load_split(split: SplitSource, folder: Path, bad_rows: str = "refuse") -> tuple[Dataset, list[str]]:
    """The data set of a split, and the complaints about the rows that were skipped.

    Args:
        split: where the data are; its paths are relative to `folder`.
        bad_rows: "refuse" raises the first complaint, "skip" collects them.

    Raises:
        BadRow: (a `ValueError`) for a malformed or empty row, unless these are skipped.
        ValueError: when nothing is left.
    """
    columns: dict[str, list] = {"source": [], "targets": [], "origin": []}
    complaints = []
    for row in islice(_read(split, folder), split.limit):
        if isinstance(row, BadRow):
            if bad_rows == "refuse":
                raise row
            complaints.append(str(row))
            continue
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    if not columns["source"]:
        raise ValueError(f"no usable row in {_name(split)} ({len(complaints)} skipped)")
    return Dataset.from_dict(columns), complaints


def tokenize(
    dataset: Dataset,
    tokenizer: Any,
    every_target: bool,
    max_source_tokens: int | None = None,
    max_target_tokens: int | None = None,
    bad_rows: str = "refuse",
) -> tuple[Dataset, list[str]]:
    """Adds `input_ids` and `labels`, and lists the complaints about rows that were skipped for their length.

    Args:
        dataset: as `load_split` gives it.
        tokenizer: called with the sources, and with the targets as `text_target`.
        every_target: one row for each target of a source (training), or one row with the first target (evaluation).
        max_source_tokens, max_target_tokens: longest allowed; None: any length.
        bad_rows: what to do with longer ones, "refuse" or "skip".

    Raises:
        BadRow: (a `ValueError`) for a row that is too long, unless these are skipped.
    """
    complaints: list[str] = []

    def encode(batch: dict[str, list]) -> dict[str, list]:
        rows = list(zip(batch["source"], batch["targets"], batch["origin"], strict=True))
        pairs = [(row, target) for row in rows for target in (row[1] if every_target else row[1][:1])]
        encoded = tokenizer([row[0] for row, _ in pairs], text_target=[target for _, target in pairs])
        result: dict[str, list] = {"input_ids": [], "labels": []}
        if not every_target:
            result |= {"source": [], "targets": []}
        for (row, _), source, target in zip(pairs, encoded["input_ids"], encoded["labels"], strict=True):
            complaint = _too_long(row[2], len(source), len(target), max_source_tokens, max_target_tokens)
            if complaint is not None:
                if bad_rows == "refuse":
                    raise complaint
                complaints.append(str(complaint))
                continue
            for column, value in zip(result.values(), (source, target, row[0], row[1]), strict=False):
                column.append(value)
        return result

    options: dict[str, Any] = {"keep_in_memory": True, "load_from_cache_file": False, "new_fingerprint": uuid4().hex[:16]}
    encoded = dataset.map(encode, batched=True, remove_columns=dataset.column_names, **options)
    if len(encoded) == 0:
        raise ValueError(f"no row is short enough ({len(complaints)} skipped): {complaints[0]}")
    return encoded, complaints


def _too_long(origin: str, source: int, target: int, max_source: int | None, max_target: int | None) -> BadRow | None:
    for side, tokens, limit in (("source", source, max_source), ("target", target, max_target)):
        if limit is not None and tokens > limit:
            return BadRow(f"{origin}: the {side} has {tokens} tokens, more than data.max_{side}_tokens={limit}")
    return None


def _name(split: SplitSource) -> str:
    return split.json or split.csv or split.function or f"{split.source} and {split.target}"


def _read(split: SplitSource, folder: Path) -> Iterator[Row | BadRow]:
    if split.json is not None:
        rows = _read_json(folder / split.json, split)
    elif split.csv is not None:
        rows = _read_csv(folder / split.csv, split)
    elif split.function is not None:
        rows = _read_function(split.function, split.arguments, folder)
    else:
        assert split.source is not None
        assert split.target is not None
        rows = _read_text(folder / split.source, folder / split.target)
    for origin, source, targets in rows:
        yield _checked_row(origin, source, targets)


def _checked_row(origin: str, source: Any, targets: Any) -> Row | BadRow:
    for side in (source, targets):
        if isinstance(side, BadRow):
            return side
    targets = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    if not isinstance(source, str) or not targets or not all(isinstance(target, str) for target in targets):
        return BadRow(f"{origin}: source and target must be texts, not {source!r} and {targets!r}")
    if not source.strip():
        return BadRow(f"{origin}: the source is empty")
    if not all(target.strip() for target in targets):
        return BadRow(f"{origin}: the target is empty")
    return source, targets, origin


def _lines(path: Path) -> Iterator[str | BadRow]:
    """The file's lines without their ends; only newlines end a line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield BadRow(f"{path}:{number}: not UTF-8: {error.reason}")


def _read_text(source_path: Path, target_path: Path) -> Iterator[tuple[str, Any, Any]]:
    for number, (source, target) in enumerate(zip_longest(_lines(source_path), _lines(target_path)), start=1):
        if source is None or target is None:
            ended = source_path if source is None else target_path
            pair = f"{source_path.name} and {target_path.name}"
            raise ValueError(f"{ended}:{number}: the file ends before this line, but {pair} must have as many lines")
        yield f"{source_path}:{number}", source, target


def _read_json(path: Path, split: SplitSource) -> Iterator[tuple[str, Any, Any]]:
    for number, line in enumerate(_lines(path), start=1):
        origin = f"{path}:{number}"
        if isinstance(line, BadRow):
            yield origin, line, None
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield origin, BadRow(f"{origin}: not JSON: {error}"), None
            continue
        missing = [name for name in (split.source_field, split.target_field) if not isinstance(row, dict) or name not in row]
        if missing:
            yield origin, BadRow(f"{origin}: no key {' and no key '.join(map(repr, missing))} in {line[:80]}"), None
            continue
        yield origin, row[split.source_field], row[split.target_field]


def _read_csv(path: Path, split: SplitSource) -> Iterator[tuple[str, Any, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        for name in (split.source_field, split.target_field):
            if name not in (reader.fieldnames or ()):
                raise ValueError(f"{path}:1: no column {name!r}; the header has {', '.join(reader.fieldnames or ()) or 'none'}")
        for row in reader:
            origin = f"{path}:{reader.line_num}"
            missing = [name for name in (split.source_field, split.target_field) if row[name] is None]
            if missing:
                yield origin, BadRow(f"{origin}: the row ends before the column {missing[0]!r}"), None
                continue
            yield origin, row[split.source_field], row[split.target_field]


def _read_function(name: str, arguments: dict[str, Any], folder: Path) -> Iterator[tuple[str, Any, Any]]:
    for number, row in enumerate(_import_function(name, folder)(**arguments), start=1):
        origin = f"{name}, row {number}"
        if not isinstance(row, (tuple, list)) or len(row) != 2:
            yield (
                origin,
                BadRow(f"{origin}: not a pair of a source and a target or list of targets: {row!r}"),
                None,
            )
            continue
        yield origin, row[0], row[1]


def _import_function(name: str, folder: Path) -> Callable[..., Iterable]:
    file, colon, function = name.rpartition(":")
    path = folder / file
    if not colon or not path.is_file():
        raise ValueError(f"function={name!r} must read file.py:name, with a file in {folder}")
    module = _module(path, path.stat().st_mtime_ns)
    if function not in vars(module):
        raise ValueError(f"function={name!r}: {path} has no {function}")
    return vars(module)[function]


@cache
def _module(path: Path, changed: int) -> ModuleType:
    """The file run as a module, once for all splits; once more after it has changed."""
    spec = importlib.util.spec_from_file_location(f"_transduct_data_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

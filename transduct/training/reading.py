"""Rows of text from files of any of the known formats, one after the other, never whole in memory.

`read` yields a `Row` for each usable row and a `BadRow` for each other one; both know their file and line, or row where a
format has no lines. What is wrong with it:
- malformed: not JSON, a key or field missing, not a text;
- empty: source, target or document is white space only;
- encoding: bytes that are no UTF-8, half a surrogate pair, NUL and other control characters, U+FFFD. These come from files
  that were cut or decoded wrongly, and tokenizers refuse some of them.

A `Place` says how far a reader has come. From there another one goes on, without reading again what lies before it: files of
lines are entered at their byte (of ".gz" what lies before it in this file is unpacked once more), Parquet files at their row
group, data sets where they themselves say. Only the rows of a function are made again.
"""

import csv
import gzip
import importlib.util
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from transduct.training.recipe_data import SplitSource

_BROKEN = re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffd]")
"""No text of any language holds these; U+0085 ends lines in some files."""

csv.field_size_limit(2**31 - 1)  # else a field of more than 131,072 characters is an error


class Row(NamedTuple):
    """A usable row."""

    source: str
    """The source, or the document."""
    targets: tuple[str, ...]
    """Texts that are all right; none for a document."""
    origin: str
    """Where it comes from, "file:line"."""
    target_origin: str
    alignment: str | None = None
    """Which words belong together, "0-0 1-2"."""


class BadRow(ValueError):
    """A row that cannot be used: where it is, what is wrong, and the short reason by which such rows are counted."""

    def __init__(self, origin: str, complaint: str, reason: str = "malformed"):
        super().__init__(origin, complaint, reason)  # all three, so that it may be pickled
        self.origin, self.complaint, self.reason = origin, complaint, reason

    def __str__(self) -> str:
        return f"{self.origin}: {self.complaint}"


@dataclass
class Place:
    """How far rows have been read. Whoever reads them moves it along: it is behind the row that was yielded last."""

    rows: int = 0
    """Rows in all."""
    passes: int = 0
    """Times that all rows have been read before, for whoever begins again."""
    file: int = 0
    """Files before the one that is being read."""
    lines: int = 0
    """Lines of that file, or rows of a Parquet file, data set or function."""
    offsets: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Bytes of that file; of the files of sources, targets and alignments."""
    state: dict[str, Any] | None = None
    """What a streamed data set says about itself."""
    stream: Any = None
    """That data set, once it is open."""

    def note(self) -> dict[str, Any]:
        """The place for `Place(**note)`, as JSON."""
        state = self.state if self.stream is None else self.stream.state_dict()
        where = {"file": self.file, "lines": self.lines, "offsets": self.offsets.copy()}
        return {"rows": self.rows, "passes": self.passes, **where, "state": state}

    def enter_next_file(self) -> None:
        self.file, self.lines, self.offsets = self.file + 1, 0, [0, 0, 0]

    def begin_again(self) -> None:
        vars(self).update(vars(Place(passes=self.passes + 1)))


Found = tuple[str, str, Any, Any, Any]
"""Origin of the source, origin of the target, source, target and alignment, or a `BadRow` in their place."""


def read(split: SplitSource, folder: Path, documents: bool = False, place: Place | None = None) -> Iterator[Row | BadRow]:
    """The rows of a split, `split.limit` of them at most.

    Args:
        split: where the rows are; its paths are relative to `folder`.
        documents: each row is one text, for an objective, not a pair.
        place: where to begin, and moved along with the rows; None: at the first.

    Raises:
        FileNotFoundError: for a file that does not exist, and a pattern that fits none.
        ValueError: for files that do not fit the description: no such column, unequal numbers of lines, no such function; and
            for a place inside a line, in a file that is not what it was.
    """
    place = Place() if place is None else place
    fields = (split.text_field,) if documents else (split.source_field, split.target_field, split.alignment_field)
    names = [name for name in fields if name is not None]
    left = None if split.limit is None else max(0, split.limit - place.rows)
    return _counted(islice(_found(split, folder, names, documents, place), left), documents, place)


def _counted(found: Iterable[Found], documents: bool, place: Place) -> Iterator[Row | BadRow]:
    for row in found:
        place.rows += 1
        yield _checked_row(*row, documents)


def _found(split: SplitSource, folder: Path, names: Sequence[str], documents: bool, place: Place) -> Iterator[Found]:
    if split.json is not None:
        return _each(_read_json, files(split.json, folder), place, names)
    if split.csv is not None:
        return _each(_read_csv, files(split.csv, folder), place, names)
    if split.tsv is not None:
        return _each(_read_tsv, files(split.tsv, folder), place, names)
    if split.parquet is not None:
        return _each(_read_parquet, files(split.parquet, folder), place, names)
    if split.dataset is not None:
        return _read_dataset(split, folder, place, names)
    if split.function is not None:
        return _read_function(split.function, split.arguments, folder, place, documents)
    if split.text is not None:
        return _each(_read_lines if split.documents == "line" else _read_paragraphs, files(split.text, folder), place)
    sides = [files(named, folder) for named in (split.source, split.target, split.alignment) if named is not None]
    return _each(_read_text, _files_together(sides), place)


def files(named: str | Sequence[str], folder: Path) -> list[Path]:
    """The files of a path, a pattern or a list of them; those of a pattern in the order of their names."""
    found: list[Path] = []
    for name in [named] if isinstance(named, str) else named:
        if any(character in name for character in "*?[") and not (folder / name).exists():
            root = Path(name).anchor
            matching = sorted((Path(root) if root else folder).glob(name.removeprefix(root)))
            if not matching:
                raise FileNotFoundError(f"{name}: no file of {folder} fits this pattern")
            found += matching
        else:
            found.append(folder / name)
    return found


def _files_together(sides: list[list[Path]]) -> list[tuple[Path, ...]]:
    """The files of sources, targets and, where there are some, alignments that are read together."""
    if len({len(paths) for paths in sides}) > 1:
        also = "" if len(sides) == 2 else f" and {len(sides[2])} of alignments"
        raise ValueError(f"{len(sides[0])} files of sources and {len(sides[1])} of targets{also}: each needs its others")
    return list(zip(*sides, strict=True))


def _each(reader: Callable[..., Iterator[Found]], paths: Sequence[Any], place: Place, *arguments: Any) -> Iterator[Found]:
    for path in paths[place.file :]:
        yield from reader(path, place, *arguments)
        place.enter_next_file()


def _checked_row(origin: str, target_origin: str, source: Any, target: Any, alignment: Any, documents: bool) -> Row | BadRow:
    for side in (source, target, alignment):
        if isinstance(side, BadRow):
            return side
    targets = () if documents else tuple(target) if isinstance(target, (list, tuple)) else (target,)
    if complaint := _complaint("document" if documents else "source", source):
        return BadRow(origin, *complaint)
    if not targets and not documents:
        return BadRow(target_origin, "the list of targets is empty", "empty target")
    for text in targets:
        if complaint := _complaint("target", text):
            return BadRow(target_origin, *complaint)
    if alignment is not None and (not isinstance(alignment, str) or len(targets) != 1):
        return BadRow(origin, f'the alignment must be a text such as "0-0 1-2", of one target, not {alignment!r}', "alignment")
    return Row(source, targets, origin, target_origin, alignment)


def _complaint(side: str, text: Any) -> tuple[str, str] | None:
    if not isinstance(text, str):
        return f"the {side} must be a text, not {text!r}", "malformed"
    if not text.strip():
        return f"the {side} is empty", f"empty {side}"
    if match := _BROKEN.search(text):
        character = f"U+{ord(match[0]):04X}"
        return f"the {side} holds {character} at character {match.start() + 1}: it was cut or decoded wrongly", "encoding"
    return None


# ---- formats -------------------------------------------------------------------------------------------------------------
def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _enter(file: BinaryIO, path: Path, offset: int) -> None:
    """Goes to a byte of a file, where a line must begin."""
    if offset == 0:
        return
    file.seek(offset - 1)
    before = file.read(1)
    if before != b"\n" and (not before or file.read(1)):  # the last line may lack its end
        raise ValueError(
            f"{path}: no line begins at byte {offset}, up to which it had been read: the file has changed since. Go on with the "
            "file as it was, or begin anew"
        )


def _lines(path: Path, place: Place, side: int = 0) -> Iterator[str | BadRow]:
    """The file's lines without their ends; only newlines end a line. Moves the place's offset, the caller its number of lines."""
    with _open(path) as file:
        _enter(file, path, place.offsets[side])
        for number, line in enumerate(file, start=place.lines + 1):
            place.offsets[side] += len(line)
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                yield BadRow(f"{path}:{number}", f"not UTF-8: {error.reason}", "encoding")


def _numbered_lines(path: Path, place: Place) -> Iterator[tuple[int, str | BadRow]]:
    for number, line in enumerate(_lines(path, place), start=place.lines + 1):
        place.lines = number
        yield number, line


def _read_text(paths: Sequence[Path], place: Place) -> Iterator[Found]:
    sides = [_lines(path, place, side) for side, path in enumerate(paths)]
    for number, lines in enumerate(zip_longest(*sides), start=place.lines + 1):
        if None in lines:
            group = " and ".join(path.name for path in paths)
            ended = paths[lines.index(None)]
            raise ValueError(f"{ended}:{number}: the file ends before this line, but {group} must have as many lines")
        place.lines = number
        source, target, *alignment = lines
        yield f"{paths[0]}:{number}", f"{paths[1]}:{number}", source, target, alignment[0] if alignment else None


def _read_lines(path: Path, place: Place) -> Iterator[Found]:
    for number, line in _numbered_lines(path, place):
        yield _one_origin(f"{path}:{number}", line)


def _read_paragraphs(path: Path, place: Place) -> Iterator[Found]:
    """Documents between empty lines; the lines of one are joined by newlines. A bad line spoils its document."""
    lines: list[str | BadRow] = []
    number = 0
    for number, line in _numbered_lines(path, place):
        if isinstance(line, BadRow) or line.strip():
            lines.append(line)
        elif lines:
            yield _paragraph(path, number - len(lines), lines)
            lines = []
    if lines:
        yield _paragraph(path, number + 1 - len(lines), lines)


def _paragraph(path: Path, number: int, lines: list[str | BadRow]) -> Found:
    bad = next((line for line in lines if isinstance(line, BadRow)), None)
    return _one_origin(f"{path}:{number}", bad or "\n".join(map(str, lines)))


def _one_origin(origin: str, source: Any, target: Any = None, alignment: Any = None) -> Found:
    return origin, origin, source, target, alignment


def _picked(origin: str, row: Any, names: Sequence[str], shown: str) -> Found:
    """The fields of a row that is a mapping; "a.b" is the key b inside of a, unless there is a key "a.b"."""
    values = []
    for name in names:
        value = row
        for key in [name] if isinstance(row, dict) and name in row else name.split("."):
            if not isinstance(value, dict) or key not in value:
                missing = BadRow(origin, f"no key {name!r} in {shown[:80]}")
                return _one_origin(origin, missing)
            value = value[key]
        values.append(value)
    return _one_origin(origin, *values)


def _read_json(path: Path, place: Place, names: Sequence[str]) -> Iterator[Found]:
    for number, line in _numbered_lines(path, place):
        origin = f"{path}:{number}"
        if isinstance(line, BadRow):
            yield _one_origin(origin, line)
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield _one_origin(origin, BadRow(origin, f"not JSON: {error}"))
            continue
        yield _picked(origin, row, names, line)


def _read_csv(path: Path, place: Place, names: Sequence[str], **dialect: Any) -> Iterator[Found]:
    with _open(path) as raw:
        before, place.offsets = place.offsets, [0, 0, 0]
        reader = csv.reader(_csv_lines(raw, place), **dialect)
        header = next(reader, [])
        for name in names:
            if name not in header:
                raise ValueError(f"{path}:1: no column {name!r}; the header has {', '.join(header) or 'none'}")
        columns = [header.index(name) for name in names]
        if place.lines:  # some rows have been read
            _enter(raw, path, before[0])
            place.offsets = before
        else:
            place.lines = reader.line_num
        first = place.lines
        reader = csv.reader(_csv_lines(raw, place), **dialect)
        for row in _surviving(reader, path, first):
            place.lines = first + reader.line_num
            origin = f"{path}:{place.lines}"
            if isinstance(row, BadRow):
                yield _one_origin(origin, row)
            elif row:  # else an empty line
                yield _one_origin(origin, *_fields(origin, row, header, columns))


def _csv_lines(raw: BinaryIO, place: Place) -> Iterator[str]:
    """The rest of a file; what is no UTF-8 becomes half surrogate pairs, which `_complaint` finds."""
    for line in raw:
        encoding = "utf-8" if place.offsets[0] else "utf-8-sig"
        place.offsets[0] += len(line)
        yield line.decode(encoding, "surrogateescape")


def _fields(origin: str, row: list[str], header: list[str], columns: list[int]) -> list[Any]:
    if len(row) > len(header):
        return [BadRow(origin, f"the row has {len(row)} fields, but the header {len(header)}")]
    if missing := [header[column] for column in columns if column >= len(row)]:
        return [BadRow(origin, f"the row ends before the column {missing[0]!r}")]
    return [row[column] for column in columns]


def _surviving(reader: Any, path: Path, lines: int) -> Iterator[list[str] | BadRow]:
    """The reader's rows behind so many lines of its file, and complaints instead of its errors."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield BadRow(f"{path}:{lines + reader.line_num}", f"not CSV: {error}")
        else:
            yield row


def _read_tsv(path: Path, place: Place, names: Sequence[str]) -> Iterator[Found]:
    return _read_csv(path, place, names, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_parquet(path: Path, place: Place, names: Sequence[str]) -> Iterator[Found]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        top = file.schema_arrow.names
        columns = sorted({name if name in top else name.split(".")[0] for name in names})
        if missing := [column for column in columns if column not in top]:
            raise ValueError(f"{path}: no column {missing[0]!r}; it has {', '.join(top)}")
        groups = range(file.num_row_groups)
        ends = [0, *accumulate(file.metadata.row_group(group).num_rows for group in groups)]
        read_whole = bisect_right(ends, place.lines) - 1
        number, before = ends[read_whole], place.lines
        for batch in file.iter_batches(batch_size=1024, row_groups=groups[read_whole:], columns=columns):
            for row in range(batch.num_rows):
                number += 1
                if number > before:
                    place.lines = number
                    yield _parquet_row(f"{path}:{number}", batch, row, columns, names)


def _parquet_row(origin: str, batch: Any, row: int, columns: Sequence[str], names: Sequence[str]) -> Found:
    try:
        values = {column: batch[column][row].as_py() for column in columns}
    except UnicodeDecodeError as error:
        return _one_origin(origin, BadRow(origin, f"not UTF-8: {error.reason}", "encoding"))
    return _picked(origin, values, names, str(values))


def _read_dataset(split: SplitSource, folder: Path, place: Place, names: Sequence[str]) -> Iterator[Found]:
    rows = open_dataset(split, folder)
    top = rows.column_names
    for name in names:
        if top is not None and name not in top and name.split(".")[0] not in top:
            raise ValueError(f"dataset={split.dataset!r}: no column {name!r}; it has {', '.join(top)}")
    rows = rows.select_columns(sorted({name if name in (top or ()) else name.split(".")[0] for name in names}))
    left: Iterable[Any]
    if hasattr(rows, "load_state_dict"):
        left = _streamed_rows(rows, place)
    else:
        left = rows.skip(place.lines) if place.lines < len(rows) else ()
    for number, row in enumerate(left, start=place.lines + 1):
        place.lines = number
        yield _picked(f"{split.dataset}[{split.split}]:{number}", row, names, str(row))


def _streamed_rows(rows: Any, place: Place) -> Iterator[dict[str, Any]]:
    """The rest of an `IterableDataset`. Iterated over in a worker of a loader, it would yield that worker's share alone."""
    if place.state is not None:
        rows.load_state_dict(place.state)
    place.stream = rows
    for batch in rows.iter(batch_size=1):
        yield {column: values[0] for column, values in batch.items()}


def open_dataset(split: SplitSource, folder: Path) -> Any:
    """The `datasets.Dataset`, or the `IterableDataset` where the split is to be streamed.

    Raises:
        ValueError: for a folder of `save_to_disk` without this split.
    """
    import datasets

    assert split.dataset is not None
    local = folder / split.dataset
    if not local.exists():
        in_part = split.streaming or split.limit is not None  # then the rest is not downloaded
        return datasets.load_dataset(split.dataset, split.config, split=split.split, streaming=in_part)
    if not any((local / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return datasets.load_dataset(str(local), split.config, split=split.split, streaming=split.streaming)
    saved = datasets.load_from_disk(str(local))
    if isinstance(saved, datasets.DatasetDict):
        if split.split not in saved:
            raise ValueError(f"dataset={split.dataset!r} has no split {split.split!r}; it has {', '.join(saved)}")
        saved = saved[split.split]
    return saved


def _read_function(name: str, arguments: dict[str, Any], folder: Path, place: Place, documents: bool) -> Iterator[Found]:
    left = islice(_import_function(name, folder)(**arguments), place.lines, None)
    for number, row in enumerate(left, start=place.lines + 1):
        place.lines = number
        origin = f"{name}, row {number}"
        if documents:
            yield _one_origin(origin, row)
        elif not isinstance(row, (tuple, list)) or len(row) != 2:
            yield _one_origin(origin, BadRow(origin, f"not a pair of a source and a target or list of targets: {row!r}"))
        else:
            yield _one_origin(origin, row[0], row[1])


def function_file(name: str, folder: Path) -> tuple[Path, str]:
    """The file and the name in it of `file.py:name`."""
    file, colon, function = name.rpartition(":")
    path = folder / file
    if not colon:
        raise ValueError(f"function={name!r} must read file.py:name, with a file in {folder}")
    if not path.is_file():
        raise ValueError(f"function={name!r} must read file.py:name, but there is no file {path}")
    return path, function


def _import_function(name: str, folder: Path) -> Callable[..., Iterable]:
    path, function = function_file(name, folder)
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

"""Lines of files: read one by one, and written so that a run that was killed goes on without a gap or a double.

An output grows as `NAME.part` and gets its name once it is whole. After each window, what was written is flushed to the disk, and
then the journal `NAME.part.journal` notes how many input lines are done, how many bytes they make, and a digest of these input
lines. A run that goes on cuts the file back to the last entry, reads the lines that are done, and compares their digest. The last
note, before the file gets its name, is that it is whole: a run that was killed then has nothing more to do but that.
"""

import hashlib
import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from transduct.files import flush, keep_others_out

WHOLE = {"whole": True}
"""The last entry of a journal."""


def read_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a file of UTF-8, without their line breaks, and without the mark that some programs begin a file with.

    Raises:
        ValueError: for a line that is not UTF-8, naming it.
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise ValueError(f"line {number} of {name} is not UTF-8: byte 0x{byte:02x} at its byte {error.start + 1}") from None


class Digest:
    """Of lines that have been read."""

    def __init__(self):
        self.hash = hashlib.sha256()

    def add(self, items: Iterable[Any]) -> str:
        """The digest after these items: lines, or tuples of lines."""
        for item in items:
            for line in [item] if isinstance(item, str) else item:
                self.hash.update(line.encode() + b"\n")
        return self.hash.hexdigest()[:32]


class OutputFile:
    """A file that grows by whole windows and survives being killed.

    Args:
        path: the name that it gets in the end.
        settings: what the output depends on; a run that goes on must have the same.
        resume: go on where a killed run was; False: begin anew.

    Raises:
        ValueError: if a killed run left something and `resume` does not say to go on, if its settings were others, and if what it
            left is not there any more; while another process writes it; for a path that is no place for a file.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool):
        self.path = path
        if not path.name or (path.exists() and not path.is_file()):
            raise ValueError(f"{path} is no file that could be replaced: name another output, or write to standard output")
        self.part, self.journal = _beside(path)
        self.done = 0
        self.digest: str | None = None
        self.entries = self.journal.open("a", encoding="utf-8")
        if not keep_others_out(self.entries):
            self.entries.close()
            raise ValueError(f"{self.part} is being written by another process: wait for it, or name another output")
        begun = self.journal.stat().st_size > 0
        try:
            if begun and not resume:
                raise ValueError(f"{self.part} is what a run that was stopped has written: go on with --resume, or delete it")
            size = self._read_journal(settings) if begun else 0
            self.file = self.part.open("r+b" if size else "wb")
        except BaseException:
            self.entries.close()
            if not begun:
                self.journal.unlink(missing_ok=True)
            raise
        self.file.truncate(size)
        self.file.seek(size)
        if not size:
            self.entries.truncate(0)
            self.entries.write(json.dumps(settings, sort_keys=True) + "\n")
            self.entries.flush()

    @staticmethod
    def is_whole(path: Path) -> bool:
        """Whether this file was written to its end. It gets its name here, if its run was killed just before."""
        part, journal = _beside(path)
        if not journal.exists():
            return path.exists()
        entries = journal.read_text(encoding="utf-8").splitlines()
        if not entries or entries[-1] != json.dumps(WHOLE):
            return False
        if part.exists():
            part.replace(path)
        journal.unlink()
        return path.exists()

    def _read_journal(self, settings: dict[str, Any]) -> int:
        """The bytes that are done; a last entry that was cut off counts for nothing."""
        noted = self.journal.read_bytes()
        end = noted.rfind(b"\n") + 1
        whole = [line for line in noted[:end].decode().splitlines() if line != json.dumps(WHOLE)]
        if not whole:
            return 0
        before = json.loads(whole[0])
        now = json.loads(json.dumps(settings))
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise ValueError(
                    f"{self.part} was written with {name}={before.get(name)!r}, now it is {now.get(name)!r}: say the same, or "
                    "delete it to begin anew"
                )
        if len(whole) == 1:
            return 0
        entry = json.loads(whole[-1])
        there = self.part.stat().st_size if self.part.exists() else 0
        if there < entry["bytes"]:
            raise ValueError(
                f"{self.part} has {there:,} bytes, but {self.journal} says that {entry['bytes']:,} were written: delete both to "
                "begin anew"
            )
        os.truncate(self.journal, end)
        self.done, self.digest = entry["lines"], entry["digest"]
        return entry["bytes"]

    def lines(self) -> list[str]:
        """What is written so far."""
        with self.part.open("rb") as file:
            return list(read_lines(file, str(self.part)))

    def write(self, lines: Iterable[str], done: int, digest: str) -> None:
        """Add lines, after which `done` input lines with this digest are done."""
        self.file.write("".join(f"{line}\n" for line in lines).encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.entries.write(json.dumps({"lines": done, "bytes": self.file.tell(), "digest": digest}) + "\n")
        self.entries.flush()
        self.done = done

    def finish(self) -> None:
        """Give the file its name."""
        self.entries.write(json.dumps(WHOLE) + "\n")
        self.close()
        flush(self.journal)
        self.part.replace(self.path)
        flush(self.path.parent)
        self.journal.unlink()

    def close(self) -> None:
        self.file.close()
        self.entries.close()


def _beside(path: Path) -> tuple[Path, Path]:
    """Where a file grows, and its journal."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.journal")


def skip_done(lines: Iterator[Any], done: int, digest: str | None, name: str) -> Digest:
    """Read the lines that are done already; returns their digest, to go on with.

    Raises:
        ValueError: if they are not the lines that they were.
    """
    seen = Digest()
    for number in range(done):
        line = next(lines, None)
        if line is None:
            raise ValueError(f"{name} has {number} lines, but {done} were translated before: it is another input")
        seen.add([line])
    if done and seen.add([]) != digest:
        raise ValueError(f"the first {done} lines of {name} are not those that were translated before: it is another input")
    return seen

"""Files and folders that are whole or not there at all: written beside their place, flushed to the disk, then moved there.

Checkpoints of a run do the same with a manifest on top, see `training/checkpoints.py`; conversions never replace a folder, see
`convert/writing.py`.
"""

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says of a disk that is full, a user's share of it that is used up, a file as large as it may be, a disk that is
only read."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, where the disk has no room, the error names `path`, which is being written.

    Errors of writing name no file, and those of copying the one that is read; libraries in Rust, such as safetensors and
    tokenizers, have exceptions of their own.

    Raises:
        OSError: in place of all of these.
    """
    try:
        yield
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if number not in NO_ROOM:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def write_whole(path: Path, text: str) -> None:
    """Write a text as a file; a reader finds the old one or the new one, whole."""
    part = path.with_name(f"{path.name}.part")
    try:
        with naming(path):
            part.write_text(text, encoding="utf-8")
            flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def save_whole(folder: Path, *savers: Callable[[str], Any]) -> None:
    """Write a folder, which takes the place of one of that name.

    Args:
        savers: called with an empty folder, one after the other, such as `model.save_pretrained`.
    """
    part, old = folder.with_name(f"{folder.name}.part"), folder.with_name(f"{folder.name}.old")
    remove(part)
    remove(old)
    part.mkdir(parents=True)
    try:
        with naming(folder):
            for save in savers:
                save(str(part))
            for path in (*part.rglob("*"), part):
                flush(path)
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    flush(folder.parent)
    remove(old)


def keep_others_out(file: IO[Any] | int) -> bool:
    """Lock an open file, or what a descriptor stands for, until it is closed; False: another process has locked it.

    Where files cannot be locked, on Windows and some network drives, nothing is locked, and the answer is True.
    """
    if os.name == "nt":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    descriptor = file if isinstance(file, int) else file.fileno()
    return os.fstat(descriptor).st_nlink > 0  # who had it has removed it since


@contextmanager
def reserved(folder: Path, seconds: float = 10.0) -> Iterator[None]:
    """A folder, made if it is not there, that no other process reserves meanwhile.

    Args:
        seconds: how long to wait for another one, which may have been killed and is about to be gone with its children.

    Raises:
        ValueError: if another process has it then.
    """
    there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # locks no folders
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + seconds
        while not keep_others_out(descriptor):
            if time.monotonic() > until:
                raise ValueError(f"{folder} is being written by another process: wait for it, or choose another folder")
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
        if not there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def flush(path: Path) -> None:
    """Returns when the file or folder has reached the disk. Where folders cannot be flushed, only files are."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Delete a folder if it is there; complain about what cannot be deleted."""
    if folder.exists():
        shutil.rmtree(folder)

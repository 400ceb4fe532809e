"""Checkpoints that are whole or not there at all, and where a stopped run goes on.

- transformers writes a checkpoint straight into its folder, so a run that is killed meanwhile leaves a part of one behind. Here
  it is written into `unfinished/`, then a manifest with the size and checksum of each file, all is flushed to the disk, and
  the folder is moved to its place. Whoever looks for checkpoints, transformers' `resume_from_checkpoint=True` included, sees
  only whole ones. Old ones are deleted after that, so that they are still there if the new one cannot be written.
- A checkpoint that was damaged later is noticed by its checksums: `resume_point` takes the one before and says so. Checkpoints
  without a manifest, as transformers writes them, are checked as far as their files allow.
- What callbacks keep beside the trainer's state goes into the checkpoint too; see `SavesState`.
- A checkpoint that is written only because a training stops bears a mark, `OffSchedule`. A run that is stopped and resumed is to
  end like one that never was, so such a checkpoint is there to go on from, but in no average; of a stop, it costs no other its
  place under `save_total_limit`, and goes when a later one is whole.
"""

import json
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transduct.files import flush, remove

UNFINISHED = "unfinished"
"""Folder beside the checkpoints in which the next one is written."""
MANIFEST = "manifest.json"
"""File in a checkpoint: the size and the CRC-32 of every other one."""
STATE = "trainer_state.json"
MARK = "off_schedule.json"
"""File in a checkpoint that was written off the schedule: an `OffSchedule`."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The file of a model's weights, or where there are several, the one that names them."""
_PARTS = ("config.json", "optimizer.pt", "scheduler.pt", STATE)


class CheckpointNotWritten(OSError):
    """A checkpoint could not be written; those before it are untouched."""


@dataclass
class OffSchedule:
    """The mark of a checkpoint that no schedule asked for: it was written because the training stopped there."""

    ended: bool
    """True: at its end, by its steps, minutes or patience; a longer training may go on. False: a signal stopped it."""
    saved_at: float | None = None
    """Seconds of training at the last checkpoint before it that was due, where `save_seconds` counts them."""

    def write(self, checkpoint: Path) -> None:
        (checkpoint / MARK).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


def off_schedule(checkpoint: Path) -> OffSchedule | None:
    """The mark of a whole checkpoint; None: it was due."""
    path = checkpoint / MARK
    return OffSchedule(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


class SavesState:
    """Base of callbacks whose state is too large for `trainer_state.json`, such as averaged weights, or each process's own."""

    resumed_at: Path | None = None
    """The checkpoint that a training goes on from. It is set before `on_train_begin`, which takes it away."""

    def save_state(self, folder: Path) -> None:
        """Write into `folder`, a checkpoint that becomes whole with it. Every process calls this."""
        raise NotImplementedError


class WholeCheckpoints:
    """Stands in for a trainer's `_save_checkpoint`, which then writes aside; see the top of this file."""

    def __init__(self, trainer: Any):
        self.trainer, self.save, self.load = trainer, trainer._save_checkpoint, trainer._load_optimizer_and_scheduler

    @classmethod
    def watch(cls, trainer: Any) -> None:
        """Make every checkpoint of `trainer` a whole one; once is enough."""
        if "_save_checkpoint" not in vars(trainer):
            checkpoints = cls(trainer)
            vars(trainer).update(_save_checkpoint=checkpoints, _load_optimizer_and_scheduler=checkpoints.note_resume)

    def note_resume(self, checkpoint: str | None) -> None:
        """The trainer tells its callbacks nothing about the checkpoint that it goes on from; here it comes by."""
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, SavesState):
                callback.resumed_at = None if checkpoint is None else Path(checkpoint)
        if checkpoint is not None:
            self._find_best(Path(checkpoint))
        self.load(checkpoint)

    def _find_best(self, resumed: Path) -> None:
        """Where the best checkpoint is now: beside the one that the training goes on from, if the run was moved since.

        The trainer has read where it was, and forgets a folder that is no longer there.
        """
        state, folder = resumed / STATE, Path(self.trainer.args.output_dir)
        noted = json.loads(state.read_text(encoding="utf-8")).get("best_model_checkpoint") if state.is_file() else None
        if noted is None:
            return
        if not folder.is_dir() or not folder.samefile(resumed.parent):
            folder = resumed.parent
        if (best := folder / Path(noted).name).is_dir():
            self.trainer.state.best_model_checkpoint = str(best)

    def __call__(self, model: Any, trial: Any) -> None:
        """Write the checkpoint of this step.

        Raises:
            CheckpointNotWritten: (an `OSError`) for whatever keeps it from being written, such as a full disk.
        """
        trainer = self.trainer
        folder = Path(trainer._get_output_dir(trial))
        unfinished, name = folder / UNFINISHED, f"checkpoint-{trainer.state.global_step}"
        if trainer.args.should_save:
            remove(unfinished)
        trainer.accelerator.wait_for_everyone()
        try:
            self._write(unfinished / name, folder / name, model, trial)
            self._settle(unfinished / name, folder / name)
        except Exception as error:
            free = shutil.disk_usage(folder).free if folder.exists() else 0
            shutil.rmtree(unfinished, ignore_errors=True)
            raise CheckpointNotWritten(_not_written(folder, name, error, free)) from error

    def _write(self, staged: Path, final: Path, model: Any, trial: Any) -> None:
        """All that belongs to the checkpoint, in every process, into `staged`."""
        trainer, args = self.trainer, self.trainer.args
        push, args.push_to_hub = args.push_to_hub, False  # from where it will stay
        best_before = trainer.state.best_model_checkpoint
        vars(trainer)["_get_output_dir"] = lambda trial: str(staged.parent)
        try:
            self.save(model, trial)
        finally:
            del vars(trainer)["_get_output_dir"]
            args.push_to_hub = push
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, SavesState):
                callback.save_state(staged)
        if trainer.state.best_model_checkpoint == str(staged):
            trainer.accelerator.wait_for_everyone()
            mark = off_schedule(staged)
            passing = mark is not None and not mark.ended  # without the stop, there would be none of this step
            trainer.state.best_model_checkpoint = best_before if passing else str(final)
            if args.should_save:
                trainer.state.save_to_json(str(staged / STATE))

    def _settle(self, staged: Path, final: Path) -> None:
        """Make it whole, then delete what `save_total_limit` leaves no room for."""
        trainer, args = self.trainer, self.trainer.args
        trainer.accelerator.wait_for_everyone()
        if args.should_save:
            seal(staged, final)
            drop_old_checkpoints(final.parent, args.save_total_limit, trainer.state.best_model_checkpoint)
        trainer.accelerator.wait_for_everyone()
        if args.local_process_index == 0 and staged.is_dir():  # a machine with a disk of its own, which holds its own parts
            seal(staged, final)
            drop_old_checkpoints(final.parent, args.save_total_limit, trainer.state.best_model_checkpoint)
        if args.push_to_hub:
            trainer._push_from_checkpoint(str(final))


def _not_written(folder: Path, name: str, error: Exception, free: int) -> str:
    before = _oldest_first(folder)
    return (
        f"{name} could not be written to {folder}: {error} ({free / 1e6:,.1f} MB were free). What there was of it is removed; "
        + (f"the last whole checkpoint is {before[-1]}" if before else "there is no checkpoint before it")
        + ". Make room, or lower save_total_limit, and start again"
    )


def seal(staged: Path, final: Path) -> None:
    """Write the manifest of `staged`, flush every file to the disk, and move the folder to `final` in one step."""
    files = sorted(path for path in staged.rglob("*") if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor(max_workers=4) as pool:
        entries = pool.map(lambda path: {"bytes": path.stat().st_size, "crc32": crc32(path)}, files)
        manifest = {path.relative_to(staged).as_posix(): entry for path, entry in zip(files, entries, strict=True)}
    (staged / MANIFEST).write_text(json.dumps({"files": manifest}, indent=1) + "\n", encoding="utf-8")
    for path in (*files, staged / MANIFEST, *(path for path in staged.rglob("*") if path.is_dir()), staged):
        flush(path)
    if final.exists():  # the same step once more
        final.rename(staged.parent / f"replaced-{final.name}")
    staged.rename(final)
    flush(final.parent)
    remove(staged.parent)


def crc32(path: Path) -> str:
    """The file's CRC-32 as eight hexadecimal digits, read in pieces."""
    value, piece = 0, bytearray(1 << 22)
    view = memoryview(piece)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            value = zlib.crc32(view[:size], value)
    return f"{value:08x}"


def drop_old_checkpoints(folder: Path, limit: int | None, best: str | None = None) -> None:
    """Delete the oldest checkpoints beyond `limit`, never the newest nor the `best`; as transformers does.

    Earlier ones that were written off the schedule go first, whatever the limit; the newest, if a signal made it, does not count.
    """
    if limit is None or limit <= 0:
        return
    found = _oldest_first(folder)
    kept = {found[-1], *([Path(best)] if best is not None else [])}
    outdated = [path for path in found if path not in kept and off_schedule(path) is not None]
    mark = off_schedule(found[-1])
    counted = [path for path in found if path not in outdated and (path != found[-1] or mark is None or mark.ended)]
    spare = [path for path in counted if path not in kept]
    for path in outdated + spare[: max(0, len(counted) - max(limit, len(kept)))]:
        discard(path)


def _oldest_first(folder: Path) -> list[Path]:
    """Checkpoints by the second in which they were written, since a training begun anew has fewer steps than the one before.

    Those of the same second, by their steps. transformers' `sort_checkpoints` warns of these, which are nothing to worry about.
    """
    return sorted(list_checkpoints(folder), key=lambda path: (int(path.stat().st_mtime), checkpoint_step(path)))


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint, which is moved aside first: what an interruption leaves does not look like one."""
    doomed = checkpoint.parent / UNFINISHED / f"old-{checkpoint.name}"
    doomed.parent.mkdir(exist_ok=True)
    checkpoint.rename(doomed)
    remove(doomed.parent)


def checkpoint_step(folder: Path) -> int:
    """The step in the name of a `checkpoint-STEP` folder; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match[1]) if match else -1


def list_checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint in `folder`, whole or damaged, the one with most steps last."""
    found = (path for path in folder.glob("checkpoint-*") if path.is_dir() and checkpoint_step(path) >= 0)
    return sorted(found, key=checkpoint_step)


def find_checkpoints(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Whole checkpoints in `folder`, the one with most steps last, and what is wrong with each of the others."""
    found = list_checkpoints(folder)
    faults = {path: fault for path in found if (fault := checkpoint_fault(path))}
    return [path for path in found if path not in faults], faults


def resume_point(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint, or None where there is none of any kind. Damaged ones before it are set aside.

    For one process at a time.

    Args:
        folder: that of the checkpoints.
        say: told, in a sentence, what was done to which folder.

    Raises:
        ValueError: when there are checkpoints and none is whole.
    """
    _complete(folder)
    faults: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        fault = checkpoint_fault(path)
        if fault is None:
            for damaged, reason in faults.items():
                aside = _free_name(damaged.with_name(f"damaged-{damaged.name}"))
                damaged.rename(aside)
                say(f"{damaged} is damaged ({reason}): it is now {aside.name}, and nothing reads it")
            return path
        faults[path] = fault
    if faults:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in faults.items())
        raise ValueError(f"no checkpoint in {folder} is whole ({reasons}): restore one, or move them away to start anew")
    return None


def _complete(folder: Path) -> None:
    """Finish what a stop between the last two steps of `seal` left; an unfinished checkpoint is no loss, and is deleted."""
    for staged in list_checkpoints(folder / UNFINISHED):
        if (staged / MANIFEST).is_file() and checkpoint_fault(staged) is None and not (folder / staged.name).exists():
            staged.rename(folder / staged.name)
    remove(folder / UNFINISHED)


def _free_name(path: Path) -> Path:
    """`path`, with a number behind it if that is taken."""
    names = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next(name for name in names if not name.exists())


def checkpoint_fault(checkpoint: Path) -> str | None:
    """What keeps a run from going on at this checkpoint, or None. Every file is read."""
    if (checkpoint / MANIFEST).is_file():
        return _fault_by_manifest(checkpoint)
    weights = _weight_files(checkpoint)
    if weights is None:
        return f"{INDEX} is garbled"
    for name in (*_PARTS, *weights):
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    if not any(checkpoint.glob("rng_state*.pth")):
        return "rng_state.pth is missing"
    for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")):
        if (fault := _zip_fault(path)) is not None:
            return fault
    for name in weights:
        if not _whole_safetensors(checkpoint / name):
            return f"{name} is cut short"
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return f"{STATE} is cut short"
    return None


def _weight_files(checkpoint: Path) -> list[str] | None:
    """The names of the files that hold the weights; None where the index of several is garbled."""
    if not (checkpoint / INDEX).is_file():
        return [WEIGHTS]
    try:
        index = json.loads((checkpoint / INDEX).read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _fault_by_manifest(checkpoint: Path) -> str | None:
    try:
        entries = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"].items()
        expected = {name: (int(entry["bytes"]), str(entry["crc32"])) for name, entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is garbled"
    for name, (size, checksum) in expected.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size < size:
            return f"{name} is cut short"
        if path.stat().st_size > size or crc32(path) != checksum:
            return f"{name} is not what was written: its checksum differs"
    return None


def _zip_fault(path: Path) -> str | None:
    """Files of `torch.save` are zip archives, with a checksum for each entry."""
    if not zipfile.is_zipfile(path):
        return f"{path.name} is cut short"
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, OSError) as error:
        return f"{path.name} is garbled: {error}"
    return None if broken is None else f"{path.name} is garbled: {broken} has another checksum"


def _whole_safetensors(path: Path) -> bool:
    """Whether the file is as long as its own header says: 8 bytes of header length, the header, the tensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return False
        (length,) = struct.unpack("<Q", start)
        if size < 8 + length:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return size == 8 + length + max(ends, default=0)

"""Finds where a stopped run can go on: the newest checkpoint that was written to its end.

transformers writes a checkpoint straight into its folder, so a run that is killed meanwhile leaves a part of one behind.
Whole means: every file is there, and none is cut short.
"""

import json
import re
import struct
import zipfile
from pathlib import Path

_PARTS = ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")


def checkpoint_step(folder: Path) -> int:
    """The step in the name of a `checkpoint-STEP` folder; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match[1]) if match else -1


def find_checkpoints(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Whole checkpoints in `folder`, the one with most steps last, and what is wrong with each of the others."""
    found = sorted(
        (path for path in folder.glob("checkpoint-*") if path.is_dir() and checkpoint_step(path) >= 0), key=checkpoint_step
    )
    faults = {path: fault for path in found if (fault := checkpoint_fault(path))}
    return [path for path in found if path not in faults], faults


def checkpoint_fault(checkpoint: Path) -> str | None:
    """What keeps a run from going on at this checkpoint, or None."""
    for name in _PARTS:
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
    if not any(checkpoint.glob("rng_state*.pth")):
        return "rng_state.pth is missing"
    for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")):
        if not zipfile.is_zipfile(path):
            return f"{path.name} is cut short"
    if not _whole_safetensors(checkpoint / "model.safetensors"):
        return "model.safetensors is cut short"
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except ValueError:
        return "trainer_state.json is cut short"
    return None


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

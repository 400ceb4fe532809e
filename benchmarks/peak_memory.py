"""The most memory that a piece of code has in use, on Linux and other systems, as far as each can tell."""

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def status_bytes(field: str) -> int:
    """`VmRSS` (in use now) or `VmHWM` (the most so far) of this process, in bytes."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024  # "1976 kB"


def forget_peak() -> bool:
    """Set the kernel's peak back to what is in use now; False where the system does not permit it."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def measure_peak(action: Callable[[], object]) -> dict[str, int | str]:
    """Run `action` once.

    Returns:
        `before`: resident bytes when it starts; `peak`: the most while it runs; `how`: where the figures are from. Where the
        peak cannot be set back it is that of the process's life, and building the model may have been more than the action.
    """
    gc.collect()
    if forget_peak():
        before = status_bytes("VmRSS")
        action()
        return {"before": before, "peak": status_bytes("VmHWM"), "how": "VmHWM, set back before the measurement"}
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    action()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"before": before, "peak": peak, "how": "ru_maxrss, which cannot be set back: growth over the peak while building"}


def available() -> int | None:
    """Bytes that the system could still give, or None where it does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return None
    return int(lines["MemAvailable"].split()[0]) * 1024

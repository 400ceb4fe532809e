"""GPUs by name: what they compute and hold, for `transduct plan`. Figures are the makers' dense peaks, never the sparse ones."""

import difflib
from typing import NamedTuple


class Device(NamedTuple):
    """Peak floating-point operations a second by type, and memory in GiB."""

    half: float
    """bfloat16 or float16 on the matrix units, added up in float32; a card without them: its fastest type."""
    tf32: float
    single: float
    """float32 without TF32, which is what PyTorch computes unless `training.tf32` is set."""
    memory: float
    source: str


DEVICES = {
    "a100-40": Device(312e12, 156e12, 19.5e12, 40, "NVIDIA A100 datasheet"),
    "a100-80": Device(312e12, 156e12, 19.5e12, 80, "NVIDIA A100 datasheet"),
    "h100": Device(989.4e12, 494.7e12, 66.9e12, 80, "NVIDIA H100 whitepaper, SXM5, table 2"),
    "h100-pcie": Device(756e12, 378e12, 51.2e12, 80, "NVIDIA H100 whitepaper, PCIe, table 2"),
    "h200": Device(989.4e12, 494.7e12, 66.9e12, 140, "NVIDIA H200 datasheet, SXM, dense half of its sparse figures"),
    "l4": Device(121e12, 60e12, 30.3e12, 24, "NVIDIA L4 datasheet, dense half of its sparse figures"),
    "l40s": Device(362e12, 183e12, 91.6e12, 48, "NVIDIA L40S datasheet"),
    "a10": Device(125e12, 62.5e12, 31.2e12, 24, "NVIDIA A10 datasheet"),
    "t4": Device(65e12, 8.1e12, 8.1e12, 16, "NVIDIA T4 datasheet; float16 only, no TF32"),
    "v100": Device(125e12, 15.7e12, 15.7e12, 32, "NVIDIA V100 datasheet, SXM2; float16 only, no TF32"),
    "rtx-3090": Device(71e12, 35.6e12, 35.6e12, 24, "NVIDIA GA102 whitepaper, table 2"),
    "rtx-4090": Device(165.2e12, 82.6e12, 82.6e12, 24, "NVIDIA Ada whitepaper, table 2"),
    "p100": Device(9.5e12, 9.5e12, 9.5e12, 16, "Vaswani et al. 2017, section 6.1, footnote 5: sustained float32"),
}
"""By the names that `--gpu` takes."""


def slowest_with(memory: float) -> str | None:
    """The name of the slowest device of so many GiB, None without one."""
    return min((name for name in DEVICES if DEVICES[name].memory == memory), key=lambda name: DEVICES[name].half, default=None)


def device_named(name: str) -> Device:
    """A device of `DEVICES`.

    Raises:
        ValueError: for an unknown name, with those that are close.
    """
    if name not in DEVICES:
        kin = [known for known in DEVICES if known.startswith(name.lower())]
        close = kin or difflib.get_close_matches(name.lower(), DEVICES, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(DEVICES)}."
        raise ValueError(f"gpu={name!r} is unknown: {hint} For another card give its flops and gpu_memory")
    return DEVICES[name]

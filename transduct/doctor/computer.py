"""This computer: versions, devices and their memory, threads, and the kinds of attention that work here."""

import os
import platform
import shutil
import warnings
from importlib.metadata import PackageNotFoundError, requires, version

import psutil
import torch
from packaging.requirements import Requirement
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_flash_attn_4_available

from transduct.doctor.findings import Findings

NOT_FOR_USERS = ("dev", "docs", "test")
"""Extras with which the package is made, not used."""
GIB = 2**30
FLASH = {
    "flash_attention_2": is_flash_attn_2_available,
    "flash_attention_3": is_flash_attn_3_available,
    "flash_attention_4": is_flash_attn_4_available,
}
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def examine_computer() -> Findings:
    """Python and packages, devices, threads, attention."""
    findings = Findings()
    with findings.within("packages"):
        _python(findings)
        _packages(findings)
    with findings.within("devices"):
        _processors(findings)
        for name, kind in devices().items():
            findings.ok(name, kind)
        if len(devices()) == 0:
            findings.note("accelerator", "none: models run on the processor")
    with findings.within("attention"):
        _attention(findings)
    return findings


def _python(findings: Findings) -> None:
    text = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    findings.ok("python", text, platform.python_version())


def _packages(findings: Findings) -> None:
    """The versions of what transduct needs, then of what its extras bring."""
    try:
        findings.ok("transduct", version("transduct"), version("transduct"))
        requirements = [Requirement(text) for text in requires("transduct") or []]
    except PackageNotFoundError:
        findings.note("transduct", "is not installed but imported from a folder: what it needs is not known")
        return
    seen: set[str] = set()
    for requirement in requirements:
        extra = _extra(requirement)
        if requirement.name not in seen and extra not in NOT_FOR_USERS:
            seen.add(requirement.name)
            _package(findings, requirement, extra)


def _extra(requirement: Requirement) -> str | None:
    """The extra of transduct that brings a package; None: it is always needed."""
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return None
    return str(requirement.marker).rpartition("extra == ")[2].strip("\"'") or None


def _package(findings: Findings, requirement: Requirement, extra: str | None) -> None:
    name, wanted = requirement.name, str(requirement.specifier)
    command = f"pip install 'transduct[{extra}]'" if extra else f"pip install '{name}{wanted}'"
    purpose = f", for transduct[{extra}]" if extra else ""
    try:
        found = version(name)
    except PackageNotFoundError:
        if extra:
            findings.note(name, f"is not installed; {command} brings it")
        else:
            findings.problem(name, f"is missing: {command}")
        return
    if not requirement.specifier.contains(found, prereleases=True):
        findings.problem(name, f"{found} does not fit {wanted}: {command}", found)
    else:
        findings.ok(name, f"{found} ({wanted}{purpose})", found)


def _processors(findings: Findings) -> None:
    """Cores, memory and threads of the processor."""
    cores, threads = usable_cores(), torch.get_num_threads()
    memory = psutil.virtual_memory()
    findings.ok("processor", f"{cores} cores may be used, of {os.cpu_count()}", cores)
    available = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB are free"
    findings.ok("memory", available, {"bytes": memory.total, "free": memory.available})
    text = f"torch computes with {threads}" + (f" (OMP_NUM_THREADS={chosen})" if (chosen := _omp()) else "")
    if threads > cores:
        findings.note("threads", f"{text}, more than there are cores: set OMP_NUM_THREADS={cores}", threads)
    else:
        findings.ok("threads", text, threads)


def _omp() -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def usable_cores() -> int:
    """Cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> dict[str, str]:
    """Accelerators, each with its kind and memory."""
    found = {}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        half = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / GIB:.1f} GiB, {half}"
    if torch.backends.mps.is_available():
        found["mps"] = "Apple"
    for index in range(torch.xpu.device_count() if torch.xpu.is_available() else 0):
        found[f"xpu:{index}"] = torch.xpu.get_device_name(index)
    return found


def _attention(findings: Findings) -> None:
    """Which values of `attn_implementation` work, and with which kernels."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    findings.ok("eager", "works everywhere, and alone returns attention weights")
    kernels = [name for name, backend in KERNELS.items() if works(backend, device)]
    findings.ok("sdpa", f"the default; kernels on {device}: {', '.join(kernels)}", kernels)
    flash = [name for name, is_available in FLASH.items() if is_available()]
    if flash:
        findings.ok("flash", f"attn_implementation may be {', '.join(flash)}", flash)
    elif device == "cpu":
        findings.note("flash", "needs a GPU; not for relative_bias and alibi", [])
    else:
        findings.note("flash", "needs the package flash-attn or kernels; not for relative_bias and alibi", [])
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if device == "cpu" and compiler is None:
        findings.note("flex_attention", "is compiled, for which a C++ compiler such as g++ is missing", False)
    else:
        findings.ok("flex_attention", "available" if device == "cuda" else f"available, compiled by {compiler}", True)


def works(backend: SDPBackend, device: str) -> bool:
    """Whether one kernel of `scaled_dot_product_attention` runs there, tried with a few numbers."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    query = torch.zeros(1, 1, 8, 16, device=device, dtype=dtype)  # (B, H, T, K)
    try:
        with sdpa_kernel(backend), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # why it does not
            scaled_dot_product_attention(query, query, query)
    except RuntimeError:
        return False
    return True

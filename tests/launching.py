"""Starts a script of the tests, or a module, as two processes that talk to each other, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
SETTINGS = {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch")
DDP = ("--config_file", str(HERE.parent / "examples" / "accelerate" / "ddp.yaml"), "--num_processes", "2")
ON_CPU = ("--mixed_precision", "no", "--main_process_port", "0")
"""What `accelerate launch` is told beside the config: to compute in float32, and to take any port that is free."""


def launch(*command: str, launcher: tuple[str, ...] = TORCHRUN, timeout: int = 600) -> subprocess.CompletedProcess:
    """Run `command`, a script or `-m` and a module with its arguments, in the processes that the launcher starts."""
    environment = {**os.environ, **SETTINGS}
    return subprocess.run(
        [sys.executable, *launcher, *command], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def accelerate_launch(*command: str) -> subprocess.CompletedProcess:
    """As `launch`, by `accelerate launch` with the config of examples/accelerate for the whole model in each process."""
    return launch(*command, launcher=(*ACCELERATE, *DDP, *ON_CPU))


def seen_by_each(script: str, folder: Path) -> list[dict[str, Any]]:
    """What a script of this folder writes as `rank0.pt` and `rank1.pt` into the folder that it is given."""
    done = launch(str(HERE / script), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]

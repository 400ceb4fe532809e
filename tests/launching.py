"""Starts a script of the tests as two processes that talk to each other, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
SETTINGS = {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}"}
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]


def launch(*command: str, timeout: int = 600) -> subprocess.CompletedProcess:
    """Run `command`, a script or `-m` and a module with its arguments, in two processes."""
    environment = {**os.environ, **SETTINGS}
    return subprocess.run(
        [sys.executable, *LAUNCH, *command], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def seen_by_each(script: str, folder: Path) -> list[dict[str, Any]]:
    """What a script of this folder writes as `rank0.pt` and `rank1.pt` into the folder that it is given."""
    done = launch(str(HERE / script), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]

"""The command as one of several processes, one of which may kill itself on the way.

    torchrun --nproc-per-node 2 tests/command_runs.py FOLDER [RANK EVENT PATH]

It trains what FOLDER/recipe.yaml says. Each process notes its id in FOLDER, as `pidN`, and the code that it ends with, as
`exitN`. Process RANK kills itself before its first dealing with the disk of the kind EVENT, an audit event of Python's such as
"os.mkdir", in whose path the regular expression PATH is found.
"""

import os
import signal
import sys
from pathlib import Path

from interrupted import when
from transduct.training.__main__ import main as train


def main(folder: Path, killed: str = "", event: str = "", path: str = "") -> int:
    rank = os.environ["RANK"]
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    if rank == killed:
        when(event, path, lambda: os.kill(os.getpid(), signal.SIGKILL))
    sys.argv[1:] = [str(folder / "recipe.yaml")]
    code = train()
    (folder / f"exit{rank}").write_text(str(code))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

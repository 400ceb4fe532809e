"""`python -m transduct.training CONFIG.yaml ...`: `transduct train`, for launchers that start a module in several processes.

    accelerate launch --config_file examples/accelerate/ddp.yaml -m transduct.training CONFIG.yaml
    torchrun --nproc-per-node 8 -m transduct.training CONFIG.yaml
"""

import sys

from transduct.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["train", *sys.argv[1:]]))

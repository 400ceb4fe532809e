"""`python -m transduct.training CONFIG.yaml ...`: `transduct train`, for launchers that start a module in several processes.

```
accelerate launch --config_file examples/accelerate/ddp.yaml -m transduct.training CONFIG.yaml
torchrun --nproc-per-node 8 -m transduct.training CONFIG.yaml
```
"""

import signal
import sys

from transduct.cli.main import run


def main() -> int:
    """Run the command; where it came to an end, end what connects the processes too, before torch complains."""
    import torch

    code = run(["train", *sys.argv[1:]])
    if code in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM) and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())

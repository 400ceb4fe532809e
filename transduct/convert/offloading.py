"""Models that do not fit into memory, with their weights left on disk: enough to compare two of them.

accelerate brings the weights of one layer after another into memory when it runs. Each generated token reads all of them again,
which is slow.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def weights_on_disk(memory: int | str | None, beside: str | Path) -> Iterator[dict[str, Any]]:
    """Arguments for one call of `from_pretrained`, whose model can be used as long as this lasts.

    Args:
        memory: for the model's weights, in bytes or as "4GB"; 0: one layer at a time is in memory; None: all are.
        beside: a folder, next to which weights are written that cannot stay where they are: those of `torch.save` files.
    """
    if memory is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix=".weights-", dir=Path(beside).parent) as folder:
        yield {"device_map": "auto", "max_memory": {"cpu": memory}, "offload_folder": folder}

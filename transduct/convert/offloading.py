"""Models that do not fit into memory, with their weights left on disk: enough to compare two of them.

accelerate brings the weights of one layer after another into memory when it runs. Each generated token reads all of them again,
which is slow.
"""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from transduct.convert.memory import quiet


def load_offloaded(
    model_class: type[PreTrainedModel],
    folder: str | Path,
    memory: int | str,
    spill: str | Path,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """The model of a folder, in evaluation mode, with what exceeds `memory` on disk.

    Args:
        memory: for its weights, in bytes or as "4GB"; 0: all stay on disk, and one layer at a time is in memory.
        spill: a folder for weights that cannot stay where they are, such as those of `torch.save` files.
        dtype: of the weights in memory.
    """
    with quiet():
        model = model_class.from_pretrained(
            folder, local_files_only=True, dtype=dtype, device_map="auto", max_memory={"cpu": memory}, offload_folder=str(spill)
        )
    return model.eval()

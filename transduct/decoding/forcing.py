"""One pass of a model over given targets: what it would have thought of each token, and where it would have looked."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.modeling_outputs import ModelOutput


def padded(rows: Sequence[Sequence[int]], filler: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of different lengths as ids and mask (rows, longest)."""
    lengths = [len(row) for row in rows]
    longest, left = max(lengths), side == "left"
    gaps = [[filler] * (longest - length) for length in lengths]
    ids = [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
    places, ends = torch.arange(longest), torch.tensor(lengths)[:, None]
    mask = places >= longest - ends if left else places < ends
    return torch.tensor(ids, dtype=torch.long), mask.long()


def forced(
    model: Any, source: dict[str, torch.Tensor], targets: Sequence[Sequence[int]], start: int, **options: Any
) -> tuple[ModelOutput, torch.Tensor, torch.Tensor]:
    """Run the model on targets as if it had chosen them.

    Args:
        source: what the encoder reads, (B, S), on the model's device.
        targets: ids of each row, at least one, without what the decoder starts with; start: that token.
        options: more arguments of the model.

    Returns:
        The model's output, with logits (B, T, V) of each token of the targets, their ids (B, T) and mask (B, T).
    """
    ids, mask = (each.to(model.device) for each in padded(targets, 0))
    begun = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)  # (B, T)
    with torch.no_grad():
        output = model(**source, decoder_input_ids=begun, use_cache=False, return_dict=True, **options)
    return output, ids, mask

"""The cross-attention of any encoder-decoder, for coverage and alignments."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def attention_weights(model: Any) -> Iterator[None]:
    """Inside, `model` computes attention in the one way that tells its weights ("eager")."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def mean_attention(cross_attentions: Sequence[torch.Tensor], layer: int, heads: Sequence[int] | None = None) -> torch.Tensor:
    """Weights (B, T, S) of one layer, the mean of some of its heads, given those of each layer (B, H, T, S).

    Args:
        layer: counted from 0, or from the last with negative numbers.
        heads: which ones; None: all.

    Raises:
        ValueError: for a layer or a head that is not there.
    """
    layers = len(cross_attentions)
    if not -layers <= layer < layers:
        raise ValueError(f"attention layer {layer} is not there: the decoder has {layers}, counted from 0, or back from -1")
    weights = cross_attentions[layer].float()  # (B, H, T, S)
    if heads is None:
        return weights.mean(1)
    for head in heads:
        if not 0 <= head < weights.shape[1]:
            raise ValueError(f"attention head {head} is not there: a layer has {weights.shape[1]}, counted from 0")
    if not heads:
        raise ValueError("attention heads are an empty list; name at least one, or none at all for the mean of all")
    return weights[:, list(heads)].mean(1)

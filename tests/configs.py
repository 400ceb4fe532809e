"""Tiny configs and models with sharp random weights, for tests that hold for every architecture.

`MATRIX` crosses every position scheme, norm, norm position and tying (96 configs); `PAIRWISE` holds 24 of them in which every
pair of choices meets; both end with `WIDE_VALUES`, grouped heads whose values are wider than their keys; `SCHEMES` has one for
each position scheme. `build` draws weights so large that a small mistake in a mask or a position moves the logits by far more
than rounding does.
"""

from itertools import product
from typing import Any

import torch
from torch import nn

from transduct import TransductConfig

POSITIONS = ("sinusoidal", "learned", "relative_bias", "rotary", "alibi", "none")
NORMS = ("layernorm", "rmsnorm")
NORM_POSITIONS = ("post", "pre")
TIES = ("all", "source_target", "target_output", "none")

VOCABULARY = 23
PAD, END, START = 0, 1, 2


def tiny(**overrides) -> TransductConfig:
    """A config of two small layers a side, without dropout."""
    sizes = dict(vocab_size=VOCABULARY, d_model=16, d_ff=24, num_heads=4, encoder_layers=2, decoder_layers=2, max_positions=64)
    sizes |= dict(dropout=0.0, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=START)
    if overrides.get("positions") == "relative_bias":
        sizes |= dict(relative_buckets=8, relative_max_distance=12)
    return TransductConfig(**sizes | overrides)


def cell(positions: str, norm: str, norm_position: str, tie: str) -> dict[str, Any]:
    return dict(positions=positions, norm=norm, norm_position=norm_position, tie_embeddings=tie)


MATRIX = [cell(*choice) for choice in product(POSITIONS, NORMS, NORM_POSITIONS, TIES)]
PAIRWISE = [
    cell(positions, NORMS[(row + column) % 2], NORM_POSITIONS[(row + column // 2) % 2], tie)
    for row, positions in enumerate(POSITIONS)
    for column, tie in enumerate(TIES)
]
SCHEMES = [PAIRWISE[len(TIES) * row + column] for row, column in enumerate((0, 3, 1, 2, 3, 0))]
WIDE_VALUES = cell("rotary", "layernorm", "pre", "all") | dict(num_key_value_heads=2, d_kv=6, d_value=10)
MATRIX.append(WIDE_VALUES)
PAIRWISE.append(WIDE_VALUES)


def name(choice: dict[str, Any]) -> str:
    return "-".join(map(str, choice.values()))


def sharpen(model: nn.Module, seed: int = 0, std: float = 0.3) -> nn.Module:
    """Draw every weight and bias anew: N(0, std^2), around 1 for norm weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)
            if "norm" in key and key.endswith("weight"):
                parameter.add_(1)
    return model


def build(model_class: type, config: TransductConfig, dtype=torch.float64, seed: int = 0, attention: str = "sdpa"):
    """A model in evaluation mode with sharp weights."""
    model = model_class(config).to(dtype)
    model.set_attn_implementation(attention)
    return sharpen(model, seed).eval()


def words(rows: int, length: int, seed: int = 0, low: int = 3, high: int = VOCABULARY) -> torch.Tensor:
    """Ids (rows, length) without special tokens."""
    return torch.randint(low, high, (rows, length), generator=torch.Generator().manual_seed(seed))


def pad_rows(rows: list[torch.Tensor], side: str = "right", extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids (length) of different lengths -> ids and mask (rows, longest + extra), padded on one side or on "both"."""
    length = max(len(row) for row in rows) + extra
    ids = torch.full((len(rows), length), PAD)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        free = length - len(row)
        start = {"right": 0, "left": free, "both": free // 2}[side]
        ids[index, start : start + len(row)] = row
        mask[index, start : start + len(row)] = 1
    return ids, mask


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest deviation, relative to the largest value."""
    assert one.shape == other.shape, (one.shape, other.shape)
    assert one.isfinite().all()
    return ((one - other).abs().max() / other.abs().max().clamp(min=1)).item()

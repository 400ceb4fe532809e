"""How order enters the model. Each scheme is a module of plain arguments; `stacks.py` chooses one.

- Added to the embeddings: `SinusoidalPositions` (Vaswani et al. 2017, section 3.5), `LearnedPositions` (Table 3 E, BART).
- Added to the attention scores: `RelativePositionBias` (T5, section 2.1), `AlibiBias` (arXiv 2108.12409).
- Applied to queries and keys: `RotaryPositions` (arXiv 2104.09864, in the half-split order of Llama).

Positions are tensors `(B or 1, T)`, counted from the first real token of each row, so padding on either side changes nothing.
Sinusoids are computed in float64 (but see `sinusoid_table`) and rounded to float32, as in every published implementation, before
they take the model's type.
"""

import math

import torch
from torch import nn


def sinusoid_table(length: int, d_model: int, layout: str) -> torch.Tensor:
    """`PE(pos, 2i) = sin(pos / 10000^(2i/d))`, `PE(pos, 2i+1) = cos(...)` (section 3.5), computed in float64.

    Args:
        layout: "interleaved" alternates sin and cos as in the paper; "halves" puts all sines first (Marian, Pegasus);
            "tensor2tensor" does too, but divides by 10000^(i/(d/2-1)), in float32 as its heirs do (fairseq, M2M100).

    Returns:
        float32 tensor `(length, d_model)`.
    """
    if layout == "tensor2tensor":
        exponent = torch.arange(d_model // 2).float() * -(math.log(10000.0) / (d_model // 2 - 1))  # (D/2)
        angles = torch.arange(length).float()[:, None] * exponent.exp()  # (length, D/2)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)  # (length, D)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (D/2)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000.0**exponent  # (length, D/2)
    if layout == "interleaved":
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (length, D)
    else:
        table = torch.cat([angles.sin(), angles.cos()], dim=-1)  # (length, D)
    return table.float()


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids, `offset` rows into the table. It starts with room for `max_positions` and grows with longer sequences."""

    table: torch.Tensor

    def __init__(self, max_positions: int, d_model: int, layout: str, offset: int = 0):
        super().__init__()
        self.d_model = d_model
        self.layout = layout
        self.offset = offset
        self.register_buffer("table", sinusoid_table(max_positions + offset, d_model, layout), persistent=False)

    def forward(self, positions: torch.Tensor, length: int | None) -> torch.Tensor:
        """Look up `positions` (B or 1, T), all below `length` (None: known to fit) -> (B or 1, T, D)."""
        table = self.table
        if length is not None and length + self.offset > table.shape[0]:
            rows = length + self.offset if torch.compiler.is_compiling() else max(length + self.offset, 2 * table.shape[0])
            table = sinusoid_table(rows, self.d_model, self.layout).to(table)
            if not torch.compiler.is_compiling():
                self.table = table
        return table[positions + self.offset]  # (B or 1, T, D)


class LearnedPositions(nn.Embedding):
    """One trained vector a position, `offset` rows into the table (BART: 2)."""

    def __init__(self, max_positions: int, d_model: int, offset: int = 0):
        super().__init__(max_positions + offset, d_model)
        self.max_positions = max_positions
        self.offset = offset

    def forward(self, positions: torch.Tensor, length: int | None) -> torch.Tensor:  # type: ignore[override]
        """As `SinusoidalPositions.forward`: the table is looked up by position, not by id.

        Raises:
            ValueError: if `length` exceeds `max_positions`, before anything is looked up.
        """
        if length is not None and length > self.max_positions:
            raise ValueError(
                f"a sequence of {length} tokens exceeds max_positions={self.max_positions} of the learned positions; "
                "truncate it, split it, or train with a larger max_positions"
            )
        return super().forward(positions + self.offset)  # (B or 1, T, D)


class RelativePositionBias(nn.Module):
    """One trained scalar for each head and bucket of the distance key - query (T5, section 2.1)."""

    def __init__(self, num_buckets: int, max_distance: int, num_heads: int, bidirectional: bool):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Embedding(num_buckets, num_heads)

    @staticmethod
    def _relative_position_bucket(
        relative_position: torch.Tensor, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
    ) -> torch.Tensor:
        """Bucket of each distance: exact for small ones, logarithmic up to `max_distance`, the last one beyond.

        Args:
            relative_position: key position minus query position, any shape.
            bidirectional: half of the buckets for each direction; otherwise all for the past, and the future is bucket 0.

        Returns:
            int64 buckets in `[0, num_buckets)`, of the same shape.
        """
        first = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            first = (relative_position > 0).long() * num_buckets
            distance = relative_position.abs()
        else:
            distance = (-relative_position).clamp(min=0)
        exact = num_buckets // 2
        # float32 and this order of operations, as in T5: a boundary must fall on the same side
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
        logarithmic = (exact + (ratio * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
        return first + torch.where(distance < exact, distance, logarithmic)

    def forward(self, query_positions: torch.Tensor, key_positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Bias (1 or B, H, T, S) for queries at (1 or B, T) and keys at (1 or B, S)."""
        distance = key_positions[:, None, :] - query_positions[:, :, None]  # (1 or B, T, S)
        buckets = self._relative_position_bucket(distance, self.bidirectional, self.num_buckets, self.max_distance)
        return self.table(buckets).permute(0, 3, 1, 2).to(dtype)  # (1 or B, H, T, S)


def alibi_slopes(num_heads: int) -> list[float]:
    """Slopes `2^(-8h/H)` for a power of two; otherwise those of the next lower one and every second of the next higher."""
    lower = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / lower) for head in range(lower)]
    between = [2 ** (-8 * (head + 1) / (2 * lower)) for head in range(0, 2 * lower, 2)]
    return slopes + between[: num_heads - lower]


class AlibiBias(nn.Module):
    """Minus the distance times a fixed slope per head (ALiBi); symmetric, so that it serves the encoder as well."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(self, query_positions: torch.Tensor, key_positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Bias (1 or B, H, T, S) for queries at (1 or B, T) and keys at (1 or B, S)."""
        distance = (key_positions[:, None, :] - query_positions[:, :, None]).abs()  # (1 or B, T, S)
        slopes = torch.tensor(self.slopes, dtype=dtype, device=distance.device)
        return -slopes[:, None, None] * distance[:, None].to(dtype)  # (1 or B, H, T, S)


class RotaryPositions(nn.Module):
    """Rotation of each pair (i, i + K/2) of a query's or key's features by `position * base^(-2i/K)`."""

    def __init__(self, head_size: int, base: float):
        super().__init__()
        self.head_size = head_size
        self.base = base

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (B or 1, 1, T, K) of positions (B or 1, T), computed in at least float32."""
        precise = torch.promote_types(dtype, torch.float32)
        exponent = torch.arange(0, self.head_size, 2, dtype=precise, device=positions.device) / self.head_size  # (K/2)
        angles = positions[..., None].to(precise) * self.base**-exponent  # (B or 1, T, K/2)
        angles = torch.cat([angles, angles], dim=-1)[:, None]  # (B or 1, 1, T, K)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate queries or keys (B, H, T, K) by the cosines and sines of `RotaryPositions`."""
    cos, sin = rotary
    first, second = heads.chunk(2, dim=-1)  # (B, H, T, K/2) each
    return heads * cos + torch.cat([-second, first], dim=-1) * sin  # (B, H, T, K)

"""A model whose matrices are int8, computed by oneDNN, which torch carries: a quarter of the memory traffic, on a CPU.

    fast = int8_copy(model)                                # then: translate(fast, ...), fast.generate(...), score(fast, ...)
    translate(model, tokenizer, texts, engine="int8")      # the same for one call; transduct translate MODEL --engine int8

Each row of a matrix has its scale, from its largest weight. Inputs are rounded while computing ("dynamic"), and each token has
its own scale too, so that what a token gives does not depend on the batch that it is in. Sums are whole numbers, which no order
of addition changes. Embeddings, norms, attention itself and small matrices stay in float32.
"""

from functools import cache
from typing import Any

import torch
from torch import nn

from transduct.decoding.linears import CopiedLinear, with_linears

SMALLEST = 256 * 256
"""Weights of a matrix for which it pays to round its inputs."""
WEIGHT_LEVELS = 127
"""Steps of a weight on either side of zero."""
TINIEST = 1e-30
"""Added to a scale, which of zeros alone would be zero."""


class Int8Linear(CopiedLinear):
    """`x W^T + b` with W and x rounded to 8 bits."""

    what = "an int8 matrix"

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        weight = linear.weight.detach()  # (V, D)
        self.weight = torch.empty(weight.shape, dtype=torch.int8, device="meta")  # tells type and sizes alone
        self.scales = weight.abs().amax(1) / WEIGHT_LEVELS + TINIEST  # (V)
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)  # (V)
        self.packed = pack((weight / self.scales[:, None]).round().to(torch.int8))
        self.levels = input_levels()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.check_input(input)
        rows = input.reshape(-1, self.in_features)  # (tokens, D)
        step = rows.abs().amax(1, keepdim=True).div_(self.levels).add_(TINIEST)  # (tokens, 1)
        middle = self.levels + 1  # added last: oneDNN wants no signs, but torch casts several times faster to numbers with one
        codes = rows.div(step).round_().to(torch.int8).view(torch.uint8).add_(middle)  # (tokens, D)
        output = product(codes, middle, self.packed, self.scales, self.zeros).mul_(step)  # (tokens, V)
        if self.bias is not None:
            output.add_(self.bias)
        return output.view(*input.shape[:-1], self.out_features)  # (..., V)


def int8_copy(model: Any, smallest: int | None = None) -> Any:
    """A copy of a model of ours or of transformers with int8 matrices, the output's included; see `linears.py`.

    Args:
        smallest: weights of a matrix that is replaced, at least; None: `SMALLEST`.

    Raises:
        ValueError: for a model that is not on a CPU or has no large matrices of floating point, and where torch has no oneDNN.
    """
    return with_linears("int8", model, Int8Linear, SMALLEST if smallest is None else smallest)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Whole numbers (V, D) in the order in which oneDNN reads them."""
    return torch.ops.onednn.qlinear_prepack(weight, None)


def product(codes: torch.Tensor, middle: int, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """`(codes - middle) W^T * scales` (tokens, V) in float32 of whole numbers, codes (tokens, D) and packed weights."""
    return torch.ops.onednn.qlinear_pointwise.default(
        codes, 1.0, middle, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


@cache
def input_levels() -> int:
    """Steps of an input on either side of zero: 127, or 63 on CPUs that add two products in 16 bits, where 127 would overflow."""
    ones, size = torch.ones(64), 64
    packed = pack(torch.full((size, size), WEIGHT_LEVELS, dtype=torch.int8))
    codes = torch.full((4, size), 255, dtype=torch.uint8)
    sums = product(codes, 0, packed, ones, ones.int() - 1)
    return 127 if (sums == 255 * WEIGHT_LEVELS * size).all() else 63

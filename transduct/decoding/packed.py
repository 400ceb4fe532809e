"""A model whose float32 matrices lie in the order in which oneDNN reads them, on a CPU.

`layers.linear` hands oneDNN each matrix as it is stored, row by row. Blocked beforehand, it is read in one stream, which may pay
where few rows are multiplied, as in a step of a search: most with the output's matrix of 37,000 rows. It is the same product to
within the rounding of sums, and takes the memory of the matrices once more while the model lives that it was made of.

    fast = packed_copy(model)  # then: translate(fast, ...), fast.generate(...)

The commands `translate` and, without a recipe, `evaluate` pack the models that they load, wherever it pays. `python
benchmarks/linears.py` measures it.
"""

from typing import Any

import torch
from torch import nn

from transduct.decoding.linears import CopiedLinear, is_plain, replace_linears, with_linears
from transduct.layers import SMALL_MATRIX

ROWS = 32
"""For how many rows at a time the order is chosen; any number can be computed."""


class PackedLinear(CopiedLinear):
    """`x W^T + b` with a blocked W."""

    what = "a packed matrix"

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.weight = torch.empty_like(linear.weight, device="meta")  # tells type and sizes alone
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), ROWS)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.check_input(input)
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")  # (..., V)


def packed_copy(model: Any, smallest: int | None = None) -> Any:
    """A copy of a model of ours or of transformers with blocked matrices, the output's included; see `linears.py`.

    Args:
        smallest: weights of a matrix that is replaced, at least; None: `SMALL_MATRIX`.

    Raises:
        ValueError: for a model that is not on a CPU or has no large matrices of floating point, and where torch has no oneDNN.
    """
    return with_linears("packed_copy", model, PackedLinear, SMALL_MATRIX if smallest is None else smallest)


def pack_where_it_pays(model: Any) -> Any:
    """A model of one's own, packed in place if it is of float32, on a CPU and has large matrices; else as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    fits = all(each.is_cpu and (each.dtype == torch.float32 or not each.is_floating_point()) for each in tensors)
    plain = (each for each in model.modules() if isinstance(each, nn.Linear) and is_plain(each))
    pays = any(each.weight.numel() >= SMALL_MATRIX for each in plain)
    if not (fits and pays and torch.backends.mkldnn.is_available()):
        return model
    return replace_linears("packing", model, PackedLinear, SMALL_MATRIX)

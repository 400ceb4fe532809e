"""One product `x W^T` in every way that there is here, on one thread: what a matrix of a decoder takes for few rows and many.

torch's own, `layers.linear` (oneDNN, weights as they are stored), the transposed product `(W x^T)^T`, blocked weights
(`decoding/packed.py`) and int8 (`decoding/int8.py`). Those in float32 must agree before they are timed. Milliseconds are medians
of rounds, each of which is as many calls as take about a tenth of a second.

    python benchmarks/linears.py                    # the matrices of the paper's base model, 8, 32 and 256 rows
    python benchmarks/linears.py --rows 1 16 64
"""

import argparse
import statistics
import time
from collections.abc import Callable

from side_by_side import by_turns, one_thread, positive, print_table  # first: it settles threads before torch starts

# isort: split
import torch
import torch.nn.functional as F

from transduct.decoding.int8 import Int8Linear
from transduct.decoding.packed import PackedLinear
from transduct.layers import linear

MATRICES = {"projection": (512, 512), "feed-forward, up": (2048, 512), "feed-forward, down": (512, 2048), "output": (37000, 512)}
"""Rows and columns of W."""
EXACT = ("torch", "layers.linear", "transposed", "packed")


def ways(matrix: torch.nn.Linear, states: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """The product of states (rows, D) and a matrix (V, D), by name; torch's first."""
    weight, packed, int8 = matrix.weight, PackedLinear(matrix), Int8Linear(matrix)
    return {
        "torch": lambda: F.linear(states, weight),
        "layers.linear": lambda: linear(states, weight),
        "transposed": lambda: (weight @ states.T).T.contiguous(),
        "packed": lambda: packed(states),
        "int8": lambda: int8(states),
    }


def repeated(call: Callable[[], torch.Tensor], seconds: float) -> tuple[Callable[[], None], int]:
    """So many calls in one as take about so many seconds, and how many."""
    call()
    start = time.perf_counter()
    call()
    count = max(1, round(seconds / (time.perf_counter() - start)))

    def several() -> None:
        for _ in range(count):
            call()

    return several, count


def row(name: str, shape: tuple[int, int], rows: int, options: argparse.Namespace) -> list[str]:
    """Milliseconds of each way, and how many times faster than torch's it is."""
    matrix = torch.nn.Linear(shape[1], shape[0], bias=False)
    found = ways(matrix, torch.randn(rows, shape[1]))
    for way in EXACT:
        torch.testing.assert_close(found[way](), found["torch"](), rtol=0, atol=1e-4)
    calls = {way: repeated(call, 0.001 if options.quick else 0.1) for way, call in found.items()}
    measured = by_turns({way: several for way, (several, _) in calls.items()}, options.rounds)
    costs = {way: 1000 * statistics.median(measured[way]) / count for way, (_, count) in calls.items()}
    cells = [f"{cost:.3f} ({costs['torch'] / cost:.2f}x)" for way, cost in costs.items() if way != "torch"]
    return [f"{name} {shape[0]:,} x {shape[1]:,}, {rows} rows", f"{costs['torch']:.3f}", *cells]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description="One product.", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=positive, default=[8, 32, 256], help="of states at once")
    parser.add_argument("--rounds", type=positive, default=7, help="measurements of each way, after a warm-up")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, its figures mean nothing")
    options = parser.parse_args()
    one_thread()
    matrices = {"tiny": (48, 16)} if options.quick else MATRICES
    rows = [row(name, shape, count, options) for name, shape in matrices.items() for count in options.rows]
    headings = ["x W^T", "torch (ms)", *(f"{way} (ms)" for way in ("layers.linear", "transposed", "packed", "int8"))]
    print_table("linears, float32 products equal; (times faster than torch's)", headings, rows)


if __name__ == "__main__":
    main()

"""The heat map: each cell is a weight of the model, at the place of its tokens."""

import pytest
import torch

from markup import ODD, parsed, svg, titles
from transduct.page.attention_picture import CELL, attention_picture


def test_cells_are_the_weights():
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.001, 0.998, 0.001]])
    root = parsed(attention_picture(weights, ["a", "b", "c"], ["x", "y"]))
    cells = titles(root)
    assert {said: float(cell.get("fill-opacity")) ** 2 for said, cell in cells.items()} == {
        "x ← a: 0.500": pytest.approx(0.5, abs=1e-3),
        "x ← b: 0.250": 0.25,
        "x ← c: 0.250": 0.25,
        "y ← b: 0.998": pytest.approx(0.998, abs=1e-3),
    }
    first, right, below = (cells[name] for name in ("x ← a: 0.500", "x ← b: 0.250", "y ← b: 0.998"))
    assert float(right.get("x")) - float(first.get("x")) == CELL
    assert float(below.get("y")) - float(right.get("y")) == CELL
    assert [text.text for text in svg(root, "text")] == ["a", "b", "c", "x", "y"]


def test_any_labels():
    root = parsed(attention_picture(torch.full((len(ODD), len(ODD)), 0.1), ODD, ODD))
    assert len(svg(root, "text")) == 2 * len(ODD)
    assert len(svg(root, "rect")) == len(ODD) ** 2 + 1


@pytest.mark.parametrize(("source", "target"), [(81, 3), (3, 81), (400, 300)])
def test_long_ones_are_cut_and_it_says_so(source, target):
    root = parsed(attention_picture(torch.full((target, source), 0.5), ["s"] * source, ["t"] * target))
    assert len(svg(root, "rect")) == min(80, source) * min(80, target) + 1
    assert root[-1].text == f"Of {source} source and {target} target tokens the first 80 of each are drawn."

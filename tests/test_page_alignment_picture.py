"""Alignment lines: from the place of a source token to that of a target token, the strongest of each target token marked."""

import re

import pytest
import torch

from markup import ODD, parsed, svg, titles
from transduct.page.alignment_picture import alignment_picture


def test_lines_join_the_tokens():
    weights = torch.tensor([[0.7, 0.25, 0.05], [0.02, 0.05, 0.93]])
    root = parsed(alignment_picture(weights, ["aaa", "b", "c"], ["x", "yyyyyy"]))
    lines = titles(root)
    assert set(lines) == {"aaa → x: 0.700", "b → x: 0.250", "c → yyyyyy: 0.930"}
    places = {text.text: float(text.get("x")) for text in svg(root, "text")}
    for said, line in lines.items():
        above, below = said.split(":")[0].split(" → ")
        numbers = [float(number) for number in re.findall(r"[\d.]+", line.get("d"))]
        assert (numbers[0], numbers[-2]) == pytest.approx((places[above], places[below]), abs=0.06)
    strong = {said for said, line in lines.items() if line.get("stroke") == "var(--best)"}
    assert strong == {"aaa → x: 0.700", "c → yyyyyy: 0.930"}
    assert float(lines["aaa → x: 0.700"].get("stroke-opacity")) > float(lines["b → x: 0.250"].get("stroke-opacity"))


def test_labels_do_not_overlap():
    root = parsed(alignment_picture(torch.full((1, 3), 1 / 3), ["wide token", "w", "wide too"], ["t"]))
    middles = [float(text.get("x")) for text in svg(root, "text")][:3]
    assert middles[1] - middles[0] > 7 * (len("wide token") + 1) / 2
    assert middles[2] - middles[1] > 7 * (len("wide too") + 1) / 2


def test_the_strongest_line_is_drawn_however_weak():
    root = parsed(alignment_picture(torch.full((1, 50), 0.02), ["s"] * 50, ["t"]))
    assert len(svg(root, "path")) == 1


def test_any_labels():
    root = parsed(alignment_picture(torch.full((len(ODD), len(ODD)), 0.1), ODD, ODD))
    assert len(svg(root, "path")) == len(ODD) ** 2

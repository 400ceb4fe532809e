"""Lines between source and target tokens, as strong as the attention between them."""

from collections.abc import Sequence

import torch

from transduct.page.attention_picture import MOST, left_out
from transduct.page.drawing import element, label, picture, title, width_of

GAP = 24
"""Pixels between tokens."""
TOP, BOTTOM, HEIGHT = 24, 178, 204
LEAST = 0.08
"""The weight of a line that is drawn, beside the strongest of each target token."""


def alignment_picture(weights: torch.Tensor, source: Sequence[str], target: Sequence[str]) -> str:
    """An image of weights (T, S): the source above, the target below; each target token's strongest line stands out."""
    above, below = source[:MOST], target[:MOST]
    cells = weights[: len(below), : len(above)].tolist()
    width = max(_length(above), _length(below)) + 2 * GAP
    tops, bottoms = _middles(above, width), _middles(below, width)
    weak: list[str] = []
    strong: list[str] = []
    for row, own in enumerate(cells):
        strongest = max(range(len(own)), key=own.__getitem__)
        for column, weight in enumerate(own):
            if weight >= LEAST or column == strongest:
                said = f"{above[column]} → {below[row]}: {weight:.3f}"
                line = _line(tops[column], bottoms[row], weight, column == strongest, said)
                (strong if column == strongest else weak).append(line)
    content = [
        *weak,
        *strong,
        *(label(name, x, TOP - 6) for name, x in zip(above, tops, strict=True)),
        *(label(name, x, BOTTOM + 16) for name, x in zip(below, bottoms, strict=True)),
    ]
    drawn = picture(width, HEIGHT, content, "alignment: source tokens above, target tokens below")
    return drawn + left_out(len(source), len(target))


def _room(name: str) -> float:
    return max(width_of(name), 10.0) + GAP


def _length(names: Sequence[str]) -> float:
    return sum(map(_room, names))


def _middles(names: Sequence[str], width: float) -> list[float]:
    """The middle of each label; the row of them fills the picture."""
    more = (width - 2 * GAP - _length(names)) / len(names)
    place, middles = float(GAP), []
    for name in names:
        middles.append(place + (_room(name) + more) / 2)
        place += _room(name) + more
    return middles


def _line(above: float, below: float, weight: float, strong: bool, said: str) -> str:
    middle = (TOP + BOTTOM) / 2
    path = f"M{above:.1f},{TOP} C{above:.1f},{middle} {below:.1f},{middle} {below:.1f},{BOTTOM}"
    look = dict(fill="none", stroke="var(--best)" if strong else "var(--map)", stroke_width=2.2 if strong else 1.4)
    return element("path", title(said), d=path, stroke_opacity=round(min(1.0, 0.15 + 0.85 * weight), 3), **look)

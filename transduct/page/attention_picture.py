"""The heat map of a cross-attention: a row for each target token, a column for each source token."""

from collections.abc import Sequence

import torch

from transduct.page.drawing import element, label, note, picture, title, width_of

CELL = 28
"""Pixels of a weight, at least."""
MOST = 80
"""Tokens of each side that are drawn."""
LEAST = 0.004
"""A weight that is drawn; less cannot be told from nothing."""


def attention_picture(weights: torch.Tensor, source: Sequence[str], target: Sequence[str]) -> str:
    """An image of weights (T, S); a cell is as dark as the square root of its weight, so that weak ones are seen, too.

    Args:
        source, target: labels of the S and T tokens, any text.
    """
    rows, columns = target[:MOST], source[:MOST]
    left = max(map(width_of, rows)) + 14
    top = max(map(width_of, columns)) + 14
    cells = weights[: len(rows), : len(columns)].tolist()
    width, height = left + CELL * len(columns) + 8, top + CELL * len(rows) + 8
    content = [
        *(_column(name, left + CELL * (place + 0.5), top) for place, name in enumerate(columns)),
        *(label(name, left - 8, top + CELL * (place + 0.68), text_anchor="end") for place, name in enumerate(rows)),
        element("rect", x=left, y=top, width=CELL * len(columns), height=CELL * len(rows), fill="none", stroke="var(--rule)"),
    ]
    for row, (name, own) in enumerate(zip(rows, cells, strict=True)):
        for column, weight in enumerate(own):
            if weight >= LEAST:
                said = f"{name} ← {columns[column]}: {weight:.3f}"
                content.append(_cell(left + CELL * column, top + CELL * row, weight, said))
    drawn = picture(width, height, content, "cross-attention: source tokens across, target tokens down")
    return drawn + left_out(len(source), len(target))


def _column(name: str, x: float, top: float) -> str:
    """A label above a column, upright where it is one character, else turned."""
    if width_of(name) <= CELL - 6:
        return label(name, x, top - 8)
    return label(name, x + 4, top - 8, text_anchor="start", transform=f"rotate(-90 {x + 4:.1f} {top - 8:.1f})")


def _cell(x: float, y: float, weight: float, said: str) -> str:
    size = dict(x=x + 0.5, y=y + 0.5, width=CELL - 1, height=CELL - 1)
    return element("rect", title(said), fill="var(--map)", fill_opacity=round(weight**0.5, 3), **size)


def left_out(source: int, target: int) -> str:
    """What is said where not all tokens are drawn."""
    if max(source, target) <= MOST:
        return ""
    return note(f"Of {source} source and {target} target tokens the first {MOST} of each are drawn.")

"""Line charts as inline SVG: `line_chart({"loss": [(step, value), ...]}, "Loss")`. No script, font or file beside it.

Colours are the page's: `currentColor` for axes and text, the CSS variables `--series-1` and on for the lines, so that one
chart serves light and dark pages. Values that are not finite leave a gap in their line and are counted below the chart.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 12, 30
"""Room for the labels around the plot, in the same units as WIDTH."""
MOST_POINTS = 600
"""Points drawn of a line; of longer ones the lowest and the highest of each stretch, so that no spike is lost."""
COLOURS = 4


def line_chart(series: Mapping[str, Points], label: str) -> str:
    """An SVG element, with a legend where there are several lines.

    Args:
        series: name -> (step, value) pairs in the order of the steps.
        label: what is shown, for readers that cannot see it.
    """
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in series.items()}
    shown = [point for points in finite.values() for point in points]
    dropped = sum(map(len, series.values())) - len(shown)
    note = f'<p class="note">{dropped} values are not finite and are left out.</p>' if dropped else ""
    if not shown:
        return f'<p class="note">{escape(label)}: nothing finite was logged.</p>'
    xs, ys = _Axis([x for x, _ in shown], LEFT, WIDTH - RIGHT), _Axis([y for _, y in shown], HEIGHT - BOTTOM, TOP)
    lines = [
        _line([_thinned(run) for run in _runs(points)], xs, ys, number % COLOURS + 1)
        for number, points in enumerate(series.values())
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{_grid(xs, ys)}{''.join(lines)}</svg>{_legend(series)}{note}"
    )


class _Axis:
    """Values to places along one side of the plot, and where its ticks are."""

    def __init__(self, values: Sequence[float], start: float, end: float):
        low, high = min(values), max(values)
        if low == high:  # one point, or a constant
            margin = abs(low) * 0.1 or 1.0
            low, high = low - margin, high + margin
        self.ticks = ticks(low, high)
        self.low, self.high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most about `most` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)] or [low, high]


def tick_label(value: float) -> str:
    """Short and exact enough: 0.25, 1,000, 2e-05."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.10g}" if abs(value) < 1e3 else f"{value:,.0f}"
    return f"{value:.4g}"


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """Stretches of finite values."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MOST_POINTS:
        return points
    kept = [points[0]]
    size = math.ceil(len(points) / (MOST_POINTS // 2))
    for start in range(0, len(points), size):
        piece = points[start : start + size]
        kept += sorted({min(piece, key=lambda p: p[1]), max(piece, key=lambda p: p[1])})
    return [*kept, points[-1]]


def _line(runs: list[list[tuple[float, float]]], xs: _Axis, ys: _Axis, colour: int) -> str:
    drawn = []
    for run in runs:
        places = [(xs.place(x), ys.place(y)) for x, y in run]
        if len(places) == 1:
            drawn.append(f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3" fill="var(--series-{colour})"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="var(--series-{colour})" stroke-width="1.5"/>')
    return "".join(drawn)


def _grid(xs: _Axis, ys: _Axis) -> str:
    parts = []
    for value in ys.ticks:
        y = ys.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick_label(value)}</text>')
    for value in xs.ticks:
        x = xs.place(value)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{tick_label(value)}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    return "".join(parts)


def _legend(series: Mapping[str, Points]) -> str:
    if len(series) < 2:
        return ""
    names = (
        f'<span><i style="background:var(--series-{number % COLOURS + 1})"></i>{escape(name)}</span>'
        for number, name in enumerate(series)
    )
    return f'<p class="legend">{"".join(names)}</p>'

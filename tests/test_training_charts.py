"""Line charts: well-formed SVG whose lines are where the values say, whatever the values are."""

import itertools
import math
from xml.etree import ElementTree

import pytest

from transduct.training.charts import BOTTOM, HEIGHT, LEFT, MOST_POINTS, RIGHT, TOP, WIDTH, line_chart, tick_label, ticks


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html}</div>")


def polylines(html: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in parsed(html).iter("polyline")
    ]


def test_a_line_goes_where_the_values_go():
    ((first, middle, last),) = polylines(line_chart({"loss": [(0, 4.0), (50, 2.0), (100, 0.0)]}, "Loss"))
    assert first[0] == LEFT
    assert last[0] == WIDTH - RIGHT
    assert first[1] == TOP  # the highest value is at the top
    assert last[1] == HEIGHT - BOTTOM
    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), abs=0.1)


def test_one_point_is_a_dot_and_a_constant_a_level_line():
    html = line_chart({"loss": [(20, 1.5)]}, "Loss")
    assert len(list(parsed(html).iter("circle"))) == 1
    ((start, end),) = polylines(line_chart({"rate": [(1, 0.0), (9, 0.0)]}, "Rate"))
    assert start[1] == end[1]


def test_values_that_are_not_finite_leave_a_gap_and_are_counted():
    html = line_chart({"loss": [(1, 3.0), (2, 2.0), (3, math.nan), (4, math.inf), (5, 1.0), (6, 2.0)]}, "Loss")
    assert [len(line) for line in polylines(html)] == [2, 2]
    assert "2 values are not finite" in html


def test_without_anything_finite_it_says_so():
    for points in ([], [(1, math.nan)]):
        html = line_chart({"loss": points}, "Loss")
        parsed(html)
        assert "Loss: nothing finite was logged" in html
        assert "<svg" not in html


def test_several_lines_have_a_legend_and_colours_of_their_own():
    html = line_chart({"training": [(1, 1), (2, 2)], "validation <b>": [(1, 2), (2, 1)]}, "Loss")
    assert "validation &lt;b&gt;" in html
    assert {line.attrib["stroke"] for line in parsed(html).iter("polyline")} == {"var(--series-1)", "var(--series-2)"}


def test_long_lines_are_thinned_but_keep_their_spikes():
    points = [(step, 1.0) for step in range(50_000)]
    points[31_234] = (31_234, 90.0)
    ((line),) = polylines(line_chart({"loss": points}, "Loss"))
    assert len(line) < 2 * MOST_POINTS
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert min(y for _, y in line) < (TOP + HEIGHT) / 4


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.13, 0.131), (-5, 17), (1e-6, 3e-4), (12, 98_765), (1e9, 1e9 + 1)])
def test_ticks_are_few_round_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-9 * abs(high) <= value <= high + 1e-9 * abs(high) for value in found)
    steps = {round((b - a) / (found[1] - found[0]), 4) for a, b in itertools.pairwise(found)}
    assert steps == {1.0}


@pytest.mark.parametrize(
    ("value", "label"), [(0, "0"), (0.25, "0.25"), (1500, "1,500"), (2e-5, "2e-05"), (-3, "-3"), (0.30000000000000004, "0.3")]
)
def test_tick_labels(value, label):
    assert tick_label(value) == label

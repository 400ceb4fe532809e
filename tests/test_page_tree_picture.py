"""The drawn tree: a box for each hypothesis of each step, joined to what it continues, coloured by what became of it."""

import re

import pytest

from markup import ODD, parsed, svg, titles
from test_page_search_tree import TREE
from transduct.page.search_tree import Node, SearchTree, Step
from transduct.page.tree_picture import tree_picture


def boxes(root):
    """What is told of each box -> its rectangle."""
    return {said: group[1] for said, group in titles(root).items()}


def right(box) -> tuple[float, float]:
    return float(box.get("x")) + float(box.get("width")), float(box.get("y")) + float(box.get("height")) / 2


def left(box) -> tuple[float, float]:
    return float(box.get("x")), float(box.get("y")) + float(box.get("height")) / 2


def test_boxes_are_joined_to_what_they_continue():
    root = parsed(tree_picture(TREE, 2, [0, 1, 0], {(2, 0): 0, (1, 2): 1}))
    found = boxes(root)
    assert list(found) == [
        "step 1: a, log-probability -1.0000",
        "step 1: b, log-probability -2.0000",
        "step 2: c, log-probability -2.0000",
        "step 2: d, log-probability -3.0000",
        "step 2: e, log-probability -3.5000, result 2",
        "step 3: e, log-probability -4.0000, result 1",
    ]
    a, b, c, d, e, last = found.values()
    ends = [[float(number) for number in re.findall(r"[\d.]+", path.get("d"))] for path in svg(root, "path")]
    joined = {((way[0], way[1]), (way[-2], way[-1])) for way in ends}
    for parent, child in ((a, c), (a, d), (b, e), (d, last)):
        assert tuple(tuple(round(value, 1) for value in place) for place in (right(parent), left(child))) in joined
    assert len(ends) == 6  # and two from the start


def test_colours_say_what_became_of_each():
    def colours(last, chosen=()):
        return [
            box.get("stroke").removeprefix("var(--").removesuffix(")")
            for box in boxes(parsed(tree_picture(TREE, last, chosen, {}))).values()
        ]

    assert colours(0) == ["ink", "ink"]
    assert colours(1) == ["ink", "ink", "ink", "ink", "ended"]
    assert colours(2) == ["ink", "faint", "faint", "ink", "ended", "ended"]
    assert colours(2, [0, 1, 0]) == ["best", "faint", "faint", "best", "ended", "best"]


def test_no_two_boxes_share_a_place():
    places = [(box.get("x"), box.get("y")) for box in boxes(parsed(tree_picture(TREE, 2, [], {}))).values()]
    assert len(set(places)) == len(places) == 6


@pytest.mark.parametrize("last", [23, 24, 99])
def test_long_searches_show_their_last_steps(last):
    tree = SearchTree(tuple(Step((Node(5, f"t{number}", 0 if number else None, -1.0 * number),), ()) for number in range(100)))
    root = parsed(tree_picture(tree, last, [], {}))
    assert len(boxes(root)) == 24
    assert f"step {last + 1}: t{last}, log-probability {-1.0 * last:.4f}" in boxes(root)
    assert (root[-1].text == f"Steps {last - 22} to {last + 1} are drawn.") == (last > 23)


def test_any_labels():
    tree = SearchTree((Step(tuple(Node(5, text, None, -1.0) for text in ODD), ()),))
    assert len(boxes(parsed(tree_picture(tree, 0, [], {})))) == len(set(map(ascii, ODD)))

"""Which piece of a text gets which of its phrases: the cheapest way, as if all were tried."""

import itertools
import random
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import pytest

from transduct.decoding.placing import Spread, cheapest, place


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_as_if_all_ways_were_tried(seed, ordered):
    generator = random.Random(seed)
    phrases, pieces = generator.randint(1, 4), generator.randint(1, 4)
    losses = [[generator.choice([inf, *range(1, 40)]) for _ in range(pieces)] for _ in range(phrases)]
    ways = itertools.product(range(pieces), repeat=phrases)
    costs = {
        way: sum(row[piece] for row, piece in zip(losses, way, strict=True))
        for way in ways
        if not ordered or list(way) == sorted(way)
    }
    found = cheapest(losses, ordered)
    best = min(costs.values())
    assert (found is None) == (best == inf)
    assert found is None or costs[tuple(found)] == best


class Found(NamedTuple):
    score: float
    phrases: tuple[str, ...] = ()


@dataclass
class Piece:
    """A piece that has room for so many phrases."""

    room: int
    costs: dict[str, float]
    place: tuple[int, int]
    phrases: list[str] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)


def placed(pieces, phrases, ordered=False, line=1):
    """What each of `pieces` (room, what each phrase costs) holds in the end."""
    spread = Spread([Piece(*piece, place=(line, number), found=[Found(0.0)]) for number, piece in enumerate(pieces)], phrases)

    def search(several, may_fail):
        assert may_fail
        for piece in several:
            assert not piece.found
            if len(piece.phrases) <= piece.room and all(phrase in piece.costs for phrase in piece.phrases):
                piece.found = [Found(-sum(piece.costs[phrase] for phrase in piece.phrases), tuple(piece.phrases))]

    place([spread], search, ordered)
    return ["".join(piece.found[0].phrases) for piece in spread.pieces]


@pytest.mark.parametrize(
    ("pieces", "phrases", "ordered", "wanted"),
    [
        ([(2, dict(a=1, b=1)), (2, dict(a=2, b=2))], "ab", False, ["ab", ""]),
        ([(1, dict(a=1, b=1)), (1, dict(a=5, b=2))], "ab", False, ["a", "b"]),
        ([(1, dict(a=1, b=1)), (1, dict(a=2, b=5))], "ab", False, ["b", "a"]),
        ([(1, dict(a=1, b=1)), (1, dict(a=2, b=5))], "ab", True, ["a", "b"]),
        ([(1, dict(a=2, b=2)), (1, dict(a=1, b=1))], "ab", True, ["a", "b"]),
        ([(1, dict(a=1, b=1, c=1)), (1, dict(a=2, b=2, c=2)), (1, dict(a=3, b=4, c=5))], "abc", False, ["c", "b", "a"]),
        ([(0, {}), (2, dict(a=1, b=1, c=1)), (1, dict(a=9, b=2, c=9))], "abc", False, ["", "ac", "b"]),
    ],
)
def test_phrases_that_do_not_fit_together_go_elsewhere(pieces, phrases, ordered, wanted):
    assert placed(pieces, phrases, ordered) == wanted


def test_phrases_that_fit_nowhere():
    with pytest.raises(ValueError, match="line 7 is translated in 2 pieces, and its phrases do not fit into them"):
        placed([(1, dict(a=1, b=1, c=1)), (1, dict(a=2, b=2, c=2))], "abc", line=7)


def test_of_equals_the_first():
    assert cheapest([[1.0, 1.0], [2.0, 2.0]], False) == cheapest([[1.0, 1.0], [2.0, 2.0]], True) == [0, 0]

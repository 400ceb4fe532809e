"""Which piece of a text gets which of its phrases: the cheapest way, as if all were tried."""

import itertools
import random
from math import inf

import pytest

from transduct.decoding.placing import cheapest


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


def test_of_equals_the_first():
    assert cheapest([[1.0, 1.0], [2.0, 2.0]], False) == cheapest([[1.0, 1.0], [2.0, 2.0]], True) == [0, 0]

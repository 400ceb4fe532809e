"""Windows and batches: everything once, in order, within bounds."""

import random

import pytest

from transduct.decoding import windows as module
from transduct.decoding.windows import LEAST_LENGTH, length_batches, windows


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 30])
def test_windows_hold_every_text_once_in_order(count):
    texts = [f"{number}" for number in range(count)]
    found = list(windows(iter(texts), 7))
    assert [text for window in found for text in window] == texts
    assert [len(window) for window in found[:-1]] == [7] * (len(found) - 1)


def test_no_more_than_a_window_is_read():
    read = []

    def texts():
        for number in range(100):
            read.append(number)
            yield str(number)

    found = windows(texts(), 5)
    next(found)
    assert len(read) == 5
    next(found)
    assert len(read) == 10


def test_long_texts_fill_a_window(monkeypatch):
    monkeypatch.setattr(module, "MOST_CHARACTERS", 100)
    assert [len(window) for window in windows(["x" * 60] * 5, 1000)] == [2, 2, 1]
    assert [len(window) for window in windows([("x" * 30, "y" * 30)] * 5, 1000)] == [2, 2, 1]
    assert [len(window) for window in windows(["x" * 500] * 2, 1000)] == [1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_batches_hold_every_text_once_within_the_budget(seed):
    generator = random.Random(seed)
    lengths = [generator.randint(1, 90) for _ in range(200)]
    batches = length_batches(lengths, 300)
    assert sorted(number for batch in batches for number in batch) == list(range(200))
    for batch in batches:
        assert len(batch) * max(LEAST_LENGTH, *(lengths[number] for number in batch)) <= 300
    order = [lengths[number] for batch in batches for number in batch]
    assert order == sorted(lengths, reverse=True)
    for batch in batches[:-1]:  # none could have held one more
        assert (len(batch) + 1) * max(LEAST_LENGTH, lengths[batch[0]]) > 300


def test_a_text_beyond_the_budget_is_alone():
    assert length_batches([500, 3, 500, 3], 100) == [[0], [2], [1, 3]]


def test_refuses():
    with pytest.raises(ValueError, match="window=0 must be a whole number of at least 1"):
        next(windows(["a"], 0))
    with pytest.raises(ValueError, match="max_tokens_per_batch=0 must be a whole number of at least 1"):
        length_batches([1], 0)

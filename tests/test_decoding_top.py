"""The best tokens by way of chunks are those that torch finds."""

import pytest
import torch

from transduct.decoding.top import CHUNK, CHUNKS_EACH, best_tokens, top_tokens

SMALLEST = CHUNK * CHUNKS_EACH
SIZES = [9, SMALLEST - 1, SMALLEST, SMALLEST + 1, 37_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_same_as_topk(size, count):
    values = torch.stack([torch.randperm(size).float() for _ in range(20)])  # no equals
    values[3, values[3] < size - 4] = float("-inf")
    want, found = values.topk(count), top_tokens(values, count)
    assert torch.equal(found[0], want.values)
    assert torch.equal(found[1][:3], want.indices[:3])
    assert torch.equal(values.gather(1, found[1]), want.values)
    assert all(len(set(row)) == count for row in found[1].tolist())


@pytest.mark.parametrize("size", SIZES)
def test_each_place_is_found(size):
    values = torch.zeros(size, size) if size < 1000 else torch.zeros(1000, size)
    places = torch.linspace(0, size - 1, len(values)).long()[:, None]  # the first and the last among them
    values.scatter_(1, places, 1.0)
    assert torch.equal(best_tokens(values)[1], places)
    assert torch.equal(top_tokens(values, 1)[1], places)


@pytest.mark.parametrize("size", SIZES)
def test_of_equals_the_first(size):
    values = torch.randint(0, 3, (50, size)).float()
    values[0] = float("-inf")
    best, tokens = best_tokens(values)
    first = (values == values.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    assert torch.equal(tokens, first)
    assert torch.equal(best, values.gather(1, first))


@pytest.mark.parametrize("size", SIZES)
def test_equals_beyond_the_last_are_told_by_one_more(size):
    """What beam search relies on: asked for one more, the values alone say whether another is as good."""
    values = torch.randint(0, 3, (50, size)).float()
    assert torch.equal(top_tokens(values, 3)[0], values.topk(3).values)


def test_rows_none():
    assert [each.shape for each in top_tokens(torch.zeros(0, 37_000), 2)] == [(0, 2), (0, 2)]

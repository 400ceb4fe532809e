"""Masks as literal arrays, and computing without padding."""

import pytest
import torch

from transduct.masks import (
    TokenLayout,
    causal_mask,
    check_mask,
    check_shape,
    combine,
    infer_padding_mask,
    is_right_padded,
    positions_from_mask,
    positions_from_segments,
    same_segment,
    to_four_dimensions,
)

INFINITY = float("inf")


def bits(*rows: str) -> torch.Tensor:
    """Rows of "x" (True) and "." (False)."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def test_padding_at_the_ends_of_a_row_is_inferred():
    ids = torch.tensor([[5, 6, 0, 0], [0, 0, 5, 6], [0, 5, 0, 6], [0, 5, 6, 0], [0, 0, 0, 0], [5, 6, 7, 8]])
    want = bits("xx..", "..xx", ".xxx", ".xx.", "....", "xxxx")
    assert torch.equal(infer_padding_mask(ids, 0, 1), want)
    assert torch.equal(infer_padding_mask(ids, 0, [1, 2]), want)
    assert torch.equal(infer_padding_mask(ids, 7, 1), torch.ones(6, 4, dtype=torch.bool))


@pytest.mark.parametrize(("pad", "end"), [(None, 1), (0, 0), (0, [1, 0])])
def test_padding_that_may_be_text_is_not_inferred(pad, end):
    assert infer_padding_mask(torch.tensor([[5, 0]]), pad, end) is None


def test_positions_count_from_the_first_real_token():
    mask = bits("xxxx", "xx..", "..xx", ".xx.", "....", "x.xx")
    want = [[0, 1, 2, 3], [0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 2]]
    assert positions_from_mask(mask).tolist() == want


def test_positions_restart_in_every_segment():
    segments = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 2, 3, 3, 3, 3], [0, 0, 1, 1, 0, 0], [4, 4, 4, 4, 4, 4]])
    want = [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3], [0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert positions_from_segments(segments).tolist() == want


def test_attention_stays_inside_a_segment():
    queries, keys = torch.tensor([[1, 2, 2, 0]]), torch.tensor([[1, 1, 2, 0, 0]])
    assert torch.equal(same_segment(queries, keys), bits("xx...", "..x..", "..x..", ".....")[None, None])


def test_causality():
    assert torch.equal(causal_mask(torch.arange(3), 3), bits("x..", "xx.", "xxx")[None, None])
    assert torch.equal(causal_mask(torch.arange(2) + 2, 6), bits("xxx...", "xxxx..")[None, None])


def test_four_dimensions():
    mask = bits("xx.", "x..")
    assert torch.equal(to_four_dimensions(mask)[:, 0, 0], mask)
    assert to_four_dimensions(torch.ones(2, 4, 3)).shape == (2, 1, 4, 3)
    assert to_four_dimensions(torch.ones(2, 5, 4, 3)).shape == (2, 5, 4, 3)


def test_a_bias_counts_where_attention_is_allowed():
    mask, bias = bits("x.", "xx"), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert combine(mask, bias).tolist() == [[1.0, -INFINITY], [3.0, 4.0]]
    assert combine(None, bias) is bias
    assert combine(mask, None) is mask
    assert combine(None, None) is None


def test_right_padding():
    assert is_right_padded(bits("xx.", "xxx", "..."))
    assert not is_right_padded(bits("xx.", ".xx"))
    assert not is_right_padded(bits("x.x"))


def test_checked_masks():
    assert check_mask("m", None, 3, 2) is None
    assert torch.equal(check_mask("m", torch.tensor([[1, 0, 1]]), 3, 2), bits("x.x", "x.x"))  # one row for all
    assert torch.equal(check_mask("m", torch.tensor([[1.0, 0.0, 1.0]]), 3, 1), bits("x.x"))
    assert check_mask("m", torch.ones(2, 5, 3).bool(), 3, 2).shape == (2, 5, 3)
    assert check_mask("m", torch.ones(6, 5, 3).bool(), 3, 2, 6).shape == (6, 5, 3)
    for mask, message in (
        (torch.ones(3), "m must have 2, 3 or 4 dimensions"),
        (torch.ones(2, 4), "m covers 4 tokens, but there are 3"),
        (torch.ones(4, 3), "m has 4 rows, but there are 2"),
        (torch.zeros(2, 3, 3), "m of shape .* must be boolean"),
        (torch.tensor([[0.0, 0.0, -INFINITY]]), "m holds negative numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            check_mask("m", mask, 3, 2)


def test_checked_shapes():
    check_shape("labels", None, 2, 3)
    check_shape("labels", torch.ones(2, 3), 2, 3)
    check_shape("position_ids", torch.ones(1, 3), 2, 3)
    for name, shape in (("labels", (1, 3)), ("position_ids", (2, 4)), ("segment_ids", (3, 3)), ("labels", (2, 3, 1))):
        with pytest.raises(ValueError, match=f"{name} of shape"):
            check_shape(name, torch.ones(shape), 2, 3)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_tokens_without_their_padding_and_back(shape):
    mask = bits("xx.", "...", ".xx")
    states = torch.randn(3, 3, *shape, dtype=torch.float64, requires_grad=True)
    layout = TokenLayout.from_mask(mask)
    packed = layout.pack(states)
    assert torch.equal(packed, states[mask])
    back = layout.unpack(packed)
    assert torch.equal(back[mask], states[mask])
    assert (back[~mask] == 0).all()
    back.sum().backward()
    assert torch.equal(states.grad, mask.view(3, 3, *[1] * len(shape)).expand_as(states).double())


def test_no_layout_without_a_padding_mask():
    assert TokenLayout.from_mask(None) is None
    assert TokenLayout.from_mask(torch.ones(2, 3, 3).bool()) is None
    assert TokenLayout.from_mask(torch.ones(2, 3, device="meta").bool()) is None
    assert TokenLayout.from_mask(bits("...")).pack(torch.ones(1, 3, 4)).shape == (0, 4)

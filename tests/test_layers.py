"""The feed-forward in parts; norms, residuals and both kinds of feed-forward are in test_against_reference.py."""

import pytest
import torch

from transduct.layers import CACHED_TOKENS, FeedForward


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(CACHED_TOKENS + 1,), (3, CACHED_TOKENS)], ids=str)
def test_parts_of_many_tokens_make_the_whole(shape, gated, monkeypatch):
    layer = FeedForward(6, 10, "gelu", gated, bias=True, dropout=0.0).double()
    hidden = torch.randn(*shape, 6, dtype=torch.float64)
    parts = []
    transform = layer.transform
    monkeypatch.setattr(layer, "transform", lambda part: parts.append(len(part.flatten(0, -2))) or transform(part))
    whole = layer(hidden)
    with torch.no_grad():
        torch.testing.assert_close(layer(hidden), whole.detach(), rtol=0, atol=1e-14)
    assert parts[0] == hidden.shape[:-1].numel()
    assert max(parts[1:]) == CACHED_TOKENS
    assert sum(parts[1:]) == parts[0]

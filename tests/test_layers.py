"""Products and the feed-forward in parts; norms, residuals and both kinds of feed-forward are in test_against_reference.py."""

import pytest
import torch

from transduct.layers import CACHED_TOKENS, FeedForward, Linear


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


@pytest.mark.parametrize("shape", [(3, 1), (2, 5), (0, 4), (1, 300)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_gives_the_same_product_with_and_without_gradients(shape, bias):
    layer = Linear(513, 1001, bias=bias)  # large enough for the other library
    hidden = torch.randn(*shape, 513)
    expected = torch.nn.functional.linear(hidden.double(), layer.weight.double(), layer.bias.double() if bias else None)
    with torch.no_grad():
        found = layer(hidden)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(layer(hidden).double(), expected, rtol=0, atol=1e-5)


def test_linear_uses_the_other_library_for_large_float32_products_without_gradients_only():
    def products(layer, hidden, grad=False, autocast=False):
        with (
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", enabled=autocast),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        ):
            layer(hidden)
        return {event.key for event in profile.key_averages()}

    large, small = Linear(512, 512), Linear(16, 16)
    onednn = "mkldnn::_linear_pointwise"
    assert onednn in products(large, torch.randn(2, 512))
    assert onednn not in products(large, torch.randn(2, 512), grad=True)
    assert onednn not in products(large, torch.randn(2, 512), autocast=True)
    assert onednn not in products(small, torch.randn(2, 16))
    assert onednn not in products(large.double(), torch.randn(2, 512, dtype=torch.float64))


def test_linear_reads_transposed_and_expanded_states():
    layer, hidden = Linear(512, 512), torch.randn(4, 3, 512)
    with torch.no_grad():
        torch.testing.assert_close(layer(hidden.transpose(0, 1)), layer(hidden).transpose(0, 1))
        torch.testing.assert_close(layer(hidden[:1].expand(4, -1, -1)), layer(hidden[:1]).expand(4, -1, -1))


def test_a_traced_linear_is_the_ordinary_operator():
    with torch.no_grad():
        graph = str(torch.jit.trace(Linear(512, 512), torch.randn(2, 512)).inlined_graph)
    assert "aten::linear" in graph
    assert "mkldnn" not in graph

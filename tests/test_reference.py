"""The NumPy reference is right: against literal values, and against torch and transformers in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

import reference as ref
from float64 import CLOSE, draw, shake, to_numpy

ROTARY_BASE = 10000.0


# ---- masks ----------------------------------------------------------------------------------------------------------------
def test_causal_mask_is_a_lower_triangle():
    assert ref.causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_padding_mask_on_either_side():
    assert ref.padding_mask([3, 1], 3).tolist() == [[True, True, True], [True, False, False]]
    assert ref.padding_mask([3, 1], 3, "left").tolist() == [[True, True, True], [False, False, True]]


# ---- attention ------------------------------------------------------------------------------------------------------------
def test_attention_by_hand():
    """Scores 0 and log 3, so weights 1/4 and 3/4."""
    query, key = np.array([[2.0]]), np.array([[0.0], [math.log(3) / 2]])
    output, weights = ref.dot_product_attention(query, key, np.array([[4.0], [8.0]]))
    np.testing.assert_allclose(weights, [[0.25, 0.75]], **CLOSE)
    np.testing.assert_allclose(output, [[7.0]], **CLOSE)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_attention_agrees_with_torch(scale):
    query, key, value, bias = draw(2, 3, 4, 8), draw(2, 3, 5, 8), draw(2, 3, 5, 8), draw(3, 4, 5)
    mask = torch.rand(2, 1, 4, 5) < 0.7
    mask[..., 0] = True
    additive = bias.masked_fill(~mask, -math.inf)
    expected = F.scaled_dot_product_attention(query, key, value, additive, scale=scale)
    arrays = (tensor.numpy() for tensor in (query, key, value, mask, bias))
    np.testing.assert_allclose(ref.dot_product_attention(*arrays, scale=scale)[0], expected, **CLOSE)


def test_a_query_that_sees_no_key_takes_nothing():
    one = np.ones((1, 1))
    output, weights = ref.dot_product_attention(one, one, one, mask=np.zeros((1, 1), dtype=bool))
    assert output.tolist() == weights.tolist() == [[0.0]]


def torch_attention_weights(attention: nn.MultiheadAttention) -> dict[str, np.ndarray]:
    weights = {"o_proj.weight": attention.out_proj.weight, "o_proj.bias": attention.out_proj.bias}
    for name, matrix, bias in zip("qkv", attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True):
        weights |= {f"{name}_proj.weight": matrix, f"{name}_proj.bias": bias}
    return {name: tensor.detach().numpy() for name, tensor in weights.items()}


def test_multi_head_attention_agrees_with_torch():
    attention = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    nn.init.normal_(attention.in_proj_bias)
    x, memory, mask = draw(2, 4, 12), draw(2, 5, 12), ref.padding_mask([5, 3], 5)
    expected, weights = attention(x, memory, memory, key_padding_mask=torch.tensor(~mask), average_attn_weights=False)
    actual = ref.multi_head_attention(x.numpy(), memory.numpy(), torch_attention_weights(attention), 3, mask=mask[:, None])
    np.testing.assert_allclose(actual[0], expected.detach(), **CLOSE)
    np.testing.assert_allclose(actual[1], weights.detach(), **CLOSE)


def test_grouped_heads_equal_repeated_key_and_value_heads():
    x = draw(2, 4, 12).numpy()
    grouped = {f"{name}_proj.weight": draw(width, 12).numpy() for name, width in dict(q=12, k=6, v=6, o=12).items()}
    repeated = dict(grouped)
    for name in ("k_proj.weight", "v_proj.weight"):
        repeated[name] = grouped[name].reshape(2, 3, 12).repeat(2, axis=0).reshape(12, 12)  # 2 heads of 3 serve 4
    expected = ref.multi_head_attention(x, x, repeated, 4)[0]
    np.testing.assert_allclose(ref.multi_head_attention(x, x, grouped, 4, key_value_heads=2)[0], expected, **CLOSE)


# ---- positions ------------------------------------------------------------------------------------------------------------
def test_sinusoids_by_hand():
    sin1, cos1, sin01, cos01 = 0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004
    expected = [[0, 1, 0, 1], [sin1, cos1, sin01, cos01]]
    np.testing.assert_allclose(ref.sinusoids([0, 1], 4), expected, atol=1e-9)
    np.testing.assert_allclose(ref.sinusoids([1], 4, "halves"), [[sin1, sin01, cos1, cos01]], atol=1e-9)


def test_relative_buckets_by_hand():
    """8 buckets up to distance 32: causal 0..3 exact, then 4-6, 7-11, 12-19 and all beyond."""
    causal = [ref.relative_bucket(-distance, False, 8, 32) for distance in (0, 1, 3, 4, 6, 7, 11, 12, 19, 20, 500)]
    assert causal == [0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert [ref.relative_bucket(distance, False, 8, 32) for distance in (1, 5, 100)] == [0, 0, 0]
    both = [ref.relative_bucket(distance, True, 8, 32) for distance in (-100, -8, -7, -2, -1, 0, 1, 2, 7, 8, 100)]
    assert both == [3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 64)])
def test_relative_buckets_agree_with_transformers(bidirectional, buckets, max_distance):
    distances = list(range(-300, 301))
    theirs = T5Attention._relative_position_bucket(torch.tensor(distances), bidirectional, buckets, max_distance)
    assert [ref.relative_bucket(distance, bidirectional, buckets, max_distance) for distance in distances] == theirs.tolist()


def test_alibi_slopes_by_hand():
    assert ref.alibi_slopes(4) == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert ref.alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert ref.alibi_bias(2, [1], [0, 1, 3]).tolist() == [[[-1 / 16, 0, -2 / 16]], [[-1 / 256, 0, -2 / 256]]]


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
def test_alibi_agrees_with_transformers(heads):
    """Theirs grows with the key's position instead of falling with the distance: the same for the softmax of a causal row."""
    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float64).numpy()  # (H, 1, S)
    ours = ref.alibi_bias(heads, [4], range(5))
    np.testing.assert_allclose(ours - ours[..., :1], theirs, atol=1e-6)


def test_rotation_agrees_with_transformers():
    config = LlamaConfig(
        hidden_size=16, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE}
    )
    x, positions = draw(1, 2, 5, 8), torch.tensor([[0, 1, 2, 7, 40]])
    rotated, _ = apply_rotary_pos_emb(x, x, *LlamaRotaryEmbedding(config)(x, positions))
    np.testing.assert_allclose(ref.rotate(x.numpy(), positions[0].tolist()), rotated, atol=1e-5)


def test_rotated_scores_depend_on_the_distance_only():
    query, key = draw(1, 8).numpy(), draw(1, 8).numpy()
    near = ref.rotate(query, [5]) @ ref.rotate(key, [2]).T
    far = ref.rotate(query, [105]) @ ref.rotate(key, [102]).T
    np.testing.assert_allclose(near, far, **CLOSE)


# ---- norms and feed-forward -----------------------------------------------------------------------------------------------
def test_norms_agree_with_torch():
    x, gain, bias = draw(2, 3, 8), draw(8), draw(8)
    arrays = [tensor.numpy() for tensor in (x, gain, bias)]
    np.testing.assert_allclose(ref.layer_norm(*arrays, 1e-5), F.layer_norm(x, [8], gain, bias, 1e-5), **CLOSE)
    np.testing.assert_allclose(ref.layer_norm(*arrays[:2]), F.layer_norm(x, [8], gain, None, 1e-5), **CLOSE)
    np.testing.assert_allclose(ref.rms_norm(*arrays[:2], 1e-6), F.rms_norm(x, [8], gain, 1e-6), **CLOSE)


def test_activations_agree_with_torch():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    theirs = dict(relu=F.relu(x), gelu=F.gelu(x), gelu_new=F.gelu(x, approximate="tanh"), silu=F.silu(x))
    assert theirs.keys() == ref.ACTIVATIONS.keys()
    for name, expected in theirs.items():
        np.testing.assert_allclose(ref.ACTIVATIONS[name](x.numpy()), expected, err_msg=name, **CLOSE)


def test_gated_feed_forward_by_hand():
    """relu(2 x 3) * (5 x 3) / 10 = 9, and nothing where the gate is shut."""
    weights = {name: np.array([[value]]) for name, value in {"gate_proj.weight": 2.0, "up_proj.weight": 5.0}.items()}
    weights["down_proj.weight"] = np.array([[0.1]])
    np.testing.assert_allclose(ref.feed_forward(np.array([[3.0], [-3.0]]), weights), [[9.0], [0.0]], **CLOSE)


# ---- layers ---------------------------------------------------------------------------------------------------------------
def torch_layer_weights(layer: nn.Module, residuals: list[str]) -> dict[str, np.ndarray]:
    """Weights of torch's own layer under our names; `residuals` in the order of its norms."""
    weights = {f"self_attention.{name}": array for name, array in torch_attention_weights(layer.self_attn).items()}
    if "cross_attention" in residuals:
        cross = torch_attention_weights(layer.multihead_attn)
        weights |= {f"cross_attention.{name}": array for name, array in cross.items()}
    weights |= {f"feed_forward.up_proj.{name}": array for name, array in to_numpy(layer.linear1).items()}
    weights |= {f"feed_forward.down_proj.{name}": array for name, array in to_numpy(layer.linear2).items()}
    for number, residual in enumerate(residuals, start=1):
        norm = to_numpy(layer.get_submodule(f"norm{number}"))
        weights |= {f"{residual}_residual.norm.{name}": array for name, array in norm.items()}
    return weights


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_encoder_layer_agrees_with_torch(norm_position):
    layer = shake(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=norm_position == "pre"))
    x, mask = draw(2, 5, 12), ref.padding_mask([5, 3], 5)
    expected = layer(x, src_key_padding_mask=torch.tensor(~mask)).detach()
    weights = torch_layer_weights(layer, ["self_attention", "feed_forward"])
    actual = ref.encoder_layer(x.numpy(), weights, ref.LayerKind(3, norm_position=norm_position), mask[:, None])
    np.testing.assert_allclose(actual[mask], expected[torch.tensor(mask)], **CLOSE)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_decoder_layer_agrees_with_torch(norm_position):
    layer = shake(nn.TransformerDecoderLayer(12, 3, 20, batch_first=True, norm_first=norm_position == "pre"))
    x, memory, mask = draw(2, 4, 12), draw(2, 5, 12), ref.padding_mask([5, 3], 5)
    hidden = torch.tensor(~ref.causal_mask(4))
    expected = layer(x, memory, tgt_mask=hidden, memory_key_padding_mask=torch.tensor(~mask)).detach()
    weights = torch_layer_weights(layer, ["self_attention", "cross_attention", "feed_forward"])
    kind = ref.LayerKind(3, norm_position=norm_position)
    actual = ref.decoder_layer(x.numpy(), memory.numpy(), weights, kind, ref.causal_mask(4), mask[:, None])
    np.testing.assert_allclose(actual, expected, **CLOSE)


# ---- loss -----------------------------------------------------------------------------------------------------------------
def test_loss_by_hand():
    """Two tokens of equal logit: log 2 for any smoothing, and z log(Z)^2 with Z = 2."""
    loss, gradient = ref.smoothed_loss(np.zeros((2, 2)), np.array([1, -100]), label_smoothing=0.2, z_loss=0.5)
    np.testing.assert_allclose(loss, math.log(2) + 0.5 * math.log(2) ** 2, **CLOSE)
    slope = 0.5 * math.log(2)
    np.testing.assert_allclose(gradient, [[0.5 - 0.1 + slope, 0.5 - 0.9 + slope], [0, 0]], **CLOSE)


@pytest.mark.parametrize(("label_smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.1, 1e-2)])
def test_loss_and_gradient_agree_with_torch(label_smoothing, z_loss):
    logits, labels = draw(6, 7).requires_grad_(), torch.tensor([3, -100, 0, 6, -100, 2])
    loss = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    loss = loss + z_loss * logits.logsumexp(-1)[labels != -100].square().mean()
    loss.backward()
    value, gradient = ref.smoothed_loss(logits.detach().numpy(), labels.numpy(), label_smoothing, z_loss)
    np.testing.assert_allclose(value, loss.item(), **CLOSE)
    np.testing.assert_allclose(gradient, logits.grad, **CLOSE)


def test_loss_of_no_target_is_zero():
    loss, gradient = ref.smoothed_loss(np.ones((2, 3)), np.array([-100, -100]), 0.1, 0.1)
    assert loss == 0
    assert not gradient.any()


# ---- search ---------------------------------------------------------------------------------------------------------------
def test_length_penalties_by_hand():
    assert ref.power_penalty(4, 0.5) == 2
    assert ref.gnmt_penalty(1, 0.6) == 1
    np.testing.assert_allclose(ref.gnmt_penalty(19, 0.5), 2.0, **CLOSE)


def test_brute_force_search_over_constant_probabilities():
    """Next tokens have 1/2 (the end), 1/4, 1/8, 1/8 everywhere: the best output is the end alone, of probability 1/2."""

    def halving(prefix: tuple[int, ...]) -> np.ndarray:
        return np.log([0.5, 0.25, 0.125, 0.125])

    outputs = ref.brute_force_search(halving, eos=0)
    assert len(outputs) == 1 + 3 + 9 + 27 * 4
    np.testing.assert_allclose(sum(math.exp(score) for score, _ in outputs), 1.0, **CLOSE)
    assert outputs[0][1] == (0,)
    np.testing.assert_allclose([score for score, _ in outputs[:2]], np.log([1 / 2, 1 / 8]), **CLOSE)
    # Divided by the squared length, the longest outputs win, and of those the likeliest: 1/4 x 1/4 x 1/4 x 1/2.
    longest = ref.brute_force_search(halving, eos=0, penalty=lambda length: ref.power_penalty(length, 2.0))
    assert longest[0][1] == (1, 1, 1, 0)
    np.testing.assert_allclose(longest[0][0], -7 * math.log(2) / 16, **CLOSE)

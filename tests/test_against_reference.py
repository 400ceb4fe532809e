"""The modules agree with the NumPy reference of `reference.py` in float64, gradients of the loss included.

`test_reference.py` shows that the reference itself is right.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from float64 import agree, draw, shake, to_numpy
from transduct import loss as loss_module
from transduct.attention import AttentionContext, MultiHeadAttention
from transduct.blocks import DecoderLayer, EncoderLayer
from transduct.configuration import TransductConfig
from transduct.layers import FeedForward, RMSNorm, make_norm
from transduct.masks import TokenLayout, causal_mask, positions_from_mask
from transduct.positions import (
    AlibiBias,
    LearnedPositions,
    RelativePositionBias,
    RotaryPositions,
    SinusoidalPositions,
    alibi_slopes,
    rotate,
)
from transduct.stacks import Decoder, Encoder

WIDTH, HEADS, HEAD_WIDTH = 12, 4, 6
IMPLEMENTATIONS = ["eager", "sdpa"]


# ---- masks ----------------------------------------------------------------------------------------------------------------
def test_causal_mask():
    assert causal_mask(torch.arange(5), 5)[0, 0].tolist() == ref.causal_mask(5).tolist()
    assert causal_mask(torch.arange(3, 5), 5)[0, 0].tolist() == ref.causal_mask(5)[3:].tolist()  # after 3 cached tokens


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_count_real_tokens(side):
    mask = ref.padding_mask([4, 2], 4, side)
    positions = positions_from_mask(torch.tensor(mask)).numpy()
    assert [row[real].tolist() for row, real in zip(positions, mask, strict=True)] == [[0, 1, 2, 3], [0, 1]]


# ---- positions ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoids_also_beyond_the_first_table(layout):
    """The module keeps float32 values."""
    positions = [0, 1, 7, 8, 40]
    table = SinusoidalPositions(8, WIDTH, layout).double()
    agree(table(torch.tensor([positions]), length=41)[0], ref.sinusoids(positions, WIDTH, layout), atol=1e-6)
    agree(table(torch.tensor([positions]), length=41)[0], ref.sinusoids(positions, WIDTH, layout), atol=1e-6)


def test_learned_positions_start_at_the_offset():
    table = shake(LearnedPositions(6, WIDTH, offset=2))
    agree(table(torch.tensor([[0, 3]]), length=4)[0], to_numpy(table)["weight"][[2, 5]])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (6, 40), (4, 17), (64, 500)])
def test_relative_buckets(bidirectional, buckets, max_distance):
    distances = range(-600, 601)
    ours = RelativePositionBias._relative_position_bucket(torch.tensor(distances), bidirectional, buckets, max_distance)
    assert ours.tolist() == [ref.relative_bucket(distance, bidirectional, buckets, max_distance) for distance in distances]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias(bidirectional):
    bias = shake(RelativePositionBias(8, 20, HEADS, bidirectional))
    queries, keys = [3, 9, 60], [0, 3, 4, 30]
    ours = bias(torch.tensor([queries]), torch.tensor([keys]), torch.float64)
    agree(ours[0], ref.relative_bias(to_numpy(bias)["table.weight"], queries, keys, bidirectional, 20))


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 20])
def test_alibi(heads):
    assert alibi_slopes(heads) == ref.alibi_slopes(heads)
    queries, keys = [3, 9], [0, 3, 4, 30]
    ours = AlibiBias(heads)(torch.tensor([queries]), torch.tensor([keys]), torch.float64)
    agree(ours[0], ref.alibi_bias(heads, queries, keys))


def test_rotation():
    positions, x = [0, 1, 2, 300], draw(2, HEADS, 4, HEAD_WIDTH)
    rotary = RotaryPositions(HEAD_WIDTH, 500.0)(torch.tensor([positions]), torch.float64)
    agree(rotate(x, rotary), ref.rotate(x.numpy(), positions, 500.0))


# ---- norms and feed-forward -----------------------------------------------------------------------------------------------
def test_norms():
    x = draw(2, 3, WIDTH) * 10
    for bias in (True, False):
        norm = shake(make_norm("layernorm", WIDTH, 1e-3, bias))
        weights = to_numpy(norm)
        assert ("bias" in weights) == bias
        agree(norm(x), ref.layer_norm(x.numpy(), weights["weight"], weights.get("bias"), 1e-3))
    norm = shake(make_norm("rmsnorm", WIDTH, 1e-3, True))
    assert isinstance(norm, RMSNorm)
    agree(norm(x), ref.rms_norm(x.numpy(), to_numpy(norm)["weight"], 1e-3))


@pytest.mark.parametrize("activation", list(ref.ACTIVATIONS))
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_feed_forward(activation, gated, bias):
    feed_forward, x = shake(FeedForward(WIDTH, 20, activation, gated, bias, dropout=0.5)), draw(2, 3, WIDTH)
    agree(feed_forward(x), ref.feed_forward(x.numpy(), to_numpy(feed_forward), activation))


# ---- attention ------------------------------------------------------------------------------------------------------------
def make_attention(key_value_heads: int = HEADS, scale: float = HEAD_WIDTH**-0.5, biases: str = "all") -> MultiHeadAttention:
    return shake(MultiHeadAttention(WIDTH, HEADS, key_value_heads, (HEAD_WIDTH, HEAD_WIDTH), scale, biases, dropout=0.5))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("key_value_heads", [4, 2, 1])
@pytest.mark.parametrize("biases", ["all", "no_key", "none"])
def test_causal_self_attention(implementation, key_value_heads, biases):
    attention, x = make_attention(key_value_heads, biases=biases), draw(2, 5, WIDTH)
    ours = attention(x, AttentionContext(is_causal=True, implementation=implementation))
    reference = ref.multi_head_attention(
        x.numpy(), x.numpy(), to_numpy(attention), HEADS, key_value_heads, mask=ref.causal_mask(5)
    )
    agree(ours, reference[0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scale", [1.0, HEAD_WIDTH**-0.5])
def test_masked_and_biased_self_attention(implementation, scale):
    """A bias with -inf where the mask forbids; the second row is padded on the left, so its first queries see nothing."""
    attention, x, bias = make_attention(scale=scale), draw(2, 5, WIDTH), draw(HEADS, 5, 5)
    mask = ref.padding_mask([5, 3], 5, "left")[:, None] & ref.causal_mask(5)  # (B, T, S)
    additive = torch.where(torch.tensor(mask)[:, None], bias, -math.inf)
    ours = attention(x, AttentionContext(mask=additive, implementation=implementation))
    reference = ref.multi_head_attention(
        x.numpy(), x.numpy(), to_numpy(attention), HEADS, mask=mask, bias=bias.numpy(), scale=scale
    )
    agree(ours, reference[0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rotary_self_attention(implementation):
    attention, x = make_attention(key_value_heads=2), draw(2, 5, WIDTH)
    rotary = RotaryPositions(HEAD_WIDTH, 10000.0)(torch.arange(5)[None], torch.float64)
    ours = attention(x, AttentionContext(rotary=rotary, implementation=implementation))
    agree(ours, ref.multi_head_attention(x.numpy(), x.numpy(), to_numpy(attention), HEADS, 2, rotary=10000.0)[0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("key_value_heads", [4, 2])
def test_cross_attention_of_beams_that_share_their_source(implementation, beams, key_value_heads):
    """The reference repeats the source for each beam. The second source is padded, the third is nothing but padding."""
    attention, x, memory = make_attention(key_value_heads), draw(3 * beams, 4, WIDTH), draw(3, 5, WIDTH)
    mask = ref.padding_mask([5, 2, 0], 5)
    context = AttentionContext(mask=torch.tensor(mask)[:, None, None], implementation=implementation)
    repeated, repeated_mask = memory.numpy().repeat(beams, axis=0), mask.repeat(beams, axis=0)[:, None]
    weights = to_numpy(attention)
    reference = ref.multi_head_attention(x.numpy(), repeated, weights, HEADS, key_value_heads, mask=repeated_mask)
    agree(attention(x, context, memory=memory), reference[0])


def test_attention_weights():
    attention, x, memory = make_attention(), draw(4, 3, WIDTH), draw(2, 5, WIDTH)
    context = AttentionContext(mask=torch.tensor(ref.padding_mask([5, 2], 5))[:, None, None], weights=[])
    attention(x, context, memory=memory)
    mask = ref.padding_mask([5, 5, 2, 2], 5)[:, None]
    reference = ref.multi_head_attention(x.numpy(), memory.numpy().repeat(2, axis=0), to_numpy(attention), HEADS, mask=mask)
    agree(context.weights[0], reference[1])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_attention_over_packed_tokens(implementation):
    """Queries and keys that come without their padding, as (tokens, D), of rows padded on different sides."""
    attention, x, memory = make_attention(), draw(2, 4, WIDTH), draw(2, 5, WIDTH)
    real, real_memory = ref.padding_mask([4, 2], 4, "left"), ref.padding_mask([3, 5], 5)
    layout, memory_layout = TokenLayout(torch.tensor(real)), TokenLayout(torch.tensor(real_memory))
    weights = to_numpy(attention)

    context = AttentionContext(torch.tensor(real)[:, None, None], query_layout=layout, implementation=implementation)
    reference = ref.multi_head_attention(x.numpy(), x.numpy(), weights, HEADS, mask=real[:, None])[0]
    agree(attention(layout.pack(x), context), reference[real])

    mask = torch.tensor(real_memory)[:, None, None]
    context = AttentionContext(mask, query_layout=layout, key_layout=memory_layout, implementation=implementation)
    reference = ref.multi_head_attention(x.numpy(), memory.numpy(), weights, HEADS, mask=real_memory[:, None])[0]
    agree(attention(layout.pack(x), context, memory=memory_layout.pack(memory)), reference[real])


# ---- layers ---------------------------------------------------------------------------------------------------------------
KINDS = {
    "vaswani": (dict(num_heads=HEADS), ref.LayerKind(HEADS)),
    "t5": (
        dict(
            norm="rmsnorm", norm_position="pre", norm_eps=1e-6, num_heads=HEADS, attention_scale="none", attention_bias=False,
            activation="gelu_new", gated_ffn=True, ffn_bias=False, positions="relative_bias", relative_buckets=8,
            relative_max_distance=20, relative_bias_per_layer=True,
        ),
        ref.LayerKind(HEADS, norm="rmsnorm", norm_position="pre", eps=1e-6, activation="gelu_new", scale=1.0),
    ),
    "bart": (dict(activation="gelu", num_heads=HEADS), ref.LayerKind(HEADS, activation="gelu")),
    "llama-like": (
        dict(norm_position="pre", positions="rotary", num_heads=HEADS, num_key_value_heads=2, activation="silu", norm_bias=False),
        ref.LayerKind(HEADS, 2, norm_position="pre", activation="silu", rotary=10000.0),
    ),
}  # fmt: skip
"""Our fields and the reference's words for the same layer; T5 with a bias table in each layer, as in UMT5."""


def make_config(fields: dict) -> TransductConfig:
    return TransductConfig(vocab_size=20, d_model=WIDTH, d_kv=HEAD_WIDTH, d_ff=20, **fields)


def make_context(config: TransductConfig, mask: np.ndarray, implementation: str) -> AttentionContext:
    positions = torch.arange(mask.shape[-1])[None]
    rotary = RotaryPositions(HEAD_WIDTH, config.rotary_base)(positions, torch.float64) if config.positions == "rotary" else None
    four = torch.tensor(mask)[:, None]  # (B, T, S) -> (B, 1, T, S)
    return AttentionContext(four, rotary=rotary, positions=(positions, positions), implementation=implementation)


def reference_bias(layer: nn.Module, length: int, bidirectional: bool) -> np.ndarray | None:
    """The layer's own relative bias, where it has a table."""
    table = to_numpy(layer).get("position_bias.table.weight")
    return None if table is None else ref.relative_bias(table, range(length), range(length), bidirectional, 20)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", list(KINDS))
def test_encoder_layer(name, implementation):
    fields, kind = KINDS[name]
    config = make_config(fields)
    layer, x = shake(EncoderLayer(config)), draw(2, 5, WIDTH)
    mask = ref.padding_mask([5, 3], 5)[:, None].repeat(5, axis=1)  # (B, S, S)
    ours = layer(x, make_context(config, mask, implementation))
    agree(ours, ref.encoder_layer(x.numpy(), to_numpy(layer), kind, mask, reference_bias(layer, 5, bidirectional=True)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", list(KINDS))
def test_decoder_layer(name, implementation):
    """Two beams a source; the reference repeats the source for each."""
    fields, kind = KINDS[name]
    config = make_config(fields)
    layer = shake(DecoderLayer(config, index=0, cross_attention=True))
    target, memory = draw(4, 5, WIDTH), draw(2, 7, WIDTH)
    mask, memory_mask = ref.causal_mask(5)[None].repeat(4, axis=0), ref.padding_mask([7, 4], 7)
    cross = AttentionContext(torch.tensor(memory_mask)[:, None, None], implementation=implementation)
    ours = layer(target, memory, make_context(config, mask, implementation), cross)
    repeated, cross_mask = memory.numpy().repeat(2, axis=0), memory_mask.repeat(2, axis=0)[:, None]
    bias = reference_bias(layer, 5, bidirectional=False)
    agree(ours, ref.decoder_layer(target.numpy(), repeated, to_numpy(layer), kind, mask, cross_mask, bias))


# ---- stacks ---------------------------------------------------------------------------------------------------------------
STACKS = {
    "sinusoidal": ({}, ref.StackKind(ref.LayerKind(HEADS), "sinusoidal", embed_scale=WIDTH**0.5)),
    "learned": (
        dict(positions="learned", position_offset=2, max_positions=8, embedding_norm=True, scale_embeddings=False),
        ref.StackKind(ref.LayerKind(HEADS), "learned", offset=2),
    ),
    "relative_bias": (
        dict(
            positions="relative_bias", relative_buckets=8, relative_max_distance=20, norm="rmsnorm", norm_position="pre",
            norm_eps=1e-6, attention_scale="none", scale_embeddings=False,
        ),
        ref.StackKind(
            ref.LayerKind(HEADS, norm="rmsnorm", norm_position="pre", eps=1e-6, scale=1.0), "relative_bias", max_distance=20
        ),
    ),
    "rotary": (
        dict(positions="rotary", norm_position="pre", scale_embeddings=False, num_key_value_heads=2),
        ref.StackKind(ref.LayerKind(HEADS, 2, norm_position="pre", rotary=10000.0), "rotary"),
    ),
    "alibi": (dict(positions="alibi", scale_embeddings=False), ref.StackKind(ref.LayerKind(HEADS), "alibi")),
    "none": (dict(positions="none", scale_embeddings=False), ref.StackKind(ref.LayerKind(HEADS), "none")),
}  # fmt: skip
TOLERANCES = {"sinusoidal": dict(rtol=1e-6, atol=1e-6)}  # of float32 tables; all else agrees to ten digits
SOURCES, TARGETS = [[5, 6, 7, 8, 9], [3, 4], [2]], [[2, 3, 4], [5, 6, 7, 8], [9, 2]]


def pad(rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (B, T) and their mask; padding holds a token that would show if it were seen."""
    longest = max(map(len, rows))
    mask = torch.tensor(ref.padding_mask([len(row) for row in rows], longest, side))
    ids = torch.full(mask.shape, 11)
    ids[mask] = torch.tensor([token for row in rows for token in row])
    return ids, mask


def make_stacks(scheme: str, implementation: str) -> tuple[nn.Module, nn.Module, ref.StackKind]:
    fields, kind = STACKS[scheme]
    config = make_config(dict(num_heads=HEADS, encoder_layers=2, decoder_layers=2, **fields))
    config._attn_implementation = implementation
    return shake(Encoder(config)), shake(Decoder(config)), kind


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("scheme", list(STACKS))
def test_encoder_of_a_padded_batch(scheme, side, implementation):
    """The reference encodes each source alone."""
    encoder, _, kind = make_stacks(scheme, implementation)
    ids, mask = pad(SOURCES, side)
    states = encoder(ids, mask).last_hidden_state
    for n, source in enumerate(SOURCES):
        agree(states[n, mask[n]], ref.encoder(source, to_numpy(encoder), kind, layers=2)[0], **TOLERANCES.get(scheme, {}))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("scheme", list(STACKS))
def test_decoder_of_a_padded_batch(scheme, side, implementation):
    """The reference decodes each target alone over its own source."""
    _, decoder, kind = make_stacks(scheme, implementation)
    (ids, mask), (_, source_mask) = pad(TARGETS, side), pad(SOURCES, side)
    memory = draw(3, 5, WIDTH)
    states = decoder(ids, mask, memory, source_mask).last_hidden_state
    for n, target in enumerate(TARGETS):
        alone = memory[n, source_mask[n]][None].numpy()
        agree(states[n, mask[n]], ref.decoder(target, alone, to_numpy(decoder), kind, layers=2)[0], **TOLERANCES.get(scheme, {}))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scheme", list(STACKS))
def test_decoder_with_a_cache(scheme, implementation):
    """Two beams a source: three tokens at once, then one by one; the reference decodes each beam whole."""
    _, decoder, kind = make_stacks(scheme, implementation)
    beams = torch.randint(2, 11, (4, 6))
    memory, source_mask = draw(2, 5, WIDTH), torch.tensor(ref.padding_mask([5, 3], 5, "left"))
    output = decoder(beams[:, :3], None, memory, source_mask, use_cache=True)
    states = [output.last_hidden_state]
    for step in range(3, 6):
        output = decoder(beams[:, step : step + 1], None, memory, source_mask, cache=output.cache)
        states.append(output.last_hidden_state)
    together = torch.cat(states, dim=1)
    for n, beam in enumerate(beams.tolist()):
        alone = memory[n // 2, source_mask[n // 2]][None].numpy()
        agree(together[n], ref.decoder(beam, alone, to_numpy(decoder), kind, layers=2)[0], **TOLERANCES.get(scheme, {}))


# ---- loss -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk_tokens", [3, 256])
@pytest.mark.parametrize(("label_smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.01), (0.1, 0.01)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_items", [None, 17])
def test_loss_and_its_gradients(monkeypatch, chunk_tokens, label_smoothing, z_loss, with_bias, num_items):
    monkeypatch.setattr(loss_module, "CHUNK_TOKENS", chunk_tokens)
    hidden, weight = draw(2, 5, WIDTH).requires_grad_(), draw(7, WIDTH).requires_grad_()
    bias = draw(7).requires_grad_() if with_bias else None
    labels = torch.tensor([[3, -100, 0, 6, 2], [5, 5, -100, -100, 1]])
    ours = loss_module.cross_entropy(hidden, weight, labels, bias, label_smoothing, z_loss, num_items)
    (3 * ours).backward()

    rows = hidden.detach().flatten(0, 1).numpy()
    logits = rows @ weight.detach().numpy().T + (0 if bias is None else bias.detach().numpy())
    loss, gradient = ref.smoothed_loss(logits, labels.flatten().numpy(), label_smoothing, z_loss, num_items)
    agree(ours, np.array(loss))
    agree(hidden.grad.flatten(0, 1), 3 * gradient @ weight.detach().numpy())
    agree(weight.grad, 3 * gradient.T @ rows)
    if bias is not None:
        agree(bias.grad, 3 * gradient.sum(0))


def test_loss_without_targets_is_zero_with_a_zero_gradient():
    hidden, weight = draw(1, 2, WIDTH).requires_grad_(), draw(7, WIDTH).requires_grad_()
    ours = loss_module.cross_entropy(hidden, weight, torch.full((1, 2), -100), label_smoothing=0.1, z_loss=0.1)
    ours.backward()
    assert ours.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()

"""Attention by its parts, and values of their own width (Table 3 B) from the projections to beam search.

`test_against_reference.py` compares the module with NumPy where keys and values are equally wide.
"""

import math

import pytest
import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import reference as ref
from configs import build, difference, pad_rows, tiny, words
from float64 import agree, draw, shake, to_numpy
from transduct import TransductCache, TransductForCausalLM, TransductForConditionalGeneration
from transduct.attention import AttentionContext, MultiHeadAttention, eager_attention, split_heads
from transduct.masks import TokenLayout, causal_mask
from transduct.positions import RotaryPositions

WIDTH, HEADS, KEY_WIDTH, VALUE_WIDTH = 12, 4, 6, 10
both_implementations = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def make_attention(groups: int = HEADS, biases: str = "all", dropout: float = 0.5, widths=(KEY_WIDTH, VALUE_WIDTH)):
    return shake(MultiHeadAttention(WIDTH, HEADS, groups, widths, widths[0] ** -0.5, biases, dropout))


# ---- eager_attention ------------------------------------------------------------------------------------------------------
def heads(dtype=torch.float64, groups: int = HEADS):
    """Queries (2, H, 3, K), keys (2, G, 5, K) and values (2, G, 5, V)."""
    shapes = (2, HEADS, 3, KEY_WIDTH), (2, groups, 5, KEY_WIDTH), (2, groups, 5, VALUE_WIDTH)
    return tuple(draw(*shape).to(dtype) for shape in shapes)


def test_weights_are_a_distribution_and_mix_the_values():
    query, key, value = heads()
    output, weights = eager_attention(nn.Identity(), query, key, value, None, 0.3)
    assert weights.shape == (2, HEADS, 3, 5)
    assert output.shape == (2, 3, HEADS, VALUE_WIDTH)
    assert torch.allclose(weights, (torch.einsum("bhtk,bhsk->bhts", query, key) * 0.3).softmax(-1))
    assert torch.allclose(output, torch.einsum("bhts,bhsv->bthv", weights, value))


def test_a_boolean_mask_is_an_additive_one_of_minus_infinity():
    query, key, value = heads()
    mask = torch.rand(2, 1, 3, 5) > 0.4
    boolean = eager_attention(nn.Identity(), query, key, value, mask, 0.3)
    additive = eager_attention(nn.Identity(), query, key, value, torch.zeros(2, 1, 3, 5).masked_fill(~mask, -math.inf), 0.3)
    for one, other in zip(boolean, additive, strict=True):
        assert torch.equal(one, other)
    assert (boolean[1] > 0).equal(mask.expand(2, HEADS, 3, 5))


def test_causality_holds_only_without_a_mask():
    """The mask that a caller builds contains causality already."""
    query, key, value = heads()
    causal = eager_attention(nn.Identity(), query, key[:, :, :3], value[:, :, :3], None, 0.3, is_causal=True)[1]
    assert (causal > 0).equal(torch.ones(3, 3).tril().bool().expand(2, HEADS, 3, 3))
    seen = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    given = eager_attention(nn.Identity(), query, key[:, :, :3], value[:, :, :3], seen, 0.3, is_causal=True)[1]
    assert (given > 0).all()


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients():
    query, key, value = (states.requires_grad_() for states in heads())
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[1, :, 2] = False
    output, weights = eager_attention(nn.Identity(), query, key, value, mask, 0.3)
    assert (output[1, 2] == 0).all()
    assert (weights[1, :, 2] == 0).all()
    output.square().sum().backward()
    assert all(states.grad.isfinite().all() for states in (query, key, value))
    assert (query.grad[1, :, 2] == 0).all()
    assert (query.grad[0] != 0).all()


def test_the_softmax_of_half_precision_runs_in_float32():
    query, key, value = heads(torch.bfloat16)
    output, weights = eager_attention(nn.Identity(), query, key, value, None, 0.3)
    assert (output.dtype, weights.dtype) == (torch.bfloat16, torch.bfloat16)
    scores = query @ key.transpose(2, 3) * 0.3
    assert torch.equal(weights, scores.float().softmax(-1).bfloat16())


@pytest.mark.parametrize("training", [True, False])
def test_dropout_falls_on_the_weights_that_mix_and_not_on_those_returned(training):
    query, key, _ = heads()
    value = torch.eye(5, dtype=torch.float64).expand(2, HEADS, 5, 5)  # the output shows the weights that were used
    output, weights = eager_attention(nn.Identity().train(training), query, key, value, None, 0.3, dropout=0.5)
    used, kept = output.transpose(1, 2), output.transpose(1, 2) != 0
    assert torch.allclose(weights.sum(-1), torch.ones((), dtype=torch.float64))
    assert torch.allclose(used, weights * kept * (2 if training else 1))
    assert kept.all() != training


def test_grouped_heads_are_repeated_ones():
    query, key, value = heads(groups=2)
    grouped = eager_attention(nn.Identity(), query, key, value, None, 0.3)
    repeated = eager_attention(nn.Identity(), query, *(states[:, [0, 0, 1, 1]] for states in (key, value)), None, 0.3)
    for one, other in zip(grouped, repeated, strict=True):
        assert torch.equal(one, other)


# ---- AttentionContext and split_heads -------------------------------------------------------------------------------------
def test_a_context_moves_with_all_that_it_holds():
    real = torch.tensor([[True, False], [True, True]])
    layout = TokenLayout(real)
    context = AttentionContext(
        mask=real[:, None, None],
        positions=(draw(1, 2), draw(1, 2)),
        rotary=(draw(1, 2), draw(1, 2)),
        query_layout=layout,
        weights=[],
    )
    assert context.to(torch.device("meta")) is context
    moved = (context.mask, *context.positions, *context.rotary, context.query_layout.index)
    assert [tensor.device.type for tensor in moved] == ["meta"] * 6
    assert AttentionContext().to(torch.device("meta")) == AttentionContext()


def test_heads_are_neighbouring_features_and_padding_comes_back_as_zeros():
    states = draw(2, 3, 8)
    split = split_heads(states, 4, None)
    assert split.shape == (2, 3, 4, 2)
    assert torch.equal(split[:, :, 1], states[..., 2:4])
    real = torch.tensor([[True, True, False], [False, True, True]])
    layout = TokenLayout(real)
    padded = split_heads(layout.pack(states), 4, layout)
    assert torch.equal(padded, split * real[:, :, None, None])


# ---- MultiHeadAttention ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("biases", ["all", "no_key", "none"])
def test_projections_have_their_widths_and_biases(biases):
    shapes = {name: tuple(weight.shape) for name, weight in make_attention(groups=2, biases=biases).named_parameters()}
    expected = {"q_proj": (24, 12), "k_proj": (12, 12), "v_proj": (20, 12), "o_proj": (12, 40)}
    biased = {"all": "qkvo", "no_key": "qvo", "none": ""}[biases]
    assert shapes == {f"{name}.weight": shape for name, shape in expected.items()} | {
        f"{letter}_proj.bias": expected[f"{letter}_proj"][:1] for letter in biased
    }


@both_implementations
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("widths", [(6, 10), (10, 6)], ids=str)
def test_self_attention_with_values_of_their_own_width(implementation, groups, widths):
    attention, x = make_attention(groups, widths=widths), draw(2, 5, WIDTH)
    rotary = RotaryPositions(widths[0], 100.0)(torch.arange(5)[None], torch.float64)
    ours = attention(x, AttentionContext(is_causal=True, rotary=rotary, implementation=implementation))
    weights, mask = to_numpy(attention), ref.causal_mask(5)
    agree(ours, ref.multi_head_attention(x.numpy(), x.numpy(), weights, HEADS, groups, mask=mask, rotary=100.0)[0])


@both_implementations
def test_cross_attention_with_values_of_their_own_width(implementation):
    """Two beams a source, keys and queries without their padding."""
    attention, x, memory = make_attention(groups=2), draw(4, 3, WIDTH), draw(2, 5, WIDTH)
    real = ref.padding_mask([5, 2], 5)
    layout = TokenLayout(torch.tensor(real))
    context = AttentionContext(torch.tensor(real)[:, None, None], key_layout=layout, implementation=implementation)
    repeated, mask = memory.numpy().repeat(2, axis=0), real.repeat(2, axis=0)[:, None]
    reference = ref.multi_head_attention(x.numpy(), repeated, to_numpy(attention), HEADS, 2, mask=mask)[0]
    agree(attention(x, context, memory=layout.pack(memory)), reference)


def test_a_registered_attention_function_is_called(monkeypatch):
    """With the module's scale and dropout; asking for weights needs the eager one, whatever is configured."""
    calls = []

    def mine(module, query, key, value, attention_mask, **options):
        calls.append((query.shape, key.shape, value.shape, attention_mask, options))
        return eager_attention(module, query, key, value, attention_mask, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "mine", mine)
    attention, x, mask = make_attention(groups=2), draw(2, 3, WIDTH), causal_mask(torch.arange(3), 3)
    output = attention(x, AttentionContext(mask, implementation="mine"))
    options = {"scaling": KEY_WIDTH**-0.5, "dropout": 0.0, "is_causal": False}
    assert calls == [((2, 4, 3, KEY_WIDTH), (2, 2, 3, KEY_WIDTH), (2, 2, 3, VALUE_WIDTH), mask, options)]
    attention.train()(x, AttentionContext(is_causal=True, implementation="mine"))
    assert calls[1][-1] == options | {"dropout": 0.5, "is_causal": True}
    collected = []
    again = attention.eval()(x, AttentionContext(mask, implementation="mine", weights=collected))
    assert (len(calls), len(collected)) == (2, 1)
    assert torch.equal(again, output)
    with pytest.raises(KeyError, match="nobody's"):
        attention(x, AttentionContext(implementation="nobody's"))


@pytest.mark.parametrize(
    "make_cache", [TransductCache, DynamicCache, lambda: EncoderDecoderCache(DynamicCache(), DynamicCache())]
)
def test_cached_self_attention_sees_what_came_before(make_cache):
    attention, x, cache = make_attention(groups=2), draw(2, 5, WIDTH), make_cache()
    whole = attention(x, AttentionContext(is_causal=True))
    with torch.no_grad():
        first = attention(x[:, :3], AttentionContext(is_causal=True), cache=cache, layer_index=0)
        rest = [attention(x[:, slot : slot + 1], AttentionContext(), cache=cache, layer_index=0) for slot in (3, 4)]
    assert torch.allclose(torch.cat([first, *rest], dim=1), whole, rtol=1e-12, atol=1e-12)
    own = getattr(cache, "self_attention_cache", cache).layers[0]
    assert (own.keys.shape, own.values.shape) == ((2, 2, 5, KEY_WIDTH), (2, 2, 5, VALUE_WIDTH))


@torch.no_grad()
def test_a_source_is_projected_once_for_each_layer():
    """Later steps read the cache, even where the memory that they are given has changed."""
    attention, x, memory, cache = make_attention(groups=2), draw(4, 1, WIDTH), draw(2, 5, WIDTH), TransductCache()
    want = attention(x, AttentionContext(), memory=memory)
    first = attention(x, AttentionContext(), memory=memory, cache=cache, layer_index=0)
    second = attention(x, AttentionContext(), memory=torch.zeros_like(memory), cache=cache, layer_index=0)
    assert torch.equal(first, want)
    assert torch.equal(second, want)
    other = attention(x, AttentionContext(), memory=-memory, cache=cache, layer_index=1)
    assert torch.equal(other, attention(x, AttentionContext(), memory=-memory))
    stored = cache.cross_attention_cache.layers[0]
    assert (stored.keys.shape, stored.values.shape) == ((2, 2, 5, KEY_WIDTH), (2, 2, 5, VALUE_WIDTH))


# ---- the whole model with values of their own width -----------------------------------------------------------------------
FIELDS = {
    "wide": dict(d_kv=2, d_value=7),
    "narrow": dict(d_value=3),
    "grouped, other decoder": dict(num_key_value_heads=2, decoder_num_heads=6, d_kv=6, d_value=10, positions="rotary"),
    "relative bias": dict(d_kv=2, d_value=8, positions="relative_bias", attention_scale="none", attention_bias=False),
}
every_config = pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
SOURCE, MASK = pad_rows([words(1, length, seed=length)[0] for length in (6, 3)])
TARGET = words(2, 7, seed=1)


@every_config
def test_eager_and_sdpa_agree_in_logits_and_gradients(fields):
    results = []
    for implementation in ("eager", "sdpa"):
        model = build(TransductForConditionalGeneration, tiny(**fields), attention=implementation)
        output = model(SOURCE, MASK, labels=TARGET)
        output.loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        assert all(gradient.isfinite().all() for gradient in gradients.values())
        assert all(gradient.abs().max() > 0 for name, gradient in gradients.items() if name.endswith("_proj.weight"))
        results.append((output.logits, gradients))
    (eager, eager_gradients), (sdpa, sdpa_gradients) = results
    assert difference(sdpa, eager) < 1e-12
    assert eager_gradients.keys() == sdpa_gradients.keys()
    assert all(difference(sdpa_gradients[name], gradient) < 1e-10 for name, gradient in eager_gradients.items())


@every_config
@both_implementations
@torch.no_grad()
def test_cached_steps_equal_one_pass(fields, implementation):
    model = build(TransductForConditionalGeneration, tiny(**fields), attention=implementation)
    whole = model(SOURCE, MASK, decoder_input_ids=TARGET, use_cache=False).logits
    cache, steps = None, []
    for slot in range(TARGET.shape[1]):
        output = model(SOURCE, MASK, decoder_input_ids=TARGET[:, slot : slot + 1], cache=cache, use_cache=True)
        cache = output.cache
        steps.append(output.logits)
    assert difference(torch.cat(steps, dim=1), whole) < 1e-12


@every_config
@both_implementations
def test_every_cache_generates_the_same_beams(fields, implementation):
    model = build(TransductForConditionalGeneration, tiny(**fields), attention=implementation)
    search = dict(num_beams=4, num_return_sequences=3, max_new_tokens=6, return_dict_in_generate=True, output_scores=True)
    want = model.generate(SOURCE, attention_mask=MASK, use_cache=False, **search)
    assert all(len({tuple(row) for row in rows}) == 3 for rows in (want.sequences[:3].tolist(), want.sequences[3:].tolist()))
    for choice in ({}, {"cache_implementation": "dynamic"}, {"cache_implementation": "static"}):
        got = model.generate(SOURCE, attention_mask=MASK, **choice, **search)
        assert got.sequences.tolist() == want.sequences.tolist()
        assert difference(got.sequences_scores, want.sequences_scores) < 1e-12


def test_a_language_model_generates_with_a_static_cache():
    model = build(TransductForCausalLM, tiny(**FIELDS["grouped, other decoder"]))
    want = model.generate(TARGET, max_new_tokens=6, use_cache=False)
    for choice in ({}, {"cache_implementation": "static"}):
        assert model.generate(TARGET, max_new_tokens=6, **choice).tolist() == want.tolist()

"""Rule 3 of the design: cached decoding, in steps of any length, is one full pass; and what each cache stores."""

import copy

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from configs import MATRIX, PAIRWISE, SCHEMES, build, difference, name, pad_rows, tiny, words
from transduct import TransductCache, TransductForCausalLM, TransductForConditionalGeneration
from transduct.cache import PreallocatedLayer

every_config = pytest.mark.parametrize("choice", MATRIX, ids=name)
pairwise = pytest.mark.parametrize("choice", PAIRWISE, ids=name)
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)

EXACT = 1e-11
IDS, MASK = pad_rows([words(1, length, seed=length)[0] for length in (6, 3)])
TARGETS = words(2, 9, seed=1)
LEFT = torch.tensor([[1] * 9, [0, 0, 0] + [1] * 6])


def static_cache(config, length: int, source_length: int = IDS.shape[1]) -> EncoderDecoderCache:
    decoder = config.get_text_config(decoder=True)
    return EncoderDecoderCache(StaticCache(decoder, length), StaticCache(decoder, source_length))


CACHES = {
    "own": lambda config: None,
    "given": lambda config: TransductCache(),
    "dynamic": lambda config: EncoderDecoderCache(DynamicCache(), DynamicCache()),
    "dynamic_of_config": lambda config: EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
    "mixed": lambda config: TransductCache(DynamicCache()),
    "static": lambda config: static_cache(config, 9),
    "static_with_room": lambda config: static_cache(config, 14),
}
every_cache = pytest.mark.parametrize("kind", CACHES)


@torch.no_grad()
def encode(model, ids=IDS, mask=MASK):
    return model.get_encoder()(ids, mask)


@torch.no_grad()
def whole(model, targets, target_mask=None, ids=IDS, mask=MASK):
    return model(ids, mask, decoder_input_ids=targets, decoder_attention_mask=target_mask, use_cache=False).logits


@torch.no_grad()
def in_steps(model, targets, steps, target_mask=None, cache=None, ids=IDS, mask=MASK):
    """Logits of `targets` fed in pieces of the lengths `steps`, and the cache."""
    memory, pieces, start = encode(model, ids, mask), [], 0
    for step in steps:
        end = start + step
        output = model(
            attention_mask=mask, encoder_outputs=memory, decoder_input_ids=targets[:, start:end], cache=cache, use_cache=True,
            decoder_attention_mask=None if target_mask is None else target_mask[:, :end],
        )  # fmt: skip
        pieces.append(output.logits)
        cache, start = output.cache, end
    return torch.cat(pieces, dim=1), cache


# ---- steps equal one pass -----------------------------------------------------------------------------------------
@every_config
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_token_by_token(choice, attention):
    model = build(TransductForConditionalGeneration, tiny(**choice), attention=attention)
    got, cache = in_steps(model, TARGETS, [1] * 9)
    assert difference(got, whole(model, TARGETS)) < EXACT
    assert cache.get_seq_length() == 9


@pairwise
@every_cache
def test_pieces_of_several_tokens_in_every_cache(choice, kind):
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    cache = CACHES[kind](config)
    got, used = in_steps(model, TARGETS, [3, 1, 4, 1], cache=cache)
    assert difference(got, whole(model, TARGETS)) < EXACT
    assert cache is None or used is cache
    assert int(cache.get_seq_length() if cache is not None else 9) == 9  # what the caller gave is what was filled


@pairwise
@every_cache
def test_left_padded_prefixes_in_every_cache(choice, kind):
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    got, _ = in_steps(model, TARGETS, [4, 1, 2, 2], LEFT, CACHES[kind](config))
    want = whole(model, TARGETS, LEFT)
    assert difference(got[LEFT == 1], want[LEFT == 1]) < EXACT


@every_scheme
def test_right_padded_prefixes_continue(choice):
    """A shorter prefix padded on its right, then both go on: padding stays in the cache, hidden by the mask."""
    model = build(TransductForConditionalGeneration, tiny(**choice))
    mask = torch.tensor([[1] * 9, [1, 1, 0, 0] + [1] * 5])
    got, _ = in_steps(model, TARGETS, [4, 2, 3], mask)
    want = whole(model, TARGETS[1:, mask[1] == 1], ids=IDS[1:], mask=MASK[1:])
    if choice["positions"] in ("relative_bias", "alibi"):
        full = whole(model, TARGETS, mask)
        assert difference(got[mask == 1], full[mask == 1]) < EXACT
    else:
        assert difference(got[1:, mask[1] == 1], want) < EXACT


@every_scheme
def test_a_static_cache_serves_a_shorter_source(choice):
    """Its room for source tokens that never came is not attended to."""
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    for mask in (MASK, None):
        ids = IDS if mask is not None else words(2, 6, seed=8)
        got, _ = in_steps(model, TARGETS, [2, 7], cache=static_cache(config, 12, source_length=10), ids=ids, mask=mask)
        assert difference(got, whole(model, TARGETS, ids=ids, mask=mask)) < EXACT


@every_scheme
@every_cache
def test_positions_beyond_the_first_table(choice, kind):
    """`max_positions` is a limit for learned positions only."""
    if choice["positions"] == "learned":
        choice = choice | {"positions": "sinusoidal"}
    config = tiny(**choice, max_positions=4)
    model = build(TransductForConditionalGeneration, config)
    got, _ = in_steps(model, TARGETS, [3, 1, 4, 1], cache=CACHES[kind](config))
    roomy = build(TransductForConditionalGeneration, tiny(**choice, max_positions=40))
    assert difference(got, whole(roomy, TARGETS)) < EXACT


@every_scheme
@pytest.mark.parametrize("kind", ["own", "dynamic", "static"])
def test_explicit_positions_beside_a_cache(choice, kind):
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    positions = torch.tensor([[3, 4, 5, 9, 10, 11, 12, 20, 21]])
    with torch.no_grad():
        want = model(IDS, MASK, decoder_input_ids=TARGETS, decoder_position_ids=positions, use_cache=False).logits
        cache, pieces = CACHES[kind](config), []
        for start, end in ((0, 4), (4, 5), (5, 9)):
            output = model(
                IDS, MASK, decoder_input_ids=TARGETS[:, start:end], decoder_position_ids=positions[:, start:end], cache=cache
            )
            pieces.append(output.logits)
            cache = output.cache
    assert difference(torch.cat(pieces, dim=1), want) < EXACT


@every_scheme
def test_a_language_model_in_steps(choice):
    model = build(TransductForCausalLM, tiny(**choice))
    prefix = torch.tensor([[1, 1, 1], [0, 1, 1]])
    with torch.no_grad():
        for options in ({}, {"prefix_mask": prefix}, {"attention_mask": LEFT}):
            want = model(TARGETS, use_cache=False, **options).logits
            cache, pieces = None, []
            for start, end in ((0, 4), (4, 5), (5, 9)):
                if "attention_mask" in options:
                    options = {"attention_mask": LEFT[:, :end]}
                output = model(TARGETS[:, start:end], cache=cache, use_cache=True, **options)
                pieces.append(output.logits)
                cache = output.cache
            shown = LEFT == 1 if "attention_mask" in options else torch.ones_like(LEFT) == 1
            assert difference(torch.cat(pieces, dim=1)[shown], want[shown]) < EXACT


# ---- cropping, branching, beams -----------------------------------------------------------------------------------
@pairwise
@pytest.mark.parametrize("kind", ["own", "given", "dynamic", "mixed"])
def test_a_cropped_cache_goes_on_elsewhere(choice, kind):
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    _, cache = in_steps(model, TARGETS, [3, 4], cache=CACHES[kind](config))
    cache.crop(-3)
    assert cache.get_seq_length() == 4
    other = torch.cat([TARGETS[:, :4], words(2, 5, seed=7)], dim=1)
    with torch.no_grad():
        got = model(attention_mask=MASK, encoder_outputs=encode(model), decoder_input_ids=other[:, 4:], cache=cache).logits
    assert difference(got, whole(model, other)[:, 4:]) < EXACT


@every_scheme
@pytest.mark.parametrize("kind", ["own", "dynamic", "static_with_room"])
def test_a_copied_cache_leaves_the_original_alone(choice, kind):
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    _, cache = in_steps(model, TARGETS, [5], cache=CACHES[kind](config))
    branch = copy.deepcopy(cache)
    with torch.no_grad():
        model(attention_mask=MASK, encoder_outputs=encode(model), decoder_input_ids=words(2, 4, seed=7), cache=branch)
        got = model(attention_mask=MASK, encoder_outputs=encode(model), decoder_input_ids=TARGETS[:, 5:], cache=cache).logits
    assert difference(got, whole(model, TARGETS)[:, 5:]) < EXACT


@pairwise
@pytest.mark.parametrize("kind", ["own", "dynamic", "mixed", "static_with_room"])
def test_reordered_beams(choice, kind):
    """Three beams a source, moved within their source after each step, against one full pass of each beam's history."""
    config = tiny(**choice)
    model = build(TransductForConditionalGeneration, config)
    history, cache = words(6, 2, seed=3), CACHES[kind](config)
    generator = torch.Generator().manual_seed(1)
    memory = encode(model)
    with torch.no_grad():
        new = history
        for step in range(6):
            output = model(attention_mask=MASK, encoder_outputs=memory, decoder_input_ids=new, cache=cache, use_cache=True)
            cache = output.cache
            want = whole(model, history, ids=IDS.repeat_interleave(3, 0), mask=MASK.repeat_interleave(3, 0))
            assert difference(output.logits, want[:, -new.shape[1] :]) < EXACT
            moves = torch.randint(3, (6,), generator=generator) + torch.tensor([0, 0, 0, 3, 3, 3])
            if step == 2:
                moves = torch.arange(6)  # nobody moves
            cache = model._reorder_cache(cache, moves)
            new = words(6, 1, seed=20 + step)
            history = torch.cat([history[moves], new], dim=1)
    assert cache.cross_attention_cache.layers[0].keys.shape[0] == 2


def test_a_cache_may_be_used_for_the_next_batch_after_reset():
    model = build(TransductForConditionalGeneration, tiny())
    _, cache = in_steps(model, TARGETS, [9])
    cache.reset()
    assert cache.get_seq_length() == 0
    ids, targets = words(2, 4, seed=30), words(2, 5, seed=31)
    got, used = in_steps(model, targets, [2, 3], cache=cache, ids=ids, mask=None)
    assert used is cache
    assert difference(got, whole(model, targets, ids=ids, mask=None)) < EXACT


def test_gradients_flow_through_a_cache():
    """A second step's loss reaches weights through keys and values of the first; equal to one pass."""
    for kind in ("own", "dynamic"):
        model = build(TransductForConditionalGeneration, tiny())
        model(IDS, MASK, decoder_input_ids=TARGETS, use_cache=False).logits[:, 4:].square().sum().backward()
        want = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
        model.zero_grad()
        memory = model.get_encoder()(IDS, MASK)
        cache, total = CACHES[kind](model.config), 0.0
        for start, end in ((0, 4), (4, 5), (5, 9)):
            output = model(
                attention_mask=MASK, encoder_outputs=memory, decoder_input_ids=TARGETS[:, start:end], cache=cache, use_cache=True
            )
            cache = output.cache
            total = total + (output.logits.square().sum() if start else 0.0)
        total.backward()
        for key, parameter in model.named_parameters():
            assert difference(parameter.grad, want[key]) < 1e-10, key


# ---- what is stored -----------------------------------------------------------------------------------------------
def test_the_cross_attention_cache_holds_one_row_a_source():
    model = build(TransductForConditionalGeneration, tiny())
    output = model.generate(
        IDS, attention_mask=MASK, num_beams=5, num_return_sequences=5, max_new_tokens=6, return_dict_in_generate=True,
        output_hidden_states=True,
    )  # fmt: skip
    for own, cross in zip(output.cache.self_attention_cache.layers, output.cache.cross_attention_cache.layers, strict=True):
        assert own.keys.shape[0] == own.values.shape[0] == 10
        assert tuple(cross.keys.shape) == tuple(cross.values.shape) == (2, 4, 6, 4)
    assert {state.shape[0] for state in output.encoder_hidden_states} == {2}


def test_a_preallocated_layer_writes_in_place_and_doubles():
    layer, kept = PreallocatedLayer(), []
    with torch.no_grad():
        for step in range(150):
            kept.append(torch.randn(2, 3, 1, 4))
            keys, values = layer.update(kept[-1], 2 * kept[-1])
            if step == 0:
                first = keys.data_ptr()
            assert (keys.data_ptr() == first) == (step < layer.first_capacity)
            assert torch.equal(keys, torch.cat(kept, dim=2))
            assert torch.equal(values, 2 * torch.cat(kept, dim=2))
    assert layer.get_seq_length() == 150
    assert layer.get_mask_sizes(3) == (153, 0)


def test_only_rows_that_moved_are_written():
    layer = PreallocatedLayer()
    with torch.no_grad():
        states = torch.randn(4, 1, 2, 3)
        layer.update(states, -states)
        layer.move_rows(torch.tensor([0, 1]), torch.tensor([1, 0]))  # a swap reads the old rows
        assert torch.equal(layer.keys, states[[1, 0, 2, 3]])
        assert torch.equal(layer.values, -states[[1, 0, 2, 3]])
        layer.reorder_cache(torch.tensor([3, 3, 0, 1]))
        assert torch.equal(layer.keys, states[[1, 0, 2, 3]][[3, 3, 0, 1]])
        layer.batch_select_indices(torch.tensor([2, 0]))
        layer.batch_repeat_interleave(2)
        assert torch.equal(layer.keys, states[[1, 1, 3, 3]])
        with pytest.raises(ValueError, match="tokens_to_remove=1"):
            layer.crop(1)
        layer.crop(-5)
        assert layer.get_seq_length() == 0


def test_a_given_empty_cache_is_the_one_that_fills():
    own, cross = DynamicCache(), DynamicCache()
    cache = TransductCache(own, cross)
    assert cache.self_attention_cache is own
    assert cache.cross_attention_cache is cross


def test_a_loss_behind_tokens_in_a_cache_is_that_of_the_whole():
    model = build(TransductForConditionalGeneration, tiny()).train()
    labels = TARGETS.clone()
    labels[0, -2:] = -100
    whole = labels.clone()
    whole[:, :4] = -100
    wanted = model(IDS, MASK, decoder_input_ids=TARGETS, labels=whole).loss
    cache = model(IDS, MASK, decoder_input_ids=TARGETS[:, :4], use_cache=True).cache
    found = model(IDS, MASK, decoder_input_ids=TARGETS[:, 4:], labels=labels[:, 4:], cache=cache).loss
    torch.testing.assert_close(found, wanted, rtol=0, atol=EXACT)

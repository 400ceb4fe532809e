"""Rules 1, 2 and 4 of the design, for every architecture: no leak, padding changes nothing, rows are independent."""

import pytest
import torch

from configs import END, MATRIX, PAD, PAIRWISE, SCHEMES, START, build, difference, name, pad_rows, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductForMaskedLM

every_config = pytest.mark.parametrize("choice", MATRIX, ids=name)
pairwise = pytest.mark.parametrize("choice", PAIRWISE, ids=name)
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
both_implementations = pytest.mark.parametrize("attention", ["eager", "sdpa"])

EXACT = 1e-11
SOURCES = [words(1, length, seed=length)[0] for length in (7, 4, 1)]
TARGETS = [torch.cat([torch.tensor([START]), words(1, length, seed=50 + length)[0]]) for length in (2, 5, 0)]


def logits_of(model, ids, mask, targets, target_mask=None, **options):
    with torch.no_grad():
        return model(ids, mask, decoder_input_ids=targets, decoder_attention_mask=target_mask, **options).logits


def alone(model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Logits (T, V) of one pair without any padding or mask."""
    return logits_of(model, source[None], None, target[None])[0]


# ---- rule 1: no leak ----------------------------------------------------------------------------------------------
@every_config
@both_implementations
def test_a_target_token_moves_no_earlier_logit_and_no_other_row(choice, attention):
    model = build(TransductForConditionalGeneration, tiny(**choice), attention=attention)
    source, target = words(2, 5), words(2, 6, seed=1)
    before = logits_of(model, source, None, target)
    for place in (0, 3, 5):
        changed = target.clone()
        changed[0, place] = (changed[0, place] - 3 + 1) % 20 + 3
        after = logits_of(model, source, None, changed)
        assert torch.equal(after[0, :place], before[0, :place])
        assert torch.equal(after[1], before[1])
        assert (after[0, place:] - before[0, place:]).abs().max() > 1e-3


@every_config
def test_a_source_token_moves_its_own_row_only(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    ids, mask = pad_rows(SOURCES)
    target = words(3, 4, seed=1)
    before = logits_of(model, ids, mask, target)
    ids[1, 2] = (ids[1, 2] - 3 + 1) % 20 + 3
    after = logits_of(model, ids, mask, target)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert ((after[1] - before[1]).abs().amax(-1) > 1e-6).all()


@every_scheme
@both_implementations
def test_packed_segments_do_not_see_each_other(choice, attention):
    model = build(TransductForConditionalGeneration, tiny(**choice), attention=attention)
    source, target = words(1, 9), words(1, 8, seed=1)
    segments, target_segments = torch.tensor([[1] * 4 + [2] * 5]), torch.tensor([[1] * 3 + [2] * 5])
    packed = dict(segment_ids=segments, decoder_segment_ids=target_segments)
    before = logits_of(model, source, None, target, **packed)
    for tensor in (source, target):
        changed = tensor.clone()
        changed[0, -5:] = words(1, 5, seed=9)
        inputs = (changed, None, target) if tensor is source else (source, None, changed)
        after = logits_of(model, *inputs, **packed)
        assert torch.equal(after[0, :3], before[0, :3])
        assert (after[0, 3:] - before[0, 3:]).abs().max() > 1e-3


@every_scheme
def test_what_stands_in_the_padding_changes_nothing(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    for side in ("left", "right", "both"):
        (ids, mask), (targets, target_mask) = pad_rows(SOURCES, side), pad_rows(TARGETS, side)
        before = logits_of(model, ids, mask, targets, target_mask)
        ids, targets = ids.masked_fill(mask == 0, 17), targets.masked_fill(target_mask == 0, 19)
        after = logits_of(model, ids, mask, targets, target_mask)
        assert torch.equal(after[target_mask == 1], before[target_mask == 1])


# ---- rule 2: padding invariance -----------------------------------------------------------------------------------
@every_config
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_are_the_rows_alone(choice, side):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    (ids, mask), (targets, target_mask) = pad_rows(SOURCES, side), pad_rows(TARGETS, side)
    together = logits_of(model, ids, mask, targets, target_mask)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        assert difference(together[row, target_mask[row] == 1], alone(model, source, target)) < EXACT


@pairwise
@both_implementations
@pytest.mark.parametrize("sides", [("left", "right"), ("right", "left"), ("both", "both")], ids="-".join)
def test_padding_may_differ_between_the_sides(choice, attention, sides):
    model = build(TransductForConditionalGeneration, tiny(**choice), attention=attention)
    (ids, mask), (targets, target_mask) = pad_rows(SOURCES, sides[0], extra=3), pad_rows(TARGETS, sides[1], extra=3)
    together = logits_of(model, ids, mask, targets, target_mask)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        assert difference(together[row, target_mask[row] == 1], alone(model, source, target)) < EXACT


@every_scheme
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_a_missing_mask_is_inferred_from_the_padding(choice, side):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    ids, mask = pad_rows(SOURCES, side, extra=2)
    targets = words(3, 4, seed=1)
    assert torch.equal(logits_of(model, ids, None, targets), logits_of(model, ids, mask, targets))


@every_scheme
def test_a_padding_token_between_words_is_a_word(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    ids, mask = pad_rows([torch.tensor([5, PAD, 6]), torch.tensor([7])])
    targets = words(2, 4, seed=1)
    assert torch.equal(logits_of(model, ids, None, targets), logits_of(model, ids, mask, targets))


@pairwise
@pytest.mark.parametrize("kind", [torch.bool, torch.int32, torch.float32], ids=str)
def test_any_type_of_mask_of_zeros_and_ones(choice, kind):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    (ids, mask), (targets, target_mask) = pad_rows(SOURCES, "left"), pad_rows(TARGETS, "left")
    want = logits_of(model, ids, mask, targets, target_mask)
    assert torch.equal(logits_of(model, ids, mask.to(kind), targets, target_mask.to(kind)), want)


@every_scheme
@pytest.mark.parametrize("side", ["left", "right"])
def test_explicit_positions_are_the_counted_ones(choice, side):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    (ids, mask), (targets, target_mask) = pad_rows(SOURCES, side), pad_rows(TARGETS, side)
    want = logits_of(model, ids, mask, targets, target_mask)
    positions = {
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "decoder_position_ids": (target_mask.cumsum(1) - 1).clamp(min=0),
    }
    got = logits_of(model, ids, mask, targets, target_mask, **positions)
    assert difference(got[target_mask == 1], want[target_mask == 1]) < EXACT


@every_scheme
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("model_class", [TransductForMaskedLM, TransductForCausalLM])
def test_models_of_one_stack_ignore_padding(choice, side, model_class):
    model = build(model_class, tiny(**choice))
    ids, mask = pad_rows(SOURCES, side)
    with torch.no_grad():
        together = model(ids, mask).logits
        for row, source in enumerate(SOURCES):
            assert difference(together[row, mask[row] == 1], model(source[None]).logits[0]) < EXACT


@every_scheme
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prefix_language_model_ignores_padding(choice, side):
    model = build(TransductForCausalLM, tiny(**choice))
    rows, prefixes = [words(1, 6)[0], words(1, 4, seed=3)[0]], (3, 2)
    ids, mask = pad_rows(rows, side)
    first = mask.argmax(1)
    slots = torch.arange(ids.shape[1])
    prefix_mask = (slots >= first[:, None]) & (slots < (first + torch.tensor(prefixes))[:, None])
    with torch.no_grad():
        together = model(ids, mask, prefix_mask=prefix_mask).logits
        for row, (text, length) in enumerate(zip(rows, prefixes, strict=True)):
            own = model(text[None], prefix_mask=torch.arange(len(text))[None] < length).logits[0]
            assert difference(together[row, mask[row] == 1], own) < EXACT
            causal = model(text[None]).logits[0]
            assert (own[0] - causal[0]).abs().max() > 1e-3
            # a prefix mask that covers padding shows no padding
            all_seen = model(text[None], prefix_mask=torch.ones(1, len(text))).logits[0]
            covered = model(ids, mask, prefix_mask=torch.ones_like(ids)).logits[row, mask[row] == 1]
            assert difference(covered, all_seen) < EXACT


# ---- rule 4: row independence -------------------------------------------------------------------------------------
def nothing_more(rest: torch.Tensor) -> bool:
    """Greedy search fills finished rows with the padding token; transformers' beam search with the end token where that is 0."""
    return set(rest.tolist()) in (set(), {PAD}, {END})


@every_config
def test_a_batch_is_its_rows(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    source, target = words(4, 6), words(4, 5, seed=1)
    together = logits_of(model, source, None, target)
    for row in range(4):
        assert difference(together[row], alone(model, source[row], target[row])) < EXACT


@pairwise
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 4, "num_return_sequences": 2}], ids=["greedy", "beam"])
def test_generation_of_a_batch_is_that_of_its_rows(choice, side, options):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    ids, mask = pad_rows(SOURCES, side)
    options = dict(max_new_tokens=8, output_scores=True, return_dict_in_generate=True, **options)
    together = model.generate(ids, attention_mask=mask, **options)
    n = options.get("num_return_sequences", 1)
    lengths = set()
    for row, source in enumerate(SOURCES):
        own = model.generate(source[None], **options)
        for rank in range(n):
            batched, single = together.sequences[n * row + rank], own.sequences[rank]
            length = len(single)
            assert batched[:length].tolist() == single.tolist()
            assert nothing_more(batched[length:])
            lengths.add(length)
        if n > 1:
            assert difference(together.sequences_scores[n * row : n * (row + 1)], own.sequences_scores) < EXACT
    assert together.sequences.shape[1] == max(lengths)


def test_finished_rows_wait_without_changing():
    """Rows that end early, in batches with rows that do not, for several seeds: some rows do end early."""
    ended = 0
    for seed in range(6):
        model = build(TransductForConditionalGeneration, tiny(positions="sinusoidal"), seed=seed)
        ids, mask = pad_rows([words(1, length, seed=length + 10 * seed)[0] for length in (7, 4, 2, 6)])
        for options in ({}, {"num_beams": 3}, {"num_beams": 3, "early_stopping": True}, {"num_beams": 3, "length_penalty": -1.0}):
            together = model.generate(ids, attention_mask=mask, max_new_tokens=10, **options)
            for row in range(4):
                own = model.generate(ids[row : row + 1, mask[row] == 1], max_new_tokens=10, **options)[0]
                assert together[row, : len(own)].tolist() == own.tolist()
                assert nothing_more(together[row, len(own) :])
                ended += own[-1] == END and len(own) < together.shape[1]
    assert ended > 5

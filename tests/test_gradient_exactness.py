"""Rule 5 of the design: loss and gradient depend on the set of examples, not on accumulation, padding or packing (float64)."""

import pytest
import torch

from configs import PAIRWISE, SCHEMES, build, difference, name, pad_rows, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductForMaskedLM

pairwise = pytest.mark.parametrize("choice", PAIRWISE, ids=name)
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)

EXACT = 1e-9
LENGTHS = [(7, 5), (3, 2), (5, 6), (1, 1), (6, 3), (2, 7), (4, 4), (8, 1)]
PAIRS = [(words(1, s, seed=10 + s)[0], words(1, t, seed=100 * s + t)[0]) for s, t in LENGTHS]
TARGETS = sum(t for _, t in LENGTHS)
LOSS = dict(label_smoothing=0.1, z_loss=1e-2)


def batch(pairs, side: str = "right", extra: int = 0) -> dict[str, torch.Tensor]:
    ids, mask = pad_rows([source for source, _ in pairs], side, extra)
    labels, label_mask = pad_rows([target for _, target in pairs], "right", extra)
    return dict(input_ids=ids, attention_mask=mask, labels=labels.masked_fill(label_mask == 0, -100))


def packed(pairs, rows: int, free: int = 0) -> dict[str, torch.Tensor]:
    """The pairs shared out among rows, one after the other, segments numbered from 1."""
    sources, targets = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for index, (source, target) in enumerate(pairs):
        sources[index % rows].append(source)
        targets[index % rows].append(target)
    ids, _ = pad_rows([torch.cat(row) for row in sources], "right", free)
    numbers, _ = pad_rows(
        [torch.cat([torch.full_like(text, 1 + i) for i, text in enumerate(row)]) for row in sources], "right", free
    )
    labels, label_mask = pad_rows([torch.cat(row) for row in targets], "right", free)
    starts = [torch.cat([torch.cat([torch.tensor([2]), text[:-1]]) for text in row]) for row in targets]
    decoder_ids, _ = pad_rows(starts, "right", free)
    decoder_numbers, _ = pad_rows(
        [torch.cat([torch.full_like(text, 1 + i) for i, text in enumerate(row)]) for row in targets], "right", free
    )
    return dict(
        input_ids=ids, segment_ids=numbers, decoder_input_ids=decoder_ids, decoder_segment_ids=decoder_numbers,
        labels=labels.masked_fill(label_mask == 0, -100),
    )  # fmt: skip


def gradient(model, batches, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of the batches, and the whole gradient as one vector."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for one in batches:
        loss = model(**one, **options).loss
        loss.backward()
        total += loss.detach()
    return total, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def same(got, want) -> None:
    for one, other in zip(got, want, strict=True):
        assert ((one - other).norm() / other.norm()) < EXACT


def one_by_one(model):
    return gradient(model, [batch([pair]) for pair in PAIRS], num_items_in_batch=torch.tensor(TARGETS))


@pairwise
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_accumulation_and_padding(choice, training):
    model = build(TransductForConditionalGeneration, tiny(**choice, **LOSS)).train(training)
    want = one_by_one(model)
    same(gradient(model, [batch(PAIRS)]), want)
    for side in ("left", "right", "both"):
        same(gradient(model, [batch(PAIRS[:3], side, 4), batch(PAIRS[3:], side)], num_items_in_batch=TARGETS), want)


@pairwise
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("rows", [1, 3])
def test_packing(choice, attention, rows):
    model = build(TransductForConditionalGeneration, tiny(**choice, **LOSS), attention=attention).train()
    want = one_by_one(model)
    for free in (0, 3):
        same(gradient(model, [packed(PAIRS, rows, free)]), want)


@every_scheme
def test_packed_logits_are_those_of_separate_rows(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    with torch.no_grad():
        together = model(**packed(PAIRS[:4], 1)).logits[0]
        apart = [model(**batch([pair])).logits[0] for pair in PAIRS[:4]]
    assert difference(together, torch.cat(apart)) < 1e-11


def test_packed_rows_may_be_longer_than_learned_positions():
    """Positions restart in every segment, so only the longest segment has to fit."""
    model = build(TransductForConditionalGeneration, tiny(positions="learned", max_positions=8))
    roomy = build(TransductForConditionalGeneration, tiny(positions="learned", max_positions=8))
    inputs = packed(PAIRS, 1)
    assert inputs["input_ids"].shape[1] > 8
    with torch.no_grad():
        apart = [roomy(**batch([pair])).logits[0] for pair in PAIRS]
        assert difference(model(**inputs).logits[0], torch.cat(apart)) < 1e-11


@every_scheme
def test_returned_logits_change_no_gradient(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice, **LOSS)).train()
    want = gradient(model, [batch(PAIRS)], return_logits=False)
    same(gradient(model, [batch(PAIRS)], return_logits=True), want)
    assert model(**batch(PAIRS)).logits is None
    assert model(**batch(PAIRS), return_logits=True).logits.shape == (8, 7, 23)


@every_scheme
def test_rows_without_targets_add_nothing(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice, **LOSS)).train()
    want = gradient(model, [batch(PAIRS)])
    more = batch([*PAIRS, (words(1, 5, seed=77)[0], words(1, 4, seed=78)[0])])
    more["labels"][-1] = -100
    same(gradient(model, [more]), want)


@every_scheme
@pytest.mark.parametrize("count", [None, 0, torch.tensor(0), 12])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_batch_without_targets_has_a_zero_loss_and_a_zero_gradient(choice, count, training):
    for model_class in (TransductForConditionalGeneration, TransductForCausalLM, TransductForMaskedLM):
        model = build(model_class, tiny(**choice, **LOSS)).train(training)
        loss = model(input_ids=words(2, 5), labels=torch.full((2, 5), -100), num_items_in_batch=count).loss
        assert loss.item() == 0
        loss.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, key  # data-parallel training waits for every gradient
            assert (parameter.grad == 0).all(), key


@every_scheme
@pytest.mark.parametrize("model_class", [TransductForCausalLM, TransductForMaskedLM])
def test_models_of_one_stack(choice, model_class):
    model = build(model_class, tiny(**choice, **LOSS)).train()
    rows = [words(1, length, seed=length)[0] for length in (7, 3, 5, 2)]
    count = sum(len(row) - (model_class is TransductForCausalLM) for row in rows)
    alone = [dict(input_ids=row[None], labels=row[None]) for row in rows]
    want = gradient(model, alone, num_items_in_batch=count)
    for side in ("left", "right"):
        ids, mask = pad_rows(rows, side, 2)
        same(gradient(model, [dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))]), want)
    segments = torch.cat([torch.full_like(row, 1 + i) for i, row in enumerate(rows)])[None]
    whole = torch.cat(rows)[None]
    same(gradient(model, [dict(input_ids=whole, segment_ids=segments, labels=whole)]), want)


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])
@pytest.mark.parametrize("choice", [*SCHEMES, SCHEMES[2] | {"relative_bias_per_layer": True}], ids=name)
def test_activation_checkpointing_is_exact(choice, reentrant):
    """Reentrant checkpointing sees only tensors that are arguments of a layer: the bias that a stack shares is one."""
    model = build(TransductForConditionalGeneration, tiny(**choice, **LOSS)).train()
    want = gradient(model, [batch(PAIRS)])
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    same(gradient(model, [batch(PAIRS)]), want)
    same(gradient(model, [batch(PAIRS)], use_cache=True), want)

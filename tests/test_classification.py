"""The classification heads: labels, losses, and padding that changes nothing."""

import pytest
import torch
from torch.nn import functional as F

from configs import END, PAD, SCHEMES, build, difference, name, pad_rows, tiny, words
from transduct import TransductForQuestionAnswering, TransductForSequenceClassification, TransductForTokenClassification

every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
every_side = pytest.mark.parametrize("side", ["left", "right"])
ROWS = [torch.cat([words(1, length, seed=length)[0], torch.tensor([END])]) for length in (6, 3, 1)]


@every_scheme
@every_side
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "inferred"])
def test_padding_changes_no_classification(choice, side, masked):
    ids, mask = pad_rows(ROWS, side, 2)
    given = mask if masked else None
    with torch.no_grad():
        model = build(TransductForSequenceClassification, tiny(**choice, num_labels=3))
        together = model(ids, given).logits
        for row, text in enumerate(ROWS):
            assert difference(together[row], model(text[None]).logits[0]) < 1e-11
        model = build(TransductForTokenClassification, tiny(**choice, num_labels=3))
        together = model(ids, given).logits
        for row, text in enumerate(ROWS):
            assert difference(together[row, mask[row] == 1], model(text[None]).logits[0]) < 1e-11
        model = build(TransductForQuestionAnswering, tiny(**choice))
        together = model(ids, given)
        for row, text in enumerate(ROWS):
            own = model(text[None])
            assert difference(together.start_logits[row, mask[row] == 1], own.start_logits[0]) < 1e-11
            assert difference(together.end_logits[row, mask[row] == 1], own.end_logits[0]) < 1e-11


@every_side
def test_padding_with_the_end_token(side):
    """Where the padding token ends sentences too, the mask tells which end is the text's."""
    model = build(TransductForSequenceClassification, tiny(num_labels=3, pad_token_id=END))
    ids, mask = pad_rows(ROWS, side, 2)
    ids = ids.masked_fill(ids == PAD, END)
    with torch.no_grad():
        together = model(ids, mask).logits
        for row, text in enumerate(ROWS):
            assert difference(together[row], model(text[None]).logits[0]) < 1e-11


def test_the_last_of_several_ends_is_classified():
    model = build(TransductForSequenceClassification, tiny(num_labels=3, eos_token_id=[END, 2]))
    texts = torch.tensor([[5, END, 6, 2], [5, END, 6, 7]])
    with torch.no_grad():
        logits = model(texts).logits
        states = model.model(texts, decoder_input_ids=torch.tensor([[2, 5, END, 6]] * 2)).last_hidden_state
        want = model.classification_head(torch.stack([states[0, 3], states[1, 1]]))
    assert difference(logits, want) < 1e-11


def test_without_an_end_token_nothing_says_which_state_is_classified():
    model = build(TransductForSequenceClassification, tiny(num_labels=3, eos_token_id=None))
    with pytest.raises(ValueError, match=r"config\.eos_token_id is None; set it"):
        model(torch.tensor([[5, 6]]))


@pytest.mark.parametrize("side", ["right", "left", "both"])
def test_text_that_starts_from_its_own_last_token(side):
    """As a target that is made from labels does (mBART), wherever the padding is."""
    model = build(TransductForSequenceClassification, tiny(num_labels=3, target_start="last_token", decoder_start_token_id=None))
    ids, mask = pad_rows(ROWS, side, 2)
    with torch.no_grad():
        logits = model(ids, mask).logits
        for row, text in enumerate(ROWS):
            moved = text.roll(1)[None]  # the last token first, then all but it
            states = model.model(text[None], decoder_input_ids=moved).last_hidden_state
            assert difference(logits[row], model.classification_head(states[:, -1])[0]) < 1e-11


def test_losses_of_sequence_labels():
    ids, _ = pad_rows(ROWS)
    model = build(TransductForSequenceClassification, tiny(num_labels=3))
    for labels, want in (
        (torch.tensor([0, 2, 1]), lambda logits, labels: F.cross_entropy(logits, labels)),
        (torch.rand(3, 3).round(), lambda logits, labels: F.binary_cross_entropy_with_logits(logits, labels.double())),
    ):
        output = model(ids, labels=labels)
        assert difference(output.loss, want(output.logits, labels)) < 1e-11
        output.loss.backward()
    model = build(TransductForSequenceClassification, tiny(num_labels=1))
    for labels in (torch.rand(3), torch.rand(3, 1)):
        output = model(ids, labels=labels)
        assert difference(output.loss, F.mse_loss(output.logits.view(-1), labels.view(-1).double())) < 1e-11


def test_losses_of_token_labels_and_spans():
    ids, mask = pad_rows(ROWS)
    model = build(TransductForTokenClassification, tiny(num_labels=4))
    labels = torch.randint(4, ids.shape).masked_fill(mask == 0, -100)
    output = model(ids, mask, labels=labels)
    assert difference(output.loss, F.cross_entropy(output.logits.flatten(0, 1), labels.flatten())) < 1e-11
    assert model(ids, mask, labels=torch.full_like(labels, -100)).loss == 0
    model = build(TransductForQuestionAnswering, tiny())
    starts, ends = torch.tensor([1, 0, 99]), torch.tensor([4, 2, -1])  # the last answer is not in the text
    output = model(ids, mask, start_positions=starts, end_positions=ends)
    want = sum(
        model(row[None], start_positions=s, end_positions=e).loss for row, s, e in zip(ROWS[:2], starts, ends, strict=False)
    )
    assert difference(output.loss, want / 2) < 1e-11  # padding is no candidate
    alone = model(ROWS[0][None], start_positions=starts[:1], end_positions=ends[:1])
    want = F.cross_entropy(alone.start_logits, starts[:1]) + F.cross_entropy(alone.end_logits, ends[:1])
    assert difference(alone.loss, want / 2) < 1e-11
    assert model(ids, mask, start_positions=torch.tensor([7, 6, 5]), end_positions=ends).loss.isfinite()  # answers in padding
    none = torch.tensor([99] * 3)
    assert model(ids, mask, start_positions=none, end_positions=none).loss == 0


def test_outputs_as_tuples_and_as_asked():
    ids, _ = pad_rows(ROWS)
    for model_class, heads in (
        (TransductForSequenceClassification, 1), (TransductForQuestionAnswering, 2), (TransductForTokenClassification, 1),
    ):  # fmt: skip
        model = build(model_class, tiny(num_labels=3))
        plain, whole = model(ids, return_dict=False), model(ids, output_attentions=True, output_hidden_states=True)
        assert isinstance(plain, tuple)
        assert difference(plain[0], whole.to_tuple()[0]) < 1e-11
        sides = ("encoder_", "decoder_") if heads and model_class is not TransductForTokenClassification else ("",)
        for side in sides:
            assert len(whole[f"{side}attentions"]) == 2
            assert len(whole[f"{side}hidden_states"]) == 3

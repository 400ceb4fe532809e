"""Random inputs that any model takes."""

import pytest
import torch

from transduct import (
    TransductConfig,
    TransductEncoderModel,
    TransductForConditionalGeneration,
    TransductForQuestionAnswering,
    TransductForSequenceClassification,
)
from transduct.convert.verifying_inputs import LENGTHS, TARGET_LENGTH, source_inputs, target_inputs

SIZES = {"vocab_size": 12, "d_model": 8, "d_ff": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def model(model_class=TransductForConditionalGeneration, **values):
    return model_class(TransductConfig(**SIZES | values)).eval()


@pytest.mark.parametrize(("pad", "end"), [(0, 1), (11, 0), (3, [4, 5]), (2, 2), (None, None)])
def test_sources_end_once_and_are_padded_after(pad, end):
    some = model(pad_token_id=pad, eos_token_id=end, decoder_start_token_id=1)
    for seed in range(20):
        source, text = source_inputs(some, seed)
        assert text == "3 sources of 13, 7, 3 tokens"
        assert source["attention_mask"].sum(1).tolist() == list(LENGTHS)
        for row, length in zip(source["input_ids"].tolist(), LENGTHS, strict=True):
            assert all(token == (pad or 0) for token in row[length:])
            first = end[0] if isinstance(end, list) else end
            if first is not None:
                assert row.index(first) == length - 1
            assert pad in (None, first) or pad not in row[:length]


def test_inputs_differ_by_seed_and_leave_the_random_state_alone():
    some = model()
    before = torch.get_rng_state()
    first, second, again = (source_inputs(some, seed)[0] for seed in (1, 2, 1))
    targets = [target_inputs(some, source, seed)["decoder_input_ids"] for source, seed in ((first, 1), (second, 2), (again, 1))]
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["input_ids"], second["input_ids"])
    assert torch.equal(targets[0], targets[2])
    assert not torch.equal(targets[0], targets[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_targets_start_as_the_model_does_in_the_vocabulary_of_the_target():
    some = model(decoder_vocab_size=5, tie_embeddings="none", decoder_start_token_id=3)
    source, _ = source_inputs(some, 0)
    ids = target_inputs(some, source, 0)["decoder_input_ids"]
    assert ids.shape == (3, TARGET_LENGTH)
    assert ids[:, 0].tolist() == [3, 3, 3]
    assert ids.max() < 5
    assert source["input_ids"].max() > 5


@pytest.mark.parametrize(
    "model_class", [TransductEncoderModel, TransductForSequenceClassification, TransductForQuestionAnswering]
)
def test_models_that_take_no_targets_get_none(model_class):
    some = model(model_class)
    source, _ = source_inputs(some, 0)
    assert target_inputs(some, source, 0) == {}
    some(**source)


def test_learned_positions_are_not_exceeded():
    some = model(positions="learned", max_positions=6, decoder_max_positions=4)
    source, text = source_inputs(some, 0)
    assert text == "3 sources of 6, 6, 3 tokens"
    some(**source, **target_inputs(some, source, 0))


@pytest.mark.parametrize("layout", ["time_first", "channels_first"])
@pytest.mark.parametrize(("stem", "frames"), [("linear", 6), ("conv", 12)])
def test_features_are_as_long_as_learned_positions_reach(stem, frames, layout):
    some = model(
        encoder_input="features", feature_size=5, feature_stem=stem, feature_layout=layout, positions="learned", max_positions=6,
        tie_embeddings="target_output",
    )  # fmt: skip
    source, text = source_inputs(some, 0)
    assert text == f"2 sources of {frames} frames, one with silence at the end"
    assert source["input_features"].shape == ((2, frames, 5) if layout == "time_first" else (2, 5, frames))
    output = some(**source, **target_inputs(some, source, 0))
    assert output.encoder_last_hidden_state.shape[1] == 6

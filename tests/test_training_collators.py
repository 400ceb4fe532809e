"""`Seq2SeqCollator`: equal to transformers' collator where that is right, and never changing its input."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from tiny_training import tiny_model
from transduct.training import Seq2SeqCollator

ROWS = [
    {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1], "labels": [8, 1]},
    {"input_ids": [5, 1], "attention_mask": [1, 1], "labels": [9, 9, 9, 9, 1]},
]


class Tokenizer:
    """What a collator asks of a tokenizer; `pad` is for transformers' collator only."""

    def __init__(self, padding_side: str = "right"):
        self.pad_token_id, self.padding_side = 0, padding_side

    def pad(self, features, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors=None):
        longest = max(len(feature["input_ids"]) for feature in features)
        if padding == "max_length":
            longest = max_length
        if pad_to_multiple_of:
            longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
        columns = {"input_ids": self.pad_token_id, "attention_mask": 0}
        return {
            name: torch.tensor([feature[name] + [fill] * (longest - len(feature[name])) for feature in features])
            for name, fill in columns.items()
        }


def model():
    """Shifts labels to the right behind a 3."""

    def prepare(labels):
        return torch.cat([torch.full_like(labels[:, :1], 3), labels[:, :-1].masked_fill(labels[:, :-1] == -100, 0)], 1)

    return SimpleNamespace(prepare_decoder_input_ids_from_labels=prepare)


@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 12}])
def test_equals_the_collator_of_transformers(options):
    ours = Seq2SeqCollator(Tokenizer(), model=model(), **options)(ROWS)
    theirs = DataCollatorForSeq2Seq(Tokenizer(), model=model(), **options)(copy.deepcopy(ROWS))
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_leaves_its_input_alone():
    before = copy.deepcopy(ROWS)
    collate = Seq2SeqCollator(Tokenizer(), model=model())
    first, second = collate(ROWS), collate(ROWS)
    assert before == ROWS
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_literal_batch():
    batch = Seq2SeqCollator(Tokenizer(), decoder_start_token_id=2)(ROWS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [5, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[8, 1, -100, -100, -100], [9, 9, 9, 9, 1]]
    assert batch["decoder_input_ids"].tolist() == [[2, 8, 1, 0, 0], [2, 9, 9, 9, 9]]


def test_left_padding_is_for_the_source_only():
    batch = Seq2SeqCollator(Tokenizer("left"), decoder_start_token_id=2)(ROWS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [0, 5, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]
    assert batch["labels"][0].tolist() == [8, 1, -100, -100, -100]


def test_makes_the_mask_and_takes_arrays_tensors_and_numbers():
    rows = [{"input_ids": np.array([4, 5]), "index": 7}, {"input_ids": torch.tensor([6]), "index": 8}]
    batch = Seq2SeqCollator(Tokenizer())(rows)
    assert batch["input_ids"].tolist() == [[4, 5], [6, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["index"].tolist() == [7, 8]
    assert set(batch) == {"input_ids", "attention_mask", "index"}


def test_labels_of_none_are_no_labels():
    rows = [{**row, "labels": None} for row in ROWS]
    assert "labels" not in Seq2SeqCollator(Tokenizer(), model=model())(rows)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prefix_mask_is_padded_as_its_input(side):
    rows = [{"input_ids": [5, 6, 7], "prefix_mask": [1, 1, 0]}, {"input_ids": [5, 1], "prefix_mask": np.array([1, 0])}]
    batch = Seq2SeqCollator(Tokenizer(side))(rows)
    assert batch["prefix_mask"].tolist() == [[1, 1, 0], [0, 1, 0] if side == "left" else [1, 0, 0]]


def test_numpy():
    batch = Seq2SeqCollator(Tokenizer(), decoder_start_token_id=2, return_tensors="np")(ROWS)
    assert isinstance(batch["labels"], np.ndarray)
    assert batch["labels"][0].tolist() == [8, 1, -100, -100, -100]
    assert batch["decoder_input_ids"][0].tolist() == [2, 8, 1, 0, 0]
    of_model = Seq2SeqCollator(Tokenizer(), model=tiny_model(), return_tensors="np")(ROWS)
    assert isinstance(of_model["decoder_input_ids"], np.ndarray)
    assert of_model["decoder_input_ids"][0].tolist() == [0, 8, 1, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": False}, "padding=False"),
        ({"padding": "max_length"}, "needs max_length"),
        ({"return_tensors": "tf"}, "return_tensors='tf'"),
    ],
)
def test_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        Seq2SeqCollator(Tokenizer(), **options)


def test_refuses_what_it_cannot_pad():
    with pytest.raises(ValueError, match="column 'words'"):
        Seq2SeqCollator(Tokenizer())([{"input_ids": [1], "words": ["a"]}])
    with pytest.raises(ValueError, match="labels of row 1 has 5 tokens, more than max_length=4"):
        Seq2SeqCollator(Tokenizer(), padding="max_length", max_length=4)(ROWS)
    with pytest.raises(ValueError, match="features is empty"):
        Seq2SeqCollator(Tokenizer())([])
    with pytest.raises(ValueError, match="pad_token_id is None"):
        Seq2SeqCollator(SimpleNamespace(pad_token_id=None, padding_side="right"))


# ---- features -----------------------------------------------------------------------------------------------------
FRAMES = [
    {"input_features": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "labels": [8, 1]},
    {"input_features": np.array([[7.0, 8.0]]), "labels": [9, 1, 1]},
]


@pytest.mark.parametrize("side", ["right", "left"])
def test_features_are_padded_with_zeros_and_masked(side):
    batch = Seq2SeqCollator(Tokenizer(side), model=model(), pad_to_multiple_of=4)(FRAMES)
    assert batch["input_features"].dtype == torch.float32
    right = {
        "input_features": [[[1, 2], [3, 4], [5, 6], [0, 0]], [[7, 8], [0, 0], [0, 0], [0, 0]]],
        "attention_mask": [[1, 1, 1, 0], [1, 0, 0, 0]],
    }
    left = {
        "input_features": [[[0, 0], [1, 2], [3, 4], [5, 6]], [[0, 0], [0, 0], [0, 0], [7, 8]]],
        "attention_mask": [[0, 1, 1, 1], [0, 0, 0, 1]],
    }
    for name, rows in (right if side == "right" else left).items():
        assert batch[name].tolist() == rows
    assert batch["labels"].tolist() == [[8, 1, -100, -100], [9, 1, 1, -100]]
    assert batch["decoder_input_ids"].tolist() == [[3, 8, 1, 0], [3, 9, 1, 1]]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_features_with_channels_first_are_the_same_transposed(side, kind):
    rows = [{**row, "input_features": kind(np.array(row["input_features"]).T.tolist())} for row in FRAMES]
    want = Seq2SeqCollator(Tokenizer(side))(FRAMES)
    got = Seq2SeqCollator(Tokenizer(side), feature_layout="channels_first")(rows)
    assert torch.equal(got["input_features"], want["input_features"].transpose(1, 2))
    assert torch.equal(got["attention_mask"], want["attention_mask"])
    of_model = SimpleNamespace(config=SimpleNamespace(feature_layout="channels_first", feature_padding="hidden"), **vars(model()))
    assert torch.equal(Seq2SeqCollator(Tokenizer(side), model=of_model)(rows)["input_features"], got["input_features"])


def test_features_that_cannot_be_padded_are_refused():
    sees = SimpleNamespace(config=SimpleNamespace(feature_layout="time_first", feature_padding="seen"), **vars(model()))
    with pytest.raises(ValueError, match="1 to 3 frames, but the model has feature_padding"):
        Seq2SeqCollator(Tokenizer(), model=sees)(FRAMES)
    with pytest.raises(ValueError, match="frames of one size"):
        Seq2SeqCollator(Tokenizer())([FRAMES[0], {**FRAMES[1], "input_features": [[1.0, 2.0, 3.0]]}])
    with pytest.raises(ValueError, match=r"cover the frames of its input_features; these are \[3, 1\]"):
        Seq2SeqCollator(Tokenizer())([{**row, "attention_mask": [1, 1]} for row in FRAMES])
    with pytest.raises(ValueError, match="feature_layout='rows' must be"):
        Seq2SeqCollator(Tokenizer(), feature_layout="rows")

"""`ObjectiveCollator`: noise depends on seed, epoch and index alone, also in workers, streams and a `Trainer`."""

import os
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from english import paragraphs, tokenizer
from transduct import TransductConfig, TransductForCausalLM, TransductForConditionalGeneration, TransductForMaskedLM
from transduct.training import Seq2SeqCollator
from transduct.training.objectives import (
    CausalLM,
    EpochCounter,
    ObjectiveCollator,
    PrefixLM,
    SpanCorruption,
    TokenMasking,
    bart_noise,
    example_generator,
)

SMALL = dict(
    vocab_size=600, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, decoder_start_token_id=0
)


def rows(number: int = 6) -> list[dict]:
    english = tokenizer("unigram")
    return [{"input_ids": english(text)["input_ids"][:60], "row": i} for i, text in enumerate(paragraphs()[:number])]


def collator(objective=None, **options) -> ObjectiveCollator:
    english = tokenizer("unigram")
    objective = objective or SpanCorruption.from_tokenizer(english)
    return ObjectiveCollator(objective, Seq2SeqCollator(english, decoder_start_token_id=0), **options)


def label_rows(batch) -> list[list[int]]:
    return [[label for label in row if label != -100] for row in batch["labels"].tolist()]


def test_a_batch_is_what_the_objective_makes_of_each_row():
    collate = collator(seed=3, index_column="row")
    collate.set_epoch(2)
    batch = collate(rows())
    assert set(batch) == {"input_ids", "attention_mask", "labels", "decoder_input_ids"}
    for i, row in enumerate(rows()):
        example = collate.objective(row["input_ids"], example_generator(3, 2, i))
        assert label_rows(batch)[i] == example["labels"].tolist()
        assert batch["input_ids"][i][batch["attention_mask"][i] == 1].tolist() == example["input_ids"].tolist()


@pytest.mark.parametrize("index_column", [None, "row"])
def test_neither_order_nor_company_changes_an_example(index_column):
    collate = collator(index_column=index_column)
    texts = rows() if index_column else [{"input_ids": row["input_ids"]} for row in rows()]
    together = label_rows(collate(texts))
    assert label_rows(collate(texts[::-1])) == together[::-1]
    assert [label_rows(collate([row]))[0] for row in texts] == together
    assert label_rows(collator(index_column=index_column)(texts)) == together
    assert label_rows(collator(index_column=index_column, seed=1)(texts)) != together
    collate.set_epoch(1)
    assert label_rows(collate(texts)) != together


def test_without_an_index_equal_texts_get_equal_noise():
    first, second, other = label_rows(collator()([{"input_ids": ids} for ids in (range(9, 60), range(9, 60), range(10, 61))]))
    assert first == second
    assert [label + 1 if label < 500 and label != 1 else label for label in first] != other


def test_another_process_makes_the_same_examples():
    code = """
from transduct.training.objectives import ObjectiveCollator, SpanCorruption
for column in (None, "row"):
    collate = ObjectiveCollator(SpanCorruption(tuple(range(599, 579, -1)), 1), lambda x: {"rows": x}, seed=5, index_column=column)
    collate.set_epoch(1)
    rows = [collate.example(row) for row in ({"input_ids": range(9, 90), "row": 4}, {"input_ids": range(7), "row": 2})]
    print([row["labels"].tolist() for row in rows])
"""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    for column, line in zip((None, "row"), done.stdout.splitlines(), strict=True):
        collate = collator(SpanCorruption(tuple(range(599, 579, -1)), 1), seed=5, index_column=column)
        collate.set_epoch(1)
        here = label_rows(collate([{"input_ids": range(7), "row": 2}, {"input_ids": range(9, 90), "row": 4}]))
        assert line == str(here[::-1])


def test_leaves_the_rows_alone_and_drops_what_described_the_text():
    texts = [{"input_ids": np.arange(9, 40), "attention_mask": [1] * 31, "special_tokens_mask": [0] * 31, "weight": 0.5}]
    batch = collator()(texts)
    assert batch["weight"].tolist() == [0.5]
    assert "special_tokens_mask" not in batch
    assert batch["attention_mask"].shape == batch["input_ids"].shape
    assert np.array_equal(texts[0]["input_ids"], np.arange(9, 40))
    assert len(texts[0]) == 4


def test_workers_that_live_on_see_the_epoch():
    collate = collator(index_column="row")
    loader = DataLoader(rows(), batch_size=3, collate_fn=collate, num_workers=1, persistent_workers=True)
    for epoch in (0, 1, 4):
        collate.set_epoch(epoch)
        here = [row for start in (0, 3) for row in label_rows(collate(rows()[start : start + 3]))]
        assert [row for batch in loader for row in label_rows(batch)] == here
        assert collate.epoch == epoch


class Watched(TransductForConditionalGeneration):
    """Keeps the labels that it was trained on."""

    def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, labels=None, num_items_in_batch=None):
        vars(self).setdefault("seen", []).extend(tuple(row) for row in label_rows({"labels": labels}))
        return super().forward(input_ids, attention_mask, decoder_input_ids, labels=labels, num_items_in_batch=num_items_in_batch)


def train(folder, data, steps: int, resume=False, **options) -> list[tuple[int, ...]]:
    """The labels that an unmodified trainer shows the model, in their order."""
    collate = collator(seed=5)
    model = Watched(TransductConfig(**SMALL))
    args = Seq2SeqTrainingArguments(
        str(folder), per_device_train_batch_size=2, max_steps=steps, report_to="none", disable_tqdm=True, use_cpu=True,
        save_strategy="steps", save_steps=4, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(model, args, data_collator=collate, train_dataset=data, callbacks=[EpochCounter(collate)])
    trainer.train(resume_from_checkpoint=resume or None)
    return model.seen


def expected(epochs: int) -> list[set[tuple[int, ...]]]:
    """The labels of each epoch."""
    collate = collator(seed=5)
    sets = []
    for epoch in range(epochs):
        collate.set_epoch(epoch)
        sets.append({tuple(row) for row in label_rows(collate([{"input_ids": row["input_ids"]} for row in rows()]))})
    return sets


def test_each_epoch_of_a_trainer_has_other_noise_and_a_resumed_one_the_same(tmp_path):
    data = datasets.Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows()])
    seen = train(tmp_path / "whole", data, steps=9)
    assert [set(seen[start : start + 6]) for start in (0, 6, 12)] == expected(3)
    train(tmp_path / "parts", data, steps=4)
    assert train(tmp_path / "parts", data, steps=9, resume=True) == seen[8:]


def test_each_pass_over_a_stream_has_other_noise(tmp_path):
    data = datasets.Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows()]).to_iterable_dataset()
    seen = train(tmp_path, data, steps=6)
    assert [set(seen[:6]), set(seen[6:])] == expected(2)


def test_bart_noise_trains():
    english = tokenizer("byte_bpe")
    batch = ObjectiveCollator(bart_noise(english), Seq2SeqCollator(english, decoder_start_token_id=0))(
        [{"input_ids": english(text)["input_ids"][:60]} for text in paragraphs()[:3]]
    )
    model = TransductForConditionalGeneration(TransductConfig(**SMALL))
    model(**batch).loss.backward()
    assert torch.isfinite(model.model.encoder.embed_tokens.weight.grad).all()
    assert english.mask_token_id in batch["input_ids"]


# ---- models of one stack ---------------------------------------------------------------------------------------------
def test_prefix_lm_in_a_decoder_learns_the_rest_of_the_text_only():
    collate = collator(PrefixLM(1, form="decoder"))
    collate.collate = Seq2SeqCollator(tokenizer("unigram"))
    batch = collate([{"input_ids": row["input_ids"]} for row in rows()])
    assert batch["prefix_mask"].dtype == torch.bool
    assert batch["prefix_mask"].shape == batch["input_ids"].shape
    real = batch["attention_mask"] == 1
    assert torch.equal(batch["labels"] != -100, ~batch["prefix_mask"] & real)
    assert torch.equal(batch["labels"][batch["labels"] != -100], batch["input_ids"][~batch["prefix_mask"] & real])
    model = TransductForCausalLM(TransductConfig(**SMALL)).eval()
    loss = model(**batch).loss
    logits = model(batch["input_ids"], batch["attention_mask"], prefix_mask=batch["prefix_mask"]).logits
    by_hand = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_a_mixture_of_prefix_lm_and_causal_lm_in_one_batch():
    rng = np.random.default_rng(0)
    examples = [PrefixLM(1, 0.5, "decoder")([5, 6, 7, 8], rng), CausalLM(1)([5, 6], rng)]
    collate = ObjectiveCollator(CausalLM(1), Seq2SeqCollator(tokenizer("unigram")), labelled="keep")
    for order in (examples, examples[::-1]):
        masks = collate([dict(example) for example in order])["prefix_mask"].tolist()
        assert masks[order.index(examples[0])] == [True, True, False, False, False]
        assert masks[order.index(examples[1])] == [False] * 5


def test_masked_lm_in_an_encoder():
    english = tokenizer("unigram")
    collate = ObjectiveCollator(TokenMasking.bert(english), Seq2SeqCollator(english))
    batch = collate([{"input_ids": row["input_ids"]} for row in rows()])
    assert batch["labels"].shape == batch["input_ids"].shape
    assert torch.isfinite(TransductForMaskedLM(TransductConfig(**SMALL))(**batch).loss)


@pytest.mark.parametrize("objective", [CausalLM(1), PrefixLM(1, form="decoder"), "bert"])
def test_refuses_padding_on_the_left_for_one_stack(objective):
    english = tokenizer("unigram")
    left = type("Left", (), {"pad_token_id": 0, "padding_side": "left"})
    objective = TokenMasking.bert(english) if objective == "bert" else objective
    with pytest.raises(ValueError, match="pads on the left"):
        ObjectiveCollator(objective, Seq2SeqCollator(left))([{"input_ids": [5, 6]}, {"input_ids": [5, 6, 7]}])
    two_stacks = ObjectiveCollator(PrefixLM(1), Seq2SeqCollator(left))([{"input_ids": [5, 6]}, {"input_ids": range(5, 50)}])
    assert two_stacks["attention_mask"].min() == 0


# ---- what is refused -------------------------------------------------------------------------------------------------
def test_rows_with_labels_are_refused_or_kept_as_they_are():
    row = {"input_ids": [5, 6, 1], "labels": [7, 1], "attention_mask": [1, 1, 1]}
    with pytest.raises(ValueError, match=r'a row has labels, which an objective makes: .* labelled="keep"'):
        collator()([row])
    batch = collator(labelled="keep")([row, {"input_ids": [8, 9, 1], "labels": None}])
    assert batch["input_ids"][0].tolist()[:3] == [5, 6, 1]
    assert label_rows(batch)[0] == [7, 1]
    assert label_rows(batch)[1][0] == tokenizer("unigram").get_sentinel_token_ids()[0]


@pytest.mark.parametrize(
    ("options", "row", "message"),
    [({}, {"text": "a"}, r"columns \['text'\]: an objective needs input_ids"),
     ({}, {"input_ids": [5, 0], "attention_mask": [1, 0]}, "tokenize without padding"),
     ({"index_column": "row"}, {"input_ids": [5]}, "index_column='row' is not among .* remove_unused_columns=False"),
     ({"index_column": "row"}, {"input_ids": [5], "row": -1}, "index=-1 must not be negative"),
     ({}, {"input_ids": [[5]]}, "one dimension of integers")],
)  # fmt: skip
def test_refuses_rows(options, row, message):
    with pytest.raises(ValueError, match=message):
        collator(**options)([row])


def test_refuses_options():
    with pytest.raises(ValueError, match="seed=-1 must not be negative"):
        collator(seed=-1)
    with pytest.raises(ValueError, match="labelled='drop'"):
        collator(labelled="drop")
    with pytest.raises(ValueError, match="epoch=-1 must not be negative"):
        collator().set_epoch(-1)

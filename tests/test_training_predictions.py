"""Predictions on disk, and the metrics that are computed from them."""

import json

import numpy as np
import pytest
import torch
from transformers import EvalPrediction, Seq2SeqTrainer

from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.training.metrics import exact_match, token_error
from transduct.training.predictions import TextMetrics, read_predictions

NAMES = {"word_error": "token_error", "match": "exact_match"}


class Words(Tokenizer):
    """Id 7 is the word "w7"."""

    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(f"w{id}" for id in row if id > 2) for row in np.asarray(ids).tolist()]


def metrics_of(rows, **options) -> TextMetrics:
    words = Words().batch_decode
    texts = {name: [words([row[name]], True)[0] for row in rows] for name in ("input_ids", "labels")}
    return TextMetrics(Words(), [[text, "another"] for text in texts["labels"]], NAMES, sources=texts["input_ids"], **options)


def trainer_of(folder, rows, metrics=None, **options):
    metrics = metrics or metrics_of(rows)
    defaults = dict(predict_with_generate=True, per_device_eval_batch_size=4, generation_max_length=8)
    return tiny_trainer(folder, tiny_model().eval(), rows, metrics=metrics, **defaults | options)


def test_each_row_is_written_once_in_order_with_its_references(tmp_path):
    rows = pairs(10)
    trainer = trainer_of(tmp_path, rows)
    measured = trainer.evaluate()
    assert [path.name for path in (tmp_path / "predictions").iterdir()] == ["0.jsonl"]
    lines = [json.loads(line) for line in (tmp_path / "predictions/0.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(10))
    assert [line["source"] for line in lines] == trainer.compute_metrics.sources
    assert [line["references"] for line in lines] == trainer.compute_metrics.references
    alone = [trainer.model.generate(torch.tensor([row["input_ids"]]), max_length=8) for row in rows]
    assert [line["prediction"] for line in lines] == [Words().batch_decode(ids, True)[0] for ids in alone]
    texts, references = read_predictions(tmp_path / "predictions/0.jsonl")
    assert measured["eval_word_error"] == token_error(texts, references)
    assert measured["eval_match"] == exact_match(texts, references)


def test_nothing_is_collected(tmp_path):
    trainer = trainer_of(tmp_path, pairs(10))
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation")
    assert output.predictions is None
    assert output.label_ids is None
    assert output.num_samples == 10


def test_transformers_own_trainer_computes_the_same(tmp_path):
    rows = pairs(10)
    trainer = trainer_of(tmp_path, rows)
    streamed = trainer.evaluate()
    ids = trainer.predict(trainer.eval_dataset).predictions
    assert trainer.compute_metrics(EvalPrediction(predictions=ids, label_ids=None)) == {
        name: streamed[f"eval_{name}"] for name in NAMES
    }
    theirs = Seq2SeqTrainer(
        trainer.model, trainer.args, eval_dataset=trainer.eval_dataset, data_collator=trainer.data_collator,
        compute_metrics=trainer.compute_metrics,
    )  # fmt: skip
    theirs.args.per_device_eval_batch_size = 10  # of several batches it fills short ones with -100, which nothing decodes
    assert theirs.evaluate()["eval_match"] == streamed["eval_match"]


def test_predict_returns_its_predictions(tmp_path):
    rows = pairs(5)
    output = trainer_of(tmp_path, rows).predict(trainer_of(tmp_path, rows).eval_dataset)
    assert len(output.predictions) == 5
    assert not (tmp_path / "predictions").exists()
    assert {"test_word_error", "test_match"} <= output.metrics.keys()


@pytest.mark.parametrize("beams", [1, 3])
def test_outputs_begin_with_the_first_token(tmp_path, beams):
    rows = pairs(5)
    trainer = trainer_of(tmp_path, rows, metrics_of(rows, first_token=7), generation_num_beams=beams)
    assert trainer.predict(trainer.eval_dataset).predictions[:, 1].tolist() == [7] * 5
    assert trainer.model.generation_config.forced_bos_token_id is None
    trainer.compute_metrics = metrics_of(rows)
    assert trainer.predict(trainer.eval_dataset).predictions[:, 1].tolist() != [7] * 5


def test_the_decoder_starts_from_the_start_token(tmp_path):
    rows = pairs(5)
    trainer = trainer_of(tmp_path, rows, metrics_of(rows, start_token=7))
    assert trainer.predict(trainer.eval_dataset).predictions[:, 0].tolist() == [7] * 5
    trainer.compute_metrics = metrics_of(rows)
    assert trainer.predict(trainer.eval_dataset).predictions[:, 0].tolist() == [0] * 5


def test_files_are_named_by_step_and_data_set(tmp_path):
    rows = pairs(6)
    trainer = trainer_of(
        tmp_path, rows, metrics_of(rows, folder=tmp_path / "kept"), max_steps=2, eval_strategy="steps", eval_steps=1
    )
    trainer.train()
    trainer.evaluate(metric_key_prefix="eval_other")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["1.jsonl", "2-other.jsonl", "2.jsonl"]


def test_other_data_than_the_references(tmp_path):
    rows = pairs(6)
    for metrics, message in ((metrics_of(rows[:5]), "row 5 of the evaluated"), (metrics_of(rows * 2), "6 rows were predicted")):
        with pytest.raises(ValueError, match=message):
            trainer_of(tmp_path, rows, metrics).evaluate()
    assert not (tmp_path / "predictions/0.jsonl").exists()


def test_an_order_that_is_not_the_references_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"group_by_length.*changes the order"):
        trainer_of(tmp_path, pairs(6), train_sampling_strategy="group_by_length").evaluate()


def test_texts_must_be_generated(tmp_path):
    with pytest.raises(ValueError, match="needs predict_with_generate=True"):
        trainer_of(tmp_path, pairs(6), predict_with_generate=False).evaluate()


def test_the_loss_alone_where_that_is_asked_for(tmp_path):
    rows = pairs(6)
    results = trainer_of(tmp_path, rows, prediction_loss_only=True).evaluate()
    assert results["eval_loss"] == trainer_of(tmp_path, rows).evaluate()["eval_loss"]
    assert not any(f"eval_{name}" in results for name in NAMES)


def test_unknown_metrics():
    with pytest.raises(ValueError, match=r"metrics: error='wer' is unknown; choose one of token_error"):
        TextMetrics(Words(), ["a"], {"error": "wer"})

"""Evaluation: the loss per target token, ids that can be decoded, and a generation config that nobody changes."""

import copy

import numpy as np
import pytest
import torch
from transformers import Seq2SeqTrainer

from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.modeling import TransductForCausalLM
from transduct.training import Seq2SeqCollator
from transduct.training.evaluation import RowCount, _without_targets


def never_ending_model():
    """Its outputs run to the length limit: the end token is never the best one."""
    model = tiny_model(logits_bias=True, tie_embeddings="none")
    with torch.no_grad():
        model.lm_head.bias[1] = -1e4
    return model.eval()


@pytest.mark.parametrize("generate", [False, True])
def test_the_loss_does_not_depend_on_the_batch_size(tmp_path, generate):
    model, rows = tiny_model().eval(), pairs(10)
    summed = sum(float(model(**one_row(row)).loss.detach()) * len(row["labels"]) for row in rows)
    expected = summed / sum(len(row["labels"]) for row in rows)
    for size in (1, 3, 10):
        options = dict(per_device_eval_batch_size=size, predict_with_generate=generate)
        trainer = tiny_trainer(tmp_path, model, rows, metrics=lambda prediction: {}, **options)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_the_loss_of_a_decoder_alone_does_not_depend_on_the_batch_size(tmp_path):
    model = TransductForCausalLM(tiny_model().config).eval()
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in pairs(10)]
    counts = [len(row["input_ids"]) - 1 for row in rows]  # nothing predicts a first token
    summed = sum(float(model(**one_row(row)).loss.detach()) * count for row, count in zip(rows, counts, strict=True))
    for size in (1, 3, 10):
        trainer = tiny_trainer(tmp_path, model, rows, per_device_eval_batch_size=size)
        trainer.data_collator = Seq2SeqCollator(Tokenizer())
        assert trainer.evaluate()["eval_loss"] == pytest.approx(summed / sum(counts), rel=1e-6)


def test_rows_that_are_padding_have_no_targets_unless_these_are_fractions():
    labels = torch.tensor([[4, 1], [5, 1]])
    assert _without_targets({"labels": labels}, 1)["labels"].tolist() == [[4, 1], [-100, -100]]
    assert _without_targets({"labels": labels / 2}, 1)["labels"].tolist() == [[2, 0.5], [2.5, 0.5]]


def one_row(row: dict) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([ids]) for name, ids in row.items()}


def test_predictions_equal_plain_generate_and_hold_no_ignored_ids(tmp_path):
    model, rows, seen = tiny_model().eval(), pairs(7, longest=12), {}
    model.generation_config.eos_token_id = [1, 5, 9, 13]  # outputs of many lengths

    def metrics(prediction):
        seen["predictions"], seen["labels"] = prediction.predictions, prediction.label_ids
        return {"rows": len(prediction.predictions)}

    trainer = tiny_trainer(tmp_path, model, rows, metrics=metrics, per_device_eval_batch_size=2, predict_with_generate=True)
    assert trainer.evaluate()["eval_rows"] == 7
    assert trainer.predict(trainer.eval_dataset).predictions.min() >= 0
    assert seen["predictions"].min() >= 0
    for row, prediction, labels in zip(rows, seen["predictions"], seen["labels"], strict=True):
        alone = model.generate(torch.tensor([row["input_ids"]]))[0].tolist()
        assert prediction[: len(alone)].tolist() == alone
        assert not prediction[len(alone) :].any()
        assert labels.tolist() == row["labels"] + [-100] * (len(labels) - len(row["labels"]))


def test_no_batch_is_cut_at_the_librarys_length(tmp_path):
    model = never_ending_model()
    before = copy.deepcopy(model.generation_config.to_dict())
    trainer = tiny_trainer(tmp_path, model, pairs(4), per_device_eval_batch_size=2, predict_with_generate=True)
    predictions = trainer.predict(trainer.eval_dataset).predictions
    assert ((predictions != 0).sum(1) > 45).all()
    assert model.generation_config.to_dict() == before


def test_the_given_length_and_beams_are_used(tmp_path):
    model, rows = never_ending_model(), pairs(4)
    options = dict(predict_with_generate=True, generation_max_length=9, generation_num_beams=2, per_device_eval_batch_size=4)
    trainer = tiny_trainer(tmp_path, model, rows, **options)
    batch = Seq2SeqCollator(Tokenizer())([{"input_ids": row["input_ids"]} for row in rows])
    expected = model.generate(**batch, max_length=9, num_beams=2)
    assert trainer.predict(trainer.eval_dataset).predictions[:, : expected.shape[1]].tolist() == expected.tolist()


def test_several_sequences_for_each_source_are_all_kept(tmp_path):
    trainer = tiny_trainer(tmp_path, rows=pairs(3), per_device_eval_batch_size=2, predict_with_generate=True)
    output = trainer.predict(trainer.eval_dataset, num_beams=3, num_return_sequences=3, max_length=8)
    assert output.predictions.shape[0] == 9


def test_the_trainer_is_as_before_after_evaluation_and_after_an_error(tmp_path):
    def broken(prediction):
        raise RuntimeError("broken metric")

    trainer = tiny_trainer(tmp_path, rows=pairs(3), metrics=broken, predict_with_generate=True)
    with pytest.raises(RuntimeError, match="broken metric"):
        trainer.evaluate()
    assert trainer.compute_metrics is broken
    assert "prediction_step" not in vars(trainer)


def test_logits_of_other_metrics_are_left_alone(tmp_path):
    seen = []
    trainer = tiny_trainer(tmp_path, rows=pairs(4), metrics=lambda p: seen.append(p.predictions) or {})
    trainer.args.include_for_metrics = []
    trainer.preprocess_logits_for_metrics = lambda logits, labels: (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)
    trainer.evaluate()
    assert seen[0].shape[0] == 4
    assert np.issubdtype(seen[0].dtype, np.integer)


def test_ignored_labels_stay_ignored(tmp_path):
    rows = [{"input_ids": [5, 6, 1], "labels": [7, -100, 1]}, {"input_ids": [5, 1], "labels": [8, 9, 1]}]
    trainer = tiny_trainer(tmp_path, rows=rows, predict_with_generate=True, generation_max_length=5)
    assert trainer.predict(trainer.eval_dataset).label_ids.tolist() == [[7, -100, 1], [8, 9, 1]]


def test_without_labels_there_is_no_loss(tmp_path):
    rows = [{"input_ids": row["input_ids"]} for row in pairs(3)]
    trainer = tiny_trainer(tmp_path, predict_with_generate=True, generation_max_length=5, per_device_eval_batch_size=2)
    output = trainer.predict(rows)
    assert output.predictions.shape[0] == 3
    assert output.label_ids is None
    assert "test_loss" not in output.metrics


def test_the_inherited_loop_depends_on_the_batch_size():
    """Why the loop is corrected at all; if this fails, transformers has changed and the correction may go."""
    import tempfile

    losses = set()
    for size in (1, 3):
        trainer = tiny_trainer(tempfile.mkdtemp(), rows=pairs(10), per_device_eval_batch_size=size)
        loader = trainer.get_eval_dataloader()
        losses.add(round(Seq2SeqTrainer.evaluation_loop(trainer, loader, "test").metrics["eval_loss"], 5))
    assert len(losses) == 2


class Accelerator:
    """As many processes as wanted, of which this is one."""

    def __init__(self, processes: int, index: int):
        self.num_processes, self.process_index = processes, index
        self.gradient_state = type("State", (), {"end_of_dataloader": False, "remainder": -1})()


@pytest.mark.parametrize("total", range(1, 26))
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_rows_without_padding_are_the_data_set(total, processes):
    """Every row is in one process's batch, and the gathered arrays of all steps end where the data set ends."""
    size, kept = 4, []
    counts = [RowCount(Accelerator(processes, index), range(total)) for index in range(processes)]
    steps = -(-total // (size * processes))
    for step in range(steps):
        rows = min(size, total - step * size) if processes == 1 else size
        for index, count in enumerate(counts):
            start = (step * processes + index) * size
            kept += range(start, start + count.take(rows))
    assert kept == list(range(total))
    gathered = torch.arange(steps * size * processes if processes > 1 else total)
    assert counts[0].without_padding(gathered).tolist() == list(range(total))

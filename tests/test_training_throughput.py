"""Tokens per second and padding, counted from the batches."""

import pytest
import torch
from transformers import Seq2SeqTrainingArguments, TrainerCallback

from tiny_training import pairs, tiny_trainer
from transduct.training.throughput import TokenCounter, count_tokens

SOURCE, TARGET = (sum(len(row[name]) for row in pairs()) for name in ("input_ids", "labels"))


class Logs(TrainerCallback):
    """What callbacks, such as those of `report_to`, are told."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def trained(tmp_path, **options):
    """A run of two epochs, a log each, and what its callbacks were told; the clock moves one second at each look."""
    epochs = dict(num_train_epochs=2, logging_strategy="epoch")
    trainer, logs = tiny_trainer(tmp_path, **{**epochs, **options}), Logs()
    trainer.callback_handler.callbacks.insert(0, logs)  # as those of report_to are, before the trainer's own are added
    trainer.train()
    return trainer, [entry for entry in logs.logs if "loss" in entry]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens_per_batch": 40},
        {"max_tokens_per_batch": 60, "packing": True},
        {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2},
    ],
    ids=["budget", "packed", "rows"],
)
def test_tokens_of_an_epoch_are_logged_everywhere(tmp_path, monkeypatch, options):
    clock = iter(range(10_000))
    monkeypatch.setattr("transduct.training.throughput.time.monotonic", lambda: next(clock))
    trainer, told = trained(tmp_path, **options)
    assert len(told) == 2
    seconds = trainer.state.global_step / 2  # of an epoch: one between the two looks at each update
    for entry in told:
        assert entry["source_tokens_per_second"] * seconds == pytest.approx(SOURCE)
        assert entry["target_tokens_per_second"] * seconds == pytest.approx(TARGET)
        assert 0 <= entry["padding_share"] < 0.5
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["padding_share"] for entry in history] == [entry["padding_share"] for entry in told]


def test_an_evaluation_takes_no_time(tmp_path, monkeypatch):
    clock = iter(range(100_000))
    monkeypatch.setattr("transduct.training.throughput.time.monotonic", lambda: next(clock))

    def take_long(*arguments, **kwargs):
        for _ in range(50):
            next(clock)

    monkeypatch.setattr(Logs, "on_prediction_step", take_long)
    rates, began = [], []
    for options in ({}, {"eval_strategy": "steps", "eval_steps": 1}):
        began.append(next(clock))
        _, told = trained(tmp_path, max_tokens_per_batch=40, **options)
        rates.append([entry["target_tokens_per_second"] for entry in told])
    without, with_evaluations = began[1] - began[0], next(clock) - began[1]
    assert with_evaluations > 5 * without
    assert rates[0] == rates[1]


def test_training_again_counts_once(tmp_path):
    trainer, _ = trained(tmp_path, max_tokens_per_batch=40)
    trainer.train()
    assert sum(isinstance(callback, TokenCounter) for callback in trainer.callback_handler.callbacks) == 1


def test_plain_arguments_count_nothing(tmp_path):
    trainer, told = trained(tmp_path, kind=Seq2SeqTrainingArguments)
    assert not any("padding_share" in entry for entry in told)
    assert not any(isinstance(callback, TokenCounter) for callback in trainer.callback_handler.callbacks)


def test_counts_of_literal_batches():
    ids, labels = torch.tensor([[5, 6, 0], [7, 0, 0]]), torch.tensor([[5, 1, -100, -100], [6, 7, 8, 1]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert count_tokens({"input_ids": ids, "attention_mask": mask, "labels": labels}, False).tolist() == [3, 6, 14]
    assert count_tokens({"input_ids": ids, "segment_ids": 2 * mask, "labels": labels}, False).tolist() == [3, 6, 14]
    assert count_tokens({"input_ids": ids, "labels": labels}, False).tolist() == [6, 6, 14]
    assert count_tokens({"input_ids": ids, "attention_mask": mask, "labels": labels[:, :3]}, True).tolist() == [3, 5, 6]
    assert count_tokens({"input_features": torch.zeros(2, 9, 4), "labels": labels}, False).tolist() == [0, 6, 8]
    assert count_tokens({"input_ids": ids, "attention_mask": mask, "start_positions": labels[:, 0]}, False).tolist() == [3, 0, 6]
    features = {"input_features": torch.zeros(2, 3, 4), "attention_mask": mask, "labels": torch.tensor([0, 1])}
    assert count_tokens(features, False).tolist() == [3, 2, 8]  # a class for each row

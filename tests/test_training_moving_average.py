"""The moving average of the weights: its formula, its use in evaluations and as the model, and its way through checkpoints."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from tiny_training import tiny_model, tiny_trainer
from transduct.training.callbacks import StopOnSignal
from transduct.training.moving_average import AVERAGE, MovingAverage

OPTIONS = dict(max_tokens_per_batch=60, schedule="constant", learning_rate=0.02, max_steps=6)


class Note(TrainerCallback):
    """The weights after each update, and evaluated losses."""

    def __init__(self):
        self.weights = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights.append(copy_of(model))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights.append(copy_of(model))


def copy_of(model):
    return {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}


def noted(trainer):
    note = Note()
    trainer.add_callback(note)
    trainer.train()
    return note.weights


def average_of(history, decay, warmup=False):
    average = history[0]
    for t, weights in enumerate(history[1:]):
        d = min(decay, (1 + t) / (10 + t)) if warmup else decay
        average = {name: d * average[name] + (1 - d) * weights[name] for name in average}
    return average


def assert_equal(model, expected):
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_finished_model_is_the_average_of_each_update(tmp_path, warmup, accumulate):
    options = dict(OPTIONS, ema_decay=0.7, ema_warmup=warmup, gradient_accumulation_steps=accumulate)
    trainer = tiny_trainer(tmp_path, **options)
    history = noted(trainer)
    assert len(history) == 7
    assert_equal(trainer.model, average_of(history, 0.7, warmup))


def test_without_finish_the_model_is_the_weights(tmp_path):
    trainer = tiny_trainer(tmp_path, **OPTIONS, ema_decay=0.7, ema_finish=False)
    history = noted(trainer)
    assert_equal(trainer.model, history[-1])


def test_the_weights_are_trained_as_without_an_average(tmp_path):
    options = dict(OPTIONS, eval_strategy="steps", eval_steps=2)
    plain = tiny_trainer(tmp_path, **options)
    plain.train()
    averaged = tiny_trainer(tmp_path, **options, ema_decay=0.9, ema_finish=False)
    averaged.train()
    for mine, theirs in zip(averaged.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def evaluated(folder, **options):
    trainer = tiny_trainer(folder, **{**OPTIONS, **options}, eval_strategy="steps", eval_steps=6, ema_decay=0.5)
    history = noted(trainer)
    loss = next(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    return loss, history, trainer


def loss_with(trainer, weights):
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(weights[name])
    return trainer.evaluate()["eval_loss"]


def test_evaluations_use_the_average_where_asked(tmp_path):
    loss, history, trainer = evaluated(tmp_path / "average")
    assert loss == pytest.approx(loss_with(trainer, average_of(history, 0.5)), rel=1e-6)
    raw, same_history, _ = evaluated(tmp_path / "weights", ema_evaluate=False)
    assert raw == pytest.approx(loss_with(trainer, same_history[-1]), rel=1e-6)
    assert raw != pytest.approx(loss, rel=1e-6)


def test_weights_come_back_after_a_failed_evaluation(tmp_path):
    trainer = tiny_trainer(tmp_path, **OPTIONS, ema_decay=0.5)
    trainer.train()
    average = next(each for each in trainer.callback_handler.callbacks if isinstance(each, MovingAverage))
    with torch.no_grad():
        average.weights[0].add_(1)
    before = copy_of(trainer.model)

    def fail():
        with average.in_use():
            assert not torch.equal(copy_of(trainer.model)[average.names[0]], before[average.names[0]])
            raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        fail()
    for name, weights in copy_of(trainer.model).items():
        assert torch.equal(weights, before[name])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_is_bit_equal_to_a_straight_one(tmp_path, accumulate):
    options = dict(OPTIONS, ema_decay=0.8, ema_warmup=True, gradient_accumulation_steps=accumulate)
    straight = tiny_trainer(tmp_path / "straight", **options)
    straight.train()
    first = tiny_trainer(tmp_path / "stopped", **options, save_strategy="steps", save_steps=3)
    first.train()
    stored = load_file(tmp_path / "stopped" / "checkpoint-3" / AVERAGE)
    assert stored.keys() == {name for name, _ in first.model.named_parameters()}
    resumed = tiny_trainer(tmp_path / "elsewhere", tiny_model(seed=99), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-3"))
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_that_a_signal_stops_keeps_its_weights(tmp_path):
    class Signal(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                signals.received = 15

    signals = StopOnSignal()
    trainer = tiny_trainer(tmp_path, **OPTIONS, ema_decay=0.5)
    trainer.add_callback(Signal())
    trainer.add_callback(signals)
    history = noted(trainer)
    assert len(history) == 4
    assert_equal(trainer.model, history[-1])


def test_with_the_best_checkpoint_its_average_is_the_model(tmp_path):
    options = dict(OPTIONS, learning_rate=3.0, ema_decay=0.5, eval_strategy="steps", eval_steps=1)
    best = dict(save_strategy="steps", save_steps=1, load_best_model_at_end=True, metric_for_best_model="loss")
    trainer = tiny_trainer(tmp_path, **options, **best)
    history = noted(trainer)
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    step = min(losses, key=losses.__getitem__)
    assert step < 6
    assert_equal(trainer.model, average_of(history[: step + 1], 0.5))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses[step], rel=1e-5)


def test_frozen_weights_have_no_average_and_low_precision_a_precise_one(tmp_path):
    model = tiny_model().bfloat16()
    model.model.encoder.requires_grad_(False)
    trainer = tiny_trainer(tmp_path, model, **OPTIONS, ema_decay=0.9)
    trainer.train()
    average = next(each for each in trainer.callback_handler.callbacks if isinstance(each, MovingAverage))
    assert average.names
    assert not any(name.startswith("model.encoder") for name in average.names)
    assert all(tensor.dtype == torch.float32 for tensor in average.averages)


def test_errors_name_value_and_rule(tmp_path):
    for decay in (1.0, -0.1):
        with pytest.raises(ValueError, match=f"ema_decay={decay}"):
            tiny_trainer(tmp_path, **OPTIONS, ema_decay=decay)
        with pytest.raises(ValueError, match=f"ema_decay={decay}"):
            MovingAverage(tiny_trainer(tmp_path), decay)
    with pytest.raises(ValueError, match="ema_warmup=True needs ema_decay"):
        tiny_trainer(tmp_path, ema_warmup=True)
    plain = tiny_trainer(tmp_path, **OPTIONS, save_strategy="steps", save_steps=3)
    plain.train()
    averaged = tiny_trainer(tmp_path, **OPTIONS, ema_decay=0.9)
    with pytest.raises(ValueError, match=f"has no {AVERAGE}"):
        averaged.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))

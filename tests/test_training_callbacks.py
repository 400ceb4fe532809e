"""Signals, the clock and patience between steps."""

import os
import signal
import time

import pytest
import torch
from transformers.trainer_callback import TrainerCallback

from tiny_training import tiny_trainer
from transduct.training.callbacks import EarlyStopping, SaveLastStep, StopOnSignal
from transduct.training.checkpoints import OffSchedule, checkpoint_fault, list_checkpoints, off_schedule


class Kill(TrainerCallback):
    """Sends this process a signal after a step."""

    def __init__(self, step: int, number: int):
        self.step, self.number = step, number

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_and_saves(tmp_path, number):
    before = signal.getsignal(number)
    stop = StopOnSignal()
    trainer = tiny_trainer(tmp_path, max_steps=50, max_tokens_per_batch=40, schedule="constant")
    trainer.add_callback(Kill(3, number))
    trainer.add_callback(stop)
    with stop.listening():
        trainer.train()
    assert stop.received == number
    assert trainer.state.global_step in (3, 4)
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}" / "trainer_state.json").is_file()
    assert signal.getsignal(number) is before


def test_a_stop_within_an_epoch_does_not_evaluate_as_if_it_had_ended(tmp_path):
    options = dict(
        per_device_train_batch_size=8, num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch"
    )  # 3 steps each
    trainer, stop = tiny_trainer(tmp_path, **options), StopOnSignal()
    trainer.add_callback(Kill(4, signal.SIGTERM))
    trainer.add_callback(stop)
    with stop.listening():
        trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [3]
    marks = {path.name: off_schedule(path) for path in list_checkpoints(tmp_path)}
    assert marks == {"checkpoint-3": None, "checkpoint-4": OffSchedule(ended=False)}
    assert checkpoint_fault(tmp_path / "checkpoint-4") is None
    assert "off_schedule.json" in (tmp_path / "checkpoint-4" / "manifest.json").read_text()


def test_a_second_interrupt_stops_at_once(capfd):
    stop = StopOnSignal()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
        assert "Ctrl-C once more stops at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


class Interrupt(TrainerCallback):
    """Sends this process Ctrl-C while it evaluates, and waits until that is told."""

    def __init__(self, told: list[str]):
        self.told = told

    def on_prediction_step(self, args, state, control, **kwargs):
        if not self.told:
            os.kill(os.getpid(), signal.SIGINT)
            while not self.told:
                time.sleep(0.01)

    def on_evaluate(self, args, state, control, **kwargs):
        self.told.append(f"evaluated at {state.global_step}")


def test_a_signal_inside_an_evaluation_is_told_at_once(tmp_path):
    told: list[str] = []
    stop = StopOnSignal(told.append)
    trainer = tiny_trainer(
        tmp_path, max_steps=50, max_tokens_per_batch=40, schedule="constant", eval_strategy="steps", eval_steps=2
    )
    trainer.add_callback(stop)
    trainer.add_callback(Interrupt(told))
    with stop.listening():
        trainer.train()
    assert told == ["stopping after this evaluation, with a checkpoint; Ctrl-C once more stops at once", "evaluated at 2"]
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}" / "trainer_state.json").is_file()


def test_a_worker_that_is_interrupted_says_nothing(capfd):
    stop = StopOnSignal()
    with stop.listening():
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(0 if stop.received is None else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert capfd.readouterr().err == ""


def stopping_early(folder, scores: list[float], steps: int = 50, **options):
    """A run that is evaluated after each step, with scores of our choice."""
    left = iter(scores)
    common = dict(max_tokens_per_batch=40, schedule="constant", eval_strategy="steps", eval_steps=1, save_strategy="best")
    common |= dict(metric_for_best_model="bleu", early_stopping_patience=2, max_steps=steps)
    trainer = tiny_trainer(folder, metrics=lambda prediction: {"bleu": next(left)}, **common | options)
    trainer.add_callback(SaveLastStep())
    trainer.add_callback(EarlyStopping(trainer.args.early_stopping_patience, trainer.args.early_stopping_threshold))
    return trainer


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_early_stopping_ends_with_the_best_and_saves_the_last(tmp_path):
    trainer = stopping_early(tmp_path, [1.0, 3.0, 2.0, 2.5])
    trainer.train()
    assert trainer.state.global_step == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2", "checkpoint-4"]
    best = type(trainer.model).from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(weights(trainer.model), weights(best))


def test_a_better_score_by_too_little_does_not_count(tmp_path):
    trainer = stopping_early(tmp_path, [1.0, 1.5, 1.9, 3.0], early_stopping_threshold=0.6)
    trainer.train()
    assert trainer.state.global_step == 3


def test_patience_goes_on_after_a_resume(tmp_path):
    stopping_early(tmp_path, [3.0, 2.0], steps=2).train()
    trainer = stopping_early(tmp_path, [2.5, 9.0, 9.0])
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 3
    assert trainer.state.best_metric == 3.0


def test_a_signal_is_followed_by_a_checkpoint_even_where_only_the_best_are_kept(tmp_path):
    stop = StopOnSignal()
    trainer = stopping_early(tmp_path, [3.0, 2.0, 1.0, 1.0], early_stopping_patience=9)
    trainer.add_callback(Kill(2, signal.SIGTERM))
    trainer.add_callback(stop)
    with stop.listening():
        trainer.train()
    assert stop.received == signal.SIGTERM
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}" / "optimizer.pt").is_file()

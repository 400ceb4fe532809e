"""Progress, signals and the clock between steps."""

import io
import os
import re
import signal

import pytest
from rich.console import Console
from transformers import PrinterCallback
from transformers.trainer_callback import TrainerCallback

from tiny_training import tiny_trainer
from transduct.training.callbacks import ShowProgress, StopOnSignal


class Kill(TrainerCallback):
    """Sends this process a signal after a step."""

    def __init__(self, step: int, number: int):
        self.step, self.number = step, number

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


def shown(terminal: bool, tmp_path, **options) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    defaults = dict(max_steps=30, logging_strategy="steps", logging_steps=5, max_tokens_per_batch=40, schedule="constant")
    trainer = tiny_trainer(tmp_path, metrics=lambda prediction: {"word_error": 0.25}, **{**defaults, **options})
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ShowProgress(console, seconds_between_lines=0.0))
    trainer.train()
    return console.file.getvalue()


def test_lines_without_a_terminal(tmp_path):
    lines = shown(False, tmp_path).splitlines()
    pattern = r" *\d+%  step \d+  loss \d+\.\d{4}  learning rate \d\.\d\de-\d\d  [\d,]+ tokens/s"
    assert len(lines) > 10
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert lines[-1].startswith("100%  step 30")


def test_steps_are_counted_where_tokens_are_not(tmp_path):
    text = shown(False, tmp_path, max_tokens_per_batch=None, schedule=None, per_device_train_batch_size=8)
    assert "steps/s" in text
    assert "tokens/s" not in text


def test_a_bar_on_a_terminal(tmp_path):
    text = shown(True, tmp_path)
    assert "training" in text
    assert "tokens/s" in text
    assert "100%" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_evaluation_is_reported(tmp_path, terminal):
    options = dict(eval_strategy="steps", eval_steps=10, predict_with_generate=True, generation_max_length=4)
    text = shown(terminal, tmp_path, **options)
    assert len(re.findall(r"step \d0  validation: loss \d\.\d{4}, word error 0\.2500", text)) == 3


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


def test_a_second_interrupt_stops_at_once():
    stop = StopOnSignal()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

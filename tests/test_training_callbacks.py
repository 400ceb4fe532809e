"""Signals and the clock between steps."""

import os
import signal

import pytest
from transformers.trainer_callback import TrainerCallback

from tiny_training import tiny_trainer
from transduct.training.callbacks import StopOnSignal


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


def test_a_second_interrupt_stops_at_once():
    stop = StopOnSignal()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

"""What happens between two steps: stop when the time is up, checkpoint by the clock and on a signal."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from transduct.training.checkpoints import OffSchedule, SavesState, off_schedule
from transduct.training.schedules import BudgetedLR


class ByTheClock(TrainerCallback, SavesState):
    """Stops, with a checkpoint, when the schedule's time is up; saves every `save_seconds` of training before that."""

    def __init__(self, save_seconds: float | None = None):
        self.save_seconds = save_seconds
        self.saved_at = 0.0  # seconds of training at the last checkpoint that was due
        self.is_due = False  # a checkpoint at this step, by `save_seconds`
        self.time_is_up = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        checkpoint, self.resumed_at = self.resumed_at, None
        mark = None if checkpoint is None else off_schedule(checkpoint)
        self.saved_at = kwargs["lr_scheduler"].elapsed if mark is None or mark.saved_at is None else mark.saved_at
        self.is_due = self.time_is_up = False

    def save_state(self, folder: Path) -> None:
        """Nothing: at a checkpoint that was due, the count begins anew, and in any other its mark holds it."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        schedule: BudgetedLR = kwargs["lr_scheduler"]
        self.is_due = self.save_seconds is not None and schedule.elapsed - self.saved_at >= self.save_seconds
        self.time_is_up = schedule.time_is_up
        if self.time_is_up:
            control.should_training_stop = control.should_save = True
        elif self.is_due:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not control.should_training_stop:
            self.saved_at = kwargs["lr_scheduler"].elapsed


class MarkStops(TrainerCallback, SavesState):
    """Marks the checkpoints that are written because a training stops, and that would not have been if it had gone on."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def save_state(self, folder: Path) -> None:
        trainer, callbacks = self.trainer, self.trainer.callback_handler.callbacks
        clocks = [callback for callback in callbacks if isinstance(callback, ByTheClock)]
        due = is_due(trainer.args, trainer.state) or any(clock.is_due for clock in clocks)
        if not trainer.control.should_training_stop or due:
            return
        asked = any(isinstance(callback, StopOnSignal) and callback.stops for callback in callbacks)
        over = trainer.state.global_step >= trainer.state.max_steps or any(clock.time_is_up for clock in clocks)
        saved_at = next((clock.saved_at for clock in clocks if clock.save_seconds is not None), None)
        if trainer.args.local_process_index == 0 and folder.is_dir():  # a machine may have a disk of its own
            OffSchedule(ended=over or not asked, saved_at=saved_at).write(folder)


def is_due(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether `save_strategy` asks for a checkpoint at this step, whatever comes after it."""
    if args.save_strategy == SaveStrategy.STEPS:
        return state.save_steps > 0 and state.global_step % state.save_steps == 0
    if args.save_strategy == SaveStrategy.EPOCH:
        return is_whole_epoch(state)
    return args.save_strategy == SaveStrategy.BEST and state.best_global_step == state.global_step


def is_whole_epoch(state: TrainerState) -> bool:
    return state.epoch is not None and float(state.epoch).is_integer()


class StopOnSignal(TrainerCallback):
    """On Ctrl-C or SIGTERM, say so, finish the step, write a checkpoint and stop. `received` then holds the signal's number.

    An evaluation is finished first: its result decides which checkpoint is the best, and when patience ends. One that belongs at
    the end of an epoch waits for it, in the training that goes on, as it would have without the stop. Of several
    processes, whichever of them got the signal, all stop at the same step: after each step they ask each other, and look at the
    answers one step later, when these have long arrived. A second Ctrl-C stops at once. The handlers are those of before as soon
    as the training has ended.

    Args:
        say: shows a line; None: it goes to the standard error.
    """

    def __init__(self, say: Callable[[str], Any] | None = None):
        self.received: int | None = None
        self.stops = False  # at this step; the same in all processes
        self._say, self._process, self._evaluates = say, os.getpid(), False
        self._answer: tuple[torch.Tensor, Any] | None = None  # of all processes, on its way

    @contextmanager
    def listening(self) -> Iterator["StopOnSignal"]:
        """Listens inside; belongs around `trainer.train()`, in the main thread."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a worker that loads data; it ends with the training
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        when = "this evaluation" if self._evaluates else "the next step"
        text = f"stopping after {when}, with a checkpoint; Ctrl-C once more stops at once"
        if self._say is None:
            os.write(2, f"{text}\n".encode())
        else:  # what shows lines may be busy here, in the middle of whatever it was doing
            threading.Thread(target=self._say, args=(text,)).start()

    def on_prediction_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._evaluates = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._evaluates = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._evaluates = control.should_evaluate
        self.stops = self.received is not None if args.world_size == 1 else self._any_stopped(args.device)
        if self.stops:
            control.should_training_stop = control.should_save = True

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.stops and not is_whole_epoch(state):
            control.should_evaluate = False

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if args.world_size > 1:  # what each of them does next must be the same, too
            self.received = self._read(self._ask(args.device))

    def _any_stopped(self, device: torch.device) -> bool:
        """Whether a process had its signal at the end of the step before this one; asks all of them about this one."""
        before, self._answer = self._answer, self._ask(device)
        return before is not None and self._read(before) is not None

    def _ask(self, device: torch.device) -> tuple[torch.Tensor, Any]:
        number = torch.tensor(self.received or 0, device=device)
        return number, torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, async_op=True)

    def _read(self, answer: tuple[torch.Tensor, Any]) -> int | None:
        number, under_way = answer
        under_way.wait()
        return int(number) or None


def training_was_stopped(trainer: Any) -> bool:
    """Whether the training ended because of a signal, and goes on later."""
    callbacks = trainer.callback_handler.callbacks
    return any(isinstance(callback, StopOnSignal) and callback.received is not None for callback in callbacks)


class SaveLastStep(TrainerCallback):
    """Writes a checkpoint when the training ends, for whatever reason, so that a longer run can go on from there."""

    def __init__(self):
        self._saved = -1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if state.global_step >= state.max_steps:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._saved = state.global_step

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if control.should_training_stop and self._saved != state.global_step:  # save_strategy="best" would not
            control.should_save = True


class EarlyStopping(EarlyStoppingCallback):
    """transformers' early stopping, which goes on counting where the checkpoint was written."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]

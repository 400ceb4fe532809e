"""What happens between two steps: stop when the time is up, checkpoint by the clock and on a signal, show the progress."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transduct.training.batching import TokenBudgetBatchSampler
from transduct.training.schedules import BudgetedLR


class ByTheClock(TrainerCallback):
    """Stops, with a checkpoint, when the schedule's time is up; saves every `save_seconds` of training before that."""

    def __init__(self, save_seconds: float | None = None):
        self.save_seconds = save_seconds
        self._saved_at = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._saved_at = kwargs["lr_scheduler"].elapsed

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        schedule: BudgetedLR = kwargs["lr_scheduler"]
        if schedule.time_is_up:
            control.should_training_stop = control.should_save = True
        elif self.save_seconds is not None and schedule.elapsed - self._saved_at >= self.save_seconds:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._saved_at = kwargs["lr_scheduler"].elapsed


class StopOnSignal(TrainerCallback):
    """On Ctrl-C or SIGTERM, finish the step, write a checkpoint and stop. `received` then holds the signal's number.

    Of several processes, whichever of them got the signal, all stop at the same step: after each step they ask each other, and
    look at the answers one step later, when these have long arrived. A second Ctrl-C stops at once. The handlers are those of
    before as soon as the training has ended.
    """

    def __init__(self):
        self.received: int | None = None
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
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        stops = self.received is not None if args.world_size == 1 else self._any_stopped(args.device)
        if stops:
            control.should_training_stop = control.should_save = True

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


class ShowProgress(TrainerCallback):
    """A bar with loss, learning rate, tokens per second and the time left; where there is no terminal, a line now and then.

    Tokens are source and target tokens without padding. They are known with token-budget batches only; otherwise the rate
    is given in steps.
    """

    def __init__(self, console: Console | None = None, seconds_between_lines: float = 15.0):
        self.console = console or Console()
        self.seconds_between_lines = seconds_between_lines
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._evaluation: TaskID | None = None
        self._numbers: dict[str, float] = {}
        self._tokens_per_step = 0.0
        self._mark = self._line_at = 0.0  # clock at the last log, and at the last line
        self._mark_step = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not state.is_world_process_zero:
            return
        self._tokens_per_step = _tokens_per_step(kwargs["train_dataloader"], args)
        self._mark, self._mark_step = time.monotonic(), state.global_step
        self._start("training")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs=None, **kwargs: Any):
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        now, steps = time.monotonic(), state.global_step - self._mark_step
        self._numbers = {"loss": logs["loss"], "rate": logs["learning_rate"], "steps": steps / max(now - self._mark, 1e-9)}
        self._mark, self._mark_step = now, state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not state.is_world_process_zero or self._bar is None or self._task is None:
            return
        share = _share_done(state, kwargs["lr_scheduler"])
        text = self._text(state.global_step)
        if self.console.is_terminal:
            self._bar.update(self._task, completed=min(share, 1.0), numbers=text)
        elif self._numbers and time.monotonic() - self._line_at >= self.seconds_between_lines:
            self._line_at = time.monotonic()
            self.console.print(f"{share:4.0%}  {text}", highlight=False, soft_wrap=True)

    def _text(self, step: int) -> str:
        if not self._numbers:
            return f"step {step:,}"
        steps = self._numbers["steps"]
        speed = f"{steps * self._tokens_per_step:,.0f} tokens/s" if self._tokens_per_step else f"{steps:,.2f} steps/s"
        return f"step {step:,}  loss {self._numbers['loss']:.4f}  learning rate {self._numbers['rate']:.2e}  {speed}"

    def on_prediction_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not state.is_world_process_zero:
            return
        if self._evaluation is None:
            self._evaluation = self._start("evaluation", total=len(kwargs["eval_dataloader"]))
        if self._bar is not None:
            self._bar.advance(self._evaluation)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics=None, **kwargs: Any):
        self._end_evaluation()
        if state.is_world_process_zero and metrics:
            timing = ("runtime", "per_second", "time", "epoch")
            kept = {name.removeprefix("eval_"): value for name, value in metrics.items() if not name.endswith(timing)}
            figures = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in kept.items())
            self.console.print(f"step {state.global_step:,}  validation: {figures}", highlight=False, soft_wrap=True)

    def on_predict(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics=None, **kwargs: Any):
        self._end_evaluation()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._close()

    def _start(self, what: str, total: float = 1.0) -> TaskID:
        if self._bar is None:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[numbers]}"),
            )
            self._bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
            self._bar.start()
        task = self._bar.add_task(what, total=total, numbers="")
        if what == "training":
            self._task = task
        return task

    def _end_evaluation(self) -> None:
        if self._bar is not None and self._evaluation is not None:
            self._bar.remove_task(self._evaluation)
            self._evaluation = None
            if self._task is None:
                self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = self._evaluation = None


def _tokens_per_step(loader: Any, args: TrainingArguments) -> float:
    """Source and target tokens of an update without padding, the mean of an epoch; 0 where the batches have no budget."""
    sampler = loader.batch_sampler
    while sampler is not None and not isinstance(sampler, TokenBudgetBatchSampler):
        sampler = vars(sampler).get("batch_sampler")
    if sampler is None:
        return 0.0
    return float(sampler.lengths.sum()) / len(sampler) * args.gradient_accumulation_steps * args.world_size


def _share_done(state: TrainerState, scheduler: Any) -> float:
    return scheduler.progress if isinstance(scheduler, BudgetedLR) else state.global_step / max(state.max_steps, 1)

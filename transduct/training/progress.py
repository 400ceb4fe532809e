"""The progress of a training on a terminal, or as lines now and then where there is none."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transduct.terminal import harmless
from transduct.training.metrics import without_timings
from transduct.training.schedules import BudgetedLR


class HarmlessConsole(Console):
    """A console that tells a terminal nothing but what it says itself, whatever the names and texts that it prints hold."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(harmless(each) if isinstance(each, str) else each for each in objects), **options)


class ShowProgress(TrainerCallback):
    """A bar with loss, learning rate, tokens per second, padding and the time left; without a terminal, a line now and then.

    Tokens and padding are known from what `throughput.TokenCounter` logs; without it the rate is given in steps.
    """

    def __init__(self, console: Console | None = None, seconds_between_lines: float = 15.0):
        self.console = console or Console()
        self.seconds_between_lines = seconds_between_lines
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._evaluation: TaskID | None = None
        self._figures = ""  # of the last log
        self._mark = self._line_at = self._began = 0.0  # clock at the last log, at the last line, at the start
        self._mark_step = 0
        self._share_before = 0.0  # done by earlier starts

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not state.is_world_process_zero:
            return
        self._mark = self._began = time.monotonic()
        self._mark_step, self._figures = state.global_step, ""
        self._share_before = _share_done(state, kwargs["lr_scheduler"])
        self._start("training")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs=None, **kwargs: Any):
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        now, steps = time.monotonic(), state.global_step - self._mark_step
        self._figures = f"loss {logs['loss']:.4f}  learning rate {logs['learning_rate']:.2e}  "
        if "target_tokens_per_second" in logs:
            source, target = logs["source_tokens_per_second"], logs["target_tokens_per_second"]
            self._figures += f"{source:,.0f} source and {target:,.0f} target tokens/s  padding {logs['padding_share']:.1%}"
        else:
            self._figures += f"{steps / max(now - self._mark, 1e-9):,.2f} steps/s"
        self._mark, self._mark_step = now, state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not state.is_world_process_zero or self._bar is None or self._task is None:
            return
        share = _share_done(state, kwargs["lr_scheduler"])
        if self.console.is_terminal:
            self._bar.update(self._task, completed=min(share, 1.0), numbers=self._text(state.global_step, share))
        elif self._figures and time.monotonic() - self._line_at >= self.seconds_between_lines:
            self._line_at = time.monotonic()
            self.console.print(f"{share:4.0%}  {self._text(state.global_step, share)}", highlight=False, soft_wrap=True)

    def _text(self, step: int, share: float) -> str:
        if not self._figures:
            return f"step {step:,}"
        left = time_left(time.monotonic() - self._began, self._share_before, share)
        return f"step {step:,}  {left} left  {self._figures}"

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
            kept = {name: metrics[name] for name in without_timings(metrics)}
            figures = ", ".join(f"{name.removeprefix('eval_').replace('_', ' ')} {value:.4f}" for name, value in kept.items())
            if any(name.startswith("eval_") for name in kept):  # not a test set, which is shown when all is over
                self.console.print(f"step {state.global_step:,}  validation: {figures}", highlight=False, soft_wrap=True)

    def on_predict(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics=None, **kwargs: Any):
        self._end_evaluation()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._close()

    def _start(self, what: str, total: float = 1.0) -> TaskID:
        if self._bar is None:
            columns = (
                SpinnerColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24 if self.console.width >= 120 else 8, table_column=Column(no_wrap=True)),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(table_column=Column(no_wrap=True)),
                FiguresColumn(),
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


class FiguresColumn(ProgressColumn):
    """The figures of a task. Where the terminal is narrow, they are cut, and the other columns stay whole."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["numbers"], no_wrap=True, overflow="ellipsis")


def time_left(seconds: float, share_before: float, share: float) -> str:
    """How long the rest takes, as h:mm:ss, if `seconds` brought the run from `share_before` to `share` of the whole."""
    if share <= share_before:
        return "unknown time"
    left = seconds * max(1 - share, 0.0) / (share - share_before)
    return str(timedelta(seconds=round(left)))


def _share_done(state: TrainerState, scheduler: Any) -> float:
    return scheduler.progress if isinstance(scheduler, BudgetedLR) else state.global_step / max(state.max_steps, 1)

"""Training arguments: transformers' own, and what they lack (token budgets, the papers' schedules, budgets of time)."""

from dataclasses import dataclass, field
from typing import get_args

from transformers import Seq2SeqTrainingArguments

from transduct.training.schedules import ScheduleName

NO_LIMIT_OF_EPOCHS = 1e6
"""What `num_train_epochs` becomes where only the time limits a run."""


@dataclass
class TransductTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the fields below. `TransductTrainer` acts on them; other trainers do not.

    Raises:
        ValueError: for values out of range, and for options that contradict each other.
    """

    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate (default 5e-5); for schedule='vaswani' a factor on the paper's formula (default 1)."
        },
    )
    num_train_epochs: float | None = field(
        default=None, metadata={"help": "Epochs to train (default 3; with max_minutes: as many as fit)."}
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Batches of at most this many source and target tokens with their padding, instead of "
            "per_device_train_batch_size rows. Pairs of like length share a batch."
        },
    )
    schedule: ScheduleName | None = field(
        default=None,
        metadata={
            "help": "'vaswani', 'inverse_sqrt' or 'constant', warmed up over warmup_steps; None: lr_scheduler_type is used."
        },
    )
    cooldown: float = field(
        default=0.0,
        metadata={"help": "Share of the run, at its end, over which the learning rate of `schedule` falls linearly to zero."},
    )
    max_minutes: float | None = field(
        default=None,
        metadata={"help": "Stop after this many minutes of training, counted over all resumes; `schedule` is needed."},
    )
    save_seconds: float | None = field(
        default=None,
        metadata={"help": "Write a checkpoint whenever this many seconds of training have passed; `schedule` is needed."},
    )

    def __post_init__(self):
        if self.learning_rate is None:
            self.learning_rate = 1.0 if self.schedule == "vaswani" else 5e-5
        if self.num_train_epochs is None:
            self.num_train_epochs = 3.0 if self.max_minutes is None else NO_LIMIT_OF_EPOCHS
        super().__post_init__()
        for name in ("max_tokens_per_batch", "max_minutes", "save_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive, or None")
        if not 0 <= self.cooldown <= 1:
            raise ValueError(f"cooldown={self.cooldown} must lie in [0, 1]: the share of the run that it takes")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule is None:
            for name in ("cooldown", "max_minutes", "save_seconds"):
                if getattr(self, name):
                    raise ValueError(f"{name}={getattr(self, name)} needs a schedule: {', '.join(get_args(ScheduleName))}")
            return
        if self.schedule not in get_args(ScheduleName):
            raise ValueError(f"schedule={self.schedule!r} is unknown; choose one of {', '.join(get_args(ScheduleName))}")
        if self.lr_scheduler_type != type(self).lr_scheduler_type:
            raise ValueError(
                f"schedule={self.schedule!r} and lr_scheduler_type={self.lr_scheduler_type.value!r} exclude each other"
            )
        if self.max_minutes is not None and 0 < self.warmup_steps < 1:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} is a share of all steps, whose number max_minutes leaves open: give a number"
            )

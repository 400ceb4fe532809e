"""Training arguments: transformers' own, and what they lack (token budgets, the papers' schedules, budgets of time)."""

from dataclasses import dataclass, field, fields
from functools import cache
from math import inf
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from transformers import Seq2SeqTrainingArguments

from transduct.training.checks import alternatives, check_type, is_enum
from transduct.training.metrics import higher_is_better
from transduct.training.optimizers import OPTIONS_WITHOUT_USE, RELATIVE_TO_WEIGHTS
from transduct.training.schedules import ScheduleName, schedule_function
from transduct.training.weight_options import WeightOptions

NO_LIMIT_OF_EPOCHS = 1e6
"""What `num_train_epochs` becomes where only the time limits a run."""
RANGES = {
    "learning_rate": (0, inf),
    "weight_decay": (0, inf),
    "adam_beta1": (0, 1),
    "adam_beta2": (0, 1),
    "adam_epsilon": (0, inf),
    "max_grad_norm": (0, inf),
    "warmup_steps": (0, inf),
    "label_smoothing_factor": (0, 1),
    "num_train_epochs": (0, inf),
    "max_steps": (-1, inf),
    "per_device_train_batch_size": (1, inf),
    "per_device_eval_batch_size": (1, inf),
    "gradient_accumulation_steps": (1, inf),
    "save_total_limit": (1, inf),
    "on_nan_limit": (1, inf),
    "early_stopping_patience": (1, inf),
    "early_stopping_threshold": (0, inf),
}
"""The smallest and the largest value of numbers of a recipe."""
NOT_AS_DECLARED = ("fsdp", "max_tokens_per_batch", "optim_args", "resume_from_checkpoint")
"""Arguments that take, or that transformers gives, values that their types do not tell apart."""


@dataclass
class TransductTrainingArguments(WeightOptions, Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the fields below and those of `WeightOptions`.

    `TransductTrainer` acts on them; other trainers do not.

    Raises:
        ValueError: for values of a wrong type or out of range, and for options that contradict each other.
    """

    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate (default 5e-5; with 'adafactor' and 'adamw_rms', whose rates are relative, 1e-3); "
            "for the schedules 'vaswani' and 't5' a factor on the papers' formulas (default 1)."
        },
    )
    num_train_epochs: float | None = field(
        default=None, metadata={"help": "Epochs to train (default 3; with max_minutes: as many as fit)."}
    )
    max_tokens_per_batch: int | str | None = field(
        default=None,
        metadata={
            "help": "Batches of at most this many source and target tokens with their padding, instead of "
            "per_device_train_batch_size rows. Pairs of like length share a batch. 'auto': as many as fit (training/fitting.py)."
        },
    )
    packing: bool = field(
        default=False,
        metadata={
            "help": "Lay several pairs end to end in each row of a batch of max_tokens_per_batch, so that little is padding."
        },
    )
    schedule: ScheduleName | None = field(
        default=None,
        metadata={
            "help": "'vaswani', 'inverse_sqrt', 't5', 'constant' or 'cosine', warmed up over warmup_steps; None: "
            "lr_scheduler_type is used."
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
    on_nan: Literal["stop", "skip"] = field(
        default="stop",
        metadata={
            "help": "What to do about an update whose gradient is not finite: 'stop' before it, or 'skip' it. Either way its "
            "batch is written to output_dir."
        },
    )
    on_nan_limit: int = field(
        default=10, metadata={"help": "With on_nan='skip': stop at this many updates in a row without a finite gradient."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop when metric_for_best_model has not become better in this many evaluations, and load the best "
            "checkpoint; the save_strategy 'no' then becomes 'best'."
        },
    )
    early_stopping_threshold: float = field(
        default=0.0, metadata={"help": "How much better metric_for_best_model must become to count, for early stopping."}
    )

    def __post_init__(self):
        if self.learning_rate is None:
            self.learning_rate = self._default_rate()
        if self.num_train_epochs is None:
            self.num_train_epochs = 3.0 if self.max_minutes is None else NO_LIMIT_OF_EPOCHS
        for name, hint in checked_types().items():
            check_type(getattr(self, name), hint, name)
        self._check_ranges()
        self._check_intervals()
        self._prepare_early_stopping()
        super().__post_init__()
        self._check_batches()
        for name in ("max_minutes", "save_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive, or None")
        if not 0 <= self.cooldown <= 1:
            raise ValueError(f"cooldown={self.cooldown} must lie in [0, 1]: the share of the run that it takes")
        self._check_schedule()
        self._check_optimizer()
        self.check_weight_options()

    def _check_batches(self) -> None:
        """Budgets are whole numbers or "auto", and leave nothing to the options that make batches of rows."""
        if self.dataloader_drop_last and self.eval_strategy != "no":
            raise ValueError("dataloader_drop_last=True would leave rows out of evaluations, too: leave it out")
        budget = self.max_tokens_per_batch
        if isinstance(budget, str) and budget.isdecimal():
            budget = self.max_tokens_per_batch = int(budget)  # from a command line
        if budget is None:
            if self.packing:
                raise ValueError("packing=True needs max_tokens_per_batch: how many tokens the rows of a batch may hold")
            return
        if budget != "auto" and (isinstance(budget, bool) or not isinstance(budget, int) or budget <= 0):
            raise ValueError(f'max_tokens_per_batch={budget!r} must be a positive whole number, "auto" or None')
        for name in ("per_device_train_batch_size", "auto_find_batch_size", "train_sampling_strategy", "dataloader_drop_last"):
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"max_tokens_per_batch={budget} makes batches of its own: leave {name} out")

    def _check_intervals(self) -> None:
        """Numbers of steps, whose zeros and fractions transformers takes for something else, or fails at when it is late."""
        if self.max_steps == 0:
            raise ValueError("max_steps=0 must be at least 1, or left out, where num_train_epochs says how long a run is")
        for name in ("logging_steps", "eval_steps", "save_steps"):
            value = getattr(self, name)
            if value is not None and (value <= 0 or (value > 1 and value % 1 != 0)):
                raise ValueError(f"{name}={value} must be a whole number of at least 1, or a share of all steps below 1")

    def _check_optimizer(self) -> None:
        """Whether there is one optimizer, and whether it has a use for the numbers that are given to it."""
        if self.optimizer is None:
            return
        if self.optim != type(self).optim:
            raise ValueError(f"optimizer={self.optimizer!r} and optim={self.optim!r} exclude each other: leave one of them out")
        for name in OPTIONS_WITHOUT_USE[self.optimizer]:
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(
                    f"optimizer={self.optimizer!r} has no use for {name}={getattr(self, name)}: leave it out, or use optim"
                )

    def _default_rate(self) -> float:
        if self.schedule in ("vaswani", "t5"):
            return 1.0
        return 1e-3 if self.optimizer in RELATIVE_TO_WEIGHTS else 5e-5

    def _check_ranges(self) -> None:
        """The numbers whose faults would otherwise show late, in the words of another library."""
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not low <= value <= high:
                raise ValueError(f"{name}={value} must be " + (f"at least {low}" if high == inf else f"between {low} and {high}"))

    def _prepare_early_stopping(self) -> None:
        inherited: Any = self  # whose types are not known
        if inherited.greater_is_better is None and self.metric_for_best_model is not None:
            inherited.greater_is_better = higher_is_better(self.metric_for_best_model)
        if self.early_stopping_patience is None:
            if self.early_stopping_threshold:
                raise ValueError(f"early_stopping_threshold={self.early_stopping_threshold} needs early_stopping_patience")
            return
        for name, unset in (("metric_for_best_model", None), ("eval_strategy", "no")):
            if getattr(self, name) == unset:
                raise ValueError(f"early_stopping_patience={self.early_stopping_patience} needs {name}")
        self.load_best_model_at_end = True
        if inherited.save_strategy == "no":
            inherited.save_strategy = "best"

    def _check_schedule(self) -> None:
        if self.schedule is None:
            for name in ("cooldown", "max_minutes", "save_seconds"):
                if getattr(self, name):
                    raise ValueError(f"{name}={getattr(self, name)} needs a schedule: {', '.join(get_args(ScheduleName))}")
            return
        if self.lr_scheduler_type != type(self).lr_scheduler_type:
            raise ValueError(
                f"schedule={self.schedule!r} and lr_scheduler_type={self.lr_scheduler_type.value!r} exclude each other"
            )
        if self.lr_scheduler_kwargs:
            raise ValueError(f"lr_scheduler_kwargs={self.lr_scheduler_kwargs} belong to lr_scheduler_type, not to a schedule")
        if self.schedule == "cosine" and self.cooldown:
            raise ValueError(f"cooldown={self.cooldown} and schedule='cosine' exclude each other: a cosine ends at zero itself")
        if not 0 < self.warmup_steps < 1:  # a share of all steps is known when these are
            schedule_function(self.schedule, int(self.warmup_steps), d_model=1)
        elif self.max_minutes is not None:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} is a share of all steps, whose number max_minutes leaves open: give a number"
            )


@cache
def checked_types() -> dict[str, Any]:
    """The arguments whose values must be of their declared types: all of this package, and transformers' plain ones."""
    hints = get_type_hints(TransductTrainingArguments)
    inherited = {f.name for f in fields(Seq2SeqTrainingArguments)} - {"learning_rate", "num_train_epochs"}
    plain = (bool, int, float, str, NoneType)
    return {
        f.name: hints[f.name]
        for f in fields(TransductTrainingArguments)
        if f.init
        and f.name not in NOT_AS_DECLARED
        and (f.name not in inherited or all(kind in plain or is_enum(kind) for kind in alternatives(hints[f.name])))
    }

"""Learning-rate schedules: the paper's, its peak form, and a cooldown over steps or over a budget of minutes.

- `vaswani`: `d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)` (Vaswani et al., section 5.3), steps counted from 1.
- `inverse_sqrt`: the same curve scaled so that it peaks at 1 when `step == warmup`.
- `t5`: `1 / sqrt(max(step, warmup))`, flat for `warmup` updates, 10^4 in T5's pre-training (Raffel et al., section 3.1.2).
- `constant`: linear warm-up, then 1. T5's fine-tuning is this without a warm-up, at a rate of 1e-3.
- `cosine`: linear warm-up, then half a cosine from 1 to 0 over the rest of the run (Loshchilov & Hutter 2017).
- `BudgetedLR` multiplies one of them by a linear cooldown to zero over the last part of the run, or by the cosine. A run that is
  limited by time follows the clock: the seconds used are part of its state, so a stopped run goes on where it was.
"""

import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

ScheduleName = Literal["vaswani", "inverse_sqrt", "t5", "constant", "cosine"]


def vaswani(step: int, d_model: int, warmup: int) -> float:
    """The learning rate of update `step` (from 1 on) as in section 5.3 of the paper; it peaks at `step == warmup`."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def inverse_sqrt(step: int, warmup: int) -> float:
    """`vaswani` divided by its peak: `step / warmup` up to 1, then `sqrt(warmup / step)`. A warm-up of 0 counts as 1."""
    warmup = max(warmup, 1)
    return min(step / warmup, math.sqrt(warmup / step))


def t5(step: int, warmup: int) -> float:
    """The learning rate of update `step` in T5's pre-training, where `warmup` is 10^4: constant, then `step^-0.5`."""
    return max(step, warmup) ** -0.5


def constant(step: int, warmup: int) -> float:
    """Linear warm-up over `warmup` updates, then 1."""
    return min(1.0, step / max(warmup, 1))


def schedule_function(name: ScheduleName, warmup: int, d_model: int | None = None) -> Callable[[int], float]:
    """The factor on the base learning rate as a function of the update number, which starts at 1.

    Of "cosine" it is the warm-up; the rest depends on the length of the run, which `BudgetedLR` knows.

    Raises:
        ValueError: for an unknown name, a negative warm-up, for "vaswani" without `d_model`, and for "vaswani" and "t5" without a
            warm-up.
    """
    if name not in get_args(ScheduleName):
        raise ValueError(f"schedule={name!r} is unknown; choose one of {', '.join(get_args(ScheduleName))}")
    if warmup < 0:
        raise ValueError(f"warmup_steps={warmup} must not be negative")
    if name == "vaswani":
        if d_model is None or d_model < 1:
            raise ValueError(f'schedule="vaswani" needs the width of the model, but d_model={d_model!r}')
        if warmup < 1:
            raise ValueError("schedule='vaswani' needs warmup_steps of at least 1 (the paper: 4000), but warmup_steps=0")
        return partial(vaswani, d_model=d_model, warmup=warmup)
    if name == "t5" and warmup < 1:
        raise ValueError("schedule='t5' needs warmup_steps of at least 1 (T5: 10000), but warmup_steps=0")
    return partial({"inverse_sqrt": inverse_sqrt, "t5": t5}.get(name, constant), warmup=warmup)


def cooldown_factor(progress: float, cooldown: float) -> float:
    """1 until the last `cooldown` share of the run, then linearly down to 0 at its end. `cooldown` 0: always 1; 1: all along."""
    if cooldown == 0:
        return 1.0
    return min(1.0, max(0.0, 1.0 - progress) / cooldown)


def cosine_factor(progress: float) -> float:
    """Half a cosine from 1 at `progress` 0 to 0 at 1 and beyond."""
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, progress))))


class BudgetedLR(LambdaLR):
    """Base learning rate x schedule(update) x cooldown(share of the budget that is used).

    The budget is `total_steps` updates, `seconds` of training, or both, whichever is used up first. Time passes from the
    construction on and while the run is stopped it does not. What `state_dict` holds is the progress only: a resumed run
    takes schedule and budget from its own arguments, so that it may be given a longer budget than the run it continues.
    Over several processes all use the clock of the first.

    Args:
        schedule: factor for update 1, 2, ...; see `schedule_function`.
        total_steps: updates of the whole run; needed for a cooldown unless `seconds` is given.
        seconds: training time of the whole run, over all resumes.
        cooldown: share of the run, in [0, 1], over which the rate falls linearly to zero at the end.
        cosine_after: the rate falls to zero along half a cosine from the end of so many updates on; None: it does not.
        clock: returns seconds; for tests.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Callable[[int], float],
        total_steps: int | None = None,
        seconds: float | None = None,
        cooldown: float = 0.0,
        cosine_after: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not 0 <= cooldown <= 1:
            raise ValueError(f"cooldown={cooldown} must lie in [0, 1]: the share of the run over which the rate falls to zero")
        if seconds is not None and seconds <= 0:
            raise ValueError(f"seconds={seconds} must be positive, or None for no limit of time")
        if cooldown and not (total_steps or seconds):
            raise ValueError(f"cooldown={cooldown} needs the length of the run: total_steps or seconds")
        if cosine_after is not None and not (total_steps or seconds):
            raise ValueError(f"cosine_after={cosine_after} needs the length of the run: total_steps or seconds")
        if cosine_after is not None and cooldown:
            raise ValueError(f"cooldown={cooldown} and the cosine exclude each other: a cosine ends at zero by itself")
        self.total_steps, self.seconds, self.cooldown = total_steps, seconds, cooldown
        self.cosine_after = cosine_after
        self.elapsed = 0.0
        self.warm_seconds = 0.0  # used when `cosine_after` updates were done
        self._clock, self._last_look = clock, clock()
        super().__init__(optimizer, lambda update: schedule(update + 1))

    @property
    def progress(self) -> float:
        """Share of the budget that is used; 1 or more: the run is over. 0 without a budget."""
        by_steps = self.last_epoch / self.total_steps if self.total_steps else 0.0
        by_time = self.elapsed / self.seconds if self.seconds else 0.0
        return max(by_steps, by_time)

    @property
    def time_is_up(self) -> bool:
        return self.seconds is not None and self.elapsed >= self.seconds

    @property
    def progress_of_cosine(self) -> float:
        """Share of the budget after the first `cosine_after` updates that is used; 0 or less before."""
        assert self.cosine_after is not None
        if self.last_epoch < self.cosine_after:
            return 0.0
        by_steps = self.cosine_after / self.total_steps if self.total_steps else 0.0
        start = max(by_steps, self.warm_seconds / self.seconds if self.seconds else 0.0)
        return (self.progress - start) / (1.0 - start) if start < 1.0 else 1.0

    def get_lr(self) -> list[float | torch.Tensor]:
        if self.cosine_after is None:
            factor = cooldown_factor(self.progress, self.cooldown)
        else:
            factor = cosine_factor(self.progress_of_cosine)
        return [rate * factor for rate in super().get_lr()]

    def step(self, epoch: int | None = None) -> None:
        self._look_at_clock()
        if self.cosine_after is not None and self.last_epoch < self.cosine_after:
            self.warm_seconds = self.elapsed
        super().step(epoch)

    def _look_at_clock(self) -> None:
        now = self._clock()
        self.elapsed += now - self._last_look
        self._last_look = now
        if self.seconds and torch.distributed.is_available() and torch.distributed.is_initialized():
            device = self.optimizer.param_groups[0]["params"][0].device
            elapsed = torch.tensor(self.elapsed, dtype=torch.float64, device=device)
            torch.distributed.broadcast(elapsed, src=0)
            self.elapsed = elapsed.item()

    def state_dict(self) -> dict[str, Any]:
        progress = {"last_epoch": self.last_epoch, "_step_count": self._step_count, "elapsed": self.elapsed}
        return progress if self.cosine_after is None else {**progress, "warm_seconds": self.warm_seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`, and set the optimizer's rates to what holds there.

        Raises:
            ValueError: when the state is that of another scheduler.
        """
        missing = set(self.state_dict()) - set(state_dict)
        if missing:
            raise ValueError(
                f"this scheduler state has no {sorted(missing)}: another schedule wrote it. Resume with the arguments of "
                "that run, or start in a new folder"
            )
        self.last_epoch, self._step_count = state_dict["last_epoch"], state_dict["_step_count"]
        self.elapsed, self._last_look = state_dict["elapsed"], self._clock()
        self.warm_seconds = state_dict.get("warm_seconds", 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch expects `get_lr` to be called by its own `step` only
            self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate

"""Exact values of the schedules, and progress that survives a stop."""

import math

import pytest
import torch

from transduct.training.schedules import (
    BudgetedLR,
    constant,
    cooldown_factor,
    cosine_factor,
    inverse_sqrt,
    schedule_function,
    t5,
    vaswani,
)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def optimizer(rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def rate_of(schedule: BudgetedLR) -> float:
    return schedule.optimizer.param_groups[0]["lr"]


def advance(schedule: BudgetedLR, steps: int = 1, clock: Clock | None = None, seconds: float = 0.0) -> None:
    for _ in range(steps):
        if clock is not None:
            clock.now += seconds
        schedule.optimizer.step()
        schedule.step()


def test_vaswani_values_of_the_paper():
    assert vaswani(1, 512, 4000) == 512**-0.5 * 4000**-1.5
    assert vaswani(4000, 512, 4000) == pytest.approx(6.987712429686843e-4, rel=1e-12)
    assert vaswani(100_000, 512, 4000) == pytest.approx((512 * 100_000) ** -0.5, rel=1e-12)
    assert max(range(1, 20_000), key=lambda step: vaswani(step, 512, 4000)) == 4000


@pytest.mark.parametrize("step", [1, 17, 400, 401, 6400])
def test_inverse_sqrt_is_vaswani_over_its_peak(step):
    assert inverse_sqrt(step, 400) == pytest.approx(vaswani(step, 64, 400) / vaswani(400, 64, 400), rel=1e-12)


def test_warm_up_of_zero_starts_at_the_peak():
    assert [inverse_sqrt(step, 0) for step in (1, 4, 100)] == [1.0, 0.5, 0.1]
    assert [constant(step, 0) for step in (1, 2)] == [1.0, 1.0]
    assert [constant(step, 4) for step in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]


def test_t5_values_of_the_paper():
    """0.01 for ten thousand steps, then the square root: 0.002 at 250,000, and 2^-9.5 at 2^19, the last step."""
    assert t5(1, 10_000) == t5(10_000, 10_000) == 0.01
    assert t5(250_000, 10_000) == pytest.approx(0.002, rel=1e-12)
    assert t5(2**19, 10_000) == pytest.approx(0.0013810679320049757, rel=1e-12)


@pytest.mark.parametrize(("progress", "factor"), [(-1, 1), (0, 1), (1 / 3, 0.75), (0.5, 0.5), (2 / 3, 0.25), (1, 0), (1.2, 0)])
def test_cosine_factor(progress, factor):
    assert cosine_factor(progress) == pytest.approx(factor, abs=1e-12)


def test_a_cosine_starts_after_the_warm_up_and_ends_at_zero():
    schedule = BudgetedLR(optimizer(2.0), schedule_function("cosine", 2), total_steps=8, cosine_after=2)
    rates = []
    for _ in range(8):
        rates.append(rate_of(schedule))
        advance(schedule)
    third = [1.0, 0.9330127018922193, 0.75, 0.5, 0.25, 0.0669872981077807]  # (1 + cos(k pi / 6)) / 2
    assert rates == pytest.approx([1.0, 2.0, *(2.0 * factor for factor in third)], rel=1e-9)
    assert rate_of(schedule) == pytest.approx(0.0, abs=1e-12)


def test_a_cosine_by_the_clock_that_is_resumed():
    clock = Clock()
    options = dict(seconds=100.0, cosine_after=2, clock=clock)
    straight = BudgetedLR(optimizer(), schedule_function("cosine", 2), **options)
    advance(straight, 2, clock, 10.0)
    assert rate_of(straight) == 1.0
    advance(straight, 1, clock, 20.0)  # 20 of the 80 seconds that the warm-up has left
    assert rate_of(straight) == pytest.approx(0.8535533905932737, rel=1e-12)
    again = BudgetedLR(optimizer(), schedule_function("cosine", 2), **options)
    again.load_state_dict(straight.state_dict())
    advance(again, 1, clock, 20.0)
    assert rate_of(again) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("progress", "cooldown", "factor"),
    [(0, 1, 1), (0.25, 1, 0.75), (0.5, 0.2, 1), (0.9, 0.2, 0.5), (1, 0.2, 0), (1.3, 0.2, 0), (0.9, 0, 1)],
)
def test_cooldown_factor(progress, cooldown, factor):
    assert cooldown_factor(progress, cooldown) == pytest.approx(factor, abs=1e-12)


def test_the_first_update_has_the_rate_of_step_one():
    schedule = BudgetedLR(optimizer(), schedule_function("vaswani", 4000, 512))
    assert rate_of(schedule) == vaswani(1, 512, 4000)
    advance(schedule, 3)
    assert rate_of(schedule) == vaswani(4, 512, 4000)


def test_cooldown_by_steps_ends_at_zero():
    schedule = BudgetedLR(optimizer(2.0), schedule_function("constant", 0), total_steps=10, cooldown=0.5)
    rates = []
    for _ in range(10):
        rates.append(rate_of(schedule))
        advance(schedule)
    assert rates == pytest.approx([2.0] * 6 + [1.6, 1.2, 0.8, 0.4])
    assert schedule.progress == 1.0
    assert rate_of(schedule) == 0.0


def test_cooldown_by_the_clock():
    clock = Clock()
    schedule = BudgetedLR(optimizer(), schedule_function("constant", 0), seconds=100.0, cooldown=1.0, clock=clock)
    advance(schedule, 3, clock, 10.0)
    assert schedule.elapsed == 30.0
    assert rate_of(schedule) == pytest.approx(0.7)
    assert not schedule.time_is_up
    advance(schedule, 1, clock, 70.0)
    assert schedule.time_is_up
    assert rate_of(schedule) == 0.0


def resumed(state: dict, **options) -> BudgetedLR:
    schedule = BudgetedLR(optimizer(), schedule_function("inverse_sqrt", 5), **options)
    schedule.load_state_dict(state)
    return schedule


def test_a_resumed_schedule_goes_on_where_it_was():
    clock = Clock()
    options = dict(total_steps=1000, seconds=100.0, cooldown=1.0, clock=clock)
    straight = BudgetedLR(optimizer(), schedule_function("inverse_sqrt", 5), **options)
    advance(straight, 20, clock, 2.0)
    state, rate = straight.state_dict(), rate_of(straight)
    clock.now += 10_000.0  # the machine is off
    again = resumed(state, **options)
    assert rate_of(again) == rate == again.get_last_lr()[0]
    advance(again, 5, clock, 2.0)
    assert again.elapsed == 50.0
    assert rate_of(again) == pytest.approx(inverse_sqrt(26, 5) * 0.5, rel=1e-12)


def test_a_resumed_schedule_takes_a_longer_budget():
    clock = Clock()
    straight = BudgetedLR(optimizer(), schedule_function("inverse_sqrt", 5), seconds=40.0, cooldown=1.0, clock=clock)
    advance(straight, 20, clock, 2.0)
    assert straight.time_is_up
    longer = resumed(straight.state_dict(), seconds=80.0, cooldown=1.0, clock=clock)
    assert not longer.time_is_up
    assert rate_of(longer) == pytest.approx(inverse_sqrt(21, 5) * 0.5, rel=1e-12)


def test_state_goes_through_a_safe_file(tmp_path):
    schedule = BudgetedLR(optimizer(), schedule_function("inverse_sqrt", 5), total_steps=50)
    advance(schedule, 7)
    torch.save(schedule.state_dict(), tmp_path / "scheduler.pt")
    again = resumed(torch.load(tmp_path / "scheduler.pt", weights_only=True), total_steps=50)
    assert again.last_epoch == 7
    assert math.isclose(rate_of(again), rate_of(schedule), rel_tol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedule_function("square", 10), "schedule='square'"),
        (lambda: schedule_function("t5", 0), "T5: 10000"),
        (lambda: BudgetedLR(optimizer(), lambda step: 1.0, cosine_after=5), "needs the length of the run"),
        (lambda: BudgetedLR(optimizer(), lambda step: 1.0, total_steps=9, cooldown=0.5, cosine_after=5), "exclude each other"),
        (lambda: schedule_function("vaswani", 10), "d_model=None"),
        (lambda: schedule_function("vaswani", 0, 64), "warmup_steps of at least 1"),
        (lambda: schedule_function("constant", -1), "warmup_steps=-1"),
        (lambda: BudgetedLR(optimizer(), lambda step: 1.0, cooldown=0.5), "needs the length of the run"),
        (lambda: BudgetedLR(optimizer(), lambda step: 1.0, total_steps=5, cooldown=1.5), "cooldown=1.5"),
        (lambda: BudgetedLR(optimizer(), lambda step: 1.0, seconds=0), "seconds=0"),
        (lambda: resumed({"last_epoch": 3}), "another schedule wrote it"),
    ],
)
def test_errors_name_value_and_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make()

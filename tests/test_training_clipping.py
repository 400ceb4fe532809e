"""`max_grad_norm`: the update is that of the whole gradient, shortened to this length where it is longer, however it is split.

The gradient is that of all pairs in one batch, by hand. Clipping what each batch or each process adds to it would give another
direction; clipping before the sum another length.
"""

import pytest
import torch

from clipping_runs import LIMITS, RATE, SPLITS, one_update, whole_gradient
from launching import seen_by_each

RELATIVE = 1e-6
"""Clipping itself divides by the norm and a millionth more; all else is in float64."""

pytestmark = pytest.mark.xdist_group("clipping")  # its processes start once


@pytest.fixture(scope="module")
def whole() -> torch.Tensor:
    return whole_gradient()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What each of two processes saw; all in one start, since that is what takes time."""
    return seen_by_each("clipping_runs.py", tmp_path_factory.mktemp("clipping"))


def assert_clipped(seen, whole: torch.Tensor, share: float | None) -> None:
    """Gradient and update have the direction of `whole`, and at most `share` of its length; the log has the length before."""
    factor = 1.0 if share is None else min(1.0, share)
    limit = float("inf") if share is None else share * whole.norm()
    assert whole.norm() > 0.1
    assert seen["norm"] == pytest.approx(whole.norm().item(), rel=RELATIVE)
    for got, size in ((seen["gradient"], 1.0), (seen["update"], RATE)):
        assert got.norm() <= size * limit
        assert (got - size * factor * whole).norm() <= RELATIVE * size * factor * whole.norm()


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("split", SPLITS)
def test_an_update_is_no_longer_than_its_limit(tmp_path, whole, split, limit):
    share = LIMITS[limit]
    assert_clipped(one_update(tmp_path, split, 0.0 if share is None else share * whole.norm().item()), whole, share)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("split", ["accumulated", "budget", "packed", "in pieces"])
def test_two_processes_clip_their_common_gradient(two_processes, whole, split, limit):
    first, second = (seen[split, limit] for seen in two_processes)
    assert_clipped(first, whole, LIMITS[limit])
    assert torch.equal(first["update"], second["update"])


def test_a_gradient_below_the_limit_is_left_alone(tmp_path, whole):
    """To the last bit, as without a limit."""
    without, above = (one_update(tmp_path, "packed", limit) for limit in (0.0, 4.0 * whole.norm().item()))
    assert torch.equal(without["update"], above["update"])

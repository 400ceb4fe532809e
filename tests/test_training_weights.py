"""Weights in and out of models, and optimizers, averages and extra losses on two processes, whole and in pieces."""

import pytest
import torch

from launching import seen_by_each
from tiny_training import tiny_model, tiny_trainer
from transduct.training.weights import exchanged, refuse_flat_weights
from weights_runs import CASES, new_model, seen_in, train

pytestmark = pytest.mark.xdist_group("weights")  # its processes start once


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What each of two processes saw."""
    return seen_by_each("weights_runs.py", tmp_path_factory.mktemp("weights"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", "sharded "])
@pytest.mark.parametrize("case", list(CASES))
def test_two_processes_do_what_one_does(two_processes, tmp_path, case, way):
    alone = seen_in(train(tmp_path, case, 8))
    untrained = dict(new_model().named_parameters())
    within = 2e-5 if case == "adamw_rms" else 1e-6  # Adam divides small gradients, rounding errors and all, by small numbers
    for seen in two_processes:
        both = seen[f"{way}{case}"]
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(both["weights"][name], weight, rtol=0, atol=within)
        assert any(not torch.equal(weight, untrained[name]) for name, weight in both["weights"].items())
        assert both["losses"] == pytest.approx(alone["losses"], rel=1e-7)
        for mine, theirs in zip(both["averages"], alone["averages"], strict=True):
            for one, other in zip(mine, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=within)


@pytest.mark.slow
def test_a_resumed_sharded_run_is_bit_equal_to_a_straight_one(two_processes):
    for seen in two_processes:
        straight, resumed = seen["sharded moving average"], seen["resumed"]
        for name, weight in straight["weights"].items():
            assert torch.equal(resumed["weights"][name], weight)
        assert resumed["losses"] == straight["losses"]


def test_values_are_exchanged_for_a_while_also_in_another_type():
    model = tiny_model().bfloat16()
    places = list(model.parameters())
    before = [place.detach().clone() for place in places]
    with exchanged(model, places, [torch.full(place.shape, 1.5) for place in places]):
        assert all((place == 1.5).all() for place in places)
    assert all(torch.equal(place, value) for place, value in zip(places, before, strict=True))


def test_weights_in_flat_pieces_are_refused(tmp_path):
    trainer = tiny_trainer(tmp_path)
    refuse_flat_weights(trainer, "ema_decay")
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ValueError, match="ema_decay needs whole weights"):
        refuse_flat_weights(trainer, "ema_decay")
    trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled = False, True
    with pytest.raises(ValueError, match="FSDP's version 2"):
        refuse_flat_weights(trainer, "ema_decay")

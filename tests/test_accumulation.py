"""Loss and gradient of transformers' `Seq2SeqTrainer` depend on the examples of a step, not on how they are split.

16 examples of unequal length, as one batch, accumulated, and on two processes, for the model as Vaswani, T5 and BART. What
transformers' own T5 does in the same set-up is told in docs/gradient_accumulation.md.
"""

import pytest
import torch
from transformers import Seq2SeqTrainer

from accumulation_runs import PRESETS, SMOOTHINGS, TWO_PROCESSES, collator, examples, one_update, our_model, their_t5
from launching import seen_by_each
from transduct.training import TransductTrainer

RELATIVE = 1e-6  # in float32
every_architecture = pytest.mark.parametrize("name", PRESETS)
both_smoothings = pytest.mark.parametrize("smoothing", SMOOTHINGS)

pytestmark = pytest.mark.xdist_group("accumulation")  # its processes start once


def same(got, want) -> None:
    """Two updates with the same loss and the same gradient."""
    assert got[0] == pytest.approx(want[0], rel=RELATIVE)
    assert want[1].norm() > 0.1
    assert (got[1] - want[1]).norm() / want[1].norm() < RELATIVE


@pytest.fixture(scope="module")
def at_once(tmp_path_factory):
    """A function: the update of one batch of 16, by one process."""
    folder, seen = tmp_path_factory.mktemp("at-once"), {}

    def update(name: str, smoothing: float = 0.0):
        if (name, smoothing) not in seen:
            model = their_t5() if name == "transformers" else our_model(name, smoothing)
            seen[name, smoothing] = one_update(model, folder, 1, 16)
        return seen[name, smoothing]

    return update


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """All updates of two processes, as each of them saw them; started once, since starting is what takes time."""
    return seen_by_each("accumulation_runs.py", tmp_path_factory.mktemp("two-processes"))


def exact(model):
    """Loss and gradient of all examples in one batch, without any trainer."""
    loss = model.train()(**collator(model)(examples())).loss
    loss.backward()
    return loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters()])


@every_architecture
@both_smoothings
def test_one_batch_is_what_the_model_computes(name, smoothing, at_once):
    same(at_once(name, smoothing), exact(our_model(name, smoothing)))


@every_architecture
@both_smoothings
@pytest.mark.parametrize(("accumulate", "size"), [(4, 4), (2, 8)])
def test_accumulation(name, smoothing, accumulate, size, at_once, tmp_path):
    same(one_update(our_model(name, smoothing), tmp_path, accumulate, size), at_once(name, smoothing))


@every_architecture
@pytest.mark.parametrize(("accumulate", "size"), [(4, 4), (1, 16)])
def test_accumulation_with_our_trainer(name, accumulate, size, at_once, tmp_path):
    same(one_update(our_model(name, 0.1), tmp_path, accumulate, size, TransductTrainer), at_once(name, 0.1))


@pytest.mark.parametrize("trainer", [Seq2SeqTrainer, TransductTrainer])
def test_the_trainers_own_label_smoothing_is_that_of_the_config(trainer, at_once, tmp_path):
    options = dict(label_smoothing_factor=0.1)
    same(one_update(our_model("vaswani", 0.0), tmp_path, 4, 4, trainer, **options), at_once("vaswani", 0.1))


@every_architecture
def test_smoothing_changes_loss_and_gradient(name, at_once):
    """Or else the tests with it would say nothing."""
    plain, smoothed = (at_once(name, smoothing) for smoothing in SMOOTHINGS)
    assert abs(plain[0] - smoothed[0]) > 1e-5
    assert (plain[1] - smoothed[1]).norm() / plain[1].norm() > 1e-2


@pytest.mark.slow
@every_architecture
@both_smoothings
@pytest.mark.parametrize(("accumulate", "size"), TWO_PROCESSES)
def test_two_processes(name, smoothing, accumulate, size, at_once, two_processes):
    first, second = (seen[name, smoothing, accumulate, size] for seen in two_processes)
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    same(first, at_once(name, smoothing))


def test_transformers_t5_is_off_by_more_than_the_number_of_batches(at_once, tmp_path):
    """The reason for the tests above. When this fails, transformers has mended it: mend docs/gradient_accumulation.md."""
    right = at_once("transformers")
    loss, gradient = one_update(their_t5(), tmp_path, 4, 4)
    assert loss / right[0] > 4
    assert gradient.norm() / right[1].norm() > 4
    assert torch.cosine_similarity(gradient, right[1], dim=0) < 0.999  # and not even in the right direction


@pytest.mark.slow
def test_transformers_t5_is_off_by_the_number_of_processes_too(at_once, two_processes):
    right = at_once("transformers")
    loss, gradient = two_processes[0]["transformers", 0.0, 4, 2]
    assert loss / right[0] == pytest.approx(8, rel=0.05)
    assert gradient.norm() / right[1].norm() > 8

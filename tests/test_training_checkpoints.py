"""A checkpoint that was cut anywhere is not taken for a whole one."""

import shutil

import pytest

from tiny_training import tiny_trainer
from transduct.training.checkpoints import checkpoint_fault, checkpoint_step, find_checkpoints


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two checkpoints of a real trainer."""
    folder = tmp_path_factory.mktemp("run")
    options = dict(max_steps=4, save_steps=2, max_tokens_per_batch=40, schedule="constant")
    tiny_trainer(folder, **options | {"save_strategy": "steps"}).train()
    return folder


@pytest.fixture
def run(written, tmp_path):
    return shutil.copytree(written, tmp_path / "run")


def test_whole_checkpoints_in_order(run):
    whole, faults = find_checkpoints(run)
    assert [path.name for path in whole] == ["checkpoint-2", "checkpoint-4"]
    assert faults == {}


def test_steps_are_numbers(run):
    (run / "checkpoint-4").rename(run / "checkpoint-10")
    (run / "checkpoint-old").mkdir()
    assert [checkpoint_step(path) for path in find_checkpoints(run)[0]] == [2, 10]
    assert checkpoint_step(run / "checkpoint-old") == -1


FILES = ["config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(run, name):
    (run / "checkpoint-4" / name).unlink()
    whole, faults = find_checkpoints(run)
    assert [path.name for path in whole] == ["checkpoint-2"]
    assert faults == {run / "checkpoint-4": f"{name} is missing"}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("name", FILES[1:])
def test_a_file_that_is_cut_short_is_noticed(run, name, share):
    path = run / "checkpoint-4" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert checkpoint_fault(run / "checkpoint-4") == f"{name} is cut short"


def test_nothing_there(tmp_path):
    assert find_checkpoints(tmp_path / "none") == ([], {})

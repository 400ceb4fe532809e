"""Trackers: TensorBoard's file read back, one folder for all starts, and clear words where a package is missing."""

import importlib.util
import math

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from test_training_run import raw_recipe
from transduct.training.recipe import build_recipe
from transduct.training.run import run
from transduct.training.trackers import PACKAGES, check_trackers


def train(folder, **training) -> None:
    recipe = build_recipe(raw_recipe(folder, report_to="tensorboard", **training))
    recipe.folder = folder
    run(recipe, console=Console(quiet=True))


def scalars(folder) -> EventAccumulator:
    events = EventAccumulator(str(folder / "out" / "tensorboard"))
    events.Reload()
    return events


@pytest.mark.slow
def test_what_tensorboard_reads_is_the_history_of_all_starts(tmp_path):
    train(tmp_path, max_steps=8, eval_strategy="steps", eval_steps=4)
    train(tmp_path, max_steps=12, eval_strategy="steps", eval_steps=4)
    assert len(list((tmp_path / "out" / "tensorboard").iterdir())) == 2
    events = scalars(tmp_path)
    losses = events.Scalars("train/loss")
    assert [event.step for event in losses] == [4, 8, 12]
    assert all(math.isfinite(event.value) for event in losses)
    assert events.Scalars("train/learning_rate")[0].value == pytest.approx(0.01)
    assert {"eval/loss", "eval/word_error"} <= set(events.Tags()["scalars"])


@pytest.mark.slow
def test_an_own_folder_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "mine"))
    train(tmp_path, max_steps=4)
    assert list((tmp_path / "mine").iterdir())
    assert not (tmp_path / "out" / "tensorboard").exists()


def test_a_missing_package_is_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "transduct.training.trackers.find_spec", lambda name: None if name.startswith(("tensorboard", "trackio")) else find(name)
    )
    for name in ("tensorboard", "trackio"):
        with pytest.raises(ValueError, match=f"report_to='{name}' needs a package that is not installed: pip install {name}"):
            check_trackers([name])


def test_it_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("transduct.training.trackers.find_spec", lambda name: None)
    raw = raw_recipe(tmp_path, report_to="trackio")
    raw["data"]["train"] = {"json": "no such file.jsonl"}
    with pytest.raises(ValueError, match="pip install trackio"):
        run(build_recipe(raw), console=Console(quiet=True))


def test_unknown_trackers_are_named():
    with pytest.raises(ValueError, match=r"report_to='tensorbord' is unknown; choose none, all or some of .*tensorboard"):
        check_trackers("tensorbord")
    for fine in (None, "none", ["none"], [], "all", ["tensorboard"]):
        check_trackers(fine)


def test_every_tracker_is_one_of_transformers():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(PACKAGES) <= set(INTEGRATION_TO_CALLBACK)

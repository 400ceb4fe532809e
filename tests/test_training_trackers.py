"""Trackers: TensorBoard's file read back, one folder for all starts, and clear words where a package is missing."""

import importlib.util
import math
import sys
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from test_training_run import raw_recipe
from transduct.training.recipe import build_recipe
from transduct.training.run import run
from transduct.training.trackers import PACKAGES, check_trackers


def train(folder, **training) -> None:
    recipe = build_recipe(raw_recipe(folder, **{"report_to": "tensorboard", **training}))
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


class Values(dict):
    def update(self, values, allow_val_change):
        super().update(values)


class Trackio(ModuleType):
    """What transformers calls of the package, noted."""

    def __init__(self):
        super().__init__("trackio")
        self.__spec__ = ModuleSpec("trackio", None)
        self.__version__ = "0.1"
        self.context_vars = SimpleNamespace(current_space_id=ContextVar("space", default=None))
        self.runs, self.logged, self.config = [], [], Values()

    def init(self, **options):
        self.runs.append((options["name"], options["resume"]))
        return self

    def log(self, values, *args, **kwargs):
        self.logged.append(values)

    def finish(self):
        """Nothing to upload."""


def test_all_starts_are_one_run_of_trackio(tmp_path, monkeypatch):
    """It goes on with a run by its name, and would give each start one of its own."""
    trackio = Trackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setattr("transformers.integrations.integration_utils.is_trackio_available", lambda: True)
    for steps in (8, 12):
        train(tmp_path, max_steps=steps, report_to="trackio")
    assert trackio.runs == [("out", "allow")] * 2
    assert sum("train/loss" in values for values in trackio.logged) == 3
    train(tmp_path, max_steps=16, report_to="trackio", run_name="mine")
    assert trackio.runs[-1] == ("mine", "allow")


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

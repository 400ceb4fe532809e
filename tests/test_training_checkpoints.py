"""A checkpoint is whole or not there; a damaged one is noticed and set aside; a killed run ends as if it had never been."""

import errno
import json
import logging
import os
import random
import resource
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from interrupted import STEPS, run_apart
from tiny_training import tiny_trainer
from transduct.training import checkpoints
from transduct.training.checkpoints import (
    MANIFEST,
    CheckpointNotWritten,
    OffSchedule,
    SavesState,
    checkpoint_fault,
    checkpoint_step,
    find_checkpoints,
    list_checkpoints,
    resume_point,
)

OPTIONS = dict(save_strategy="steps", save_steps=2, max_tokens_per_batch=40, schedule="constant")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two checkpoints of a real trainer."""
    folder = tmp_path_factory.mktemp("run")
    tiny_trainer(folder, **OPTIONS, max_steps=4).train()
    return folder


@pytest.fixture(params=["manifest", "without"])
def run(written, tmp_path, request):
    """These, with the manifests of ours or, as transformers writes them, without."""
    folder = shutil.copytree(written, tmp_path / "run")
    if request.param == "without":
        for path in folder.glob(f"*/{MANIFEST}"):
            path.unlink()
    return folder


def names(paths) -> list[str]:
    return [path.name for path in paths]


def test_whole_checkpoints_in_order(run):
    whole, faults = find_checkpoints(run)
    assert names(whole) == ["checkpoint-2", "checkpoint-4"]
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
    assert names(whole) == ["checkpoint-2"]
    assert faults == {run / "checkpoint-4": f"{name} is missing"}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("name", FILES[1:])
def test_a_file_that_is_cut_short_is_noticed(run, name, share):
    path = run / "checkpoint-4" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert checkpoint_fault(run / "checkpoint-4") == f"{name} is cut short"


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_one_wrong_bit_is_noticed(written, tmp_path, name):
    folder = shutil.copytree(written, tmp_path / "run")
    flip_a_bit(folder / "checkpoint-4" / name)
    assert checkpoint_fault(folder / "checkpoint-4") == f"{name} is not what was written: its checksum differs"


def test_a_wrong_bit_in_what_torch_saved_is_noticed_without_a_manifest(written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "run")
    (folder / "checkpoint-4" / MANIFEST).unlink()
    path = folder / "checkpoint-4" / "optimizer.pt"
    with zipfile.ZipFile(path) as archive:
        tensor = archive.read(max(archive.infolist(), key=lambda entry: entry.file_size))
    path.write_bytes(path.read_bytes().replace(tensor, bytes([tensor[0] ^ 1]) + tensor[1:]))
    assert "optimizer.pt is garbled" in str(checkpoint_fault(folder / "checkpoint-4"))


def test_weights_in_several_files_are_checked_without_a_manifest(written, tmp_path):
    folder = shutil.copytree(written / "checkpoint-4", tmp_path / "checkpoint-4")
    (folder / MANIFEST).unlink()
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    parts = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name in parts:
        (folder / name).write_bytes(whole)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict(zip("ab", parts, strict=True))}))
    assert checkpoint_fault(folder) is None
    (folder / parts[1]).write_bytes(whole[:-1])
    assert checkpoint_fault(folder) == f"{parts[1]} is cut short"
    (folder / parts[1]).unlink()
    assert checkpoint_fault(folder) == f"{parts[1]} is missing"
    index.write_text("{")
    assert checkpoint_fault(folder) == "model.safetensors.index.json is garbled"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"files": {"config.json": 3}}'])
def test_a_garbled_manifest_is_noticed(written, tmp_path, content):
    folder = shutil.copytree(written, tmp_path / "run")
    (folder / "checkpoint-4" / MANIFEST).write_text(content)
    assert checkpoint_fault(folder / "checkpoint-4") == f"{MANIFEST} is garbled"


def test_nothing_there(tmp_path):
    assert find_checkpoints(tmp_path / "none") == ([], {})
    assert resume_point(tmp_path / "none", print) is None


def test_a_run_goes_on_before_the_damaged_one_which_is_kept(run):
    said: list[str] = []
    for number in ("", "-2"):
        (run / "checkpoint-4" / "optimizer.pt").write_bytes(b"PK")
        assert resume_point(run, said.append) == run / "checkpoint-2"
        assert (run / f"damaged-checkpoint-4{number}" / "model.safetensors").is_file()
        shutil.copytree(run / "damaged-checkpoint-4", run / "checkpoint-4")
    assert [f"it is now damaged-checkpoint-4{number}" in text for number, text in zip(("", "-2"), said, strict=True)] == [
        True
    ] * 2
    assert "optimizer.pt is cut short" in said[0]


def test_without_a_whole_one_nothing_is_started_anew(run):
    for step in (2, 4):
        (run / f"checkpoint-{step}" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole .*checkpoint-2: model.safetensors is missing"):
        resume_point(run, print)
    assert len(list_checkpoints(run)) == 2


def test_leftovers_are_finished_or_deleted(written, tmp_path):
    """As a stop leaves them while the same step is saved once more, or while an old checkpoint is deleted."""
    folder = shutil.copytree(written, tmp_path / "run")
    (folder / "unfinished").mkdir()
    (folder / "checkpoint-4").rename(folder / "unfinished" / "checkpoint-4")
    (folder / "checkpoint-2").rename(folder / "unfinished" / "old-checkpoint-2")
    assert resume_point(folder, print) == folder / "checkpoint-4"
    shutil.copytree(folder / "checkpoint-4", folder / "unfinished" / "checkpoint-6")
    (folder / "unfinished" / "checkpoint-6" / MANIFEST).unlink()
    assert resume_point(folder, print) == folder / "checkpoint-4"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-4"]


class SaveTwice(TrainerCallback):
    """Asks for a checkpoint of the last step at the end of the epoch as well."""

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_save = True


class Note(TrainerCallback, SavesState):
    """State of its own."""

    def save_state(self, folder):
        (folder / "note.txt").write_text("mine")


def test_what_callbacks_keep_is_part_of_the_checkpoint(tmp_path):
    trainer = tiny_trainer(tmp_path, **OPTIONS, max_steps=2)
    trainer.add_callback(SaveTwice())
    trainer.add_callback(Note())
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2"]
    assert (tmp_path / "checkpoint-2" / "note.txt").read_text() == "mine"
    assert "note.txt" in json.loads((tmp_path / "checkpoint-2" / MANIFEST).read_text())["files"]


class DiskWatch:
    """What has reached the disk, and what is renamed and when: each file and folder by its number, with its time of change."""

    def __init__(self, monkeypatch):
        self.flushed: dict[int, int] = {}
        self.renamed: list[tuple[str, str]] = []
        self.late: list[str] = []  # what a folder held that got its name before this had reached the disk
        self.unsure: list[str] = []  # what went before the name of the newest checkpoint had reached the disk
        self.awaited: Path | None = None
        self.sync, self.rename = os.fsync, os.rename
        monkeypatch.setattr("os.fsync", self._fsync)
        monkeypatch.setattr("os.rename", self._rename)

    def _fsync(self, descriptor: int) -> None:
        self.sync(descriptor)
        found = os.fstat(descriptor)
        self.flushed[found.st_ino] = found.st_mtime_ns
        if self.awaited is not None and found.st_ino == self.awaited.stat().st_ino:
            self.awaited = None

    def _rename(self, source, target, **folders) -> None:
        source, target = Path(source), Path(target)
        self.renamed.append((source.name, target.name))
        if target.name.startswith("checkpoint-"):
            parts = (source, *source.rglob("*"))
            self.late += [path.name for path in parts if self.flushed.get(path.stat().st_ino) != path.stat().st_mtime_ns]
        elif self.awaited is not None:
            self.unsure.append(target.name)
        self.rename(source, target, **folders)
        if target.name.startswith("checkpoint-"):
            self.awaited = target.parent


def test_a_checkpoint_gets_its_name_when_all_of_it_is_on_the_disk_and_an_old_one_goes_after_that(tmp_path, monkeypatch):
    watch = DiskWatch(monkeypatch)
    trainer = tiny_trainer(tmp_path, **OPTIONS, max_steps=4, save_total_limit=1)
    trainer.add_callback(Note())
    trainer.train()
    assert watch.renamed == [
        ("checkpoint-2", "checkpoint-2"),
        ("checkpoint-4", "checkpoint-4"),
        ("checkpoint-2", "old-checkpoint-2"),
    ]
    assert watch.late == []
    assert watch.unsure == []
    assert len(watch.flushed) > 2 * len(list((tmp_path / "checkpoint-4").iterdir()))


def test_the_best_checkpoint_is_found_where_it_stays(tmp_path):
    options = dict(eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, metric_for_best_model="steps")
    scores = iter([1.0, 3.0, 2.0])
    trainer = tiny_trainer(
        tmp_path, **OPTIONS | options, max_steps=6, save_total_limit=1, metrics=lambda prediction: {"steps": next(scores)}
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(tmp_path / "checkpoint-4")
    assert names(list_checkpoints(tmp_path))[0] == "checkpoint-4"


def test_the_best_checkpoint_is_found_where_the_run_was_moved_to(tmp_path):
    options = dict(eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, metric_for_best_model="steps")
    scores = iter([3.0, 1.0, 2.0, 1.0])

    def trainer(folder, steps):
        options_of_run = OPTIONS | options | {"max_steps": steps, "save_total_limit": 2}
        return tiny_trainer(folder, **options_of_run, metrics=lambda prediction: {"steps": next(scores)})

    trainer(tmp_path / "before", 4).train()
    (tmp_path / "before").rename(tmp_path / "after")
    moved = trainer(tmp_path / "after", 8)
    moved.train(resume_from_checkpoint=str(tmp_path / "after" / "checkpoint-4"))
    assert moved.state.best_model_checkpoint == str(tmp_path / "after" / "checkpoint-2")
    best = load_file(tmp_path / "after" / "checkpoint-2" / "model.safetensors")
    assert torch.equal(moved.model.state_dict()["model.encoder.embed_tokens.weight"], best["model.encoder.embed_tokens.weight"])


def full_disk(monkeypatch, after: int):
    """Every write of `torch.save` fails after the first `after` ones."""
    save, calls = torch.save, []

    def limited(value, path, *args, **kwargs):
        calls.append(path)
        if len(calls) > after:
            Path(path).write_bytes(b"part")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", limited)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, **OPTIONS, max_steps=4, save_total_limit=1)
    full_disk(monkeypatch, after=6)  # four files in a checkpoint
    with pytest.raises(
        CheckpointNotWritten, match=r"checkpoint-4 could not be written to .*No space left.*MB were free.*-2"
    ) as raised:
        trainer.train()
    assert isinstance(raised.value, OSError)
    assert raised.value.filename is None  # the command line shows the message as it is
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2"]
    assert checkpoint_fault(tmp_path / "checkpoint-2") is None


def test_a_full_disk_at_the_first_checkpoint(tmp_path, monkeypatch):
    full_disk(monkeypatch, after=1)
    with pytest.raises(CheckpointNotWritten, match="there is no checkpoint before it"):
        tiny_trainer(tmp_path, **OPTIONS, max_steps=4).train()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_system_cuts_off(tmp_path):
    """Not torch's word for it: a process of its own may write files of 40,000 bytes, and the optimizer's is longer."""
    tiny_trainer(tmp_path, **OPTIONS, max_steps=2, save_total_limit=1).train()
    assert (
        (tmp_path / "checkpoint-2" / "optimizer.pt").stat().st_size
        > 40_000
        > max(path.stat().st_size for path in (tmp_path / "checkpoint-2").iterdir() if path.name != "optimizer.pt")
    )
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        try:
            tiny_trainer(tmp_path, **OPTIONS, max_steps=4, save_total_limit=1).train(resume_from_checkpoint=True)
        except CheckpointNotWritten as error:
            (tmp_path / "said").write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert f"checkpoint-4 could not be written to {tmp_path}" in (tmp_path / "said").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "said"]
    assert checkpoint_fault(tmp_path / "checkpoint-2") is None


def test_an_old_checkpoint_goes_only_after_the_new_one_is_whole(tmp_path, monkeypatch):
    seen: list[tuple[list[str], str | None]] = []
    drop = checkpoints.drop_old_checkpoints

    def noted(folder, *options):
        found = list_checkpoints(folder)
        seen.append((names(found), checkpoint_fault(found[-1])))
        drop(folder, *options)

    monkeypatch.setattr(checkpoints, "drop_old_checkpoints", noted)
    tiny_trainer(tmp_path, **OPTIONS, max_steps=6, save_total_limit=1).train()
    assert seen == [(["checkpoint-2"], None), (["checkpoint-2", "checkpoint-4"], None), (["checkpoint-4", "checkpoint-6"], None)]
    assert names(list_checkpoints(tmp_path)) == ["checkpoint-6"]


def test_the_oldest_go_first_and_a_user_is_not_warned(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    for step, written in ((300, 100), (5, 500), (40, 500), (20, 500)):  # a run of 300 steps, and one begun anew
        (tmp_path / f"checkpoint-{step}").mkdir()
        os.utime(tmp_path / f"checkpoint-{step}", (written, written))
    checkpoints.drop_old_checkpoints(tmp_path, 2)
    assert names(list_checkpoints(tmp_path)) == ["checkpoint-20", "checkpoint-40"]
    checkpoints.drop_old_checkpoints(tmp_path, 1, best=str(tmp_path / "checkpoint-20"))
    assert names(list_checkpoints(tmp_path)) == ["checkpoint-20", "checkpoint-40"]
    assert not caplog.records


def test_what_a_stop_wrote_takes_no_place_of_another_and_goes_first(tmp_path):
    def write(step: int, *mark: OffSchedule) -> list[int]:
        (tmp_path / f"checkpoint-{step}").mkdir()
        for each in mark:
            each.write(tmp_path / f"checkpoint-{step}")
        checkpoints.drop_old_checkpoints(tmp_path, 2)
        return [checkpoint_step(path) for path in list_checkpoints(tmp_path)]

    stop, end = OffSchedule(ended=False), OffSchedule(ended=True)
    assert [write(10), write(20)] == [[10], [10, 20]]
    assert write(21, stop) == [10, 20, 21]
    assert write(22, stop) == [10, 20, 22]
    assert write(30) == [20, 30]
    assert write(31, end) == [30, 31]
    assert write(40) == [30, 40]


def content(checkpoint: Path) -> dict:
    """All that must not depend on interruptions: weights and averages as bytes, the rest as objects. Times are left out."""
    loaded = {name: torch.load(checkpoint / name) for name in ("optimizer.pt", "scaler.pt", "scheduler.pt")}
    loaded["scheduler.pt"].pop("elapsed")
    random_numbers = torch.load(checkpoint / "rng_state.pth", weights_only=False)
    return {
        **{name: (checkpoint / name).read_bytes() for name in ("model.safetensors", "moving_average.safetensors")},
        "scaler": loaded["scaler.pt"],
        "schedule": loaded["scheduler.pt"],
        "moments": [value for state in loaded["optimizer.pt"]["state"].values() for value in state.values()],
        "random": [random_numbers["cpu"], torch.tensor(random_numbers["python"][1])],
    }


def assert_same(first: dict, second: dict) -> None:
    for name in first.keys() - {"moments", "random"}:
        assert first[name] == second[name], name
    for name in ("moments", "random"):
        assert all(torch.equal(a, b) for a, b in zip(first[name], second[name], strict=True)), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_is_killed_while_saving_ends_like_one_that_is_not(tmp_path, seed):
    moments = run_apart(tmp_path / "straight")
    draws, folder, kills = random.Random(seed), tmp_path / "killed", 0
    per_save = moments // (STEPS // 2)
    for _ in range(12):
        before = list_checkpoints(folder)
        if run_apart(folder, kill_at=draws.randrange(1, 2 * per_save)) >= 0:
            break
        kills += 1
        found = list_checkpoints(folder)
        assert [checkpoint_fault(path) for path in found] == [None] * len(found)
        assert found or not before
        assert get_last_checkpoint(folder) == (str(found[-1]) if found else None)
        if found and checkpoint_step(found[-1]) == STEPS:
            break
    else:
        run_apart(folder)
    assert kills >= 3
    assert_same(content(folder / f"checkpoint-{STEPS}"), content(tmp_path / "straight" / f"checkpoint-{STEPS}"))

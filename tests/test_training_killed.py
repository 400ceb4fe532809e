"""`transduct train` that is ended from outside: killed at any moment of its own, killed as one of two processes, told to stop.

Started again, it ends with the weights of a run that was never stopped, bit by bit, averages included.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from interrupted import command, run_apart
from launching import HERE, SETTINGS, TORCHRUN, launch
from test_training_run import HANGS, raw_recipe
from transduct.training.checkpoints import checkpoint_fault, checkpoint_step, find_checkpoints, list_checkpoints
from transduct.training.moving_average import AVERAGE

pytestmark = pytest.mark.slow

SAVING = dict(save_strategy="steps", save_steps=3)
FINISHES = {
    "average": dict(average_checkpoints=2, save_total_limit=2),
    "moving": dict(ema_decay=0.8, ema_warmup=True, save_total_limit=1),
    "best": dict(average_best=2, eval_strategy="steps", eval_steps=3, metric_for_best_model="loss"),
}
"""How a run comes to its finished model."""


def recipe(folder: Path, **training) -> Path:
    """A recipe in the folder, whose run has dropout."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = raw_recipe(folder, **SAVING, **training)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(raw))
    return folder


def checkpoints(folder: Path) -> list[Path]:
    return list_checkpoints(folder / "out" / "checkpoints")


def kept(folder: Path) -> dict[str, bytes]:
    """All weights that a finished run keeps: of the model, and of each checkpoint with its moving average."""
    files = [*folder.glob("out/model/*.safetensors"), *folder.glob("out/checkpoints/*/*.safetensors")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("finish", FINISHES)
def test_a_command_that_is_killed_again_and_again_ends_like_one_that_is_not(tmp_path, finish):
    straight, killed = (recipe(tmp_path / name, **FINISHES[finish]) for name in ("straight", "killed"))
    moments = run_apart(straight, work=command, watched=straight / "out")
    draws, kills, reached = random.Random(0), 0, set[int]()
    while kills < 8 and run_apart(killed, draws.randrange(moments // 8, moments // 2), command, killed / "out") < 0:
        kills += 1
        found = checkpoints(killed)
        assert [checkpoint_fault(path) for path in found] == [None] * len(found)
        assert not reached or found, "a run that had a checkpoint has none any more"
        reached.update(map(checkpoint_step, found))
    assert kills >= 4
    assert len(reached) >= 2
    run_apart(killed, work=command)
    assert kept(killed) == kept(straight)
    assert len(kept(straight)) >= 3
    assert any(name.endswith(AVERAGE) for name in kept(straight)) == (finish == "moving")
    for name in ("metrics.json", "training_report.html"):
        assert (killed / "out" / name).is_file()
    assert sorted(path.name for path in (killed / "out").iterdir()) == sorted(path.name for path in (straight / "out").iterdir())


def launched(folder: Path, *kill: str) -> subprocess.CompletedProcess:
    """Two processes that train the folder's recipe, one of which may kill itself; see `command_runs.py`."""
    for path in folder.glob("exit*"):
        path.unlink()
    return launch(str(HERE / "command_runs.py"), str(folder), *kill)


def test_a_run_of_two_processes_one_of_which_is_killed_goes_on(tmp_path):
    """First the one that writes its random numbers only, in its first dealing with a checkpoint; then the one that writes all."""
    options = dict(**FINISHES["average"], ema_decay=0.8, ema_finish=False, ddp_backend="gloo")  # both averages at once
    straight, killed = (recipe(tmp_path / name, **options) for name in ("straight", "killed"))
    done = launched(straight)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank, other, event, path, last in (
        ("1", "0", "os.mkdir", "unfinished/checkpoint-6$", 3),
        ("0", "1", "open", "unfinished/checkpoint-9/manifest.json$", 6),
    ):
        done = launched(killed, rank, event, path)
        assert done.returncode != 0
        assert not (killed / f"exit{rank}").exists()
        assert not (killed / f"exit{other}").exists() or (killed / f"exit{other}").read_text() != "0"
        found = checkpoints(killed)
        assert checkpoint_step(found[-1]) == last
        assert [checkpoint_fault(path) for path in found] == [None] * len(found)
    done = launched(killed)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"going on from {killed / 'out' / 'checkpoints' / 'checkpoint-6'}" in done.stdout.replace("\n", "")
    assert kept(killed) == kept(straight)
    assert any(name.endswith(AVERAGE) for name in kept(straight))


def wait_for(ready, process: subprocess.Popen) -> None:
    for _ in range(10 * HANGS):
        if ready():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError(f"nothing came in {HANGS} seconds")


@pytest.mark.parametrize("to", ["the launcher", "process 1"])
def test_each_of_two_processes_ends_with_143_and_they_leave_one_whole_checkpoint(tmp_path, to):
    recipe(tmp_path, max_steps=100_000, save_total_limit=1, ddp_backend="gloo")
    arguments = [sys.executable, *TORCHRUN, str(HERE / "command_runs.py"), str(tmp_path)]
    process = subprocess.Popen(
        arguments, env={**os.environ, **SETTINGS}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(lambda: checkpoints(tmp_path), process)
    os.kill(process.pid if to == "the launcher" else int((tmp_path / "pid1").read_text()), signal.SIGTERM)
    output, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 1
    assert [(tmp_path / f"exit{rank}").read_text() for rank in (0, 1)] == ["143", "143"]
    assert output.count("the same command goes on from there") == 1
    whole, faults = find_checkpoints(tmp_path / "out" / "checkpoints")
    assert faults == {}
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir() if path not in whole] == []
    stopped = int(output.split("stopped at step ")[1].split(";")[0].replace(",", ""))
    assert checkpoint_step(whole[-1]) == stopped
    assert sorted(path.name for path in whole[-1].glob("rng_state*")) == ["rng_state_0.pth", "rng_state_1.pth"]
    assert not (tmp_path / "out" / "model").exists()

"""A training that is killed in the middle of saving, in a process of its own, and what it left behind."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.cli.main import run as command_line
from transduct.training.checkpoints import WholeCheckpoints, resume_point
from transduct.training.moving_average import MovingAverage

STEPS = 8
OPTIONS = dict(
    max_steps=STEPS, save_steps=2, save_strategy="steps", save_total_limit=1, max_tokens_per_batch=40, schedule="inverse_sqrt",
    warmup_steps=4, learning_rate=0.01, gradient_accumulation_steps=2,
)  # fmt: skip
DISK_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir", "shutil.rmtree")


def train(folder: Path) -> None:
    """Train, or go on.

    Everything that a checkpoint must hold has a part in it: dropout, the order of the batches, accumulation, a schedule, a
    moving average, and a loss scaler whose scale grows.
    """
    trainer = tiny_trainer(folder, tiny_model(dropout=0.3), pairs(30), **OPTIONS)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
    trainer.add_callback(MovingAverage(trainer, decay=0.9))
    start = resume_point(folder, print)
    trainer.train(resume_from_checkpoint=None if start is None else str(start))


def command(folder: Path) -> None:
    """`transduct train` of the folder's recipe."""
    code = command_line(["train", str(folder / "recipe.yaml")])
    assert code == 0, f"the command ended with {code}"


def watch(moment: Callable[[], None], folder: Path | None = None) -> None:
    """Call `moment` before each of Python's dealings with the disk while a checkpoint is written, in this process for good.

    And before each with what lies in `folder`, at any time.
    """
    save, saving = WholeCheckpoints.__call__, []

    def watched(self, model, trial):
        saving.append(True)
        save(self, model, trial)
        saving.clear()

    def audit(event: str, arguments: tuple) -> None:
        if event in DISK_EVENTS and (saving or (folder is not None and str(arguments[0]).startswith(str(folder)))):
            moment()

    WholeCheckpoints.__call__ = watched  # type: ignore[method-assign]
    sys.addaudithook(audit)


def when(event: str, path: str, act: Callable[[], object]) -> None:
    """Call `act` before each of Python's dealings with the disk of the kind `event` with such a path, for good.

    Args:
        event: an audit event of Python's, one of `DISK_EVENTS`.
        path: a regular expression that is found in it.
    """

    def audit(name: str, arguments: tuple) -> None:
        if name == event and re.search(path, str(arguments[0])):
            act()

    sys.addaudithook(audit)


def run_apart(folder: Path, kill_at: int | None = None, work: Callable[[Path], None] = train, watched: Path | None = None) -> int:
    """`work` in a child process that kills itself at the given moment; the number of moments that it lived to see, if whole.

    Args:
        watched: a folder whose files have moments, too; see `watch`.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        seen = 0

        def moment() -> None:
            nonlocal seen
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            watch(moment, watched)
            work(folder)
            os.write(writing, str(seen).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return -1
    assert status == 0
    return int(text)

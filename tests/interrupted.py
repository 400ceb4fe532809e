"""A training that is killed in the middle of saving, in a process of its own, and what it left behind."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.training.checkpoints import resume_point
from transduct.training.moving_average import MovingAverage

STEPS = 8
OPTIONS = dict(
    max_steps=STEPS, save_steps=2, save_strategy="steps", save_total_limit=1, max_tokens_per_batch=40, schedule="inverse_sqrt",
    warmup_steps=4, learning_rate=0.01, gradient_accumulation_steps=2,
)  # fmt: skip
DISK_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir", "shutil.rmtree")


def train(folder: Path, moment: Callable[[], None] = lambda: None) -> None:
    """Train, or go on; `moment` is called before each of Python's dealings with the disk while a checkpoint is written.

    Everything that a checkpoint must hold has a part in it: dropout, the order of the batches, accumulation, a schedule, a
    moving average, and a loss scaler whose scale grows.
    """
    trainer = tiny_trainer(folder, tiny_model(dropout=0.3), pairs(30), **OPTIONS)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
    trainer.add_callback(MovingAverage(trainer, decay=0.9))
    start = resume_point(folder, print)
    watch(trainer, moment)
    trainer.train(resume_from_checkpoint=None if start is None else str(start))


def watch(trainer, moment: Callable[[], None]) -> None:
    """Call `moment` as told above."""
    save, saving = trainer._save_checkpoint, []

    def watched(model, trial):
        saving.append(True)
        save(model, trial)
        saving.clear()

    def audit(event: str, arguments: tuple) -> None:
        if saving and event in DISK_EVENTS:
            moment()

    vars(trainer)["_save_checkpoint"] = watched
    sys.addaudithook(audit)


def run_apart(folder: Path, kill_at: int | None = None) -> int:
    """`train` in a child process that kills itself at the given moment; the number of moments that it lived to see, if whole."""
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
            train(folder, moment)
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

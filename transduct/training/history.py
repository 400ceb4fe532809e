"""What a trainer has logged: `trainer.state.log_history`, from memory or from the file that each checkpoint has of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduct.training.checkpoints import STATE, list_checkpoints

History = Sequence[Mapping[str, Any]]
OF_EVERY_STEP = ("loss", "learning_rate", "grad_norm", "step", "epoch")
"""What a trainer logs while it trains."""


def logged_points(history: History, key: str) -> list[tuple[float, float]]:
    """(step, value) of all entries with the key; a step that was logged twice, after a resume, counts as it was last."""
    found = {row["step"]: float(row[key]) for row in history if isinstance(row.get(key), (int, float)) and "step" in row}
    return sorted(found.items())


def further_keys(history: History) -> list[str]:
    """Other numbers that were logged more than once while training, such as tokens a second."""
    keys = {key: None for row in history if "loss" in row for key in row if key not in OF_EVERY_STEP}
    return [key for key in keys if len(logged_points(history, key)) > 1]


def newest_state(folder: Path) -> Path | None:
    """The file that a trainer has saved in the folder of a run, or in its newest checkpoint that has one; None: there is none."""
    folders = [folder, *reversed([*list_checkpoints(folder), *list_checkpoints(folder / "checkpoints")])]
    return next((place / STATE for place in folders if (place / STATE).is_file()), None)


def read_history(path: Path) -> History:
    """Of a `trainer_state.json`, or of the newest checkpoint in the folder of a run.

    Raises:
        ValueError: for a folder without a checkpoint, and a file that holds no history.
    """
    if path.is_dir():
        state = newest_state(path)
        if state is None:
            raise ValueError(f"{path} has no {STATE}, and no checkpoint with one: is it the folder of a run?")
        path = state
    try:
        history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
        rows = isinstance(history, list) and all(isinstance(row, dict) for row in history)
    except (KeyError, TypeError, ValueError, RecursionError):
        rows = False
    if not rows:
        raise ValueError(f"{path} is no {STATE}: it has no log_history, a list of what was logged")
    return history

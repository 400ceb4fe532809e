"""Where a run on endless data goes on: a block, the place of each part before it, and how many of its batches are done.

Each training process keeps its own position, since its blocks may have other numbers of batches, in a file of its own in each
checkpoint. The trainer counts the batches that were trained on and leaves out as many when it goes on: it is given empty ones,
then those behind the position. Of what was read before, only one block is read again.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from transduct.training.checkpoints import SavesState, WholeCheckpoints
from transduct.training.data import Skipped

logger = logging.get_logger(__name__)


@dataclass
class Position:
    """Where the batches of a training process go on."""

    block: int = 0
    """The number of a block."""
    places: list[dict[str, Any]] | None = None
    """How far each part had been read before it, see `Place.note`; None: not at all."""
    batch: int = 0
    """Batches of that block that have been trained on."""
    skipped: Skipped = field(default_factory=Skipped)
    """Rows that were left out before it."""

    def note(self) -> dict[str, Any]:
        """The position for `from_note`, as JSON."""
        return {**vars(self), "skipped": vars(self.skipped)}

    @classmethod
    def from_note(cls, note: dict[str, Any]) -> "Position":
        skipped = Skipped(Counter(note["skipped"]["counts"]), note["skipped"]["first"])
        return cls(**{**note, "skipped": skipped})


class DataPosition(TrainerCallback, SavesState):
    """Writes the position of a trainer's `EndlessBatches` into its checkpoints, and has them go on there."""

    def __init__(self, batches: Any):
        self.batches = batches
        self.position = Position()
        self._uncounted = 0  # batches of the trainer's count that are not in that of `batches`

    @classmethod
    def watch(cls, trainer: Any, batches: Any) -> None:
        """Keep the position of these batches, no longer that of others that the trainer had before."""
        WholeCheckpoints.watch(trainer)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, cls):
                callback.batches = batches
                return
        trainer.add_callback(cls(batches))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        checkpoint, self.resumed_at = self.resumed_at, None
        in_epoch = 0 if args.ignore_data_skip else state.global_step % state.max_steps  # these the trainer leaves out
        self._uncounted = (state.global_step - in_epoch) * args.gradient_accumulation_steps
        if checkpoint is not None and not args.ignore_data_skip:
            position = read_position(checkpoint, args)
            if position is not None:
                self.batches.go_on(position, in_epoch * args.gradient_accumulation_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.position = self.batches.position(state.global_step * args.gradient_accumulation_steps - self._uncounted)

    def save_state(self, folder: Path) -> None:
        args = self.batches.batching
        folder.mkdir(parents=True, exist_ok=True)
        note = {"processes": args.processes, **self.position.note()}
        (folder / file_name(args.process)).write_text(json.dumps(note) + "\n", encoding="utf-8")


def file_name(process: int) -> str:
    """The file in a checkpoint that holds the position of a process."""
    return f"data_position_{process}.json"


def read_position(checkpoint: Path, args: TrainingArguments) -> Position | None:
    """This process's position in a checkpoint; None, said in a warning, where all batches before it must be made again."""
    path = checkpoint / file_name(args.process_index)
    if not path.is_file():
        reason = "it holds no position of this process in the data"
    else:
        note = json.loads(path.read_text(encoding="utf-8"))
        processes = note.pop("processes")
        if processes == args.world_size:
            return Position.from_note(note)
        reason = f"it was written by {processes} processes, and there are {args.world_size}, which share the data otherwise"
    logger.warning(f"{checkpoint}: {reason}; all batches before it are made once more, which takes time")
    return None

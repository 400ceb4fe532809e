"""Averages of checkpoints: the finished model of Vaswani et al. 2017, section 6.1, is the mean of the last 5 or 20.

- `average_checkpoints` writes the mean of several checkpoints as a model folder; `averaged_tensors` yields it tensor by tensor.
- `last_checkpoints` and `best_checkpoints` choose among those of a run, the latter by a metric of its evaluations. Those that a
  stop wrote off the schedule are left out, so that a run that was stopped and resumed has the average of one that never was.
- `AverageAtEnd` is the callback behind the training arguments `average_checkpoints` and `average_best`.

Only one tensor of the checkpoints is in memory at a time, summed in float64. Averages of the weights while they are trained are
in `moving_average.py`.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from transduct.files import save_whole
from transduct.tokenization import TARGET_FOLDER
from transduct.training.callbacks import training_was_stopped
from transduct.training.checkpoints import (
    INDEX,
    MANIFEST,
    MARK,
    STATE,
    WEIGHTS,
    checkpoint_step,
    discard,
    find_checkpoints,
    list_checkpoints,
    off_schedule,
)
from transduct.training.weights import load_into, refuse_flat_weights

NOT_OF_A_MODEL = (".safetensors", ".bin", ".pt", ".pth")
"""Endings of weights and of a training's state, which are not copied beside an average."""
AVERAGE = "average.json"
"""What an average is the mean of: {"checkpoints": names of their folders}. The card of the model tells it."""


class StoredWeights:
    """The tensors of a checkpoint, in one file of safetensors or in several with an index, read one by one."""

    def __init__(self, folder: str | Path):
        """Raises ValueError where there are no weights that can be averaged."""
        self.folder = Path(folder)
        if (self.folder / INDEX).is_file():
            self.files: dict[str, str] = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        elif (self.folder / WEIGHTS).is_file():
            with safe_open(self.folder / WEIGHTS, framework="pt") as file:
                self.files = dict.fromkeys(file.keys(), WEIGHTS)
        elif (self.folder / "adapter_config.json").is_file():
            raise ValueError(
                f"{self.folder} holds an adapter, whose factors cannot be averaged: merge each into its model first, "
                "with `merge_and_unload`, and save it"
            )
        else:
            raise ValueError(f"{self.folder} holds neither {WEIGHTS} nor {INDEX}: it is no checkpoint that can be averaged")

    def shapes(self, file_name: str) -> dict[str, tuple[list[int], str]]:
        """Shape and type of each tensor in one file, without reading it."""
        with safe_open(self.folder / file_name, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}

    def tensor(self, name: str) -> torch.Tensor:
        with safe_open(self.folder / self.files[name], framework="pt") as file:
            return file.get_tensor(name)


def average_checkpoints(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Write the mean of checkpoints as a folder that `from_pretrained` takes, whole or not at all.

    Tokenizer, config and generation config are those of the last of `folders`, and so are tensors of whole numbers. Weights that
    are tied stay stored once, and sharded ones sharded. AVERAGE notes what the mean is of.

    Raises:
        ValueError: for checkpoints that differ in names or shapes, and for an output folder that holds something.
    """
    weights = _comparable(folders)
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} is there already: choose another output, or delete it first")
    save_whole(output, partial(_write_mean, weights))
    return output


def _write_mean(weights: Sequence[StoredWeights], folder: str) -> None:
    """The mean, and what stands beside the weights of the last checkpoint: config, tokenizer, index."""
    last = weights[-1]
    for path in last.folder.iterdir():
        if path.is_file() and path.suffix not in NOT_OF_A_MODEL and path.name not in (STATE, MANIFEST, MARK):
            shutil.copy2(path, folder)
    if (last.folder / TARGET_FOLDER).is_dir():  # the target's own vocabulary
        shutil.copytree(last.folder / TARGET_FOLDER, Path(folder) / TARGET_FOLDER)
    for file_name in dict.fromkeys(last.files.values()):
        names = [name for name, where in last.files.items() if where == file_name]
        save_file({name: _mean(weights, name) for name in names}, Path(folder) / file_name, metadata={"format": "pt"})
    note = {"checkpoints": [one.folder.resolve().name for one in weights]}
    (Path(folder) / AVERAGE).write_text(json.dumps(note, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def averaged_tensors(folders: Sequence[str | Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and mean of each stored tensor, one after the other.

    Raises:
        ValueError: for checkpoints that differ in names or shapes, before the first.
    """
    weights = _comparable(folders)
    return ((name, _mean(weights, name)) for name in weights[-1].files)


def _mean(weights: Sequence[StoredWeights], name: str) -> torch.Tensor:
    """In the type of the last checkpoint; of whole numbers and truth values, that of the last checkpoint."""
    last = weights[-1].tensor(name)
    if not last.is_floating_point():
        return last
    total = last.double()
    for other in weights[:-1]:
        total += other.tensor(name)
    return (total / len(weights)).to(last.dtype)


def _comparable(folders: Sequence[str | Path]) -> list[StoredWeights]:
    """The checkpoints, if all hold the same tensors."""
    if not folders:
        raise ValueError("there is no checkpoint to average: name at least one")
    weights = [StoredWeights(folder) for folder in folders]
    first, first_shapes = weights[0], _all_shapes(weights[0])
    for other in weights[1:]:
        shapes = _all_shapes(other)
        for name in sorted({*first_shapes, *shapes}):
            mine, theirs = first_shapes.get(name), shapes.get(name)
            if mine is None or theirs is None:
                has, lacks = (first, other) if theirs is None else (other, first)
                raise ValueError(
                    f"{name} is in {has.folder} and not in {lacks.folder}: only checkpoints of one model can be averaged"
                )
            if mine != theirs:
                raise ValueError(
                    f"{name} is {_described(mine)} in {first.folder} and {_described(theirs)} in {other.folder}: "
                    "only checkpoints of one model can be averaged"
                )
    return weights


def _all_shapes(weights: StoredWeights) -> dict[str, tuple[list[int], str]]:
    shapes: dict[str, tuple[list[int], str]] = {}
    for file_name in dict.fromkeys(weights.files.values()):
        shapes.update(weights.shapes(file_name))
    return shapes


def _described(entry: tuple[list[int], str]) -> str:
    return f"{'x'.join(map(str, entry[0])) or 'a scalar'} of {entry[1]}"


def last_checkpoints(run: str | Path, count: int, over_at: int | None = None) -> list[Path]:
    """The newest `count` whole checkpoints of a run, in order.

    Args:
        over_at: the step at which the training is known to be over, whose checkpoint counts in any case; see `left_out`.

    Raises:
        ValueError: if there are fewer.
    """
    found, besides = _counted(run, over_at)
    if not 1 <= count <= len(found):
        raise ValueError(
            f"{count} checkpoints are to be averaged, and {run} holds {len(found)}: {_names(found)}{_besides(besides)}"
        )
    return found[-count:]


def best_checkpoints(run: str | Path, count: int, metric: str, higher_is_better: bool, over_at: int | None = None) -> list[Path]:
    """The `count` whole checkpoints of a run that its evaluations found best, in order of their steps.

    Args:
        metric: a key of the evaluations' results, with or without "eval_".
        over_at: as in `last_checkpoints`.

    Raises:
        ValueError: if fewer have a value of the metric.
    """
    found, besides = _counted(run, over_at)
    values = metric_values(found[-1], metric) if found else {}
    scored = _best_first(found, values, higher_is_better)
    if not 1 <= count <= len(scored):
        if found and not values:
            raise ValueError(f"{run} has no evaluations with {metric!r}; they have {_measured(found[-1])}")
        raise ValueError(
            f"the best {count} checkpoints by {metric!r} are to be averaged, and {run} holds {len(scored)} with a value of it: "
            f"{_names(sorted(scored, key=checkpoint_step))}{_besides(besides)}. Evaluate at the steps of the checkpoints"
        )
    return sorted(scored[:count], key=checkpoint_step)


def _best_first(checkpoints: Sequence[Path], values: Mapping[int, float], higher_is_better: bool) -> list[Path]:
    """Those of the checkpoints whose steps have a value."""
    scored = [path for path in checkpoints if checkpoint_step(path) in values]
    return sorted(scored, key=lambda path: values[checkpoint_step(path)], reverse=higher_is_better)


def _measured(checkpoint: Path) -> str:
    """Names of what the evaluations up to a checkpoint have measured."""
    log = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["log_history"]
    return ", ".join(sorted({key for entry in log for key in entry if key.startswith("eval_")})) or "measured nothing"


def metric_values(checkpoint: Path, metric: str) -> dict[int, float]:
    """Step -> value of `metric` in each evaluation up to this checkpoint."""
    log = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["log_history"]
    return values_in_log(log, metric)


def values_in_log(log: Sequence[dict[str, Any]], metric: str) -> dict[int, float]:
    """Step -> value of `metric` in a trainer's `log_history`, where it is a number: NaN is neither better nor worse than another.

    A recipe's names may have spaces, where its log has none.
    """
    name = metric if metric.startswith("eval_") else f"eval_{metric}"
    noted = {entry["step"]: entry[key] for entry in log for key in {name, name.replace(" ", "_")} if key in entry}
    return {step: value for step, value in noted.items() if not math.isnan(value)}


def _checkpoints_of(run: str | Path) -> Path:
    """A folder of checkpoints, which a run of `transduct train` has in `checkpoints/`."""
    run = Path(run)
    nested = run / "checkpoints"
    return nested if not list_checkpoints(run) and nested.is_dir() else run


def left_out(run: str | Path) -> list[Path]:
    """The whole checkpoints of a run that averages leave out: a stop wrote them off the schedule, and it is not the end."""
    return _counted(run)[1] if any(off_schedule(path) for path in list_checkpoints(_checkpoints_of(run))) else []


def _counted(run: str | Path, over_at: int | None = None) -> tuple[list[Path], list[Path]]:
    """Whole checkpoints that averages may take, and the others; the last of a training that is over is among the former."""
    found = find_checkpoints(_checkpoints_of(run))[0]
    besides = [path for path in found if not _counts(path, found[-1], over_at)]
    return [path for path in found if path not in besides], besides


def _counts(checkpoint: Path, last: Path, over_at: int | None) -> bool:
    mark = off_schedule(checkpoint)
    return mark is None or (checkpoint == last and (mark.ended or checkpoint_step(checkpoint) == over_at))


def _besides(paths: Sequence[Path]) -> str:
    return f", and besides {_names(paths)}, written off the schedule when the training was stopped" if paths else ""


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths) or "none"


class AverageAtEnd(TrainerCallback):
    """When the training is over, the model becomes the average of checkpoints; the checkpoints stay as they are.

    Not so where a signal stopped it. For `best`, checkpoints that are neither among the best nor the newest two are deleted when
    a new one is written, so that the disk holds no more than it must. Those off the schedule do not count in that, and only the
    newest of them is kept.

    Args:
        trainer: whose `output_dir` holds the checkpoints; it is added to it with `trainer.add_callback`.
        last: how many of the newest; or best: how many of the best by `args.metric_for_best_model`.
    """

    def __init__(self, trainer: Any, last: int | None = None, best: int | None = None):
        if (last is None) == (best is None):
            raise ValueError(f"last={last} and best={best}: give exactly one of them")
        self.trainer, self.last, self.best = trainer, last, best
        self.averaged: list[Path] = []  # what the model is the mean of

    def chosen(self) -> list[Path]:
        """The checkpoints that are averaged.

        Raises:
            ValueError: if there are too few.
        """
        args, step = self.trainer.args, self.trainer.state.global_step
        if self.last is not None:
            return last_checkpoints(args.output_dir, self.last, step)
        assert self.best is not None
        return best_checkpoints(args.output_dir, self.best, args.metric_for_best_model, bool(args.greater_is_better), step)

    def finish(self) -> None:
        """Put the average into the trainer's model."""
        self.averaged = self.chosen()
        load_into(self.trainer.model, averaged_tensors(self.averaged))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        refuse_flat_weights(self.trainer, "an average of checkpoints")
        plugin = getattr(self.trainer.accelerator.state, "fsdp_plugin", None)
        if self.trainer.is_fsdp_enabled and "FULL_STATE_DICT" not in str(getattr(plugin, "state_dict_type", "")):
            raise ValueError("an average of checkpoints needs whole ones: set FSDP's state_dict_type to FULL_STATE_DICT")
        count = self.last if self.last is not None else self.best
        written = math.ceil(state.max_steps / state.save_steps) if args.save_strategy == "steps" and state.save_steps else None
        if written is not None and written < (count or 0) and not getattr(args, "save_seconds", None):
            raise ValueError(
                f"{count} checkpoints are to be averaged, and save_steps={state.save_steps} writes {written} in "
                f"{state.max_steps} steps: save more often, or average fewer"
            )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.best is None or not args.should_save:
            return
        found = list_checkpoints(Path(args.output_dir))
        due = [path for path in found if off_schedule(path) is None]
        values = values_in_log(state.log_history, str(args.metric_for_best_model))
        best = _best_first(due, values, bool(args.greater_is_better))[: self.best]
        for path in found[:-1]:
            if path not in best + due[-2:] and str(path) != state.best_model_checkpoint:
                discard(path)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if not training_was_stopped(self.trainer):
            self.finish()

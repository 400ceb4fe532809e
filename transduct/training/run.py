"""`transduct train`: from a recipe to a finished model, over as many starts as it takes.

The output folder holds
- `recipe.yaml`: what is trained; a start with another model, tokenizer or data is refused;
- `data_folder.txt`: the folder that the paths of its data are relative to, as seen from here;
- `tokenizer/`: trained once, at the first start;
- `data/`: the tokenised data, made anew when they have changed;
- `checkpoints/`: the last two; a start goes on at the newest whole one;
- `adapter/`: with `training.lora`, what was trained, for peft; it is merged into `model/`;
- `model/`: the finished model with its tokenizer, for `from_pretrained`;
- `predictions/`: what the model made of the validation set, evaluation by evaluation;
- `metrics.json`: the evaluation of `model/` on the test set;
- `training_report.html`: curves, metrics and outputs, see `report.py`; `tensorboard/`, if `report_to` asks for it.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import datasets
import torch
import yaml
from rich.console import Console
from transformers import PrinterCallback, TrainerState, set_seed
from transformers.utils import logging as transformers_logging

from transduct import register
from transduct.files import remove, reserved, write_whole
from transduct.tokenization import TransductTokenizer
from transduct.training.adapters import prepare_weights
from transduct.training.arguments import TransductTrainingArguments
from transduct.training.averaging import AVERAGE
from transduct.training.batching import UnfitPair
from transduct.training.building import (
    AUTO_CLASSES,
    build_arguments,
    build_collator,
    build_metrics,
    build_model,
    build_tokenizer,
    prepare_generation,
    runs_code,
)
from transduct.training.callbacks import EarlyStopping, SaveLastStep, StopOnSignal
from transduct.training.checkpoints import STATE, list_checkpoints, resume_point
from transduct.training.checks import in_section
from transduct.training.endless import EndlessData
from transduct.training.final import SavedModel, measure, save_finished, show, signatures
from transduct.training.processes import decided_by_main, expect_all_gradients
from transduct.training.progress import ShowProgress
from transduct.training.recipe import DATA_FOLDER, Recipe, build_recipe, note_data_folder, preset_config
from transduct.training.recipe_data import model_kind
from transduct.training.report import REPORT, Sample, report_run
from transduct.training.run_data import RunData
from transduct.training.sharing import share_finished
from transduct.training.trackers import check_trackers, place_events
from transduct.training.trainer import TransductTrainer
from transduct.training.weight_options import described_average, finish_at
from transduct.training.weights import save_tied_weights_once

SAME = (
    "model", "tokenizer", "objective", "data.train", "data.max_source_tokens", "data.max_target_tokens", "data.temperature",
    "data.cap", "data.truncate", "data.subwords", "data.buffer_rows", "training.optimizer", "training.optim",
    "training.freeze", "training.lora", "training.ema_decay",
)  # fmt: skip
"""What cannot change once a run has a checkpoint."""
FOLDERS = ("checkpoints", "data", "tokenizer", "adapter", "model", "predictions", "tensorboard")
FILES = ("metrics.json", REPORT, "recipe.yaml", DATA_FOLDER)
"""What a run writes into its output folder."""


@dataclass
class Outcome:
    """What a start of a run came to."""

    finished: bool
    """False: stopped by a signal, with a checkpoint; the same command goes on."""
    signal: int | None = None
    metrics: dict[str, float] | None = None
    """Of the test set, by the names of the recipe; None: not finished, or the recipe has no test set."""


def run(recipe: Recipe, minutes: float | None = None, fresh: bool = False, console: Console | None = None) -> Outcome:
    """Train, or go on training, what the recipe says; then save, load again, evaluate and show what was learnt.

    Args:
        recipe: see `recipe.py`; its output folder is relative to the working directory.
        minutes: replaces `training.max_minutes`: training time over all starts.
        fresh: start anew, and delete what an earlier run left in the output folder.
        console: where progress is shown.

    Raises:
        ValueError: for bad data, and for an output folder that holds another run, or in which one is going on.
    """
    register()
    console = console or Console()
    if minutes is not None:
        recipe.training["max_minutes"] = minutes
    with quiet_libraries(), ExitStack() as held:
        return _run(recipe, fresh, console, held)


def _run(recipe: Recipe, fresh: bool, console: Console, held: ExitStack) -> Outcome:
    args = build_arguments(recipe, Path(recipe.output))
    console.quiet = console.quiet or args.process_index > 0
    output = decided_by_main(lambda: _prepare_output(recipe, fresh, console, held))
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    trainer = _build_trainer(recipe, args, output, console)
    signals = StopOnSignal(partial(console.print, highlight=False, soft_wrap=True))
    trainer.add_callback(signals)
    with signals.listening():
        try:
            with in_section("training", recipe.training):
                _train(trainer, output / "checkpoints", console)
        except UnfitPair as unfit:
            data = RunData(recipe, output / "data", _data_seed(args), console)
            origin = data.origin(trainer.processing_class, unfit.number)
            raise ValueError(f"{origin}: the pair {unfit.complaint}") from unfit
    if isinstance(trainer.train_dataset, EndlessData) and trainer.train_dataset.skipped:
        console.print(f"train: {trainer.train_dataset.skipped}", highlight=False, markup=False, soft_wrap=True)
    if signals.received is not None:
        console.print(f"stopped at step {trainer.state.global_step:,}; the same command goes on from there", highlight=False)
        return Outcome(finished=False, signal=signals.received)
    if trainer.state.global_step == 0:
        raise ValueError(
            "nothing was trained: training.num_train_epochs is 0, or the data do not fill a batch and dataloader_drop_last is set"
        )
    return Outcome(finished=True, metrics=_finish(trainer, recipe, output, console))


def _prepare_output(recipe: Recipe, fresh: bool, console: Console, held: ExitStack) -> Path:
    """Makes the output folder, or checks that it holds a run of the same model, tokenizer and data; no other run may have it."""
    output = Path(recipe.output)
    note = output / "recipe.yaml"
    if not recipe.output:
        raise ValueError("output is empty: name the folder for checkpoints and model")
    held.enter_context(reserved(output))
    if not note.is_file() and (others := [name for name in (*FOLDERS, *FILES) if (output / name).exists()]):
        raise ValueError(f"{output} holds {', '.join(others)}, but no recipe.yaml of a run: choose another output, or move that")
    _refuse_to_overwrite(recipe, output)
    if fresh:
        _refuse_to_leave_averages(output)
        for name in FOLDERS:
            remove(output / name)
        for name in FILES:
            (output / name).unlink(missing_ok=True)
    written = _plain(recipe)
    if note.is_file():
        before = _plain(_noted_recipe(note))
        for name in SAME:
            was, is_ = (_meant(values, name) for values in (before, written))
            if was != is_:
                was, is_ = (_value(values, name) for values in (before, written))
                _check_nothing_is_trained(output, f"another {name}: {was!r}, not {is_!r}")
                remove(output / "tokenizer")
        if list_checkpoints(output / "checkpoints"):
            _tell_changes(before["training"], written["training"], console)
    output.mkdir(parents=True, exist_ok=True)
    write_whole(note, _written(recipe))
    note_data_folder(recipe, output)
    return output


def _tell_changes(before: dict[str, Any], now: dict[str, Any], console: Console) -> None:
    """Which settings of training differ from those with which the checkpoints were made."""
    for key in (key for key in {**before, **now} if before.get(key) != now.get(key)):
        was, is_ = (values.get(key, "left out") for values in (before, now))
        console.print(f"training.{key} was {was} at the last start, and is {is_}", highlight=False, markup=False, soft_wrap=True)


def _refuse_to_overwrite(recipe: Recipe, output: Path) -> None:
    """What the recipe reads must not lie where its run writes."""
    note = output / "recipe.yaml"
    if recipe.file == note.resolve() and note.read_text(encoding="utf-8") != _written(recipe):
        raise ValueError(f"{note} is the recipe itself, which the run would replace by its own note: rename it, or change output")
    for section in ("model", "tokenizer"):
        source = getattr(recipe, section).get("from_pretrained")
        for folder in (output / name for name in FOLDERS if source is not None):
            if Path(source).resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{section}.from_pretrained={source!r} lies in {folder}, where the run writes: change output")


def _refuse_to_leave_averages(output: Path) -> None:
    """A mean of the run that is deleted would pass for one of the new run, with its recipe and curve on its card."""
    for path in sorted(output.glob(f"*/{AVERAGE}")):
        if path.parent.name not in FOLDERS:
            raise ValueError(f"{path.parent} is a mean of the run that --fresh deletes: move it out of {output}, or delete it")


def _noted_recipe(note: Path) -> Recipe:
    """What an earlier start has noted; it may have been one of an older version."""
    try:
        return build_recipe(yaml.safe_load(note.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValueError) as error:
        advice = "Choose another output, or --fresh to delete the run in this one"
        raise ValueError(f"{note} is not what a run has noted: {error}. {advice}") from error


def _check_nothing_is_trained(output: Path, difference: str) -> None:
    """Refuses a recipe that differs from the folder's run, unless that ended before its first checkpoint: nothing is lost."""
    if list_checkpoints(output / "checkpoints") or (output / "model").exists():
        raise ValueError(f"{output} holds a run with {difference}. Choose another output, or --fresh to delete that run")


def _value(values: Any, name: str) -> Any:
    """The value of `section.key`; None where it is not given."""
    return reduce(lambda section, key: section.get(key), name.split("."), values)


def _meant(values: Any, name: str) -> Any:
    """What the value of `section.key` comes to, so that a default is the same whether it is given or not."""
    section, _, key = name.partition(".")
    value = _value(values, name)
    if section == "training":
        return values[section].get(key, getattr(TransductTrainingArguments, key))
    if name == "model" and "preset" in value:
        return preset_config(value).to_dict()
    if name == "tokenizer":
        parameters = inspect.signature(TransductTokenizer.train).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return json.loads(json.dumps({**defaults, "separate_vocabularies": False, "texts": None, **value}))
    return value


def _plain(recipe: Recipe) -> dict[str, Any]:
    values = {name: value for name, value in asdict(recipe).items() if name not in ("folder", "file")}
    return json.loads(json.dumps(values))


def _written(recipe: Recipe) -> str:
    return yaml.safe_dump(json.loads(json.dumps(_without_defaults(recipe))), sort_keys=False, allow_unicode=True)


def _without_defaults(section: Any) -> Any:
    """A section of a recipe as a mapping of what differs from its defaults."""
    if isinstance(section, list):
        return [_without_defaults(part) for part in section]
    if not is_dataclass(section):
        return section
    defaults = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(section)}
    kept = {f.name: getattr(section, f.name) for f in fields(section) if not f.metadata.get("internal")}
    return {name: _without_defaults(value) for name, value in kept.items() if value != defaults[name]}


def _build_trainer(recipe: Recipe, args: TransductTrainingArguments, output: Path, console: Console) -> TransductTrainer:
    """Data, tokenizer, model and trainer of a recipe."""
    check_trackers(args.report_to)
    data = RunData(recipe, output / "data", _data_seed(args), console)
    with args.main_process_first(local=False, desc="preparing the data"):  # the others find what it has written
        tokenizer = build_tokenizer(recipe, data, output / "tokenizer")
        train, validation = data.training(tokenizer), data.validation(tokenizer)
    set_seed(args.seed)
    model = build_model(recipe, tokenizer)
    prepare_generation(model, recipe)
    save_tied_weights_once(model)
    console.print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters", highlight=False)
    expect_all_gradients(args, model.config)
    with in_section("training", recipe.training):
        model = prepare_weights(model, args, partial(console.print, highlight=False))
    metrics = build_metrics(recipe, tokenizer, validation, output / "predictions")
    trainer = TransductTrainer(
        model,
        args,
        data_collator=build_collator(recipe, tokenizer, model),
        train_dataset=train,
        eval_dataset=validation,
        processing_class=tokenizer,
        compute_metrics=metrics if args.predict_with_generate else None,  # else there is the loss alone
        callbacks=[SaveLastStep(), ShowProgress(console)],
    )
    if args.early_stopping_patience is not None:
        trainer.add_callback(EarlyStopping(args.early_stopping_patience, args.early_stopping_threshold))
    trainer.remove_callback(PrinterCallback)
    place_events(trainer, output / "tensorboard")
    return trainer


def _data_seed(args: TransductTrainingArguments) -> int:
    return args.seed if args.data_seed is None else args.data_seed


def _train(trainer: TransductTrainer, checkpoints: Path, console: Console) -> None:
    """Go on at the newest whole checkpoint, unless the run is over there."""
    newest = decided_by_main(lambda: resume_point(checkpoints, partial(console.print, highlight=False, markup=False)))
    if newest is None:
        trainer.train()
        return
    console.print(f"going on from {newest}", highlight=False, markup=False)
    if is_over(newest, trainer.args):
        console.print("nothing is left to train", highlight=False)
        trainer.state = TrainerState.load_from_json(str(newest / STATE))
        finish_at(trainer, best_checkpoint(trainer, newest))
    else:
        trainer.train(resume_from_checkpoint=str(newest))


def best_checkpoint(trainer: TransductTrainer, newest: Path) -> Path:
    """The one whose weights count when the run is over: with `load_best_model_at_end` the best one that is still there."""
    if not trainer.args.load_best_model_at_end or trainer.state.best_model_checkpoint is None:
        return newest
    best = newest.parent / Path(trainer.state.best_model_checkpoint).name
    return best if best.is_dir() else newest


def is_over(checkpoint: Path, args: TransductTrainingArguments) -> bool:
    """Whether the run that wrote this checkpoint had used up its steps, its time or its patience."""
    state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    if args.early_stopping_patience is not None and EarlyStopping.__name__ in state["stateful_callbacks"]:
        counted = state["stateful_callbacks"][EarlyStopping.__name__]["attributes"]["early_stopping_patience_counter"]
        if counted >= args.early_stopping_patience:
            return True
    if args.max_minutes is not None:
        schedule = torch.load(checkpoint / "scheduler.pt", weights_only=True)
        if schedule.get("elapsed", 0.0) >= args.max_minutes * 60:
            return True
    return state["global_step"] >= args.max_steps if args.max_steps > 0 else state["epoch"] >= (args.num_train_epochs or 0)


def _finish(trainer: TransductTrainer, recipe: Recipe, output: Path, console: Console) -> dict[str, float] | None:
    """Save the model, load it again, measure it on the test set and show it at work."""
    if (average := described_average(trainer)) is not None:
        console.print(average, highlight=False, markup=False)
    save_finished(trainer, output)
    if recipe.objective.of_pairs and not trainer.is_world_process_zero():
        return None  # one process decodes; the others have nothing left to do
    console.print(f"saved to {output / 'model'}; what follows is that folder, loaded again", highlight=False, markup=False)
    like = recipe.data.test or recipe.data.validation or recipe.data.parts[0]
    limit = recipe.data.max_source_tokens if recipe.data.truncate in ("source", "both") else None
    auto_class = AUTO_CLASSES[model_kind(recipe.objective)]
    saved = SavedModel(output / "model", trainer.args.device, like, auto_class, limit, runs_code(recipe))
    metrics, samples, signed = None, list[Sample](), dict[str, str]()
    if recipe.data.test is not None:
        data = RunData(recipe, output / "data", _data_seed(trainer.args), console)
        if recipe.objective.of_pairs:
            test = data.test(saved.tokenizer)
            metrics, samples = measure(saved, test, recipe.evaluation, console)
            signed = signatures(recipe.evaluation.metrics, test["targets"])
        else:
            with trainer.args.main_process_first(desc="preparing the test data"):
                test = data.test(saved.tokenizer)
            metrics = {"loss": trainer.evaluate(test, metric_key_prefix="test")["test_loss"]}
        note = {"metrics": metrics, "signatures": signed, "examples": len(test), "steps": trainer.state.global_step}
        if trainer.is_world_process_zero():
            write_whole(output / "metrics.json", json.dumps(note, indent=2) + "\n")
        console.print(
            "test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()), highlight=False, markup=False
        )
    if recipe.evaluation.inputs:
        samples += show(saved, recipe.evaluation, console)
    if trainer.is_world_process_zero():
        report_run(output, trainer.state.log_history, saved.model, metrics or {}, samples)
        console.print(f"report: {output / REPORT}", highlight=False, markup=False)
        if trainer.args.push_to_hub:
            console.print(f"shared: {share_finished(trainer, output)}", highlight=False, markup=False)
    return metrics


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, the bars of `datasets` and of transformers' loading and saving do not show."""
    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
        transformers_logging.enable_progress_bar()

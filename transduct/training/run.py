"""`transduct train`: from a recipe to a finished model, over as many starts as it takes.

The output folder holds
- `recipe.yaml`: what is trained; a start with another model, tokenizer or data is refused;
- `tokenizer/`: trained once, at the first start;
- `checkpoints/`: the last two; a start goes on at the newest whole one;
- `model/`: the finished model with its tokenizer, for `from_pretrained`;
- `metrics.json`: the evaluation of `model/` on the test set.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import torch
import yaml
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PrinterCallback, TrainerState, set_seed
from transformers.utils import logging as transformers_logging

from transduct import register
from transduct.training.arguments import TransductTrainingArguments
from transduct.training.callbacks import SaveLastStep, ShowProgress, StopOnSignal
from transduct.training.checkpoints import find_checkpoints
from transduct.training.collators import Seq2SeqCollator
from transduct.training.data import load_split, tokenize
from transduct.training.final import SavedModel, measure, show
from transduct.training.metrics import METRICS
from transduct.training.recipe import SPLITS, Recipe
from transduct.training.trainer import TransductTrainer

DEFAULTS: dict[str, Any] = dict(
    save_total_limit=2,
    save_strategy="no",
    logging_steps=20,
    report_to="none",
    disable_tqdm=True,
    predict_with_generate=True,
    dataloader_pin_memory=False,
)
"""Values of training arguments that a recipe need not give; checkpoints then go by `save_seconds`."""


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
        ValueError: for bad data, and for an output folder that holds another run.
    """
    register()
    console = console or Console()
    if minutes is not None:
        recipe.training["max_minutes"] = minutes
    with quiet_libraries():
        return _run(recipe, fresh, console)


def _run(recipe: Recipe, fresh: bool, console: Console) -> Outcome:
    output = _prepare_output(recipe, fresh)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    trainer = _build_trainer(recipe, output, console)
    signals = StopOnSignal()
    trainer.add_callback(signals)
    with signals.listening():
        _train(trainer, output / "checkpoints", console)
    if signals.received is not None:
        console.print(f"stopped at step {trainer.state.global_step:,}; the same command goes on from there")
        return Outcome(finished=False, signal=signals.received)
    return Outcome(finished=True, metrics=_finish(trainer, recipe, output, console))


def _prepare_output(recipe: Recipe, fresh: bool) -> Path:
    """Makes the output folder, or checks that it holds a run of the same model, tokenizer and data."""
    output = Path(recipe.output)
    note = output / "recipe.yaml"
    if not recipe.output:
        raise ValueError("output is empty: name the folder for checkpoints and model")
    if fresh:
        for name in ("checkpoints", "tokenizer", "model"):
            shutil.rmtree(output / name, ignore_errors=True)
        note.unlink(missing_ok=True)
    written = _plain(recipe)
    if note.is_file():
        before = yaml.safe_load(note.read_text(encoding="utf-8"))
        for name in ("model", "tokenizer", "data.train", "data.max_source_tokens", "data.max_target_tokens"):
            was, is_ = (reduce(lambda section, key: section[key], name.split("."), values) for values in (before, written))
            if was != is_:
                _check_nothing_is_trained(output, f"another {name}: {was!r}, not {is_!r}")
                shutil.rmtree(output / "tokenizer", ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    note.write_text(yaml.safe_dump(written, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return output


def _check_nothing_is_trained(output: Path, difference: str) -> None:
    """Refuses a recipe that differs from the folder's run, unless that ended before its first checkpoint: nothing is lost."""
    if find_checkpoints(output / "checkpoints")[0] or (output / "model").exists():
        raise ValueError(f"{output} holds a run with {difference}. Choose another output, or --fresh to delete that run")


def _plain(recipe: Recipe) -> dict[str, Any]:
    values = asdict(recipe)
    del values["folder"]
    return json.loads(json.dumps(values))


def _build_trainer(recipe: Recipe, output: Path, console: Console) -> TransductTrainer:
    """Data, tokenizer, model and trainer of a recipe."""
    args = TransductTrainingArguments(**{**DEFAULTS, **recipe.training, "output_dir": str(output / "checkpoints")})
    texts = {name: _load(recipe, name, console) for name in SPLITS[:2] if vars(recipe.data)[name] is not None}
    tokenizer = build_tokenizer(recipe, texts["train"], output / "tokenizer")
    data = {name: _encode(recipe, tokenizer, dataset, name, console) for name, dataset in texts.items()}
    set_seed(args.seed)
    model = build_model(recipe, tokenizer)
    model.generation_config.num_beams = recipe.evaluation.num_beams
    model.generation_config.length_penalty = recipe.evaluation.length_penalty
    model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)  # else a resume warns that they are missing: stored once
    console.print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters", highlight=False)
    trainer = TransductTrainer(
        model,
        args,
        data_collator=Seq2SeqCollator(tokenizer, model=model),
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        processing_class=tokenizer,
        compute_metrics=_metrics_of(recipe, tokenizer, data.get("validation")) if "validation" in data else None,
        callbacks=[SaveLastStep(), ShowProgress(console)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _load(recipe: Recipe, name: str, console: Console) -> Dataset:
    """The texts of a split, and a word about them."""
    dataset, complaints = load_split(vars(recipe.data)[name], recipe.folder, recipe.data.bad_rows)
    _say_skipped(name, complaints, console)
    console.print(f"{name}: {len(dataset):,} sources, {sum(map(len, dataset['targets'])):,} pairs", highlight=False)
    return dataset


def _encode(recipe: Recipe, tokenizer: Any, dataset: Dataset, name: str, console: Console) -> Dataset:
    data = recipe.data
    limits = (data.max_source_tokens, data.max_target_tokens)
    encoded, complaints = tokenize(dataset, tokenizer, name == "train", *limits, bad_rows=data.bad_rows)
    _say_skipped(name, complaints, console)
    return encoded


def _say_skipped(name: str, complaints: list[str], console: Console) -> None:
    if complaints:
        console.print(f"{name}: {len(complaints):,} rows skipped; the first: {complaints[0]}", highlight=False, markup=False)


def build_tokenizer(recipe: Recipe, train: Dataset, folder: Path) -> Any:
    """The run's tokenizer: the one in `folder`, else `tokenizer.from_pretrained`, else one trained on the training texts."""
    from transduct.tokenization import TransductTokenizer

    if folder.is_dir():
        return AutoTokenizer.from_pretrained(folder)
    options = dict(recipe.tokenizer)
    pretrained = options.pop("from_pretrained", None)
    if pretrained is not None:
        tokenizer = AutoTokenizer.from_pretrained(pretrained, **options)
    else:
        separate = options.pop("separate_vocabularies", False)
        sources, targets = iter(train["source"]), chain.from_iterable(train["targets"])
        texts = {"files_or_iterator": sources, "target": targets} if separate else {"files_or_iterator": chain(sources, targets)}
        tokenizer = TransductTokenizer.train(**texts, **options)
    _save_whole(folder, tokenizer.save_pretrained)
    return tokenizer


def build_model(recipe: Recipe, tokenizer: Any) -> Any:
    """The model that is trained: `model.from_pretrained`, or new weights for a preset with the tokenizer's vocabulary."""
    from transduct.modeling import TransductForConditionalGeneration
    from transduct.presets import config_from_preset

    options = dict(recipe.model)
    if "from_pretrained" in options:
        return AutoModelForSeq2SeqLM.from_pretrained(options.pop("from_pretrained"), **options)
    vocabularies = {
        "vocab_size": len(tokenizer),
        "decoder_vocab_size": tokenizer.decoder_vocab_size if tokenizer.separate_vocabularies else None,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    return TransductForConditionalGeneration(config_from_preset(options.pop("preset"), **{**vocabularies, **options}))


def _metrics_of(recipe: Recipe, tokenizer: Any, validation: Dataset) -> Any:
    """`compute_metrics` for the validation set, whose references are in its own column."""
    references = validation["targets"]

    def compute(prediction: Any) -> dict[str, float]:
        texts = tokenizer.batch_decode(prediction.predictions, skip_special_tokens=True)
        return {name.replace(" ", "_"): METRICS[metric](texts, references) for name, metric in recipe.evaluation.metrics.items()}

    return compute


def _train(trainer: TransductTrainer, checkpoints: Path, console: Console) -> None:
    """Go on at the newest whole checkpoint, unless the run is over there."""
    whole, faults = find_checkpoints(checkpoints)
    for path, fault in faults.items():
        console.print(f"{path} was not written to its end ({fault}): it is deleted", highlight=False, markup=False)
        shutil.rmtree(path)
    if not whole:
        trainer.train()
        return
    console.print(f"going on from {whole[-1]}", highlight=False, markup=False)
    if is_over(whole[-1], trainer.args):
        console.print("nothing is left to train", highlight=False)
        trainer.model = type(trainer.model).from_pretrained(whole[-1])
        trainer.state = TrainerState.load_from_json(str(whole[-1] / "trainer_state.json"))
    else:
        trainer.train(resume_from_checkpoint=str(whole[-1]))


def is_over(checkpoint: Path, args: TransductTrainingArguments) -> bool:
    """Whether the run that wrote this checkpoint had used up its steps or its time."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    if args.max_minutes is not None:
        schedule = torch.load(checkpoint / "scheduler.pt", weights_only=True)
        if schedule["elapsed"] >= args.max_minutes * 60:
            return True
    return state["global_step"] >= args.max_steps if args.max_steps > 0 else state["epoch"] >= (args.num_train_epochs or 0)


def _finish(trainer: TransductTrainer, recipe: Recipe, output: Path, console: Console) -> dict[str, float] | None:
    """Save the model, load it again, measure it on the test set and show it at work."""
    _save_whole(output / "model", trainer.model.save_pretrained, trainer.processing_class.save_pretrained)
    console.print(f"saved to {output / 'model'}; what follows is that folder, loaded again", highlight=False, markup=False)
    saved = SavedModel(output / "model", trainer.args.device)
    metrics = None
    if recipe.data.test is not None:
        test = _load(recipe, "test", console)
        metrics = measure(saved, test, recipe.evaluation, console)
        note = {"metrics": metrics, "examples": len(test), "steps": trainer.state.global_step}
        (output / "metrics.json").write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        console.print(
            "test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()), highlight=False, markup=False
        )
    if recipe.evaluation.inputs:
        show(saved, recipe.evaluation, console)
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


def _save_whole(folder: Path, *savers: Callable[[str], Any]) -> None:
    """Write a folder beside its place and move it there, so that it is never half written."""
    part, old = folder.with_name(folder.name + ".part"), folder.with_name(folder.name + ".old")
    for leftover in (part, old):
        shutil.rmtree(leftover, ignore_errors=True)
    for save in savers:
        save(str(part))
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)

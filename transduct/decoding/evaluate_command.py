"""What `transduct evaluate` does: finds the model, the test set and how it is searched, and tells what was measured.

A recipe says all of that by itself. Its model is then evaluated as at the end of `transduct train`, with the prefixes, tags and
languages of its test set, so that the figures are those of `metrics.json`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transduct.decoding.commands import DTYPES, check_output, engine_for, load_for, model_folder, quiet_loading, told_by_name
from transduct.decoding.engines import Engine, engine_of
from transduct.decoding.evaluate import Predict, Written, predict, read_outputs, report, translating
from transduct.decoding.measuring import RESAMPLES, named_metrics
from transduct.decoding.sharing import Processes
from transduct.decoding.test_sets import Columns, Example, examples, open_test_set
from transduct.decoding.windows import WINDOW
from transduct.terminal import printable
from transduct.training.data import Skipped, usable
from transduct.training.reading import read
from transduct.training.recipe import Recipe, load_recipe, noted_data_folder

OF_RECIPES = frozenset({"num_beams", "length_penalty"})
"""What a call may change about the search of a recipe; the rest is as it was trained."""
SHARES = ("token_error", "sequence_error", "exact_match")
"""Metrics from 0 to 1; the others are in percent."""
PATHS = ("source", "target", "json", "csv", "tsv", "parquet", "function")
"""Fields of a split that are relative to the folder of its recipe."""


@dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated, and how; see `cli/evaluate.py`."""

    names: Sequence[str]
    """The model and the test set, or a recipe or run that names both."""
    metrics: Sequence[str] = ()
    columns: Columns = field(default_factory=Columns)
    data_folder: str | None = None
    hypotheses: str | None = None
    baseline: str | None = None
    predictions: str | None = None
    resume: bool = False
    resamples: int = RESAMPLES
    window: int = WINDOW
    dtype: str = "float32"
    engine: Engine | None = None
    search: Mapping[str, Any] = field(default_factory=dict)


def run(options: EvaluationOptions) -> dict[str, Any] | None:
    """Evaluate, and return what `transduct.evaluate` returns; None in all processes but the first.

    Raises:
        ValueError: for options that do not fit each other, and bad data; OSError for files that are not there.
    """
    _check(options)
    model, recipe, names = _found(options)
    named = named_metrics(options.metrics or (recipe.evaluation.metrics if recipe is not None else ("bleu", "chrf")))
    rows = list(open_test_set(names, options.columns)) if recipe is None else _test_of(recipe)
    baseline = None if options.baseline is None else read_outputs(options.baseline, len(rows))
    processes = Processes()
    if options.hypotheses is not None:
        outputs = read_outputs(options.hypotheses, len(rows))
    else:
        work = _worker(str(model), recipe, options, processes.device)
        written = None
        if options.predictions is not None:
            settings = dict(options.search) | {"command": "evaluate", "model": model, "dtype": options.dtype}
            settings |= {"engine": options.engine, "recipe": None if recipe is None else str(recipe.file)}
            written = Written(Path(options.predictions), settings, options.resume)
        outputs = predict(rows, work, written, options.window, sys.stderr.isatty(), processes)
    return report(rows, outputs, named, baseline, options.resamples) if processes.is_main else None


def _check(options: EvaluationOptions) -> None:
    beside = [name for name in (options.hypotheses, options.baseline) if name is not None]
    check_output("--predictions", options.predictions, [*options.names, *beside])
    if options.dtype not in DTYPES:
        raise ValueError(f"--dtype {options.dtype!r} must be one of {', '.join(DTYPES)}")
    if options.resume and options.predictions is None:
        raise ValueError("--resume belongs to --predictions, the file to go on with")
    if options.hypotheses is not None:
        _check_without_model(options)


def _check_without_model(options: EvaluationOptions) -> None:
    """Raises ValueError for what has no use where outputs are there already."""
    if options.predictions is not None:
        raise ValueError("--predictions would be the --hypotheses again: leave it out")
    chosen = {
        f"--engine {options.engine}": options.engine is not None,
        f"--dtype {options.dtype}": options.dtype != "float32",
        f"--window {options.window}": options.window != WINDOW,
    }
    if unused := [*options.search, *(name for name, is_ in chosen.items() if is_)]:
        raise ValueError(f"{', '.join(unused)}: with --hypotheses nothing is searched; leave it out")
    first, *others = options.names
    if others and (_is_recipe(first) or Path(first).is_dir() or any(map(_is_recipe, others))):
        raise ValueError(f"{' '.join(options.names)}: with --hypotheses there is no MODEL; name the test set or its recipe alone")


# ---- models and test sets ----------------------------------------------------------------------------------------------------
def _found(options: EvaluationOptions) -> tuple[str | None, Recipe | None, Sequence[str]]:
    """The model, the recipe if one says what is evaluated, and else the names of the test set."""
    first, *others = options.names
    if options.hypotheses is not None and not _is_recipe(first):
        _check_no_data_folder(options)
        return None, None, options.names
    if not others and not _is_recipe(first):
        raise ValueError(f"{first}: name the test set behind the model, or a recipe, or the output folder of a run")
    if len(others) > 1 or (others and not _is_recipe(others[0])):
        _check_no_data_folder(options)
        return first, None, others
    recipe, own_model = _recipe(others[0] if others else first, options.data_folder)
    named = {"--source-field": "source", "--target-field": "target", "--config": "config", "--split": "split"}
    if chosen := [name for name, key in named.items() if getattr(options.columns, key) != getattr(Columns(), key)]:
        raise ValueError(f"{', '.join(chosen)}: a recipe says where its texts are; leave it out")
    if options.columns.limit is not None:
        assert recipe.data.test is not None
        recipe.data.test.limit = options.columns.limit
    return (first if others else str(own_model)), recipe, []


def _check_no_data_folder(options: EvaluationOptions) -> None:
    if options.data_folder is not None:
        raise ValueError(f"--data-folder {options.data_folder!r} belongs to a recipe: other paths are relative to where you are")


def _is_recipe(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml") or (Path(name) / "recipe.yaml").is_file()


def _recipe(name: str, data_folder: str | None) -> tuple[Recipe, Path]:
    """A recipe, from its file or the output folder of its run, and the folder of the finished model."""
    is_run = Path(name).is_dir()
    recipe = load_recipe(Path(name) / "recipe.yaml" if is_run else name)
    if not recipe.objective.of_pairs:
        raise ValueError(
            f"{name}: the objective {recipe.objective.name} makes no texts of texts, so that there is nothing to measure"
        )
    if recipe.data.test is None:
        raise ValueError(f"{name} has no test set (data.test): name one behind the model")
    if data_folder is not None:
        recipe.folder = Path(data_folder)
    elif is_run and (relative := [way for way in PATHS if _is_relative(vars(recipe.data.test)[way])]):
        recipe.folder = _data_folder_of(Path(name), relative[0])
    return recipe, Path(name) / "model" if is_run else Path(recipe.output) / "model"


def _data_folder_of(run: Path, way: str) -> Path:
    """Where the data of a run are, whose test set is given by the path `way`: where its training noted them.

    Raises:
        ValueError: if it noted nothing that is still there; and for programs, which are not run because a folder says so.
    """
    noted = noted_data_folder(run)
    if noted is not None and way != "function":
        return noted
    why = "is relative to the folder of the recipe that was trained" if noted is None else f"is a program, noted to be in {noted}"
    raise ValueError(f"data.test.{way} of {run}/recipe.yaml {why}: name that recipe, or its folder with --data-folder")


def _is_relative(named: str | list[str] | None) -> bool:
    return any(not Path(name).is_absolute() for name in ([named] if isinstance(named, str) else named or ()))


def _test_of(recipe: Recipe) -> list[Example]:
    """The test set of a recipe, without the bad rows that it says to leave out."""
    assert recipe.data.test is not None
    skipped = Skipped()
    found = list(examples(usable(read(recipe.data.test, recipe.folder), recipe.data.bad_rows, skipped)))
    if skipped:
        print(printable(f"test: {skipped}"), file=sys.stderr)
    return found


# ---- models -----------------------------------------------------------------------------------------------------------------
def _worker(model: str, recipe: Recipe | None, options: EvaluationOptions, device: Any) -> Predict:
    """What writes outputs."""
    if recipe is None:
        return translating(
            *load_for(engine_for(model, options.engine, options.dtype), model, options.dtype, device), options.search
        )
    chosen = {"dtype": options.dtype != "float32", "engine": options.engine is not None}
    if unused := [*(set(options.search) - OF_RECIPES), *(name for name, is_ in chosen.items() if is_)]:
        raise ValueError(f"{', '.join(sorted(unused))}: a recipe says how its test set is searched; leave it out")
    if (written := engine_of(model)) is not None:
        raise ValueError(
            f"{model} was written for {written}, but the search of a recipe needs a model of torch: name the files of its "
            "test set in place of the recipe, or the model that was exported"
        )
    from rich.console import Console

    from transduct import register
    from transduct.training.final import SavedModel

    register()
    limit = recipe.data.max_source_tokens if recipe.data.truncate in ("source", "both") else None
    if not Path(model).is_dir():
        raise ValueError(f"there is no folder {model!r}: is the recipe trained to its end?")
    with quiet_loading(), told_by_name(model):
        saved = SavedModel(model_folder(model), device, recipe.data.test, max_source_tokens=limit)
    evaluation = replace(recipe.evaluation, **options.search)
    return lambda sources, numbers: saved.outputs(sources, evaluation, Console(quiet=True))


# ---- what is told -----------------------------------------------------------------------------------------------------------
def table(result: Mapping[str, Any]) -> str:
    """What was measured, as lines for people."""
    measured = result["metrics"]
    width = max(map(len, measured))
    lines = [f"{result['examples']:,} examples"]
    for name, values in measured.items():
        lines.append(f"{name:<{width}}  {_told(values, 4 if values['metric'] in SHARES else 2)}")
    return "\n".join([*lines, *(f"{name}: {values['signature']}" for name, values in measured.items())])


def _told(values: Mapping[str, Any], digits: int) -> str:
    text = f"{values['score']:.{digits}f}"
    if "confidence" in values:
        text += f" (95 %: {values['mean']:.{digits}f} ± {values['confidence']:.{digits}f})"
    if "baseline" in values:
        text += f", baseline {values['baseline']:.{digits}f}, p = {values['p_value']:.4f}"
    return text

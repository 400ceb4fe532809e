"""What is known of a model: from its folder, from the run that trained it, and from evaluations.

Nothing is computed here but counts. What comes from a run is stripped of tokens, passwords and the computer's folders.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from transduct.accounting import ModelDescription, describe
from transduct.configuration import TransductConfig
from transduct.hub.private import without_secrets
from transduct.presets import config_from_folder, model_without_weights
from transduct.training.averaging import AVERAGE
from transduct.training.history import newest_state, read_history

RECIPE, METRICS, RECORD = "recipe.yaml", "metrics.json", "import.json"
SEQ2SEQ = "TransductForConditionalGeneration"
_NOT_FOR_OTHERS = ("hub_model_id", "hub_private_repo", "hub_strategy", "push_to_hub", "run_name", "logging_dir")
"""Keys of a recipe's section `training` that say where results go, and nothing of what they are."""


@dataclass(frozen=True)
class Measurement:
    """One metric of one test set."""

    name: str
    metric: str
    """Of `training.metrics.METRICS`."""
    value: float
    signature: str | None = None
    confidence: float | None = None
    """Half the width of the 95 % interval."""


@dataclass(frozen=True)
class Result:
    """What was measured on a test set."""

    data: str
    examples: int
    measurements: Sequence[Measurement]


@dataclass(frozen=True)
class Facts:
    """All that a card may say."""

    config: TransductConfig
    model_class: str
    description: ModelDescription
    has_tokenizer: bool = True
    has_length: bool = False
    """Whether the generation config bounds what is written."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Empty: not known."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of a trainer, where there is no recipe."""
    history: Sequence[Mapping[str, Any]] = ()
    """What the trainer logged."""
    results: Sequence[Result] = ()
    averaged: Sequence[str] = ()
    """Checkpoints of which the weights are the mean, if `transduct average` wrote them."""
    imported: Mapping[str, Any] = field(default_factory=dict)
    """What `transduct import` has noted: source, commit of the Hub, and what was compared."""
    has_original_card: bool = False

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the recipe, empty if there is none."""
        values = self.recipe.get(name)
        return values if isinstance(values, Mapping) else {}

    def split(self, *names: str) -> Mapping[str, Any]:
        """The first of these splits of the data that the recipe has; of a mixture its first part."""
        for name in names:
            values = self.section("data").get(name)
            values = values[0] if isinstance(values, list) and values else values
            if isinstance(values, Mapping):
                return values
        return {}

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Of sources and targets, as the recipe names them."""
        split = self.split("test", "validation", "train")
        source, target = (split.get(name) for name in ("source_language", "target_language"))
        return source if isinstance(source, str) else None, target if isinstance(target, str) else None


def facts_of(folder: Path, evaluations: Mapping[str, str | Path] | None = None) -> Facts:
    """The facts of a model folder and, where it lies in the folder of a run, of that run; its metrics are no average's.

    Args:
        evaluations: files that `transduct evaluate --json` wrote, by names of their test sets.

    Raises:
        ValueError: for a folder without a model of ours, and a file that holds no evaluation.
    """
    run = run_of(folder)
    config = config_from_folder(folder)
    generation = _json(folder / "generation_config.json")
    recipe = {} if run is None else _recipe(run / RECIPE)
    state = newest_state(folder if run is None else run)
    given = [_evaluation(name, Path(path)) for name, path in (evaluations or {}).items()]
    return Facts(
        config=config,
        model_class=class_of(config),
        description=described(config, class_of(config)),
        has_tokenizer=(folder / "tokenizer_config.json").is_file(),
        has_length=any(generation.get(key) is not None for key in ("max_length", "max_new_tokens")),
        recipe=recipe,
        history=[] if state is None else read_history(state),
        results=given or ([] if run is None or (folder / AVERAGE).is_file() else _results(run / METRICS, recipe)),
        averaged=_averaged(folder / AVERAGE),
        imported=without_secrets(_json(folder / RECORD)),
        has_original_card=(folder / "README.original.md").is_file(),
    )


def run_of(folder: Path) -> Path | None:
    """The output folder of the run that wrote this model folder or an average in it, if that is where it lies."""
    parent = folder.absolute().parent
    known = folder.absolute().name == "model" or (folder / AVERAGE).is_file()
    return parent if known and (parent / RECIPE).is_file() else None


def class_of(config: TransductConfig) -> str:
    return (config.architectures or [SEQ2SEQ])[0]


def described(config: TransductConfig, name: str) -> ModelDescription:
    """Parameters and operations of a class; nothing is built but models of other classes, without weights."""
    return describe(config if name == SEQ2SEQ else model_without_weights(config, name))


def _json(path: Path) -> dict[str, Any]:
    """A file's object, empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the latter: brackets within brackets
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return values


def _averaged(path: Path) -> list[str]:
    """Names of the checkpoints that a mean was taken of; empty for what is none."""
    names = _json(path).get("checkpoints")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _recipe(path: Path) -> dict[str, Any]:
    """As it is, without what must not be published; it may be one of an older version."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a mapping, as the run has written it")
    try:
        values = _without_nothing(without_secrets(values))
    except RecursionError as error:
        raise ValueError(f"{path} holds itself by an alias, which no run has written") from error
    training = values.get("training")
    if isinstance(training, dict):
        values["training"] = {key: value for key, value in training.items() if key not in _NOT_FOR_OTHERS}
    return values


def _without_nothing(section: dict[str, Any]) -> dict[str, Any]:
    """A section without the keys that were not given, as older versions have noted them."""
    kept = {key: value for key, value in section.items() if value is not None and value != {}}
    return {key: _without_nothing(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _results(path: Path, recipe: Mapping[str, Any]) -> list[Result]:
    """The evaluation at the end of a run."""
    noted = _json(path)
    if not noted.get("metrics"):
        return []
    measured, signatures = noted["metrics"], noted.get("signatures", {})
    numbers = isinstance(measured, dict) and all(isinstance(value, (int, float)) for value in measured.values())
    if not numbers or not isinstance(signatures, dict) or not isinstance(noted.get("examples", 0), int):
        raise ValueError(
            f"{path} is not what a run writes, metrics with their numbers: take it out, or let the run write it again"
        )
    metrics = _mapping(_mapping(recipe.get("evaluation")).get("metrics")) or {"bleu": "bleu", "chrf": "chrf"}
    signatures = without_secrets(signatures)
    found = [
        Measurement(name, str(metrics.get(name, name)), value, signatures.get(name))
        for name, value in without_secrets(measured).items()
    ]
    data = _mapping(_mapping(recipe.get("data")).get("test"))
    return [Result(data_name(data), noted.get("examples", 0), found)]


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def _is_measured(metric: Any) -> bool:
    """Whether this is what `transduct evaluate` says of a metric."""
    return (
        isinstance(metric, dict)
        and isinstance(metric.get("metric"), str)
        and isinstance(metric.get("signature"), (str, NoneType))
        and isinstance(metric.get("score"), (int, float))
        and isinstance(metric.get("confidence"), (int, float, NoneType))
    )


def _evaluation(name: str, path: Path) -> Result:
    """What `transduct evaluate --json` found."""
    values = _json(path)
    metrics = values.get("metrics")
    whole = isinstance(metrics, dict) and all(map(_is_measured, metrics.values()))
    if not whole or not isinstance(values.get("examples"), int):
        raise ValueError(f"{path} is no evaluation: write it with `transduct evaluate MODEL DATASET --json > FILE`")
    found = [
        Measurement(key, one["metric"], one["score"], one.get("signature"), one.get("confidence"))
        for key, one in values["metrics"].items()
    ]
    return Result(name, values["examples"], found)


# ---- data ---------------------------------------------------------------------------------------------------------------------
def data_name(split: Mapping[str, Any]) -> str:
    """What a split of a recipe is made of, in a few words."""
    if split.get("dataset"):
        named = [str(split["dataset"]), *([str(split["config"])] if split.get("config") else [])]
        return f"{', '.join(named)}, split {split.get('split', 'train')}"
    if split.get("function"):
        file, _, name = str(split["function"]).partition(":")
        given = ", ".join(f"{key}: {value}" for key, value in (split.get("arguments") or {}).items())
        return f"{name} of {file}" + (f" ({given})" if given else "")
    if split.get("source") and split.get("target"):
        return f"{_files(split['source'])} and {_files(split['target'])}"
    ways = [split[way] for way in ("json", "csv", "tsv", "parquet", "text") if split.get(way)]
    return _files(ways[0]) if ways else "the test set"


def _files(named: str | list[str]) -> str:
    return ", ".join([named] if isinstance(named, str) else map(str, named))

"""A training run as data: what one YAML file says, checked before anything is loaded.

```yaml
output: runs/g2p                       # where checkpoints and the finished model go
model: {preset: vaswani-base, d_model: 96, ...}        # a preset, and fields of TransductConfig that differ
tokenizer: {kind: chars, ...}                          # how TransductTokenizer is trained on the training texts
data: {train: {...}, validation: {...}, test: {...}}   # see recipe_data.py
objective: {name: span_corruption}                     # what is made of documents, see recipe_data.py; without it: pairs
training: {max_tokens_per_batch: 2048, ...}            # fields of TransductTrainingArguments
evaluation: {metrics: {word error: sequence_error}, num_beams: 4}
```

An unknown key is an error that names its path and the keys that it may have meant. `section.key=value` texts, as of the
command line's `--set`, change single values.
"""

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import GenerationConfig

from transduct.configuration import TransductConfig
from transduct.files import write_whole
from transduct.presets import config_from_preset
from transduct.tokenization import AFFIXES, TransductTokenizer
from transduct.training.arguments import TransductTrainingArguments, checked_types
from transduct.training.checks import (
    alternatives,
    check_count,
    check_names,
    check_number,
    check_type,
    checked,
    in_section,
    is_enum,
    keys_of,
    unknown_key,
)
from transduct.training.metrics import METRICS, TIMINGS
from transduct.training.recipe_data import (
    SPLITS,
    DataSection,
    ObjectiveSection,
    SplitSource,
    build_data,
    build_objective,
    model_kind,
)

__all__ = [
    "SPLITS", "DataSection", "EvaluationSection", "ObjectiveSection", "Recipe", "SplitSource",
    "build_recipe", "load_recipe",
]  # fmt: skip

DATA_FOLDER = "data_folder.txt"
"""The file of a run's output folder that says where the paths of its data begin."""
NOT_IN_A_RECIPE = {
    "output_dir": "the key output, at the top, says where a run goes",
    "resume_from_checkpoint": "a run goes on at its newest whole checkpoint by itself",
    "save_only_model": "a run could not go on at such checkpoints",
    "batch_eval_metrics": "metrics are computed once, from the file of all predictions",
    "hub_token": "recipes are noted and shared: set HF_TOKEN, or run `hf auth login`",
    "do_train": "a run trains",
    "do_eval": "eval_strategy says when a run evaluates",
    "do_predict": "data.test says whether the finished model is tested",
}
"""Training arguments that would do nothing or harm, and why."""


NOT_OF_GENERATION = frozenset({
    "num_beams", "length_penalty", "transformers_version", "pad_token_id", "bos_token_id", "eos_token_id",
    "decoder_start_token_id",
})  # fmt: skip
"""Fields of `GenerationConfig` that have keys of their own, or that the model decides."""


@dataclass(kw_only=True)
class EvaluationSection:
    metrics: dict[str, str] = field(default_factory=lambda: {"bleu": "bleu", "chrf": "chrf"})
    """The name to show -> the name of one of `metrics.METRICS`, such as token_error, bleu or rouge_lsum."""
    num_beams: int = 4
    """Beam width of the final evaluation (section 6.1 of the paper: 4)."""
    length_penalty: float = 1.0
    """Exponent of the length in the score of a beam, as transformers defines it."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Further fields of transformers' `GenerationConfig`, such as {min_length: 56, no_repeat_ngram_size: 3}. The finished model
    keeps them, as it does the beam width."""
    batch_size: int = 128
    """Sources in one batch of the final evaluation."""
    samples: int = 5
    """Outputs of the test set that are printed beside their references."""
    inputs: list[str] = field(default_factory=list)
    """Sources of your own; what the finished model makes of them is printed at the end."""


@dataclass(kw_only=True)
class Recipe:
    output: str
    model: dict[str, Any]
    tokenizer: dict[str, Any]
    data: DataSection
    training: dict[str, Any]
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    threads: int | None = None
    """Processor threads; None: torch decides. Small models gain nothing from a second one."""
    folder: Path = field(default=Path(), metadata={"internal": True})
    """Paths of `data` are relative to it: the folder of the file."""
    file: Path | None = field(default=None, metadata={"internal": True})
    """Where it was read from."""

    @property
    def without_end(self) -> str | None:
        """Why the training data have no last row, or None: they have one, and there are epochs."""
        if len(self.data.parts) > 1:
            return "a mixture"
        if self.data.parts[0].streaming:
            return "a stream"
        if self.data.subwords is not None:
            return "segmented anew each time (data.subwords)"
        objective = self.objective_of(self.data.parts[0])
        return None if objective.of_pairs else f"made anew each time ({objective.name})"

    def objective_of(self, split: SplitSource) -> ObjectiveSection:
        """What is made of the rows of a split: its own objective, or the recipe's."""
        return split.objective or self.objective


class _Loader(yaml.SafeLoader):
    """Safe, and reads 1e-4 as the number that it is in YAML 1.2; PyYAML follows 1.1, where it is a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_recipe(path: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """Read a YAML file, apply `section.key=value` changes, and check every key.

    Raises:
        ValueError: for a file that is no mapping, an unknown or missing key, and a change that is no `key=value`.
    """
    path = Path(path)
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} must hold a mapping with the keys {', '.join(keys_of(Recipe))}")
    for change in changes:
        _apply_change(raw, change)
    recipe = build_recipe(raw)
    recipe.file = path.resolve()
    recipe.folder = recipe.file.parent
    return recipe


def note_data_folder(recipe: Recipe, output: Path) -> None:
    """Write into a run's output folder where the paths of its data begin, as seen from there, so that both may move together."""
    try:
        folder = os.path.relpath(recipe.folder.resolve(), output.resolve())
    except ValueError:  # another drive
        folder = str(recipe.folder.resolve())
    write_whole(output / DATA_FOLDER, folder + "\n")


def noted_data_folder(output: Path) -> Path | None:
    """The folder that `note_data_folder` wrote down, if it did and the folder is still there."""
    note = output / DATA_FOLDER
    folder = output / note.read_text(encoding="utf-8").removesuffix("\n") if note.is_file() else None
    return folder.resolve() if folder is not None and folder.is_dir() else None


def build_recipe(raw: Mapping[str, Any]) -> Recipe:
    """The checked recipe of a nested mapping."""
    values = checked(raw, Recipe, "")
    check_type(values["output"], str, "output")
    values["output"] = os.path.expanduser(values["output"])  # transformers would do so for checkpoints alone
    values["objective"] = build_objective(values.get("objective") or {})
    values["data"] = build_data(values["data"], values["objective"])
    values["evaluation"] = EvaluationSection(**checked(values.get("evaluation") or {}, EvaluationSection, "evaluation"))
    _check_evaluation(values["evaluation"], values["objective"])
    if values.get("threads") is not None:
        check_count(values["threads"], "threads", 1)
    values["training"] = _training_arguments(values["training"])
    _check_model(values["model"])
    _check_tokenizer(values["tokenizer"])
    return Recipe(**values)


def _check_model(raw: Any) -> None:
    known = {"preset", "from_pretrained", *(f.name for f in fields(TransductConfig))}
    check_names(raw, "model", known)
    if ("preset" in raw) == ("from_pretrained" in raw):
        raise ValueError("model needs either preset, a name of transduct.preset_names(), or from_pretrained, a folder")
    types = {**TransductConfig.__annotations__, "preset": str, "from_pretrained": str}
    for name, value in raw.items():
        if name in types:
            check_type(value, types[name], f"model.{name}")
    if "preset" in raw:
        preset_config(raw, vocab_size=2**31)  # what is wrong with it is said before data are read


def preset_config(model: Mapping[str, Any], **decided: Any) -> TransductConfig:
    """The config of a recipe's section `model` that names a preset.

    Args:
        model: the section.
        decided: what the tokenizer decides, where the section does not.

    Raises:
        ValueError: for fields that contradict each other; it names them as the recipe does.
    """
    changes = {name: value for name, value in model.items() if name != "preset"}
    with in_section("model", {"preset", *TransductConfig.__annotations__}, name="preset"):
        return config_from_preset(model["preset"], **{**decided, **changes})


def _check_tokenizer(raw: Any) -> None:
    trained = set(inspect.signature(TransductTokenizer.train).parameters) - {"files_or_iterator", "target", "kwargs"}
    check_names(raw, "tokenizer", {*trained, *AFFIXES, "model_max_length", "separate_vocabularies", "texts", "from_pretrained"})
    if raw.get("texts") is not None:  # so many of each side are enough for a vocabulary
        check_count(raw["texts"], "tokenizer.texts", 1)
        if "from_pretrained" in raw:
            raise ValueError("tokenizer.texts has no use with from_pretrained, whose vocabulary is there already")


def _apply_change(raw: dict[str, Any], change: str) -> None:
    name, equals, value = change.partition("=")
    if not equals or not name:
        raise ValueError(f"{change!r} must read section.key=value")
    *sections, key = name.split(".")
    place: Any = raw
    for section in sections:
        place = place.setdefault(section, {}) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        raise ValueError(f"{change!r}: {'.'.join(sections)} is not a section")
    try:
        place[key] = yaml.load(value, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{change!r}: the value is not valid YAML: {error}") from error


def _check_evaluation(evaluation: EvaluationSection, objective: ObjectiveSection) -> None:
    """All of it now: the section is used when the training is over."""
    _check_metrics(evaluation.metrics)
    for name, least in (("num_beams", 1), ("batch_size", 1), ("samples", 0)):
        check_count(getattr(evaluation, name), f"evaluation.{name}", least)
    check_number(evaluation.length_penalty, "evaluation.length_penalty")
    _check_generation(evaluation, objective)
    if not isinstance(evaluation.inputs, list) or not all(isinstance(text, str) for text in evaluation.inputs):
        raise ValueError(f"evaluation.inputs={evaluation.inputs!r} must be a list of texts; quote what YAML reads otherwise")
    if evaluation.inputs and model_kind(objective) != "TransductForConditionalGeneration":
        raise ValueError(f"evaluation.inputs: the model of {objective.name} does not write one text for another; leave them out")


def _check_generation(evaluation: EvaluationSection, objective: ObjectiveSection) -> None:
    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")} - NOT_OF_GENERATION
    check_names(evaluation.generation, "evaluation.generation", known)
    if evaluation.generation and model_kind(objective) == "TransductForMaskedLM":
        raise ValueError(f"evaluation.generation: the model of {objective.name} writes nothing; leave it out")
    settings = {"num_beams": evaluation.num_beams, "length_penalty": evaluation.length_penalty, **evaluation.generation}
    try:
        GenerationConfig(**settings).validate(strict=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"evaluation.generation={evaluation.generation!r} cannot be used: {error}") from error


def _check_metrics(metrics: Any) -> None:
    if not isinstance(metrics, Mapping):
        raise ValueError(f"evaluation.metrics must map names to metrics, such as {{word error: sequence_error}}, not {metrics!r}")
    for name, metric in metrics.items():
        if metric not in METRICS:
            raise ValueError(f"evaluation.metrics.{name}={metric!r} is unknown; choose one of {', '.join(METRICS)}")
        if not isinstance(name, str) or name.replace(" ", "_") in ("loss", *TIMINGS):
            others = ", ".join(["loss", *TIMINGS])
            raise ValueError(f"evaluation.metrics: {name!r} cannot name a metric: choose a text other than {others}")
    if len({name.replace(" ", "_") for name in metrics}) < len(metrics):
        raise ValueError(f"evaluation.metrics: of {', '.join(metrics)}, two are one name with _ in place of spaces: rename one")


def _training_arguments(raw: Any) -> dict[str, Any]:
    """Names and kinds of values checked against the fields of `TransductTrainingArguments`; numbers written as 3e-3 made ones."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"training must be a mapping of fields of TransductTrainingArguments, not {raw!r}")
    known, types = {f.name for f in fields(TransductTrainingArguments) if f.init}, checked_types()
    values = {}
    for key, value in raw.items():
        if key in NOT_IN_A_RECIPE and value:
            raise ValueError(f"training.{key} is no key of a recipe: {NOT_IN_A_RECIPE[key]}")
        if key not in known:
            raise unknown_key(f"training.{key}", str(key), known)
        values[key] = _as_meant(value, alternatives(types.get(key, Any)))
        if key in types:
            check_type(values[key], types[key], f"training.{key}")
    if values.get("push_to_hub") and not values.get("hub_model_id"):
        raise ValueError("training.push_to_hub needs hub_model_id, the name of the model on the Hub, such as my-name/my-model")
    return values


def _as_meant(value: Any, kinds: tuple[Any, ...]) -> Any:
    """What was meant for a field of these types: YAML reads no as false, 5.0 as a fraction, and some numbers as texts."""
    if value is False and bool not in kinds and any(kind is str or is_enum(kind) for kind in kinds):
        return "no"
    if isinstance(value, str) and str not in kinds and (float in kinds or int in kinds):
        try:
            value = float(value)
        except ValueError:
            return value
    whole = isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds
    return int(value) if whole else value

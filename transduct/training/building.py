"""What a run is put together from, as its recipe says: arguments, tokenizer, model, collator, metrics."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
)

from transduct import modeling
from transduct.files import save_whole
from transduct.tokenization import TransductTokenizer
from transduct.training.alignments import AlignmentCollator
from transduct.training.arguments import TransductTrainingArguments
from transduct.training.checks import in_section
from transduct.training.collators import Seq2SeqCollator
from transduct.training.encoding import PairEncoder
from transduct.training.metrics import ERRORS
from transduct.training.objectives import ObjectiveCollator
from transduct.training.predictions import TextMetrics
from transduct.training.pretraining import make_objective
from transduct.training.recipe import Recipe, preset_config
from transduct.training.recipe_data import DataSection, model_kind
from transduct.training.run_data import RunData
from transduct.training.weight_options import checkpoints_to_keep

DEFAULTS: dict[str, Any] = dict(
    save_strategy="no",
    logging_steps=20,
    report_to="none",
    disable_tqdm=True,
    predict_with_generate=True,
    dataloader_pin_memory=False,
)
"""Values of training arguments that a recipe need not give; checkpoints then go by `save_seconds`."""

NO_LIMIT_OF_STEPS = 10**9
"""What `max_steps` becomes where data have no end and only the time limits a run."""

AUTO_CLASSES = {
    "TransductForConditionalGeneration": AutoModelForSeq2SeqLM,
    "TransductForCausalLM": AutoModelForCausalLM,
    "TransductForMaskedLM": AutoModelForMaskedLM,
}


def build_arguments(recipe: Recipe, output: Path) -> TransductTrainingArguments:
    """The training arguments, checked against what the data need.

    Raises:
        ValueError: for data without a last row if nothing ends the run, for generation without references, and for bfloat16
            where no GPU computes in it.
    """
    kept = {"save_total_limit": checkpoints_to_keep(recipe.training)}
    named = {"run_name": output.absolute().name, "output_dir": str(output / "checkpoints")}  # one name for all starts
    options = {**DEFAULTS, **kept, **named, **recipe.training, **_best_metric(recipe)}
    if not recipe.objective.of_pairs:
        if recipe.training.get("predict_with_generate"):
            raise ValueError(f"training.predict_with_generate: {recipe.objective.name} has no references; leave it out")
        options["predict_with_generate"] = False
    aligned = all(part.aligned for part in recipe.data.parts)
    if aligned != (recipe.training.get("guided_alignment") is not None):
        given, missing = ("alignments in data.train", "training.guided_alignment")[:: 1 if aligned else -1]
        raise ValueError(f"the recipe has {given}, but no {missing}: give both, or neither")
    if recipe.without_end is not None:
        without_end = f"data.train is {recipe.without_end} and has no last row"
        if "num_train_epochs" in recipe.training:
            raise ValueError(f"training.num_train_epochs: {without_end}, hence no epochs. Give max_steps or max_minutes instead")
        for name in ("train_sampling_strategy", "dataloader_drop_last", "auto_find_batch_size"):
            if recipe.training.get(name, unset := getattr(TransductTrainingArguments, name)) != unset:
                raise ValueError(f"training.{name}: {without_end}, and its batches are made as they come. Leave {name} out")
        if options.get("max_steps", -1) <= 0:
            if options.get("max_minutes") is None:
                raise ValueError(f"{without_end}: give training.max_steps or training.max_minutes")
            options["max_steps"] = NO_LIMIT_OF_STEPS
    elif recipe.data.buffer_rows != DataSection.buffer_rows:
        raise ValueError(
            f"data.buffer_rows={recipe.data.buffer_rows}: only data without a last row are batched in blocks, such as a stream, "
            "a mixture or what an objective makes. Leave it out"
        )
    try:
        with in_section("training", options):
            return TransductTrainingArguments(**options)
    except ValueError as error:
        if "support bf16/gpu" not in str(error):
            raise
        key = "training.bf16" if options.get("bf16") else "training.bf16_full_eval"
        advice = f"leave it out for float32 (--set {key}=false), or use the processor for it (--set training.use_cpu=true)"
        raise ValueError(f"{key}: there is no GPU here that computes in bfloat16; {advice}") from error


def _best_metric(recipe: Recipe) -> dict[str, Any]:
    """What `metric_for_best_model` means: one of the recipe's metrics, of which more or less is better."""
    name = recipe.training.get("metric_for_best_model")
    if name is None:
        return {}
    generates = recipe.objective.of_pairs and recipe.training.get("predict_with_generate", True)
    generates = generates and not recipe.training.get("prediction_loss_only", False)
    metrics = reported(recipe) if generates else {}
    wanted = str(name).removeprefix("eval_").replace(" ", "_")
    if wanted not in {"loss", *metrics}:
        choices = ", ".join(["loss", *metrics])
        raise ValueError(f"training.metric_for_best_model={name!r} is not measured: choose one of {choices}")
    options: dict[str, Any] = {"metric_for_best_model": wanted}
    if "greater_is_better" not in recipe.training:
        options["greater_is_better"] = wanted != "loss" and metrics[wanted] not in ERRORS
    return options


def reported(recipe: Recipe) -> dict[str, str]:
    """The recipe's metrics under the names that the trainer logs."""
    return {name.replace(" ", "_"): metric for name, metric in recipe.evaluation.metrics.items()}


def build_tokenizer(recipe: Recipe, data: RunData, folder: Path) -> Any:
    """The run's tokenizer: the one in `folder`, else `tokenizer.from_pretrained`, else one trained on the training texts."""
    if folder.is_dir():
        try:
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=runs_code(recipe))
        except Exception as error:  # of any kind: tokenizers raises plain ones
            raise ValueError(
                f"the run's tokenizer in {folder} cannot be read: {error}. Restore it, or begin with --fresh"
            ) from error
    options = dict(recipe.tokenizer)
    pretrained = options.pop("from_pretrained", None)
    if pretrained is not None:
        tokenizer = _load_pretrained("tokenizer", AutoTokenizer, pretrained, options)
    else:
        separate = options.pop("separate_vocabularies", False)
        most = options.pop("texts", None)
        if separate:
            sources, targets = data.texts("source", most), data.texts("target", most)
        else:
            sources, targets = data.texts("both", most), None
        with in_section("tokenizer", options):
            tokenizer = TransductTokenizer.train(sources, target=targets, **options)
    save_whole(folder, tokenizer.save_pretrained)
    return tokenizer


def runs_code(recipe: Recipe) -> bool:
    """Whether the recipe says that code which comes with its model or tokenizer may be run."""
    return any(section.get("trust_remote_code") is True for section in (recipe.model, recipe.tokenizer))


def build_model(recipe: Recipe, tokenizer: Any) -> Any:
    """The model that is trained: `model.from_pretrained`, or new weights for a preset with the tokenizer's vocabulary."""
    options, kind = dict(recipe.model), model_kind(recipe.objective)
    if "from_pretrained" in options:
        return _load_pretrained("model", AUTO_CLASSES[kind], options.pop("from_pretrained"), options)
    separate = isinstance(tokenizer, TransductTokenizer) and tokenizer.separate_vocabularies
    vocabularies = {
        "vocab_size": len(tokenizer),
        "decoder_vocab_size": tokenizer.decoder_vocab_size if separate else None,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }
    config = preset_config(options, **vocabularies)
    if config.target_start == "last_token" and "decoder_start_token_id" not in options:
        config.decoder_start_token_id = tokenizer.eos_token_id  # with which targets end, unless their language comes behind it
    return getattr(modeling, kind)(config)


def _load_pretrained(section: str, auto_class: Any, source: str, options: dict[str, Any]) -> Any:
    """What `from_pretrained` of a section of the recipe names, a folder or a name of the Hub, with the section's changes."""
    is_folder = Path(source).is_dir()
    if not is_folder and not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", source):
        raise ValueError(f"{section}.from_pretrained={source!r} is no folder, seen from {Path.cwd()}, and no name of the Hub")
    try:
        with in_section(section, options):
            return auto_class.from_pretrained(source, **{"trust_remote_code": False, **options})
    except (OSError, ValueError) as error:
        if str(error).startswith(f"{section}."):
            raise
        rule = "cannot be loaded" if is_folder else "is no folder, and cannot be had from the Hub"
        raise ValueError(f"{section}.from_pretrained={source!r} {rule}: {error}") from error


def prepare_generation(model: Any, recipe: Recipe) -> None:
    """Beam search as the evaluation section has it, and a length for models that have none.

    A model of this package writes up to 50 tokens more than its source has, as the paper does. Of others, transformers would cut
    every output at 21 tokens without a word: they write up to `data.max_target_tokens`, unless their own generation config says
    how many.

    Raises:
        ValueError: for outputs that are to be measured and have no length.
    """
    if not model.can_generate():
        return
    generation = model.generation_config
    generation.num_beams, generation.length_penalty = recipe.evaluation.num_beams, recipe.evaluation.length_penalty
    if recipe.evaluation.generation:
        _set_generation(generation, recipe.evaluation.generation)
    if model.config.model_type == "transduct" or generation.max_length is not None or generation.max_new_tokens is not None:
        return
    measured = recipe.data.validation is not None or recipe.data.test is not None
    if measured and recipe.data.max_target_tokens is None:
        raise ValueError(
            f"data.max_target_tokens is not set, and {type(model).__name__} has no length of its own: outputs would be cut at "
            "21 tokens. Set it to the longest output that is wanted"
        )
    generation.max_new_tokens = recipe.data.max_target_tokens


def _set_generation(generation: GenerationConfig, settings: Mapping[str, Any]) -> None:
    """Fields of the recipe into the model's generation config, where one length replaces the other way to say it."""
    for name in ("min", "max"):
        lengths = {f"{name}_length", f"{name}_new_tokens"}
        if lengths & settings.keys():
            generation.update(**dict.fromkeys(lengths))
    generation.update(**settings)


def build_collator(recipe: Recipe, tokenizer: Any, model: Any) -> Any:
    """Pads pairs, and what an objective has made of documents."""
    has_decoder = model_kind(recipe.objective) == "TransductForConditionalGeneration"
    collator = Seq2SeqCollator(tokenizer, model=model if has_decoder else None)
    if recipe.objective.of_pairs:
        return AlignmentCollator(collator) if recipe.data.parts[0].aligned else collator
    return ObjectiveCollator(make_objective(recipe.objective, tokenizer), collator, labelled="keep")


def build_metrics(recipe: Recipe, tokenizer: Any, validation: Dataset | None, folder: Path) -> TextMetrics | None:
    """`compute_metrics` for the validation set, whose references are in its own column; None for one without references.

    The predictions of each evaluation are kept in `folder`.
    """
    if validation is None or not recipe.objective.of_pairs:
        return None
    assert recipe.data.validation is not None
    encoder = PairEncoder(tokenizer, recipe.data.validation)
    tokens = (encoder.first_target_token, encoder.start_token)
    return TextMetrics(tokenizer, validation["targets"], reported(recipe), folder, validation["source"], *tokens)

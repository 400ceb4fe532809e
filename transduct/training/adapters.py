"""Fine-tuning of a part of the weights: layers that stay as they are, and low-rank adapters (LoRA, Hu et al. 2021) through peft.

- `freeze_weights` takes parts by name; `embeddings` stands for all tables of embeddings.
- `add_lora` wraps a model with adapters on the projections that the paper adapts, or on others; `peft` loads what it saves.
- `prepare_weights` does what the training arguments `freeze` and `lora` ask for; `finished_model` merges adapters.

LoRA here adapts linear layers only. An adapter on learned positions would be looked up without their offset and merged into the
wrong rows; one on a matrix that is tied would be merged into the other's weights as well.
"""

import difflib
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from transduct.training.checks import check_count, check_type

TARGETS = {
    "default": ("q_proj", "v_proj"),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""Names for groups of layers; the first is what section 4.2 of the paper adapts."""
LORA_KEYS = ("rank", "alpha", "dropout", "target", "modules_to_save")
EMBEDDINGS = ("embed_tokens", "embed_positions")


def prepare_weights(model: Any, args: Any, say: Callable[[str], Any] | None = None) -> Any:
    """The model with frozen weights or adapters as `args.freeze` and `args.lora` ask for; without either, the model itself.

    Args:
        args: `TransductTrainingArguments`.
        say: told the share of the weights that are trained.

    Raises:
        ValueError: for names that match nothing, and unknown options.
    """
    if args.freeze is not None and args.lora is not None:
        raise ValueError("freeze and lora exclude each other: with adapters, no other weights are trained")
    if args.freeze is not None:
        freeze_weights(model, args.freeze)
    if args.lora is not None:
        model = add_lora(model, args.lora)
    if say is not None and (args.freeze is not None or args.lora is not None):
        say(trained_share(model))
    return model


def freeze_weights(model: nn.Module, parts: Sequence[str]) -> None:
    """Stop the training of the named parts of a model.

    Args:
        parts: "embeddings", or the names of modules or parameters, such as "encoder", "decoder.layers.0" or "lm_head"; what is
            tied to a frozen weight is frozen with it.

    Raises:
        ValueError: for a name that matches nothing, with those it may have meant, and if nothing is left to train.
    """
    if isinstance(parts, str):
        raise ValueError(f"freeze={parts!r} must be a list of names, such as [{parts}]")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for part in parts:
        matching = [name for name in parameters if _belongs(name, part)]
        if not matching:
            raise _unknown_part(part, parameters)
        for name in matching:
            parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"freeze={list(parts)} leaves nothing to train")


def _belongs(name: str, part: str) -> bool:
    if part == "embeddings":
        return any(piece in EMBEDDINGS for piece in name.split("."))
    return any(name == whole or name.startswith(f"{whole}.") for whole in (part, f"model.{part}"))


def _unknown_part(part: str, parameters: dict[str, Any]) -> ValueError:
    """Names of modules and parameters near `part`, as they may be given."""
    known = {"embeddings"}
    for name in parameters:
        pieces = name.removeprefix("model.").split(".")
        known |= {".".join(pieces[:count]) for count in range(1, len(pieces) + 1)}
    close = difflib.get_close_matches(part, sorted(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(sorted(n for n in known if '.' not in n))}"
    return ValueError(f"freeze: {part!r} matches no weight of this model: {hint}")


def add_lora(model: Any, options: dict[str, Any]) -> Any:
    """The model with trainable adapters and all else frozen, a peft model.

    Args:
        options: rank (8), alpha (2 x rank), dropout (0), target ("default": queries and values, "attention", "all", or a list of
            layer names), and modules_to_save, names of modules that are trained and saved whole.

    Raises:
        ValueError: for unknown options, targets that are not there or cannot be merged; ImportError without peft.
    """
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError as error:
        raise ImportError("lora needs the package peft: pip install 'transduct[lora]'") from error
    rank, targets, saved = _checked_lora(model, options)
    writes = TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM
    config = LoraConfig(
        task_type=writes if model.can_generate() else None,
        r=rank,
        lora_alpha=options.get("alpha", 2 * rank),
        lora_dropout=options.get("dropout", 0.0),
        target_modules=targets,
        modules_to_save=saved or None,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")  # peft asks transformers for it
        return get_peft_model(model, config)


def _checked_lora(model: Any, options: dict[str, Any]) -> tuple[int, list[str], list[str]]:
    for key in options:
        if key not in LORA_KEYS:
            raise ValueError(f"lora.{key} is unknown; its keys are {', '.join(LORA_KEYS)}")
    rank = options.get("rank", 8)
    check_count(rank, "lora.rank", 1)
    for key, low, high in (("alpha", 0, math.inf), ("dropout", 0, 1)):
        value = options.get(key, low)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
            raise ValueError(f"lora.{key}={value!r} must be a number of at least 0" + (", and below 1" if high == 1 else ""))
    target = options.get("target", "default")
    check_type(target, str | list[str], "lora.target")
    check_type(options.get("modules_to_save", []), list[str], "lora.modules_to_save")
    modules = dict(model.named_modules())
    if isinstance(target, str):
        if target not in TARGETS:
            raise ValueError(f"lora.target={target!r} must be one of {', '.join(TARGETS)}, or a list of layer names")
        targets = [name for name in TARGETS[target] if _modules_named(modules, name)]
    else:
        targets = list(target)
    for name in targets:
        _check_module(model, modules, "target", name, linear=True)
    saved = list(options.get("modules_to_save", ()))
    for name in saved:
        _check_module(model, modules, "modules_to_save", name, linear=False)
    return rank, targets, saved


def _modules_named(modules: dict[str, nn.Module], name: str) -> list[nn.Module]:
    return [module for path, module in modules.items() if path == name or path.endswith(f".{name}")]


def _check_module(model: Any, modules: dict[str, nn.Module], key: str, name: str, linear: bool) -> None:
    found = _modules_named(modules, name)
    if not found:
        close = difflib.get_close_matches(name, sorted({path.rpartition(".")[2] for path in modules}), n=3)
        raise ValueError(f"lora.{key}: {name!r} is no module of this model" + (f": {' or '.join(close)}?" if close else ""))
    if linear and not all(isinstance(module, nn.Linear) for module in found):
        raise ValueError(f"lora.target: {name!r} is no linear layer; train it whole, with lora.modules_to_save")
    tied = {path.rpartition(".")[0] for pair in model.all_tied_weights_keys.items() for path in pair}
    if any(modules[path] in found for path in tied if path in modules):
        raise ValueError(f"lora.{key}: {name!r} shares its weights with another module, which would change with it")


def trained_share(model: nn.Module) -> str:
    """A line about how many of the weights are trained."""
    parameters = list(model.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return f"trained: {trained:,} of {total:,} parameters ({trained / total:.2%})"


def is_adapted(model: Any) -> bool:
    """Whether peft has put adapters into the model."""
    return hasattr(model, "peft_config") and hasattr(model, "merge_and_unload")


def finished_model(model: Any) -> Any:
    """The model as it is saved: adapters, if it has any, merged into its weights, and the wrapping gone."""
    return model.merge_and_unload() if is_adapted(model) else model


def with_weights_of(model: Any, checkpoint: str | Path) -> Any:
    """The model, or another of its class, with the weights that a checkpoint of its training holds."""
    if not is_adapted(model):
        return type(model).from_pretrained(checkpoint)
    model.load_adapter(str(checkpoint), model.active_adapter, is_trainable=True)
    return model

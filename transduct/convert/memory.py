"""Models in memory: a model of transformers becomes ours, and ours one of transformers', with copies of the weights."""

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from transduct.configuration import TransductConfig
from transduct.convert import unread
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.models import export_plan, import_plan


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing that transformers says about loading a model: what could go wrong is checked here, with errors of our own."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@quiet()
def import_model(model: PreTrainedModel) -> PreTrainedModel:
    """A model of transformers as ours: data type, device, mode, ties, frozen weights and generation config are kept.

    Raises:
        ValueError: for a family, class or option that is not known here, and weights of several types or devices.
    """
    where = type(model).__name__
    _check_model(model, "model_or_path must be a model of transformers, a folder or an id of the Hub")
    if model.config.model_type == TransductConfig.model_type:
        raise ValueError(f"{where} is a model of transduct already: it needs no import")
    _check_uniform(model, where)
    checkpoint = Checkpoint.of_state_dict(model.state_dict(), where)
    plan = import_plan(model.config.to_dict(), where, checkpoint, where)
    state = {name: tensor.clone() for name, tensor in plan.to_ours(checkpoint)}
    ours = build(plan.our_class, plan.config, state)
    unread.attach(ours, plan.unread_tensors(checkpoint))
    _copy_manner(model, ours, {name: theirs[0] for name, theirs in plan.table().items()})
    return ours


@quiet()
def export_model(model: PreTrainedModel, to: str | None = None) -> PreTrainedModel:
    """A model of ours as one of transformers' classes; keeps what `import_model` keeps.

    Args:
        to: the family; None: that from which the model was imported.

    Raises:
        ValueError: for a family that is not known or has no way to say what this model is, and weights of several types or
            devices.
    """
    where = type(model).__name__
    _check_model(model, "model must be a model of transduct")
    if model.config.model_type != TransductConfig.model_type:
        raise ValueError(f"{where} is no model of transduct: only those are exported; from_transformers makes one of it")
    _check_uniform(model, where)
    plan, config = export_plan(model.config, where, to, where)
    table = plan.table()
    _check_whole(model, set(table), where)
    state = {name: tensor.clone() for name, tensor in plan.to_theirs(model.state_dict(), unread.attached(model))}
    theirs = build(getattr(transformers, plan.their_class), config, state)
    _copy_manner(model, theirs, {theirs[0]: name for name, theirs in table.items()})
    return theirs


def build(model_class: type[PreTrainedModel], config: PreTrainedConfig, state: Mapping[str, torch.Tensor]) -> PreTrainedModel:
    """A model that holds these very tensors, on their device, in evaluation mode."""
    first, origin = next(iter(state.values())), config._name_or_path
    with quiet():
        model = model_class.from_pretrained(None, config=config, state_dict=dict(state), dtype=first.dtype)
        model.to(device=first.device, dtype=first.dtype)
    model.name_or_path = model.config._name_or_path = origin
    return model.eval()


def _check_model(model: object, rule: str) -> None:
    """Raises ValueError for what is no model, with a hint where there is one inside."""
    if isinstance(model, PreTrainedModel):
        return
    inside = {"merge_and_unload": "merge its adapter first: merge_and_unload()", "_orig_mod": "take its _orig_mod",
              "module": "take its module"}  # fmt: skip
    hint = next((f"; {hint}" for name, hint in inside.items() if hasattr(model, name)), "")
    raise ValueError(f"{rule}, not {type(model).__name__}{hint}")


def _check_uniform(model: PreTrainedModel, where: str) -> None:
    """Raises ValueError unless all weights have one type and lie on one device, as numbers."""
    weights = list(model.named_parameters())
    types, devices = {weight.dtype for _, weight in weights}, {weight.device for _, weight in weights}
    if len(types) > 1 or not next(iter(types)).is_floating_point:
        first: dict[torch.dtype, str] = {}
        for name, weight in weights:
            first.setdefault(weight.dtype, name)
        named = ", ".join(f"{dtype} ({name})" for dtype, name in first.items())
        raise ValueError(
            f"{where} must have weights of one floating-point type, not of {named}; use `.to(dtype)`, or load it anew"
        )
    if len(devices) > 1 or next(iter(devices)).type == "meta":
        raise ValueError(f"{where} must lie on one device, not on {', '.join(sorted(map(str, devices)))}; or convert its folder")


def _check_whole(model: PreTrainedModel, names: set[str], where: str) -> None:
    """Raises ValueError unless a model of ours holds exactly the tensors that its config says, and ties what it says."""
    state, tied = model.state_dict(), dict(model.all_tied_weights_keys)
    others = sorted(set(state) ^ (names | set(tied)))
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise ValueError(
            f"{where} has other tensors than its config says: {', '.join(others[:3])}{more}; merge adapters and undo quantisation"
        )
    for name, source in tied.items():
        if not torch.equal(state[name], state[source]):
            tie = f"tie_embeddings={model.config.tie_embeddings!r}"
            raise ValueError(f"{where}: {name} and {source} are one matrix by {tie}, but hold different values: set it anew")


def _copy_manner(original: PreTrainedModel, copied: PreTrainedModel, names: Mapping[str, str]) -> None:
    """What is no weight: mode, frozen weights, generation config.

    Args:
        names: of the weights, in the copy and in the original.
    """
    weights = dict(original.named_parameters(remove_duplicate=False))
    for name, weight in copied.named_parameters():
        if names.get(name) in weights:
            weight.requires_grad_(weights[names[name]].requires_grad)
    copied.train(original.training)
    if original.can_generate():
        copied.generation_config = copy.deepcopy(original.generation_config)

"""Whether two models are one: states layer by layer, outputs, and generated ids on the same random and padded inputs.

Both run in float32 (copies of half-precision ones do) and evaluation mode. Outputs must agree within 1e-4, in absolute terms.
States of a layer must agree within 1e-4 of their largest value where that is over one: T5's residual sums reach thousands, where
float32 itself is coarser than 1e-4. Greedy and beam-4 ids must be identical. Where they are not, the two answers are scored by
both models; if neither prefers one of them by more than the tolerance, it is a tie, and reported as such.

Sinusoids of half precision are compared as they were before they were rounded: some files hold them, and others compute them.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationMixin, PreTrainedModel

from transduct.configuration import TransductConfig
from transduct.convert.memory import quiet
from transduct.convert.models import HALF, is_table
from transduct.convert.verifying_inputs import source_inputs, target_inputs
from transduct.positions import sinusoid_table

TOLERANCE = 1e-4
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state")
NEW_TOKENS = 12
NO_OTHER_SEARCH: dict[str, Any] = {
    "constraints": None, "diversity_penalty": None, "dola_layers": None, "force_words_ids": None, "guidance_scale": None,
    "low_memory": None, "num_beam_groups": None, "penalty_alpha": None, "prompt_lookup_num_tokens": None, "stop_strings": None,
}  # fmt: skip
"""What makes another search of greedy or beam search, wants code of the Hub, or a tokenizer."""


@dataclass
class Verification:
    """What was compared, and how closely it agreed."""

    inputs: str
    differences: dict[str, float] = field(default_factory=dict)
    """Largest absolute difference of each layer's states and of each output."""
    generated: list[str] = field(default_factory=list)
    """Ways of generating whose ids were identical but for ties."""
    ties: list[str] = field(default_factory=list)
    """Where two answers were equally good to both models."""

    def __str__(self) -> str:
        states = [difference for name, difference in self.differences.items() if name not in OUTPUTS]
        outputs = {name: difference for name, difference in self.differences.items() if name in OUTPUTS}
        lines = [f"inputs: {self.inputs}"]
        lines += [f"states of {len(states)} layers: they differ by {max(states):.1e} at most"] if states else []
        lines += [f"{name}: they differ by {difference:.1e} at most" for name, difference in outputs.items()]
        lines += [f"{way} generation: identical ids" for way in self.generated]
        return "\n".join([*lines, *self.ties])


def verify(theirs: PreTrainedModel, ours: PreTrainedModel, where: str = "", seed: int = 0) -> Verification:
    """Compare a model of transformers with ours.

    Args:
        where: for errors. Both models may lie on any devices, also with weights on disk (accelerate's `device_map` and
            `offload_folder`): verifying needs one layer of each in memory then.

    Raises:
        ValueError: naming the first layer that differs, or the way of generating.
    """
    where = where or f"{type(theirs).__name__} and {type(ours).__name__}"
    with ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(torch.no_grad())
        theirs, ours = (stack.enter_context(ready(model)) for model in (theirs, ours))
        stack.enter_context(_exact_tables(theirs, ours))
        source, text = source_inputs(ours, seed)
        result = Verification(text)
        _compare_states(theirs, ours, source | target_inputs(ours, source, seed), result, where)
        if ours.can_generate() and theirs.can_generate():
            _compare_generation(theirs, ours, source, result, where)
    return result


@contextmanager
def ready(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The model in evaluation mode, or a copy in float32."""
    if model.dtype in HALF:
        yield copy.deepcopy(model).float().eval()
        return
    training = {module: module.training for module in model.modules()}
    try:
        yield model.eval()
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def _exact_tables(theirs: PreTrainedModel, ours: PreTrainedModel) -> Iterator[None]:
    """Sinusoids that either model holds rounded to half precision are as exact as they are computed while this lasts."""
    tables = [*_position_tables(theirs), *_position_tables(ours)] if ours.config.positions == "sinusoidal" else []
    rounded: dict[torch.Tensor, torch.Tensor] = {}
    for table in tables:
        exact = sinusoid_table(table.shape[0], table.shape[1], ours.config.sinusoid_layout).to(table)
        exact = exact.masked_fill((table == 0).all(1, keepdim=True), 0)  # padding has no position
        if is_table(table, exact) and not torch.equal(table, exact):
            rounded[table] = table.data
            table.data = exact
    try:
        yield
    finally:
        for table, data in rounded.items():
            table.data = data


def _position_tables(model: PreTrainedModel) -> list[torch.Tensor]:
    """Those of both stacks that are in memory: (rows, D)."""
    named = (*model.named_parameters(), *model.named_buffers())
    return [table for name, table in named if "embed_positions" in name and table.ndim == 2 and table.device.type != "meta"]


def _compare_states(
    theirs: PreTrainedModel, ours: PreTrainedModel, batch: dict[str, torch.Tensor], result: Verification, where: str
) -> None:
    want, got = (_states(model, batch, ours) for model in (theirs, ours))
    absent = [name for name in want if name not in got] + [name for name in got if name not in want]
    if absent:
        raise ValueError(f"{where} do not have the same layers and outputs: only one has {', '.join(absent)}")
    for name, value in want.items():
        if got[name].shape != value.shape:
            raise ValueError(f"{where} differ in the {name}: of shape {tuple(value.shape)} there, {tuple(got[name].shape)} here")
        difference = _difference(got[name].to(value.device), value)
        scale = 1.0 if name in OUTPUTS and name != "last_hidden_state" else max(1.0, value.abs().max().item())
        if not difference <= TOLERANCE * scale:  # also if it is no number
            rule = f"{TOLERANCE:g}" if scale == 1.0 else f"{TOLERANCE:g} of the largest value, {scale:.3g}"
            raise ValueError(
                f"{where} differ, first in the {name}: by {difference:.3g}, where at most {rule} is rounding. The conversion "
                "would not be faithful"
            )
        result.differences[name] = difference


def _difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest absolute difference; infinities that are equal, as in the bias of a token never to be written, are none."""
    return (got - want).masked_fill(got == want, 0).abs().max().item()


def _states(model: PreTrainedModel, batch: dict[str, torch.Tensor], ours: PreTrainedModel) -> dict[str, torch.Tensor]:
    """States by layer and outputs, in the order in which they arise, zero where the source is padding."""
    output = model(**_placed(model, batch), output_hidden_states=True, return_dict=True)
    mask = batch.get("attention_mask")
    both = "encoder_last_hidden_state" in output
    in_decoder = mask if "decoder_input_ids" not in batch else None  # which may read the source's own tokens
    named: dict[str, torch.Tensor] = {}
    for stack, key, hidden in (
        ("encoder", "encoder_hidden_states", mask),
        ("decoder", "decoder_hidden_states", in_decoder),
        ("encoder", "hidden_states", mask),
    ):
        states = output.get(key) or ()
        for number, state in enumerate(states if len(states) > 1 else ()):  # without layers, some classes give none
            named[_layer_name(stack, number, len(states))] = _without_padding(state, hidden)
    for key in OUTPUTS:
        if key in output:
            named[key] = _without_padding(output[key], in_decoder if both else mask)
    return named


def _layer_name(stack: str, number: int, count: int) -> str:
    if number == 0:
        return f"{stack}'s embeddings"
    return f"{stack}'s layer {number - 1}" + (
        " (the last, with the norm at the end if there is one)" if number == count - 1 else ""
    )


def _without_padding(state: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None or state.shape[:2] != mask.shape:
        return state
    kept = mask.bool().to(state.device).view(*mask.shape, *[1] * (state.ndim - 2))
    return state.where(kept, torch.zeros_like(state))


def _placed(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch where the model expects it, features in its data type."""
    device = _device(model)
    return {name: value.to(device, model.dtype if value.is_floating_point() else value.dtype) for name, value in batch.items()}


def _device(model: PreTrainedModel) -> torch.device:
    """Where inputs go; accelerate's hooks bring them from the CPU to wherever a layer runs whose weights are on disk."""
    return model.device if model.device.type != "meta" else torch.device("cpu")


def _compare_generation(
    theirs: PreTrainedModel, ours: PreTrainedModel, source: dict[str, torch.Tensor], result: Verification, where: str
) -> None:
    """Greedy and beam-4, with what else the generation config says; then beam-4 with forced first and last tokens."""
    vocabulary = ours.config.resolved_decoder_vocab_size
    ends = ours.config.eos_token_id
    forced = {"forced_bos_token_id": vocabulary // 2, "forced_eos_token_id": ends}
    ways: list[tuple[str, dict[str, Any]]] = [("greedy", {"num_beams": 1}), ("beam-4", {"num_beams": 4})]
    ways += [("beam-4, forced first and last token,", {"num_beams": 4, **forced})] if ends is not None else []
    never = _without_position(theirs, ours)
    for way, options in ways:
        answers = [_generate(model, ours, source, options | never) for model in (theirs, ours)]
        for row, (want, got) in enumerate(zip(*answers, strict=True)):
            if want == got:
                continue
            gaps = [_preference(model, source, row, want, got, options["num_beams"]) for model in (theirs, ours)]
            if max(abs(gap) for gap in gaps) > TOLERANCE:
                raise ValueError(
                    f"{where} differ in {way} generation, row {row}: {want} there, {got} here; their scores differ by "
                    f"{gaps[0]:.3g} there and {gaps[1]:.3g} here, so it is no tie. The conversion would not be faithful"
                )
            result.ties.append(f"{way} generation, row {row}: two answers are equally good to both models")
        result.generated.append(way)


def _without_position(theirs: PreTrainedModel, ours: PreTrainedModel) -> dict[str, Any]:
    """Leaves out the padding token where it has no position (M2M100): with a cache, transformers places what follows it elsewhere
    than without, so no other model can do as it does. Trained ones never write it."""
    pad = ours.config.pad_token_id
    if pad is None or not any(table.shape[0] > pad and not table[pad].any() for table in _position_tables(theirs)):
        return {}
    return {"suppress_tokens": sorted({*(theirs.generation_config.suppress_tokens or ()), pad})}


def _generate(
    model: PreTrainedModel, ours: PreTrainedModel, source: dict[str, torch.Tensor], options: dict[str, Any]
) -> list[list[int]]:
    """Ids of each row without the padding after them.

    Their T5's cache has a layer for each of the encoder's, so it works for equally deep stacks alone.
    """
    unequal = "T5" in type(model).__name__ and ours.config.encoder_layers != ours.config.decoder_layers
    deep = {"use_cache": False} if unequal else {}
    ids = GenerationMixin.generate(
        model, **_placed(model, source), max_new_tokens=_new_tokens(ours), min_new_tokens=None, do_sample=False,
        num_return_sequences=1, return_dict_in_generate=False, **NO_OTHER_SEARCH, **options, **deep,
    )  # fmt: skip
    return [_stripped(row, ours.config) for row in ids.tolist()]


def _new_tokens(ours: PreTrainedModel) -> int:
    limited = ours.config.positions == "learned"
    return min(NEW_TOKENS, ours.config.resolved_decoder_max_positions - 1) if limited else NEW_TOKENS


def _stripped(ids: list[int], config: TransductConfig) -> list[int]:
    """Without padding at the end, of which the first may be the end of sequence."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    while len(ids) > 1 and ids[-1] == config.pad_token_id and (ids[-1] not in ends or ids[-2] == ids[-1]):
        ids = ids[:-1]
    return ids


def _preference(
    model: PreTrainedModel, source: dict[str, torch.Tensor], row: int, want: list[int], got: list[int], beams: int
) -> float:
    """By how much the score of one answer exceeds the other's: of the first token that differs if greedy, else of the whole."""
    inputs = {name: value[row : row + 1] for name, value in source.items()}
    scores = [_log_probabilities(model, inputs, ids) for ids in (want, got)]
    if beams == 1:
        first = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
        if first >= min(len(want), len(got)):
            return float("inf")
        return (scores[0][first - 1] - scores[1][first - 1]).item()
    penalty = model.generation_config.length_penalty
    power = 1.0 if penalty is None else penalty
    return (scores[0].sum() / len(scores[0]) ** power - scores[1].sum() / len(scores[1]) ** power).item()


def _log_probabilities(model: PreTrainedModel, inputs: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Of each token after the first (T - 1)."""
    target = torch.tensor([ids], device=_device(model))
    logits = model(**_placed(model, inputs), decoder_input_ids=target[:, :-1], return_dict=True).logits
    return logits.float().log_softmax(-1).gather(-1, target[:, 1:, None].to(logits.device))[0, :, 0]

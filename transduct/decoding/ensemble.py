"""Several models as one: the mean of their next-token distributions (Vaswani et al. 2017 and before: Sutskever et al. 2014).

    model.generate(**inputs, num_beams=4, custom_generate=transduct.decoding.beam_search, ensemble=[second, third])

All models must read the same source ids, write the same vocabulary and start and end targets with the same tokens; sizes and
families may differ, and each may be on a device of its own.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from transduct.decoding.rows import Rows

Mean = Literal["probability", "log"]
"""The arithmetic mean of probabilities, or the geometric one, made to sum to 1 again."""


class EnsembleRows(Rows):
    """The rows of several models, which always hold the same tokens.

    Args:
        members: one `Rows` a model; the first is the one that `generate` was called on.
        mean: how their distributions are joined.
    """

    def __init__(self, members: Sequence[Rows], mean: Mean):
        first = members[0]
        super().__init__(first.model, first.ids, first.candidates, first.generation_config, first.arguments)
        self.members = list(members)
        self.mean = mean

    def logits(self) -> torch.Tensor:
        each = [member.logits().log_softmax(-1).to(self.ids.device) for member in self.members]
        log_probs = torch.stack(each)  # (models, B*N, V)
        if self.mean == "log":
            return log_probs.mean(0)  # (B*N, V), which a search makes sum to 1 as it does any logits
        return log_probs.logsumexp(0) - math.log(len(self.members))  # (B*N, V)

    def append(self, tokens: torch.Tensor, origins: torch.Tensor | None = None) -> None:
        for member in self.members:
            device = member.ids.device
            member.append(tokens.to(device), None if origins is None else origins.to(device))
        self.ids = self.members[0].ids

    @property
    def tells_attention(self) -> bool:
        return False

    @property
    def can_leave(self) -> bool:
        return all(member.can_leave for member in self.members)

    def keep(self, order: torch.Tensor) -> None:
        for member in self.members:
            member.keep(order.to(member.ids.device))
        self.ids = self.members[0].ids


def make_rows(
    model: Any,
    input_ids: torch.Tensor,
    candidates: int,
    generation_config: Any,
    arguments: dict[str, Any],
    ensemble: Sequence[Any] = (),
    mean: Mean = "probability",
    inputs_tensor: torch.Tensor | None = None,
) -> Rows:
    """The rows of a search by one model, or by several.

    Args:
        input_ids: what the decoder starts with (sources * candidates, T); arguments: what `generate` made for `model`.
        ensemble: further models; mean: how they vote; inputs_tensor: the source ids (sources, S).

    Raises:
        ValueError: for models that cannot vote together.
    """
    if not isinstance(ensemble, Sequence) or isinstance(ensemble, str):
        raise ValueError(f"ensemble is a {type(ensemble).__name__}: pass a list of models, beside the first one")
    if mean not in ("probability", "log"):
        raise ValueError(f"ensemble_mean={mean!r} must be 'probability' or 'log'")
    if mean != "probability" and not ensemble:
        raise ValueError(f"ensemble_mean={mean!r} belongs to ensemble, which holds no model")
    members = member_rows(model, input_ids, candidates, generation_config, arguments, ensemble, inputs_tensor)
    return EnsembleRows(members, mean) if ensemble else members[0]


def member_rows(
    model: Any,
    input_ids: torch.Tensor,
    candidates: int,
    generation_config: Any,
    arguments: dict[str, Any],
    others: Sequence[Any],
    inputs_tensor: torch.Tensor | None,
) -> list[Rows]:
    """The rows of `model`, and of other models for the same sources; see `make_rows`."""
    rows = [Rows(model, input_ids, candidates, generation_config, arguments)]
    if not others:
        return rows
    if inputs_tensor is None or inputs_tensor.is_floating_point():
        raise ValueError("several models need token ids as their source, not features or embeddings")
    if "decoder_attention_mask" in arguments:
        raise ValueError("decoder_attention_mask cannot be had with several models: give prompts of one length")
    for other in others:
        _check_member(model, other)
    mask = arguments.get("attention_mask")
    if mask is not None:
        mask = mask[:: len(mask) // len(inputs_tensor)]  # once a source
    for other in others:
        own = _arguments(other, inputs_tensor.to(other.device), mask, candidates, generation_config)
        rows.append(Rows(other, input_ids.to(other.device), candidates, generation_config, own))
    return rows


def _check_member(model: Any, other: Any) -> None:
    """Refuse a model that cannot go together with the first one.

    Raises:
        ValueError: naming what differs.
    """
    if not hasattr(other, "generate"):
        raise ValueError(f"ensemble holds a {type(other).__name__}, which is no model: load it first")
    if not other.config.is_encoder_decoder:
        raise ValueError(f"ensemble holds a {type(other).__name__}, which is no encoder-decoder")
    if not hasattr(other, "get_output_embeddings"):
        raise ValueError(f"ensemble holds a {type(other).__name__}, which tells no logits: use a model of torch or of ONNX")
    for what, get in (
        ("source vocabularies", lambda each: each.get_input_embeddings().weight.shape[0]),
        ("target vocabularies", lambda each: each.get_output_embeddings().weight.shape[0]),
        ("decoder_start_token_id", lambda each: _token(each, "decoder_start_token_id")),
        ("eos_token_id", lambda each: _token(each, "eos_token_id")),
    ):
        one, another = get(model), get(other)
        if one != another:
            raise ValueError(f"models with {what} {one} and {another} cannot go together: they need one vocabulary")


def _token(model: Any, name: str) -> Any:
    """A special token as generation uses it."""
    chosen = getattr(model.generation_config, name, None)
    return getattr(model.config, name, None) if chosen is None else chosen


def _arguments(model: Any, source: torch.Tensor, mask: torch.Tensor | None, candidates: int, config: Any) -> dict[str, Any]:
    """What `generate` would make for another model: its encoder states, repeated where it cannot share them, and a cache."""
    config = copy.copy(config)
    given: dict[str, Any] = {"attention_mask": None if mask is None else mask.to(source.device)}
    with torch.no_grad():
        given = model._maybe_prepare_encoder_kwargs_for_generation(source, given, "input_ids", config)
    given = {name: value for name, value in given.items() if value is not None}
    _, given = model._expand_inputs_for_generation(
        expand_size=candidates, is_encoder_decoder=True, input_ids=source[:, :1], **given
    )
    model._prepare_cache_for_generation(config, given, None, len(source), config.max_length - 1)
    return given | {"use_cache": config.use_cache}

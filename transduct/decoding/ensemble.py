"""Several models as one: the mean of their next-token distributions (Vaswani et al. 2017 and before: Sutskever et al. 2014).

    model.generate(**inputs, num_beams=4, custom_generate=transduct.decoding.beam_search, ensemble=[second, third])

All models must read the same source ids and write the same vocabulary; sizes and families may differ.
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
        log_probs = torch.stack(
            [member.logits().log_softmax(-1).to(self.ids.device) for member in self.members]
        )  # (models, B*N, V)
        if self.mean == "log":
            return log_probs.mean(0)
        return log_probs.logsumexp(0) - math.log(len(self.members))  # (B*N, V)

    def append(self, tokens: torch.Tensor, origins: torch.Tensor | None = None) -> None:
        for member in self.members:
            member.append(tokens, origins)
        self.ids = self.members[0].ids

    @property
    def tells_attention(self) -> bool:
        return False

    @property
    def can_leave(self) -> bool:
        return all(member.can_leave for member in self.members)

    def keep(self, order: torch.Tensor) -> None:
        for member in self.members:
            member.keep(order)
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
        arguments: what `generate` made for `model`; ensemble: further models; inputs_tensor: the source ids (sources, S).

    Raises:
        ValueError: for models that cannot vote together.
    """
    first = Rows(model, input_ids, candidates, generation_config, arguments)
    if not ensemble:
        return first
    if mean not in ("probability", "log"):
        raise ValueError(f"ensemble_mean={mean!r} must be 'probability' or 'log'")
    if inputs_tensor is None or inputs_tensor.is_floating_point():
        raise ValueError("an ensemble needs token ids as its source, not features or embeddings")
    for other in ensemble:
        _check_member(model, other)
    mask = arguments.get("attention_mask")
    if mask is not None:
        mask = mask[:: len(mask) // len(inputs_tensor)]  # once a source
    members = [first]
    for other in ensemble:
        own = _arguments(other, inputs_tensor.to(other.device), mask, candidates, generation_config)
        members.append(Rows(other, input_ids, candidates, generation_config, own))
    return EnsembleRows(members, mean)


def _check_member(model: Any, other: Any) -> None:
    if not other.config.is_encoder_decoder:
        raise ValueError(f"ensemble holds a {type(other).__name__}, which is no encoder-decoder")
    sizes = [each.config.get_text_config(decoder=True).vocab_size for each in (model, other)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"ensemble: target vocabularies of {sizes[0]} and {sizes[1]} tokens cannot vote together")


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

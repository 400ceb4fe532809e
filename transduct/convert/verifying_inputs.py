"""Random inputs that suit a model of ours, and so the one that it was made from: tokens of its vocabulary, frames of its size."""

from typing import Any

import torch
from transformers import PreTrainedModel

LENGTHS = (13, 7, 3)
"""Tokens of each source, the end of sequence included; the shorter ones are padded on the right."""
TARGET_LENGTH = 8
INFERS_TARGETS = ("TransductForSequenceClassification", "TransductForQuestionAnswering")
"""Classes that make the decoder's inputs of the source's tokens."""


def source_inputs(model: PreTrainedModel, seed: int) -> tuple[dict[str, torch.Tensor], str]:
    """A batch of sources, and what it is in words."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if config.encoder_input == "features":
        return _features(config, generator)
    most = config.max_positions if config.positions == "learned" else max(LENGTHS)
    lengths = torch.tensor([min(length, most) for length in LENGTHS])
    size = min(config.vocab_size, config.resolved_decoder_vocab_size) if _infers_targets(model) else config.vocab_size
    ids = _tokens((len(LENGTHS), int(lengths.max())), size, config.pad_token_id, generator)
    ends = _first(config.eos_token_id)
    if ends is not None and ends < size:
        ids = ids.where(ids != ends, (ids + 1) % size)  # one a row, as classifiers want it
        ids = ids.where(ids != config.pad_token_id, (ids + 1) % size) if config.pad_token_id is not None else ids
        ids[torch.arange(len(LENGTHS)), lengths - 1] = ends
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    ids = ids.masked_fill(mask == 0, config.pad_token_id or 0)
    return {"input_ids": ids, "attention_mask": mask}, f"{len(LENGTHS)} sources of {', '.join(map(str, lengths.tolist()))} tokens"


def target_inputs(model: PreTrainedModel, source: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """A batch of decoder inputs, if the model takes any."""
    config = model.config
    if not config.is_encoder_decoder or _infers_targets(model):
        return {}
    rows = next(iter(source.values())).shape[0]
    most = config.resolved_decoder_max_positions if config.positions == "learned" else TARGET_LENGTH
    generator = torch.Generator().manual_seed(seed + 1)
    ids = _tokens((rows, min(TARGET_LENGTH, most)), config.resolved_decoder_vocab_size, config.pad_token_id, generator)
    start = config.decoder_start_token_id
    if start is not None:
        ids[:, 0] = start
    return {"decoder_input_ids": ids}


def _infers_targets(model: PreTrainedModel) -> bool:
    return type(model).__name__ in INFERS_TARGETS


def _tokens(shape: tuple[int, int], vocab_size: int, pad: int | None, generator: torch.Generator) -> torch.Tensor:
    """Any tokens but padding, whose place is after the text."""
    if pad is None or vocab_size == 1:
        return torch.randint(vocab_size, shape, generator=generator)
    return (pad + 1 + torch.randint(vocab_size - 1, shape, generator=generator)) % vocab_size


def _features(config: Any, generator: torch.Generator) -> tuple[dict[str, torch.Tensor], str]:
    """Noise that ends in silence, as long as the model's positions reach where it has learned ones: Whisper takes no other."""
    states = config.max_positions if config.positions == "learned" else 12
    frames = states * 2 if config.feature_stem == "conv" else states
    features = torch.randn(2, frames, config.feature_size, generator=generator)
    features[1, frames // 2 :] = 0
    if config.feature_layout == "channels_first":
        features = features.transpose(1, 2).contiguous()
    return {"input_features": features}, f"2 sources of {frames} frames, one with silence at the end"


def _first(token: int | list[int] | None) -> int | None:
    return token[0] if isinstance(token, list) else token

"""What decoding must know of a model, ours or any other: that it turns texts into texts, how it starts, how much it takes."""

from collections.abc import Mapping
from typing import Any

NAMES = ("decoder_start_token_id", "forced_bos_token_id")


def check_model(model: Any) -> None:
    """Raises ValueError for a model that does not turn texts into texts."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or not hasattr(model, "generate"):
        raise ValueError(f"model is a {type(model).__name__}, which is no encoder-decoder that generates text")
    if model.main_input_name != "input_ids":
        raise ValueError(f"model reads {model.main_input_name}, not text")


def check_tokenizer(tokenizer: Any) -> None:
    """Raises ValueError for what is no tokenizer."""
    if not callable(tokenizer) or not hasattr(tokenizer, "batch_decode"):
        raise ValueError(f"tokenizer is a {type(tokenizer).__name__}, which is none: load the model's own with AutoTokenizer")


# ---- how targets begin ------------------------------------------------------------------------------------------------
def first_tokens(model: Any, settings: Mapping[str, Any]) -> tuple[int, int | None]:
    """What the decoder starts with, and the token that generation forces at the beginning of a target, None: none.

    Args:
        settings: what generation is told; what they do not name is as the model's generation config has it.

    Raises:
        ValueError: for a model without a start token, and for what is no token of its target vocabulary.
    """
    start = settings.get("decoder_start_token_id")
    start = decoder_start(model) if start is None else start
    forced = settings.get("forced_bos_token_id", getattr(model.generation_config, "forced_bos_token_id", None))
    most = target_vocabulary(model)
    for name, token in zip(NAMES, (start, forced), strict=True):
        if token is None:
            continue
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < most:
            raise ValueError(f"{name}={token!r} must be the id of one of the {most} tokens of the target vocabulary")
    return start, forced


def decoder_start(model: Any) -> int:
    """The token that the decoder starts with."""
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            token = getattr(config, name, None)
            if token is not None:
                return token
    raise ValueError("neither the generation config nor the config has a decoder_start_token_id: set one")


def target_vocabulary(model: Any) -> int:
    """Tokens of the target vocabulary, as the config has it."""
    names = ("resolved_decoder_vocab_size", "decoder_vocab_size", "vocab_size")
    return next(size for name in names if (size := getattr(model.config, name, None)) is not None)


# ---- how much it takes ------------------------------------------------------------------------------------------------
def source_limit(model: Any, tokenizer: Any, chosen: int | None) -> int | None:
    """The most tokens of a source, or None where there is no limit.

    Raises:
        ValueError: for a chosen limit that exceeds the model's positions.
    """
    positions = source_positions(model)
    if chosen is not None:
        if positions is not None and chosen > positions:
            raise ValueError(f"max_source_length={chosen} exceeds the {positions} positions of the model")
        return chosen
    usual = tokenizer.model_max_length
    return min((limit for limit in (positions, usual if usual < 10**9 else None) if limit is not None), default=None)


def source_positions(model: Any) -> int | None:
    """The positions that a source can have, or None where there is no limit."""
    return _positions(model, "max_positions")


def target_limit(model: Any) -> int | None:
    """The most tokens of a target, or None where there is no limit."""
    return _positions(model, "resolved_decoder_max_positions")


def _positions(model: Any, name: str) -> int | None:
    config = model.config
    if hasattr(config, name):
        return getattr(config, name) if config.positions == "learned" else None
    return getattr(config, "max_position_embeddings", None)

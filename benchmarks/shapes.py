"""Published shapes as models of transformers and of transduct, with the same weights and the same dropout.

transformers' config is filled from transduct's preset, field by field, so that both sides have one source of sizes.
"""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from transduct import TransductConfig, TransductForConditionalGeneration, config_from_preset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import published

TINY = {"vocab_size": 600, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}


def _t5_fields(ours: TransductConfig) -> dict[str, Any]:
    assert ours.dropout == ours.attention_dropout == ours.activation_dropout  # T5 has one rate
    assert ours.final_dropout
    return dict(
        vocab_size=ours.vocab_size, d_model=ours.d_model, d_kv=ours.d_kv, d_ff=ours.d_ff, num_heads=ours.num_heads,
        num_layers=ours.encoder_layers, num_decoder_layers=ours.decoder_layers, dropout_rate=ours.dropout,
        relative_attention_num_buckets=ours.relative_buckets, relative_attention_max_distance=ours.relative_max_distance,
        decoder_start_token_id=ours.decoder_start_token_id,
    )  # fmt: skip


def _bart_fields(ours: TransductConfig) -> dict[str, Any]:
    return dict(
        vocab_size=ours.vocab_size, d_model=ours.d_model, encoder_ffn_dim=ours.d_ff, decoder_ffn_dim=ours.d_ff,
        encoder_layers=ours.encoder_layers, decoder_layers=ours.decoder_layers, encoder_attention_heads=ours.num_heads,
        decoder_attention_heads=ours.num_heads, max_position_embeddings=ours.max_positions, scale_embedding=ours.scale_embeddings,
        dropout=ours.dropout, attention_dropout=ours.attention_dropout, activation_dropout=ours.activation_dropout,
        bos_token_id=ours.bos_token_id, pad_token_id=ours.pad_token_id, eos_token_id=ours.eos_token_id,
        decoder_start_token_id=ours.decoder_start_token_id, forced_eos_token_id=None,
    )  # fmt: skip


def _t5(ours: TransductConfig) -> PreTrainedModel:
    return T5ForConditionalGeneration(T5Config(**_t5_fields(ours), feed_forward_proj="relu"))


def _mt5(ours: TransductConfig) -> PreTrainedModel:
    model = MT5ForConditionalGeneration(MT5Config(**_t5_fields(ours), feed_forward_proj="gated-gelu"))
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # transformers 5 ties what mT5 does not
    return model


def _bart(ours: TransductConfig) -> PreTrainedModel:
    return BartForConditionalGeneration(BartConfig(**_bart_fields(ours), activation_function="gelu"))


def _marian(ours: TransductConfig) -> PreTrainedModel:
    return MarianMTModel(MarianConfig(**_bart_fields(ours), activation_function="swish"))


BUILDERS = {"t5-small": _t5, "mt5-small": _mt5, "bart-base": _bart, "marian-base": _marian}
SHAPES = tuple(BUILDERS)


def config_of(shape: str, tiny: bool = False) -> TransductConfig:
    """The preset of this name with, for BART, the constant bias that its checkpoints add to the logits; or the same in tiny."""
    changes: dict[str, Any] = dict(TINY) if tiny else {}
    if tiny and shape == "marian-base":
        changes |= {"pad_token_id": TINY["vocab_size"] - 1, "decoder_start_token_id": TINY["vocab_size"] - 1}
    if shape == "bart-base":
        changes["logits_bias"] = True
    return config_from_preset(shape, **changes)


def theirs_of(shape: str, tiny: bool = False) -> PreTrainedModel:
    """transformers' model of this shape, with random weights."""
    return BUILDERS[shape](config_of(shape, tiny)).train()


def ours_of(shape: str, tiny: bool = False) -> TransductForConditionalGeneration:
    """transduct's model of this shape, with random weights."""
    return TransductForConditionalGeneration(config_of(shape, tiny)).train()


def pair(shape: str, tiny: bool = False) -> tuple[PreTrainedModel, TransductForConditionalGeneration]:
    """Both models of a shape with the same random weights, in training mode."""
    return pair_of(shape, config_of(shape, tiny))


def pair_of(shape: str, config: TransductConfig) -> tuple[PreTrainedModel, TransductForConditionalGeneration]:
    """transformers' model of the family of `shape`, of the sizes of `config`, and ours with the same random weights.

    Both are copies, made one after the other: of two equal models, the one whose weights were allocated first in the process has
    been up to 3 % faster, whichever it was.
    """
    theirs, ours = BUILDERS[shape](config).train(), TransductForConditionalGeneration(config).train()
    copied = {}
    for name, weight in theirs.state_dict().items():
        renamed = published.our_name("t5" if "t5" in shape else shape.split("-")[0], name)
        if renamed is not None:
            copied[renamed] = weight.view(-1) if name == "final_logits_bias" else weight
    ours.load_state_dict(copied)
    return deepcopy(theirs), deepcopy(ours)

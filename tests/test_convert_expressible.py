"""Which fields of our config another family must be able to say: all on which an output depends, and no others."""

from dataclasses import fields

import pytest
import torch
from transformers import PreTrainedConfig

from transduct import (
    TransductConfig,
    TransductEncoderModel,
    TransductForConditionalGeneration,
    TransductForSequenceClassification,
    TransductModel,
)
from transduct.convert import to_transformers
from transduct.convert.expressible import OF_FEATURES, OF_POSITIONS, WITHOUT_EFFECT, outputs_of

T5 = {
    "vocab_size": 40, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 2, "norm": "rmsnorm",
    "norm_position": "pre", "positions": "relative_bias", "attention_scale": "none", "attention_bias": False, "ffn_bias": False,
    "scale_embeddings": False, "dropout": 0.0,
}  # fmt: skip
"""What T5 can say."""

LOST = [
    {"positions": "rotary"},
    {"positions": "alibi"},
    {"positions": "learned"},
    {"positions": "none"},
    {"num_key_value_heads": 2},
    {"decoder_num_heads": 2},
    {"decoder_d_ff": 32},
    {"d_value": 5},
    {"norm": "layernorm"},
    {"norm_position": "post"},
    {"final_norm": False},
    {"embedding_norm": True},
    {"attention_scale": "sqrt"},
    {"attention_bias": True},
    {"ffn_bias": True},
    {"scale_embeddings": True},
    {"logits_bias": True},
    {"tie_embeddings": "none"},
    {"tie_embeddings": "target_output"},
    {"tie_embeddings": "none", "decoder_vocab_size": 30},
    {"relative_bias_per_layer": True},
    {"encoder_input": "features", "feature_size": 5, "tie_embeddings": "target_output"},
]


@pytest.mark.parametrize("values", LOST, ids=str)
def test_what_t5_cannot_say_is_named(values):
    model = TransductForConditionalGeneration(TransductConfig(**T5 | values))
    with pytest.raises(ValueError, match="cannot be written as t5, which has no way to say") as error:
        to_transformers(model, to="t5")
    for name in set(values) - {"feature_size"}:  # which hangs on another
        assert f"{name}={values[name]!r}" in str(error.value)


def test_several_fields_are_named_together():
    model = TransductForConditionalGeneration(TransductConfig(**T5 | {"logits_bias": True, "attention_bias": True}))
    with pytest.raises(ValueError, match=r"attention_bias=True \(there False\), logits_bias=True \(there False\)"):
        to_transformers(model, to="t5")


def test_what_stands_behind_a_none_is_shown():
    model = TransductForConditionalGeneration(TransductConfig(**T5 | {"norm_position": "post"}))
    with pytest.raises(ValueError, match=r"final_norm=False \(there True\), norm_position='post' \(there 'pre'\)"):
        to_transformers(model, to="t5")


def test_what_the_other_config_refuses_is_passed_on():
    with pytest.raises(ValueError, match=r"cannot be written as t5, whose config refuses it: [^$]*layer_norm_epsilon"):
        to_transformers(TransductForConditionalGeneration(TransductConfig(**T5 | {"norm_eps": 1})), to="t5")


SAME = [
    {"d_kv": 4},
    {"activation": "gelu", "gated_ffn": True},
    {"decoder_num_heads": 4},
    {"decoder_d_ff": 24},
    {"num_key_value_heads": 4},
    {"final_norm": True},
    {"decoder_vocab_size": 40},
    {"norm_bias": False},
    {"key_bias": False},
    {"max_positions": 77},
    {"rotary_base": 77.0},
    {"sinusoid_layout": "halves"},
    {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1, "layer_drop": 0.2, "final_dropout": True},
    {"initializer": "t5", "label_smoothing": 0.1, "z_loss": 1e-4, "use_cache": False},
    {"freeze_padding_embedding": True},
]


@pytest.mark.parametrize("values", SAME, ids=str)
def test_what_t5_can_say_or_what_changes_no_output_is_no_obstacle(values):
    torch.manual_seed(0)
    model = TransductForConditionalGeneration(TransductConfig(**T5 | values)).eval()
    assert to_transformers(model, to="t5") is not None  # both are compared


def test_fields_that_only_a_decoder_or_an_output_projection_reads_are_no_obstacle_without_them():
    free = {"logits_bias": True, "scale_logits": True, "tie_embeddings": "source_target"}
    assert to_transformers(TransductModel(TransductConfig(**T5 | free)), to="t5") is not None
    free |= {"decoder_d_ff": 32, "decoder_num_heads": 2, "tie_embeddings": "none", "decoder_vocab_size": 30}
    assert to_transformers(TransductEncoderModel(TransductConfig(**T5 | free)), to="t5") is not None


@pytest.mark.parametrize("tie", ["none", "target_output"])
def test_two_matrices_of_tokens_are_two_without_an_output_projection_too(tie):
    for model_class in (TransductModel, TransductForSequenceClassification):
        with pytest.raises(ValueError, match=f"tie_embeddings='{tie}'"):
            to_transformers(model_class(TransductConfig(**T5 | {"tie_embeddings": tie})), to="t5")


def test_each_field_counts_unless_it_is_listed():
    """So that a new field is a difference until somebody says that it is none."""
    inherited = {f.name for f in fields(PreTrainedConfig)} - {"is_encoder_decoder"}
    ours = {f.name for f in fields(TransductConfig)} - inherited
    assert set(WITHOUT_EFFECT) <= ours
    assert set(OF_POSITIONS) | set(OF_FEATURES) <= ours - WITHOUT_EFFECT
    counted = set()
    for values in (
        {"positions": "learned"},
        {"positions": "rotary"},
        {"positions": "relative_bias"},
        {"positions": "sinusoidal", "embedding_norm": True},
        {"encoder_input": "features", "feature_size": 5, "feature_stem": "conv", "tie_embeddings": "none"},
    ):
        counted |= set(outputs_of(TransductConfig(**values), TransductForConditionalGeneration))
    assert counted == ours - WITHOUT_EFFECT

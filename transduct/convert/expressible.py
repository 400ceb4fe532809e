"""What of our config changes a model's outputs: that is what another family must be able to say for a model to become one of its.

Two configs are one architecture exactly if `outputs_of` gives the same for both. All fields count but those listed in
`WITHOUT_EFFECT`, so a field that a family's `read` never heard of cannot be lost: it must have its default.
"""

from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from transduct.configuration import TransductConfig

WITHOUT_EFFECT = frozenset({
    "activation_dropout", "attention_dropout", "classifier_dropout", "decoder_layer_drop", "dropout", "final_dropout",
    "freeze_encoder_positions", "freeze_padding_embedding", "initializer", "initializer_std", "is_encoder_decoder",
    "label_smoothing", "layer_drop", "origin", "use_cache", "z_loss",
})  # fmt: skip
"""Fields for training, and of the record: no output of a trained model depends on them."""

OF_POSITIONS = {
    "position_offset": ("learned", "sinusoidal"),
    "max_positions": ("learned",),
    "decoder_max_positions": ("learned",),
    "sinusoid_layout": ("sinusoidal",),
    "relative_buckets": ("relative_bias",),
    "relative_max_distance": ("relative_bias",),
    "relative_bias_per_layer": ("relative_bias",),
    "rotary_base": ("rotary",),
}
"""Fields that matter for these `positions` alone."""

OF_FEATURES = ("feature_size", "feature_stem", "feature_activation", "feature_layout", "feature_padding")


def outputs_of(config: TransductConfig, model_class: type[PreTrainedModel]) -> dict[str, Any]:
    """The fields on which the outputs of such a model depend, with what stands behind a None."""
    values = {f.name: getattr(config, f.name) for f in fields(TransductConfig)}
    inherited = {f.name for f in fields(PreTrainedConfig)} - {"is_encoder_decoder"}
    values = {name: value for name, value in values.items() if name not in inherited | WITHOUT_EFFECT}
    values |= _resolved(config)
    for name, kinds in OF_POSITIONS.items():
        if config.positions not in kinds:
            del values[name]
    unused = [name for name, used in _switches(config).items() if not used]
    unused += _without_decoder() if reads_source_alone(model_class) else []
    if not _has_output_projection(model_class):
        unused += ["scale_logits", "logits_bias"]
        values["tie_embeddings"] = config.tie_embeddings in ("all", "source_target")
    return {name: value for name, value in values.items() if name not in unused}


def _resolved(config: TransductConfig) -> dict[str, Any]:
    heads, decoder_heads = config.num_heads, config.resolved_decoder_num_heads
    groups = config.num_key_value_heads
    return {
        "decoder_vocab_size": config.resolved_decoder_vocab_size,
        "d_kv": config.head_dim,
        "d_value": config.d_value or config.head_dim,
        "decoder_d_ff": config.resolved_decoder_d_ff,
        "decoder_num_heads": (decoder_heads, config.d_kv or config.d_model // decoder_heads),
        "num_key_value_heads": None if {groups} == {heads, decoder_heads} else groups,
        "decoder_scale_embeddings": config.resolved_decoder_scale_embeddings,
        "final_norm": config.resolved_final_norm,
        "decoder_max_positions": config.resolved_decoder_max_positions,
    }


def _switches(config: TransductConfig) -> dict[str, bool]:
    """Fields that another one can make meaningless, and whether they have a meaning here."""
    return {
        "norm_bias": config.norm == "layernorm",
        "key_bias": config.attention_bias,
        "decoder_embedding_norm": config.embedding_norm,
        **dict.fromkeys(OF_FEATURES, config.encoder_input == "features"),
        "feature_activation": config.feature_stem == "conv" and config.encoder_input == "features",
    }


def reads_source_alone(model_class: type[PreTrainedModel]) -> bool:
    """Whether a class of ours has an encoder and no decoder."""
    return model_class.__name__ in ("TransductEncoderModel", "TransductForTokenClassification", "TransductForMaskedLM")


def _has_output_projection(model_class: type[PreTrainedModel]) -> bool:
    return hasattr(model_class, "project")


def _without_decoder() -> list[str]:
    of_decoder = [f.name for f in fields(TransductConfig) if f.name.startswith("decoder_")]
    return [*of_decoder, "tie_embeddings"]

"""T5 and its kin: T5 1.0, T5 1.1, Flan, MADLAD, CodeT5, mT5, ByT5 and UMT5, with their encoders alone.

They share one architecture. T5 1.0 ties all embeddings and scales the states before the output projection; 1.1 has gated
feed-forwards and an output projection of its own, unscaled. Files say so in three ways:

- transformers 4 wrote `tie_word_embeddings`, and scaled exactly where it was true;
- transformers 5 writes `scale_decoder_outputs` and always says `tie_word_embeddings: true`, whatever the weights are;
- transformers 5 scales in T5 and UMT5 alone: its mT5 never does.

What is tied is therefore read from the weights, and what is scaled from the config.
"""

import re
from typing import Any

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.family import Family, Names, read_ties
from transduct.convert.options import Options

ATTENTION = {f"{letter}_proj": letter for letter in "qkvo"}
FEED_FORWARD = {"up_proj": "wi", "down_proj": "wo"}
GATED_FEED_FORWARD = {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"}


def names(config: TransductConfig) -> Names:
    """`encoder.block.0.layer.1.DenseReluDense.wi_0` and the like."""
    sublayers = {"encoder": ("self_attention", "feed_forward"), "decoder": ("self_attention", "cross_attention", "feed_forward")}
    inside: dict[str, dict[str, str]] = {}
    for stack, parts in sublayers.items():
        inside[stack] = {"position_bias.table": "layer.0.SelfAttention.relative_attention_bias"}
        for number, part in enumerate(parts):
            inside[stack][f"{part}_residual.norm"] = f"layer.{number}.layer_norm"
            if part == "feed_forward":
                theirs, modules = "DenseReluDense", GATED_FEED_FORWARD if config.gated_ffn else FEED_FORWARD
            else:
                theirs, modules = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}[part], ATTENTION
            inside[stack] |= {f"{part}.{mine}": f"layer.{number}.{theirs}.{name}" for mine, name in modules.items()}
    rest = {name: name for name in ("classification_head.dense", "classification_head.out_proj", "qa_outputs", "classifier")}
    for stack in sublayers:
        rest[f"{stack}.final_norm"] = f"{stack}.final_layer_norm"
        rest[f"{stack}.position_bias.table"] = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return Names("{stack}.block.{index}", inside["encoder"], inside["decoder"], rest)


def _read(options: Options, checkpoint: Checkpoint, per_layer: bool, scales: bool) -> dict[str, Any]:
    gated, _, activation = options.take("feed_forward_proj").rpartition("-")
    if gated not in ("", "gated"):
        raise ValueError(f"{options.where}: feed_forward_proj={gated}-{activation!r} must be an activation or 'gated-' and one")
    options.require("is_gated_act", gated == "gated", "feed_forward_proj says the opposite")
    activation = options.take("dense_act_fn", activation)  # "gated-gelu" means the approximation by tanh
    config = TransductConfig(gated_ffn=gated == "gated")
    tie = read_ties(checkpoint, names(config))
    dropout = options.take("dropout_rate")
    fields = dict(
        vocab_size=options.take("vocab_size"),
        d_model=options.take("d_model"),
        d_ff=options.take("d_ff"),
        d_kv=options.take("d_kv"),
        num_heads=options.take("num_heads"),
        encoder_layers=options.take("num_layers"),
        decoder_layers=options.take("num_decoder_layers"),
        norm="rmsnorm",
        norm_position="pre",
        norm_eps=options.take("layer_norm_epsilon"),
        positions="relative_bias",
        relative_buckets=options.take("relative_attention_num_buckets"),
        relative_max_distance=options.take("relative_attention_max_distance", 128),
        relative_bias_per_layer=per_layer,
        attention_scale="none",
        attention_bias=False,
        ffn_bias=False,
        activation=activation,
        gated_ffn=gated == "gated",
        scale_embeddings=False,
        tie_embeddings=tie,
        scale_logits=_scales(options, checkpoint, tie, scales),
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        final_dropout=True,
        classifier_dropout=options.take("classifier_dropout", 0.0),
        initializer="t5",
        pad_token_id=options.take("pad_token_id"),
        bos_token_id=options.take("bos_token_id"),
        eos_token_id=options.take("eos_token_id"),
        decoder_start_token_id=options.take("decoder_start_token_id", options.take("pad_token_id")),
    )
    if per_layer:
        options.require("scalable_attention", True, "the class has a bias in every layer")
    options.finish(("initializer_factor", "n_positions", "output_past"))
    return fields


def _scales(options: Options, checkpoint: Checkpoint, tie: str, scales: bool) -> bool:
    """Whether states are scaled before the output projection.

    Raises:
        ValueError: for a file that transformers 4 and 5 read differently, or that says both.
    """
    tied, scaled = options.take("tie_word_embeddings", True), options.take("scale_decoder_outputs")
    by_version_4 = "scale_decoder_outputs" not in options.said or scaled is None
    if not scales:
        said = "tie_word_embeddings" in options.said and tied is not False
        if said and not options.by_transformers_5:
            raise ValueError(
                f"{options.where}: tie_word_embeddings={tied!r} is ambiguous: for transformers 4 it scaled the states before the "
                'output projection, for 5 it does not. Set it to false for unscaled ones, or model_type to "t5" for scaled ones'
            )
        return False
    if not by_version_4:
        if tied is False and scaled:
            raise ValueError(
                f"{options.where}: tie_word_embeddings=False (of transformers 4, unscaled) and scale_decoder_outputs=True (of 5, "
                "scaled) contradict each other: remove the one that is wrong"
            )
        return bool(scaled)
    if tied is not False and tie in ("source_target", "none"):
        raise ValueError(
            f"{options.where}: tie_word_embeddings={tied!r} says that lm_head.weight is {checkpoint.find('shared.weight')}, but "
            "they differ: transformers 4 used the latter and 5 uses the former. Remove lm_head.weight if they should be one; if "
            "not, add scale_decoder_outputs, false for T5 1.1"
        )
    return tied is not False


def _write(config: TransductConfig, scales: bool) -> dict[str, Any]:
    activation = "gelu" if config.gated_ffn and config.activation == "gelu_new" else config.activation
    return dict(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_ff=config.d_ff,
        d_kv=config.head_dim,
        num_heads=config.num_heads,
        num_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        layer_norm_epsilon=config.norm_eps,
        relative_attention_num_buckets=config.relative_buckets,
        relative_attention_max_distance=config.relative_max_distance,
        feed_forward_proj=f"gated-{activation}" if config.gated_ffn else activation,
        dense_act_fn=config.activation,
        is_gated_act=config.gated_ffn,
        dropout_rate=config.dropout,
        classifier_dropout=config.classifier_dropout,
        **({"scale_decoder_outputs": config.scale_logits} if scales else {}),
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        **({} if config.bos_token_id is None else {"bos_token_id": config.bos_token_id}),
    )


def _older(config: TransductConfig) -> dict[str, Any]:
    """transformers 4, and programs that follow it, take `tie_word_embeddings` alone for both ties and scale."""
    untied = config.tie_embeddings in ("source_target", "none")
    return {"tie_word_embeddings": False} if untied and not config.scale_logits else {}


def _family(name: str, prefix: str, per_layer: bool = False, scales: bool = True) -> Family:
    classes = {
        "ForConditionalGeneration": ("TransductForConditionalGeneration", ""),
        "Model": ("TransductModel", ""),
        "EncoderModel": ("TransductEncoderModel", ""),
        "ForSequenceClassification": ("TransductForSequenceClassification", "transformer."),
        "ForTokenClassification": ("TransductForTokenClassification", "transformer."),
        "ForQuestionAnswering": ("TransductForQuestionAnswering", ""),
    }
    return Family(
        name=name,
        model_type=name,
        classes={f"{prefix}{suffix}": ours for suffix, ours in classes.items()},
        read=lambda options, checkpoint: _read(options, checkpoint, per_layer, scales),
        write=lambda config: _write(config, scales),
        names=names,
        older=_older,
        unused=re.compile(r"(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"),
    )


FAMILIES = [_family("t5", "T5"), _family("mt5", "MT5", scales=False), _family("umt5", "UMT5", per_layer=True)]

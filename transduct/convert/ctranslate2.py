"""Our models in CTranslate2's format, written from our own weights through the specifications of its package.

CTranslate2 (https://github.com/OpenNMT/CTranslate2) is a fast C++ decoder for CPUs and GPUs. It has a place for nearly every
architecture that we have; `refusals` says what it has none for, field by field. Whatever is written is run at once and compared
with our model (`engine_folders.py`).

- The scale of logits (`scale_logits`) follows from our config alone, so that it is right for T5 1.0 and for T5 1.1.
- Positions are written as a table, whatever makes them here; "none" as a table of zeros.
- A norm on target embeddings that comes before positions (BlenderBot small) belongs to each token alone, so that it is applied
  to the table of embeddings once.

Tokens are strings there: `translator.translate_batch([tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)])`. Special
tokens that the tokenizer adds to a source are part of them; nothing is added by CTranslate2. Models that listen have a format of
their own there, see `ctranslate2_whisper.py`.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from transduct.attention import MultiHeadAttention
from transduct.configuration import TransductConfig
from transduct.convert.ctranslate2_whisper import compare_whisper, make_whisper_spec, whisper_refusals, write_extractor
from transduct.convert.engine_folders import Exported, one_end, start_token, write_config, write_engine_folder
from transduct.convert.engine_vocabulary import token_strings
from transduct.decoding.ctranslate2_engine import most_positions
from transduct.decoding.engines import MARKS
from transduct.layers import FeedForward
from transduct.modeling import TransductForConditionalGeneration
from transduct.packages import require
from transduct.positions import LearnedPositions, RelativePositionBias
from transduct.stacks import Stack

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_python": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
"""Names of `ACT2FN`, and CTranslate2's for the same function."""

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
"""How CTranslate2 can store weights."""


def to_ctranslate2(
    model: TransductForConditionalGeneration, tokenizer: Any, folder: str | Path, quantization: str | None = None
) -> Exported:
    """Write a model and its tokenizer in CTranslate2's format, and compare what was written with the model.

    Args:
        model: ours, of any data type, on any device.
        tokenizer: its own, whose files are put beside the model; None: tokens are called by their ids, "0", "1", ... A
            model of Whisper's shape has a processor, see `ctranslate2_whisper.py`.
        folder: to write; it must not hold anything yet.
        quantization: a name of `QUANTIZATIONS`; None: the data type of the model.

    Returns:
        What was written, and how closely it agrees.

    Raises:
        ValueError: for an architecture that the format has no place for, naming the fields; for an unknown quantization; where
            the package `ctranslate2` is missing; and where unquantised weights do not give our log-probabilities and answers.
    """
    require("to_ctranslate2", "ctranslate2")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization={quantization!r} must be None or one of {', '.join(QUANTIZATIONS)}")
    listens = isinstance(model, TransductForConditionalGeneration) and model.config.encoder_input == "features"
    problems = refusals(model) + (whisper_refusals(model, tokenizer) if listens else [])
    if problems:
        raise ValueError(f"CTranslate2 has no place for this model: {'; '.join(problems)}")
    stored = quantization or str(model.dtype).removeprefix("torch.").replace("float64", "float32")
    with torch.no_grad():
        spec = make_whisper_spec(model, tokenizer) if listens else make_spec(model, tokenizer)
        spec.validate()
        spec.optimize(quantization=stored)

    def write(part: Path) -> None:
        spec.save(str(part))
        if listens:
            write_extractor(tokenizer, part)
        write_config(model, part, MARKS["ctranslate2"])

    check = partial(compare_whisper, model) if listens else None
    return write_engine_folder("ctranslate2", model, tokenizer, Path(folder), stored, stored == "float32", write, check)


def refusals(model: Any) -> list[str]:
    """What CTranslate2 has no place for, each with the field's name and value."""
    if not isinstance(model, TransductForConditionalGeneration):
        return [f"it is a {type(model).__name__}, and only TransductForConditionalGeneration is written"]
    config = model.config
    found = []
    for name, wrong, why in (
        ("positions", config.positions == "alibi", "its encoder has no bias that grows with the distance"),
        ("d_value", config.d_value not in (None, config.head_dim), "keys and values are equally wide there"),
        ("encoder_layers", config.encoder_layers == 0, "it needs a layer at least"),
        ("decoder_layers", config.decoder_layers == 0, "it needs a layer at least"),
        ("activation", config.activation not in ACTIVATIONS, f"it has {', '.join(ACTIVATIONS)}"),
        ("eos_token_id", one_end(config) is None, "one token ends a target there"),
    ):
        if wrong:
            found.append(f"{name}={getattr(config, name)!r}: {why}")
    return found


def make_spec(model: TransductForConditionalGeneration, tokenizer: Any) -> Any:
    """CTranslate2's specification, filled with weights and vocabularies."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    config = model.config
    heads = config.num_heads, config.resolved_decoder_num_heads
    encoder = TransformerEncoderSpec(config.encoder_layers, heads[0], **_form(config, heads[0], model.model.encoder))
    decoder = TransformerDecoderSpec(config.decoder_layers, heads[1], **_form(config, heads[1], model.model.decoder))
    fill_stack(encoder, model.model.encoder)
    fill_stack(decoder, model.model.decoder)
    fill_linear(decoder.projection, model.lm_head)
    if config.scale_logits:
        decoder.scale_outputs = np.float32(config.d_model**-0.5)
    spec = TransformerSpec(encoder, decoder)
    target_tokens = token_strings(tokenizer, config.resolved_decoder_vocab_size, target=True)
    spec.register_source_vocabulary(token_strings(tokenizer, config.vocab_size, target=False))
    spec.register_target_vocabulary(target_tokens)
    _fill_settings(spec.config, model, tokenizer, target_tokens)
    return spec


def _form(config: TransductConfig, heads: int, stack: Stack) -> dict[str, Any]:
    """Which layers a stack has. It is pre-norm here, so that there is a place for a norm at the end; `fill_stack` says what it
    is."""
    from ctranslate2.specs.common_spec import Activation

    head_size = config.d_kv or config.d_model // heads
    form = {
        "pre_norm": True,
        "no_final_norm": stack.final_norm is None,
        "activation": Activation[ACTIVATIONS[config.activation]],
        "layernorm_embedding": stack.embedding_norm is not None and not stack.norm_before_positions,
        "relative_attention_bias": config.positions == "relative_bias",
        "ffn_glu": config.gated_ffn,
        "rms_norm": config.norm == "rmsnorm",
        "num_heads_kv": config.num_key_value_heads,
        "head_dim": head_size,
    }
    if config.positions == "rotary":
        form |= {"rotary_dim": head_size, "rotary_interleave": False, "rotary_base": config.rotary_base}
    return form


def fill_stack(spec: Any, stack: Stack) -> None:
    config = stack.config
    spec.pre_norm = config.norm_position == "pre"
    spec.scale_embeddings = np.float32(stack.embed_scale)
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = copied(stack.embed_tokens.weight)
    if stack.norm_before_positions and stack.embedding_norm is not None:
        embeddings.weight = copied(stack.embedding_norm(stack.embed_tokens.weight * stack.embed_scale))  # (V, D)
        spec.scale_embeddings = np.float32(1.0)
    elif stack.embedding_norm is not None:
        fill_norm(spec.layernorm_embedding, stack.embedding_norm)
    if stack.final_norm is not None:
        fill_norm(spec.layer_norm, stack.final_norm)
    if config.positions in ("sinusoidal", "learned", "none"):
        spec.position_encodings.encodings = position_table(stack)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        fill_layer(layer_spec, layer, stack)


def position_table(stack: Stack) -> torch.Tensor:
    """What is added to embeddings (positions, D); past its end CTranslate2 refuses a sequence."""
    positions, config = stack.embed_positions, stack.config
    rows = int(most_positions(config))
    if isinstance(positions, LearnedPositions):
        return copied(positions.weight[positions.offset :])
    if positions is None:
        return torch.zeros(rows, config.d_model)
    return copied(positions(torch.arange(rows, device=positions.table.device)[None], rows)[0])


def fill_layer(spec: Any, layer: Any, stack: Stack) -> None:
    _fill_attention(spec.self_attention, layer.self_attention, layer.self_attention_residual.norm)
    bias = stack.position_bias if layer.position_bias is None else layer.position_bias
    if isinstance(bias, RelativePositionBias):
        spec.self_attention.relative_attention_bias = copied(bias.table.weight)
        spec.self_attention.relative_attention_max_distance = np.int32(bias.max_distance)
    if hasattr(spec, "attention"):
        _fill_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual.norm, cross=True)
    _fill_feed_forward(spec.ffn, layer.feed_forward, layer.feed_forward_residual.norm)


def _fill_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module, cross: bool = False) -> None:
    """Projections are fused there: queries, keys and values of one sequence, or keys and values of the source."""
    spec.queries_scale = np.float32(attention.scale)
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    for place, linears in enumerate(([query], [key, value]) if cross else ([query, key, value],)):
        fill_linear(spec.linear[place], *linears)
    fill_linear(spec.linear[-1], attention.o_proj)
    fill_norm(spec.layer_norm, norm)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.Module) -> None:
    if feed_forward.gate_proj is None:
        fill_linear(spec.linear_0, feed_forward.up_proj)
    else:
        fill_linear(spec.linear_0, feed_forward.gate_proj)
        fill_linear(spec.linear_0_noact, feed_forward.up_proj)
    fill_linear(spec.linear_1, feed_forward.down_proj)
    fill_norm(spec.layer_norm, norm)


def fill_linear(spec: Any, *linears: nn.Linear) -> None:
    """One product, or several of one input as one; those without a bias get one of zeros where another has one."""
    spec.weight = copied(torch.cat([linear.weight for linear in linears]))
    if any(linear.bias is not None for linear in linears):
        zeros = [linear.weight.new_zeros(linear.out_features) for linear in linears]
        biases: list[torch.Tensor] = [
            linear.bias if linear.bias is not None else zero for linear, zero in zip(linears, zeros, strict=True)
        ]
        spec.bias = copied(torch.cat(biases))


def fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = copied(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = copied(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def copied(weight: torch.Tensor) -> torch.Tensor:
    """A copy in float32: quantising there works in place."""
    return weight.detach().to("cpu", torch.float32, copy=True)


def _fill_settings(settings: Any, model: TransductForConditionalGeneration, tokenizer: Any, tokens: list[str]) -> None:
    """config.json: the special tokens, by their strings."""
    config = model.config
    start = start_token(model)
    settings.eos_token = tokens[one_end(config)]  # type: ignore[index]  # refused where there is none
    settings.decoder_start_token = None if start is None or config.target_start == "last_token" else tokens[start]
    settings.bos_token = settings.eos_token if config.bos_token_id is None else tokens[config.bos_token_id]
    settings.unk_token = getattr(tokenizer, "unk_token", None) or "<unk>"
    settings.add_source_bos = settings.add_source_eos = False  # the tokenizer does
    settings.layer_norm_epsilon = float(config.norm_eps)

"""Tiny random models of transformers copied, weight by weight, into transduct: the mapping that the parity tests rest on."""

import re

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm

from transduct import TransductConfig, TransductForConditionalGeneration

T5_NAMES = [
    (r"^shared\.", "model.encoder.embed_tokens."),
    (r"^(encoder|decoder)\.embed_tokens\.", r"model.\1.embed_tokens."),
    (r"^(encoder|decoder)\.final_layer_norm\.", r"model.\1.final_norm."),
    (r"^(encoder|decoder)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.", r"model.\1.position_bias.table."),
    (r"^(encoder|decoder)\.block\.(\d+)\.", r"model.\1.layers.\2."),
    (r"layer\.\d\.SelfAttention\.(.)\.", r"self_attention.\1_proj."),
    (r"layer\.\d\.EncDecAttention\.(.)\.", r"cross_attention.\1_proj."),
    (r"layer\.\d\.DenseReluDense\.wi\.", "feed_forward.up_proj."),
    (r"layer\.\d\.DenseReluDense\.wi_0\.", "feed_forward.gate_proj."),
    (r"layer\.\d\.DenseReluDense\.wi_1\.", "feed_forward.up_proj."),
    (r"layer\.\d\.DenseReluDense\.wo\.", "feed_forward.down_proj."),
    (r"layer\.0\.layer_norm\.", "self_attention_residual.norm."),
    (r"(encoder\.layers\.\d+\.)layer\.1\.layer_norm\.", r"\1feed_forward_residual.norm."),
    (r"(decoder\.layers\.\d+\.)layer\.1\.layer_norm\.", r"\1cross_attention_residual.norm."),
    (r"layer\.2\.layer_norm\.", "feed_forward_residual.norm."),
]
BART_NAMES = [
    (r"^model\.shared\.", "model.encoder.embed_tokens."),
    (r"\.layernorm_embedding\.", ".embedding_norm."),
    (r"\.self_attn_layer_norm\.", ".self_attention_residual.norm."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attention_residual.norm."),
    (r"\.final_layer_norm\.", ".feed_forward_residual.norm."),
    (r"\.self_attn\.", ".self_attention."),
    (r"\.encoder_attn\.", ".cross_attention."),
    (r"\.out_proj\.", ".o_proj."),
    (r"\.fc1\.", ".feed_forward.up_proj."),
    (r"\.fc2\.", ".feed_forward.down_proj."),
]
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3, "dropout": 0.0}
VOCABULARY = 40


def t5(gated: bool) -> tuple[T5ForConditionalGeneration, TransductConfig]:
    """T5 1.0, or 1.1 if gated; d_kv is not d_model / heads, as in T5's larger sizes.

    Encoder and decoder are equally deep, because the cache of transformers' T5 has a layer for each of the encoder's.
    """
    theirs = T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=6, d_ff=32, num_layers=3, num_decoder_layers=3, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=8, relative_attention_max_distance=20, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu" if gated else "relu", **({"tie_word_embeddings": False} if gated else {}),
    )  # fmt: skip
    ours = TransductConfig(
        **SIZES | {"encoder_layers": 3}, vocab_size=VOCABULARY, d_kv=6, norm="rmsnorm", norm_position="pre", norm_eps=1e-6,
        positions="relative_bias", relative_buckets=8, relative_max_distance=20, attention_scale="none", attention_bias=False,
        ffn_bias=False, scale_embeddings=False, gated_ffn=gated, activation="gelu_new" if gated else "relu",
        scale_logits=not gated, final_dropout=True, tie_embeddings="source_target" if gated else "all",
    )  # fmt: skip
    model = T5ForConditionalGeneration(theirs)
    if gated:  # transformers 5 ties what T5 1.1 does not
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model, ours


def bart() -> tuple[BartForConditionalGeneration, TransductConfig]:
    theirs = BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, dropout=0.0,
    )  # fmt: skip
    ours = TransductConfig(
        **SIZES, vocab_size=VOCABULARY, positions="learned", max_positions=64, position_offset=2, embedding_norm=True,
        activation="gelu", scale_embeddings=False, logits_bias=True, freeze_padding_embedding=True,
        bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip
    return BartForConditionalGeneration(theirs), ours


def marian() -> tuple[MarianMTModel, TransductConfig]:
    theirs = MarianConfig(
        vocab_size=VOCABULARY, decoder_vocab_size=VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        dropout=0.0, activation_function="swish", scale_embedding=True, pad_token_id=VOCABULARY - 1, eos_token_id=0,
        decoder_start_token_id=VOCABULARY - 1, forced_eos_token_id=None,
    )  # fmt: skip
    ours = TransductConfig(
        **SIZES, vocab_size=VOCABULARY, positions="sinusoidal", sinusoid_layout="halves", max_positions=64, activation="silu",
        logits_bias=True, freeze_padding_embedding=True, pad_token_id=VOCABULARY - 1, eos_token_id=0,
        decoder_start_token_id=VOCABULARY - 1,
    )  # fmt: skip
    return MarianMTModel(theirs), ours


FAMILIES = {"t5": lambda: t5(gated=False), "t5-v1.1": lambda: t5(gated=True), "bart": bart, "marian": marian}


def our_name(family: str, name: str) -> str | None:
    """The name here of a weight there; None for a table that is computed here."""
    if name == "final_logits_bias":
        return "lm_head.bias"
    if family == "marian" and "embed_positions" in name:
        return None
    for pattern, replacement in T5_NAMES if family.startswith("t5") else BART_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights far from initialisation, so that wrong mathematics is far outside a tolerance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                noise = torch.randn(weight.shape, generator=generator)
                center = 1.0 if "norm" in name and "bias" not in name else 0.0
                weight.copy_(noise * 0.35 if weight.ndim > 1 else noise * 0.1 + center)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator) * 0.5)


def pair(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, attention: str = "sdpa"):
    """A model of transformers with random weights and transduct's model with the same ones, in evaluation mode."""
    theirs, config = FAMILIES[family]()
    randomise(theirs, seed)
    theirs.generation_config.forced_eos_token_id = theirs.generation_config.forced_bos_token_id = None
    ours = TransductForConditionalGeneration(config)
    state = {}
    for name, weight in theirs.state_dict().items():
        renamed = our_name(family, name)
        if renamed is not None:
            state[renamed] = weight.view(-1) if name == "final_logits_bias" else weight
    ours.load_state_dict(state, strict=True)
    for model in (theirs, ours):
        model.set_attn_implementation(attention)
    return theirs.to(dtype).eval(), ours.to(dtype).eval()


def float64_norms(monkeypatch) -> None:
    """T5's norm of transformers rounds the variance to float32 whatever the input; in float64 that alone exceeds 1e-10."""

    def forward(self, hidden):
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(T5LayerNorm, "forward", forward)

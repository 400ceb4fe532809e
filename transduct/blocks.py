"""The encoder layer and the decoder layer, and the one place where the config chooses their parts.

An encoder layer is two calls of `Residual`, a decoder layer three (Vaswani et al. 2017, section 3.1); Vaswani, T5 and BART
differ only in arguments. Shapes: `B` sources, `N` targets (beams) per source, `S` source and `T` target length, `D` d_model.
"""

from dataclasses import replace

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import AttentionContext, MultiHeadAttention
from .configuration import TransductConfig
from .layers import FeedForward, Residual, make_norm
from .masks import combine
from .positions import AlibiBias, RelativePositionBias


def make_attention(config: TransductConfig, num_heads: int) -> MultiHeadAttention:
    head_size = config.d_kv or config.d_model // num_heads
    scale = head_size**-0.5 if config.attention_scale == "sqrt" else 1.0
    biases = "none" if not config.attention_bias else "all" if config.key_bias else "no_key"
    groups = config.num_key_value_heads or num_heads
    head_sizes = head_size, config.d_value or head_size
    attention = MultiHeadAttention(config.d_model, num_heads, groups, head_sizes, scale, biases, config.attention_dropout)
    attention.config = config  # read by transformers' flash attention
    return attention


def make_residual(config: TransductConfig) -> Residual:
    norm = make_norm(config.norm, config.d_model, config.norm_eps, config.norm_bias)
    return Residual(norm, config.norm_position, config.dropout)


def make_feed_forward(config: TransductConfig, d_ff: int) -> FeedForward:
    return FeedForward(config.d_model, d_ff, config.activation, config.gated_ffn, config.ffn_bias, config.activation_dropout)


def make_position_bias(config: TransductConfig, num_heads: int, bidirectional: bool) -> nn.Module | None:
    """The module that computes an additive bias on self-attention scores, where the scheme has one."""
    if config.positions == "relative_bias":
        return RelativePositionBias(config.relative_buckets, config.relative_max_distance, num_heads, bidirectional)
    return AlibiBias(num_heads) if config.positions == "alibi" else None


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, feed-forward (section 3.1)."""

    def __init__(self, config: TransductConfig):
        super().__init__()
        self.self_attention = make_attention(config, config.num_heads)
        self.self_attention_residual = make_residual(config)
        self.feed_forward = make_feed_forward(config, config.d_ff)
        self.feed_forward_residual = make_residual(config)
        self.position_bias = make_position_bias(config, config.num_heads, True) if config.relative_bias_per_layer else None

    def forward(
        self, source: torch.Tensor, context: AttentionContext, mask: torch.Tensor | None = None
    ) -> torch.Tensor:  # (B, S, D)
        context = with_own_bias(with_mask(context, mask), self.position_bias, source.dtype)
        source = self.self_attention_residual(source, lambda x: self.self_attention(x, context))
        return self.feed_forward_residual(source, lambda x: self.feed_forward(x))  # (B, S, D)


class DecoderLayer(GradientCheckpointingLayer):
    """Masked self-attention, cross-attention unless there is no source, feed-forward (section 3.1)."""

    def __init__(self, config: TransductConfig, index: int, cross_attention: bool):
        super().__init__()
        heads = config.resolved_decoder_num_heads
        self.index = index
        self.self_attention = make_attention(config, heads)
        self.self_attention_residual = make_residual(config)
        self.cross_attention = make_attention(config, heads) if cross_attention else None
        self.cross_attention_residual = make_residual(config) if cross_attention else None
        self.feed_forward = make_feed_forward(config, config.resolved_decoder_d_ff)
        self.feed_forward_residual = make_residual(config)
        self.position_bias = make_position_bias(config, heads, False) if config.relative_bias_per_layer else None

    def forward(
        self,
        target: torch.Tensor,
        memory: torch.Tensor | None,
        context: AttentionContext,
        cross_context: AttentionContext | None = None,
        mask: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:  # (B*N, T, D), (B, S, D)
        context = with_own_bias(with_mask(context, mask), self.position_bias, target.dtype)
        target = self.self_attention_residual(
            target, lambda x: self.self_attention(x, context, cache=cache, layer_index=self.index)
        )
        cross_attention, residual = self.cross_attention, self.cross_attention_residual
        if cross_attention is not None and residual is not None:
            target = residual(target, lambda x: cross_attention(x, cross_context, memory, cache=cache, layer_index=self.index))
        return self.feed_forward_residual(target, lambda x: self.feed_forward(x))  # (B*N, T, D)


def with_mask(context: AttentionContext, mask: torch.Tensor | None) -> AttentionContext:
    """The context with its own mask as the layer was handed it.

    A stack's trained bias is part of that mask, and reentrant gradient checkpointing sees only tensors that are arguments.
    """
    return context if mask is None else replace(context, mask=mask)


def with_own_bias(context: AttentionContext, position_bias: nn.Module | None, dtype: torch.dtype) -> AttentionContext:
    """The context of a layer that has a bias table of its own (UMT5)."""
    if position_bias is None:
        return context
    assert context.positions is not None
    return replace(context, mask=combine(context.mask, position_bias(*context.positions, dtype)))

"""One multi-head attention for self- and cross-attention (Vaswani et al. 2017, section 3.2).

- It calls transformers' attention interface; `eager_attention` here is the readable reference and the only one that returns
  weights.
- A row that may attend to nothing gets a zero output, in every implementation.
- Beams share their source: in cross-attention, the queries of a source's N beams lie in one row of N*T queries, so keys and
  values keep the batch of sources.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .layers import Linear
from .masks import TokenLayout, as_bias
from .positions import rotate
from .token_runs import TokenRuns


@dataclass
class AttentionContext:
    """What all layers of a stack share in one forward pass, for one kind of attention.

    Args:
        mask: None, boolean (B or 1, 1 or H, T or 1, S), or additive of the same shape where a position bias is part of it.
        is_causal: without a mask, each query sees the keys up to its own position.
        runs: what flash attention is told in place of a mask.
        positions: of queries (1 or B, T) and keys (1 or B, S), for layers with a bias table of their own.
        rotary: cosines and sines for queries and keys.
        query_layout, key_layout: set where queries or keys come without their padding, as (tokens, D).
        implementation: name in transformers' attention interface.
        weights: a list that collects each layer's attention weights (B, H, T, S), or None.
    """

    mask: torch.Tensor | None = None
    is_causal: bool = False
    runs: TokenRuns | None = None
    positions: tuple[torch.Tensor, torch.Tensor] | None = None
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    query_layout: TokenLayout | None = None
    key_layout: TokenLayout | None = None
    implementation: str = "sdpa"
    weights: list | None = None

    def to(self, device: torch.device, **kwargs) -> "AttentionContext":
        """Move to the device of the next layer, for models that are spread over several."""
        self.mask = None if self.mask is None else self.mask.to(device, **kwargs)
        self.positions = _pair_to(self.positions, device, **kwargs)
        self.rotary = _pair_to(self.rotary, device, **kwargs)
        for part in (self.runs, self.query_layout, self.key_layout):
            if part is not None:
                part.to(device, **kwargs)
        return self


def _pair_to(pair: tuple[torch.Tensor, torch.Tensor] | None, device: torch.device, **kwargs):
    return None if pair is None else (pair[0].to(device, **kwargs), pair[1].to(device, **kwargs))


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`softmax(Q K^T * scaling + mask) V` (equation 1).

    Args:
        query: (B, H, T, K); key, value: (B, G, S, K), where each of G heads serves H / G query heads.
        attention_mask: boolean or additive, broadcastable to (B, H, T, S).

    Returns:
        Output (B, T, H, K) and weights (B, H, T, S).
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)  # (B, H, S, K)
    scores = query @ key.transpose(2, 3) * scaling  # (B, H, T, S)
    if is_causal and attention_mask is None:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    elif attention_mask is not None:
        scores = scores + attention_mask
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    nothing = (scores == float("-inf")).all(-1, keepdim=True)  # (B, H, T, 1)
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0).to(query.dtype)  # (B, H, T, S)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (dropped @ value).transpose(1, 2), weights  # (B, T, H, K)


class MultiHeadAttention(nn.Module):
    """`Concat(head_1, ..., head_H) W_O` (section 3.2.2), with grouped keys and values if `num_key_value_heads < num_heads`.

    Args:
        head_sizes: width of one head's queries and keys, and of its values.
        scale: factor on the scores; biases: "all", "no_key" or "none" of the projections.
        dropout: probability on the attention weights.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_key_value_heads: int,
        head_sizes: tuple[int, int],
        scale: float,
        biases: str,
        dropout: float,
    ):
        super().__init__()
        head_size, value_size = head_sizes
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.num_key_value_groups = num_heads // num_key_value_heads  # read by transformers' attention functions
        self.scale = scale
        self.dropout = dropout
        self.q_proj = Linear(d_model, num_heads * head_size, bias=biases != "none")
        self.k_proj = Linear(d_model, num_key_value_heads * head_size, bias=biases == "all")
        self.v_proj = Linear(d_model, num_key_value_heads * value_size, bias=biases != "none")
        self.o_proj = Linear(num_heads * value_size, d_model, bias=biases != "none")

    def forward(
        self,
        hidden: torch.Tensor,
        context: AttentionContext,
        memory: torch.Tensor | None = None,
        cache: Cache | None = None,
        layer_index: int = 0,
    ) -> torch.Tensor:
        """Attend from `hidden` (B*N, T, D) to itself, or to `memory` (B, S, D) whose rows serve N consecutive rows each.

        With a layout in `context`, the tensor that it describes is (tokens, D). Returns the shape of `hidden`.
        """
        query = split_heads(self.q_proj(hidden), self.num_heads, context.query_layout)  # (B*N, T, H, K)
        rows, length = query.shape[:2]
        if memory is None:
            query = query.transpose(1, 2)  # (B, H, T, K)
            key, value = self._project_memory(hidden, context.query_layout)  # (B, G, T, K)
            if context.rotary is not None:
                query, key = rotate(query, context.rotary), rotate(key, context.rotary)
            if cache is not None:
                own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
                key, value = own.update(key, value, layer_index)  # (B, G, S, K)
        else:
            key, value = self._memory_heads(memory, context.key_layout, cache, layer_index)  # (B, G, S, K)
            query = query.reshape(key.shape[0], -1, *query.shape[2:]).transpose(1, 2)  # (B, H, N*T, K)
        output, weights = self._attend(query, key, value, context)
        if context.weights is not None:
            context.weights.append(weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1))  # (B*N, H, T, S)
        output = output.reshape(rows, length, -1)  # (B*N, T, H*K)
        return self.o_proj(output if context.query_layout is None else context.query_layout.pack(output))  # (B*N, T, D)

    def _project_memory(self, memory: torch.Tensor, layout: TokenLayout | None) -> tuple[torch.Tensor, torch.Tensor]:
        key = split_heads(self.k_proj(memory), self.num_key_value_heads, layout).transpose(1, 2)  # (B, G, S, K)
        value = split_heads(self.v_proj(memory), self.num_key_value_heads, layout).transpose(1, 2)  # (B, G, S, K)
        return key, value

    def _memory_heads(self, memory: torch.Tensor, layout: TokenLayout | None, cache: Cache | None, layer_index: int):
        """Keys and values (B, G, S, K) of the source: projected once, then read from the cache."""
        if not isinstance(cache, EncoderDecoderCache):
            return self._project_memory(memory, layout)
        if not cache.is_updated.get(layer_index):
            key, value = self._project_memory(memory, layout)
            cache.cross_attention_cache.update(key, value, layer_index)
            cache.is_updated[layer_index] = True
        stored = cache.cross_attention_cache.layers[layer_index]
        length = memory.shape[1] if layout is None else layout.shape[1]  # a static cache may have room for more
        return stored.keys[:, :, :length], stored.values[:, :, :length]

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: AttentionContext):
        """Output (B, T, H, K) and, of `eager` alone, weights (B, H, T, S), through transformers' attention interface."""
        options = {"scaling": self.scale, "dropout": self.dropout if self.training else 0.0}
        if context.weights is not None:
            return eager_attention(self, query, key, value, context.mask, is_causal=context.is_causal, **options)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(context.implementation, eager_attention)
        if context.runs is not None:
            return context.runs.attend(attention, self, query, key, value, is_causal=context.is_causal, **options), None
        if context.implementation == "flex_attention":  # whose mask is a sum that all heads share
            bias = as_bias(context.mask, context.is_causal, query, key)
            return attention(self, query, key, value, None, position_bias=bias, **options)
        return attention(self, query, key, value, context.mask, is_causal=context.is_causal, **options)


def split_heads(projected: torch.Tensor, heads: int, layout: TokenLayout | None) -> torch.Tensor:
    """Projected states (B, T, H*K), or (tokens, H*K) with a layout, as (B, T, H, K)."""
    padded = projected if layout is None else layout.unpack(projected)  # (B, T, H*K)
    return padded.unflatten(-1, (heads, -1))  # (B, T, H, K)

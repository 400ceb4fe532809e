"""Products, norms, the feed-forward, and the one residual wrapper that knows pre- and post-norm.

- `Residual`: post-norm (Vaswani et al. 2017, section 3.1; BART) or pre-norm (T5, section 2.1) around any sublayer.
- `FeedForward`: `down(activation(up(x)))` (section 3.3) or gated, `down(activation(gate(x)) * up(x))` (arXiv 2002.05202).
- `RMSNorm`: arXiv 1910.07467, computed in at least float32.
- `Linear`: `x W^T + b` through the faster of two libraries.

Half precision: a feed-forward's products and every sublayer's output are clamped to float16's range, because a few T5 checkpoints
exceed it; norms and softmax run in float32; bfloat16 has float32's range and needs nothing.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

CACHED_TOKENS = 512
"""Tokens that a feed-forward takes at a time where nothing is trained on a CPU: its wide hidden layer then stays in the cache."""

SMALL_MATRIX = 512 * 512
"""Weights of fewer elements gain nothing from `linear`."""


def linear(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`hidden W^T + b`: (..., D), (V, D), (V) -> (..., V), as `torch.nn.functional.linear`.

    Where nothing is trained on a CPU, float32 products go through oneDNN, which torch carries beside its BLAS: for output
    projections, whose width is often odd, it takes about half the time, for others up to a fifth less.
    """
    if (
        hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # the operator has no counterpart elsewhere
        and not torch.is_grad_enabled()
        and type(weight) in (torch.Tensor, nn.Parameter)  # a quantised one has products of its own
        and weight.dtype == torch.float32
        and weight.numel() >= SMALL_MATRIX
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
    ):
        return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")
    return F.linear(hidden, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear` that computes with `linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias)  # (..., D) -> (..., V)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`: no mean, no bias."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        precise = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        precise = precise * torch.rsqrt(precise.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * precise.to(self.weight.dtype)  # (..., D)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def make_norm(kind: str, width: int, eps: float, bias: bool) -> nn.Module:
    """The norm named `kind`, "layernorm" or "rmsnorm"."""
    return RMSNorm(width, eps) if kind == "rmsnorm" else nn.LayerNorm(width, eps=eps, bias=bias)


def clamp_to_half(hidden: torch.Tensor) -> torch.Tensor:
    """Keep float16 activations finite (T5's feed-forwards overflow it); other types pass unchanged."""
    if hidden.dtype != torch.float16:
        return hidden
    limit = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-limit, limit)


class Residual(nn.Module):
    """`x + dropout(f(norm(x)))` before ("pre") or `norm(x + dropout(f(x)))` after ("post") the sublayer f."""

    def __init__(self, norm: nn.Module, position: str, dropout: float):
        super().__init__()
        self.norm = norm
        self.pre = position == "pre"
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, sublayer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if self.pre:
            return clamp_to_half(hidden + self.dropout(clamp_to_half(sublayer(self.norm(hidden)))))
        return self.norm(clamp_to_half(hidden + self.dropout(clamp_to_half(sublayer(hidden)))))


class FeedForward(nn.Module):
    """Position-wise feed-forward (section 3.3), optionally gated (arXiv 2002.05202)."""

    def __init__(self, d_model: int, d_ff: int, activation: str, gated: bool, bias: bool, dropout: float):
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff, bias=bias) if gated else None
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)
        self.activation = ACT2FN[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or hidden.device.type != "cpu":
            return self.transform(hidden)  # a compiled graph must not depend on the number of tokens
        rows = hidden.flatten(0, -2)  # (tokens, D)
        if len(rows) <= CACHED_TOKENS:
            return self.transform(hidden)
        return torch.cat([self.transform(part) for part in rows.split(CACHED_TOKENS)]).view_as(hidden)

    def transform(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.gate_proj is None:
            inner = self.activation(clamp_to_half(self.up_proj(hidden)))  # (..., F)
        else:  # infinity times 0 would be no number
            inner = self.activation(clamp_to_half(self.gate_proj(hidden))) * clamp_to_half(self.up_proj(hidden))  # (..., F)
        return self.down_proj(self.dropout(clamp_to_half(inner)))  # (..., D)

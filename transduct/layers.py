"""Norms, the feed-forward, and the one residual wrapper that knows pre- and post-norm.

- `Residual`: post-norm (Vaswani et al. 2017, section 3.1; BART) or pre-norm (T5, section 2.1) around any sublayer.
- `FeedForward`: `down(activation(up(x)))` (section 3.3) or gated, `down(activation(gate(x)) * up(x))` (arXiv 2002.05202).
- `RMSNorm`: arXiv 1910.07467, computed in at least float32.

Half precision: a feed-forward's products and every sublayer's output are clamped to float16's range, because a few T5 checkpoints
exceed it; norms and softmax run in float32; bfloat16 has float32's range and needs nothing.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2FN

CACHED_TOKENS = 512
"""Tokens that a feed-forward takes at a time where nothing is trained on a CPU: its wide hidden layer then stays in the cache."""


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
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACT2FN[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.flatten(0, -2)  # (tokens, D)
        if len(rows) <= CACHED_TOKENS or torch.is_grad_enabled() or torch.compiler.is_compiling() or hidden.device.type != "cpu":
            return self.transform(hidden)
        return torch.cat([self.transform(part) for part in rows.split(CACHED_TOKENS)]).view_as(hidden)

    def transform(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.gate_proj is None:
            inner = self.activation(clamp_to_half(self.up_proj(hidden)))  # (..., F)
        else:  # infinity times 0 would be no number
            inner = self.activation(clamp_to_half(self.gate_proj(hidden))) * clamp_to_half(self.up_proj(hidden))  # (..., F)
        return self.down_proj(self.dropout(clamp_to_half(inner)))  # (..., D)

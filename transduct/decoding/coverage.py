"""Coverage penalty (arXiv 1609.08144, equation 14): hypotheses whose tokens never looked at a part of the source score less.

    s(Y, X) = log P(Y | X) / penalty(|Y|) + b * sum over source tokens of log(min(attention paid to it by all of Y, 1))

Attention is the mean over the heads of one decoder layer's cross-attention; the end of the source counts as a token. The penalty
acts where hypotheses that have ended are compared, as in the paper. It is never positive, so exact stopping stays exact.
"""

from typing import Any

import torch

from transduct.decoding.cross_attention import mean_attention
from transduct.training.checks import check_number

LEAST = torch.finfo(torch.float32).tiny
"""Attention that counts as none, so that its logarithm is a number."""


class Coverage:
    """How much attention each candidate has paid to each source token.

    Args:
        weight: `b` of the equation.
        layer: of the decoder, counted from 0, or from the last with negative numbers.
        rows: of the search (see `rows.py`); their model is asked for attention weights from now on.

    Raises:
        ValueError: for a weight that would reward what was left out, and for rows whose attention is not told.
    """

    def __init__(self, weight: float, layer: int, rows: Any):
        check_number(weight, "coverage_penalty")
        if weight < 0:
            raise ValueError(f"coverage_penalty={weight} must be at least 0: it is what missing attention costs")
        if not rows.tells_attention:
            raise ValueError(f"coverage_penalty={weight} needs one encoder-decoder, not an ensemble or a decoder alone")
        self.weight, self.layer = weight, layer
        rows.arguments["output_attentions"] = True
        mask = rows.arguments.get("attention_mask")  # (B or B*N, S)
        self.hidden = None if mask is None else mask.repeat_interleave(len(rows.ids) // len(mask), dim=0) == 0  # (B*N, S)
        self.paid: torch.Tensor | None = None  # (B*N, S)

    def add(self, cross_attentions: tuple[torch.Tensor, ...]) -> None:
        """Count the attention of the last position, given each layer's weights (B*N, H, T, S)."""
        paid = mean_attention([layer[:, :, -1:] for layer in cross_attentions], self.layer).squeeze(1)  # (B*N, S)
        self.paid = paid if self.paid is None else self.paid + paid

    def penalty(self) -> torch.Tensor:
        """What is added to the score of a hypothesis that ends in each row (B*N)."""
        assert self.paid is not None
        logs = self.paid.clamp(min=LEAST, max=1.0).log()  # (B*N, S)
        return self.weight * (logs if self.hidden is None else logs.masked_fill(self.hidden, 0.0)).sum(1)

    def select(self, rows: torch.Tensor) -> None:
        """Go on with these rows."""
        self.paid = None if self.paid is None else self.paid[rows]
        self.hidden = None if self.hidden is None else self.hidden[rows]

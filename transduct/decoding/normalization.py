"""How hypotheses of different lengths are compared: `log-probability / penalty(length) + word_reward * length`.

Four penalties go by one name in the field, and a value of one is not a value of another:

- "hf": `L^a` (transformers, fairseq, CTranslate2, Marian);
- "gnmt": `((5 + L) / 6)^a` (arXiv 1609.08144, equation 14; Vaswani et al. 2017, section 6.1; T5X, OpenNMT, Joey NMT);
- "sockeye": `((b + L) / (b + 1))^a`;
- "none": 1, plain log-probabilities.

Lengths count the generated tokens, the end of sentence included.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from transduct.training.checks import check_number

Normalization = Literal["hf", "gnmt", "sockeye", "none"]


@dataclass(frozen=True)
class Scoring:
    """The score of a hypothesis by its log-probability and length.

    Args:
        normalization: one of the four above; penalty: its `a`; offset: `b` of "sockeye"; word_reward: added for each token.

    Raises:
        ValueError: for another normalisation, what is no finite number, or an offset at which lengths have no penalty.
    """

    normalization: Normalization = "hf"
    penalty: float = 1.0
    offset: float = 0.0
    word_reward: float = 0.0

    def __post_init__(self):
        if self.normalization not in get_args(Normalization):
            known = ", ".join(map(repr, get_args(Normalization)))
            raise ValueError(f"length_normalization={self.normalization!r} must be one of {known}")
        check_number(self.penalty, "length_penalty")
        check_number(self.offset, "length_offset")
        check_number(self.word_reward, "word_reward")
        if self.normalization != "sockeye" and self.offset:
            raise ValueError(f"length_offset={self.offset} belongs to length_normalization='sockeye'")
        if self.normalization == "sockeye" and self.offset <= -1:
            raise ValueError(f"length_offset={self.offset} of the sockeye normalisation must exceed -1")

    def divisor(self, lengths: torch.Tensor) -> torch.Tensor:
        """What log-probabilities are divided by, of any shape; an empty hypothesis counts as one token."""
        lengths = lengths.clamp(min=1).to(torch.float32 if lengths.device.type == "mps" else torch.float64)  # it has no other
        if self.normalization == "hf":
            return lengths**self.penalty
        if self.normalization == "gnmt":
            return ((5 + lengths) / 6) ** self.penalty
        if self.normalization == "sockeye":
            return ((self.offset + lengths) / (self.offset + 1)) ** self.penalty
        return torch.ones_like(lengths)

    def score(self, log_probs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Scores of hypotheses, of the shape of `log_probs`."""
        scores = log_probs / self.divisor(lengths).to(log_probs.dtype)
        return scores + self.word_reward * lengths if self.word_reward else scores

    def bound(self, log_probs: torch.Tensor, shortest: int, longest: torch.Tensor) -> torch.Tensor:
        """The best score that a hypothesis can still reach whose first tokens have these log-probabilities.

        Each further token adds at most 0, so the bound is the best over all lengths that it may end with.

        Args:
            log_probs: (B); shortest: least tokens in the end; longest: (B), most tokens in the end.
        """
        lengths = torch.arange(shortest, max(shortest, int(longest.max())) + 1, device=log_probs.device)  # (lengths)
        reachable = self.score(log_probs[:, None], lengths.expand(len(log_probs), -1))  # (B, lengths)
        return reachable.masked_fill(lengths > longest[:, None], float("-inf")).amax(1)  # (B)

"""Targets that begin as told: a prefix of its own length for each source, in one batch.

A plain logits processor: it serves `generate` and every search of this package. The prefix counts in the score, as what the
model would have thought of it.
"""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor


class ForcedPrefixes(LogitsProcessor):
    """Let each source's targets begin with given tokens.

    Args:
        prefixes: token ids for each source, maybe none; without the tokens that the decoder starts with.
        prompt_length: how many tokens the decoder starts with.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]], prompt_length: int = 1):
        longest = max(map(len, prefixes), default=0)
        self.tokens = torch.full((len(prefixes), longest), -1)  # (sources, longest), -1: free
        for row, prefix in zip(self.tokens, prefixes, strict=True):
            row[: len(prefix)] = torch.tensor(prefix, dtype=torch.long)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (rows, V) in which only the next token of the prefix is possible; each source has as many rows as any other."""
        sources = torch.arange(len(self.tokens), device=scores.device).repeat_interleave(len(scores) // len(self.tokens))
        return self.at_sources(input_ids, scores, sources)

    def at_sources(self, input_ids: torch.Tensor, scores: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        """The same for rows whose sources (rows) are given by their numbers."""
        step = input_ids.shape[1] - self.prompt_length
        if step >= self.tokens.shape[1]:
            return scores
        forced = self.tokens[:, step].to(scores.device)[sources]  # (rows)
        rows = (forced >= 0).nonzero().squeeze(1)
        only = torch.full_like(scores[rows], float("-inf"))
        tokens = forced[rows, None]
        scores = scores.clone()
        scores[rows] = only.scatter(1, tokens, scores[rows].gather(1, tokens))
        return scores

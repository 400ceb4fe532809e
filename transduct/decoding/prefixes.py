"""Targets that begin as told: a prefix of its own length for each source, in one batch.

    model.generate(**inputs, num_beams=4, logits_processor=[ForcedPrefixes([[17, 4, 9], [], [5]])])

A plain logits processor: it serves `generate` and every search of this package. The prefix counts in the score, as what the
model would have thought of it.
"""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from transduct.decoding.source_error import SourceError


class ForcedPrefixes(LogitsProcessor):
    """Let each source's targets begin with given tokens.

    Args:
        prefixes: token ids for each source, maybe none; without the tokens that the decoder starts with.
        prompt_length: how many tokens the decoder starts with.

    Raises:
        ValueError: for tokens that do not exist.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]], prompt_length: int = 1):
        longest = max(map(len, prefixes), default=0)
        self.tokens = torch.full((len(prefixes), longest), -1)  # (sources, longest), -1: free
        for number, prefix in enumerate(prefixes):
            if any(token < 0 for token in prefix):
                raise ValueError(f"prefixes[{number}]={list(prefix)} must hold token ids, which are not negative")
            self.tokens[number, : len(prefix)] = torch.tensor(prefix, dtype=torch.long)
        self.most = int(self.tokens.max()) if longest else -1
        self.prompt_length = prompt_length

    def check_room(self, most: torch.Tensor, prompt: int) -> None:
        """Refuse prefixes that would be cut off.

        Args:
            most: (sources), tokens that may be generated; prompt: tokens that the decoder started with.

        Raises:
            ValueError: naming a source.
        """
        if len(most) != len(self.tokens):
            raise ValueError(
                f"there are {len(self.tokens)} prefixes, but {len(most)} sources: each needs one, which may be empty"
            )
        lengths = (self.tokens >= 0).sum(1)
        needed = torch.where(lengths > 0, lengths + self.prompt_length - prompt, 0)
        long = (needed > most.to(needed.device)).nonzero().flatten().tolist()
        if long:
            raise SourceError(
                long[0],
                f"has a prefix of {int(needed[long[0]])} tokens, but its limit is {int(most[long[0]])}: allow more, "
                "or ask for less",
            )

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (rows, V) in which only the next token of the prefix is possible; each source has as many rows as any other."""
        if len(scores) % len(self.tokens):
            raise ValueError(f"there are {len(self.tokens)} prefixes, but {len(scores)} rows: each source needs one prefix")
        sources = torch.arange(len(self.tokens), device=scores.device).repeat_interleave(len(scores) // len(self.tokens))
        return self.at_sources(input_ids, scores, sources)

    def at_sources(self, input_ids: torch.Tensor, scores: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        """The same for rows whose sources (rows) are given by their numbers."""
        if self.most >= scores.shape[1]:
            raise ValueError(f"prefixes hold token {self.most}, but the vocabulary has {scores.shape[1]} tokens")
        step = input_ids.shape[1] - self.prompt_length
        if not 0 <= step < self.tokens.shape[1]:
            return scores
        self.tokens = self.tokens.to(scores.device)
        forced = self.tokens[sources, step][:, None]  # (rows, 1)
        index = forced.clamp(min=0)
        only = torch.full_like(scores, float("-inf")).scatter(1, index, scores.gather(1, index))
        return torch.where(forced >= 0, only, scores)

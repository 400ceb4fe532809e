"""Targets out of a closed set, such as names, labels or commands: a trie of token sequences, walked by each hypothesis.

A plain logits processor: it serves `generate` and every search of this package.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor


class TokenTrie:
    """Token sequences, by their beginnings."""

    def __init__(self, sequences: Iterable[Sequence[int]]):
        self.root: dict[Any, Any] = {}
        for sequence in sequences:
            if not len(sequence):
                raise ValueError("a trie holds no empty sequence: leave it out")
            node = self.root
            for token in sequence:
                node = node.setdefault(int(token), {})
            node[None] = True  # a sequence may end here
        if not self.root:
            raise ValueError("a trie needs one sequence at least; with none, nothing could be generated")

    def next_tokens(self, beginning: Sequence[int]) -> tuple[list[int], bool]:
        """What may follow, and whether a sequence may end here; nothing if no sequence begins so."""
        node = self.root
        for token in beginning:
            if token not in node:
                return [], False
            node = node[token]
        return [token for token in node if token is not None], None in node


class InTrie(LogitsProcessor):
    """Let targets be sequences of a trie only, each followed by an end token.

    Args:
        trie: sequences without start and end tokens; end: ids of end tokens; prompt_length: tokens the decoder starts with.
    """

    def __init__(self, trie: TokenTrie, end: int | Sequence[int], prompt_length: int = 1):
        self.trie = trie
        self.end = [end] if isinstance(end, int) else list(end)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = torch.full_like(scores, float("-inf"))
        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            tokens, may_end = self.trie.next_tokens(ids)
            if may_end or not tokens:  # past the end of a finished row, whose scores nobody reads
                tokens = tokens + self.end
            allowed[row, tokens] = scores[row, tokens]
        return allowed

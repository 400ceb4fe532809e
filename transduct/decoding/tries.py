"""Targets out of a closed set, such as names, labels or commands: a trie of token sequences, walked by each hypothesis.

    model.generate(**inputs, num_beams=4, logits_processor=[InTrie(TokenTrie([[17, 4], [17, 9, 9]]), end=1)])

A plain logits processor: it serves `generate` and every search of this package.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from transduct.decoding.source_error import SourceError

Node = dict[Any, Any]
"""What may follow: a node for each token, and True for None where a sequence may end."""


class TokenTrie:
    """Token sequences, by their beginnings.

    Raises:
        ValueError: for an empty sequence, or none at all, and for what is no token id.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]):
        self.root: Node = {}
        self.tokens: set[int] = set()
        self.longest = 0  # tokens of the longest sequence
        for sequence in sequences:
            if not len(sequence):
                raise ValueError("a trie holds no empty sequence: leave it out")
            node = self.root
            for token in sequence:
                node = node.setdefault(int(token), {})
                self.tokens.add(int(token))
            node[None] = True
            self.longest = max(self.longest, len(sequence))
        if not self.root:
            raise ValueError("a trie needs one sequence at least; with none, nothing could be generated")
        if min(self.tokens) < 0:
            raise ValueError(f"a trie holds {min(self.tokens)}, which is no token id: they are not negative")

    def node(self, beginning: Sequence[int]) -> Node | None:
        """Where a beginning leads, None if no sequence begins so."""
        node: Node | None = self.root
        for token in beginning:
            node = None if node is None else node.get(token)
        return node


class InTrie(LogitsProcessor):
    """Let targets be sequences of a trie only, each followed by an end token.

    Args:
        trie: sequences without start and end tokens; end: ids of end tokens; prompt_length: tokens the decoder starts with.

    Raises:
        ValueError: for an end token within a sequence.
    """

    def __init__(self, trie: TokenTrie, end: int | Sequence[int], prompt_length: int = 1):
        self.trie = trie
        self.end = [end] if isinstance(end, int) else list(end)
        self.most = max(*trie.tokens, *self.end)
        if inside := trie.tokens.intersection(self.end):
            raise ValueError(f"a trie holds the end token {min(inside)}, behind which nothing is written: leave it out")
        self.prompt_length = prompt_length
        self.nodes: dict[tuple[int, ...], Node | None] = {}  # where the hypotheses of the last step were

    def check_room(self, most: torch.Tensor, prompt: int) -> None:
        """Refuse limits that would cut sequences off.

        Args:
            most: (sources), tokens that may be generated; prompt: tokens that the decoder started with.

        Raises:
            ValueError: naming a source.
        """
        needed = self.trie.longest + 1 + self.prompt_length - prompt
        short = (most < needed).nonzero().flatten().tolist()
        if short:
            raise SourceError(
                short[0],
                f"may have at most {int(most[short[0]])} tokens, but the longest sequence of the trie takes {needed} with its "
                "end: allow more, or leave long sequences out",
            )

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (rows, V) in which only what the trie allows is possible."""
        if self.most >= scores.shape[1]:
            raise ValueError(f"a trie holds token {self.most}, but the vocabulary has {scores.shape[1]} tokens")
        if input_ids.shape[1] < self.prompt_length:
            return scores
        rows = list(map(tuple, input_ids[:, self.prompt_length :].tolist()))
        self.nodes = {row: self._node(row) for row in set(rows)}
        index, tokens = [], []
        for number, row in enumerate(rows):
            following = self._following(row)
            index += [number] * len(following)
            tokens += following
        place = torch.tensor([index, tokens], dtype=torch.long, device=scores.device).unbind()
        allowed = torch.full_like(scores, float("-inf"))
        allowed[place] = scores[place]
        return allowed

    def at_sources(self, input_ids: torch.Tensor, scores: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
        """The same, whatever the sources (rows) are."""
        return self(input_ids, scores)

    def _node(self, row: tuple[int, ...]) -> Node | None:
        """Where a hypothesis stands: one step from where it stood, so that long ones are not walked from the root each time."""
        if row[:-1] not in self.nodes:
            return self.trie.node(row)
        before = self.nodes[row[:-1]] if row else self.trie.root
        return before if before is None or not row else before.get(row[-1])

    def _following(self, row: tuple[int, ...]) -> list[int]:
        """The tokens that may follow; behind an end, whose scores nobody reads, another end."""
        node = self.nodes[row]
        if node is None:
            return self.end if set(self.end).intersection(row) else []
        return [token for token in node if token is not None] + (self.end if None in node else [])

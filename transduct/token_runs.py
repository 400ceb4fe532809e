"""Attention without masks: runs of tokens, as flash attention takes them (arXiv 2205.14135; variable lengths: 2307.08691).

Flash attention knows causality but no mask. What padding and packing need can be said without one: lay the real tokens of all
rows in one line, and say where each run starts. Run r of the queries then sees run r of the keys and nothing else.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


def run_ids(segment_ids: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Which run of its row each token belongs to (B, T), 0 at padding, from segment ids, a mask (B, T), or both.

    Raises:
        ValueError: for a mask that differs from query to query.
    """
    if mask is None:
        return segment_ids
    if mask.ndim != 2:
        raise ValueError(
            f'flash attention cannot take a mask of shape {tuple(mask.shape)}, one for each query: use attn_implementation="sdpa"'
        )
    return mask.long() if segment_ids is None else segment_ids * mask


class TokenRuns:
    """Where the runs of queries and keys are in a padded batch.

    Args:
        queries: ids (B, T), keys: ids (B, S). A run is the tokens of a row with one id; 0 is padding. A row's run of queries
            sees its run of keys with the same id.
    """

    def __init__(self, queries: torch.Tensor, keys: torch.Tensor):
        self.shape = queries.shape
        runs = 1 + int(torch.stack([queries.max(), keys.max()]).max())  # of a row, padding being one
        self.queries, self.query_starts, self.longest_query = _in_line(queries, runs)
        self.keys, self.key_starts, self.longest_key = (
            (self.queries, self.query_starts, self.longest_query) if keys is queries else _in_line(keys, runs)
        )

    def attend(
        self,
        attention: Callable,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options,
    ) -> torch.Tensor:
        """Calls a flash attention function of transformers' interface on the real tokens alone.

        Args:
            query: (B, H, T, K); key, value: (B, G, S, K).

        Returns:
            (B, T, H, K), zero at padding. Causal runs end together: the last query sees the last key.
        """
        packed = _gather(query, self.queries), _gather(key, self.keys), _gather(value, self.keys)  # (1, H, tokens, K)
        starts = {"cu_seq_lens_q": self.query_starts, "cu_seq_lens_k": self.key_starts}
        longest = {"max_length_q": self.longest_query, "max_length_k": self.longest_key}
        output = attention(module, *packed, None, **starts, **longest, **options)[0]  # (1, tokens, H, K)
        padded = output.new_zeros(self.shape.numel(), *output.shape[2:])  # (B*T, H, K)
        return padded.index_copy(0, self.queries, output[0]).unflatten(0, self.shape)  # (B, T, H, K)

    def to(self, device: torch.device, **kwargs) -> "TokenRuns":
        """Move to the device of the next layer, for models that are spread over several."""
        for name in ("queries", "query_starts", "keys", "key_starts"):
            setattr(self, name, getattr(self, name).to(device, **kwargs))
        return self


def _in_line(ids: torch.Tensor, runs: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Places of the real tokens, run by run (tokens); where each run starts and the last one ends (B * (runs - 1) + 1); the
    longest run."""
    rows = torch.arange(ids.shape[0], device=ids.device)[:, None]
    run = (rows * runs + ids).flatten()  # (B*T)
    order = run.argsort(stable=True)
    lengths = run.bincount(minlength=ids.shape[0] * runs).view(-1, runs)[:, 1:].flatten()
    starts = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return order[ids.flatten()[order] != 0], starts, int(lengths.max())


def _gather(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return states.transpose(1, 2).flatten(0, 1).index_select(0, places).transpose(0, 1)[None]  # (B, H, T, K) -> (1, H, tokens, K)

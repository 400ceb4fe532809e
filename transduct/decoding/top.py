"""The best of all tokens, several times faster than `torch.topk` and `torch.max` find them on a CPU.

Both compare number by number; the largest of each chunk is found many at a time. So the best chunks are found first, and only
what is in them is compared. On other devices torch's own are used.
"""

import torch

CHUNK = 64
"""Tokens that are first represented by the largest of them."""
CHUNKS_EACH = 8
"""Chunks that there must be for each token that is asked for; with fewer, nothing is gained."""


def top_tokens(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest (rows, count) of values (rows, V), in falling order, and their tokens; of equals any, as torch's."""
    if _is_small(values, count):
        return values.topk(count)
    short, tokens = _of_chunks(values, _chunks(values).amax(2).topk(count).indices)
    best, places = short.topk(count)  # (rows, count)
    return best, tokens.gather(1, places)


def best_tokens(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest (rows, 1) of values (rows, V) and its token; of equals the first, as `torch.max` on a CPU."""
    if _is_small(values, 1):
        return values.max(1, keepdim=True)
    short, tokens = _of_chunks(values, _chunks(values).amax(2).max(1, keepdim=True).indices)
    best, places = short.max(1, keepdim=True)  # (rows, 1)
    return best, tokens.gather(1, places)


def _is_small(values: torch.Tensor, count: int) -> bool:
    return values.device.type != "cpu" or values.shape[1] < count * CHUNKS_EACH * CHUNK


def _chunks(values: torch.Tensor) -> torch.Tensor:
    """Values (rows, chunks, CHUNK), without those after the last whole chunk."""
    return values[:, : values.shape[1] // CHUNK * CHUNK].unflatten(1, (-1, CHUNK))


def _of_chunks(values: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is in the chosen chunks (rows, c) and after the last: values and tokens (rows, c * CHUNK + rest)."""
    chunks = _chunks(values)
    rest = torch.arange(chunks.shape[1] * CHUNK, values.shape[1])
    tokens = (chosen[:, :, None] * CHUNK + torch.arange(CHUNK)).flatten(1)  # (rows, c * CHUNK)
    inside = chunks.gather(1, chosen[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
    return torch.cat([inside, values[:, chunks.shape[1] * CHUNK :]], 1), torch.cat([tokens, rest.expand(len(values), -1)], 1)

"""Batches by what they cost: rows x (longest source + longest target) tokens, padding included.

- Pairs are arranged by source length, then by target length, and cut where a batch would cost more than `max_tokens`.
- Where the cuts fall depends on the lengths alone, so each epoch has the same number of batches, and a step counter is
  enough to know where a run was. Which pairs of like length meet in a batch, and the order of the batches, is drawn
  anew from `(seed, epoch)`. Where few pairs are of like length, the same ones often meet again.
- Sources are grouped in about 2 sqrt(number of batches) classes: a good part of the cuts goes to the source's lengths, the
  rest to the target's, which follow them. From class to class the direction turns round, so that a batch that spans two
  classes holds targets of like length.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Yields lists of indices, each a batch of at most `max_tokens` tokens with its padding.

    Args:
        source_lengths: tokens of each source.
        target_lengths: tokens of each target, in the same order.
        max_tokens: most tokens of one batch: rows x (longest source + longest target).
        seed: with the epoch, all that the order depends on.
        shuffle: False gives the arrangement by length itself, ties in index order, the same in each epoch.

    Raises:
        ValueError: without pairs, for lists of unequal length, and for a pair that alone costs more than `max_tokens`.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
    ):
        self.lengths = np.stack(_checked(source_lengths, target_lengths, max_tokens))  # (2, examples)
        self.max_tokens, self.seed, self.shuffle = max_tokens, seed, shuffle
        self.epoch = 0
        source, target = self.lengths
        classes, longest = _source_classes(source, target, max_tokens)
        self._cell, cells = _arranged_cells(classes, target)
        sizes = _cut(cells, longest, max_tokens)
        self._cuts = np.cumsum(sizes)[:-1]

    def __len__(self) -> int:
        """Batches of an epoch, the same in each."""
        return len(self._cuts) + 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws; the training loop calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches(self.epoch):
            yield batch.tolist()

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The batches of `epoch` as arrays of indices."""
        if not self.shuffle:
            return np.split(np.argsort(self._cell, kind="stable"), self._cuts)
        generator = np.random.default_rng((self.seed, epoch))
        order = np.lexsort((generator.random(len(self._cell)), self._cell))
        batches = np.split(order, self._cuts)
        return [batches[i] for i in generator.permutation(len(batches))]

    def token_counts(self, epoch: int) -> np.ndarray:
        """(batches, 3): source tokens, target tokens and padded cost of each batch of `epoch`, in its order."""
        counts = np.empty((len(self), 3), dtype=np.int64)
        for row, batch in zip(counts, self.batches(epoch), strict=True):
            lengths = self.lengths[:, batch]  # (2, rows)
            row[:2] = lengths.sum(1)
            row[2] = len(batch) * lengths.max(1).sum()
        return counts

    def padding_share(self, epoch: int = 0) -> float:
        """Share of the computed tokens of `epoch` that are padding."""
        source, target, padded = self.token_counts(epoch).sum(0)
        return float(1 - (source + target) / padded)


def _checked(
    source_lengths: Sequence[int] | np.ndarray, target_lengths: Sequence[int] | np.ndarray, max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
    if len(source) != len(target):
        raise ValueError(f"{len(source)} source_lengths and {len(target)} target_lengths: each pair needs one of each")
    if len(source) == 0:
        raise ValueError("source_lengths is empty: there is nothing to make batches of")
    cost = source + target
    worst = int(cost.argmax())
    if cost[worst] > max_tokens:
        raise ValueError(
            f"pair {worst} (counted from 0) has {source[worst]} source and {target[worst]} target tokens, "
            f"more than max_tokens={max_tokens}: raise it, or limit the length of the data"
        )
    return source, target


def _source_classes(source: np.ndarray, target: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Class of each pair (examples,), and the longest source of each class (classes,). A class is a range of source lengths."""
    values, value_of = np.unique(source, return_inverse=True)
    cost = np.bincount(value_of, weights=source + target)  # tokens by source length
    share = cost.sum() / (2 * np.sqrt(cost.sum() / max_tokens))  # tokens that a class should hold at least
    class_of_value = np.zeros(len(values), dtype=np.int64)
    held, current = 0.0, 0
    for i, tokens in enumerate(cost):
        class_of_value[i] = current
        held += tokens
        if held >= share:
            held, current = 0.0, current + 1
    longest = np.array([values[class_of_value == c].max() for c in range(class_of_value.max() + 1)])
    return class_of_value[value_of], longest


def _arranged_cells(classes: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of each pair's (class, target length) cell, and the cells by rank: (cells, 3) of class, target length, pairs."""
    direction = np.where(classes % 2 == 0, 1, -1)
    keys, cell, pairs = np.unique(np.stack([classes, target * direction]), axis=1, return_inverse=True, return_counts=True)
    return cell.reshape(-1), np.stack([keys[0], np.abs(keys[1]), pairs], axis=1)


def _cut(cells: np.ndarray, longest: np.ndarray, max_tokens: int) -> list[int]:
    """Rows of each batch along the arrangement: as many as the budget allows, counting each source at its class's longest."""
    sizes, rows, widest_source, widest_target = [], 0, 0, 0
    for source_class, target, pairs in cells.tolist():
        while pairs:
            source_width = max(widest_source, int(longest[source_class]))
            target_width = max(widest_target, target)
            room = max_tokens // max(source_width + target_width, 1) - rows
            if room <= 0 and rows:
                sizes.append(rows)
                rows, widest_source, widest_target = 0, 0, 0
                continue
            taken = min(pairs, max(room, 1))
            rows, pairs = rows + taken, pairs - taken
            widest_source, widest_target = source_width, target_width
    return [*sizes, rows]

"""Batches by what they cost: rows x (longest source + longest target) tokens, padding included.

- Pairs are arranged by source length, then by target length, and cut where a batch would cost more than `max_tokens`.
- Where the cuts fall depends on the lengths alone, so each epoch has the same number of batches, and a step counter is
  enough to know where a run was. Which pairs of like length meet in a batch, and the order of the batches, is drawn
  anew from `(seed, epoch)`. Where few pairs are of like length, the same ones often meet again.
- With several processes, so many batches in a row make one step, and each process has one. They are alike in their tokens without
  padding, which is what our models compute, so that no process waits for another.
- Sources are grouped in about 2 sqrt(number of batches) classes: a good part of the cuts goes to the source's lengths, the
  rest to the target's, which follow them. From class to class the direction turns round, so that a batch that spans two
  classes holds targets of like length.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

TARGET_COST = 1.5
"""What a target token takes beside a source token: its layers attend to the source, too, and there are its logits."""


class UnfitPair(ValueError):
    """A pair that fits into no batch: its number in the data set, counted from 0, and what is wrong with it."""

    def __init__(self, number: int, complaint: str):
        super().__init__(number, complaint)  # both, so that it may be pickled
        self.number, self.complaint = number, complaint

    def __str__(self) -> str:
        return f"row {self.number} of the data set (counted from 0): the pair {self.complaint}"


class EpochBatchSampler(Sampler[list[int]], ABC):
    """Batches of pairs that depend on `(seed, epoch)` alone, the same number of them in each epoch.

    Args:
        lengths: (2, pairs): tokens of each source and of each target.
        max_tokens: most tokens of one batch, padding included.
        seed: with the epoch, all that the order depends on.
        shuffle: False: the same order in each epoch.
    """

    def __init__(self, lengths: np.ndarray, max_tokens: int, seed: int, shuffle: bool):
        self.lengths, self.max_tokens, self.seed, self.shuffle = lengths, max_tokens, seed, shuffle
        self.epoch = 0

    @abstractmethod
    def __len__(self) -> int:
        """Batches of an epoch, the same in each."""

    @abstractmethod
    def batches(self, epoch: int) -> list[np.ndarray]:
        """The batches of `epoch` as arrays of indices."""

    @abstractmethod
    def token_counts(self, epoch: int) -> np.ndarray:
        """(batches, 3): source tokens, target tokens and padded cost of each batch of `epoch`, in its order."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration draws; the training loop calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches(self.epoch):
            yield batch.tolist()

    def padding_share(self, epoch: int = 0) -> float:
        """Share of the computed tokens of `epoch` that are padding."""
        source, target, padded = self.token_counts(epoch).sum(0)
        return float(1 - (source + target) / padded)


class TokenBudgetBatchSampler(EpochBatchSampler):
    """Yields lists of indices, each a batch of at most `max_tokens` tokens with its padding.

    Args:
        source_lengths: tokens of each source.
        target_lengths: tokens of each target, in the same order.
        max_tokens: most tokens of one batch of one process: rows x (longest source + longest target).
        seed: with the epoch, all that the order depends on.
        shuffle: False gives the arrangement by length itself, ties in index order, the same in each epoch.
        num_processes: the number of batches is a multiple of it, and so many batches in a row take about the same time.

    Raises:
        ValueError: without pairs or with fewer than processes, and for lists of unequal length.
        UnfitPair: (a `ValueError`) for a pair that alone costs more than `max_tokens`.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
        num_processes: int = 1,
    ):
        super().__init__(check_lengths(source_lengths, target_lengths, num_processes), max_tokens, seed, shuffle)
        check_costs(self.lengths, max_tokens)
        source, target = self.lengths
        self.num_processes = num_processes
        classes, longest = _source_classes(source, target, max_tokens)
        self._cell, cells = _arranged_cells(classes, target)
        sizes = _split_to_multiple(_cut(cells, longest, max_tokens), num_processes)
        self._starts = np.cumsum([0, *sizes])  # (batches + 1)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def batches(self, epoch: int) -> list[np.ndarray]:
        arranged, order = self._arrangement(epoch)
        batches = np.split(arranged, self._starts[1:-1])
        return [batches[i] for i in order]

    def token_counts(self, epoch: int) -> np.ndarray:
        arranged, order = self._arrangement(epoch)
        return self._counts(arranged)[order]

    def _arrangement(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs (pairs) in the order of the cuts, and the order (batches) in which the batches come."""
        if not self.shuffle:
            arranged = np.argsort(self._cell, kind="stable")
            return arranged, np.arange(len(self)) if self.num_processes == 1 else self._by_work(arranged).reshape(-1)
        generator = np.random.default_rng((self.seed, epoch))
        arranged = np.lexsort((generator.random(len(self._cell)), self._cell))
        if self.num_processes == 1:
            return arranged, generator.permutation(len(self))
        steps = generator.permuted(self._by_work(arranged), axis=1)  # (steps, processes)
        return arranged, generator.permutation(steps, axis=0).reshape(-1)

    def _by_work(self, arranged: np.ndarray) -> np.ndarray:
        """The batches of each step, alike in their tokens without padding: (steps, processes)."""
        source, target, _ = self._counts(arranged).T
        return np.argsort(source + TARGET_COST * target, kind="stable").reshape(-1, self.num_processes)

    def _counts(self, arranged: np.ndarray) -> np.ndarray:
        """(batches, 3) as `token_counts`, in the order of the cuts."""
        lengths, starts = self.lengths[:, arranged], self._starts[:-1]
        tokens = np.add.reduceat(lengths, starts, axis=1)  # (2, batches)
        padded = np.diff(self._starts) * np.maximum.reduceat(lengths, starts, axis=1).sum(0)
        return np.stack([*tokens, padded], axis=1)


def check_lengths(
    source_lengths: Sequence[int] | np.ndarray, target_lengths: Sequence[int] | np.ndarray, num_processes: int
) -> np.ndarray:
    """Both lists as one array (2, pairs).

    Raises:
        ValueError: without pairs, with fewer than processes, and for lists of unequal length.
    """
    source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
    if len(source) != len(target):
        raise ValueError(f"{len(source)} source_lengths and {len(target)} target_lengths: each pair needs one of each")
    if len(source) == 0:
        raise ValueError("source_lengths is empty: there is nothing to make batches of")
    if num_processes < 1 or len(source) < num_processes:
        raise ValueError(f"num_processes={num_processes} must be at least 1 and at most the number of pairs, {len(source)}")
    return np.stack([source, target])


def check_costs(lengths: np.ndarray, max_tokens: int) -> None:
    """Raises UnfitPair for a pair, of lengths (2, pairs), that alone costs more than `max_tokens`."""
    source, target = lengths
    cost = source + target
    worst = int(cost.argmax())
    if cost[worst] > max_tokens:
        raise UnfitPair(
            worst,
            f"has {source[worst]} source and {target[worst]} target tokens, more than a batch of {max_tokens} may hold "
            "(max_tokens_per_batch): raise that, or limit the length of the data",
        )


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


def _split_to_multiple(sizes: list[int], multiple: int) -> list[int]:
    """Batches halved, those of most rows first, until their number is a multiple: fewer than `multiple` are."""
    sizes = list(sizes)
    while len(sizes) % multiple:
        largest = sizes.index(max(sizes))
        half = sizes[largest] // 2
        if half == 0:
            raise uneven_shares(len(sizes), multiple)
        sizes[largest : largest + 1] = [sizes[largest] - half, half]
    return sizes


def uneven_shares(pairs: int, num_processes: int) -> ValueError:
    """The error where each batch is one pair, and processes would get unequal numbers of them."""
    return ValueError(
        f"{pairs} batches of one pair each cannot be shared out evenly among num_processes={num_processes}: raise max_tokens, "
        "or use more pairs"
    )

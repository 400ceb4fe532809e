"""Packing: several pairs share a row on both sides, told apart by segment ids, so that almost nothing computed is padding.

- `pack_lengths` decides which lengths share a row. All rows are filled evenly, the largest pairs first, each into a row that has
  most room on the side where the pair is long (list scheduling by decreasing size, Graham 1969, on two sides at once): rows
  then end alike in sources and in targets, and batches of any rows have little padding.
- `PackedBatchSampler` draws anew in each epoch which pairs fill the places: a place is of a certain length on both sides, and
  all pairs of these lengths can take it. So each epoch has the same rows, the same number of batches, and every pair once.
- `PackedCollator` lays pairs one behind the other and numbers them. The model keeps segments apart and restarts positions, so
  loss and gradients are those of the pairs alone.

Attention is quadratic in the length of a row (but for flash attention, which is told where segments end). Hence rows are as
short as the longest pair permits, and longer only as far as is needed to fill them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from transduct.loss import IGNORE_INDEX
from transduct.training.batching import EpochBatchSampler, check_costs, check_lengths, uneven_shares

FULL = 0.985
"""Share of places filled at which rows are long enough."""
BLOCK_PAIRS = 16_384
"""Pairs are packed in blocks of about this size, all of the same mix of lengths: the time grows with rows x pairs of a block."""


class PackedBatchSampler(EpochBatchSampler):
    """Yields lists of indices, row after row, each list a packed batch of at most `max_tokens` tokens with its padding.

    To be used with a `PackedCollator` of the sampler's `row_lengths`, which finds the rows again: a row ends where the next pair
    would not fit, and each row starts with its longest pair. Where pairs are few and short, it may merge some.

    Args:
        source_lengths, target_lengths: tokens of each pair.
        max_tokens: most tokens of one batch of one process: rows x (longest row of sources + longest row of targets).
        row_lengths: most source and target tokens of a row; None: chosen, see the module.
        seed: with the epoch, all that the order depends on.
        shuffle: False: the same rows and order in each epoch.
        num_processes: the number of batches is a multiple of it, and so many batches in a row cost about the same.

    Raises:
        ValueError: for lengths of no pairs, unequal in number or not positive, and for a pair that fits in no row.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        row_lengths: tuple[int, int] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        num_processes: int = 1,
    ):
        super().__init__(check_lengths(source_lengths, target_lengths, num_processes), max_tokens, seed, shuffle)
        check_costs(self.lengths, max_tokens)
        if self.lengths.min() < 1:
            pair = int(self.lengths.min(0).argmin())
            raise ValueError(f"pair {pair} (counted from 0) has an empty side: packing needs at least one token on both")
        row_lengths = row_lengths or choose_row_lengths(self.lengths, max_tokens)
        _check_row_lengths(self.lengths, row_lengths, max_tokens)
        rows_per_batch = max_tokens // sum(row_lengths)
        rows = pack_lengths(self.lengths, row_lengths, multiple_of=rows_per_batch * num_processes)
        source, target = np.max([self.lengths[:, row].sum(1) for row in rows], axis=0)
        self.row_lengths = int(source), int(target)  # of the longest rows that there are
        self._places = np.concatenate(rows)  # (pairs): a pair of the lengths that each place takes
        self._starts = np.cumsum([0, *map(len, rows)])  # (rows + 1)
        self._batch_count = _round_up(-(-len(rows) // rows_per_batch), num_processes)
        if self._batch_count > len(rows):
            raise uneven_shares(len(rows), num_processes)
        self._cell = np.unique(self.lengths, axis=1, return_inverse=True)[1].reshape(-1)  # (pairs)

    def __len__(self) -> int:
        return self._batch_count

    def rows(self, epoch: int) -> list[list[np.ndarray]]:
        """The batches of `epoch`, each a list of rows, each an array of indices."""
        pairs, order = self._places, np.arange(len(self._starts) - 1)
        if self.shuffle:
            generator = np.random.default_rng((self.seed, epoch))
            pairs = np.empty_like(self._places)
            places = np.argsort(self._cell[self._places], kind="stable")
            pairs[places] = np.lexsort((generator.random(len(pairs)), self._cell))
            order = generator.permutation(len(order))
        rows = np.split(pairs, self._starts[1:-1])
        return [[rows[i] for i in batch] for batch in np.array_split(order, self._batch_count)]

    def batches(self, epoch: int) -> list[np.ndarray]:
        return [np.concatenate(rows) for rows in self.rows(epoch)]

    def token_counts(self, epoch: int) -> np.ndarray:
        counts = np.empty((len(self), 3), dtype=np.int64)
        for count, rows in zip(counts, self.rows(epoch), strict=True):
            filled = np.array([self.lengths[:, row].sum(1) for row in rows])  # (rows, 2)
            count[:2] = filled.sum(0)
            count[2] = len(rows) * filled.max(0).sum()
        return counts


def choose_row_lengths(lengths: np.ndarray, max_tokens: int) -> tuple[int, int]:
    """Source and target tokens of the shortest rows that hold the longest pair and that can be filled to `FULL`.

    The sides are as long as all sources are to all targets, and together they divide `max_tokens` evenly. Where no rows are
    filled so well, those that are filled best.

    Args:
        lengths: (2, pairs).
    """
    source, target = lengths.sum(1, dtype=np.float64)
    share = source / (source + target)
    longest = lengths.max(1)
    needed = max(longest[0] / share, longest[1] / (1 - share))
    most = int(max_tokens // needed)  # rows of a batch
    if most < 1:
        return int(longest[0]), int(max(longest[1], max_tokens - longest[0]))  # refused if the pair is too long for that too
    sample = lengths[:, _blocks(lengths, BLOCK_PAIRS // 4)[0]]
    found: dict[float, tuple[int, int]] = {}
    for count in sorted({max(1, round(most * 0.85**step)) for step in range(10)}, reverse=True):
        width = max_tokens // count
        sides = _sides(width, share, longest)
        loads = np.array([sample[:, row].sum(1) for row in pack_lengths(sample, sides)])
        filled = loads.sum() / (len(loads) * loads.max(0).sum())
        found[filled] = sides
        if filled >= FULL:
            break
    return found[max(found)]


def _sides(width: int, share: float, longest: np.ndarray) -> tuple[int, int]:
    source = min(max(int(width * share), int(longest[0])), width - int(longest[1]))
    return source, width - source


def pack_lengths(
    lengths: np.ndarray, row_lengths: tuple[int, int], multiple_of: int = 1, block_pairs: int = BLOCK_PAIRS
) -> list[np.ndarray]:
    """Which pairs share a row: arrays of indices, the longest pair of each row first.

    Args:
        lengths: (2, pairs); row_lengths: most source and target tokens of a row; multiple_of: of the number of rows, where there
            are pairs enough; block_pairs: about how many are packed at once.
    """
    room = np.array(row_lengths, dtype=np.float64)[:, None]
    pairs = lengths.shape[1]
    blocks = _blocks(lengths, block_pairs)
    count = int(np.ceil((lengths / room).sum(1).max()))
    while True:
        count = min(_round_up(count, multiple_of), pairs)
        rows = _fill_blocks(lengths, room, blocks, count)
        if rows is not None:
            return rows
        count += max(1, count // 100)


def _blocks(lengths: np.ndarray, block_pairs: int) -> list[np.ndarray]:
    """The pairs (indices) in blocks of about `block_pairs`, dealt out in the order of their lengths."""
    count = -(-lengths.shape[1] // block_pairs)
    order = np.lexsort((lengths[1], lengths[0]))
    return [order[start::count] for start in range(count)]


def _fill_blocks(lengths: np.ndarray, room: np.ndarray, blocks: list[np.ndarray], count: int) -> list[np.ndarray] | None:
    """`count` rows, shared out among the blocks; None where some pair finds no room."""
    rows: list[np.ndarray] = []
    for number, block in enumerate(blocks):
        filled = _fill_evenly(lengths[:, block], room, (count + number) // len(blocks))
        if filled is None:
            return None
        rows += [block[row] for row in filled]
    return rows


def _fill_evenly(lengths: np.ndarray, room: np.ndarray, count: int) -> list[np.ndarray] | None:
    """The pairs shared out among `count` rows of `room` (2, 1), or None where some pair finds no room."""
    sizes = lengths / room  # (2, pairs), shares of a row
    order = np.lexsort((-sizes.sum(0), -sizes.max(0)))
    filled = np.zeros((2, count))
    rows: list[list[int]] = [[] for _ in range(count)]
    limit = 1 + 1e-9  # lengths are whole numbers, their shares are rounded
    for pair in order.tolist():
        size = sizes[:, pair]
        crowding = size @ filled  # (rows): how full a row is where the pair is long
        crowding[(filled + size[:, None] > limit).any(0)] = np.inf
        row = int(crowding.argmin())
        if crowding[row] == np.inf:
            return None
        filled[:, row] += size
        rows[row].append(pair)
    return [np.array(row) for row in rows if row]


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _check_row_lengths(lengths: np.ndarray, row_lengths: tuple[int, int], max_tokens: int) -> None:
    too_long = (lengths > np.array(row_lengths)[:, None]).any(0)
    if too_long.any():
        pair = int(too_long.argmax())
        (source, target), (source_room, target_room) = lengths[:, pair], row_lengths
        raise ValueError(
            f"pair {pair} (counted from 0) has {source} source and {target} target tokens, but a row holds {source_room} and "
            f"{target_room}: raise row_lengths or max_tokens={max_tokens}, or limit the length of the data"
        )
    if sum(row_lengths) > max_tokens:
        raise ValueError(f"row_lengths={row_lengths} cost {sum(row_lengths)} tokens a row, more than max_tokens={max_tokens}")


@dataclass
class PackedCollator:
    """Lays pairs one behind the other in rows, on both sides, and numbers them: the same loss and gradients, little padding.

    A row ends where the next pair would not fit; the order of the pairs stays. It takes what `Seq2SeqCollator` takes, but for
    columns that cannot be laid end to end.

    Args:
        tokenizer: gives `pad_token_id`.
        row_lengths: most source and target tokens of a row, as `PackedBatchSampler.row_lengths` has them.
        model: if given, its config has the `decoder_start_token_id`.
        decoder_start_token_id: what the decoder's input of each pair starts with, without a model.
        pad_to_multiple_of: lengths of rows are rounded up to a multiple of this.
    """

    tokenizer: Any
    row_lengths: tuple[int, int]
    model: Any = None
    decoder_start_token_id: int | None = None
    pad_to_multiple_of: int = 1

    def __post_init__(self):
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer.pad_token_id is None: rows of unequal length need a padding token")
        if self.model is not None:
            self.decoder_start_token_id = self.model.config.decoder_start_token_id
        if self.decoder_start_token_id is None:
            raise ValueError("decoder_start_token_id is None: the decoder's input of each pair must start with a known token")

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Examples with `input_ids` and `labels`, lists, arrays or tensors of one dimension.

        Returns:
            `input_ids`, `segment_ids` (R, S), `labels`, `decoder_input_ids`, `decoder_segment_ids` (R, T): R rows, segments
            numbered from 1 in each, 0 at padding, where labels are -100.

        Raises:
            ValueError: for a pair that fits in no row or has an empty side, and for columns that cannot be packed.
        """
        if not features:
            raise ValueError("features is empty: a batch needs at least one example")
        _check_columns(features)
        sources = [np.asarray(feature["input_ids"]) for feature in features]
        targets = [np.asarray(feature["labels"]) for feature in features]
        lengths = np.array([[len(row) for row in side] for side in (sources, targets)])  # (2, pairs)
        row, number = self._rows(lengths)
        pad = self.tokenizer.pad_token_id
        moved = [np.concatenate([[self.decoder_start_token_id], labels[:-1]]) for labels in targets]
        moved = [np.where(ids == IGNORE_INDEX, pad, ids) for ids in moved]
        source, target = _Rows(row, lengths[0], self.pad_to_multiple_of), _Rows(row, lengths[1], self.pad_to_multiple_of)
        return {
            "input_ids": source.laid(np.concatenate(sources), pad),
            "segment_ids": source.laid(np.repeat(number, lengths[0]), 0),
            "labels": target.laid(np.concatenate(targets), IGNORE_INDEX),
            "decoder_input_ids": target.laid(np.concatenate(moved), pad),
            "decoder_segment_ids": target.laid(np.repeat(number, lengths[1]), 0),
        }

    def _rows(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row (from 0) and number in it (from 1) of each pair, two arrays (pairs)."""
        if (lengths < 1).any() or (lengths > np.array(self.row_lengths)[:, None]).any():
            raise ValueError(
                f"a pair has {lengths.min(0).min()} to {lengths.max(0).max()} tokens on a side; each needs at least one on both, "
                f"and at most row_lengths={tuple(self.row_lengths)}: raise row_lengths, or limit the length of the data"
            )
        places, (source_room, target_room) = [], self.row_lengths
        row, number, source, target = 0, 0, 0, 0
        for source_length, target_length in lengths.T.tolist():
            source, target, number = source + source_length, target + target_length, number + 1
            if source > source_room or target > target_room:
                row, number, source, target = row + 1, 1, source_length, target_length
            places.append((row, number))
        rows, numbers = np.array(places).T
        return rows, numbers


class _Rows:
    """Where the tokens of one side lie: pairs of `lengths` (pairs), one behind the other in their `row` (pairs)."""

    def __init__(self, row: np.ndarray, lengths: np.ndarray, multiple_of: int):
        filled = np.bincount(row, weights=lengths).astype(np.int64)  # (R)
        self.shape = len(filled), _round_up(int(filled.max()), multiple_of)
        self.row = np.repeat(row, lengths)  # (tokens)
        self.place = np.arange(len(self.row)) - np.repeat(np.cumsum(filled) - filled, filled)  # (tokens)

    def laid(self, tokens: np.ndarray, fill: int) -> torch.Tensor:
        """Tokens (tokens) in their rows (R, length), `fill` behind them."""
        rows = np.full(self.shape, fill, dtype=np.int64)
        rows[self.row, self.place] = tokens
        return torch.from_numpy(rows)


def _check_columns(features: Sequence[Mapping[str, Any]]) -> None:
    for name in features[0]:
        if name == "attention_mask":
            if not all(np.all(feature[name]) for feature in features):
                raise ValueError("attention_mask hides tokens of a pair: leave them out before packing")
        elif name not in ("input_ids", "labels"):
            raise ValueError(f"column {name!r} cannot be packed: remove it from the data set, or train without packing")
    if not {"input_ids", "labels"} <= set(features[0]):
        raise ValueError(f'the examples have the columns {sorted(features[0])}; packing needs "input_ids" and "labels"')

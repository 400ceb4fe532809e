"""Packing: several pairs share a row on both sides, told apart by segment ids, so that almost nothing computed is padding.

- `pack_lengths` decides which lengths share a row. All rows are filled evenly, the largest pairs first, each into a row that has
  most room on the side where the pair is long (list scheduling by decreasing size, Graham 1969, on two sides at once): rows
  then end alike in sources and in targets, and batches of any rows have little padding.
- Attention is quadratic in the length of a row (but for flash attention, which is told where segments end). Hence rows are as
  short as their longest pair permits, and longer only as far as is needed to fill them; and where few pairs are long,
  `row_classes` gives these rows of their own, with short pairs in between, and shorter rows to all others.
- `PackedBatchSampler` draws anew in each epoch which pairs fill the places: a place is of a certain length on both sides, and
  all pairs of these lengths can take it. So each epoch has the same rows, the same number of batches, and every pair once.
- `PackedCollator` lays the pairs of a row one behind the other and numbers them. The model keeps segments apart and restarts
  positions, so loss and gradients are those of the pairs alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset

from transduct.loss import IGNORE_INDEX
from transduct.training.batching import EpochBatchSampler, UnfitPair, check_costs, check_lengths, uneven_shares

FULL = 0.986
"""Share of places filled at which rows are long enough."""
BLOCK_PAIRS = 4096
"""Pairs are packed in blocks of about this size, all of the same mix of lengths: the time grows with rows x pairs of a block."""
NARROW = 192
"""Source and target tokens of rows that need not be shorter: attention costs little beside the rest."""
CLASS_BATCHES = 16
"""Batches of each process that a class of rows is worth."""


class PackedBatchSampler(EpochBatchSampler):
    """Yields packed batches of at most `max_tokens` tokens with their padding: lists of rows, which are lists of indices.

    To be used with the data set in `PackedRows`, and `PackedCollator`.

    Args:
        source_lengths, target_lengths: tokens of each pair.
        max_tokens: most tokens of one batch of one process: rows x (longest row of sources + longest row of targets).
        row_lengths: most source and target tokens of any row; None: chosen, see the module.
        seed: with the epoch, all that the order depends on.
        shuffle: False: the same rows and order in each epoch.
        num_processes: the number of batches is a multiple of it, and so many batches in a row cost about the same.

    Raises:
        ValueError: for lengths of no pairs, or unequal in number.
        UnfitPair: (a `ValueError`) for a pair with an empty side, and for one that fits in no row.
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
            raise UnfitPair(pair, "has an empty side: packing needs at least one token on both")
        if row_lengths is None:
            classes = row_classes(self.lengths, max_tokens, num_processes)
        else:
            classes = [(np.arange(self.lengths.shape[1]), row_lengths)]
        self.num_processes = num_processes
        self._rows: list[np.ndarray] = []  # of a pair of the lengths that each place takes
        self._classes: list[tuple[int, int, int]] = []  # first row, last row + 1, batches
        for pairs, sides in classes:
            self._add_class(pairs, sides)
        self._cell = np.unique(self.lengths, axis=1, return_inverse=True)[1].reshape(-1)  # (pairs)

    def _add_class(self, pairs: np.ndarray, row_lengths: tuple[int, int]) -> None:
        _check_row_lengths(self.lengths, pairs, row_lengths, self.max_tokens)
        rows_per_batch = self.max_tokens // sum(row_lengths)
        rows = pack_lengths(self.lengths[:, pairs], row_lengths, multiple_of=rows_per_batch * self.num_processes)
        batches = _round_up(-(-len(rows) // rows_per_batch), self.num_processes)
        if batches > len(rows):
            raise uneven_shares(len(rows), self.num_processes)
        first = len(self._rows)
        self._rows += [pairs[row] for row in rows]
        self._classes.append((first, len(self._rows), batches))

    def __len__(self) -> int:
        return sum(batches for _, _, batches in self._classes)

    def __iter__(self) -> Iterator[list[list[int]]]:  # type: ignore[override]
        for batch in self.rows(self.epoch):
            yield [row.tolist() for row in batch]

    def rows(self, epoch: int) -> list[list[np.ndarray]]:
        """The batches of `epoch`, each a list of rows, each an array of indices."""
        if not self.shuffle:
            return [batch for step in self._steps(self._rows, None) for batch in step]
        generator = np.random.default_rng((self.seed, epoch))
        places = np.concatenate(self._rows)
        pairs = np.empty_like(places)
        pairs[np.argsort(self._cell[places], kind="stable")] = np.lexsort((generator.random(len(pairs)), self._cell))
        rows = np.split(pairs, np.cumsum([len(row) for row in self._rows])[:-1])
        steps = self._steps(rows, generator)
        return [batch for number in generator.permutation(len(steps)) for batch in steps[number]]

    def _steps(self, rows: list[np.ndarray], generator: np.random.Generator | None) -> list[list[list[np.ndarray]]]:
        """Batches of the rows, class by class, as many a step as there are processes."""
        steps = []
        for first, end, count in self._classes:
            order = np.arange(first, end) if generator is None else generator.permutation(np.arange(first, end))
            batches = [[rows[number] for number in batch] for batch in np.array_split(order, count)]
            steps += [batches[start : start + self.num_processes] for start in range(0, count, self.num_processes)]
        return steps

    def batches(self, epoch: int) -> list[np.ndarray]:
        return [np.concatenate(rows) for rows in self.rows(epoch)]

    def token_counts(self, epoch: int) -> np.ndarray:
        counts = np.empty((len(self), 3), dtype=np.int64)
        for count, rows in zip(counts, self.rows(epoch), strict=True):
            filled = np.array([self.lengths[:, row].sum(1) for row in rows])  # (rows, 2)
            count[:2] = filled.sum(0)
            count[2] = len(rows) * filled.max(0).sum()
        return counts


class PackedRows(Dataset):
    """A data set whose items are rows: given a list of indices, the examples with these.

    Args:
        dataset: of examples.
        columns: of an example that are kept; None: all.
    """

    def __init__(self, dataset: Any, columns: Sequence[str] | None = None):
        self.dataset, self.columns = dataset, columns

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.dataset)

    def __getitem__(self, row: list[int]) -> list[Mapping[str, Any]]:
        whole = isinstance(self.dataset, datasets.Dataset)
        examples = self.dataset.__getitems__(row) if whole else [self.dataset[index] for index in row]
        if self.columns is None:
            return examples
        return [{name: value for name, value in example.items() if name in self.columns} for example in examples]


def row_classes(lengths: np.ndarray, max_tokens: int, num_processes: int) -> list[tuple[np.ndarray, tuple[int, int]]]:
    """Which pairs (indices) share rows, and source and target tokens of these rows: first the long pairs, last the short ones.

    Pairs of more than a quarter of a row, and as many tokens of shorter ones, which fill what they leave, are a class of their
    own if they and the others make `CLASS_BATCHES` batches each.

    Args:
        lengths: (2, pairs).
    """
    classes: list[tuple[np.ndarray, tuple[int, int]]] = []
    rest = np.lexsort((lengths[1], lengths[0]))
    sides = choose_row_lengths(lengths, max_tokens)
    tokens, enough = lengths.sum(0), CLASS_BATCHES * num_processes * max_tokens
    while sum(sides) > NARROW:
        is_long = (4 * lengths[:, rest] > np.array(sides)[:, None]).any(0)
        long, short = rest[is_long], rest[~is_long]
        every = int(tokens[short].sum() // max(1, tokens[long].sum()))  # one in so many of the short ones fills
        if every < 2 or 2 * tokens[long].sum() < enough or tokens[short].sum() < 2 * enough:
            break
        filler = np.arange(len(short)) % every == 0
        others = short[~filler]
        narrower = choose_row_lengths(lengths[:, others], max_tokens)
        if 4 * sum(narrower) > 3 * sum(sides):  # short pairs that cannot fill short rows
            break
        classes.append((np.concatenate([long, short[filler]]), sides))
        rest, sides = others, narrower
    return [*classes, (rest, sides)]


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
    sample = lengths[:, _blocks(lengths, BLOCK_PAIRS)[0]]
    found: dict[float, tuple[int, int]] = {}
    for count in sorted({max(1, round(most * 0.85**step)) for step in range(10)}, reverse=True):
        width = max_tokens // count
        sides = _sides(width, share, longest)
        filled = _share_filled(sample, pack_lengths(sample, sides), count)
        found[filled] = sides
        if filled >= FULL:
            break
    return found[max(found)]


def _share_filled(lengths: np.ndarray, rows: list[np.ndarray], rows_per_batch: int) -> float:
    """Share of the places of batches, of rows drawn at random, that hold tokens."""
    order = np.random.default_rng(0).permutation(len(rows))
    loads = np.array([lengths[:, rows[number]].sum(1) for number in order])  # (rows, 2)
    batches = np.array_split(loads, -(-len(loads) // rows_per_batch))
    return float(loads.sum() / sum(len(batch) * batch.max(0).sum() for batch in batches))


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
    """`count` rows, shared out among the blocks as the pairs are; None where some pair finds no room."""
    rows: list[np.ndarray] = []
    for later, block in zip(range(len(blocks) - 1, -1, -1), blocks, strict=True):
        filled = _fill_evenly(lengths[:, block], room, (count + later) // len(blocks))
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


def _check_row_lengths(lengths: np.ndarray, pairs: np.ndarray, row_lengths: tuple[int, int], max_tokens: int) -> None:
    too_long = (lengths[:, pairs] > np.array(row_lengths)[:, None]).any(0)
    if too_long.any():
        pair = int(pairs[too_long.argmax()])
        (source, target), (source_room, target_room) = lengths[:, pair], row_lengths
        raise UnfitPair(
            pair,
            f"has {source} source and {target} target tokens, but a row holds {source_room} and {target_room}: raise row_lengths "
            f"or max_tokens={max_tokens}, or limit the length of the data",
        )
    if sum(row_lengths) > max_tokens:
        raise ValueError(f"row_lengths={row_lengths} cost {sum(row_lengths)} tokens a row, more than max_tokens={max_tokens}")


@dataclass
class PackedCollator:
    """Lays pairs one behind the other in rows, on both sides, and numbers them: the same loss and gradients, little padding.

    It takes what `Seq2SeqCollator` takes, but for columns that cannot be laid end to end.

    Args:
        tokenizer: gives `pad_token_id`.
        model: if given, its config has the `decoder_start_token_id` and `target_start`.
        decoder_start_token_id: what the decoder's input of each pair starts with, without a model.
        row_lengths: most source and target tokens of a row, for examples that do not come in rows; a row then ends where the next
            pair would not fit.
        pad_to_multiple_of: lengths of rows are rounded up to a multiple of this.
    """

    tokenizer: Any
    model: Any = None
    decoder_start_token_id: int | None = None
    row_lengths: tuple[int, int] | None = None
    pad_to_multiple_of: int = 1

    def __post_init__(self):
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer.pad_token_id is None: rows of unequal length need a padding token")
        if self.model is not None:
            self.decoder_start_token_id = self.model.config.decoder_start_token_id
        self._from_last_token = self.model is not None and self.model.config.target_start == "last_token"
        if self.decoder_start_token_id is None and not self._from_last_token:
            raise ValueError("decoder_start_token_id is None: the decoder's input of each pair must start with a known token")

    def __call__(self, features: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Rows, which are lists of examples, or examples: with `input_ids` and `labels`, lists, arrays or tensors (tokens).

        Returns:
            `input_ids`, `segment_ids` (R, S), `labels`, `decoder_input_ids`, `decoder_segment_ids` (R, T): R rows, segments
            numbered from 1 in each, 0 at padding, where labels are -100.

        Raises:
            ValueError: for a pair that fits in no row or has an empty side, and for columns that cannot be packed.
        """
        if not features:
            raise ValueError("features is empty: a batch needs at least one example")
        in_rows = not isinstance(features[0], Mapping)
        examples = [example for row in features for example in row] if in_rows else features
        _check_columns(examples)
        sources = [np.asarray(example["input_ids"]) for example in examples]
        targets = [np.asarray(example["labels"]) for example in examples]
        lengths = np.array([[len(ids) for ids in side] for side in (sources, targets)])  # (2, pairs)
        if lengths.min() < 1:
            raise ValueError("a pair has an empty side: packing needs at least one token on both")
        row, number = _numbered([len(row) for row in features] if in_rows else self._row_sizes(lengths))
        pad = self.tokenizer.pad_token_id
        moved = [np.concatenate([self._first_input(labels), labels[:-1]]) for labels in targets]
        moved = [np.where(ids == IGNORE_INDEX, pad, ids) for ids in moved]
        source, target = _Rows(row, lengths[0], self.pad_to_multiple_of), _Rows(row, lengths[1], self.pad_to_multiple_of)
        return {
            "input_ids": source.laid(np.concatenate(sources), pad),
            "segment_ids": source.laid(np.repeat(number, lengths[0]), 0),
            "labels": target.laid(np.concatenate(targets), IGNORE_INDEX),
            "decoder_input_ids": target.laid(np.concatenate(moved), pad),
            "decoder_segment_ids": target.laid(np.repeat(number, lengths[1]), 0),
        }

    def _first_input(self, labels: np.ndarray) -> list[int]:
        """What the decoder reads first: the start token, or the labels' own last one."""
        if not self._from_last_token:
            assert self.decoder_start_token_id is not None  # checked by __post_init__
            return [self.decoder_start_token_id]
        real = labels[labels != IGNORE_INDEX]
        return [int(real[-1]) if len(real) else self.tokenizer.pad_token_id]

    def _row_sizes(self, lengths: np.ndarray) -> list[int]:
        """How many of the pairs, of `lengths` (2, pairs), are in each row."""
        if self.row_lengths is None:
            raise ValueError(
                "row_lengths is None: examples that do not come in rows need it, the most tokens of a row's two sides"
            )
        if (lengths > np.array(self.row_lengths)[:, None]).any():
            raise ValueError(
                f"the longest source and target have {lengths[0].max()} and {lengths[1].max()} tokens, but row_lengths="
                f"{self.row_lengths}: raise it, or limit the length of the data"
            )
        sizes, source, target = [0], 0, 0
        for source_length, target_length in lengths.T.tolist():
            source, target = source + source_length, target + target_length
            if source > self.row_lengths[0] or target > self.row_lengths[1]:
                sizes.append(0)
                source, target = source_length, target_length
            sizes[-1] += 1
        return sizes


def _numbered(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Row (from 0) and number in it (from 1) of each pair, two arrays (pairs), for rows of so many pairs."""
    return np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(1, size + 1) for size in sizes])


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

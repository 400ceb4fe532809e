"""Training data without a last row: streams, mixtures, and examples that are made anew each time.

The rows of one or several parts are drawn in an order that never ends and depends on the seed alone. `block_rows` of them at a
time are a block: its examples are made, arranged in batches or packed, and the batches shuffled. All that is random in a block
depends on (seed, number of the block, place in it). So a run goes on after a stop with the batches that it would have had, and
the number of worker processes changes nothing. Of n training processes each takes every n-th block; rows are drawn by all of
them, which is cheap, and tokenised by one.

A run on such data has no epochs and needs `max_steps`. A block's last batch may be a small one. A checkpoint holds the number of
the block that was being trained on, and where each part stood before it; a run that goes on makes this block once more, and
reads nothing of what lies before it (see `data_position.py`).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from transduct.training.batching import EpochBatchSampler, TokenBudgetBatchSampler, UnfitPair
from transduct.training.data import Skipped, origin_among, usable
from transduct.training.data_position import DataPosition, Position
from transduct.training.encoding import Encoder, Example
from transduct.training.fitting import fitting_budget
from transduct.training.loading import packed_collator
from transduct.training.mixing import drawn_parts
from transduct.training.objectives import example_generator
from transduct.training.packing import PackedBatchSampler
from transduct.training.reading import BadRow, Place, Row

Batch = dict[str, Any]


class Variation(Protocol):
    """Makes other examples of the same rows each time, given the random numbers of each."""

    def __call__(self, examples: list[Example], generators: Sequence[np.random.Generator]) -> list[Example]: ...


class Part(Protocol):
    """One source of rows."""

    name: str
    vary: Variation | None

    def draws(self, seed: int, part: int, place: Place) -> Iterator[Any]:
        """Rows, or what stands for them, without end; their order depends on the seed and the part's number.

        They begin at the place, which is moved along with them.
        """

    def examples(self, draws: list[Any]) -> Iterator[Example | BadRow]:
        """The examples of some draws, for each row one, several or none."""

    def origin(self, draws: list[Any], number: int) -> str:
        """Where the usable example `number` of some draws comes from, for a message."""


@dataclass
class MappedPart:
    """Tokenised rows on disk, drawn in passes, each in a random order of its own.

    Args:
        name: in messages.
        dataset: the examples.
        origin_of: where an example of the data set comes from, "file:line", if that is known.
    """

    name: str
    dataset: Dataset
    vary: Variation | None = None
    origin_of: Callable[[int], str] | None = None

    def draws(self, seed: int, part: int, place: Place) -> Iterator[int]:
        while True:
            number, first = divmod(place.rows, len(self.dataset))
            for row in np.random.default_rng((seed, part, number, 2)).permutation(len(self.dataset))[first:]:
                place.rows += 1
                yield int(row)

    def examples(self, draws: list[int]) -> Iterator[Example | BadRow]:
        columns = self.dataset[draws]
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def origin(self, draws: list[int], number: int) -> str:
        row = draws[number]
        return f"{self.name}, row {row} (counted from 0)" if self.origin_of is None else self.origin_of(row)


@dataclass
class StreamedPart:
    """Rows that are read and tokenised while they are trained on, in passes, each in the order of the files.

    Args:
        name: in messages.
        open: reads the rows of a pass, from a place on that it moves along.
        encode: makes examples of them.
    """

    name: str
    open: Callable[[Place], Iterator[Row | BadRow]]
    encode: Encoder
    vary: Variation | None = None

    def draws(self, seed: int, part: int, place: Place) -> Iterator[Row | BadRow]:
        while True:
            some = place.rows > 0
            for row in self.open(place):
                some = some or isinstance(row, Row)
                yield row
            if not some:
                raise ValueError(f"no usable row in {self.name}")
            place.begin_again()

    def examples(self, draws: list[Row | BadRow]) -> Iterator[Example | BadRow]:
        yield from (row for row in draws if isinstance(row, BadRow))
        yield from self.encode(row for row in draws if isinstance(row, Row))

    def origin(self, draws: list[Row | BadRow], number: int) -> str:
        if self.encode.documents:  # of which a text may hold several
            return self.name
        return origin_among((row for row in draws if isinstance(row, Row)), self.encode, number)


class Block(NamedTuple):
    """The examples of `block_rows` draws, and what was skipped among them."""

    number: int
    places: list[dict[str, Any]]
    """How far each part had been read before."""
    examples: list[Example]
    skipped: Skipped


class EndlessData(IterableDataset):
    """Examples of one part or of a mixture, without end.

    Iterated over, it gives the examples one by one; `TransductTrainer` makes batches of whole blocks.

    Args:
        parts: where rows come from.
        rates: share of the draws of each part (parts,), see `mixing.py`; None for a single part.
        seed: of all that is random.
        block_rows: rows that are shuffled and arranged in batches together.
        bad_rows: "refuse" raises the first bad row, "skip" counts them in `skipped`.
        one_stack: the model is an encoder or a decoder alone, whose labels lie on its inputs: only these count as tokens.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        rates: np.ndarray | None = None,
        seed: int = 0,
        block_rows: int = 16_384,
        bad_rows: str = "refuse",
        one_stack: bool = False,
    ):
        if (rates is None and len(parts) != 1) or (rates is not None and len(rates) != len(parts)):
            raise ValueError(f"{len(parts)} parts and rates={rates}: each part of a mixture needs its rate")
        self.parts, self.rates = list(parts), rates
        self.seed, self.block_rows, self.bad_rows, self.one_stack = seed, block_rows, bad_rows, one_stack
        self.skipped = Skipped()

    def __iter__(self) -> Iterator[Example]:
        watch = _EmptyBlocks(self)
        for block in self.blocks():
            self.skipped.update(block.skipped)
            watch.take(block, len(block.examples))
            yield from block.examples

    def blocks(self, first: int = 0, step: int = 1, start: Position | None = None) -> Iterator[Block]:
        """The blocks first, first + step, first + 2 step, ... without end. Of the others the rows are drawn and left.

        With a position to start at, nothing is drawn for the blocks before that.
        """
        start = start or Position()
        notes = [{} for _ in self.parts] if start.places is None else start.places
        places = [Place(**note) for note in notes]
        rows = self._rows(places)
        for number in count(start.block):
            before = [place.note() for place in places]
            draws = self._draw(rows, number)
            if number >= first and (number - first) % step == 0:
                yield self._block(number, before, draws)

    def _rows(self, places: list[Place]) -> list[Iterator[Any]]:
        """The draws of each part from its place on."""
        return [part.draws(self.seed, i, place) for i, (part, place) in enumerate(zip(self.parts, places, strict=True))]

    def _draw(self, rows: list[Iterator[Any]], number: int) -> list[list[Any]]:
        """The draws of a block, by parts."""
        if self.rates is None:
            sizes = [self.block_rows]
        else:
            drawn = drawn_parts(self.rates, self.block_rows, self.seed, number)
            sizes = np.bincount(drawn, minlength=len(self.parts)).tolist()
        return [list(islice(part, size)) for part, size in zip(rows, sizes, strict=True)]

    def _block(self, number: int, before: list[dict[str, Any]], draws: list[list[Any]]) -> Block:
        examples: list[Example] = []
        skipped = Skipped()
        for part, drawn in zip(self.parts, draws, strict=True):
            made = list(usable(part.examples(drawn), self.bad_rows, skipped)) if drawn else []
            if part.vary is not None:
                places = range(len(examples), len(examples) + len(made))
                made = part.vary(made, [example_generator(self.seed, number, place) for place in places])
            examples += made
        return Block(number, before, examples, skipped)

    def batches(
        self, block: Block, max_tokens: int | None, rows: int, packed: bool = False
    ) -> list[list[Example]] | list[list[list[Example]]]:
        """A block in batches of at most `max_tokens` tokens with their padding, or of `rows` examples, in random order.

        Args:
            packed: batches are of packed rows, which are lists of examples.

        Raises:
            BadRow: (a `ValueError`) for an example of more than `max_tokens`, whatever `bad_rows` says.
        """
        examples = block.examples
        if not examples:
            return []
        if max_tokens is None:
            order = np.random.default_rng((self.seed, block.number)).permutation(len(examples))
            return [[examples[i] for i in batch] for batch in np.split(order, range(rows, len(order), rows))]
        sampler = self._sampler(block, max_tokens, PackedBatchSampler if packed else TokenBudgetBatchSampler)
        if isinstance(sampler, PackedBatchSampler):
            return [[[examples[i] for i in row] for row in batch] for batch in sampler.rows(block.number)]
        return [[examples[i] for i in batch] for batch in sampler.batches(block.number)]

    def lengths(self, block: Block) -> np.ndarray:
        """Source and target tokens of the examples of a block (2, examples)."""
        sources = [len(example["input_ids"]) for example in block.examples]
        return np.array([sources, [0 if self.one_stack else len(example["labels"]) for example in block.examples]])

    def _sampler(self, block: Block, max_tokens: int, kind: Callable[..., EpochBatchSampler]) -> EpochBatchSampler:
        try:
            return kind(*self.lengths(block), max_tokens, seed=self.seed)
        except UnfitPair as unfit:
            raise BadRow(self._origin(block, unfit.number), f"the pair {unfit.complaint}", "long pair") from unfit

    def _origin(self, block: Block, number: int) -> str:
        """Where an example of a block comes from; its rows are drawn once more."""
        draws = self._draw(self._rows([Place(**note) for note in block.places]), block.number)
        for part, drawn in zip(self.parts, draws, strict=True):
            made = len(list(usable(part.examples(drawn), "skip", Skipped()))) if drawn else 0
            if number < made:
                return part.origin(drawn, number)
            number -= made
        raise AssertionError("a block has no other examples")


class _EmptyBlocks:
    """Notices that no row of the data can be used: they would be read over and over, and nothing ever come of it."""

    def __init__(self, data: EndlessData):
        self.data = data
        self._passes: list[int] | None = None  # over each part, before the first of the empty blocks that came last

    def take(self, block: Block, made: int) -> None:
        """Note how many examples or batches a block has.

        Raises:
            ValueError: if there were none while each part was read from end to end.
        """
        passes = [place["passes"] for place in block.places]
        if made:
            self._passes = None
        elif self._passes is None:
            self._passes = passes
        elif all(now > before + 1 for now, before in zip(passes, self._passes, strict=True)):
            raise ValueError(f"no usable row in {', '.join(part.name for part in self.data.parts)}: {self.data.skipped}")


class _CollatedBlocks(IterableDataset):
    """What a worker does: its blocks, each without examples and with its batches; a bad row that is refused comes as it is."""

    def __init__(self, data: EndlessData, batching: "Batching", start: Position):
        self.data, self.batching, self.start = data, batching, start

    def __iter__(self) -> Iterator[tuple[Block, list[Batch]] | BadRow]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        how = self.batching
        first, step = max(self.start.block, how.process) + how.processes * number, how.processes * workers
        try:
            for block in self.data.blocks(first, step, self.start):
                batches = self.data.batches(block, how.max_tokens, how.rows, how.packed)
                yield block._replace(examples=[]), [_as_arrays(how.collate(batch)) for batch in batches]
        except BadRow as bad:
            yield bad


@dataclass
class Batching:
    """How batches are made: by `max_tokens` or of `rows` examples; which of several processes; how many workers help."""

    collate: Callable[[list[Any]], Batch]
    """Of examples, or of rows of them if `packed`."""
    max_tokens: int | None = None
    rows: int = 8
    packed: bool = False
    process: int = 0
    processes: int = 1
    workers: int = 0
    blocks_ahead: int = 1
    """Blocks that each worker makes in advance."""


class EndlessBatches(IterableDataset):
    """The collated batches of one training process, in the same order for any number of workers."""

    def __init__(self, data: EndlessData, batching: Batching):
        self.data, self.batching = data, batching
        self._start, self._left_out = Position(), 0
        self._begun: deque[tuple[int, Position]] = deque()  # blocks, each with the number of batches before it

    def go_on(self, position: Position, left_out: int) -> None:
        """From the next iteration on, give so many empty batches, which the trainer leaves out, then those from a position on.

        Raises:
            ValueError: for a position in other parts.
        """
        if position.places is not None and len(position.places) != len(self.data.parts):
            raise ValueError(f"the position is one in {len(position.places)} parts, but the data have {len(self.data.parts)}")
        self._start, self._left_out = position, left_out

    def position(self, batches: int) -> Position:
        """Where to go on when so many batches, those that were left out included, have been trained on; not fewer than before."""
        while len(self._begun) > 1 and self._begun[1][0] <= batches:
            self._begun.popleft()
        before, start = self._begun[0]
        return replace(start, batch=batches - before)

    def __iter__(self) -> Iterator[Batch]:
        start, workers = self._start, self.batching.workers
        self.data.skipped = start.skipped.copy()
        loader = DataLoader(
            _CollatedBlocks(self.data, self.batching, start),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=self.batching.blocks_ahead if workers else None,
            collate_fn=_as_it_is,
        )
        yield from repeat({}, self._left_out)
        self._begun.clear()
        watch = _EmptyBlocks(self.data)
        number = self._left_out - start.batch
        for found in loader:
            if isinstance(found, BadRow):
                raise found
            block, batches = found
            self._begun.append((number, Position(block.number, block.places, skipped=self.data.skipped.copy())))
            self.data.skipped.update(block.skipped)
            watch.take(block, len(batches))
            for batch in batches:
                if number >= self._left_out:
                    yield _as_tensors(batch)
                number += 1


def endless_loader(trainer: Any) -> DataLoader:
    """The loader of a trainer whose `train_dataset` is an `EndlessData`.

    With `max_tokens_per_batch="auto"` the first block stands for all that follow.
    """
    args, data = trainer.args, trainer.train_dataset
    budget, packed = vars(args).get("max_tokens_per_batch"), bool(vars(args).get("packing"))
    if budget == "auto":
        budget = fitting_budget(trainer, data.lengths(next(data.blocks())))
    batching = Batching(
        packed_collator(trainer) if packed else trainer.data_collator,
        max_tokens=budget,
        rows=args.train_batch_size,
        packed=packed,
        process=args.process_index,
        processes=args.world_size,
        workers=args.dataloader_num_workers,
        blocks_ahead=args.dataloader_prefetch_factor or 1,
    )
    batches = EndlessBatches(data, batching)
    DataPosition.watch(trainer, batches)
    loader = DataLoader(batches, batch_size=None, pin_memory=args.dataloader_pin_memory)
    # each process has its own batches already: nothing is left to be shared among them
    return prepare_data_loader(loader, trainer.accelerator.device, num_processes=1, process_index=0, put_on_device=True,
                               dispatch_batches=False)  # fmt: skip


def _as_it_is(found: Any) -> Any:
    return found


def _as_arrays(batch: Batch) -> Batch:
    """Tensors as arrays: a worker sends those in one piece, where each tensor would take a shared file."""
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _as_tensors(batch: Batch) -> Batch:
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}

"""Measuring two implementations in one run: interleaved, on one thread, as a ratio, with the median of several rounds."""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging


@dataclass
class Comparison:
    """Seconds of both sides by round; a ratio above 1 means that ours is faster."""

    name: str
    theirs: list[float]
    ours: list[float]

    @property
    def ratios(self) -> list[float]:
        return [theirs / ours for theirs, ours in zip(self.theirs, self.ours, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def compare(name: str, theirs: Callable[[], object], ours: Callable[[], object], rounds: int) -> Comparison:
    """Time both in alternation, `rounds` times after one warm-up; which one goes first alternates too."""
    result = Comparison(name, [], [])
    sides = [(theirs, result.theirs), (ours, result.ours)]
    for side, _ in sides:
        side()
    for round_number in range(rounds):
        for side, seconds in sides if round_number % 2 else reversed(sides):
            gc.collect()
            start = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - start)
    return result


def by_turns(sides: Mapping[str, Callable[[], Any]], rounds: int, found: dict[str, Any] | None = None) -> dict[str, list[float]]:
    """Seconds of each side by round; another one begins each round.

    Args:
        found: what the sides returned when they were called before, which was their warm-up; None: they are warmed up here.
    """
    for name, side in sides.items():
        if name not in (found or {}):
            side()
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            start = time.perf_counter()
            sides[name]()
            measured[name].append(time.perf_counter() - start)
    return measured


def times_faster(measured: Mapping[str, list[float]], name: str, than: str) -> float:
    """How many times faster one side is than another: the median of rounds."""
    return statistics.median(slow / fast for slow, fast in zip(measured[than], measured[name], strict=True))


def show(title: str, comparisons: Sequence[Comparison]) -> None:
    """One row a comparison: median seconds of both, the median of the rounds' ratios, and the lowest and highest ratio."""
    rows = []
    for item in comparisons:
        seconds = (f"{statistics.median(side):.3f}" for side in (item.theirs, item.ours))
        rows.append([item.name, *seconds, f"{item.ratio:.2f}", f"{min(item.ratios):.2f} to {max(item.ratios):.2f}"])
    print_table(title, ["what", "transformers (s)", "transduct (s)", "ratio", "of rounds"], rows)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are figures."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=130).print(table)


def one_thread() -> None:
    """Both sides on one core: ratios on more depend on what else the machine does."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()


def arguments(description: str, shapes: Sequence[str], default_shapes: Sequence[str], rounds: int = 7) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=rounds, help="measurements of each side, after a warm-up")
    parser.add_argument(
        "--shapes", nargs="+", choices=shapes, default=list(default_shapes), metavar="SHAPE", help=", ".join(shapes)
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, its figures mean nothing")
    return parser


def positive(text: str) -> int:
    """A number for argparse."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return int(text)

"""Many texts as windows of bounded size, and a window as batches of texts of like length."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from transduct.training.checks import check_count

Item = TypeVar("Item")

WINDOW = 2048
"""Texts that are sorted together where the caller does not say how many."""
LEAST_LENGTH = 16
"""Tokens that a source counts as at least, so that a batch of very short ones does not have too many rows."""
MOST_CHARACTERS = 4_000_000
"""Characters at which a window is full, however few texts it has."""


def windows(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """Texts or tuples of texts in order, so many at a time, and fewer where they are long; no more than a window is held.

    Raises:
        ValueError: for windows of less than one item.
    """
    check_count(most, "window", 1)
    window: list[Item] = []
    characters = 0
    for item in items:
        window.append(item)
        characters += size(item)
        if len(window) >= most or characters >= MOST_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def size(item: Any) -> int:
    """Characters of a text, or of a tuple of texts; what is neither will be refused elsewhere."""
    if isinstance(item, tuple):
        return sum(map(size, item))
    return len(item) if hasattr(item, "__len__") else 0


def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Numbers of texts, the longest first, in batches of at most `max_tokens`: rows x longest, padding included.

    A text that alone is longer is a batch of its own.

    Raises:
        ValueError: for a budget of less than one token.
    """
    check_count(max_tokens, "max_tokens_per_batch", 1)
    batches: list[list[int]] = []
    longest = 0
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
            longest = max(lengths[number], LEAST_LENGTH)
    return batches

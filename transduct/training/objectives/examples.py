"""What all objectives share: the random numbers of an example, checks of their arguments, and random cuts."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

IGNORED = -100
"""The label of what is not predicted; the loss leaves it out."""

Example = dict[str, np.ndarray]


class Objective(Protocol):
    """Turns the token ids of a text (n,) into an example, `input_ids` (S,) and `labels` (T,)."""

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example: ...


def example_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random numbers of example `index` in `epoch`: the same in every process, whatever was drawn before.

    Raises:
        ValueError: for a negative number.
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("index", index)):
        if value < 0:
            raise ValueError(f"{name}={value} must not be negative")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(seed), int(epoch), int(index)])))


def token_ids(ids: Any) -> np.ndarray:
    """`ids` as int64 (n,), a new array.

    Raises:
        ValueError: for anything but one dimension of non-negative integers.
    """
    array = np.array(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"ids must be one dimension of integers, not shape {array.shape} of {array.dtype}: pass one text at a time"
        )
    if array.size and array.min() < 0:
        raise ValueError(f"ids holds {array.min()}: token ids are not negative; an objective takes the text, not labels")
    return array.astype(np.int64)


def without_end(ids: np.ndarray, eos_token_id: int) -> np.ndarray:
    """The text without the end token that a tokenizer has put behind it."""
    return ids[:-1] if ids.size and ids[-1] == eos_token_id else ids


def check_share(name: str, value: float) -> None:
    """Raises ValueError unless 0 <= value <= 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} must be a share between 0 and 1")


def check_token(name: str, value: int) -> None:
    """Raises ValueError unless `value` can be a token id."""
    if not isinstance(value, (int, np.integer)) or value < 0:
        raise ValueError(f"{name}={value!r} must be a token id, an integer that is not negative")


def random_composition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`total` as a sum of `parts` positive integers (parts,), each such composition equally likely."""
    assert 1 <= parts <= total, (total, parts)
    cuts = rng.choice(total - 1, parts - 1, replace=False, shuffle=False) + 1  # a set of places between the units
    return np.diff(np.sort(cuts), prepend=0, append=total)

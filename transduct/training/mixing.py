"""How often each part of a mixture is drawn: by its size, by a temperature (Raffel et al. 2020, section 3.5.2), by weights."""

from collections.abc import Sequence

import numpy as np


def mixing_rates(sizes: Sequence[int], temperature: float = 1.0, cap: int | None = None) -> np.ndarray:
    """The share of each part (parts,), summing to 1: in proportion to min(n, K)^(1/T) (T5, section 3.5.2).

    Args:
        sizes: number of rows n of each part.
        temperature: T; 1 is T5's examples-proportional mixing, a large one draws all parts equally often.
        cap: K, an artificial limit of the sizes, so that a huge part does not crowd out the others; None: no limit.

    Raises:
        ValueError: for a part without rows, and for a temperature or cap that is not positive.
    """
    counts = np.asarray(sizes, dtype=np.float64)
    if counts.size == 0 or counts.min() < 1:
        raise ValueError(f"sizes={list(sizes)}: a mixture needs parts, each with one row or more")
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be positive")
    if cap is not None and cap < 1:
        raise ValueError(f"cap={cap} must be at least 1")
    limited = counts if cap is None else np.minimum(counts, cap)
    scaled = np.exp((np.log(limited) - np.log(limited.max())) / temperature)  # no overflow at small temperatures
    return scaled / scaled.sum()


def weighted_rates(weights: Sequence[float]) -> np.ndarray:
    """The share of each part (parts,) for given weights.

    Raises:
        ValueError: for no weights, and for weights that are not positive and finite.
    """
    given = np.asarray(weights, dtype=np.float64)
    if given.size == 0 or not np.isfinite(given).all() or given.min() <= 0:
        raise ValueError(f"weights={list(weights)} must be positive numbers, one for each part")
    return given / given.sum()


def drawn_parts(rates: np.ndarray, rows: int, seed: int, block: int) -> np.ndarray:
    """Which part each of the `rows` draws of a block is from (rows,), independent draws that depend on (seed, block) alone."""
    return np.random.default_rng((seed, block, 1)).choice(len(rates), size=rows, p=rates)

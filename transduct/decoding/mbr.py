"""Minimum Bayes risk: of several candidates, the one that the others agree with most (arXiv 2005.10283).

    minimum_bayes_risk(["a cat sat", "a cat sits", "the dog"], utility="chrf")  # "a cat sits"

Each candidate's expected utility is its mean similarity to all candidates as pseudo-references; samples of the model weigh alike,
hypotheses of a search by their probabilities, if given.
"""

from collections.abc import Callable, Sequence

import numpy as np

Utility = Callable[[str, str], float]
"""Similarity of a hypothesis to a reference; higher is better."""


def utility_named(name: str) -> Utility:
    """sacreBLEU's sentence-level chrF or BLEU, from 0 to 100.

    Raises:
        ValueError: for another name.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if name not in ("chrf", "bleu"):
        raise ValueError(f"utility={name!r} must be 'chrf', 'bleu' or a function of hypothesis and reference")
    metric = CHRF() if name == "chrf" else BLEU(effective_order=True)
    return lambda hypothesis, reference: metric.sentence_score(hypothesis, [reference]).score


def expected_utilities(
    candidates: Sequence[str], utility: str | Utility = "chrf", weights: Sequence[float] | None = None
) -> np.ndarray:
    """The expected utility (candidates) of each candidate; equal ones are compared once.

    Args:
        utility: "chrf", "bleu", or a function of hypothesis and reference.
        weights: of the candidates as references, in any unit; None: all alike.

    Raises:
        ValueError: for no candidates, or weights of another number, below 0 or all 0.
    """
    if isinstance(candidates, str) or not len(candidates):
        raise ValueError(f"candidates={candidates!r} must be a list of texts, at least one")
    given = np.ones(len(candidates)) if weights is None else np.asarray(weights, dtype=float)
    if given.shape != (len(candidates),) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise ValueError(f"weights={weights!r} must hold a number >= 0 for each of {len(candidates)} candidates, not all 0")
    similarity = utility_named(utility) if isinstance(utility, str) else utility
    places: dict[str, int] = {}
    numbers = [places.setdefault(text, len(places)) for text in candidates]
    mass = np.bincount(numbers, weights=given) / given.sum()  # (texts)
    table = np.array([[similarity(hypothesis, reference) for reference in places] for hypothesis in places])
    return (table @ mass)[numbers]


def minimum_bayes_risk(candidates: Sequence[str], utility: str | Utility = "chrf", weights: Sequence[float] | None = None) -> str:
    """The candidate of the highest expected utility; of equals, the first."""
    return candidates[int(expected_utilities(candidates, utility, weights).argmax())]

"""How much a recipe's data are, without loading them: tokens of a source and a target, pairs, and whether there are epochs."""

from collections.abc import Sequence
from pathlib import Path

from pyarrow.parquet import read_metadata

from transduct.training.objectives.spans import span_corruption_lengths
from transduct.training.objectives.ul2 import DENOISERS
from transduct.training.reading import files
from transduct.training.recipe import ObjectiveSection, Recipe, SplitSource

ASSUMED_LENGTH = 128
"""Tokens of a source and of a target where neither the recipe nor the caller says."""
DENSITY, MEAN_SPAN = 0.15, 3.0
"""T5's span corruption (Raffel et al., section 3.1.4), and BERT's share of masked tokens."""


def mean_lengths(
    recipe: Recipe, given_lengths: tuple[int | None, int | None], max_positions: int, notes: list[str]
) -> tuple[int, int]:
    """Tokens of a source and of a target: as given, as the objective makes them, the longest allowed, or an assumption.

    What is not given and not made goes into `notes`.
    """
    made = None if recipe.objective.of_pairs else objective_lengths(recipe.objective)
    found = []
    for number, side in enumerate(("source", "target")):
        given, longest = given_lengths[number], getattr(recipe.data, f"max_{side}_tokens")
        if given is None and made is None:
            reason = f"data.max_{side}_tokens, the longest" if longest else "an assumption"
            given = longest or min(ASSUMED_LENGTH, max_positions)
            notes.append(f"a {side} has {given} tokens: {reason}; --{side}-length gives the mean")
        found.append(given or (made or (0, 0))[number])
    return found[0], found[1]


def objective_lengths(objective: ObjectiveSection) -> tuple[int, int]:
    """Mean tokens of an input and of the labels that an objective makes of full texts."""
    length = objective.inputs_length
    if objective.name == "span_corruption":
        density, mean_span = objective.density or DENSITY, objective.mean_span or MEAN_SPAN
        return length, span_corruption_lengths(length, density, mean_span)[1]
    if objective.name == "ul2":
        return _ul2_lengths(length, objective.weights)
    if objective.name == "prefix_lm" and objective.form != "decoder":
        written = round(length * (objective.target_share or 0.5))
        return max(1, length - written), max(1, written)
    if objective.name == "masked_lm":
        return length, max(1, round(length * (objective.share or DENSITY)))  # the head sees the hidden tokens alone
    return length, length


def _ul2_lengths(length: int, weights: list[float] | None) -> tuple[int, int]:
    """A text that fits an input of `length` with each of the denoisers, after each of them, on average."""
    fits = [
        span_corruption_lengths(length - 1, density, span)[0] if span else int((length - 2) / (1 - density))
        for _, density, span in DENOISERS
    ]
    text, pairs = min(fits), []
    for _, density, span in DENOISERS:
        hidden = round(text * density)
        spans = max(1, round(hidden / span)) if span else 0
        pairs.append((text - hidden + spans + 2, hidden + spans + 1))  # mode token and end token; end token
    shares = weights or [1.0] * len(pairs)
    source, target = (sum(share * pair[side] for share, pair in zip(shares, pairs, strict=True)) / sum(shares) for side in (0, 1))
    return round(source), round(target)


def count_pairs(parts: Sequence[SplitSource], folder: Path) -> int | None:
    """Pairs of the training data by the lines of their files, or None where only loading them would tell."""
    counts = [_count_lines(part, folder) for part in parts]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count_lines(split: SplitSource, folder: Path) -> int | None:
    named = split.json or split.source or split.csv or split.tsv or split.parquet
    paths = [] if named is None else [path for path in files(named, folder) if path.is_file()]
    if not paths or any(path.suffix == ".gz" for path in paths):
        return None
    if split.parquet is not None:
        count = sum(read_metadata(path).num_rows for path in paths)
    else:
        count = sum(_lines(path) - int(named in (split.csv, split.tsv)) for path in paths)  # the first of these is a header
    return min(count, split.limit) if split.limit is not None else count


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())

"""Phrases of a text that is translated in pieces: each is put where it costs least.

Nothing says which piece a phrase belongs to. So each piece is searched without phrases and with each one alone, and a phrase goes
to the piece whose score it lowers least. A piece that gets several is searched once more, with all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A text in pieces, and what they must contain together.

    Args:
        pieces: in order; each has `place`, the number of its line first, `phrases`, and `found`, its hypotheses, best first.
        phrases: the forms of each, as token ids.
    """

    pieces: Sequence[Any]
    phrases: Sequence[Any]


def place(spreads: Sequence[Spread], search: Callable[[Sequence[Any], bool], None], ordered: bool) -> None:
    """Give each phrase of each text to one of its pieces, which have been searched without any, and search those anew.

    Args:
        search: finds the hypotheses of pieces; where it is told so, those stay without any that cannot have their phrases.
        ordered: phrases must come in their order, in the text as a whole.

    Raises:
        ValueError: for a phrase that fits into no piece, naming the line.
    """
    alone = [
        [[replace(piece, phrases=[phrase], found=[]) for piece in each.pieces] for phrase in each.phrases] for each in spreads
    ]
    search([trial for trials in alone for row in trials for trial in row], True)
    again = []
    for spread, trials in zip(spreads, alone, strict=True):
        chosen = cheapest(_losses(spread, trials), ordered)
        if chosen is None:
            raise ValueError(
                f"line {spread.pieces[0].place[0]} is translated in {len(spread.pieces)} pieces, and its phrases do not fit into "
                "them: allow longer outputs, ask for less, or change the order"
            )
        for number, piece in enumerate(spread.pieces):
            own = [index for index, place in enumerate(chosen) if place == number]
            if own:
                piece.phrases, piece.found = [spread.phrases[index] for index in own], trials[own[0]][number].found
            if len(own) > 1:
                piece.found = []
                again.append(piece)
    search(again, False)


def _losses(spread: Spread, trials: Sequence[Sequence[Any]]) -> list[list[float]]:
    """What each phrase costs in each piece (phrases, pieces); infinite where it does not fit."""
    plain = [piece.found[0].score for piece in spread.pieces]
    return [
        [score - trial.found[0].score if trial.found else inf for score, trial in zip(plain, row, strict=True)] for row in trials
    ]


def cheapest(losses: Sequence[Sequence[float]], ordered: bool) -> list[int] | None:
    """The piece for each phrase, so that they cost least in all; of equals the first.

    Args:
        losses: what each phrase costs in each piece (phrases, pieces).
        ordered: no phrase may go to a piece before that of the phrase before it.

    Returns:
        None, if there is no way at a finite cost.
    """
    pieces = range(len(losses[0]))
    ways: list[tuple[float, list[int]]] = [(0.0, [])] * len(pieces)  # for each piece, the best way whose last phrase is there
    for row in losses:
        before = [min(ways[: piece + 1] if ordered else ways, key=_cost) for piece in pieces]
        ways = [(cost + row[piece], [*way, piece]) for piece, (cost, way) in zip(pieces, before, strict=True)]
    cost, way = min(ways, key=_cost)
    return way if cost < inf else None


def _cost(way: tuple[float, list[int]]) -> float:
    return way[0]

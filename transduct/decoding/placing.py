"""Phrases of a text that is translated in pieces: each is put where it costs least.

Nothing says which piece a phrase belongs to. So each piece is searched without phrases and with each one alone, and a phrase goes
to the piece whose score it lowers least. A piece that gets several is searched once more, with all of them; if they do not fit
into it together, the one goes elsewhere that costs least there.
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
        ValueError: for phrases that were found no place, naming the line.
    """
    alone = [
        [[replace(piece, phrases=[phrase], found=[]) for piece in each.pieces] for phrase in each.phrases] for each in spreads
    ]
    search([trial for trials in alone for row in trials for trial in row], True)
    waiting = [_Placing(*each, ordered) for each in zip(spreads, alone, strict=True)]
    while waiting:
        search([spread.pieces[number] for spread in waiting for number in spread.assign()], True)
        waiting = [spread for spread in waiting if not spread.fits()]


class _Placing:
    """The way of a text's phrases to its pieces.

    Args:
        spread: whose pieces have been searched without phrases.
        trials: each piece with each phrase alone (phrases, pieces), searched.
        ordered: as of `place`.
    """

    def __init__(self, spread: Spread, trials: Sequence[Sequence[Any]], ordered: bool):
        self.pieces, self.phrases, self.trials, self.ordered = spread.pieces, spread.phrases, trials, ordered
        self.free = [piece.found for piece in spread.pieces]
        self.losses = _losses(spread, trials)
        self.shared: dict[int, list[int]] = {}
        """The pieces that have several phrases, and those."""

    def assign(self) -> list[int]:
        """Give the phrases to the pieces where they cost least; returns those that got several, to be searched.

        Raises:
            ValueError: naming the line, if no way is left.
        """
        chosen = cheapest(self.losses, self.ordered)
        if chosen is None:
            raise ValueError(
                f"line {self.pieces[0].place[0]} is translated in {len(self.pieces)} pieces, and its phrases do not fit into "
                "them: allow longer outputs, ask for less, or change the order"
            )
        self.shared = {}
        for number, piece in enumerate(self.pieces):
            own = [index for index, place in enumerate(chosen) if place == number]
            piece.phrases = [self.phrases[index] for index in own]
            piece.found = self.trials[own[0]][number].found if own else self.free[number]
            if len(own) > 1:
                piece.found, self.shared[number] = [], own
        return list(self.shared)

    def fits(self) -> bool:
        """Whether every piece can have all that it got; else one phrase of each that cannot may not go there again."""
        full = [number for number in self.shared if not self.pieces[number].found]
        for number in full:
            self._take_away(number)
        return not full

    def _take_away(self, number: int) -> None:
        """Bar the piece from that of its phrases which costs least elsewhere."""
        ways = []
        for index in self.shared[number]:
            losses = [list(row) for row in self.losses]
            losses[index][number] = inf
            way = cheapest(losses, self.ordered)
            ways.append((inf if way is None else _total(losses, way), losses))
        self.losses = min(ways, key=lambda each: each[0])[1]


def _total(losses: Sequence[Sequence[float]], way: Sequence[int]) -> float:
    return sum(row[piece] for row, piece in zip(losses, way, strict=True))


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

"""What the page shows after each thing that a visitor does: plain values in, markup out, and every error a message."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transduct.page.alignment_picture import alignment_picture
from transduct.page.answers import Answer, Demonstration
from transduct.page.attention_picture import attention_picture
from transduct.page.drawing import alert
from transduct.page.settings import Settings
from transduct.page.tables import found, kept
from transduct.page.tree_picture import tree_picture

ALL_HEADS = -1
"""The choice of no single head."""


@dataclass(frozen=True)
class View:
    """The results that are on the page.

    Args:
        answer: what was found; None: nothing is shown but the message.
        message: markup of what went wrong; "": nothing did.
        table, attention, alignment, tree, kept: markup.
    """

    answer: Answer | None = None
    message: str = ""
    table: str = ""
    attention: str = ""
    alignment: str = ""
    tree: str = ""
    kept: str = ""


def run(page: Demonstration, text: str, settings: dict[str, Any], layer: int, head: int) -> View:
    """Search, and show the best hypothesis and the last step.

    Args:
        settings: fields of `Settings`; layer, head: of the attention, see `look`.
    """

    def view() -> View:
        answer = page.answer(text, Settings(**settings))
        attention, alignment = _looked(page, answer, 0, layer, head)
        tree, beams = _walked(page, answer, len(answer.tree.steps), 0)
        return View(answer, "", found(answer, 0), attention, alignment, tree, beams)

    return _told(view, lambda message: View(message=message))


def choose(page: Demonstration, answer: Answer | None, rank: int, step: int, layer: int, head: int) -> View:
    """Show another hypothesis, by its rank, counted from 0."""

    def view() -> View:
        shown = _there(answer)
        attention, alignment = _looked(page, shown, rank, layer, head)
        tree, beams = _walked(page, shown, step, rank)
        return View(shown, "", found(shown, rank), attention, alignment, tree, beams)

    return _told(view, lambda message: View(message=message))


def look(page: Demonstration, answer: Answer | None, rank: int, layer: int, head: int) -> tuple[str, str]:
    """The heat map and the alignment by another layer or head; `ALL_HEADS`: the mean of all."""
    return _told(lambda: _looked(page, _there(answer), rank, layer, head), lambda message: (message, ""))


def walk(page: Demonstration, answer: Answer | None, step: int, rank: int) -> tuple[str, str]:
    """The tree up to another step, counted from 1, and what was kept there."""
    return _told(lambda: _walked(page, _there(answer), step, rank), lambda message: (message, ""))


def _there(answer: Answer | None) -> Answer:
    if answer is None:
        raise ValueError("the results of this page are no longer kept: run the search again")
    return answer


def _looked(page: Demonstration, answer: Answer, rank: int, layer: int, head: int) -> tuple[str, str]:
    seen = page.look(answer, rank)
    weights = seen.mean(layer, None if head == ALL_HEADS else [head])  # (T, S)
    return attention_picture(weights, seen.source, seen.target), alignment_picture(weights, seen.source, seen.target)


def _walked(page: Demonstration, answer: Answer, step: int, rank: int) -> tuple[str, str]:
    tree = answer.tree
    last = min(max(int(step), 1), len(tree.steps)) - 1
    paths = [tree.places(each.token_ids) for each in answer.hypotheses]
    ranks: dict[tuple[int, int], int] = {}
    for number, path in enumerate(paths):
        ranks.setdefault((len(path) - 1, path[-1]), number)  # the same sample may have been drawn twice
    return tree_picture(tree, last, paths[rank], ranks), kept(answer, last, page.texts)


def _told(show: Callable[[], Any], instead: Callable[[str], Any]) -> Any:
    """What `show` gives, or a message in its place. A fault of the program is told on standard error, too."""
    try:
        return show()
    except ValueError as error:
        return instead(alert(str(error)))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        print(f"transduct demo: a fault of the program: {' '.join(said.split())}", file=sys.stderr, flush=True)
        return instead(alert(f"a fault of the program: {said}"))

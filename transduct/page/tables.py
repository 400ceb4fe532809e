"""What a search found, and what it held at a step, as HTML tables."""

from collections.abc import Callable, Sequence

from transduct.page.answers import Answer
from transduct.page.drawing import element, note, words

Texts = Callable[[Sequence[Sequence[int]]], list[str]]
"""The texts of target tokens."""


def found(answer: Answer, chosen: int) -> str:
    """The hypotheses with their scores, the chosen one marked."""
    rows = [
        _row(
            "chosen" if place == chosen else None,
            f"{place + 1}",
            each.text,
            f"{each.score:.4f}",
            f"{each.log_prob:.4f}",
            len(each.token_ids),
        )
        for place, each in enumerate(answer.hypotheses)
    ]
    return _table(("#", "output", "score", "log-probability", "tokens"), rows) + note(explained(answer))


def explained(answer: Answer) -> str:
    """How scores come about."""
    settings = answer.settings
    kind = {
        "hf": "log-probability / tokens^{0}",
        "gnmt": "log-probability / ((5 + tokens) / 6)^{0}",
        "sockeye": "log-probability / tokens^{0}",
        "none": "log-probability",
    }[settings.normalization]
    drawn = (
        f"{len(answer.hypotheses)} samples, drawn with seed {settings.seed}, in the order of their scores. "
        if settings.samples
        else ""
    )
    return f"{drawn}Score = {kind.format(f'{settings.length_penalty:g}')}; natural logarithms."


def kept(answer: Answer, step: int, texts: Texts) -> str:
    """The hypotheses that were held after a step, counted from 0."""
    tree = answer.tree
    nodes = tree.steps[step].nodes
    beginnings = texts([[node.token for node in tree.path(step, place)] for place in range(len(nodes))])
    running = len(tree.steps[step].running)
    rows = [
        _row(None, f"{place + 1}" if place < running else "✓", text, f"{node.log_prob:.4f}")
        for place, (text, node) in enumerate(zip(beginnings, nodes, strict=True))
    ]
    left = "were left when the search ended" if step == len(tree.steps) - 1 else "go on"
    said = f"Step {step + 1} of {len(tree.steps)}: {running} {left}, {len(nodes) - running} ended here (✓)."
    return note(said) + _table(("#", "so far", "log-probability"), rows)


def _row(kind: str | None, number: str, text: str, *figures: object) -> str:
    cells = [element("td", words(number), class_="number"), element("td", words(text), class_="text", dir="auto")]
    cells += [element("td", words(str(figure)), class_="number") for figure in figures]
    return element("tr", *cells, class_=kind)


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    names = [element("th", words(name), class_=None if place == 1 else "number") for place, name in enumerate(head)]
    return element("table", element("thead", element("tr", *names)), element("tbody", *rows), class_="found")

"""The tree of a search up to a step: a column for each step, a row for each hypothesis that it kept, best first."""

from collections.abc import Mapping, Sequence

from transduct.page.drawing import element, label, note, picture, small, title, width_of
from transduct.page.search_tree import Node, SearchTree

ROW, BOX = 46, 34
"""Pixels from one hypothesis to the next, and of the box of one."""
EDGE = 34
"""Pixels between two steps."""
TOP, LEFT = 26, 26
MOST_STEPS = 24
"""Steps that are drawn, the last of them."""


def tree_picture(tree: SearchTree, last: int, chosen: Sequence[int], ranks: Mapping[tuple[int, int], int]) -> str:
    """An image of the steps up to `last`, counted from 0.

    Args:
        chosen: the places of the hypothesis that stands out, one for each of its steps.
        ranks: (step, place) of what the search found -> its rank, counted from 0.
    """
    plan = _Plan(tree, last)
    survivors = tree.survivors(last)
    content = [
        element("rect", x=plan.x(last) - 8, y=0, width=plan.box + 16, height=plan.height, fill="var(--rule)", opacity=0.45)
    ]
    nodes: list[str] = []
    for step in range(plan.first, last + 1):
        content.append(small(str(step + 1), plan.x(step) + plan.box / 2, 15))
        for place, node in enumerate(tree.steps[step].nodes):
            colour = _colour(tree, step, place, chosen, survivors[step])
            content.append(_edge(plan, step, place, node, colour))
            nodes.append(_box(plan, step, place, node, colour, ranks.get((step, place))))
    drawn = picture(plan.width, plan.height, [*content, *nodes], f"beam tree up to step {last + 1}", latest=True)
    return drawn + (note(f"Steps {plan.first + 1} to {last + 1} are drawn.") if plan.first else "")


class _Plan:
    """Where things are: steps from `first` to `last` side by side, those that end below those that go on."""

    def __init__(self, tree: SearchTree, last: int):
        self.first = max(0, last + 1 - MOST_STEPS)
        shown = tree.steps[self.first : last + 1]
        self.tree = tree
        self.box = max(64.0, max(width_of(node.label) for step in shown for node in step.nodes) + 12)
        self.running = max(len(step.running) for step in shown)
        rows = self.running + max(len(step.ended) for step in shown)
        self.width = LEFT + len(shown) * (self.box + EDGE) + 10
        self.height = TOP + rows * ROW + 6

    def x(self, step: int) -> float:
        """The left side of a step's boxes."""
        return LEFT + EDGE + (step - self.first) * (self.box + EDGE)

    def y(self, step: int, place: int) -> float:
        """The middle of a box."""
        running = len(self.tree.steps[step].running)
        row = place if place < running else self.running + place - running
        return TOP + ROW * (row + 0.5)


def _colour(tree: SearchTree, step: int, place: int, chosen: Sequence[int], survivors: set[int]) -> str:
    """By what became of a hypothesis: it is the chosen one, it ended, it was dropped, or it goes on."""
    if step < len(chosen) and chosen[step] == place:
        return "best"
    if place >= len(tree.steps[step].running):
        return "ended"
    return "ink" if place in survivors else "faint"


def _edge(plan: _Plan, step: int, place: int, node: Node, colour: str) -> str:
    """The line from what a hypothesis continues."""
    x, y = plan.x(step), plan.y(step, place)
    if step == plan.first:
        start, before = float(LEFT), plan.y(step, 0) if step == 0 else y
    else:
        assert node.parent is not None
        start, before = plan.x(step - 1) + plan.box, plan.y(step - 1, node.parent)
    middle = (start + x) / 2
    path = f"M{start:.1f},{before:.1f} C{middle:.1f},{before:.1f} {middle:.1f},{y:.1f} {x:.1f},{y:.1f}"
    return element("path", d=path, fill="none", stroke=f"var(--{colour})", stroke_width=2.4 if colour == "best" else 1.2)


def _box(plan: _Plan, step: int, place: int, node: Node, colour: str, rank: int | None) -> str:
    """A token and the log-probability of the hypothesis that ends with it."""
    x, y = plan.x(step), plan.y(step, place)
    said = f"step {step + 1}: {node.label}, log-probability {node.log_prob:.4f}"
    said += "" if rank is None else f", result {rank + 1}"
    middle = x + plan.box / 2
    return element(
        "g",
        title(said),
        element(
            "rect",
            x=x,
            y=y - BOX / 2,
            width=plan.box,
            height=BOX,
            rx=6,
            fill="var(--paper)",
            stroke=f"var(--{colour})",
            stroke_width=2.2 if colour in ("best", "ended") else 1.2,
        ),
        label(node.label, middle, y - 1, class_=colour),
        small(f"{node.log_prob:.2f}" + ("" if rank is None else f"  #{rank + 1}"), middle, y + 12),
    )

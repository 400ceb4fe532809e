"""What a search kept at each step: the tree that the page lets its visitor walk through.

Of a beam search it is what an observer sees (see `SearchStep`), of samples their common beginnings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transduct.decoding.beam import SearchStep

Labels = Callable[[Sequence[int]], list[str]]
"""Labels of target tokens."""


@dataclass(frozen=True)
class Node:
    """A hypothesis after a step.

    Args:
        token: its last; label: of that token.
        parent: the place of the hypothesis that it continues among the `running` ones of the step before; None at the first.
        log_prob: summed over its tokens.
    """

    token: int
    label: str
    parent: int | None
    log_prob: float


@dataclass(frozen=True)
class Step:
    """The hypotheses after a step, best first: those that go on, and those that have just ended."""

    running: tuple[Node, ...]
    ended: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.running, *self.ended)


@dataclass(frozen=True)
class SearchTree:
    """All steps of the search of one source."""

    steps: tuple[Step, ...]

    def path(self, step: int, place: int) -> list[Node]:
        """The nodes from the first step to a node of `nodes` of step `step`, both counted from 0."""
        node: Node = self.steps[step].nodes[place]
        path = [node]
        for earlier in reversed(self.steps[:step]):
            assert node.parent is not None
            node = earlier.running[node.parent]
            path.append(node)
        return path[::-1]

    def places(self, tokens: Sequence[int]) -> list[int]:
        """Where the hypothesis of these tokens stands among `nodes` of each step; as far as the tree has it."""
        places: list[int] = []
        for number, token in enumerate(tokens[: len(self.steps)]):
            before = places[-1] if places else None
            nodes = enumerate(self.steps[number].nodes)
            found = [place for place, node in nodes if node.token == token and node.parent == before]
            if not found:
                break
            places += found
        return places

    def survivors(self, last: int) -> list[set[int]]:
        """For each step up to `last` the places among its `nodes` of those from which a hypothesis after `last` descends."""
        alive: list[set[int]] = [set(range(len(self.steps[last].nodes)))]
        for number in range(last, 0, -1):
            nodes = self.steps[number].nodes
            alive.append({parent for place in alive[-1] if (parent := nodes[place].parent) is not None})
        return alive[::-1]


class Recorder:
    """An observer of the beam search of one source: call `tree` when it is done."""

    def __init__(self, labels: Labels):
        self.labels = labels
        self.steps: list[Step] = []

    def __call__(self, step: SearchStep) -> None:
        first = not self.steps
        scores, origins, tokens, ended = (part[0].tolist() for part in (step.scores, step.origins, step.tokens, step.ended))
        nodes = [
            Node(token, label, None if first else origin, score)
            for token, label, origin, score in zip(tokens, self.labels(tokens), origins, scores, strict=True)
        ]
        running = tuple(nodes[place] for place in step.kept[0].tolist() if place >= 0)
        self.steps.append(Step(running, tuple(node for node, end in zip(nodes, ended, strict=True) if end)))

    def tree(self) -> SearchTree:
        return SearchTree(tuple(self.steps))


def tree_of_samples(samples: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]], labels: Labels) -> SearchTree:
    """The tree of samples; those that begin alike share nodes.

    Args:
        samples: token ids of each; log_probs: of each token of each.
    """
    steps: list[Step] = []
    before: dict[tuple[int, ...], int] = {}  # the running beginnings of the last step -> their places
    for length in range(1, max(map(len, samples), default=0) + 1):
        running: dict[tuple[int, ...], Node] = {}
        ended: dict[tuple[int, ...], Node] = {}
        for sample, each in zip(samples, log_probs, strict=True):
            if len(sample) >= length:
                beginning = tuple(sample[:length])
                (label,) = labels([beginning[-1]])
                parent = before[beginning[:-1]] if length > 1 else None
                node = Node(beginning[-1], label, parent, sum(each[:length]))
                (ended if len(sample) == length else running)[beginning] = node
        before = {beginning: place for place, beginning in enumerate(running)}
        steps.append(Step(tuple(running.values()), tuple(ended.values())))
    return SearchTree(tuple(steps))

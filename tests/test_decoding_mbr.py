"""Minimum Bayes risk: as a double loop over candidates and references."""

import random

import pytest
from sacrebleu.metrics import BLEU, CHRF

from transduct.decoding import expected_utilities, minimum_bayes_risk

WORDS = ["the", "a", "cat", "dog", "sat", "sits", "on", "under", "mat", "red"]


def texts(count: int) -> list[str]:
    return [" ".join(random.choices(WORDS, k=random.randint(2, 6))) for _ in range(count)]


@pytest.mark.parametrize("name", ["chrf", "bleu"])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_a_double_loop(name, weighted):
    metric = CHRF() if name == "chrf" else BLEU(effective_order=True)
    candidates = texts(6)
    candidates += candidates[:2]  # some are drawn twice, and weigh twice
    weights = [random.random() for _ in candidates] if weighted else [1.0] * len(candidates)
    want = [
        sum(weight * metric.sentence_score(one, [other]).score for other, weight in zip(candidates, weights, strict=True))
        / sum(weights)
        for one in candidates
    ]
    got = expected_utilities(candidates, name, weights if weighted else None)
    assert got.tolist() == pytest.approx(want)
    assert minimum_bayes_risk(candidates, name, weights) == candidates[max(range(len(want)), key=want.__getitem__)]


def test_the_one_that_others_agree_with():
    assert minimum_bayes_risk(["a cat sat", "a cat sits", "the dog"]) in ("a cat sat", "a cat sits")
    assert minimum_bayes_risk(["a cat sat", "the dog", "the dog"]) == "the dog"


def test_equal_ones_are_compared_once():
    compared = []
    utility = lambda one, other: float(compared.append((one, other)) or one == other)  # noqa: E731
    assert expected_utilities(["a", "b", "a", "a"], utility).tolist() == [0.75, 0.25, 0.75, 0.75]
    assert sorted(compared) == [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]


def test_of_equals_the_first():
    same = lambda one, other: 1.0  # noqa: E731
    assert minimum_bayes_risk(["b", "a", "c"], same) == "b"
    assert minimum_bayes_risk(["b", "a", "c"], lambda one, other: float(one == other), [1, 2, 2]) == "a"


def test_weights_in_any_unit():
    candidates = texts(4)
    one, other = (expected_utilities(candidates, "chrf", [unit * part for part in (1, 2, 3, 0)]) for unit in (1, 10))
    assert one.tolist() == pytest.approx(other.tolist())


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        ([], {}, r"candidates=\[\] must be a list of texts, at least one"),
        ("text", {}, "candidates='text' must be a list of texts"),
        (["a"], {"utility": "ter"}, "utility='ter' must be 'chrf', 'bleu' or a function"),
        (["a", "b"], {"weights": [1]}, "must hold a number >= 0 for each of 2 candidates"),
        (["a", "b"], {"weights": [1, -1]}, "must hold a number >= 0"),
        (["a", "b"], {"weights": [0, 0]}, "not all 0"),
        (["a", "b"], {"weights": [1, float("nan")]}, "must hold a number >= 0"),
    ],
)
def test_refusals(candidates, options, message):
    with pytest.raises(ValueError, match=message):
        minimum_bayes_risk(candidates, **options)

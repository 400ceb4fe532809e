"""The unigram trainer against brute force, and its determinism."""

import math
from itertools import combinations, pairwise

import pytest
import torch

from transduct.unigram import _blocks, _expected_counts, _log_probability, _with_none, train_unigram

WORDS = {"▁the": 40, "▁then": 5, "▁cat": 30, "▁cats": 8, "▁mat": 9, "▁a": 50}


def segmentations(word: str):
    for cuts in range(len(word)):
        for places in combinations(range(1, len(word)), cuts):
            bounds = [0, *places, len(word)]
            yield [word[a:b] for a, b in pairwise(bounds)]


def test_probability_and_expected_counts_are_sums_over_all_segmentations():
    pieces = ["a", "b", "c", "ab", "bc", "abc"]
    scores = torch.tensor([0.1, 0.2, 0.15, 0.25, 0.2, 0.1], dtype=torch.float64).log()
    ((_, lattice),) = _blocks(["abcab"], pieces)
    known = [s for s in segmentations("abcab") if set(s) <= set(pieces)]
    weight = [math.exp(sum(float(scores[pieces.index(p)]) for p in s)) for s in known]
    assert len(known) > 3
    assert float(_log_probability(_with_none(scores), lattice)) == pytest.approx(math.log(sum(weight)), rel=1e-12)
    expected = [sum(w * s.count(p) for w, s in zip(weight, known, strict=True)) / sum(weight) for p in pieces]
    counts = _expected_counts(scores, [lattice], [torch.tensor([3.0], dtype=torch.float64)])
    assert counts.tolist() == pytest.approx([3 * e for e in expected], rel=1e-9)


def test_frequent_words_become_pieces_and_all_characters_stay():
    pieces = train_unigram(WORDS, 16)
    names = [piece for piece, _ in pieces]
    assert len(names) == 16
    assert {"▁the", "▁cat", "▁a"} <= set(names[:6])
    assert {c for word in WORDS for c in word} <= set(names)
    assert all(math.isfinite(score) and score < 0 for _, score in pieces)
    assert pieces == sorted(pieces, key=lambda item: (-item[1], item[0]))


def test_the_order_of_the_words_changes_nothing():
    ties = {"▁" + a + b: 2 for a in "abcd" for b in "efgh"}
    assert train_unigram(ties, 20) == train_unigram(dict(reversed(ties.items())), 20)


def test_a_very_long_word_is_cut_and_few_words_give_few_pieces():
    names = [piece for piece, _ in train_unigram({"xy" * 300: 1, "q": 1}, 12)]
    assert set("xyq") <= set(names)
    assert len(names) <= 12
    assert max(map(len, names)) <= 16
    assert [piece for piece, _ in train_unigram({"ab": 1}, 50)] == ["a", "b"]

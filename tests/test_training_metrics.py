"""Error rates against the closest reference, by hand and by brute force."""

import itertools
import random

import pytest

from transduct.training.metrics import METRICS, bleu, chrf, closest_edits, edit_distance, exact_match, sequence_error, token_error


def slow_distance(first: tuple, second: tuple) -> int:
    """The definition: the cheapest first edit and what is left."""
    if not first or not second:
        return len(first) + len(second)
    if first[0] == second[0]:
        return slow_distance(first[1:], second[1:])
    return 1 + min(slow_distance(first[1:], second), slow_distance(first, second[1:]), slow_distance(first[1:], second[1:]))


def test_edit_distance_equals_its_definition():
    texts = [tuple(random.choices("ab", k=random.randrange(6))) for _ in range(30)]
    for first, second in itertools.product(texts, texts):
        assert edit_distance(first, second) == slow_distance(first, second)


@pytest.mark.parametrize(
    ("first", "second", "edits"), [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("ab", "ba", 2)]
)
def test_edit_distance_of_known_pairs(first, second, edits):
    assert edit_distance(first, second) == edits


def test_closest_reference_counts_with_its_own_length():
    assert closest_edits("R IY D", ["R EH D", "R IY D"]) == (0, 3)
    assert closest_edits("A B", ["A B C D", "A B C"]) == (1, 3)
    assert closest_edits("A", ["B", "A A"]) == (1, 1)  # equally close: the first


def test_error_rates_over_a_corpus():
    outputs = ["R IY D", "K AE T", "D AO G Z"]
    references = [["R EH D", "R IY D"], ["K AE T"], "D AO G"]
    assert token_error(outputs, references) == pytest.approx(1 / 9)
    assert sequence_error(outputs, references) == pytest.approx(1 / 3)
    assert exact_match(outputs, references) == pytest.approx(2 / 3)


def test_white_space_does_not_count():
    assert exact_match([" A  B "], ["A B"]) == 1.0


def test_bleu_and_chrf_are_those_of_sacrebleu():
    import sacrebleu

    outputs = ["the cat sat on the mat today", "a dog ran very far away"]
    references = [["the cat sat on a mat today", "a cat sat on the mat"], ["a dog ran so far away"]]
    streams = [[references[0][0], references[1][0]], [references[0][1], None]]
    assert bleu(outputs, references) == sacrebleu.corpus_bleu(outputs, streams).score
    assert chrf(outputs, references) == sacrebleu.corpus_chrf(outputs, streams).score
    assert bleu(outputs, [["the cat sat on the mat today", "x"], "a dog ran very far away"]) == pytest.approx(100)
    assert 20 < bleu(outputs, references) < 100


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize(
    ("outputs", "references", "message"),
    [
        (["a", "b"], ["a"], "2 predictions and 1 references"),
        ([], [], "predictions is empty"),
        (["a", "b"], ["a", []], "entry 1"),
        (["a", None], ["a", "b"], "entry 1"),
    ],
)
def test_errors(metric, outputs, references, message):
    with pytest.raises(ValueError, match=message):
        metric(outputs, references)


def test_empty_references_have_no_error_rate():
    with pytest.raises(ValueError, match="every closest reference is empty"):
        token_error(["a"], [""])

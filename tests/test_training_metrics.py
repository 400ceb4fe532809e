"""Error rates against the closest reference, by hand and by brute force."""

import itertools
import random

import pytest

from transduct.training.metrics import (
    ERRORS,
    METRICS,
    TIMINGS,
    bleu,
    chrf,
    closest_edits,
    edit_distance,
    exact_match,
    rouge_1,
    rouge_2,
    rouge_l,
    rouge_lsum,
    sequence_error,
    ter,
    token_error,
    without_timings,
)


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


def test_ter_is_that_of_sacrebleu_and_forgives_a_shift():
    outputs, references = ["today the cat sat on the mat"], ["the cat sat on the mat today"]
    assert ter(outputs, references) == pytest.approx(100 / 7)
    assert token_error(outputs, references) == pytest.approx(2 / 7)


def longest_common(first: list[str], second: list[str]) -> int:
    """The definition: the longest of all subsequences of the first that are one of the second."""
    for size in range(len(first), 0, -1):
        for part in itertools.combinations(first, size):
            rest = iter(second)
            if all(token in rest for token in part):
                return size
    return 0


def test_rouge_of_one_sentence_is_the_longest_common_subsequence():
    for _ in range(50):
        first, second = (random.choices("abcd", k=random.randrange(1, 7)) for _ in range(2))
        expected = 200 * longest_common(first, second) / (len(first) + len(second))
        assert rouge_lsum([" ".join(first)], [" ".join(second)]) == pytest.approx(expected)
        assert rouge_l(["\n".join(first)], [" ".join(second)]) == pytest.approx(expected)  # lines are no sentences there


def test_rouge_of_words_and_pairs_of_words():
    """Lin 2004, section 3.1: to ROUGE-2, "police kill the gunman" and "the gunman kill police" are alike."""
    reference, first, second = "police killed the gunman", "police kill the gunman", "the gunman kill police"
    assert rouge_1([first, second], [reference] * 2) == pytest.approx(100 * 3 / 4)
    assert rouge_2([first, second], [reference] * 2) == pytest.approx(100 * 1 / 3)
    assert rouge_l([first, second], [reference] * 2) == pytest.approx(100 * (3 / 4 + 2 / 4) / 2)
    assert rouge_1(["a a a b"], [["A, a!", "x"]]) == pytest.approx(100 * 2 * 2 / (4 + 2))  # no word counts twice
    assert rouge_2(["a"], ["a"]) == 0  # no pair at all


def test_rouge_of_summaries_as_its_paper_counts():
    """Lin 2004, section 3.2: the union of the common subsequences w1 w2 and w1 w3 w5 is four of the reference's five words."""
    summary, reference = "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"
    assert rouge_lsum([summary], [reference]) == pytest.approx(100 * 2 * 4 / (10 + 5))
    assert rouge_lsum([summary], [[reference, "W1, W2: w6 w7 w8.\n\nw1 w3 w8 w9 w5!"]]) == pytest.approx(100)
    assert rouge_lsum([""], [reference]) == 0
    assert rouge_lsum(["a b"], ["a\na"]) == pytest.approx(100 * 2 * 1 / 4)  # one "a" cannot be found twice


def test_less_is_better_for_errors():
    right, wrong = ["a b c d"], ["a x y d"]
    for name, metric in METRICS.items():
        assert (metric(right, right) < metric(wrong, right)) == (name in ERRORS)


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


def test_timings_are_told_from_metrics():
    noted = [f"test_{name}" for name in TIMINGS]
    metrics = ["test_loss", "test_lead_time", "test_words_per_second", "test_own_runtime"]
    assert without_timings([*metrics, *noted, "epoch"]) == metrics
    assert without_timings(["loss", "lead_time"]) == ["loss", "lead_time"]

"""Tables: the numbers of the search, and any text as text."""

from dataclasses import replace

import pytest

from markup import ODD, parsed
from tiny_translation import tiny_translation
from transduct.decoding.translator import Translation
from transduct.page.answers import Answer, Demonstration
from transduct.page.search_tree import SearchTree
from transduct.page.settings import Settings
from transduct.page.tables import explained, found, kept


def cells(markup: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parsed(markup).iter("tr")]


def test_what_was_found():
    hypotheses = (Translation("one", -0.5, -1.5, (5, 6, 1)), Translation("two", -0.75, -0.75, (1,)))
    answer = Answer("text", Settings(beams=2, hypotheses=2, normalization="gnmt", length_penalty=0.6), hypotheses, SearchTree(()))
    markup = found(answer, 1)
    assert cells(markup) == [
        ["#", "output", "score", "log-probability", "tokens"],
        ["1", "one", "-0.5000", "-1.5000", "3"],
        ["2", "two", "-0.7500", "-0.7500", "1"],
    ]
    assert [row.get("class") for row in parsed(markup).iter("tr")] == [None, None, "chosen"]
    assert explained(answer) == "Score = log-probability / ((5 + tokens) / 6)^0.6; natural logarithms."
    samples = replace(answer, settings=Settings(search="sampling", hypotheses=2, seed=5))
    assert explained(samples).startswith("2 samples, drawn with seed 5, in the order of their scores. Score = ")


@pytest.mark.parametrize("normalization", ["hf", "gnmt", "sockeye", "none"])
def test_scores_are_explained_as_they_are_computed(normalization):
    """The formula that is told, put into Python's words, gives the score from the log-probability."""
    settings = Settings(beams=2, hypotheses=2, normalization=normalization, length_penalty=0.7, tokens=6)
    answer = Demonstration(*tiny_translation(end=2.0)).answer("cab", settings)
    formula = explained(answer).removeprefix("Score = ").removesuffix("; natural logarithms.")
    log_probability, tokens = formula.startswith("log-probability"), None
    assert log_probability
    for each in answer.hypotheses:
        tokens = len(each.token_ids)
        divisor = {
            "log-probability": 1.0,
            "log-probability / tokens^0.7": tokens**0.7,
            "log-probability / ((5 + tokens) / 6)^0.7": ((5 + tokens) / 6) ** 0.7,
        }[formula]
        assert each.score == pytest.approx(each.log_prob / divisor, rel=1e-5)


def test_what_was_kept_at_each_step():
    model, tokenizer = tiny_translation(end=2.0)
    answer = Demonstration(model, tokenizer).answer("cab", Settings(beams=3, hypotheses=3, tokens=6))
    for number, step in enumerate(answer.tree.steps):
        markup = kept(answer, number, lambda rows: tokenizer.batch_decode(rows))
        head, *rows = cells(markup)
        assert head == ["#", "so far", "log-probability"]
        wanted = [tokenizer.decode([node.token for node in answer.tree.path(number, place)]) for place in range(len(step.nodes))]
        assert [row[1] for row in rows] == wanted
        assert [row[2] for row in rows] == [f"{node.log_prob:.4f}" for node in step.nodes]
        assert [row[0] for row in rows][len(step.running) :] == ["✓"] * len(step.ended)
        assert f"Step {number + 1} of {len(answer.tree.steps)}" in markup


def test_any_output_is_only_text():
    hypotheses = tuple(Translation(text, -1.0, -1.0, (1,)) for text in ODD)
    rows = cells(found(Answer("", Settings(), hypotheses, SearchTree(())), 0))
    assert len(rows) == len(ODD) + 1
    assert rows[1][1] == ODD[0]

"""What the page shows: the results of the model, and messages in place of errors."""

from dataclasses import asdict

import pytest

from markup import ODD, parsed, svg, titles
from tiny_translation import tiny_translation
from transduct.page import views
from transduct.page.alignment_picture import alignment_picture
from transduct.page.answers import Demonstration
from transduct.page.attention_picture import attention_picture
from transduct.page.settings import Settings
from transduct.page.tables import found

SETTINGS = asdict(Settings(beams=3, hypotheses=3, tokens=8))


@pytest.fixture(scope="module")
def page():
    return Demonstration(*tiny_translation(end=2.0))


def test_a_run_shows_the_best_hypothesis_and_the_last_step(page):
    view = views.run(page, "cab ab", SETTINGS, 1, views.ALL_HEADS)
    answer = page.answer("cab ab", Settings(**SETTINGS))
    assert (view.answer, view.message, view.table) == (answer, "", found(answer, 0))
    seen = page.look(answer, 0)
    assert view.attention == attention_picture(seen.mean(1), seen.source, seen.target)
    assert view.alignment == alignment_picture(seen.mean(1), seen.source, seen.target)
    assert f"Step {len(answer.tree.steps)} of {len(answer.tree.steps)}" in view.kept
    best = [box for box in titles(parsed(view.tree)).values() if box[1].get("stroke") == "var(--best)"]
    assert len(best) == len(answer.hypotheses[0].token_ids)


def test_other_choices_show_something_else(page):
    view = views.run(page, "cab ab", SETTINGS, 1, views.ALL_HEADS)
    other = views.choose(page, view.answer, 2, 2, 0, 3)
    seen = page.look(view.answer, 2)
    assert other.table == found(view.answer, 2)
    assert other.attention == attention_picture(seen.mean(0, [3]), seen.source, seen.target)
    assert "Step 2 of" in other.kept
    assert views.look(page, view.answer, 2, 0, 3) == (other.attention, other.alignment)
    assert views.walk(page, view.answer, 2, 2) == (other.tree, other.kept)
    columns = [len(titles(parsed(views.walk(page, view.answer, step, 0)[0]))) for step in (1, 2, 3)]
    assert columns == sorted(columns)
    assert columns[0] == len(view.answer.tree.steps[0].nodes)
    for step, wanted in ((-5, 1), (99, len(view.answer.tree.steps))):  # what is not there is the nearest that is
        assert views.walk(page, view.answer, step, 0) == views.walk(page, view.answer, wanted, 0)


@pytest.mark.parametrize("text", [text for text in ODD if text.strip()], ids=ascii)
def test_any_text_gives_pictures_or_a_message(page, text):
    for settings in (SETTINGS, SETTINGS | {"search": "sampling", "prefix": text[:200]}):
        view = views.run(page, text, settings, 1, views.ALL_HEADS)
        assert bool(view.message) == (view.answer is None)
        for markup in asdict(view).values():
            if isinstance(markup, str):
                parsed(markup)
        if view.answer is not None:
            assert svg(parsed(view.attention), "rect")


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "there is no text yet"),
        ("x" * 2**20, {}, "more than the 20,000 characters"),
        ("a", {"beams": 99}, "beams must be a whole number from 1 to 16"),
        ("a", {"tgt_lang": "<b>"}, "tgt_lang='<b>'"),
        ("a", {"normalization": None}, "normalization must be one of"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_said(page, text, settings, message):
    view = views.run(page, text, SETTINGS | settings, 1, views.ALL_HEADS)
    (shown,) = parsed(view.message)
    assert message in shown.text
    assert view == views.View(message=view.message)


def test_results_that_are_gone_and_places_that_are_not_there(page):
    assert "run the search again" in views.choose(page, None, 0, 1, 0, 0).message
    assert "run the search again" in views.look(page, None, 0, 0, 0)[0]
    assert "run the search again" in views.walk(page, None, 1, 0)[0]
    answer = views.run(page, "cab", SETTINGS, 1, views.ALL_HEADS).answer
    assert "attention layer 9 is not there" in views.look(page, answer, 0, 9, 0)[0]
    assert "attention head 9 is not there" in views.look(page, answer, 0, 0, 9)[0]
    assert "there are 3 hypotheses" in views.choose(page, answer, 9, 1, 0, 0).message


def test_a_fault_is_told_to_the_visitor_and_on_standard_error(page, capsys, monkeypatch):
    def fault(*_):
        raise KeyError("<b>odd</b>")

    monkeypatch.setattr(page, "answer", fault)
    view = views.run(page, "a", SETTINGS, 1, views.ALL_HEADS)
    assert parsed(view.message)[0].text == "a fault of the program: KeyError: '<b>odd</b>'"
    assert capsys.readouterr().err == "transduct demo: a fault of the program: KeyError: '<b>odd</b>'\n"

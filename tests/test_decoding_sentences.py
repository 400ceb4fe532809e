"""Texts cut into sentences and pieces: where, and that nothing of them is lost."""

import random
import time

import pytest

from transduct.decoding.sentences import Piece, fitted, sentences


def together(pieces: list[Piece]) -> str:
    return "".join(piece.space + piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He said: “Go.” Then he went.", ["He said: “Go.”", "Then he went."]),
        ("It costs 3.50 in all. Cheap.", ["It costs 3.50 in all.", "Cheap."]),
        ("What...? No way!!! So.", ["What...?", "No way!!!", "So."]),
        ("See e.g. the book. It is good.", ["See e.g. the book.", "It is good."]),
        ("J. S. Bach wrote it. All of it.", ["J. S. Bach wrote it.", "All of it."]),
        ("2. Bach came second.", ["2. Bach came second."]),
        ("one line\nanother line", ["one line", "another line"]),
        ("你好。再见！好吗？", ["你好。", "再见！", "好吗？"]),
        ("यह घर है। वह बड़ा है।", ["यह घर है।", "वह बड़ा है।"]),
        ("كيف حالك؟ بخير.", ["كيف حالك؟", "بخير."]),
        ("Ende. Über uns. ¿Qué? Sí.", ["Ende.", "Über uns.", "¿Qué?", "Sí."]),
        ("no mark at all", ["no mark at all"]),
        ("", []),
        ("  \n ", []),
    ],
)
def test_where_sentences_end(text, parts):
    pieces = sentences(text)
    assert [piece.text for piece in pieces if piece.text] == parts
    assert together(pieces) == text


def test_white_space_is_kept():
    pieces = sentences("  One.\n\n  Two.\t")
    assert together(pieces) == "  One.\n\n  Two.\t"
    assert [piece.text for piece in pieces if piece.text] == ["One.", "Two."]
    assert pieces[0] == Piece("  ", "One.")
    assert pieces[-1] == Piece("\t", "")


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_of_any_text(seed):
    generator = random.Random(seed)
    text = "".join(generator.choice('ab.! ?\n\t"A1。') for _ in range(60))
    assert together(sentences(text)) == text
    for limit in (1, 3, 7):
        pieces = fitted(text, lambda part, limit=limit: len(part) <= limit)
        assert together(pieces) == text
        assert all(len(piece.text) <= limit and piece.text == piece.text.strip() for piece in pieces)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("One two. Three", 8, ["One two.", "Three"]),
        ("one two three four", 9, ["one two", "three", "four"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("ab abcdefgh c", 4, ["ab", "abcd", "efgh", "c"]),
        ("short", 50, ["short"]),
    ],
)
def test_too_long_pieces_are_cut_at_spaces_and_if_need_be_within_words(text, limit, parts):
    assert [piece.text for piece in fitted(text, lambda part: len(part) <= limit)] == parts


def test_a_word_of_ten_thousand_letters():
    asked = []

    def fits(part: str) -> bool:
        asked.append(len(part))
        return len(part) <= 100

    pieces = fitted("x" * 10_000, fits)
    assert [len(piece.text) for piece in pieces] == [100] * 100
    assert max(asked[1:]) <= 200  # after the first look, never at much more than what fits


def test_what_fits_nowhere_is_cut_to_characters():
    assert [piece.text for piece in fitted("ab c", lambda part: False)] == ["a", "b", "c"]


def test_long_texts_of_stops_take_no_time():
    """Lines of dots, as in a table of contents, and texts of many sentences are read once, whatever stands behind."""
    begun = time.process_time()
    for text in ("." * 50_000, ')."' * 20_000, "a. " * 20_000, "1. " * 20_000, "Ab cd. " * 20_000, "\n" * 20_000, " " * 50_000):
        assert together(sentences(text)) == text
    assert time.process_time() - begun < 20  # looked at again from each stop, they would take minutes

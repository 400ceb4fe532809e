"""What a terminal would act on is told instead."""

import json

import pytest

from transduct.terminal import harmless, json_text, printable


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a file.txt, größer 語", "a file.txt, größer 語"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("\udcff", "\\udcff"),
        ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
    ],
    ids=ascii,
)
def test_only_what_is_seen_is_printed(text, told):
    assert printable(text) == told


def test_lines():
    assert printable("one\r\n\x1btwo", lines=True) == "one\\r\n\\x1btwo"


def test_texts_keep_the_marks_of_their_language():
    assert harmless("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 👩\u200d👧 a\tb\n\x1b[2J\x07\x9b1m\r") == (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 👩\u200d👧 a\tb\n\\x1b[2J\\x07\\x9b1m\\r"
    )


def test_json_that_every_reader_takes():
    value = {"\udcff": ["größer 語", "a\udcffb", float("nan"), {"x": (float("inf"), 1.5)}], "n": None, "t": True}
    text = json_text(value)
    read = json.loads(text.encode("ascii"), parse_constant=pytest.fail)
    assert read == {"\udcff": ["größer 語", "a\udcffb", None, {"x": [None, 1.5]}], "n": None, "t": True}

"""Texts on their way to a model: what is none is named, and a target has the ids that generation would write."""

import pytest
from transformers import AutoTokenizer

from tiny_tokenizers import write_tokenizer
from tiny_translation import LETTERS
from transduct import TransductTokenizer
from transduct.decoding.texts import check_text, check_texts, target_ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (7, "the source of line 3 is a int, not a string"),
        (b"ab", "the source of line 3 is a bytes, not a string"),
        ("a\0b", "the source of line 3 holds a NUL character"),
        ("ab\ud800", "the source of line 3 is no valid Unicode at character 2"),
    ],
)
def test_what_is_no_text_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        check_text(text, "the source of line 3")
    check_text("a\u2028b 👍", "line 3")


def test_one_text_is_not_several():
    for wrong, message in (("ab", "texts is one string: pass a list"), (5, "texts is a int: pass a list"), (None, "a NoneType")):
        with pytest.raises(ValueError, match=message):
            check_texts("texts", wrong)
    for texts in ([], ("a",), iter("ab"), {"a": 1}.keys()):
        check_texts("texts", texts)


def test_the_ids_of_a_target_end_with_the_end():
    tokenizer = TransductTokenizer.train(iter([LETTERS]), kind="chars", target_prefix=[], languages=["de"])
    a, b = (tokenizer.convert_tokens_to_ids(letter) for letter in "ab")
    end, language = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<2de>")
    assert target_ids(tokenizer, "ab", None, "x") == [a, b, end]
    assert target_ids(tokenizer, "", None, "x") == [end]
    assert target_ids(tokenizer, "ab", language, "x") == [language, a, b, end]
    tokenizer.target_prefix = ["<2de>"]
    assert target_ids(tokenizer, "ab", language, "x") == [language, a, b, end]  # once


def test_no_part_of_a_target_is_lost():
    tokenizer = TransductTokenizer.train(iter([LETTERS]), kind="chars")
    with pytest.raises(ValueError, match="the target of line 2 holds the end token </s>, behind which nothing is written"):
        target_ids(tokenizer, "a</s>b", None, "the target of line 2")
    with pytest.raises(ValueError, match="holds the end token"):
        target_ids(tokenizer, "ab</s>", None, "it")
    tokenizer.split_special_tokens = True  # then it is text
    assert len(target_ids(tokenizer, "a</s>b", None, "it")) == 7


@pytest.mark.parametrize(("name", "begins"), [("nllb", True), ("mbart", False)])
def test_the_ids_of_a_target_in_a_language(tmp_path, name, begins):
    """Its token stands at the beginning, or behind the end, where generation does not write it."""
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path))
    tokenizer.tgt_lang = "hin_Deva" if begins else "fr_XX"
    ids = target_ids(tokenizer, "The field", None, "x")
    assert ids[-1] == tokenizer.eos_token_id
    assert (ids[0] == tokenizer.convert_tokens_to_ids(tokenizer.tgt_lang)) == begins
    assert tokenizer.decode(ids, skip_special_tokens=True) == "The field"

"""What targets must contain or begin with, as texts: by tokenizers that cut a phrase differently where it stands."""

import pytest

from tiny_translation import LETTERS
from transduct import TransductTokenizer
from transduct.decoding.required import Required, phrase_ids, prefix_ids, required_of

CORPUS = ["the small house is green", "a green house", "he lost the small green hat", LETTERS] * 5


def tokenizer_of(kind: str):
    return TransductTokenizer.train(iter(CORPUS), kind=kind, **({} if kind == "chars" else {"vocab_size": 300}))


@pytest.mark.parametrize("kind", ["chars", "bpe", "byte_bpe", "unigram"])
def test_a_phrase_has_a_form_for_each_place(kind):
    """Wherever a text has it, one of the forms stands among the tokens of the text."""
    tokenizer = tokenizer_of(kind)
    forms = phrase_ids(tokenizer, "green house", 1)
    assert len(set(map(tuple, forms))) == len(forms)
    for text in ("green house", "a green house", "the small green house is", "a green house!"):
        ids = tokenizer(text_target=text)["input_ids"]
        assert any(ids[at : at + len(form)] == form for form in forms for at in range(len(ids))), (text, forms)
    special = {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    assert not special.intersection(token for form in forms for token in form)
    assert all(tokenizer.decode(form).strip() == "green house" for form in forms)


def test_a_form_that_ends_with_another_is_left_out():
    tokenizer = tokenizer_of("chars")
    (form,) = phrase_ids(tokenizer, "hat", 1)
    assert [tokenizer.decode([token]) for token in form] == ["h", "a", "t"]


def test_several_texts_are_forms_of_one_phrase():
    tokenizer = tokenizer_of("chars")
    assert phrase_ids(tokenizer, ["hat", "house"], 1) == [*phrase_ids(tokenizer, "hat", 1), *phrase_ids(tokenizer, "house", 1)]


def test_a_prefix_is_the_beginning_of_a_target():
    tokenizer = tokenizer_of("chars")
    ids = tokenizer(text_target="the hat")["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    assert prefix_ids(tokenizer, "the hat", None, 1) == ids[:-1]
    assert prefix_ids(tokenizer, "the hat", 7, 1) == [7, *ids[:-1]]
    assert prefix_ids(tokenizer, "the hat", ids[0], 1) == ids[:-1]
    assert prefix_ids(tokenizer, "", 7, 1) == []


def test_texts_with_what_they_require():
    found = list(required_of(["a", "b"], [["x", ["y", "z"]], []], ["p", ""]))
    assert found == [("a", Required(("x", ("y", "z")), "p")), ("b", Required())]
    assert list(required_of(iter(["a"]), None, None)) == [("a", Required())]


@pytest.mark.parametrize(
    ("phrases", "prefixes", "message"),
    [
        ([["x"]], None, "phrases has 1 entries, but there are more texts"),
        (None, ["p"], "target_prefixes has 1 entries, but there are more texts"),
        ([[], [], []], None, "phrases has more entries than there are texts"),
        (["x", "y"], None, "line 1: phrases must be a list of texts"),
        ([None, []], None, "line 1: phrases must be a list of texts"),
        ([[5], []], None, "line 1: phrase 5 must be a text"),
        (None, ["p", None], "line 2: phrases must be a list of texts, and the prefix a text"),
    ],
)
def test_numbers_and_forms_that_do_not_fit_are_refused(phrases, prefixes, message):
    with pytest.raises(ValueError, match=message):
        list(required_of(["a", "b"], phrases, prefixes))


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("", "line 4: phrase '' must be a text"),
        ("  ", "of more than white space"),
        (["hat", ""], "must be a text, or several texts"),
        ([7], "must be a text, or several texts"),
        ("§", "line 4: phrase '§' has characters that the vocabulary does not have"),
        ("a</s>", "line 4: phrase 'a</s>' holds the special token </s>, which no output shows"),
        (["a", "<pad>"], r"line 4: phrase \['a', '<pad>'\] holds the special token <pad>"),
        ("a\0b", "a phrase of line 4 holds a NUL character"),
        ("a\ud800", "a phrase of line 4 is no valid Unicode"),
    ],
)
def test_phrases_that_cannot_be_written_are_refused(phrase, message):
    with pytest.raises(ValueError, match=message):
        phrase_ids(tokenizer_of("chars"), phrase, 4)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("the §", "line 4: the prefix 'the §' has characters that the vocabulary does not have"),
        ("a</s>b", "line 4: the prefix 'a</s>b' holds the special token </s>, which no output shows"),
        ("a\0b", "the prefix of line 4 holds a NUL character"),
        ("a\ud800", "the prefix of line 4 is no valid Unicode"),
    ],
)
def test_prefixes_that_cannot_be_written_are_refused(prefix, message):
    with pytest.raises(ValueError, match=message):
        prefix_ids(tokenizer_of("chars"), prefix, None, 4)

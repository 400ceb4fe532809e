"""Labels of tokens: what a vocabulary's own spelling stands for, each side's own, and a shape for every character."""

import pytest
from transformers import AutoTokenizer

from tiny_tokenizers import write_tokenizer
from transduct import TransductTokenizer
from transduct.decoding.token_labels import clipped, source_labels, target_labels, visible

TEXT = "The field, of course; is  valid"


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "chars"])
def test_labels_of_every_kind_spell_the_text(kind):
    size = None if kind == "chars" else 320
    tokenizer = TransductTokenizer.train(iter([TEXT, "ärger über Öl"]), kind=kind, vocab_size=size)
    for text in ("The field is valid", "ärger über Öl"):
        labels = source_labels(tokenizer, tokenizer(text)["input_ids"])
        assert labels[-1] == "</s>"
        spelt = "".join(labels[:-1]).replace("▁", " ").replace("␣", " ")
        assert spelt.strip() == text


@pytest.mark.parametrize("name", ["t5", "bart", "marian", "m2m_100", "nllb", "byt5"])
def test_labels_of_published_tokenizers_spell_the_text(name, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path))
    ids = tokenizer("The field is valid")["input_ids"]
    for labels in (source_labels(tokenizer, ids), target_labels(tokenizer, ids)):
        assert len(labels) == len(ids)
        text = "".join(label for label, token in zip(labels, ids, strict=True) if token not in tokenizer.all_special_ids)
        assert text.replace("▁", " ").replace("␣", " ").strip() == "The field is valid"


def test_a_part_of_a_character_keeps_its_own_name(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer("bart", tmp_path))
    labels = source_labels(tokenizer, tokenizer("語", add_special_tokens=False)["input_ids"])
    assert len(labels) > 1
    assert all(label and "\ufffd" not in label for label in labels)


@pytest.mark.parametrize("name", ["marian of two vocabularies", "transduct"])
def test_each_side_has_its_own_labels(name, tmp_path):
    if name == "transduct":
        target = iter(["K AE T"])
        tokenizer = TransductTokenizer.train(iter(["cat"]), kind="chars", target=target, target_kind="words")
        source, output = "cat", "K AE T"
    else:
        tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path))
        source, output = "The field is valid", "Das Feld"
    encoded = tokenizer(source, text_target=output)
    read, written = source_labels(tokenizer, encoded["input_ids"]), target_labels(tokenizer, encoded["labels"])
    assert "".join(read[:-1]).replace("▁", " ").strip() == source
    assert "".join(written[:-1]).replace("▁", " ").strip() == (output if name != "transduct" else "KAET")


def test_an_id_without_a_token_has_a_label():
    tokenizer = TransductTokenizer.train(iter(["abc"]), kind="chars")
    assert target_labels(tokenizer, [len(tokenizer) + 3]) == ["?"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a␣b"),
        ("\n\t\0", "↵⇥U+0000"),
        ("\u202etxt", "U+202Etxt"),
        ("\u2066x\u2069\u200f", "U+2066xU+2069U+200F"),
        ("a\u00a0b\u3000", "aU+00A0bU+3000"),
        ("\ud800", "U+D800"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\u0941", "◌\u0941"),
        ("\u093e", "◌\u093e"),
        ("\u20dd", "◌\u20dd"),
        ("\ufe0f", "◌\ufe0f"),
        ("कु", "कु"),
        ("a\u3164\u2800", "aU+3164U+2800"),
        ("\u200d", "U+200D"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("שלום", "שלום"),
        ("$x_1$ <b>&", "$x_1$␣<b>&"),
        ("", ""),
    ],
    ids=ascii,
)
def test_every_character_has_a_shape(text, shown):
    assert visible(text) == shown


def test_long_labels_are_clipped():
    assert clipped("abcdef", 6) == "abcdef"
    assert clipped("abcdefg", 6) == "abcde…"

"""Where words and sentences begin, in any script and any kind of vocabulary."""

from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from english import paragraphs, tokenizer
from transduct import TransductTokenizer
from transduct.training.objectives import TokenText

KINDS = ["unigram", "byte_bpe", "bpe"]


def letters(text: str) -> tuple[TokenText, np.ndarray]:
    """A vocabulary of characters, and the ids of a text."""
    english = TransductTokenizer.train(iter([text]), kind="chars")
    return TokenText.from_tokenizer(english), np.array(english(text)["input_ids"][:-1])


def pieces(text: str, last: np.ndarray) -> list[str]:
    """The text cut behind the characters that are marked."""
    cuts = [0, *(np.flatnonzero(last) + 1).tolist(), len(text)]
    return [text[start:stop] for start, stop in pairwise(cuts) if start < stop]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rains.", " It pours!", " Does it?", " Well…", " Yes"],
        ["It costs 3.14 euros.", " See 2.1.3 and x.y", " "],
        ['He said "Go."', " (She went.)", " ‘Why?’", " [No!]", " “Oh…”", " Ah..."],
        ["„Ja.“", " »Nein!«", " Doch."],
        ["« Oui.\xa0»", " M.\xa0Dupont\xa0?", " Non."],
        ["ما هذا؟", " هذا كتاب.", " نعم"],
        ["یہ کتاب ہے۔", " ٹھیک"],
        ["यह एक किताब है।", " ठीक है॥", " हाँ"],
        ["Սա գիրք է։", " Լավ"],
        ["这是书。", "真的吗？", "“好！”", "他说", ],
        ["これは本です。", "「本当ですか？」", "はい！", "そう"],
        ["ይህ መጽሐፍ ነው።", " እሺ"],
        ["នេះជាសៀវភៅ។", " បាទ"],
        ["One.\n", "\nTwo.\t", "Three"],
    ],
)  # fmt: skip
def test_sentences_end_at_the_marks_of_their_language(sentences):
    text = "".join(sentences)
    tokens, ids = letters(text)
    found = pieces(text, tokens.sentence_ends(ids))
    assert [part.strip() for part in found if part.strip()] == [part.strip() for part in sentences if part.strip()]


@pytest.mark.parametrize(
    "words",
    [
        ["The", " dog", " (a", " big", " one)", " sat."],
        ["  The", "\n\n dog", "\tsat "],
        ["他", "说", "好，hello", " 你", "好。"],
        ["本", "を", "読", "む。"],
        ["don't", " 3.14", " x_y"],
    ],
)
def test_words_begin_at_white_space_or_at_letters_of_scripts_without_it(words):
    text = "".join(words)
    tokens, ids = letters(text)
    last = np.append(tokens.word_starts(ids)[1:], False)
    assert pieces(text, last) == words


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_english_are_those_between_spaces(kind):
    english, tokens = tokenizer(kind), TokenText.from_tokenizer(tokenizer(kind))
    for text in paragraphs()[:30]:
        ids = np.array(english(text)["input_ids"][:-1])
        starts = np.flatnonzero(tokens.word_starts(ids))
        words = [english.decode(part).strip() for part in np.split(ids, starts[1:])]
        assert starts[0] == 0
        assert words == text.split()


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_of_english(kind):
    english, tokens = tokenizer(kind), TokenText.from_tokenizer(tokenizer(kind))
    text = 'The array is empty. Is it so? "Yes!" It has 3.5 values (or more.) See numpy.sort... The end'
    ids = np.array(english(text)["input_ids"])
    ends = np.flatnonzero(tokens.sentence_ends(ids)) + 1
    found = [english.decode(part, skip_special_tokens=True).strip() for part in np.split(ids, ends)]
    assert found == ["The array is empty.", "Is it so?", '"Yes!"', "It has 3.5 values (or more.)", "See numpy.sort...", "The end"]


def test_bytes_of_a_character_are_found_across_tokens():
    english = tokenizer("byte_bpe")
    tokens = TokenText.from_tokenizer(english)
    text = "中文。好！ 🙂 é"
    ids = np.array(english(text)["input_ids"][:-1])
    assert len(ids) > len(text)
    for marks, expected in (
        (tokens.word_starts(ids), ["中", "文。", "好！", " 🙂", " é"]),
        (np.roll(tokens.sentence_ends(ids), 1) | (np.arange(len(ids)) == 0), ["中文。", "好！", " 🙂 é"]),
    ):
        parts = np.split(ids, np.flatnonzero(marks)[1:])
        assert [b"".join(tokens.pieces[i] for i in part).decode() for part in parts] == expected


def test_byte_fallback_gives_bytes():
    english = TransductTokenizer.train(iter(["ab cd"] * 3), kind="unigram", vocab_size=300, byte_fallback=True)
    tokens = TokenText.from_tokenizer(english)
    ids = english("ab 中文")["input_ids"][:-1]
    assert b"".join(tokens.pieces[i] for i in ids) == " ab 中文".encode()
    starts = np.flatnonzero(tokens.word_starts(np.array(ids)))
    assert [b"".join(tokens.pieces[i] for i in part).decode() for part in np.split(ids, starts[1:])] == [" ab", " 中", "文"]


def stock(model, pre_tokenizer, decoder):
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
    return TokenText.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]"))


def test_other_vocabularies():
    ids = {"[PAD]": 0, "[UNK]": 1, "go": 2, "##ing": 3, "##.": 4, "on": 5}
    tokens = stock(models.WordPiece(ids, unk_token="[UNK]"), pre_tokenizers.Whitespace(), decoders.WordPiece())
    assert tokens.pieces[1:5] == (" \ufffd".encode(), b" go", b"ing", b".")
    assert tokens.word_starts(np.array([2, 3, 5, 4, 1])).tolist() == [True, False, True, False, True]
    assert tokens.sentence_ends(np.array([2, 4, 5, 1])).tolist() == [False, True, False, False]
    ids = {"[PAD]": 0, "[UNK]": 1, "go</w>": 2, "ing.</w>": 3, "go": 4}
    tokens = stock(models.BPE(ids, [], unk_token="[UNK]"), pre_tokenizers.Whitespace(), decoders.BPEDecoder())
    assert tokens.word_starts(np.array([4, 3, 2, 4])).tolist() == [True, False, True, True]
    assert tokens.sentence_ends(np.array([4, 3, 2, 4])).tolist() == [False, True, False, False]
    words = TransductTokenizer.train(iter(["AH B K"]), kind="words")
    assert TokenText.from_tokenizer(words).word_starts(np.array(words("K B ? AH")["input_ids"])).tolist() == [True] * 4 + [False]


def test_special_tokens_are_fixed_but_mask_and_unknown_are_text():
    english = tokenizer("unigram")
    tokens = TokenText.from_tokenizer(english)
    fixed = [english.convert_tokens_to_ids(token) for token in ("<pad>", "</s>", "<s>", "[NLU]", "<extra_id_3>")]
    text_like = [english.unk_token_id, english.mask_token_id, english("a")["input_ids"][0]]
    assert tokens.is_fixed(np.array(fixed)).all()
    assert not tokens.is_fixed(np.array(text_like)).any()
    assert np.isin(text_like, tokens.ordinary_ids).tolist() == [True, False, True]
    assert not np.isin(fixed, tokens.ordinary_ids).any()


def test_special_tokens_end_words_and_sentences():
    english = tokenizer("byte_bpe")
    tokens = TokenText.from_tokenizer(english)
    first, second = (english(text)["input_ids"][:-1] for text in ("array.", "index"))
    ids = np.array([english.bos_token_id, *first, 1, 1, *second, 1])
    starts, ends = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
    starts[[1, 3 + len(first)]] = True
    ends[len(first)] = True
    assert tokens.word_starts(ids).tolist() == starts.tolist()
    assert tokens.sentence_ends(ids).tolist() == ends.tolist()


def test_nothing_and_specials_only():
    tokens = TokenText.from_tokenizer(tokenizer("unigram"))
    for ids in (np.array([], int), np.array([1]), np.array([1, 1])):
        assert tokens.word_starts(ids).tolist() == tokens.sentence_ends(ids).tolist() == [False] * len(ids)


def test_refuses():
    two = TransductTokenizer.train(iter(["ab"]), kind="chars", target=iter(["cd"]))
    with pytest.raises(ValueError, match="a vocabulary for each side"):
        TokenText.from_tokenizer(two)
    tokens = TokenText.from_tokenizer(tokenizer("unigram"))
    with pytest.raises(ValueError, match=r"ids holds 9999, but the vocabulary has \d+ ids"):
        tokens.word_starts(np.array([9999]))
    with pytest.raises(ValueError, match="no token that stands for text"):
        TokenText((b"a",), np.array([True]))
    with pytest.raises(ValueError, match="fixed of shape"):
        TokenText((b"a",), np.array([False, False]))

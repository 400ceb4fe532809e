"""Alignments of words as pairs of tokens, in examples and in batches."""

import pytest

from tiny_training import Tokenizer
from transduct.tokenization import TransductTokenizer
from transduct.training import Seq2SeqCollator
from transduct.training.alignments import AlignmentCollator, parse_alignment, token_alignments, words_of_tokens


def test_pharaohs_form():
    assert parse_alignment("0-0 1-2  10-3\n") == [(0, 0), (1, 2), (10, 3)]
    assert parse_alignment("") == []
    for text in ("0", "a-1", "1-", "0:1", "1--2"):
        with pytest.raises(ValueError, match="must read SOURCE-TARGET"):
            parse_alignment(text)


def test_words_of_tokens():
    text = " ab  c def"
    offsets = [(0, 2), (2, 3), (3, 5), (4, 6), (7, 10), (0, 0)]
    assert words_of_tokens(text, offsets) == [0, 0, None, 1, 2, None]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "chars"])
def test_each_token_of_a_word_is_aligned_with_each_of_its_partner(kind):
    texts = ["ein Haus steht", "a house stands", "der Hund", "the dog"]
    options = {} if kind == "chars" else {"vocab_size": 300 if kind == "byte_bpe" else 60}
    tokenizer = TransductTokenizer.train(texts * 3, kind=kind, **options)
    example = token_alignments(tokenizer, "ein Haus steht", "a house stands", "0-0 2-1")
    words = {"input_ids": ["ein", "Haus", "steht"], "labels": ["a", "house", "stands"]}
    parts = {"input_ids": {0: [], 2: []}, "labels": {0: [], 1: []}}
    for source, target in example["alignments"]:
        partner = {0: 0, 2: 1}
        for number in partner:
            if token_is_of(tokenizer, example["input_ids"], source, words["input_ids"], number):
                assert token_is_of(tokenizer, example["labels"], target, words["labels"], partner[number])
                parts["input_ids"][number].append(source)
                parts["labels"][partner[number]].append(target)
    for column, numbers in parts.items():
        for number, positions in numbers.items():
            ids = [example[column][position] for position in sorted(set(positions))]
            assert tokenizer.decode(ids).strip() == words[column][number]


def token_is_of(tokenizer, ids, position, words, number) -> bool:
    """Whether the token at a position lies in a word, by decoding what comes before and with it."""
    before = "".join(tokenizer.decode(ids[:position]).split())
    after = "".join(tokenizer.decode(ids[: position + 1]).split())
    start = len("".join(words[:number]))
    return len(before) >= start and start < len(after) <= start + len(words[number])


def test_an_alignment_of_words_that_are_not_there():
    tokenizer = TransductTokenizer.train(["a b"], kind="chars")
    with pytest.raises(ValueError, match="word 2 of the target 'b a', counted from 0"):
        token_alignments(tokenizer, "a b", "b a", "0-2")
    with pytest.raises(ValueError, match="word 5 of the source"):
        token_alignments(tokenizer, "a b", "b a", "5-0")


ROWS = [
    {"input_ids": [5, 6, 1], "labels": [7, 1], "alignments": [[0, 0], [1, 0]], "text": "x"},
    {"input_ids": [5, 1], "labels": [7, 8, 1], "alignments": [[0, 1]], "text": "y"},
    {"input_ids": [1], "labels": [1], "alignments": [], "text": "z"},
]


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch(side):
    tokenizer = Tokenizer()
    tokenizer.padding_side = side
    batch = AlignmentCollator(Seq2SeqCollator(tokenizer))(ROWS)
    shift = 1 if side == "left" else 0
    assert batch["alignments"].tolist() == [[[0, 0], [1, 0]], [[shift, 1], [-1, -1]], [[-1, -1], [-1, -1]]]
    assert batch["input_ids"][1, shift].item() == 5
    assert set(batch) == {"input_ids", "attention_mask", "labels", "alignments"}


def test_batches_without_alignments_and_with_wrong_ones():
    collator = AlignmentCollator(Seq2SeqCollator(Tokenizer()))
    assert "alignments" not in collator([{"input_ids": [1], "labels": [1]}])
    with pytest.raises(ValueError, match="3-0 lies outside of 2 source and 1 target tokens"):
        collator([{"input_ids": [5, 1], "labels": [1], "alignments": [[3, 0]]}])

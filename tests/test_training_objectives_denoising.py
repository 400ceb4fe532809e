"""BART's noises and BERT's masks: what they keep, how much they take, and that chance is fair."""

from collections import Counter
from itertools import chain, pairwise, permutations

import numpy as np
import pytest

from english import CHI_SQUARE, chi_square, paragraphs, tokenizer
from transduct import TransductTokenizer
from transduct.training.objectives import (
    Compose,
    DocumentRotation,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
    TokenText,
    bart_noise,
    example_generator,
)
from transduct.training.objectives.denoising import _span_lengths, infill, permute_sentences

BOS, EOS, MASK, FIRST, STOP = 0, 1, 2, 3, 100
LENGTHS = [*range(71), 512]

TEXT = TokenText((b"\n", b"\n", b" _", *(f" w{i}".encode() for i in range(FIRST, STOP)), b"."), np.arange(101) < 2, MASK)
"""101 ids: two special tokens, a mask, 97 words, and a full stop that ends the word before it."""

NOISES = {
    "mask": TokenMasking(TEXT),
    "delete": TokenDeletion(TEXT),
    "infill": TextInfilling(TEXT),
    "permute": SentencePermutation(TEXT),
    "rotate": DocumentRotation(TEXT),
    "compose": Compose((SentencePermutation(TEXT), TextInfilling(TEXT), TokenDeletion(TEXT))),
}


def body(length: int) -> list[int]:
    """Words with a full stop about every five."""
    rng = np.random.default_rng(length)
    return np.where(rng.random(length) < 0.2, STOP, rng.integers(FIRST, STOP, length)).tolist()


def is_subsequence(part, whole) -> bool:
    rest = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.parametrize("name", NOISES)
def test_labels_are_the_text_and_special_tokens_stay(name):
    for length in LENGTHS:
        for ids in ([BOS, *body(length), EOS], body(length), [*body(length), EOS]):
            example = NOISES[name](ids, example_generator(0, 0, length))
            noisy = example["input_ids"].tolist()
            assert example["labels"].tolist() == ids
            assert (noisy[:1] == [BOS]) == (ids[:1] == [BOS])
            assert (noisy[-1:] == [EOS]) == (ids[-1:] == [EOS])
            assert Counter(t for t in noisy if t < 2) == Counter(t for t in ids if t < 2)
            assert not Counter(t for t in noisy if t != MASK) - Counter(ids), "a token was invented"


@pytest.mark.parametrize("name", NOISES)
def test_the_same_numbers_make_the_same_noise_and_the_text_is_left_alone(name):
    ids = np.array([BOS, *body(60), EOS])
    before = ids.copy()
    made = [NOISES[name](ids, example_generator(0, epoch, 5))["input_ids"].tolist() for epoch in (0, 1, 2, 3, 0)]
    assert np.array_equal(ids, before)
    assert made[0] == made[-1]
    assert len({tuple(noisy) for noisy in made}) > 1
    if name != "compose":
        NOISES[name].apply(ids, example_generator(0, 0, 5))
        assert np.array_equal(ids, before)


# ---- masking and deletion --------------------------------------------------------------------------------------------
def test_masking_takes_its_share():
    for length in LENGTHS:
        example = TokenMasking(TEXT, share=0.15)([BOS, *body(length), EOS], example_generator(0, 0, length))
        changed = example["input_ids"] != example["labels"]
        assert changed.sum() == (max(round(0.15 * length), 1) if length else 0)
        assert (example["input_ids"][changed] == MASK).all()
        everything = TokenMasking(TEXT, share=1.0)(body(length), example_generator(0, 0, length))
        assert (everything["input_ids"] == MASK).all()
        nothing = TokenMasking(TEXT, share=0.0)(body(length), example_generator(0, 0, length))
        assert np.array_equal(nothing["input_ids"], nothing["labels"])


def test_every_token_is_masked_equally_often():
    counts = np.zeros(20)
    for index in range(2000):
        noisy = TokenMasking(TEXT, share=0.2)([BOS, *[50] * 20, EOS], example_generator(0, 0, index))["input_ids"]
        counts += noisy[1:-1] == MASK
    assert chi_square(counts.tolist()) < CHI_SQUARE[19]


def test_bert_masks_80_replaces_10_and_keeps_10_percent():
    objective = TokenMasking(TEXT, share=0.15, random_share=0.1, keep_share=0.1, predict="chosen")
    fates, replaced, rounds = Counter(), set(), 400
    for index in range(rounds):
        ids = np.array([BOS, *[50] * 100, EOS])
        example = objective(ids, example_generator(0, 0, index))
        chosen = example["labels"] != -100
        assert chosen.sum() == 15
        assert np.array_equal(example["labels"][chosen], ids[chosen])
        assert np.array_equal(example["input_ids"][~chosen], ids[~chosen])
        for token in example["input_ids"][chosen].tolist():
            fates[{MASK: "mask", 50: "keep"}.get(token, "random")] += 1
            replaced.add(token)
    total = 15 * rounds
    assert replaced == {MASK, *range(FIRST, STOP + 1)}, "any token but the special ones"
    for fate, share in (("mask", 0.8), ("random", 0.1), ("keep", 0.1)):  # a random token is the same again once in 98
        assert abs(fates[fate] - share * total) < 4 * np.sqrt(total * share * (1 - share)) + total * 0.1 / 98, fate


def test_bert_of_english():
    english = tokenizer("unigram")
    objective = TokenMasking.bert(english)
    assert (objective.share, objective.random_share, objective.keep_share, objective.predict) == (0.15, 0.1, 0.1, "chosen")
    ids = english(paragraphs()[0])["input_ids"]
    example = objective(ids, example_generator(0, 0, 0))
    assert len(example["input_ids"]) == len(example["labels"]) == len(ids)
    assert (example["labels"] != -100).sum() == round(0.15 * (len(ids) - 1))


def test_deletion_takes_its_share_and_keeps_the_order():
    for length in LENGTHS:
        example = TokenDeletion(TEXT, share=0.3)([BOS, *body(length), EOS], example_generator(0, 0, length))
        assert len(example["labels"]) - len(example["input_ids"]) == round(0.3 * length)
        assert is_subsequence(example["input_ids"].tolist(), example["labels"].tolist())


# ---- infilling -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mean", [0.0, 0.5, 3.0, 30.0])
def test_span_lengths_use_up_the_budget(mean):
    for budget in range(1, 71):
        lengths = _span_lengths(budget, mean, np.random.default_rng(budget))
        assert np.maximum(lengths, 1).sum() == budget
        assert lengths.min() >= 0


def test_span_lengths_are_poisson():
    """All but the one that is cut to the budget; the bound is four standard deviations of each share."""
    lengths = _span_lengths(60_000, 3.0, np.random.default_rng(0))
    poisson = np.exp(-3) * np.cumprod([1, *(3 / np.arange(1, 8))])
    for k, share in enumerate(poisson):
        assert abs((lengths == k).mean() - share) < 4 * np.sqrt(share * (1 - share) / len(lengths)) + 1 / len(lengths), k


@pytest.mark.parametrize("share", [0.0, 0.15, 0.3, 1.0])
@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_infilling_hides_whole_words_within_its_budget(share, mean):
    noise = TextInfilling(TEXT, share=share, mean_words=mean)
    for length in LENGTHS:
        ids = [BOS, *body(length), EOS]
        noisy = noise(ids, example_generator(0, 0, length))["input_ids"].tolist()
        kept = [token for token in noisy if token != MASK]
        words = int(TEXT.word_starts(np.array(ids)).sum())
        kept_words = int(TEXT.word_starts(np.array(noisy)).sum()) - noisy.count(MASK)
        budget = int(np.ceil(share * words))
        assert is_subsequence(kept, ids)
        assert words - kept_words <= budget
        assert (noisy == ids) == (budget == 0)
        if mean == 0:
            assert (kept, noisy.count(MASK)) == (ids, budget)


def test_placements_are_equally_likely():
    """Where a span of two words and an empty one fell on five words: 5 * 4 ways to arrange them and the three that are left.

    In 4 of the 16 texts the masks stand side by side, whichever of them is the empty one: these are twice as likely.
    """
    ids, fixed, counts = np.arange(10, 15), np.zeros(5, bool), Counter()
    for index in range(12_000):
        noisy = infill(ids, fixed, ~fixed, 0.6, 1.0, MASK, example_generator(0, 0, index)).tolist()
        if noisy.count(MASK) == 2 and len(noisy) == 5:
            counts[tuple(noisy)] += 1
    ways = {noisy: 2 if any(pair == (MASK, MASK) for pair in pairwise(noisy)) else 1 for noisy in counts}
    assert len(counts) == 16
    assert sum(ways.values()) == 20
    expected = {noisy: sum(counts.values()) * ways[noisy] / 20 for noisy in counts}
    assert min(expected.values()) > 50
    assert sum((counts[noisy] - expected[noisy]) ** 2 / expected[noisy] for noisy in counts) < CHI_SQUARE[15]


def test_a_span_goes_on_behind_a_special_token_with_a_mask_of_its_own():
    ids = np.array([BOS, 10, 11, EOS, BOS, 12, 13, EOS])
    fixed = ids < 2
    everything = infill(ids, fixed, ~fixed, 1.0, 1e6, MASK, np.random.default_rng(0))
    assert everything.tolist() == [BOS, MASK, EOS, BOS, MASK, EOS]


def test_pieces_of_a_word_go_together():
    ids = np.array([10, 11, 12, 13, 14, 15])
    starts = np.array([1, 0, 1, 0, 0, 1], bool)
    seen = set()
    for index in range(60):
        seen.add(tuple(infill(ids, np.zeros(6, bool), starts, 0.3, 1e6, MASK, example_generator(0, 0, index)).tolist()))
    assert seen == {(MASK, 12, 13, 14, 15), (10, 11, MASK, 15), (10, 11, 12, 13, 14, MASK)}


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe"])
def test_infilling_of_english(kind):
    english = tokenizer(kind)
    noise = TextInfilling.from_tokenizer(english)
    hidden, words, masks = 0, 0, 0
    for epoch in range(4):
        for index, text in enumerate(paragraphs()):
            noisy = noise(english(text)["input_ids"], example_generator(0, epoch, index))["input_ids"]
            parts = english.decode(noisy).replace("<mask>", " <mask> ").replace("</s>", "").split()
            kept = [part for part in parts if part != "<mask>"]
            assert is_subsequence(kept, text.split()), "words are whole and in order"
            hidden, words, masks = (
                hidden + len(text.split()) - len(kept),
                words + len(text.split()),
                masks + len(parts) - len(kept),
            )
    assert 0.28 < hidden / words < 0.31  # 30 %, rounded up for each text, less what empty spans use: 1 in 20 of 3 words
    assert 2.7 < hidden / masks < 3.1  # the mean length 3, less what is cut to the budget


# ---- sentences and documents -----------------------------------------------------------------------------------------
def test_sentences_change_places_whole_and_every_order_is_equally_likely():
    sentences = [[10, STOP], [20, 21, STOP], [30]]
    ids = np.array([BOS, *chain(*sentences), EOS])
    counts = Counter(tuple(SentencePermutation(TEXT)(ids, example_generator(0, 0, i))["input_ids"].tolist()) for i in range(3000))
    assert set(counts) == {(BOS, *chain(*order), EOS) for order in permutations(sentences)}
    assert chi_square(list(counts.values())) < CHI_SQUARE[5]


@pytest.mark.parametrize(("share", "most"), [(0.0, 0), (0.1, 0), (0.4, 2), (1.0, 5)])
def test_a_share_of_the_sentences_moves(share, most):
    ids = np.repeat(np.arange(10, 15), 2)
    ends = np.arange(10) % 2 == 1
    moved = [
        int((permute_sentences(ids, np.zeros(10, bool), ends, share, example_generator(0, 0, i)) != ids).sum()) // 2
        for i in range(200)
    ]
    assert max(moved) == most


def test_sentences_stay_between_special_tokens():
    ids = [BOS, 10, STOP, 11, STOP, EOS, 20, STOP, 21, STOP, EOS]
    seen = {tuple(SentencePermutation(TEXT)(ids, example_generator(0, 0, i))["input_ids"].tolist()) for i in range(60)}
    documents = [[(10, STOP, 11, STOP), (11, STOP, 10, STOP)], [(20, STOP, 21, STOP), (21, STOP, 20, STOP)]]
    assert seen == {(BOS, *one, EOS, *two, EOS) for one in documents[0] for two in documents[1]}


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe"])
def test_permutation_of_english(kind):
    english = tokenizer(kind)
    noise = SentencePermutation.from_tokenizer(english)
    changed = 0
    for index, text in enumerate(paragraphs()[:40]):
        ids = english(text)["input_ids"]
        noisy = noise(ids, example_generator(0, 0, index))["input_ids"].tolist()
        assert sorted(noisy) == sorted(ids)
        changed += noisy != ids
    assert changed > 20
    ids = english("The array is empty. It is an array! Is it?")["input_ids"]
    texts = {english.decode(noise(ids, example_generator(0, 0, i))["input_ids"], skip_special_tokens=True) for i in range(60)}
    sentences = ("The array is empty.", "It is an array!", "Is it?")
    assert {text.replace(" ", "") for text in texts} == {"".join(order).replace(" ", "") for order in permutations(sentences)}


def test_sentences_of_another_language():
    text = ["यह एक किताब है।", " ठीक है।", " हाँ।"]
    hindi = TransductTokenizer.train(iter(text), kind="chars")
    noise = SentencePermutation.from_tokenizer(hindi)
    ids = hindi("".join(text))["input_ids"]
    made = {hindi.decode(noise(ids, example_generator(0, 0, i))["input_ids"], skip_special_tokens=True) for i in range(60)}
    assert made == {"".join(order) for order in permutations(text)}


def test_rotation_begins_with_any_token_equally_often():
    ids = [BOS, 10, 11, 12, 13, 14, EOS]
    counts = Counter(tuple(DocumentRotation(TEXT)(ids, example_generator(0, 0, i))["input_ids"].tolist()) for i in range(2500))
    assert set(counts) == {(BOS, *np.roll(ids[1:-1], k).tolist(), EOS) for k in range(5)}
    assert chi_square(list(counts.values())) < CHI_SQUARE[4]


# ---- together --------------------------------------------------------------------------------------------------------
def test_bart_noise_permutes_then_infills():
    english = tokenizer("byte_bpe")
    bart = bart_noise(english)
    permutation, infilling = bart.noises
    assert isinstance(permutation, SentencePermutation)
    assert isinstance(infilling, TextInfilling)
    assert (permutation.share, infilling.share, infilling.mean_words) == (1.0, 0.3, 3.0)
    ids = np.array(english(paragraphs()[0])["input_ids"])
    one, two = example_generator(0, 0, 0), example_generator(0, 0, 0)
    assert np.array_equal(bart(ids, one)["input_ids"], infilling.apply(permutation.apply(ids, two), two))


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: TokenMasking(TEXT, share=1.2), "share=1.2"),
     (lambda: TokenMasking(TEXT, random_share=0.6, keep_share=0.6), "more than 1"),
     (lambda: TokenMasking(TEXT, predict="all"), "predict='all'"), (lambda: TokenDeletion(TEXT, share=-0.1), "share=-0.1"),
     (lambda: TextInfilling(TEXT, mean_words=-1), "mean_words=-1"),
     (lambda: TextInfilling(TEXT, mean_words=float("nan")), "mean_words"),
     (lambda: SentencePermutation(TEXT, share=2), "share=2"), (lambda: Compose(()), "noises is empty"),
     (lambda: Compose((TokenMasking(TEXT, predict="chosen"),)), "stands alone"),
     (lambda: TextInfilling(TokenText(TEXT.pieces, TEXT.fixed)), 'mask_token="<mask>"'),
     (lambda: TokenMasking(TokenText(TEXT.pieces, TEXT.fixed)), 'mask_token="<mask>"')],
)  # fmt: skip
def test_refuses_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", NOISES)
def test_refuses_ids_outside_the_vocabulary(name):
    with pytest.raises(ValueError, match="ids holds 101, but the vocabulary has 101"):
        NOISES[name]([50, 101], np.random.default_rng(0))

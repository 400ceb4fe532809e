"""BPE dropout and unigram sampling against their definitions, written out for small words."""

from collections import Counter
from itertools import product
from math import exp

import numpy as np
import pytest

from transduct.tokenization import TransductTokenizer
from transduct.training.encoding import PairEncoder
from transduct.training.objectives import example_generator
from transduct.training.reading import Row
from transduct.training.recipe_data import SplitSource, SubwordSection
from transduct.training.subwords import BPEDropout, Draws, SubwordSampler, SubwordVariation, UnigramSampling

TEXTS = ["low lower lowest", "new newer newest", "wide wider widest", "slow slower", "the widest slow river"]
KINDS = ["bpe", "byte_bpe", "unigram"]


def tokenizer_of(kind: str, **options) -> TransductTokenizer:
    sizes = {"bpe": 60, "byte_bpe": 300, "unigram": 60}
    return TransductTokenizer.train(iter(TEXTS * 3), kind, vocab_size=sizes[kind] + (256 if options else 0), **options)


def sampler_of(kind: str, amount: float, target: bool = False, **options) -> SubwordSampler:
    section = SubwordSection(alpha=amount) if kind == "unigram" else SubwordSection(dropout=amount)
    return SubwordSampler(tokenizer_of(kind, **options), section, target)


def draws(count: int, seed: int = 0) -> list[Draws]:
    return [Draws(np.random.default_rng((seed, i))) for i in range(count)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in KINDS), ("bpe", {"byte_fallback": True}), ("unigram", {"byte_fallback": True})],
)
def test_without_chance_the_ids_are_the_tokenizers_own(kind, options):
    sampler = sampler_of(kind, 1e6 if kind == "unigram" else 0.0, **options)
    texts = [*TEXTS, "slowest xylophone 12 é", "", "  the   new", "</s> low <unk> low", "new" * 30]
    assert sampler(texts, draws(len(texts))) == sampler.tokenizer(texts)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampled_text_is_the_same_text(kind):
    sampler = sampler_of(kind, 0.5 if kind != "unigram" else 0.01)
    plain = sampler.tokenizer(TEXTS)["input_ids"]
    cut = sampler(TEXTS, draws(len(TEXTS)))
    assert cut != plain
    assert sampler.tokenizer.batch_decode(cut) == sampler.tokenizer.batch_decode(plain)
    assert sampler(TEXTS, draws(len(TEXTS))) == cut  # the same random numbers
    assert sampler(TEXTS, draws(len(TEXTS), seed=1)) != cut


def test_what_is_no_word_stays():
    sampler = sampler_of("bpe", 1.0, byte_fallback=True)
    text = "low</s>é<unk>"
    tokens = sampler.tokenizer.convert_ids_to_tokens(sampler([text], draws(1))[0])
    assert tokens == ["▁", "l", "o", "w", "</s>", "▁", "<0xC3>", "<0xA9>", "<unk>", "</s>"]


# ---- BPE dropout: the distribution over all ways that a word can come out ---------------------------------------------
MERGES = [("l", "o"), ("lo", "w"), ("e", "r"), ("low", "er"), ("w", "e")]
RANKS = {pair: rank for rank, pair in enumerate(MERGES)}
PIECES = frozenset("lower") | {left + right for left, right in MERGES}


def outcomes(pieces: tuple[str, ...], dropout: float) -> Counter:
    """Probability of each final segmentation, by algorithm 1 of the paper: all subsets of merges that may be dropped."""
    places = [i for i in range(len(pieces) - 1) if pieces[i : i + 2] in RANKS]
    found: Counter = Counter()
    for kept in product([True, False], repeat=len(places)):
        chance = np.prod([1 - dropout if keep else dropout for keep in kept]) if kept else 1.0
        left = [place for place, keep in zip(places, kept, strict=True) if keep]
        if not left:
            found[pieces] += chance
            continue
        best = min(left, key=lambda place: (RANKS[pieces[place : place + 2]], place))
        merged = (*pieces[:best], pieces[best] + pieces[best + 1], *pieces[best + 2 :])
        for result, share in outcomes(merged, dropout).items():
            found[result] += chance * share
    return found


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_bpe_dropout_draws_as_the_algorithm_says(dropout):
    expected = outcomes(tuple("lower"), dropout)
    assert sum(expected.values()) == pytest.approx(1)
    cut, draw, count = BPEDropout(RANKS, PIECES, dropout), draws(1)[0], 20_000
    seen = Counter(tuple(cut("lower", draw)) for _ in range(count))
    assert set(seen) <= set(expected)
    for result, share in expected.items():
        assert abs(seen[result] / count - share) < 4 * np.sqrt(share / count) + 1e-4, result


def test_bpe_dropout_at_its_ends():
    draw = draws(1)[0]
    assert BPEDropout(RANKS, PIECES, 0.0)("lower", draw) == ["lower"]
    assert BPEDropout(RANKS, PIECES, 1.0)("lower", draw) == list("lower")
    assert BPEDropout(RANKS, PIECES, 0.5)("lox", draw) is None


# ---- unigram ------------------------------------------------------------------------------------------------------------
SCORES = {"a": -2.0, "b": -2.5, "c": -3.0, "ab": -3.0, "bc": -4.0, "abc": -4.5}


def segmentations(word: str):
    if not word:
        yield ()
    for end in range(1, len(word) + 1):
        if word[:end] in SCORES:
            yield from ((word[:end], *rest) for rest in segmentations(word[end:]))


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_unigram_draws_in_proportion_to_the_probability(alpha):
    weights = {found: exp(alpha * sum(map(SCORES.get, found))) for found in segmentations("abcab")}
    total, count = sum(weights.values()), 20_000
    cut, draw = UnigramSampling(SCORES, alpha, longest=3), draws(1)[0]
    seen = Counter(tuple(cut("abcab", draw)) for _ in range(count))
    assert set(seen) <= set(weights)
    for found, weight in weights.items():
        share = weight / total
        assert abs(seen[found] / count - share) < 4 * np.sqrt(share / count) + 1e-4, found


def test_unigram_has_no_segmentation_of_unknown_characters():
    assert UnigramSampling(SCORES, 0.5, 3)("abx", draws(1)[0]) is None


# ---- pairs ---------------------------------------------------------------------------------------------------------------
def pair_variation(section: SubwordSection, **limits) -> SubwordVariation:
    tokenizer = TransductTokenizer.train(
        iter(TEXTS * 3), "bpe", vocab_size=60, target=iter(TEXTS * 3), target_vocab_size=50, languages=["de"]
    )
    return SubwordVariation(PairEncoder(tokenizer, SplitSource(target_language="de"), **limits, keep_texts="pair"), section)


def varied(variation: SubwordVariation, epoch: int):
    examples = list(variation.encoder([Row(text, (text,), "", "") for text in TEXTS]))
    return examples, variation(examples, [example_generator(1, epoch, i) for i in range(len(examples))])


@pytest.mark.parametrize(("sides", "changes"), [("both", (True, True)), ("source", (True, False)), ("target", (False, True))])
def test_pairs_are_cut_anew_on_the_sides_that_are_named(sides, changes):
    variation = pair_variation(SubwordSection(dropout=0.5, sides=sides))
    examples, cut = varied(variation, epoch=0)
    tokenizer = variation.encoder.tokenizer
    for column, changed in zip(("input_ids", "labels"), changes, strict=True):
        assert ([e[column] for e in cut] != [e[column] for e in examples]) is changed
        source = column == "input_ids"
        texts = [tokenizer.decode(e[column], skip_special_tokens=True, use_source_tokenizer=source) for e in cut]
        assert [text.strip() for text in texts] == TEXTS
    assert {e["input_ids"][0] for e in cut} == {tokenizer.convert_tokens_to_ids("<2de>")}
    assert varied(variation, epoch=0)[1] == cut
    assert varied(variation, epoch=1)[1] != cut


def test_a_pair_that_would_become_too_long_stays_as_it_is():
    longest = max(len(e["input_ids"]) for e in varied(pair_variation(SubwordSection(dropout=0.5)), 0)[0])
    examples, cut = varied(pair_variation(SubwordSection(dropout=1.0), max_source_tokens=longest), 0)
    assert max(len(e["input_ids"]) for e in cut) <= longest
    stay = [before["input_ids"] == after["input_ids"] for before, after in zip(examples, cut, strict=True)]
    assert any(stay)
    assert all(before["labels"] != after["labels"] for before, after in zip(examples, cut, strict=True))


@pytest.mark.parametrize(
    ("kind", "section", "message"),
    [
        ("unigram", SubwordSection(dropout=0.1), "dropout=0.1 is for BPE, but the tokenizer is Unigram"),
        ("bpe", SubwordSection(alpha=0.1), "alpha=0.1 is for unigram, but the tokenizer is BPE"),
    ],
)
def test_the_tokenizer_must_fit(kind, section, message):
    with pytest.raises(ValueError, match=message):
        SubwordSampler(tokenizer_of(kind), section, target=False)


def test_marks_that_are_not_supported():
    from transduct.training.subwords import make_cutter

    model = {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}
    with pytest.raises(ValueError, match="end_of_word_suffix='</w>' is not supported"):
        make_cutter(model, SubwordSection(dropout=0.1))

"""Span corruption, language models, UL2, and the random numbers of an example."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

import transduct.training
from english import CHI_SQUARE, chi_square, paragraphs, tokenizer
from transduct.training import objectives
from transduct.training.objectives import UL2, CausalLM, Denoiser, PrefixLM, SpanCorruption, example_generator
from transduct.training.objectives.examples import random_composition, token_ids
from transduct.training.objectives.spans import corrupt, noise_mask, span_corruption_lengths

EOS = 1
SENTINELS = tuple(range(999, 699, -1))
RATES = [(0.15, 3), (0.15, 8), (0.5, 3), (0.5, 8), (0.15, 64), (0.5, 64), (0.15, 1), (0.9, 2), (0.01, 3)]
LENGTHS = [*range(71), 512]


def text_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(2, 600, length)


def put_back(inputs, labels, sentinels=SENTINELS):
    """The text again, from what was left and what was hidden."""
    spans, current = {}, None
    for token in labels[:-1]:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [token for seen in inputs[:-1] for token in (spans.pop(seen) if seen in sentinels else [seen])], spans


# ---- random numbers --------------------------------------------------------------------------------------------------
def test_random_numbers_depend_on_seed_epoch_and_index():
    draws = {key: tuple(example_generator(*key).integers(0, 2**60, 3)) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(set(draws.values())) == 4
    for key in reversed(draws):
        np.random.default_rng().random()
        assert tuple(example_generator(*key).integers(0, 2**60, 3)) == draws[key]
    with pytest.raises(ValueError, match="epoch=-1 must not be negative"):
        example_generator(0, -1, 0)


@pytest.mark.parametrize(("total", "parts"), [(6, 3), (7, 4), (5, 2), (6, 2), (7, 6)])
def test_compositions_are_equally_likely(total, parts):
    rng = np.random.default_rng(0)
    possible = {tuple(np.diff([0, *cut, total]).tolist()) for cut in combinations(range(1, total), parts - 1)}
    counts = Counter()
    for _ in range(6000):
        counts[tuple(random_composition(total, parts, rng).tolist())] += 1
    assert set(counts) == possible
    assert chi_square(list(counts.values())) < CHI_SQUARE[len(counts) - 1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [([[1, 2]], r"shape \(1, 2\)"), ([1.5], "float64"), ([3, -100], "holds -100"), (["a"], "<U1"), (5, "shape")],
)
def test_refuses_what_is_no_text(ids, message):
    for objective in (SpanCorruption(SENTINELS, EOS), PrefixLM(EOS), CausalLM(EOS)):
        with pytest.raises(ValueError, match=message):
            objective(ids, np.random.default_rng(0))


def test_token_ids_are_a_copy():
    ids = np.arange(3, dtype=np.int32)
    copy = token_ids(ids)
    copy[0] = 9
    assert ids[0] == 0
    assert copy.dtype == np.int64
    assert token_ids([]).shape == (0,)


# ---- span corruption -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("inputs_length", "density", "mean_span", "expected"),
    [(512, 0.15, 3, (568, 114)), (512, 0.15, 8, (588, 100)), (512, 0.5, 3, (766, 512)), (512, 0.15, 64, (600, 92)),
     (256, 0.15, 3, (284, 58))],
)  # fmt: skip
def test_published_lengths(inputs_length, density, mean_span, expected):
    assert span_corruption_lengths(inputs_length, density, mean_span) == expected
    assert SpanCorruption(SENTINELS, EOS, density, mean_span).lengths(inputs_length) == expected


@pytest.mark.parametrize(("density", "mean_span"), RATES)
def test_lengths_are_those_of_real_examples_and_one_token_more_is_too_long(density, mean_span):
    rng = np.random.default_rng(0)

    def sizes(raw):
        inputs, labels = corrupt(text_of(raw), noise_mask(raw, density, mean_span, rng), range(2000, 1000, -1), EOS)
        return len(inputs), len(labels)

    for inputs_length in (*range(3, 60), 128, 256, 512):
        raw, targets_length = span_corruption_lengths(inputs_length, density, mean_span)
        assert sizes(raw) in ((inputs_length, targets_length), (inputs_length - 1, targets_length))
        more = sizes(raw + 1)
        assert more[0] > inputs_length or (density == 0.5 and more[1] > inputs_length)


def test_labels_hold_what_input_lacks():
    inputs, labels = corrupt(np.array([10, 11, 12, 13, 14]), np.array([1, 1, 0, 0, 1], bool), (99, 98, 97), EOS)
    assert inputs.tolist() == [99, 12, 13, 98, EOS]
    assert labels.tolist() == [99, 10, 11, 98, 14, EOS]


@pytest.mark.parametrize(("density", "mean_span"), RATES)
def test_nothing_is_lost_at_any_length(density, mean_span):
    objective = SpanCorruption(SENTINELS, EOS, density, mean_span)
    for length in LENGTHS:
        text = text_of(length)
        example = objective(text, example_generator(0, 0, length))
        inputs, labels = example["input_ids"].tolist(), example["labels"].tolist()
        back, left = put_back(inputs, labels)
        assert back == text.tolist()
        assert not left
        assert inputs[-1] == labels[-1] == EOS
        used = [token for token in inputs if token in SENTINELS]
        assert used == list(SENTINELS[: len(used)]) == [token for token in labels if token in SENTINELS]
        if length < 2:
            assert not used
            continue
        hidden = len(labels) - len(used) - 1
        assert hidden == min(max(round(length * density), 1), length - 1)
        assert len(used) == min(max(round(hidden / mean_span), 1), hidden, length - hidden)
        assert inputs[0] == text[0]
        assert labels[-2] == text[-1]


@pytest.mark.parametrize("hidden_spans", [0, 1])
def test_spans_of_the_hidden_and_of_the_seen_are_both_uniform(hidden_spans):
    """Of 12 tokens half are hidden, in 3 spans: 10 ways to cut the 6 hidden ones, and as many for the others."""
    rng = np.random.default_rng(1)
    counts = Counter()
    for _ in range(6000):
        mask = noise_mask(12, 0.5, 2, rng).astype(int)
        edges = np.flatnonzero(np.diff(mask)) + 1
        counts[tuple(np.diff([0, *edges, 12])[hidden_spans::2].tolist())] += 1
    assert len(counts) == 10
    assert chi_square(list(counts.values())) < CHI_SQUARE[9]


def test_an_end_token_is_neither_hidden_nor_doubled():
    objective = SpanCorruption(SENTINELS, EOS, 0.5, 2)
    for index in range(30):
        plain, ended = (objective(ids, example_generator(0, 0, index)) for ids in ([5, 6, 7, 8], [5, 6, 7, 8, EOS]))
        assert all(np.array_equal(plain[name], ended[name]) for name in ("input_ids", "labels"))


def test_ids_that_look_special_survive():
    text = [0, EOS, 5, 0, 0, EOS, 7, 0]
    for index in range(30):
        example = SpanCorruption(SENTINELS, EOS, 0.5, 2)(text, example_generator(0, 0, index))
        assert put_back(example["input_ids"].tolist(), example["labels"].tolist()) == (text, {})


def test_too_few_sentinels():
    with pytest.raises(ValueError, match=r"a text of 100 tokens has 5 spans, but there are only 3 sentinels"):
        SpanCorruption(SENTINELS[:3], EOS)(np.arange(2, 102), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"density": 0}, "density=0 must"), ({"density": 1.0}, "density=1.0 must"), ({"mean_span": 0.5}, "mean_span=0.5 must"),
     ({"density": float("nan")}, "density=nan"), ({"sentinels": ()}, "sentinels is empty"), ({"sentinels": (7, 7)}, "distinct"),
     ({"sentinels": (-7,)}, "sentinels=-7"), ({"eos_token_id": None}, "eos_token_id=None")],
)  # fmt: skip
def test_span_corruption_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        SpanCorruption(**{"sentinels": SENTINELS, "eos_token_id": EOS, **options})


def test_lengths_refuse():
    with pytest.raises(ValueError, match="inputs_length=2 must be at least 3"):
        span_corruption_lengths(2, 0.15, 3)
    with pytest.raises(ValueError, match="density=2"):
        span_corruption_lengths(512, 2, 3)


@pytest.mark.parametrize("kind", ["unigram", "byte_bpe"])
def test_span_corruption_of_english(kind):
    english = tokenizer(kind)
    objective = SpanCorruption.from_tokenizer(english)
    assert list(objective.sentinels) == english.get_sentinel_token_ids()
    assert objective.sentinels[0] == len(english) - 1
    for index, text in enumerate(paragraphs()[:40]):
        ids = english(text)["input_ids"][:300]
        example = objective(ids, example_generator(0, 0, index))
        back, left = put_back(example["input_ids"].tolist(), example["labels"].tolist(), objective.sentinels)
        assert not left
        assert back == [token for token in ids if token != EOS]
        assert english.decode(example["labels"]).startswith("<extra_id_0>")


# ---- language models -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("end", [[], [EOS]])
def test_prefix_lm_cuts_the_text_in_two(end):
    for length in LENGTHS:
        text = text_of(length).tolist()
        two = PrefixLM(EOS)(text + end, example_generator(0, 0, length))
        one = PrefixLM(EOS, form="decoder")(text + end, example_generator(0, 0, length))
        inputs, labels = two["input_ids"].tolist(), two["labels"].tolist()
        assert inputs[:-1] + labels == [*text, EOS]
        assert inputs[-1] == EOS
        assert length < 2 or min(len(inputs), len(labels)) > 1
        assert one["input_ids"].tolist() == [*text, EOS]
        assert one["prefix_mask"].tolist() == [True] * (len(inputs) - 1) + [False] * len(labels)
        assert one["labels"].tolist() == [-100] * (len(inputs) - 1) + labels


def test_prefix_lm_cuts_anywhere_equally_often_or_where_it_is_told():
    rng = np.random.default_rng(0)
    counts = Counter(len(PrefixLM(EOS)(np.arange(2, 9), rng)["input_ids"]) - 1 for _ in range(3000))
    assert set(counts) == {1, 2, 3, 4, 5, 6}
    assert chi_square(list(counts.values())) < CHI_SQUARE[5]
    for length, written in ((2, 1), (4, 1), (100, 25), (512, 128)):
        example = PrefixLM(EOS, target_share=0.25)(np.arange(2, 2 + length), rng)
        assert len(example["labels"]) - 1 == written


def test_causal_lm():
    for text in ([5, 6], [5, 6, EOS]):
        example = CausalLM(EOS)(text, np.random.default_rng(0))
        assert example["input_ids"].tolist() == example["labels"].tolist() == [5, 6, EOS]
        assert example["input_ids"] is not example["labels"]


def test_language_models_refuse():
    with pytest.raises(ValueError, match=r"target_share=1.5"):
        PrefixLM(EOS, target_share=1.5)
    with pytest.raises(ValueError, match="form='encoder'"):
        PrefixLM(EOS, form="encoder")
    with pytest.raises(ValueError, match="eos_token_id=-1"):
        CausalLM(-1)


# ---- UL2 -------------------------------------------------------------------------------------------------------------
MODES = {"[NLU]": 2, "[NLG]": 3, "[S2S]": 4}


def test_ul2_has_the_seven_denoisers_of_the_paper():
    found = [(denoiser.mode, denoiser.mean_span, denoiser.density) for denoiser in UL2(SENTINELS, EOS, MODES).denoisers]
    regular = [("[NLU]", 3, 0.15), ("[NLU]", 8, 0.15)]
    extreme = [("[NLG]", 3, 0.5), ("[NLG]", 8, 0.5), ("[NLG]", 64, 0.15), ("[NLG]", 64, 0.5)]
    assert sorted(found, key=str) == sorted([*regular, *extreme, ("[S2S]", None, 0.25)], key=str)


def which(example, length=512) -> int:
    """The place in `denoisers` of what made an example: seen by the mode, the labels' length and the number of spans."""
    mode, spans = int(example["input_ids"][0]), int(np.isin(example["labels"], SENTINELS).sum())
    hidden = len(example["labels"]) - spans - 1
    known = {(2, 77, 26): 0, (2, 77, 10): 1, (3, 256, 85): 2, (3, 256, 32): 3, (3, 77, 1): 4, (3, 256, 4): 5, (4, 128, 0): 6}
    return known[mode, hidden, spans]


def test_ul2_draws_each_denoiser_equally_often():
    ul2 = UL2(SENTINELS, EOS, MODES)
    text = np.arange(5, 5 + 512)
    counts = Counter(which(ul2(text, example_generator(0, 0, index))) for index in range(2100))
    assert set(counts) == set(range(7))
    assert chi_square(list(counts.values())) < CHI_SQUARE[6]


def test_ul2_weights():
    text = np.arange(5, 5 + 512)
    ul2 = UL2(SENTINELS, EOS, MODES, weights=(0, 0, 3, 0, 0, 0, 1))
    counts = Counter(which(ul2(text, example_generator(0, 0, index))) for index in range(1600))
    assert set(counts) == {2, 6}
    assert abs(counts[6] - 400) < 4 * np.sqrt(1600 * 0.25 * 0.75)  # four standard deviations


def test_ul2_loses_nothing_at_any_length():
    ul2 = UL2(SENTINELS, EOS, MODES)
    for length in LENGTHS:
        text = text_of(length)
        for epoch in range(6):
            example = ul2(text, example_generator(0, epoch, length))
            (mode, *inputs), labels = example["input_ids"].tolist(), example["labels"].tolist()
            whole = inputs[:-1] + labels[:-1] if mode == 4 else put_back(inputs, labels)[0]
            assert whole == text.tolist()
            assert len(inputs) + 1 <= length + 2
            assert len(labels) <= length + 1


def test_ul2_from_a_tokenizer():
    english = tokenizer("unigram")
    ul2 = UL2.from_tokenizer(english)
    assert ul2.modes == {mode: english.convert_tokens_to_ids(mode) for mode in MODES}
    only = UL2.from_tokenizer(english, denoisers=(Denoiser("[S2S]", 0.5, None),))
    example = only(english(paragraphs()[0])["input_ids"], np.random.default_rng(0))
    assert english.decode(example["input_ids"]).startswith("[S2S]")
    with pytest.raises(ValueError, match=r"has no tokens \['\[Z\]'\]: train it with special_tokens"):
        UL2.from_tokenizer(english, denoisers=(Denoiser("[Z]", 0.5, 3),))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"modes": {"[NLU]": 2}}, r"no token for \['\[NLG\]', '\[S2S\]'\]"), ({"denoisers": ()}, "denoisers is empty"),
     ({"weights": (1, 2)}, "of 7 denoisers must be"), ({"weights": (0,) * 7}, "not all 0"),
     ({"weights": (-1, *[1] * 6)}, "negative"),
     ({"denoisers": (Denoiser("[NLU]", 2, 3),)}, "density=2"), ({"modes": {**MODES, "[NLU]": None}}, "must be a token id")],
)  # fmt: skip
def test_ul2_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        UL2(**{"sentinels": SENTINELS, "eos_token_id": EOS, "modes": MODES, **options})


def test_all_names_are_reachable_from_the_package():
    assert transduct.training.objectives is objectives
    for package in (transduct.training, objectives):
        for name in package.__all__:
            assert getattr(package, name).__doc__, name

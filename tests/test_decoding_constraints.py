"""Phrases in beam search: always met, the best that meets them, and no more than plain beam search without them."""

import random
from functools import cache
from itertools import product

import pytest
import torch

from configs import END, PAD, START, build, pad_rows, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import ForcedPrefixes, beam_search

LENGTHS = (9, 4, 6)
SOURCES = [torch.randint(3, 38, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
FEW = [source % 20 + 3 for source in SOURCES]  # for the tiny model


@cache
def models(family: str):
    return pair(family)


@cache
def tiny_model(vocabulary: int = 23, seed: int = 5):
    model = build(TransductForConditionalGeneration, tiny(vocab_size=vocabulary, logits_bias=True), torch.float32, seed)
    with torch.no_grad():
        model.lm_head.bias[END] += 1.0
    return model


def search(model, sources, **options):
    """Ids behind the start and scores of each source's hypotheses, up to their ends."""
    ids, mask = pad_rows(sources)
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    common = dict(custom_generate=beam_search, return_dict_in_generate=True, do_sample=False) | options
    found = model.generate(ids, attention_mask=mask, **common)
    rows = [row[1 : 1 + length] for row, length in zip(found.sequences.tolist(), found.lengths.tolist(), strict=True)]
    flat, wanted = list(zip(rows, found.sequences_scores.tolist(), strict=True)), options.get("num_return_sequences", 1)
    return [flat[start : start + wanted] for start in range(0, len(flat), wanted)]


def places(ids: list[int], phrase, start: int = 0) -> list[int]:
    """Where a phrase, or one of its forms, ends."""
    several = phrase if isinstance(phrase[0], list) else [phrase]
    ends = [at + len(form) for form in several for at in range(start, len(ids)) if ids[at : at + len(form)] == form]
    return sorted(ends)


def meets(ids: list[int], phrases, ordered: bool) -> bool:
    at = 0
    for phrase in phrases:
        found = places(ids, phrase, at)
        if not found:
            return False
        at = found[0] if ordered else 0
    return True


def random_phrases(count: int, low: int = 3, high: int = 20):
    """Few tokens, so that phrases overlap and repeat each other's tokens."""
    few = random.sample(range(low, high), 3)
    form = lambda: [random.choice(few) for _ in range(random.randint(1, 3))]  # noqa: E731
    phrase = lambda: [form(), form()] if random.random() < 0.3 else form()  # noqa: E731
    return [[phrase() for _ in range(random.randint(0, 3))] for _ in range(count)]


# ---- always met ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_phrases_are_always_met(beams, ordered):
    model = tiny_model()
    sources = [words(1, length, seed=length)[0] for length in (5, 3, 7, 4)]
    for trial in range(3):
        random.seed(trial)
        phrases = random_phrases(4)
        options = dict(num_beams=beams, num_return_sequences=beams, max_new_tokens=11, early_stopping=trial % 2 == 0)
        for own, found in zip(phrases, search(model, sources, phrases=phrases, ordered_phrases=ordered, **options), strict=True):
            assert all(meets(ids, own, ordered) for ids, score in found if score > float("-inf")), (own, found)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_models_of_transformers_meet_them_as_ours(family):
    phrases = [[[5, 6], [9]], [], [[[7, 8, 7], [11]]]]
    options = dict(num_beams=4, num_return_sequences=2, max_new_tokens=12, phrases=phrases)
    theirs, ours = (search(model, SOURCES, **options) for model in models(family))
    for own, one, other in zip(phrases, theirs, ours, strict=True):
        assert [ids for ids, _ in one] == [ids for ids, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-4)
        assert all(meets(ids, own, False) for ids, _ in one)


@pytest.mark.parametrize("ordered", [False, True])
def test_as_many_tokens_as_fit(ordered):
    """Phrases, an end, and no token more: each is written at once."""
    model = tiny_model()
    phrases = [[[5, 6], [7, 8, 9]], [[4]]]
    (first,), (second,) = search(model, FEW[1:], phrases=phrases, ordered_phrases=ordered, num_beams=3, max_new_tokens=6)
    assert first[0][:5] in ([5, 6, 7, 8, 9], [7, 8, 9, 5, 6][: 0 if ordered else 5])
    assert 4 in second[0]


def test_order_is_kept_and_a_phrase_that_is_asked_for_twice_comes_twice():
    model = tiny_model()
    for phrases in ([[5], [6], [5]], [[6, 5], [5, 6]]):
        for ids, _ in search(model, FEW[:1], phrases=[phrases], ordered_phrases=True, num_beams=4, max_new_tokens=9)[0]:
            assert meets(ids, phrases, True)


def test_special_tokens_in_phrases():
    model = tiny_model()
    (((ids, _),),) = search(model, FEW[:1], phrases=[[[START, 4]]], num_beams=3, max_new_tokens=8)
    assert places(ids, [START, 4])


# ---- what is best -------------------------------------------------------------------------------------------------
def probabilities(model, source, most: int):
    """Log-probabilities of all outputs of a model with few tokens: a full pass over each one of the most tokens."""
    vocabulary = model.config.vocab_size
    tokens = [token for token in range(vocabulary) if token != END]
    every = torch.tensor(list(product(tokens, repeat=most)))  # (outputs, most)
    begun = torch.cat([torch.full((len(every), 1), START), every[:, :-1]], dim=1)
    with torch.no_grad():
        log_probs = model(source.expand(len(every), -1), decoder_input_ids=begun).logits.log_softmax(-1)  # (outputs, most, V)
    chosen = log_probs.gather(2, every[:, :, None]).squeeze(2).cumsum(1)
    totals = {tuple(ids): total for ids, total in zip(every.tolist(), chosen[:, -1].tolist(), strict=True)}
    for length in range(most):
        before = chosen[:, length - 1] if length else torch.zeros(len(every))
        ends = (before + log_probs[:, length, END]).tolist()
        totals |= {(*ids[:length], END): total for ids, total in zip(every.tolist(), ends, strict=True)}
    return totals


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "phrases",
    [[[3]], [[3], [4]], [[4], [2], [3]], [[2, 4]], [[3, 2, 4]], [[[4, 2], [3, 3]], [0]]],
    ids=lambda phrases: str(phrases),
)
def test_as_brute_force(phrases, ordered):
    """With a beam that holds every hypothesis, the best of all outputs in which the phrases stand before the last token."""
    model, most, source = tiny_model(5, seed=1), 5, torch.tensor([3, 4, 2])
    totals = probabilities(model, source, most)
    assert len(totals) == 4**5 + sum(4**length for length in range(5))
    allowed = {ids: total / len(ids) for ids, total in totals.items() if meets(list(ids[: most - 1]), phrases, ordered)}
    want = sorted(allowed.items(), key=lambda each: -each[1])[:3]
    options = dict(num_beams=400, num_return_sequences=3, max_new_tokens=most, early_stopping="never")
    (found,) = search(model, [source], phrases=[phrases], ordered_phrases=ordered, **options)
    assert [tuple(ids) for ids, _ in found] == [ids for ids, _ in want]
    assert [score for _, score in found] == pytest.approx([score for _, score in want], abs=1e-5)
    assert max(totals.items(), key=lambda each: each[1] / len(each[0]))[0] not in allowed  # or the phrases would change nothing


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 1, "repetition_penalty": 1.5},
        {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never", "length_penalty": 2.0},
        {"num_beams": 3, "early_stopping": True, "min_new_tokens": 3, "num_return_sequences": 2},
        {"num_beams": 3, "no_repeat_ngram_size": 2, "length_normalization": "gnmt", "max_length_by_source": (1, 1)},
    ],
    ids=lambda options: "-".join(options),
)
def test_without_phrases_it_is_beam_search(options):
    for model in (tiny_model(), models("bart")[0]):
        sources = FEW if model is tiny_model() else SOURCES
        plain = search(model, sources, **options)
        mixed = search(model, sources, phrases=[[], [[7]], []], **options)
        for row in (0, 2):
            assert [ids for ids, _ in mixed[row]] == [ids for ids, _ in plain[row]]
            assert [score for _, score in mixed[row]] == pytest.approx([score for _, score in plain[row]], abs=1e-5)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_is_its_rows_one_by_one(ordered):
    for trial, model in enumerate((models("bart")[1], models("t5")[0])):
        random.seed(trial)
        phrases = random_phrases(3, high=37)
        options = dict(num_beams=4, num_return_sequences=3, max_length_by_source=(1, 10), ordered_phrases=ordered)
        whole = search(model, SOURCES, phrases=phrases, **options)
        for source, own, found in zip(SOURCES, phrases, whole, strict=True):
            (alone,) = search(model, [source], phrases=[own], **options)
            assert [ids for ids, _ in found] == [ids for ids, _ in alone]
            assert [score for _, score in found] == pytest.approx([score for _, score in alone], abs=1e-5)


def test_lengths_by_source():
    model = tiny_model()
    sources = [words(1, length, seed=length)[0] for length in (6, 3)]
    options = dict(num_beams=3, max_length_by_source=(1, 1), min_length_by_source=(1, 0), phrases=[[[5, 6], [7]], [[8, 9]]])
    for source, own, ((ids, _),) in zip(sources, options["phrases"], search(model, sources, **options), strict=True):
        assert meets(ids, own, False)
        assert len(source) <= len(ids) <= len(source) + 1


def test_with_prefixes():
    """What is forced at the beginning counts towards a phrase."""
    model = tiny_model()
    prefixes = ForcedPrefixes([[5, 6], []])
    options = dict(num_beams=3, max_new_tokens=6, logits_processor=[prefixes], phrases=[[[6, 7, 8]], [[9]]])
    (first,), (second,) = search(model, [words(1, 4)[0]] * 2, **options)
    assert first[0][:2] == [5, 6]
    assert meets(first[0], [[6, 7, 8]], False)
    assert 9 in second[0]


# ---- refusals -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("phrases", "more", "message"),
    [
        ([[[5, 6], [7, 8]], []], {"max_new_tokens": 4}, "source 0 of the batch has phrases that take up to 4 tokens and an end"),
        (
            [[], [[5, 6, 7]]],
            {"max_length_by_source": (0, 3)},
            "source 1 of the batch has phrases that take up to 3 tokens and an end",
        ),
        ([[], [[5, END]]], {}, "source 1 of the batch has a phrase with an end token"),
        ([[[5]], [[23]]], {}, "phrases hold token 23, but the vocabulary has 23 tokens"),
        ([[[]], []], {}, "phrases[0][0]=[] must be token ids"),
        ([[], [[[5], []]]], {}, "phrases[1][0]=[[5], []] must be token ids"),
        ([[5], [6]], {}, "phrases[0][0]=5 must be token ids such as [17, 4]"),
        ([[[5, -1]], []], {}, "phrases[0][0]=[5, -1] must be token ids"),
        ([["word"], []], {}, "phrases[0][0]='word' must be token ids"),
        ([[[5]]], {}, "phrases has 1 lists, but there are 2 sources"),
        ([[[5]], []], {"bad_words_ids": [[5]]}, "source 0 of the batch has no possible output: none contains all its phrases"),
        ([[[5, 5]], []], {"no_repeat_ngram_size": 1}, "source 0 of the batch has no possible output"),
        ([[[5]], []], {"beam_groups": 2}, "phrases and beam_groups=2 exclude each other"),
        (None, {"ordered_phrases": True}, "ordered_phrases=True belongs to phrases"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_met_is_refused(phrases, more, message):
    options = dict(num_beams=2, max_new_tokens=9, phrases=phrases) | more
    with pytest.raises(ValueError) as refusal:
        search(tiny_model(), [words(1, 4)[0]] * 2, **options)
    assert message in str(refusal.value)


def test_padding_is_no_end():
    assert PAD != END  # or a phrase with padding would be refused as one that ends
    (((ids, _),),) = search(tiny_model(), FEW[1:2], phrases=[[[PAD, 4]]], num_beams=2, max_new_tokens=8)
    assert places(ids, [PAD, 4])

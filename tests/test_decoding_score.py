"""Log-probabilities of given targets: the model's own, whatever the batches, under every normalisation."""

import math

import pytest
import torch
from transformers import GenerationConfig

from tiny_translation import TEXTS, theirs, tiny_translation
from transduct import score, translate
from transduct.decoding.score import ScoredTarget, perplexity, perplexity_of, score_stream

SOURCES = ["abc", "hello there.", "x", "the end. no more!", "a"]
TARGETS = ["cba", "what?", "yz yz", "", "b"]


@pytest.fixture(scope="module")
def ours():
    return tiny_translation()


def by_hand(model, tokenizer, source: str, target: str) -> list[float]:
    """Log-probabilities of the target's tokens, one full pass each."""
    ids = tokenizer(text_target=target)["input_ids"]
    start = model.config.decoder_start_token_id
    found = []
    for place, token in enumerate(ids):
        begun = torch.tensor([[start, *ids[:place]]])
        with torch.no_grad():
            logits = model(**tokenizer([source], return_tensors="pt"), decoder_input_ids=begun).logits[0, -1]
        found.append(logits.double().log_softmax(-1)[token].item())
    return found


@pytest.mark.parametrize("family", ["transduct", "t5", "bart", "marian"])
def test_as_the_model_says(ours, family):
    model, tokenizer = ours
    model = model if family == "transduct" else theirs(family, tokenizer)
    want = [by_hand(model, tokenizer, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    found = score(model, tokenizer, SOURCES, TARGETS, per_token=True)
    for each, target, numbers in zip(found, TARGETS, want, strict=True):
        assert list(each.token_ids) == tokenizer(text_target=target)["input_ids"]
        assert list(each.token_log_probs) == pytest.approx(numbers, abs=1e-5)
        assert each.score == each.log_prob == pytest.approx(sum(numbers), abs=2e-5)
    assert score(model, tokenizer, SOURCES, TARGETS) == [each.score for each in found]
    total, tokens = sum(map(sum, want)), sum(map(len, want))
    assert perplexity(found) == pytest.approx(math.exp(-total / tokens), rel=1e-5)


def test_normalisations(ours):
    model, tokenizer = ours
    plain = score(model, tokenizer, SOURCES, TARGETS, per_token=True)
    for options, formula in (
        ({"length_normalization": "hf"}, lambda total, length: total / length),
        ({"length_normalization": "hf", "length_penalty": 0.5, "word_reward": 0.1}, lambda t, n: t / n**0.5 + 0.1 * n),
        ({"length_normalization": "gnmt"}, lambda total, length: total / ((5 + length) / 6) ** 0.6),
        ({"length_normalization": "sockeye", "length_offset": 2.0}, lambda total, length: total / ((2 + length) / 3)),
    ):
        want = [formula(each.log_prob, len(each.token_ids)) for each in plain]
        assert score(model, tokenizer, SOURCES, TARGETS, **options) == pytest.approx(want, abs=1e-6)


def test_batches_windows_and_padding_change_nothing(ours):
    model, tokenizer = ours
    want = score(model, tokenizer, SOURCES, TARGETS)
    for options in ({"max_tokens_per_batch": 1}, {"max_tokens_per_batch": 40}, {"window": 2}):
        assert score(model, tokenizer, iter(SOURCES), iter(TARGETS), **options) == pytest.approx(want, abs=1e-5)
    tokenizer.padding_side = "left"
    try:
        assert score(model, tokenizer, SOURCES, TARGETS) == pytest.approx(want, abs=1e-5)
    finally:
        tokenizer.padding_side = "right"
    model.train()
    assert score(model, tokenizer, SOURCES, TARGETS) == pytest.approx(want, abs=1e-9)
    assert model.training
    model.eval()


def test_nothing_scores_nothing(ours):
    found = score(*ours, ["", "  ", "a", ""], ["", "", "", "b"], per_token=True)
    assert found[:2] == [ScoredTarget(0.0, 0.0, (), ())] * 2
    assert all(each.log_prob < 0 for each in found[2:])  # a target of the end alone, and one without a source
    assert score(*ours, [], []) == []


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 1}, {"num_beams": 1, "renormalize_logits": True}, {"drafts": True}, {"do_sample": True}],
    ids=str,
)
def test_a_forced_token_is_certain(ours, options):
    model, tokenizer = ours
    before = model.generation_config
    forced = tokenizer.convert_tokens_to_ids("q")
    model.generation_config = GenerationConfig(**before.to_dict() | {"forced_bos_token_id": forced})
    try:
        texts = [text for text in TEXTS if text.strip()]
        found = translate(model, tokenizer, texts, return_scores=True, max_length_by_source=(1, 3), **options)
        scored = score(model, tokenizer, texts, [each.token_ids for each in found], "hf", per_token=True)
        assert [each.score for each in scored] == pytest.approx([each.score for each in found], abs=1e-5)
        assert all(each.token_log_probs[0] == 0.0 and each.certain == 1 for each in scored)
        written = score(model, tokenizer, ["abc"], ["xyz"], per_token=True)[0]  # generation would have put it there
        assert written.token_ids[0] == forced
        assert perplexity([written]) == pytest.approx(math.exp(-written.log_prob / (len(written.token_ids) - 1)))
    finally:
        model.generation_config = before


def test_no_more_than_a_window_is_read(ours):
    read = []

    def pairs():
        for number in range(7):
            read.append(number)
            yield "abc", "a"

    found = score_stream(*ours, pairs(), window=3)
    next(found)
    assert len(read) == 3
    assert len(list(found)) == 6


@pytest.mark.parametrize(
    ("sources", "targets", "options", "message"),
    [
        ("ab", ["a"], {}, "sources is one string"),
        (["ab"], "a", {}, "targets is one string"),
        (["ab", "c"], ["a"], {}, "there are more sources than targets, of which there are 1"),
        (["ab"], ["a", "b"], {}, "there are more targets than sources"),
        (["ab", "a\0"], ["a", "b"], {}, "line 2 holds a NUL"),
        (["ab"], ["a\0"], {}, "line 1 holds a NUL"),
        ([None], ["a"], {}, "the source of line 1 is a NoneType"),
        (["ab"], [5], {}, "the target of line 1 must be a text, or ids of the 40 tokens of the target vocabulary, not 5"),
        (["ab"], [b"a"], {}, "the target of line 1 must be a text, or ids"),
        (["ab", "c"], ["a", [5, 40]], {}, "the target of line 2 must be a text, or ids of the 40 tokens"),
        (["ab"], [[-1]], {}, "the target of line 1 must be a text, or ids"),
        (["ab"], [[1.5]], {}, "the target of line 1 must be a text, or ids"),
        (["ab"], ["a"], {"length_normalization": "hf", "length_penalty": float("nan")}, "length_penalty=nan must be a number"),
        (["ab"], ["a</s>b"], {}, "the target of line 1 holds the end token </s>, behind which nothing is written"),
        (["ab"], [()], {}, "the target of line 1 has no tokens"),
        (["ab", "abcdef"], ["a", "a"], {"max_source_length": 4}, "the source of line 2 has 7 tokens, more than the 4 that fit"),
        (["ab"], ["a"], {"length_normalization": "wu"}, "length_normalization='wu' must be one of"),
        (["ab"], ["a"], {"tgt_lang": "de"}, "tgt_lang='de': this model and its tokenizer know none"),
    ],
)
def test_refuses(ours, sources, targets, options, message):
    with pytest.raises(ValueError, match=message):
        score(*ours, sources, targets, **options)


def test_targets_longer_than_positions_are_refused():
    model, tokenizer = tiny_translation(positions="learned", max_positions=16)
    with pytest.raises(ValueError, match="the target of line 1 has 31 tokens, more than the 16 that fit"):
        score(model, tokenizer, ["ab"], ["abc" * 10])


def test_no_token_has_no_perplexity():
    with pytest.raises(ValueError, match="there is no token"):
        perplexity([])


def test_a_perplexity_that_no_float_holds():
    assert perplexity_of(-20.0, 10) == pytest.approx(math.exp(2.0))
    assert perplexity_of(-20_000.0, 2) == math.inf

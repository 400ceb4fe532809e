"""The coverage penalty (arXiv 1609.08144, equation 14) against brute force and a naive search with attention from full passes."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch

from configs import END, START, build, pad_rows, tiny, words
from naive_search import (
    NORMALIZATIONS,
    Found,
    decode,
    log_probabilities,
    naive_search,
    scoring_of,
    tiny_model,
)
from published import pair
from transduct import TransductForCausalLM, TransductForConditionalGeneration
from transduct.decoding import beam_search

MOST = 3


def small(vocabulary: int):
    return build(TransductForConditionalGeneration, tiny(vocab_size=vocabulary, logits_bias=True), torch.float32, seed=5)


def penalty_of(model, source, weight: float, layer: int) -> Callable[[tuple[int, ...]], float]:
    """What a hypothesis's score changes by, from one full pass over it."""

    def penalty(ids: tuple[int, ...]) -> float:
        begun = torch.tensor([[START, *ids[:-1]]])
        with torch.no_grad():
            paid = model(source[None], decoder_input_ids=begun, output_attentions=True).cross_attentions[layer][0]
        return weight * sum(math.log(min(each, 1.0)) for each in paid.mean(0).sum(0).tolist())

    return penalty


def brute_force(model, source, weight: float, layer: int, vocabulary: int) -> Found:
    """All hypotheses of at most MOST tokens."""
    others = [token for token in range(vocabulary) if token != END]
    every = [(*ids, END) for length in range(MOST) for ids in product(others, repeat=length)] + list(product(others, repeat=MOST))
    following, penalty = log_probabilities(model, source), penalty_of(model, source, weight, layer)
    found = []
    for ids in every:
        total = sum(following(ids[:place])[token] for place, token in enumerate(ids))
        found.append((total / len(ids) + penalty(ids), ids))
    return sorted(found, reverse=True)


@pytest.mark.parametrize(("weight", "layer"), [(0.2, -1), (2.0, 0)])
def test_as_brute_force(weight, layer):
    model = small(4)
    sources = [torch.tensor([3, 2, 3]), torch.tensor([2, 3])]
    ids, mask = pad_rows(sources)
    options = dict(num_beams=40, num_return_sequences=40, max_new_tokens=MOST, return_dict_in_generate=True)
    output = model.generate(
        ids, attention_mask=mask, custom_generate=beam_search, coverage_penalty=weight, coverage_layer=layer, **options
    )
    for number, source in enumerate(sources):
        want = brute_force(model, source, weight, layer, 4)
        mine = slice(40 * number, 40 * (number + 1))
        rows = [tuple(row[1 : 1 + n]) for row, n in zip(output.sequences[mine].tolist(), output.lengths[mine], strict=True)]
        assert rows == [ids for _, ids in want]
        assert output.sequences_scores[mine].tolist() == pytest.approx([value for value, _ in want], abs=1e-5)
        plain = sorted(want, key=lambda each: each[1])
        assert plain  # the penalty decides the order here:
        assert [ids for _, ids in brute_force(model, source, 0.0, layer, 4)] != [ids for _, ids in want]


@pytest.mark.parametrize("options", NORMALIZATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_exact_stopping_is_exact_as_a_naive_search_shows(options):
    """The naive search goes on to the most tokens; a long hypothesis may yet have looked at what shorter ones left out."""
    model = tiny_model(9, seed=3)
    sources = [words(1, length, seed=length, high=9)[0] for length in (5, 2, 4)]
    weight, layer, score = 0.7, 0, scoring_of(options)
    want = [
        naive_search(log_probabilities(model, source), score, 3, 8, "exact", penalty_of(model, source, weight, layer))
        for source in sources
    ]
    for wanted in (1, 2, 3):
        common = dict(num_beams=3, num_return_sequences=wanted, max_new_tokens=8, early_stopping="never") | options
        found = decode(model, sources, coverage_penalty=weight, coverage_layer=layer, **common)
        for own, every in zip(found, want, strict=True):
            assert [ids for _, ids in own] == [ids for _, ids in every[:wanted]]
            assert [value for value, _ in own] == pytest.approx([value for value, _ in every[:wanted]], abs=1e-5)


def test_batches_are_their_rows():
    for model in (small(9), pair("t5")[0], pair("bart")[0]):
        sources = [words(1, length, seed=length, high=9)[0] for length in (6, 2, 4)]
        ids, mask = pad_rows(sources)
        options = dict(num_beams=3, max_new_tokens=8, return_dict_in_generate=True, custom_generate=beam_search)
        options |= dict(coverage_penalty=0.5, early_stopping="never")
        ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
        together = model.generate(ids, attention_mask=mask, **options)
        for row, source in enumerate(sources):
            alone = model.generate(source[None], **options)
            width = alone.sequences.shape[1]
            assert torch.equal(together.sequences[row, :width], alone.sequences[0])
            assert together.sequences_scores[row].item() == pytest.approx(alone.sequences_scores.item(), abs=1e-5)
        assert model.config._attn_implementation == "sdpa"


def test_refuses():
    model = small(9)
    source = words(1, 3, high=9)
    for options, message in (
        ({"coverage_penalty": -1.0}, "coverage_penalty=-1.0 must be at least 0"),
        ({"coverage_penalty": 1.0, "coverage_layer": 2}, "attention layer 2 is not there: the decoder has 2"),
        ({"coverage_penalty": 1.0, "ensemble": [model]}, "coverage_penalty=1.0 needs one encoder-decoder"),
        ({"coverage_penalty": 1.0, "beam_groups": 2}, "coverage_penalty and beam_groups=2 exclude each other"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(source, num_beams=2, max_new_tokens=3, custom_generate=beam_search, **options)
    with pytest.raises(ValueError, match=r"needs one encoder-decoder, not an ensemble or a decoder alone"):
        build(TransductForCausalLM, tiny()).generate(
            source, num_beams=2, max_new_tokens=3, coverage_penalty=1.0, custom_generate=beam_search
        )

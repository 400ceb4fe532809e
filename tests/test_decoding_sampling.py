"""Sampling: the draws of `generate`, the distribution that is asked for, and rows that do not depend on their batch."""

import pytest
import torch
from transformers import GenerationConfig

from configs import END, START, build, pad_rows, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import ForcedPrefixes, sample
from transduct.decoding.forcing import forced

SOURCES = [words(1, length, seed=length)[0] for length in (5, 2, 7)]


def tiny_model(vocabulary: int = 23, seed: int = 5, end: float = 2.0):
    model = build(TransductForConditionalGeneration, tiny(vocab_size=vocabulary, logits_bias=True), torch.float32, seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.3)  # many tokens are likely
        model.lm_head.bias[END] += end
    return model


def draw(model, sources=SOURCES, **options):
    ids, mask = pad_rows(sources)
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    common = dict(do_sample=True, custom_generate=sample, max_new_tokens=8) | options
    return model.generate(ids, attention_mask=mask, **common)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 5, "temperature": 0.7},
        {"top_p": 0.6, "top_k": 0},
        {"typical_p": 0.5, "top_k": 0},
        {"epsilon_cutoff": 0.05, "top_k": 0},
        {"no_repeat_ngram_size": 1, "num_return_sequences": 3},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_the_draws_of_generate(family, options):
    """From the same state of torch's generator; without ends, so that no source leaves."""
    for model in pair(family):
        torch.manual_seed(3)
        want = draw(model, eos_token_id=None, custom_generate=None, **options)
        torch.manual_seed(3)
        assert torch.equal(draw(model, eos_token_id=None, **options), want)


def test_with_ends_the_first_draws_are_those_of_generate():
    model = tiny_model()
    torch.manual_seed(0)
    want = draw(model, custom_generate=None, num_return_sequences=4)
    torch.manual_seed(0)
    got = draw(model, num_return_sequences=4)
    finished = (want == END).cumsum(1).bool().view(3, 4, -1).all(1)  # (sources, length)
    steps = int((~finished.any(0)).sum()) + 1  # until the first source leaves
    assert 2 < steps < want.shape[1]
    assert torch.equal(got[:, :steps], want[:, :steps])


def test_seeds_make_a_source_independent_of_its_batch():
    for model in (tiny_model(), pair("bart")[0]):
        options = dict(num_return_sequences=3, top_k=6)
        whole = draw(model, seeds=[11, 22, 33], **options).view(3, 3, -1)
        for row, seed in enumerate((11, 22, 33)):
            alone = draw(model, [SOURCES[row]], seeds=[seed], **options)
            width = alone.shape[1]
            assert torch.equal(whole[row, :, :width], alone)
            assert set(whole[row, :, width:].flatten().tolist()) <= {model.config.pad_token_id}
        turned = draw(model, SOURCES[::-1], seeds=[33, 22, 11], **options).view(3, 3, -1)
        assert torch.equal(turned.flip(0), whole)
        assert not torch.equal(draw(model, seeds=[1, 2, 3], **options)[:, :2].flatten(), whole.flatten(0, 1)[:, :2].flatten())


def test_sources_leave_when_all_their_targets_are_done():
    model, calls = tiny_model(end=-1e4), []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(kwargs["input_ids"] if "input_ids" in kwargs else args[0])),
        with_kwargs=True,
    )
    out = draw(model, num_return_sequences=2, max_length_by_source=(1, -1))
    limits = [len(source) - 1 for source in SOURCES]  # 4, 1, 6
    assert calls == [2 * sum(limit > step for limit in limits) for step in range(6)]
    assert [int((row != 0).sum()) for row in out[::2]] == [1 + limit for limit in limits]


def test_the_distribution_of_the_first_two_tokens():
    """Counts of 4000 draws against the model's own probabilities: chi-square below its 99.9 % quantile."""
    model = tiny_model(vocabulary=5, seed=2, end=0.5)
    source = torch.tensor([3, 4, 2])
    torch.manual_seed(0)
    out = draw(model, [source], num_return_sequences=4000, max_new_tokens=2, top_k=0)
    with torch.no_grad():
        first = model(source[None], decoder_input_ids=torch.tensor([[START]])).logits[0, -1].softmax(-1)
        begun = torch.tensor([[START, token] for token in range(5)])
        second = model(source.expand(5, -1), decoder_input_ids=begun).logits[:, -1].softmax(-1)  # (5, 5)
    want = first[:, None] * second  # (first, second)
    want[END] = 0.0
    want[END, model.config.pad_token_id] = first[END]
    counts = torch.zeros(5, 5).index_put_((out[:, 1], out[:, 2]), torch.ones(4000), accumulate=True)
    likely = want > 0
    assert counts[~likely].sum() == 0
    chi_square = ((counts - 4000 * want)[likely] ** 2 / (4000 * want[likely])).sum()
    assert chi_square < 45.3  # of 20 degrees of freedom


@pytest.mark.parametrize(
    "options",
    [{"top_k": 3}, {"top_p": 0.5, "top_k": 0}, {"typical_p": 0.4, "top_k": 0}, {"epsilon_cutoff": 0.03, "top_k": 0}],
    ids=lambda options: next(iter(options)),
)
def test_truncation_leaves_only_the_tokens_that_it_should(options):
    model, source = tiny_model(), SOURCES[0]
    with torch.no_grad():
        probabilities = model(source[None], decoder_input_ids=torch.tensor([[START]])).logits[0, -1].softmax(-1)
    order = probabilities.argsort(descending=True)
    surprise = (-probabilities.log() + (probabilities * probabilities.log()).sum()).abs().argsort()
    allowed = {
        "top_k": order[:3],
        "top_p": order[: int((probabilities[order].cumsum(0) < 0.5).sum()) + 1],
        "typical_p": surprise[: int((probabilities[surprise].cumsum(0) < 0.4).sum()) + 1],
        "epsilon_cutoff": (probabilities >= 0.03).nonzero().flatten(),
    }[next(iter(options))]
    drawn = draw(model, [source], num_return_sequences=400, max_new_tokens=1, **options)[:, 1]
    assert set(drawn.tolist()) == set(allowed.tolist())
    assert 1 < len(allowed) < 23


def test_log_probabilities_are_those_of_the_model():
    """Whatever temperature and truncation are."""
    model = tiny_model()
    out = draw(model, num_return_sequences=2, temperature=0.5, top_k=8, return_dict_in_generate=True)
    for row, (ids, length) in enumerate(zip(out.sequences.tolist(), out.lengths.tolist(), strict=True)):
        target = ids[1 : 1 + length]
        logits = forced(model, {"input_ids": SOURCES[row // 2][None]}, [target], START)[0].logits.log_softmax(-1)
        want = sum(logits[0, place, token].item() for place, token in enumerate(target))
        assert out.log_probs[row].item() == pytest.approx(want, abs=1e-4)


def test_lengths():
    model = tiny_model()
    out = draw(model, num_return_sequences=20, min_length_by_source=(1, 1), max_length_by_source=(1, 2), max_new_tokens=20,
               return_dict_in_generate=True).lengths.view(3, 20)  # fmt: skip
    for lengths, source in zip(out.tolist(), SOURCES, strict=True):
        assert set(lengths) == {len(source) + 1, len(source) + 2}


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_k": 0, "top_p": 0.5}, {"top_k": 0, "min_p": 0.5}], ids=str)
def test_truncation_leaves_other_tokens_where_an_end_would_come_too_early(options):
    """As with `min_new_tokens`, whose processor stands before those that truncate."""
    model = tiny_model(end=30.0)  # the end is the likeliest token everywhere
    lengths = draw(model, min_length_by_source=(1, 0), **options, return_dict_in_generate=True).lengths
    assert lengths.tolist() == [len(source) for source in SOURCES]


def test_a_static_cache_keeps_its_rows():
    model = tiny_model()
    options = dict(seeds=[1, 2, 3], num_return_sequences=2)
    assert torch.equal(draw(model, **options, cache_implementation="static"), draw(model, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "sample needs do_sample=True and num_beams=1, not True and 2"),
        ({"do_sample": False}, "sample needs do_sample=True and num_beams=1, not False and 1"),
        ({"seeds": [1, 2.5, 3]}, "seeds[1]=2.5 must be a whole number"),
        ({"seeds": [1, 2]}, "seeds holds 2 numbers, but there are 3 sources"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True cannot be had with sample"),
        ({"min_length_by_source": (2, 0), "max_length_by_source": (1, 0)}, "source 0 of the batch may have at most 5 tokens"),
        (
            {"logits_processor": [ForcedPrefixes([[], [7], []])], "bad_words_ids": [[7]]},
            "source 1 of the batch has no possible output",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(options, message):
    with pytest.raises(ValueError) as refusal:
        draw(tiny_model(), **options)
    assert message in str(refusal.value)


def test_the_generation_config_of_a_model_counts():
    model = tiny_model()
    config = GenerationConfig(**{**model.generation_config.to_dict(), "top_k": 1, "do_sample": True, "max_new_tokens": 5})
    greedy = draw(model, do_sample=False, custom_generate=None, max_new_tokens=5)
    assert torch.equal(model.generate(pad_rows(SOURCES)[0], generation_config=config, custom_generate=sample), greedy)

"""Ensembles: as a slow search over the mean of the models' distributions, and nothing new from a model with itself."""

import pytest
import torch

from configs import END, START, build, pad_rows, tiny, words
from published import pair
from transduct import TransductForCausalLM, TransductForConditionalGeneration
from transduct.decoding import beam_search, sample

MEANS = ["probability", "log"]
SOURCES = [words(1, length, seed=length)[0] for length in (6, 3, 8)]


def tiny_model(seed: int, **fields):
    model = build(TransductForConditionalGeneration, tiny(logits_bias=True, **fields), torch.float32, seed)
    with torch.no_grad():
        model.lm_head.bias[END] += 2.0
    return model


def search(model, sources=SOURCES, **options):
    ids, mask = pad_rows(sources)
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    common = dict(custom_generate=beam_search, return_dict_in_generate=True, num_beams=3, max_new_tokens=9) | options
    return model.generate(ids, attention_mask=mask, **common)


def assert_same(one, other) -> None:
    assert torch.equal(one.sequences, other.sequences)
    assert torch.allclose(one.sequences_scores, other.sequences_scores, atol=1e-5)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_return_sequences": 3}, {"no_repeat_ngram_size": 2}], ids="-".join)
def test_a_model_with_itself_changes_nothing(mean, options):
    for model in (tiny_model(0), pair("t5")[0]):
        alone = search(model, **options)
        assert_same(search(model, ensemble=[model], ensemble_mean=mean, **options), alone)
        assert_same(search(model, ensemble=[model, model], ensemble_mean=mean, **options), alone)


def slow_search(models, source, mean: str, beams: int, most: int):
    """A full pass of each model for each hypothesis, never stopping early; the best of length-normalised scores."""
    running, found = [((), 0.0)], []
    for length in range(1, most + 1):
        every = []
        for ids, total in running:
            with torch.no_grad():
                logits = [model(source[None], decoder_input_ids=torch.tensor([[START, *ids]])).logits[0, -1] for model in models]
            if mean == "probability":
                joint = torch.stack([each.softmax(-1) for each in logits]).mean(0).log()
            else:
                joint = torch.stack([each.softmax(-1).log() for each in logits]).mean(0).exp()
                joint = (joint / joint.sum()).log()
            every += [((*ids, token), total + more) for token, more in enumerate(joint.tolist())]
        every.sort(key=lambda each: -each[1])
        found += [(total / length, ids) for ids, total in every[:beams] if ids[-1] == END or length == most]
        running = [each for each in every if each[0][-1] != END][:beams]
    return max(found)


@pytest.mark.parametrize("mean", MEANS)
def test_as_a_slow_search(mean):
    """Over models of different sizes and positions."""
    models = [tiny_model(0), tiny_model(1, positions="rotary", d_ff=12), tiny_model(2, decoder_layers=1, num_heads=2)]
    found = search(models[0], early_stopping="never", ensemble=models[1:], ensemble_mean=mean)
    for row, source in enumerate(SOURCES):
        score, ids = slow_search(models, source, mean, 3, 9)
        assert tuple(found.sequences[row, 1 : 1 + int(found.lengths[row])].tolist()) == ids
        assert found.sequences_scores[row].item() == pytest.approx(score, abs=1e-4)
    assert not torch.equal(found.sequences, search(models[0], early_stopping="never").sequences)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("family", ["t5", "marian"])
def test_families_may_be_mixed(family, mean):
    """Who is first and who is whose has no say: theirs with ours, ours with theirs, theirs with theirs."""
    (one_theirs, one_ours), (two_theirs, two_ours) = pair(family, seed=0), pair(family, seed=5)
    want = search(one_ours, ensemble=[two_ours], ensemble_mean=mean)
    for first, second in ((one_theirs, two_ours), (one_ours, two_theirs), (one_theirs, two_theirs), (two_theirs, one_ours)):
        assert_same(search(first, ensemble=[second], ensemble_mean=mean), want)


def test_a_batch_is_its_rows_one_by_one_and_sources_leave():
    for first, second in ((tiny_model(0), tiny_model(1)), (pair("marian")[0], pair("marian", seed=5)[1])):
        options = dict(max_length_by_source=(1, -1), eos_token_id=None)
        calls: list[int] = []
        second.get_decoder().register_forward_pre_hook(
            lambda module, args, kwargs, calls=calls: calls.append(
                len(kwargs["input_ids"] if "input_ids" in kwargs else args[0])
            ),
            with_kwargs=True,
        )
        whole = search(first, ensemble=[second], **options)
        limits = [len(source) - 1 for source in SOURCES]
        assert calls == [3 * sum(limit > step for limit in limits) for step in range(max(limits))]
        for row, source in enumerate(SOURCES):
            alone = search(first, [source], ensemble=[second], **options)
            assert torch.equal(whole.sequences[row, : alone.sequences.shape[1]], alone.sequences[0])
            assert whole.sequences_scores[row].item() == pytest.approx(alone.sequences_scores.item(), abs=1e-5)


@pytest.mark.parametrize("more", [{"phrases": [[[5, 6]], [], [[7]]]}, {"num_beams": 4, "beam_groups": 2}, {"use_cache": False}])
def test_with_other_searches(more):
    model = tiny_model(0)
    assert_same(search(model, ensemble=[model], **more), search(model, **more))


def test_samples_of_an_ensemble():
    """First tokens are drawn from the mean of the distributions: chi-square below its 99.9 % quantile."""
    models = [build(TransductForConditionalGeneration, tiny(vocab_size=6), torch.float32, seed) for seed in (3, 4)]
    source = torch.tensor([3, 4, 5])
    with torch.no_grad():
        each = [model(source[None], decoder_input_ids=torch.tensor([[START]])).logits[0, -1].softmax(-1) for model in models]
    want = torch.stack(each).mean(0)
    options = dict(do_sample=True, top_k=0, num_return_sequences=3000, max_new_tokens=1, custom_generate=sample)
    drawn = models[0].generate(source[None], ensemble=models[1:], **options)[:, 1]
    counts = torch.bincount(drawn, minlength=6)
    assert ((counts - 3000 * want) ** 2 / (3000 * want)).sum() < 20.5  # of 5 degrees of freedom
    assert ((counts - 3000 * each[0]) ** 2 / (3000 * each[0])).sum() > 20.5


@pytest.mark.parametrize(
    ("other", "more", "message"),
    [
        (lambda: tiny_model(1, vocab_size=24), {}, "models with source vocabularies 23 and 24 cannot go together"),
        (lambda: tiny_model(1, decoder_vocab_size=25, tie_embeddings="none"), {}, "target vocabularies 23 and 25"),
        (lambda: tiny_model(1, decoder_start_token_id=0), {}, "models with decoder_start_token_id 2 and 0"),
        (lambda: tiny_model(1, eos_token_id=4), {}, "models with eos_token_id 1 and 4"),
        (lambda: build(TransductForCausalLM, tiny(), torch.float32), {}, "TransductForCausalLM, which is no encoder-decoder"),
        (lambda: tiny_model(1), {"ensemble_mean": "median"}, "ensemble_mean='median' must be 'probability' or 'log'"),
        (lambda: tiny_model(1), {"coverage_penalty": 0.1}, "coverage_penalty=0.1 needs one encoder-decoder"),
        (
            lambda: tiny_model(1),
            {"decoder_input_ids": torch.ones(3, 2, dtype=torch.long), "decoder_attention_mask": torch.ones(3, 2)},
            "decoder_attention_mask cannot be had with several models",
        ),
        (None, {"ensemble_mean": "log"}, "ensemble_mean='log' belongs to ensemble"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(other, more, message):
    with pytest.raises(ValueError) as refusal:
        search(tiny_model(0), ensemble=[] if other is None else [other()], **more)
    assert message in str(refusal.value)


def test_a_source_of_embeddings_is_refused():
    with pytest.raises(ValueError, match="several models need token ids as their source"):
        tiny_model(0).generate(inputs_embeds=torch.randn(1, 4, 16), custom_generate=beam_search, ensemble=[tiny_model(1)])

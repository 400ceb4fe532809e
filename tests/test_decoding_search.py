"""The searches as generate calls them: what `beam_search` returns and refuses by itself; each search has its own test file."""

import pytest
import torch
from transformers import GenerationConfig, MaxLengthCriteria, StoppingCriteriaList, StopStringCriteria

from configs import END, build, pad_rows, tiny, words
from published import pair
from tiny_translation import TEXTS, theirs, tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.decoding import InTrie, TokenTrie, beam_search, greedy_with_drafts, sample
from transduct.decoding.rows import Rows
from transduct.decoding.search import (
    BeamSearchOutput,
    beam_padding,
    length_by_source,
    length_limits,
    padding,
    source_lengths,
)
from transduct.generation import SourceLengthCriteria

SOURCES = [words(1, length, seed=length)[0] for length in (6, 3, 8)]


def model_with_ends():
    model = build(TransductForConditionalGeneration, tiny(logits_bias=True), torch.float32)
    with torch.no_grad():
        model.lm_head.bias[END] += 2.0
    return model


def search(model, **options):
    ids, mask = pad_rows(SOURCES)
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    return model.generate(ids, attention_mask=mask, **{"max_new_tokens": 10, "custom_generate": beam_search} | options)


def test_an_output_tells_lengths_and_log_probabilities():
    model = model_with_ends()
    output = search(model, num_beams=4, num_return_sequences=3, length_penalty=0.5, return_dict_in_generate=True)
    assert isinstance(output, BeamSearchOutput)
    assert torch.equal(output.sequences, search(model, num_beams=4, num_return_sequences=3, length_penalty=0.5))
    ends = output.sequences[:, 1:] == END
    want = torch.where(ends.any(1), ends.int().argmax(1) + 1, 10)
    assert torch.equal(output.lengths, want)
    assert torch.allclose(output.sequences_scores, output.log_probs / output.lengths**0.5)
    assert output.sequences.shape[1] == 1 + int(want.max())
    assert (output.sequences_scores.view(3, 3).diff(dim=1) <= 0).all()  # best first


def test_padding_is_as_transformers_has_it():
    """Behind greedy outputs the padding token, behind those of beams the end token where padding is 0."""
    for model in (model_with_ends(), *pair("t5"), *pair("bart")):
        for beams in (1, 2):
            options = dict(num_beams=beams, do_sample=False, eos_token_id=[model.config.eos_token_id, 6, 9, 11])
            assert torch.equal(search(model, **options), search(model, custom_generate=None, **options))
    config = GenerationConfig()
    config._pad_token_tensor, config._eos_token_tensor = None, None
    assert (padding(config), beam_padding(config)) == (0, 0)


def limits_of(model, criteria, most=None, least=None, **config):
    _, mask = pad_rows(SOURCES)
    rows = Rows(model, torch.zeros(6, 3, dtype=torch.long), 2, None, {})
    arguments = {"encoder_outputs": (torch.zeros(3, 8, 16),), "attention_mask": mask}
    return length_limits(rows, [], StoppingCriteriaList(criteria), GenerationConfig(**config), arguments, most, least)


def test_the_least_of_all_limits_counts():
    model = model_with_ends()
    assert limits_of(model, [MaxLengthCriteria(13)])[0].tolist() == [10, 10, 10]
    each = SourceLengthCriteria(torch.tensor([5, 20, 9]))
    assert limits_of(model, [MaxLengthCriteria(13), each])[0].tolist() == [2, 10, 6]
    most, least, own = limits_of(model, [MaxLengthCriteria(13)], (1, 1), (0.5, 0))
    assert (most.tolist(), least.tolist(), len(own)) == ([7, 4, 9], [3, 1, 4], 0)
    assert limits_of(model, [MaxLengthCriteria(13)], (0, 0))[0].tolist() == [1, 1, 1]  # one token at least
    with pytest.raises(ValueError, match="source 1 of the batch may have at most 4 tokens, but 5 are asked for at least"):
        limits_of(model, [MaxLengthCriteria(13)], (1, 1), min_new_tokens=5)
    with pytest.raises(ValueError, match="but 6 are"):
        limits_of(model, [MaxLengthCriteria(8)], min_length=9)  # the prompt of 3 tokens counts


def test_lengths_of_sources():
    _, mask = pad_rows(SOURCES)
    states = (torch.zeros(3, 8, 16),)
    assert source_lengths("name", {"encoder_outputs": states, "attention_mask": mask}, 3).tolist() == [6, 3, 8]
    assert source_lengths("name", {"encoder_outputs": states}, 3).tolist() == [8, 8, 8]
    repeated = {"encoder_outputs": (states[0].repeat_interleave(2, 0),), "attention_mask": mask.repeat_interleave(2, 0)}
    assert source_lengths("name", repeated, 3).tolist() == [6, 3, 8]
    assert length_by_source("name", (1.5, 1), torch.tensor([2, 3])).tolist() == [4, 5]
    with pytest.raises(ValueError, match="name needs a model that reads a source"):
        source_lengths("name", {}, 3)
    with pytest.raises(ValueError, match="must be two numbers"):
        length_by_source("name", (1,), torch.tensor([2]))


def test_what_does_not_exist_scores_minus_infinity():
    """A source with fewer hypotheses than are asked for; one without any is an error, see tests/test_decoding_prefixes.py."""
    processors = [InTrie(TokenTrie([[5, 6], [7]]), END)]
    output = search(
        model_with_ends(), num_beams=3, num_return_sequences=3, logits_processor=processors, return_dict_in_generate=True
    )
    assert output.sequences_scores.view(3, 3).isfinite().tolist() == [[True, True, False]] * 3
    assert output.log_probs.isfinite().tolist() == output.sequences_scores.isfinite().tolist()


@pytest.mark.parametrize("family", ["ours", "marian"])
@pytest.mark.parametrize("beams", [1, 3])
def test_stop_strings_stop_as_in_generate(family, beams):
    model, tokenizer = tiny_translation()
    model = model if family == "ours" else theirs(family, tokenizer)
    inputs = tokenizer([text for text in TEXTS if text.strip()], padding=True, return_tensors="pt")
    options = dict(num_beams=beams, do_sample=False, max_new_tokens=12)
    free = model.generate(**inputs, **options)
    text = tokenizer.decode(free[0], skip_special_tokens=True)
    strings = [text[3:5], text[2]]
    stopped = model.generate(**inputs, **options, stop_strings=strings, tokenizer=tokenizer)
    options["stopping_criteria"] = [StopStringCriteria(tokenizer, strings)]
    assert not torch.equal(stopped, free[:, : stopped.shape[1]])
    assert torch.equal(model.generate(**inputs, **options, custom_generate=beam_search), stopped)
    if beams == 1 and family == "ours":
        drawn = model.generate(**inputs, **options | {"do_sample": True, "top_k": 1}, custom_generate=sample)
        assert torch.equal(drawn, stopped)
        with pytest.raises(ValueError, match=r"StopStringCriteria.*cannot be had with greedy_with_drafts"):
            model.generate(**inputs, **options, custom_generate=greedy_with_drafts)

"""Forced prefixes: of different lengths in one batch, with generate and with each search, the rest as after a prompt."""

import pytest
import torch

from configs import END, START, build, pad_rows, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import ForcedPrefixes, beam_search, sample

PREFIXES = [[5, 6, 7], [], [9], [11, 12]]
SOURCES = [words(1, length, seed=length)[0] for length in (6, 3, 8, 4)]


def inputs(model, sources=SOURCES):
    ids, mask = pad_rows(sources)
    return {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id), "attention_mask": mask, "max_new_tokens": 8}


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_and_the_search_agree(family, beams):
    for model in pair(family):
        options = dict(num_beams=beams, do_sample=False, num_return_sequences=beams)
        want = model.generate(**inputs(model), **options, logits_processor=[ForcedPrefixes(PREFIXES)])
        got = model.generate(**inputs(model), **options, logits_processor=[ForcedPrefixes(PREFIXES)], custom_generate=beam_search)
        assert torch.equal(got, want)
        for prefix, rows in zip(PREFIXES, got.view(4, beams, -1).tolist(), strict=True):
            assert all(row[1 : 1 + len(prefix)] == prefix for row in rows)


@pytest.mark.parametrize("beams", [1, 4])
def test_the_rest_is_what_follows_such_a_prompt(beams):
    """A batch of prefixes is its rows one by one, each with its prefix as the decoder's prompt."""
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    options = dict(num_beams=beams, custom_generate=beam_search, length_penalty=0.0)
    whole = model.generate(**inputs(model) | {"max_new_tokens": 9}, **options, logits_processor=[ForcedPrefixes(PREFIXES)])
    for source, prefix, row in zip(SOURCES, PREFIXES, whole, strict=True):
        prompt = torch.tensor([[START, *prefix]])
        alone = model.generate(source[None], decoder_input_ids=prompt, max_new_tokens=9 - len(prefix), **options)[0]
        assert row[: len(alone)].tolist() == alone.tolist()
        assert set(row[len(alone) :].tolist()) <= {END, 0}


def test_the_score_counts_the_prefix():
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    options = dict(custom_generate=beam_search, return_dict_in_generate=True, eos_token_id=None, max_new_tokens=3)
    found = model.generate(SOURCES[0][None], **options, logits_processor=[ForcedPrefixes([[5, 6, 7]])])
    with torch.no_grad():
        log_probs = model(SOURCES[0][None], decoder_input_ids=torch.tensor([[START, 5, 6]])).logits[0].log_softmax(-1)
    assert found.log_probs.item() == pytest.approx(
        sum(log_probs[step, token].item() for step, token in enumerate((5, 6, 7))), abs=1e-4
    )


def test_samples_begin_with_them():
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    options = dict(do_sample=True, num_return_sequences=3, custom_generate=sample)
    out = model.generate(**inputs(model), **options, logits_processor=[ForcedPrefixes(PREFIXES)]).view(4, 3, -1)
    for prefix, rows in zip(PREFIXES, out.tolist(), strict=True):
        assert all(row[1 : 1 + len(prefix)] == prefix for row in rows)


def test_behind_a_longer_prompt():
    processor = ForcedPrefixes([[5], []], prompt_length=3)
    scores = torch.randn(4, 9)
    for length in (1, 2, 4):
        assert torch.equal(processor(torch.zeros(4, length, dtype=torch.long), scores), scores)
    got = processor(torch.zeros(4, 3, dtype=torch.long), scores)
    want = torch.full_like(scores, float("-inf"))
    want[:2, 5] = scores[:2, 5]
    want[2:] = scores[2:]
    assert torch.equal(got, want)


def test_nothing_to_force():
    scores = torch.randn(2, 9)
    assert torch.equal(ForcedPrefixes([[], []])(torch.zeros(2, 1, dtype=torch.long), scores), scores)


@pytest.mark.parametrize(
    ("prefixes", "more", "message"),
    [
        ([[5, -1]], {}, r"prefixes\[0\]=\[5, -1\] must hold token ids"),
        ([[23]], {}, "prefixes hold token 23, but the vocabulary has 23 tokens"),
        ([[5, 6], [7] * 6], {}, "source 1 of the batch has a prefix of 6 tokens, but its limit is 5"),
        ([[5], [6], [7]], {}, "there are 3 prefixes, but 2 sources"),
        ([[5], [6], [7]], {"num_beams": 1}, "there are 3 prefixes, but 2 rows"),
        ([[5], [6]], {"bad_words_ids": [[6]]}, "source 1 of the batch has no possible output: logits processors"),
    ],
)
def test_refusals(prefixes, more, message):
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    rows = 1 if len(prefixes) == 1 else 2
    custom = None if "num_beams" in more else beam_search

    def generate():
        processors = [ForcedPrefixes(prefixes)]
        model.generate(words(rows, 3), max_new_tokens=5, logits_processor=processors, custom_generate=custom, **more)

    with pytest.raises(ValueError, match=message):
        generate()

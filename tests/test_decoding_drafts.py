"""Drafts: the output of greedy search, whatever is guessed, in fewer passes where guesses are right."""

import pytest
import torch
from transformers import StoppingCriteria

from configs import END, MATRIX, PAD, SCHEMES, START, VOCABULARY, build, name, pad_rows, sharpen, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import beam_search, greedy_with_drafts
from transduct.decoding.drafts import SourceLookup

SOURCES = [words(1, length, seed=length)[0] for length in (11, 7, 5, 9)]
EVERY_NORM = [choice for place, choice in enumerate(MATRIX) if place % 8 == place // 16 % 8]


def tiny_model(choice=None, seed: int = 0, std: float = 0.12, **fields):
    model = TransductForConditionalGeneration(tiny(**(choice or {}), **fields))
    return sharpen(model, seed, std).eval()  # weights that are not too sharp repeat themselves less


def both(model, sources=SOURCES, side: str = "right", extra: int = 0, draft: dict | None = None, **options):
    """What greedy search gives, and with drafts."""
    ids, mask = pad_rows(sources, side, extra)
    common = dict(input_ids=ids, attention_mask=mask, do_sample=False) | {"max_new_tokens": 24} | options
    return model.generate(**common), model.generate(**common, custom_generate=greedy_with_drafts, **(draft or {}))


def passes(model) -> list[int]:
    """The rows of each pass through the decoder from now on."""
    calls: list[int] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(kwargs["input_ids"] if "input_ids" in kwargs else args[0])),
        with_kwargs=True,
    )
    return calls


# ---- lossless -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", SCHEMES, ids=name)
@pytest.mark.parametrize("whose", ["source", "itself", "another"])
def test_the_output_of_greedy_search(choice, whose):
    model = tiny_model(choice)
    other = {"source": None, "itself": model, "another": tiny_model(seed=3, decoder_layers=1)}[whose]
    for side in ("right", "left"):
        for draft in ({}, {"draft_tokens": 1}, {"draft_tokens": 3, "draft_ngram": 1}):
            want, got = both(model, side=side, extra=2, draft={"draft_model": other, **draft})
            assert torch.equal(want, got)


@pytest.mark.parametrize("choice", EVERY_NORM, ids=name)
def test_all_norms_and_ties(choice):
    model = tiny_model(choice, std=0.3)
    for draft in ({}, {"draft_model": tiny_model(choice, seed=1, std=0.3), "draft_tokens": 4}):
        want, got = both(model, draft=draft)
        assert torch.equal(want, got)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_models_of_other_families(family):
    model = pair(family)[1]
    ids = torch.randint(3, 38, (3, 9))
    for draft in ({}, {"draft_model": pair(family, seed=3)[1], "draft_tokens": 4}):
        options = dict(max_new_tokens=20, do_sample=False)
        assert torch.equal(
            model.generate(ids, custom_generate=greedy_with_drafts, **options, **draft), model.generate(ids, **options)
        )


@pytest.mark.parametrize("draft_positions", [9, 14, 64])
def test_learned_positions_up_to_the_last(draft_positions):
    """Guesses may go beyond it, and a draft may have fewer positions than the model."""
    model = tiny_model({"positions": "learned"}, max_positions=14)
    other = tiny_model({"positions": "learned"}, seed=3, max_positions=draft_positions)
    sources = [source[:9] for source in SOURCES]
    for draft in ({}, {"draft_model": other}, {"draft_model": other, "draft_tokens": 3}):
        want, got = both(model, sources, max_new_tokens=14, eos_token_id=None, draft=draft)
        assert torch.equal(want, got)
        assert got.shape == (4, 15)


@pytest.mark.parametrize("whose", ["source", "another"])
def test_prompts_and_limits_of_each_row(whose):
    draft = {} if whose == "source" else {"draft_model": tiny_model(seed=3)}
    for choice in SCHEMES[1::2]:
        model = tiny_model(choice)
        prompts = torch.tensor([[START, 5, 6], [START, 9, 9], [START, 4, 7], [START, 8, 3]])
        want, got = both(model, decoder_input_ids=prompts, draft=draft)
        assert torch.equal(want, got)
        want, got = both(model, max_new_tokens=None, draft=draft)  # as many as the source has, and 50
        assert torch.equal(want, got)
    ids, mask = pad_rows(SOURCES)
    common = dict(attention_mask=mask, max_length_by_source=(1, 2), eos_token_id=None)
    got = model.generate(ids, custom_generate=greedy_with_drafts, **common, **draft)
    assert torch.equal(got, model.generate(ids, custom_generate=beam_search, **common))


def test_several_ends():
    model = tiny_model()
    want, got = both(model, eos_token_id=[END, 5, 9])
    assert torch.equal(want, got)


def test_log_probabilities_and_lengths_are_those_of_greedy_search():
    model = tiny_model()
    ids, mask = pad_rows(SOURCES)
    options = dict(input_ids=ids, attention_mask=mask, max_new_tokens=12, return_dict_in_generate=True)
    want = model.generate(**options, custom_generate=beam_search)
    for draft in ({}, {"draft_model": tiny_model(seed=3)}):
        got = model.generate(**options, custom_generate=greedy_with_drafts, **draft)
        assert torch.equal(got.lengths, want.lengths)
        assert torch.allclose(got.log_probs, want.log_probs, atol=1e-4)


# ---- fewer passes -------------------------------------------------------------------------------------------------
class Copying(TransductForConditionalGeneration):
    """A model that writes its source once more: it looks only at how many tokens it has written."""

    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        places = kwargs.get("decoder_position_ids")
        if places is None:  # step by step
            past = outputs.cache.get_seq_length() - outputs.logits.shape[1]
            places = (torch.arange(outputs.logits.shape[1]) + past).expand(outputs.logits.shape[:2])
        follows = torch.nn.functional.pad(self.source, (0, 99), value=END)[self.row_of(outputs)]
        outputs.logits = torch.nn.functional.one_hot(follows.gather(1, places), VOCABULARY) * 9.0
        return outputs

    def row_of(self, outputs):
        """Which sources are left: by their encoder states, of which no two are alike."""
        states = outputs.encoder_last_hidden_state[:, 0]
        return (states[:, None] - self.states[None]).abs().sum(2).argmin(1)


def copying(sources):
    model = build(Copying, tiny(), torch.float32)
    ids, mask = pad_rows(sources)
    model.source = ids.masked_fill(ids == PAD, END)
    with torch.no_grad():
        model.states = model.get_encoder()(ids, attention_mask=mask).last_hidden_state[:, 0]
    return model


def test_a_copy_takes_few_passes():
    model = copying(SOURCES)
    calls = passes(model)
    want, got = both(model)
    assert torch.equal(got, want)
    assert [row[1 : 1 + len(source)] for row, source in zip(got.tolist(), SOURCES, strict=True)] == [s.tolist() for s in SOURCES]
    greedy = max(map(len, SOURCES)) + 1
    assert len(calls) - greedy == 2  # 8 tokens and one more, then the last 2 and the end


def test_a_draft_that_is_always_right():
    model = tiny_model()
    calls = passes(model)
    draft = tiny_model()
    both(model, eos_token_id=None, draft={"draft_model": draft, "draft_tokens": 5})
    assert len(calls) == 24 + 4  # 24 tokens by 6 a pass


def test_rows_leave():
    model = copying(SOURCES)
    ids, mask = pad_rows(SOURCES)
    calls = passes(model)
    model.generate(ids, attention_mask=mask, custom_generate=greedy_with_drafts, draft_tokens=5)
    assert calls == [4, 3]  # 5 tokens and an end: one row; 12, 8 and 10 tokens: the others


# ---- guesses ------------------------------------------------------------------------------------------------------
def looked_up(source, written, count: int = 3, longest: int = 2):
    draft = SourceLookup(torch.tensor([source]), torch.tensor([source]) >= 0, 1, longest)
    ids = torch.tensor([[START, *written]])
    guesses, meant = draft.guess(ids, torch.tensor([ids.shape[1]]), count)
    return guesses[meant].tolist()


def test_what_follows_in_the_source_is_guessed():
    assert looked_up([5, 6, 7, 8, 9], []) == [5, 6, 7]  # the output begins as the source
    assert looked_up([5, 6, 7, 8, 9], [6]) == [7, 8, 9]
    assert looked_up([5, 6, 7, 8, 9], [4, 8]) == [9]
    assert looked_up([5, 6, 7, 8, 9], [4]) == []
    assert looked_up([5, 6, 7, 4, 6, 8], [4, 6]) == [8]  # the longer n-gram overrules
    assert looked_up([5, 6, 7, 4, 6, 8], [9, 6]) == [7, 4, 6]
    assert looked_up([5, 6, 7, -1, -1], [6]) == [7]  # no guess is padding
    assert looked_up([5, 6], [5, 6], longest=7) == []


def test_repeated_words_are_guessed_in_turn():
    draft = SourceLookup(torch.tensor([[5, 6, 5, 7, 5, 8]]), torch.ones(1, 6, dtype=torch.bool), 1, 1)
    found = []
    for _ in range(4):
        guesses, _ = draft.guess(torch.tensor([[START, 5]]), torch.tensor([2]), 1)
        found.append(guesses.item())
    assert found == [6, 7, 8, 6]


# ---- refusals -----------------------------------------------------------------------------------------------------
class Never(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams=2, num_return_sequences=1: drafts are for one"),
        ({"do_sample": True}, "do_sample=True cannot be had with greedy_with_drafts"),
        ({"no_repeat_ngram_size": 2}, "cannot run logits processors ['NoRepeatNGramLogitsProcessor']"),
        ({"stopping_criteria": [Never()]}, "stopping_criteria ['Never'] cannot be had"),
        ({"draft_tokens": 0}, "draft_tokens=0 must be at least 1"),
        ({"draft_ngram": 0}, "draft_ngram=0 must be at least 1"),
        ({"decoder_input_ids": words(4, 2), "decoder_attention_mask": torch.ones(4, 2)}, "decoder_attention_mask cannot be had"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_honour_is_refused(options, message):
    ids, mask = pad_rows(SOURCES)
    with pytest.raises(ValueError) as refusal:
        tiny_model().generate(ids, attention_mask=mask, max_new_tokens=5, custom_generate=greedy_with_drafts, **options)
    assert message in str(refusal.value)


def test_models_that_do_not_fit_are_refused():
    theirs, ours = pair("t5")
    ids = torch.randint(3, 20, (2, 5))
    for model, draft, message in (
        (theirs, None, "the model is a T5ForConditionalGeneration: greedy_with_drafts needs encoder-decoders of transduct"),
        (ours, theirs, "draft_model is a T5ForConditionalGeneration"),
        (ours, tiny_model(), "source vocabularies 40 and 23 cannot go together"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(ids, custom_generate=greedy_with_drafts, draft_model=draft)


def test_a_source_without_tokens_is_refused():
    with pytest.raises(ValueError, match="guesses from the source need its token ids: pass input_ids, or a draft_model"):
        tiny_model().generate(inputs_embeds=torch.randn(1, 4, 16), custom_generate=greedy_with_drafts)

"""Drafts: the output of greedy search, whatever is guessed, in fewer passes where guesses are right."""

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

from configs import END, MATRIX, PAD, SCHEMES, START, VOCABULARY, build, name, pad_rows, sharpen, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import ForcedPrefixes, InTrie, TokenTrie, beam_search, greedy_with_drafts
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


# ---- with logits processors ---------------------------------------------------------------------------------------
def even_or_odd(row: int, ids: torch.Tensor) -> list[int]:
    return [END, *range(4 + (row + len(ids)) % 2, VOCABULARY, 2)]


PREFIXES = [[5, 6, 7], [], [9], [4, 4, 4, 4, 4]]
PROCESSED = [
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.4, "bad_words_ids": [[5], [6, 7]], "min_new_tokens": 7},
    {"forced_bos_token_id": 8, "forced_eos_token_id": END, "max_new_tokens": 9},
    {"sequence_bias": {(5, 6): 9.0, (7,): -4.0}, "suppress_tokens": [10, 11], "begin_suppress_tokens": [12]},
    {"encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.3},
    {"prefix_allowed_tokens_fn": even_or_odd},
    {"exponential_decay_length_penalty": (3, 1.1), "renormalize_logits": True},
    {"logits_processor": [ForcedPrefixes(PREFIXES)]},
    {"logits_processor": [InTrie(TokenTrie([[5, 6, 7, 8, 9], [5, 6, 8], [4]]), END)], "no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize("options", PROCESSED, ids="-".join)
@pytest.mark.parametrize("whose", ["source", "another", "itself"])
def test_the_output_of_greedy_search_with_processors(options, whose):
    model = tiny_model()
    draft = {"source": {}, "another": {"draft_model": tiny_model(seed=3)}, "itself": {"draft_model": model}}[whose]
    ids, mask = pad_rows(SOURCES)
    common = dict(input_ids=ids, attention_mask=mask, return_dict_in_generate=True) | {"max_new_tokens": 20} | options
    want = model.generate(**common, do_sample=False)
    greedy = model.generate(**common, custom_generate=beam_search)
    for more in ({}, {"draft_tokens": 1}):
        got = model.generate(**common, custom_generate=greedy_with_drafts, **draft, **more)
        assert torch.equal(got.sequences, want.sequences)
        assert torch.equal(got.lengths, greedy.lengths)
        assert torch.allclose(got.log_probs, greedy.log_probs, atol=1e-4)


def test_processors_and_drafts_take_few_passes():
    model = tiny_model()
    calls = passes(model)
    ids, mask = pad_rows(SOURCES)
    options = dict(attention_mask=mask, custom_generate=greedy_with_drafts, max_new_tokens=24, eos_token_id=None)
    model.generate(ids, logits_processor=[ForcedPrefixes([[9]] * 4)], draft_model=tiny_model(), draft_tokens=5, **options)
    assert len(calls) <= 6  # 24 tokens by 6 a pass, of which the draft knows all but the forced one


def test_what_processors_forbid_altogether():
    trie = InTrie(TokenTrie([[5]]), END)
    options = dict(forced_bos_token_id=8, logits_processor=[trie], max_new_tokens=4)
    with pytest.raises(ValueError, match="source 0 of the batch has no possible output: logits processors"):
        tiny_model().generate(SOURCES[0][None], custom_generate=greedy_with_drafts, **options)


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


class Counts(LogitsProcessor):
    """Remembers how often it was asked."""

    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams=2, num_return_sequences=1: drafts are for one"),
        ({"do_sample": True}, "do_sample=True cannot be had with greedy_with_drafts"),
        ({"logits_processor": [Counts()], "no_repeat_ngram_size": 2}, "cannot run logits processors ['Counts']: leave out"),
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


def test_a_source_of_another_vocabulary_is_refused():
    model = tiny_model(decoder_vocab_size=9, tie_embeddings="none")
    with pytest.raises(ValueError, match="guesses from the source need a vocabulary that both sides share: pass a draft_model"):
        model.generate(SOURCES[0][None], custom_generate=greedy_with_drafts)
    want = model.generate(SOURCES[0][None], max_new_tokens=9)
    draft = tiny_model(decoder_vocab_size=9, tie_embeddings="none", seed=4)
    got = model.generate(SOURCES[0][None], max_new_tokens=9, custom_generate=greedy_with_drafts, draft_model=draft)
    assert torch.equal(want, got)


def test_a_source_without_tokens_is_refused():
    with pytest.raises(ValueError, match="guesses from the source need its token ids: pass input_ids, or a draft_model"):
        tiny_model().generate(inputs_embeds=torch.randn(1, 4, 16), custom_generate=greedy_with_drafts)

"""Beam search: what transformers' search gives, what a naive search and brute force give, and less work than theirs."""

import copy
from contextlib import contextmanager
from functools import cache
from itertools import product

import pytest
import torch
from transformers import EosTokenCriteria, StoppingCriteria, StoppingCriteriaList

from configs import END, SCHEMES, build, name, pad_rows, tiny, words
from naive_search import (
    NORMALIZATIONS,
    Scripted,
    count_rows,
    decode,
    log_probabilities,
    naive_search,
    never_done,
    scoring_of,
    tiny_model,
)
from published import FAMILIES, pair
from transduct import TransductForCausalLM, TransductForConditionalGeneration
from transduct.decoding import beam_search
from transduct.decoding.beam import BeamSearch
from transduct.decoding.normalization import Scoring
from transduct.decoding.search import STOPPING

SOURCES = [torch.randint(3, 38, (length,), generator=torch.Generator().manual_seed(length)) for length in (9, 4, 6)]
PROMPTS = torch.tensor([[7, 8], [9, 9], [5, 6]])


class EndsAtAMultiple(StoppingCriteria):
    """A criterion of a caller's own: rows whose tokens add up to a multiple of seven are done."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.sum(1) % 7 == 0


def even_or_odd(row: int, ids: torch.Tensor) -> list[int]:
    """What a source may use depends on its number."""
    return [0, 1, *range(4 + row % 2, 38, 2)]


SETTINGS = [
    {},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    {"num_beams": 2, "early_stopping": False, "length_penalty": 0.0},
    {"num_beams": 3, "early_stopping": True, "length_penalty": 0.6, "num_return_sequences": 3},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": -0.5, "num_return_sequences": 2},
    {"num_beams": 8, "early_stopping": False, "length_penalty": 2.0, "num_return_sequences": 8},
    {"num_beams": 4, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    {"num_beams": 3, "bad_words_ids": [[5], [6, 7]], "early_stopping": True},
    {"num_beams": 3, "encoder_no_repeat_ngram_size": 1, "early_stopping": "never"},
    {"num_beams": 3, "prefix_allowed_tokens_fn": even_or_odd},
    {"num_beams": 3, "eos_token_id": [2, 5, 9], "num_return_sequences": 2},
    {"num_beams": 3, "decoder_input_ids": PROMPTS, "num_return_sequences": 2},
    {"num_beams": 2, "cache_implementation": "static"},
    {"num_beams": 2, "use_cache": False},
    {"num_beams": 3, "stopping_criteria": StoppingCriteriaList([EndsAtAMultiple()])},
]


@cache
def models(family: str):
    return pair(family)


def both(model, **options):
    """What generate gives by itself and with our search: ids, and scores of beams."""
    common = dict(do_sample=False, return_dict_in_generate=True) | options
    with_scores = {"output_scores": True} if options.get("num_beams", 1) > 1 else {}
    return model.generate(**common, **with_scores), model.generate(**common, custom_generate=beam_search)


def assert_same(want, got) -> None:
    assert torch.equal(want.sequences, got.sequences)
    if "sequences_scores" in want:
        assert torch.allclose(want.sequences_scores, got.sequences_scores, atol=1e-5)


def inputs_of(model, side: str = "right"):
    ids, mask = pad_rows(SOURCES, side)
    return {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id), "attention_mask": mask, "max_new_tokens": 12}


# ---- as transformers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: "-".join(options) or "greedy")
@pytest.mark.parametrize("whose", ["theirs", "ours"])
@pytest.mark.parametrize("family", [pytest.param(family, marks=[pytest.mark.slow] * (family != "t5")) for family in FAMILIES])
def test_ids_and_scores_of_transformers(family, whose, options):
    model = models(family)[whose == "ours"]
    assert_same(*both(model, **inputs_of(model), **options))


@pytest.mark.parametrize("beams", range(1, 9))
@pytest.mark.parametrize("whose", ["theirs", "ours"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_number_of_beams(family, whose, beams):
    """Of all families, of transformers' own models and of ours with the same weights."""
    model = models(family)[whose == "ours"]
    assert_same(*both(model, **inputs_of(model), num_beams=beams, num_return_sequences=(beams + 1) // 2))


@pytest.mark.parametrize("choice", SCHEMES, ids=name)
def test_any_positions_and_padding(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice), dtype=torch.float32)
    for side in ("left", "right"):
        ids, mask = pad_rows([words(1, length, seed=length)[0] for length in (7, 3, 5)], side)
        assert_same(*both(model, input_ids=ids, attention_mask=mask, max_new_tokens=9, num_beams=3))
        assert_same(*both(model, input_ids=ids, attention_mask=mask, num_beams=2))  # each row's own default length


@pytest.mark.parametrize("beams", [1, 2, 4])
@pytest.mark.parametrize("family", ["transduct", "bart"])
def test_equal_scores_come_as_in_transformers(family, beams):
    """In bfloat16 many a token is exactly as good as another."""
    if family == "bart":
        model = copy.deepcopy(models("bart")[0]).to(torch.bfloat16)
    else:
        model = build(TransductForConditionalGeneration, tiny(vocab_size=300), dtype=torch.bfloat16)
    seen = []
    high = model.config.vocab_size
    options = dict(input_ids=words(32, 7, low=3, high=high), num_beams=beams, num_return_sequences=beams, max_new_tokens=10)
    with spied(BeamSearch, "best_of", seen):
        for more in ({}, {"no_repeat_ngram_size": 2}):
            want, got = both(model, **options, **more)
            assert torch.equal(want.sequences, got.sequences)
    equal = sum(int((scores[:, 1:] == scores[:, :-1]).any(1).sum()) for scores, _, _ in seen)
    assert beams == 1 or equal > 20  # it was put to the test


@contextmanager
def spied(owner: type, name: str, seen: list):
    """Inside, what a method returns is noted."""
    method = getattr(owner, name)

    def noting(*args, **kwargs):
        seen.append(method(*args, **kwargs))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, noting)
        yield


def test_features_as_the_source():
    config = tiny(encoder_input="features", feature_size=5, feature_stem="conv", tie_embeddings="target_output")
    model = build(TransductForConditionalGeneration, config, dtype=torch.float32)
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 6:] = 0
    inputs = {"input_features": torch.randn(3, 12, 5), "attention_mask": mask}
    assert_same(*both(model, **inputs, num_beams=3, num_return_sequences=2, max_new_tokens=8))


def test_a_language_model():
    model = build(TransductForCausalLM, tiny(), dtype=torch.float32)
    ids, mask = pad_rows([words(1, length, seed=length)[0] for length in (6, 3, 4)], "left")
    for options in ({"num_beams": 1}, {"num_beams": 3}, {"num_beams": 4, "early_stopping": True, "num_return_sequences": 2}):
        assert_same(*both(model, input_ids=ids, attention_mask=mask, max_new_tokens=8, **options))


def test_without_an_end_token_every_hypothesis_has_the_most_tokens():
    model = models("t5")[1]
    with_none = model.generate(**inputs_of(model), eos_token_id=[], num_beams=3, custom_generate=beam_search)
    want, got = both(model, **inputs_of(model), eos_token_id=None, num_beams=3, num_return_sequences=3)
    assert torch.equal(with_none, got.sequences[::3])
    assert_same(want, got)
    assert got.sequences.shape == (9, 13)


# ---- as a naive search and as brute force -------------------------------------------------------------------------
@pytest.mark.parametrize("options", NORMALIZATIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("early_stopping", STOPPING, ids=str)
def test_as_a_naive_search(options, early_stopping):
    """With "never" the naive search goes on to the end: exact stopping gives what never stopping gives, of one or several."""
    model = tiny_model(9, seed=3)
    sources = [words(1, length, seed=length, high=9)[0] for length in (5, 2, 4, 3)]
    stopping, score = STOPPING[early_stopping], scoring_of(options)
    want = [naive_search(log_probabilities(model, source), score, 3, 9, stopping) for source in sources]
    for wanted in (1, 2, 3):
        common = dict(num_beams=3, num_return_sequences=wanted, max_new_tokens=9, early_stopping=early_stopping)
        for found, every in zip(decode(model, sources, **common, **options), want, strict=True):
            assert [ids for _, ids in found] == [ids for _, ids in every[:wanted]]
            assert [value for value, _ in found] == pytest.approx([value for value, _ in every[:wanted]], abs=1e-5)


@pytest.mark.parametrize("options", NORMALIZATIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("more", [{}, {"coverage_penalty": 0.3}], ids=["plain", "coverage"])
def test_exact_stopping_finds_what_a_search_finds_that_never_stops(more, options, monkeypatch):
    """Of as many hypotheses as are asked for; the fewer these are, the earlier it stops."""
    model = tiny_model(9, seed=3)
    sources = [words(1, length, seed=length, high=9)[0] for length in (5, 2, 4, 3, 6, 1)]
    common = dict(num_beams=4, max_new_tokens=24, early_stopping="never") | options | more
    rows = count_rows(model)
    with monkeypatch.context() as patch:
        patch.setattr(BeamSearch, "is_done", never_done)
        want = decode(model, sources, num_return_sequences=4, **common)
    assert len(rows) == 24
    work = []
    for wanted in (4, 3, 2, 1):
        rows.clear()
        for found, every in zip(decode(model, sources, num_return_sequences=wanted, **common), want, strict=True):
            assert [ids for _, ids in found] == [ids for _, ids in every[:wanted]]
            assert [value for value, _ in found] == pytest.approx([value for value, _ in every[:wanted]], abs=1e-5)
        work.append(sum(rows))
    assert work == sorted(work, reverse=True)
    if options["length_normalization"] == "none":  # else a longer hypothesis may always have more to gain
        assert work[3] < work[0] < 24 * 4 * len(sources)


@pytest.mark.parametrize("options", NORMALIZATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_exact_stopping_waits_for_what_grows_better(options):
    """Where the later tokens are the surer ones, so that longer hypotheses overtake: there other rules stop too early."""
    model, score, missed = tiny_model(9, seed=3), scoring_of(options), 0
    for seed in range(8):
        script = Scripted(9, seed)
        want = naive_search(script.following, score, 3, 12, "exact")
        common = dict(num_beams=3, max_new_tokens=12, logits_processor=[script]) | options
        for wanted in (1, 2, 3):
            (found,) = decode(model, [torch.tensor([3])], num_return_sequences=wanted, early_stopping="never", **common)
            assert [ids for _, ids in found] == [ids for _, ids in want[:wanted]]
            assert [value for value, _ in found] == pytest.approx([value for value, _ in want[:wanted]], abs=1e-5)
        ((first,),) = decode(model, [torch.tensor([3])], early_stopping=True, **common)
        missed += first[1] != want[0][1]
    longer_may_win = options.get("length_penalty", 0.0) > 0 or options.get("word_reward", 0.0) > 0
    assert missed > 0 or not longer_may_win


@pytest.mark.parametrize("options", NORMALIZATIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("early_stopping", STOPPING, ids=str)
def test_as_brute_force(options, early_stopping):
    """Beams as many as there are hypotheses leave none out."""
    most, vocabulary = 3, 4
    model = tiny_model(vocabulary, seed=5)
    source = torch.tensor([3, 2, 3])
    following, score = log_probabilities(model, source), scoring_of(options)
    others = [token for token in range(vocabulary) if token != END]
    ended = [(*ids, END) for length in range(most) for ids in product(others, repeat=length)]
    every = [*ended, *product(others, repeat=most)]
    totals = {ids: sum(following(ids[:place])[token] for place, token in enumerate(ids)) for ids in every}
    want = sorted(((score(total, len(ids)), ids) for ids, total in totals.items()), reverse=True)
    assert len(want) == 1 + 3 + 9 + 27
    common = dict(num_beams=len(want), max_new_tokens=most, early_stopping=early_stopping)
    (found,) = decode(model, [source], num_return_sequences=len(want), **common, **options)
    assert [ids for _, ids in found] == [ids for _, ids in want]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in want], abs=1e-5)
    for wanted in (1, 2, 7):
        (found,) = decode(model, [source], num_return_sequences=wanted, **common, **options)
        assert [ids for _, ids in found] == [ids for _, ids in want[:wanted]]


def test_exact_stopping_stops_where_nothing_can_improve():
    """Without a normalisation no longer hypothesis can beat a found one that beats its beginning."""
    model = tiny_model(9, seed=3)
    sources = [words(1, 4, seed=seed, high=9)[0] for seed in range(6)]
    options = dict(num_beams=2, max_new_tokens=30, early_stopping="never", length_normalization="none")
    calls = count_rows(model)
    exact = decode(model, sources, **options)
    assert len(calls) < 30
    following = [log_probabilities(model, source) for source in sources]
    never = [naive_search(each, lambda total, length: total, 2, 30, "exact")[0] for each in following]
    assert [best[1] for (best,) in exact] == [ids for _, ids in never]


# ---- rows ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("beams", [1, 3])
def test_finished_sources_leave_the_batch(beams):
    """Each limit is reached by its own source, so the number of rows at each step is known."""
    for model in (pair("t5")[0], pair("t5")[1], pair("bart")[0]):
        calls = count_rows(model)
        options = dict(num_beams=beams, max_length_by_source=(1, -1), eos_token_id=None, custom_generate=beam_search)
        model.generate(**inputs_of(model), **options)
        limits = [len(source) - 1 for source in SOURCES]  # 8, 3, 5
        assert calls == [beams * sum(limit > step for limit in limits) for step in range(max(limits))]


def test_a_static_cache_keeps_its_rows():
    model = pair("t5")[1]
    calls = count_rows(model)
    options = dict(num_beams=2, max_length_by_source=(1, -1), eos_token_id=None, custom_generate=beam_search)
    want = model.generate(**inputs_of(model), **options)
    left = len(calls)
    assert torch.equal(model.generate(**inputs_of(model), **options, cache_implementation="static"), want)
    assert set(calls[left:]) == {6}


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"},
        {"num_beams": 3, "encoder_no_repeat_ngram_size": 1},
        {"num_beams": 3, "max_length_by_source": (1, 2), "min_length_by_source": (0.5, 0), "length_normalization": "gnmt"},
        {"num_beams": 2, "max_length_by_source": (0, 1), "length_normalization": "sockeye", "word_reward": 0.3},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_batch_is_its_rows_one_by_one(options):
    for model in models("marian"):
        inputs = inputs_of(model)
        common = dict(custom_generate=beam_search, return_dict_in_generate=True, max_new_tokens=14, **options)
        whole = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **common)
        count = options.get("num_return_sequences", 1)
        for row, source in enumerate(SOURCES):
            alone = model.generate(source[None], **common)
            mine = slice(count * row, count * (row + 1))
            width = alone.sequences.shape[1]
            assert torch.equal(whole.sequences[mine, :width], alone.sequences)
            assert set(whole.sequences[mine, width:].flatten().tolist()) <= {model.config.pad_token_id}
            assert torch.allclose(whole.sequences_scores[mine], alone.sequences_scores, atol=1e-5)


def test_lengths_that_depend_on_the_source():
    model = models("t5")[1]
    inputs = inputs_of(model)
    end = model.config.eos_token_id

    def lengths(**options) -> list[int]:
        rows = model.generate(**inputs | {"max_new_tokens": 40}, num_beams=2, custom_generate=beam_search, **options)
        return [[*row[1:].tolist(), end].index(end) for row in rows]  # tokens before the end

    assert all(length <= len(source) for length, source in zip(lengths(max_length_by_source=(1, 0)), SOURCES, strict=True))
    least = lengths(min_length_by_source=(2, 1), max_length_by_source=(3, 0))
    assert all(length >= 2 * len(source) for length, source in zip(least, SOURCES, strict=True))
    none = model.generate(**inputs, max_length_by_source=(0.0, -5.0), custom_generate=beam_search)
    assert none.shape == (3, 2)  # at least one token


# ---- refusals -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True}, "do_sample=True"),
        ({"num_beams": 2, "output_attentions": True}, "output_attentions=True"),
        ({"num_beams": 2, "output_hidden_states": True}, "output_hidden_states=True"),
        ({"output_logits": True}, "output_logits=True"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"num_beams": 2, "early_stopping": "sometimes"}, "early_stopping"),
        ({"length_normalization": "wu"}, "length_normalization='wu' must be one of 'hf', 'gnmt', 'sockeye', 'none'"),
        ({"length_normalization": "sockeye", "length_offset": -1.0}, "length_offset=-1.0"),
        ({"length_offset": 2.0}, "length_offset=2.0 belongs to length_normalization='sockeye'"),
        ({"max_length_by_source": (1, 2, 3)}, "max_length_by_source=(1, 2, 3) must be two numbers"),
        (
            {"min_length_by_source": (2, 0), "max_length_by_source": (1, 0)},
            "source 0 of the batch may have at most 9 tokens, but 18 are",
        ),
        ({"min_new_tokens": 9, "max_new_tokens": 5}, "may have at most 5 tokens, but 9 are"),
        ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups=2 cannot be had with beam_search: beam_search has beam_groups"),
        ({"num_beams": 0}, "num_beams=0 must be at least 1"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"num_beams": 2, "num_return_sequences": 0}, "num_return_sequences=0 must be at least 1"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty=nan must be a number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_it_cannot_honour_is_refused(options, message):
    model = models("t5")[1]
    with pytest.raises(ValueError) as refusal:
        model.generate(**inputs_of(model) | options, custom_generate=beam_search)
    assert message in str(refusal.value)


@pytest.mark.parametrize("name", ["streamer", "assistant_model"])
def test_what_generate_would_keep_to_itself_is_refused(name):
    model = models("t5")[1]
    with pytest.raises(ValueError, match=f"{name} cannot be had with custom_generate, which is not told of it"):
        model.generate(**inputs_of(model), custom_generate=beam_search, **{name: model})


def test_lengths_by_source_need_a_source():
    model = build(TransductForCausalLM, tiny())
    with pytest.raises(ValueError, match=r"max_length_by_source needs a model that reads a source"):
        model.generate(words(1, 3), max_length_by_source=(1, 0), custom_generate=beam_search)


def test_scoring_of_a_search_is_that_of_the_module():
    """The plain formulas above are those that the search uses."""
    for options in NORMALIZATIONS:
        fields = {key: options.get(key, 0.0) for key in ("length_penalty", "length_offset", "word_reward")}
        scoring = Scoring(options["length_normalization"], *fields.values())
        for length in (1, 2, 7):
            value = scoring.score(torch.tensor(-3.0), torch.tensor(length)).item()
            assert value == pytest.approx(scoring_of(options)(-3.0, length))


def test_an_end_criterion_is_the_end_token():
    """`generate` adds the criterion of the end token itself; the search knows the token."""
    model = models("t5")[1]
    options = dict(num_beams=2, custom_generate=beam_search)
    want = model.generate(**inputs_of(model), **options)
    more = StoppingCriteriaList([EosTokenCriteria(model.config.eos_token_id)])
    assert torch.equal(model.generate(**inputs_of(model), **options, stopping_criteria=more), want)


# ---- an observer --------------------------------------------------------------------------------------------------
def hypotheses_of(steps, source: int) -> tuple[dict[tuple[int, ...], float], list[tuple[int, ...]]]:
    """What steps say that a source's search found, tokens -> log-probability, and the beams that it had in the end."""
    beams: list[tuple[int, ...]] = [()]
    found = {}
    for step in steps:
        if source not in step.sources.tolist():
            break
        row = step.sources.tolist().index(source)
        scores, origins, tokens, ended = (part[row].tolist() for part in (step.scores, step.origins, step.tokens, step.ended))
        candidates = [
            ((*beams[origin], token), score) if score > float("-inf") else None
            for score, origin, token in zip(scores, origins, tokens, strict=True)
        ]
        found |= {each[0]: each[1] for each, end in zip(candidates, ended, strict=True) if end}
        beams = [candidates[place][0] for place in step.kept[row].tolist() if place >= 0]
    return found, beams


@pytest.mark.parametrize("beams", [1, 3])
def test_an_observer_sees_how_each_hypothesis_came_about(beams):
    """Followed back through the steps it is shown, every hypothesis has the tokens and the sum of the result."""
    model = tiny_model(9, seed=3)
    ids, mask = pad_rows([words(1, length, seed=length, high=9)[0] for length in (5, 2, 4, 3)])
    options = dict(attention_mask=mask, num_beams=beams, num_return_sequences=beams, max_new_tokens=7, length_penalty=0.5)
    options |= dict(custom_generate=beam_search, return_dict_in_generate=True, max_length_by_source=(1, 1))
    steps = []
    seen, alone = model.generate(ids, observer=steps.append, **options), model.generate(ids, **options)
    assert torch.equal(seen.sequences, alone.sequences)
    assert len({len(step.sources) for step in steps}) > 1  # sources leave
    rows = zip(seen.sequences[:, 1:].tolist(), seen.lengths.tolist(), seen.log_probs.tolist(), strict=True)
    for number, (row, length, log_prob) in enumerate(rows):
        found, _ = hypotheses_of(steps, number // beams)
        assert found[tuple(row[:length])] == pytest.approx(log_prob)


def test_an_observer_sees_the_beams_that_go_on():
    """The beams after k steps are those of a search that may have k tokens more, and nothing ends among them."""
    model = tiny_model(9, seed=3)
    steps = []
    model.generate(words(1, 5, high=9), num_beams=3, max_new_tokens=7, custom_generate=beam_search, observer=steps.append)
    for count in range(1, len(steps) + 1):
        _, beams = hypotheses_of(steps[:count], 0)
        assert all(len(beam) == count and END not in beam for beam in beams)
        assert len(set(beams)) == (0 if count == 7 else 3)  # at the limit all end


@pytest.mark.parametrize("options", [{"phrases": [[[5]]]}, {"beam_groups": 2}], ids=str)
def test_an_observer_is_for_plain_searches(options):
    with pytest.raises(ValueError, match="observer is shown plain beam search alone"):
        tiny_model(9, seed=3).generate(
            words(1, 5, high=9), num_beams=4, max_new_tokens=7, custom_generate=beam_search, observer=print, **options
        )

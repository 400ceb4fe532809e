"""Beams and samples that share their source, against a reference that repeats it, and against brute force."""

import itertools

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin

from configs import END, PAD, PAIRWISE, SCHEMES, build, difference, name, pad_rows, tiny, words
from transduct import TransductForConditionalGeneration

pairwise = pytest.mark.parametrize("choice", PAIRWISE, ids=name)
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
both_implementations = pytest.mark.parametrize("attention", ["eager", "sdpa"])

EXACT = 1e-11
SINGLE = 1e-6  # transformers searches in float32
SOURCES = [words(1, length, seed=length)[0] for length in (7, 2, 4)]

SEARCHES = {
    "greedy": {},
    "beam": dict(num_beams=4),
    "n_best": dict(num_beams=4, num_return_sequences=3, length_penalty=0.6),
    "early": dict(num_beams=3, num_return_sequences=3, early_stopping=True, length_penalty=2.0),
    "never": dict(num_beams=3, early_stopping="never", length_penalty=-1.0),
    "no_repeat": dict(num_beams=3, no_repeat_ngram_size=2, min_new_tokens=4, repetition_penalty=1.3),
    "sampling": dict(do_sample=True, num_return_sequences=4, top_k=5),
    "beam_sampling": dict(do_sample=True, num_beams=3, num_return_sequences=2, temperature=1.5),
}


class Repeating(TransductForConditionalGeneration):
    """The reference: encoder states, masks and caches repeated for each beam, as in transformers."""

    _expand_inputs_for_generation = GenerationMixin._expand_inputs_for_generation
    _prepare_cache_for_generation = GenerationMixin._prepare_cache_for_generation

    def _reorder_cache(self, cache, beam_idx):
        cache.reorder_cache(beam_idx)
        return cache


def both(choice, attention: str = "sdpa", seed: int = 0):
    config = tiny(**choice)
    return tuple(build(kind, config, seed=seed, attention=attention) for kind in (TransductForConditionalGeneration, Repeating))


def search(model, ids, mask, seed: int = 0, **options):
    torch.manual_seed(seed)
    return model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=8,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **options,
    )


def same_search(got, want) -> None:
    assert got.sequences.tolist() == want.sequences.tolist()
    assert len(got.scores) == len(want.scores)
    for one, other in zip((*got.scores, *got.logits), (*want.scores, *want.logits), strict=True):
        assert one.shape == other.shape
        finite = other.isfinite()
        assert torch.equal(finite, one.isfinite())
        assert difference(one[finite], other[finite]) < SINGLE
    if getattr(want, "sequences_scores", None) is not None:
        assert difference(got.sequences_scores, want.sequences_scores) < SINGLE
        assert torch.equal(got.beam_indices, want.beam_indices)


# ---- sharing changes nothing --------------------------------------------------------------------------------------
@pairwise
@pytest.mark.parametrize("kind", SEARCHES)
def test_every_search(choice, kind):
    ours, reference = both(choice)
    ids, mask = pad_rows(SOURCES, "left" if choice["norm_position"] == "pre" else "right")
    same_search(search(ours, ids, mask, **SEARCHES[kind]), search(reference, ids, mask, **SEARCHES[kind]))


@every_scheme
@both_implementations
@pytest.mark.parametrize("kind", ["n_best", "sampling"])
def test_every_attention(choice, attention, kind):
    ids, mask = pad_rows(SOURCES)
    for seed in range(3):
        ours, reference = both(choice, attention, seed)
        same_search(search(ours, ids, mask, seed, **SEARCHES[kind]), search(reference, ids, mask, seed, **SEARCHES[kind]))


@every_scheme
@pytest.mark.parametrize("kind", ["n_best", "sampling", "greedy"])
def test_every_cache(choice, kind):
    ours, reference = both(choice)
    ids, mask = pad_rows(SOURCES)
    want = search(reference, ids, mask, **SEARCHES[kind])
    given = EncoderDecoderCache(DynamicCache(), DynamicCache())
    static, dynamic = dict(cache_implementation="static"), dict(cache_implementation="dynamic")
    for options in (dict(cache=given), dict(use_cache=False), static, dynamic):
        same_search(search(ours, ids, mask, **SEARCHES[kind], **options), want)
    beams = {"n_best": 4, "sampling": 4, "greedy": 1}[kind]
    assert {layer.keys.shape[0] for layer in given.cross_attention_cache.layers} == {3}
    assert {layer.keys.shape[0] for layer in given.self_attention_cache.layers} == {3 * beams}


@every_scheme
def test_static_caches_are_reused_between_calls(choice):
    """Other batches, beams and lengths one after the other: each as with a fresh cache."""
    ours, reference = both(choice)
    for rows, length, beams in ((3, 7, 4), (3, 7, 4), (2, 5, 4), (3, 7, 2), (1, 9, 3), (3, 4, 4)):
        ids = words(rows, length, seed=rows * length)
        got = search(ours, ids, None, num_beams=beams, cache_implementation="static")
        same_search(got, search(reference, ids, None, num_beams=beams))


@every_scheme
def test_prompts_and_encoder_outputs(choice):
    ours, reference = both(choice)
    ids, mask = pad_rows(SOURCES)
    prompts, prompt_mask = pad_rows([words(1, length, seed=length)[0] for length in (3, 1, 2)], "left")
    options = dict(decoder_input_ids=prompts, decoder_attention_mask=prompt_mask, num_beams=3, num_return_sequences=2)
    want = search(reference, ids, mask, **options)
    same_search(search(ours, ids, mask, **options), want)
    states = ours.get_encoder()(ids, mask)
    torch.manual_seed(0)
    wanted = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
    got = ours.generate(encoder_outputs=states, attention_mask=mask, max_new_tokens=8, **wanted, **options)
    same_search(got, want)


@both_implementations
def test_attentions_of_every_step(attention):
    ours, reference = both(PAIRWISE[0], attention)
    ids, mask = pad_rows(SOURCES)
    options = dict(num_beams=2, num_return_sequences=2, output_attentions=True, output_hidden_states=True)
    got, want = search(ours, ids, mask, **options), search(reference, ids, mask, **options)
    same_search(got, want)
    assert [tuple(weights.shape) for weights in got.encoder_attentions] == [(3, 4, 7, 7)] * 2
    steps = zip(got.cross_attentions, got.decoder_attentions, got.decoder_hidden_states, strict=True)
    for step, (cross, own, states) in enumerate(steps):
        assert [tuple(weights.shape) for weights in cross] == [(6, 4, 1, 7)] * 2
        assert [tuple(weights.shape) for weights in own] == [(6, 4, 1, step + 1)] * 2
        assert [tuple(state.shape) for state in states] == [(6, 1, 16)] * 3
        for layer in range(2):
            assert difference(cross[layer], want.cross_attentions[step][layer]) < EXACT
            assert difference(own[layer], want.decoder_attentions[step][layer]) < EXACT
            assert difference(cross[layer].sum(-1), torch.ones(6, 4, 1)) < EXACT
            assert (cross[layer][2:4, :, :, 2:] == 0).all()  # the padding of the second source


@every_scheme
@both_implementations
def test_forward_with_several_targets_a_source(choice, attention):
    """Three consecutive target rows share a source: the logits, cross-attentions and gradients of repeated sources."""
    model = build(TransductForConditionalGeneration, tiny(**choice), attention=attention)
    ids, mask = pad_rows(SOURCES)
    labels = words(9, 5, seed=4)
    results = []
    for inputs in ((ids, mask), (ids.repeat_interleave(3, 0), mask.repeat_interleave(3, 0))):
        model.zero_grad()
        output = model(*inputs, labels=labels, output_attentions=True)
        output.loss.backward()
        results.append((output.logits, *output.cross_attentions, *(p.grad for p in model.parameters())))
    assert results[0][1].shape == (9, 4, 5, 7)
    for one, other in zip(*results, strict=True):
        assert difference(one, other) < 1e-10


@both_implementations
def test_a_cross_mask_for_each_query_of_each_beam(attention):
    model = build(TransductForConditionalGeneration, tiny(), attention=attention)
    ids, targets = words(2, 6), words(6, 4, seed=1)
    generator = torch.Generator().manual_seed(0)
    per_query = torch.rand(6, 4, 6, generator=generator) < 0.6
    per_query[..., 0] = True
    with torch.no_grad():
        repeated = ids.repeat_interleave(3, 0)
        want = model(repeated, decoder_input_ids=targets, cross_attention_mask=per_query).logits
        assert difference(model(ids, decoder_input_ids=targets, cross_attention_mask=per_query).logits, want) < EXACT
        assert difference(model(ids, decoder_input_ids=targets, cross_attention_mask=per_query[:, None]).logits, want) < EXACT
        of_sources = per_query[::3]
        each = of_sources.repeat_interleave(3, 0)
        want = model(repeated, decoder_input_ids=targets, cross_attention_mask=each).logits
        assert difference(model(ids, decoder_input_ids=targets, cross_attention_mask=of_sources).logits, want) < EXACT


# ---- brute force --------------------------------------------------------------------------------------------------
LENGTH = 4  # new tokens


def small(positions: str, seed: int):
    """Four tokens: padding (which the model may produce as well), end, and two words."""
    config = tiny(vocab_size=4, positions=positions, tie_embeddings="none", decoder_start_token_id=PAD)
    return build(TransductForConditionalGeneration, config, seed=seed)


def every_hypothesis(model, ids) -> dict[tuple[int, ...], float]:
    """Log-probability of each sequence that ends, or that reaches the length without an end."""
    with torch.no_grad():
        all_of_them = torch.tensor(list(itertools.product(range(4), repeat=LENGTH)))
        inputs = torch.cat([torch.full((len(all_of_them), 1), PAD), all_of_them[:, :-1]], dim=1)
        log_probs = model(ids, decoder_input_ids=inputs).logits.log_softmax(-1).gather(2, all_of_them[..., None])[..., 0]
    found = {}
    for tokens, scores in zip(all_of_them.tolist(), log_probs.tolist(), strict=True):
        length = tokens.index(END) + 1 if END in tokens else LENGTH
        found[tuple(tokens[:length])] = sum(scores[:length])
    return found


def generated(output, row: int) -> tuple[int, ...]:
    tokens = output.sequences[row, 1:].tolist()
    return tuple(tokens[: tokens.index(END) + 1] if END in tokens else tokens)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_enough_beams_find_the_best_hypotheses(penalty, early_stopping):
    """With 4^3 beams the search is exhaustive, whatever the stopping rule.

    Before the last step at most 3^3 hypotheses are open and 1 + 3 + 9 have ended. All ends fit among the beams, so no rule stops
    early: each waits until as many have ended as there are beams. In the last step the best 4^3 of 4 * 3^3 candidates end; they
    have one length, so a length penalty keeps their order, and the n best of all hypotheses are among those kept.
    """
    beams = 4 ** (LENGTH - 1)
    for seed, positions in enumerate(("sinusoidal", "relative_bias", "rotary", "alibi")):
        model = small(positions, seed)
        ids = words(3, 3, seed=seed, low=2, high=4)
        options = dict(max_new_tokens=LENGTH, num_beams=beams, num_return_sequences=beams, early_stopping=early_stopping)
        output = model.generate(ids, length_penalty=penalty, return_dict_in_generate=True, output_scores=True, **options)
        for row in range(3):
            hypotheses = every_hypothesis(model, ids[row : row + 1])
            score = {tokens: log_prob / len(tokens) ** penalty for tokens, log_prob in hypotheses.items()}
            best = sorted(score, key=score.get, reverse=True)[:beams]
            found = [generated(output, row * beams + rank) for rank in range(beams)]
            assert found[0] == best[0]
            assert sorted(found) == sorted(set(found))  # no hypothesis twice
            for rank, tokens in enumerate(found):
                assert abs(output.sequences_scores[row * beams + rank].item() - score[tokens]) < 1e-5
                assert abs(score[tokens] - score[best[rank]]) < 1e-5  # the same order, but for rounding


def test_the_search_has_something_to_find():
    """Greedy search misses the best hypothesis in some of the cases above, and the penalty decides which is best."""
    missed, winners = 0, set()
    for seed, positions in enumerate(("sinusoidal", "relative_bias", "rotary", "alibi")):
        model = small(positions, seed)
        for ids in words(3, 3, seed=seed, low=2, high=4)[:, None]:
            hypotheses = every_hypothesis(model, ids)
            greedy = generated(model.generate(ids, max_new_tokens=LENGTH, return_dict_in_generate=True), 0)
            missed += greedy != max(hypotheses, key=hypotheses.get)
            for penalty in (0.0, 0.6, 1.0, 2.0, -1.0):
                winners.add((seed, *max(hypotheses, key=lambda tokens: hypotheses[tokens] / len(tokens) ** penalty)))
    assert missed > 0
    assert len(winners) > 6


@pytest.mark.parametrize("search_name", ["greedy", "beam", "n_best", "early"])
def test_the_default_length_of_a_row_does_not_depend_on_its_batch(search_name):
    """Random models rarely end; each row stops at its own source's length + 50, whatever the padding."""
    model = build(TransductForConditionalGeneration, tiny(eos_token_id=None), seed=0)
    ids, mask = pad_rows(SOURCES)
    options = SEARCHES[search_name]
    together = model.generate(input_ids=ids, attention_mask=mask, **options)
    copies = options.get("num_return_sequences", 1)
    for row, source in enumerate(SOURCES):
        alone = model.generate(input_ids=source[None], **options)
        assert alone.shape[1] == 1 + len(source) + 50
        for copy in range(copies):
            assert together[row * copies + copy, : alone.shape[1]].tolist() == alone[copy].tolist()

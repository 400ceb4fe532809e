"""Token tries: outputs are sequences of the set and nothing else, found at the cost of a step a token."""

import pytest
import torch

from configs import END, PAD, build, pad_rows, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import InTrie, TokenTrie, beam_search, sample

SEQUENCES = [[5, 6, 7], [5, 8], [9], [9, 9, 9, 9], [11, 4]]
SOURCES = [words(1, length, seed=length)[0] for length in (6, 3, 8)]


def inputs(model):
    ids, mask = pad_rows(SOURCES)
    return {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id), "attention_mask": mask, "max_new_tokens": 8}


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
@pytest.mark.parametrize("beams", [1, 3, 5])
def test_generate_and_the_search_agree(family, beams):
    for model in pair(family):
        end = model.config.eos_token_id
        options = dict(num_beams=beams, num_return_sequences=beams, do_sample=False)
        want, got = (
            model.generate(**inputs(model), **options, **custom, logits_processor=[InTrie(TokenTrie(SEQUENCES), end)])
            for custom in ({}, {"custom_generate": beam_search})
        )
        assert torch.equal(want, got)
        found = [tuple(row[1 : row.index(end, 1)]) for row in got.tolist()]
        assert set(found) <= set(map(tuple, SEQUENCES))
        assert all(len(set(found[start : start + beams])) == beams for start in range(0, 3 * beams, beams))


def test_all_of_the_set_is_found_and_scored_as_the_model_does():
    """A beam as wide as the set holds all of it; the best is the most probable one."""
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    options = dict(num_beams=5, num_return_sequences=5, length_penalty=0.0, custom_generate=beam_search, max_new_tokens=8)
    found = model.generate(
        SOURCES[:1][0][None], **options, return_dict_in_generate=True, logits_processor=[InTrie(TokenTrie(SEQUENCES), END)]
    )
    totals = {}
    for sequence in SEQUENCES:
        begun = torch.tensor([[model.config.decoder_start_token_id, *sequence]])
        with torch.no_grad():
            log_probs = model(SOURCES[0][None], decoder_input_ids=begun).logits[0].log_softmax(-1)
        totals[tuple(sequence)] = sum(log_probs[step, token].item() for step, token in enumerate([*sequence, END]))
    rows = [tuple(row[1 : row.index(END)]) for row in found.sequences.tolist()]
    assert rows == sorted(totals, key=lambda each: -totals[each])
    assert found.sequences_scores.tolist() == pytest.approx(sorted(totals.values(), reverse=True), abs=1e-4)


def test_samples_are_in_the_set():
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    options = dict(do_sample=True, num_return_sequences=10, top_k=0, custom_generate=sample)
    out = model.generate(**inputs(model), **options, logits_processor=[InTrie(TokenTrie(SEQUENCES), END)])
    assert {tuple(row[1 : row.index(END)]) for row in out.tolist()} <= set(map(tuple, SEQUENCES))


def test_a_long_sequence_is_not_walked_from_its_beginning_each_step(monkeypatch):
    """But for the first step of a search, and for hypotheses that the last step did not have."""
    walked = []
    node = TokenTrie.node
    monkeypatch.setattr(TokenTrie, "node", lambda trie, beginning: walked.append(len(beginning)) or node(trie, beginning))
    long = list(range(2, 23)) * 20
    processor = InTrie(TokenTrie([long, [*long[:300], 3]]), END)
    scores = torch.zeros(2, 23)
    for length in range(1, len(long) + 1):
        ids = torch.tensor([[0, *long[: length - 1]]] * 2)
        allowed = processor(ids, scores)
        want = {long[length - 1]} | ({3} if length == 301 else set())
        assert set(allowed[0].isfinite().nonzero().flatten().tolist()) == want
    assert walked == [0]
    assert len(processor.nodes) == 1
    assert processor(torch.tensor([[0, *long[:300], 3]]), scores[:1])[0].isfinite().nonzero().tolist() == [[END]]
    assert walked == [0, 301]


def test_where_sequences_end():
    processor = InTrie(TokenTrie([[5], [5, 6]]), [1, 2])
    allowed = processor(torch.tensor([[0, 5], [0, 7], [0, 1]]), torch.zeros(3, 9)).isfinite()
    assert allowed[0].nonzero().flatten().tolist() == [1, 2, 6]
    assert not allowed[1].any()  # begins no sequence: nothing may follow
    assert allowed[2].nonzero().flatten().tolist() == [1, 2]  # has ended: a finished row of a batch


def test_behind_a_longer_prompt():
    processor = InTrie(TokenTrie([[5]]), 1, prompt_length=2)
    scores = torch.randn(1, 9)
    assert torch.equal(processor(torch.tensor([[0]]), scores), scores)
    assert processor(torch.tensor([[0, 8]]), scores).isfinite().nonzero().tolist() == [[0, 5]]


def test_refusals():
    with pytest.raises(ValueError, match="holds no empty sequence"):
        TokenTrie([[5], []])
    with pytest.raises(ValueError, match="needs one sequence at least"):
        TokenTrie([])
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    with pytest.raises(ValueError, match="source 0 of the batch has no possible output"):
        model.generate(
            words(1, 4),
            custom_generate=beam_search,
            forced_bos_token_id=8,
            logits_processor=[InTrie(TokenTrie([[5]]), END)],
            max_new_tokens=4,
        )


def test_sequences_that_nothing_can_write_are_refused():
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    with pytest.raises(ValueError, match="a trie holds -3, which is no token id"):
        TokenTrie([[5, -3]])
    with pytest.raises(ValueError, match=f"a trie holds the end token {END}"):
        InTrie(TokenTrie([[5, END]]), END)
    for search in ({}, {"custom_generate": beam_search}):
        with pytest.raises(ValueError, match="a trie holds token 99, but the vocabulary has 23 tokens"):
            model.generate(words(1, 4), logits_processor=[InTrie(TokenTrie([[99]]), END)], max_new_tokens=4, **search)


@pytest.mark.parametrize("more", [{}, {"do_sample": True, "custom_generate": sample}])
def test_no_limit_cuts_a_sequence_off(more):
    model = build(TransductForConditionalGeneration, tiny(), torch.float32)
    options = dict(logits_processor=[InTrie(TokenTrie([[5, 6, 7], [5]]), END)]) | {"custom_generate": beam_search} | more
    with pytest.raises(
        ValueError, match="source 0 of the batch may have at most 3 tokens, but the longest sequence of the trie takes 4"
    ):
        model.generate(words(2, 4), max_new_tokens=3, **options)
    found = model.generate(words(2, 4), max_new_tokens=4, **options)
    assert all(row[1:] in ([5, 6, 7, END], [5, END, PAD, PAD], [5, END]) for row in found.tolist())

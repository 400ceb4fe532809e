"""Diverse beam groups: as a slow search written with lists, row by row, and plain beam search where nothing is penalised."""

import pytest
import torch

from configs import END, START, build, pad_rows, tiny, words
from published import pair
from transduct import TransductForConditionalGeneration
from transduct.decoding import beam_search

SOURCES = [words(1, length, seed=length)[0] for length in (5, 2, 7)]


def model_with_ends(seed: int = 5):
    model = build(TransductForConditionalGeneration, tiny(logits_bias=True), torch.float32, seed)
    with torch.no_grad():
        model.lm_head.bias[END] += 2.0
    return model


def search(model, sources, **options):
    """Ids and scores of all hypotheses of each source."""
    ids, mask = pad_rows(sources)
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    beams = options["num_beams"]
    common = dict(custom_generate=beam_search, return_dict_in_generate=True, num_return_sequences=beams) | options
    found = model.generate(ids, attention_mask=mask, **common)
    rows = [tuple(row[1 : 1 + length]) for row, length in zip(found.sequences.tolist(), found.lengths.tolist(), strict=True)]
    flat = list(zip(rows, found.sequences_scores.tolist(), strict=True))
    return [flat[start : start + beams] for start in range(0, len(flat), beams)]


def slow_search(model, source, beams: int, groups: int, penalty: float, most: int, length_penalty: float):
    """Lists of hypotheses, a full pass for each, until all have ended."""
    size = beams // groups
    running = [[((), 0.0)] for _ in range(groups)]
    found = [[] for _ in range(groups)]
    closed = [False] * groups
    for length in range(1, most + 1):
        taken: list[int] = []
        for group in range(groups):
            every = []
            for ids, total in [] if closed[group] else running[group]:
                with torch.no_grad():
                    logits = model(source[None], decoder_input_ids=torch.tensor([[START, *ids]])).logits[0, -1]
                for token, more in enumerate(logits.log_softmax(-1).tolist()):
                    every.append(((*ids, token), total + more - penalty * taken.count(token)))
            every.sort(key=lambda each: -each[1])
            ends = [each for each in every[:size] if each[0][-1] == END or length == most]
            found[group] += [(ids, total / length**length_penalty) for ids, total in ends]
            found[group] = sorted(found[group], key=lambda each: -each[1])[:size]
            running[group] = [each for each in every if each[0][-1] != END and length < most][:size]
            taken += [ids[-1] for ids, _ in running[group]]
        for group in range(groups):
            best = max((total for _, total in running[group]), default=float("-inf"))
            closed[group] = len(found[group]) == size and best / length**length_penalty <= found[group][-1][1]
        if all(closed) or not any(running):
            break
    return sorted((each for group in found for each in group), key=lambda each: -each[1])


@pytest.mark.parametrize(("beams", "groups"), [(4, 2), (6, 3), (3, 3)])
@pytest.mark.parametrize("penalty", [0.0, 0.5, 3.0])
def test_as_a_slow_search(beams, groups, penalty):
    model = model_with_ends()
    options = dict(num_beams=beams, max_new_tokens=6, length_penalty=0.7, beam_groups=groups, diversity_penalty=penalty)
    for source, found in zip(SOURCES, search(model, SOURCES, **options), strict=True):
        want = slow_search(model, source, beams, groups, penalty, 6, 0.7)
        assert [score for _, score in found] == pytest.approx([score for _, score in want], abs=1e-4)
        if penalty:  # without, groups are alike and so are scores
            assert [ids for ids, _ in found] == [ids for ids, _ in want]


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_without_a_penalty_each_group_is_plain_beam_search(family):
    for model in pair(family):
        sources = [torch.randint(3, 38, (length,)) for length in (6, 4)]
        options = dict(max_new_tokens=8, no_repeat_ngram_size=2)
        plain = search(model, sources, num_beams=2, **options)
        for one, groups in zip(plain, search(model, sources, num_beams=6, beam_groups=3, **options), strict=True):
            assert sorted(ids for ids, _ in groups) == sorted([ids for ids, _ in one] * 3)


def test_a_batch_is_its_rows_one_by_one():
    model = model_with_ends()
    options = dict(num_beams=6, beam_groups=3, diversity_penalty=1.0, max_length_by_source=(1, 2), min_length_by_source=(0.5, 0))
    for source, found in zip(SOURCES, search(model, SOURCES, **options), strict=True):
        (alone,) = search(model, [source], **options)
        assert [ids for ids, _ in found] == [ids for ids, _ in alone]
        assert [score for _, score in found] == pytest.approx([score for _, score in alone], abs=1e-5)
        assert all(len(source) // 2 <= len(ids) <= len(source) + 2 for ids, _ in found)


def test_groups_differ_the_more_the_higher_the_penalty():
    """Ends are not kept apart, so that a group may end as early as another."""
    model = model_with_ends()

    def firsts(penalty: float) -> int:
        options = dict(num_beams=4, beam_groups=4, diversity_penalty=penalty, max_new_tokens=6, min_new_tokens=3)
        found = search(model, SOURCES, **options)
        return sum(len({ids[0] for ids, _ in each}) for each in found)

    assert firsts(0.0) == len(SOURCES)
    assert firsts(100.0) == 4 * len(SOURCES)


def test_a_static_cache_keeps_its_rows():
    model = model_with_ends()
    options = dict(num_beams=4, beam_groups=2, diversity_penalty=1.0, max_new_tokens=6)
    want = search(model, SOURCES, **options)
    got = search(model, SOURCES, **options, cache_implementation="static")
    assert [[ids for ids, _ in each] for each in got] == [[ids for ids, _ in each] for each in want]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_groups": 3}, "num_beams=4 must be a multiple of beam_groups=3"),
        ({"beam_groups": 0}, "beam_groups=0 must be a whole number of at least 1"),
        ({"beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty=-1.0 must not be negative"),
        ({"diversity_penalty": 0.5}, "diversity_penalty=0.5 acts between groups: set beam_groups to 2 or more"),
        ({"beam_groups": 2, "coverage_penalty": 0.1}, "coverage_penalty and beam_groups=2 exclude each other"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(options, message):
    with pytest.raises(ValueError) as refusal:
        search(model_with_ends(), SOURCES, num_beams=4, max_new_tokens=5, **options)
    assert message in str(refusal.value)

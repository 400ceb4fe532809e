"""Rows that a model continues: caches that lose sources are caches of the others."""

import pytest
import torch
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from configs import PAD, SCHEMES, START, build, difference, name, pad_rows, tiny, words
from published import pair
from transduct import TransductForCausalLM, TransductForConditionalGeneration
from transduct.cache import TransductCache
from transduct.decoding.coverage import Coverage
from transduct.decoding.rows import Rows, keep_in_cache

SOURCES = [words(1, length, seed=length)[0] for length in (6, 3, 5, 4)]
BEAMS = 2


def rows_of(model, sources, cache=None, **arguments) -> Rows:
    """Rows at their first step, for a model of ours whose beams share a source, or one whose sources are repeated."""
    ids, mask = pad_rows(sources)
    own = isinstance(model, TransductForConditionalGeneration)
    if not own:
        ids, mask = ids.repeat_interleave(BEAMS, dim=0), mask.repeat_interleave(BEAMS, dim=0)
    with torch.no_grad():
        states = model.get_encoder()(input_ids=ids, attention_mask=mask)
    if cache is None:
        cache = TransductCache() if own else EncoderDecoderCache(DynamicCache(), DynamicCache())
    given = {"encoder_outputs": states, "attention_mask": mask, "cache": cache, "use_cache": True, **arguments}
    begin = torch.full((len(sources) * BEAMS, 1), START)
    return Rows(model, begin, BEAMS, GenerationConfig(), given)


def continued(rows: Rows, numbers: list[int], steps: range) -> list[torch.Tensor]:
    """Logits of the next steps, in which each row gets tokens that its source's number and its beam determine."""
    logits = []
    for step in steps:
        with torch.no_grad():
            logits.append(rows.logits())
        rows.append(torch.tensor([3 + (7 * number + 5 * beam + step) % 19 for number in numbers for beam in range(BEAMS)]))
    return logits


@pytest.mark.parametrize("choice", SCHEMES, ids=name)
def test_what_stays_does_not_notice_who_left(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    check_leaving(model)


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_in_models_of_transformers(family):
    check_leaving(pair(family, dtype=torch.float64)[0])


def check_leaving(model) -> None:
    whole, shrinking = rows_of(model, SOURCES), rows_of(model, SOURCES)
    want = continued(whole, [0, 1, 2, 3], range(6))
    stays = torch.tensor([False, True, True, True])
    got = continued(shrinking, [0, 1, 2, 3], range(2))
    order = shrinking.compact(stays)
    assert order.tolist() == [3, 1, 2]  # the last takes the gap
    assert shrinking.sources == 3
    got += continued(shrinking, [3, 1, 2], range(2, 4))
    shrinking.keep(torch.tensor([1]))
    got += continued(shrinking, [1], range(4, 6))
    for step, numbers in enumerate(([0, 1, 2, 3],) * 2 + ([3, 1, 2],) * 2 + ([1],) * 2):
        rows = [number * BEAMS + beam for number in numbers for beam in range(BEAMS)]
        assert difference(got[step], want[step][rows]) < 1e-6  # logits are told in float32


def test_beams_continue_others():
    """A row that continues another one's tokens is as if it had had them from the beginning."""
    for model in (build(TransductForConditionalGeneration, tiny()), pair("bart", dtype=torch.float64)[0]):
        moved, straight = rows_of(model, SOURCES[:2]), rows_of(model, SOURCES[:2])
        with torch.no_grad():
            for rows in (moved, straight):
                rows.logits()
            moved.append(torch.tensor([5, 6, 7, 8]))
            straight.append(torch.tensor([6, 5, 8, 8]))
            for rows in (moved, straight):
                rows.logits()
            moved.append(torch.tensor([9, 10, 11, 12]), torch.tensor([1, 0, 3, 3]))
            straight.append(torch.tensor([9, 10, 11, 12]))
            assert torch.equal(moved.ids, straight.ids)
            assert difference(moved.logits(), straight.logits()) < 1e-6


def test_a_static_cache_cannot_lose_rows():
    model = build(TransductForConditionalGeneration, tiny())
    static = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=9)
    rows = rows_of(model, SOURCES, EncoderDecoderCache(static, DynamicCache()))
    continued(rows, [0, 1, 2, 3], range(1))
    assert not rows.can_leave
    assert rows_of(model, SOURCES).can_leave
    assert rows_of(model, SOURCES, use_cache=False, cache=EncoderDecoderCache(DynamicCache(), DynamicCache())).can_leave


def test_a_cache_of_a_language_model():
    model = build(TransductForCausalLM, tiny())
    ids, mask = pad_rows(SOURCES, "left")
    given = {"attention_mask": mask, "use_cache": True}
    whole = Rows(model, ids, 1, GenerationConfig(), dict(given) | {"cache": DynamicCache()})
    part = Rows(model, ids, 1, GenerationConfig(), dict(given) | {"cache": DynamicCache()})
    with torch.no_grad():
        for rows in (whole, part):
            rows.logits()
            rows.append(torch.tensor([4, 5, 6, 7]))
        part.keep(torch.tensor([3, 1]))
        assert difference(part.logits(), whole.logits()[[3, 1]]) < 1e-6
    keep_in_cache(None, torch.tensor([0]), torch.tensor([0]))  # without a cache there is nothing to do


def test_attention_that_was_paid_follows_the_rows():
    model = build(TransductForConditionalGeneration, tiny(), attention="eager")
    rows = rows_of(model, SOURCES)
    rows.coverage = Coverage(1.0, -1, rows)
    continued(rows, [0, 1, 2, 3], range(3))
    before = rows.coverage.penalty()
    assert rows.coverage.paid.sum(1).tolist() == pytest.approx([3.0] * 8)  # of each token all attention, which is 1
    rows.keep(torch.tensor([2, 0]))
    assert torch.equal(rows.coverage.penalty(), before[[4, 5, 0, 1]])
    assert (pad_rows(SOURCES)[0] == PAD).any()  # padding must count for nothing
    alone = rows_of(model, SOURCES[1:2])
    alone.coverage = Coverage(1.0, -1, alone)
    continued(alone, [1], range(3))
    assert difference(alone.coverage.penalty(), before[2:4]) < 1e-6

"""Logits processors over a batch that shrinks: those that know their row get it, and the others no more work than needed."""

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tiny_translation import tiny_translation
from transduct.decoding import beam_search
from transduct.decoding.processors import RowProcessors

SOURCES, BEAMS, VOCABULARY = 4, 2, 9
IDS = torch.randint(0, VOCABULARY, (SOURCES * BEAMS, 5), generator=torch.Generator().manual_seed(0))
SCORES = torch.randn(SOURCES * BEAMS, VOCABULARY, generator=torch.Generator().manual_seed(1))


class Seen(LogitsProcessor):
    """Notes how many rows it was shown, and adds 1."""

    def __init__(self):
        self.rows: list[int] = []

    def __call__(self, input_ids, scores):
        self.rows.append(len(scores))
        return scores + 1


class AtSources(LogitsProcessor):
    """Adds the number of a row's source; one of ours, which is told."""

    def __call__(self, input_ids, scores):
        raise AssertionError("it is told the sources")

    def at_sources(self, input_ids, scores, sources):
        return scores + sources[:, None]


def rows_of(alive: list[int]) -> torch.Tensor:
    return torch.tensor([source * BEAMS + beam for source in alive for beam in range(BEAMS)])


@pytest.mark.parametrize("alive", [[0, 1, 2, 3], [0, 1], [3, 1], [2], [0, 3, 2]], ids=str)
@pytest.mark.parametrize(
    "processor",
    [
        NoRepeatNGramLogitsProcessor(1),
        RepetitionPenaltyLogitsProcessor(1.5),
        EncoderNoRepeatNGramLogitsProcessor(1, torch.arange(8).view(4, 2)),
        PrefixConstrainedLogitsProcessor(lambda source, ids: [source, 8], BEAMS),
        Seen(),
    ],
    ids=lambda processor: type(processor).__name__,
)
def test_as_if_nobody_had_left(processor, alive):
    processors = RowProcessors(LogitsProcessorList([processor]), SOURCES, BEAMS)
    rows = rows_of(alive)
    want = processor(IDS, SCORES.clone())[rows]
    assert torch.equal(processors(IDS[rows], SCORES[rows].clone(), torch.tensor(alive)), want)


def test_ours_are_told_the_sources():
    processors = RowProcessors(LogitsProcessorList([AtSources(), AtSources()]), SOURCES, BEAMS)
    rows = rows_of([3, 1])
    want = SCORES[rows] + 2 * torch.tensor([3, 3, 1, 1])[:, None]
    assert torch.allclose(processors(IDS[rows], SCORES[rows].clone(), torch.tensor([3, 1])), want)


def test_the_whole_batch_is_only_made_for_those_that_need_it():
    unknown = Seen()
    processors = RowProcessors(LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5), unknown]), SOURCES, BEAMS)
    processors(IDS, SCORES.clone(), torch.arange(SOURCES))
    processors(IDS[:2], SCORES[:2].clone(), torch.tensor([0]))
    assert unknown.rows == [8, 8]


def test_their_order_is_kept():
    processors = [Seen(), RepetitionPenaltyLogitsProcessor(2.0)]
    for order in (processors, processors[::-1]):
        want = SCORES.clone()
        for processor in order:
            want = processor(IDS, want)
        assert torch.equal(RowProcessors(LogitsProcessorList(order), SOURCES, BEAMS)(IDS, SCORES.clone(), torch.arange(4)), want)


def test_whether_there_are_any():
    assert not RowProcessors(LogitsProcessorList(), SOURCES, BEAMS)
    assert RowProcessors(LogitsProcessorList([Seen()]), SOURCES, BEAMS)


@pytest.mark.parametrize(
    "processor",
    [
        MinLengthLogitsProcessor(5, 3),  # the rows have 5 tokens
        MinLengthLogitsProcessor(6, [3, 7]),
        MinLengthLogitsProcessor(6, [3, VOCABULARY]),
        MinNewTokensLengthLogitsProcessor(2, 3, 0),
        MinNewTokensLengthLogitsProcessor(2, 4, 0),
        NoBadWordsLogitsProcessor([[1], [8]]),
        NoBadWordsLogitsProcessor([[1], [8]], eos_token_id=8),
        NoBadWordsLogitsProcessor([[1], [*IDS[0, -2:].tolist(), 5]]),
        SuppressTokensLogitsProcessor([2, 4, 4]),
        SuppressTokensLogitsProcessor([]),  # as the configs of many a Whisper say
        SuppressTokensLogitsProcessor([-1, VOCABULARY]),
        MinLengthLogitsProcessor(6, VOCABULARY),
    ],
)
def test_what_is_forbidden_to_all_rows(processor):
    want = processor(IDS, SCORES.clone())
    processors = RowProcessors(LogitsProcessorList([processor]), SOURCES, BEAMS)
    for _ in range(2):
        assert torch.equal(processors(IDS, SCORES.clone(), torch.arange(SOURCES)), want)


def test_forbidding_a_token_that_does_not_exist():
    processors = RowProcessors(LogitsProcessorList([NoBadWordsLogitsProcessor([[VOCABULARY]])]), SOURCES, BEAMS)
    with pytest.raises(ValueError, match="vocabulary size is 9"):
        processors(IDS, SCORES.clone(), torch.arange(SOURCES))


class Recorder(LogitsProcessor):
    """Keeps what it was shown, as users do to see the scores of each step."""

    def __init__(self):
        self.shown, self.copies = [], []

    def __call__(self, input_ids, scores):
        self.shown.append(scores)
        self.copies.append(scores.clone())
        return scores


class RecorderAtSources(Recorder):
    """The same, told the sources."""

    def at_sources(self, input_ids, scores, sources):
        return self(input_ids, scores)


@pytest.mark.parametrize(
    "options", [{}, {"min_new_tokens": 3}, {"min_length_by_source": (0, 3)}, {"phrases": [[[8, 9]], []]}], ids=str
)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", [Recorder, RecorderAtSources])
def test_scores_that_a_processor_keeps_stay_as_they_were(kind, beams, options):
    model, tokenizer = tiny_translation(end=2.0)
    inputs = tokenizer(["abc", "hello there"], padding=True, return_tensors="pt")
    recorder = kind()
    options = options | {"num_beams": beams, "max_new_tokens": 6, "bad_words_ids": [[7]], "logits_processor": [recorder]}
    model.generate(**inputs, **options, custom_generate=beam_search)
    assert len(recorder.shown) > 1
    for shown, copied in zip(recorder.shown, recorder.copies, strict=True):
        assert torch.equal(shown, copied)

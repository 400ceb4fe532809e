"""Scores of hypotheses of different lengths: the formulas by hand, and bounds that nothing exceeds."""

import pytest
import torch

from transduct.decoding.normalization import Scoring


@pytest.mark.parametrize(
    ("scoring", "length", "score"),
    [
        (Scoring("hf", 1.0), 4, -3.0),
        (Scoring("hf", 0.5), 4, -6.0),
        (Scoring("hf", -1.0), 4, -48.0),
        (Scoring("hf", 0.0), 4, -12.0),
        (Scoring("gnmt", 1.0), 7, -6.0),  # (5 + 7) / 6
        (Scoring("gnmt", 2.0), 7, -3.0),
        (Scoring("gnmt", 0.6), 1, -12.0),  # a length of 1 has no penalty
        (Scoring("sockeye", 1.0, offset=0.0), 4, -3.0),
        (Scoring("sockeye", 1.0, offset=2.0), 4, -6.0),  # (2 + 4) / 3
        (Scoring("sockeye", 2.0, offset=2.0), 4, -3.0),
        (Scoring("none", 0.7), 4, -12.0),
        (Scoring("none", word_reward=0.5), 4, -10.0),
        (Scoring("hf", 1.0, word_reward=-0.5), 4, -5.0),
        (Scoring("hf", 1.0), 0, -12.0),  # an empty one counts as one token
    ],
)
def test_by_hand(scoring, length, score):
    assert scoring.score(torch.tensor([-12.0]), torch.tensor([length])).item() == pytest.approx(score)


def test_equal_at_what_they_share():
    lengths = torch.arange(1, 20)
    log_probs = -torch.rand(19, dtype=torch.float64) * 30
    assert torch.allclose(
        Scoring("sockeye", 0.8, offset=5.0).score(log_probs, lengths), Scoring("gnmt", 0.8).score(log_probs, lengths)
    )
    assert torch.allclose(Scoring("sockeye", 0.8).score(log_probs, lengths), Scoring("hf", 0.8).score(log_probs, lengths))
    assert torch.allclose(Scoring("hf", 0.0).score(log_probs, lengths), Scoring("none").score(log_probs, lengths))


@pytest.mark.parametrize("normalization", ["hf", "gnmt", "sockeye", "none"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("reward", [-0.5, 0.0, 0.5])
def test_the_bound_is_reached_and_never_exceeded(normalization, penalty, reward):
    """Whatever is added to a hypothesis, at most nothing is added to its log-probability."""
    scoring = Scoring(normalization, penalty, word_reward=reward)
    log_probs = torch.tensor([-0.1, -3.0, -40.0])
    longest = torch.tensor([5, 9, 12])
    bound = scoring.bound(log_probs, 5, longest)
    for row, most in enumerate(longest.tolist()):
        reachable = [scoring.score(log_probs[row], torch.tensor(length)).item() for length in range(5, most + 1)]
        assert bound[row].item() == pytest.approx(max(reachable))
        worse = [scoring.score(log_probs[row] - 1, torch.tensor(length)).item() for length in range(5, most + 1)]
        assert max(worse) <= bound[row] + 1e-6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"normalization": "length"}, "length_normalization='length' must be one of 'hf', 'gnmt', 'sockeye', 'none'"),
        ({"normalization": "sockeye", "offset": -1.0}, "length_offset=-1.0 of the sockeye normalisation must exceed -1"),
        ({"penalty": float("nan")}, "length_penalty=nan must be a number"),
        ({"penalty": None}, "length_penalty=None must be a number"),
        ({"word_reward": float("-inf")}, "word_reward=-inf must be a number"),
        ({"normalization": "sockeye", "offset": float("inf")}, "length_offset=inf must be a number"),
        ({"normalization": "gnmt", "offset": 5.0}, "length_offset=5.0 belongs to length_normalization='sockeye'"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError) as refusal:
        Scoring(**fields)
    assert str(refusal.value) == message

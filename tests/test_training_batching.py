"""Token-budget batches: every pair once, within the budget, the same order for the same seed and epoch."""

import numpy as np
import pytest

from transduct.training.batching import TokenBudgetBatchSampler


def lengths(count: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sentence lengths, log-normal, with targets about as long as their sources."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.3, 0.7, count).astype(int), 1, 80)
    return source, np.clip((source * generator.normal(1.1, 0.2, count)).astype(int), 1, 100)


def sampler(count: int = 500, max_tokens: int = 400, **options) -> TokenBudgetBatchSampler:
    return TokenBudgetBatchSampler(*lengths(count), max_tokens=max_tokens, **options)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "max_tokens"), [(500, 400), (500, 180), (500, 50_000), (1, 400), (3, 200)])
def test_every_pair_once_within_the_budget(count, max_tokens, shuffle):
    source, target = lengths(count)
    batches = list(sampler(count, max_tokens, shuffle=shuffle))
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    for batch in batches:
        assert len(batch) * (source[batch].max() + target[batch].max()) <= max_tokens


def test_the_order_depends_on_seed_and_epoch_only():
    def order(seed: int, epoch: int) -> list[list[int]]:
        made = sampler(seed=seed)
        made.set_epoch(epoch)
        return list(made)

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4)
    assert order(1, 3) != order(2, 3)


def test_every_epoch_has_as_many_batches():
    made = sampler()
    assert {len(made.batches(epoch)) for epoch in range(20)} == {len(made)}


def test_pairs_meet_others_in_each_epoch():
    generator = np.random.default_rng(0)
    made = TokenBudgetBatchSampler(generator.integers(3, 12, 2000), generator.integers(3, 12, 2000), max_tokens=300)
    first, second = ({tuple(sorted(batch.tolist())) for batch in made.batches(epoch)} for epoch in (0, 1))
    assert len(first & second) < 0.02 * len(made)


def test_batches_do_not_come_in_order_of_length():
    made = sampler(2000)
    widths = [made.lengths[0, batch].max() for batch in made.batches(0)]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.5
    assert widths != sorted(widths)


def test_little_padding_and_full_batches():
    made = sampler(20_000, 2000)
    assert made.padding_share() < 0.05
    assert made.token_counts(0)[:, 2].mean() > 0.95 * 2000
    at_random = np.random.default_rng(0).permutation(20_000).reshape(-1, 50)
    padded = sum(50 * made.lengths[:, rows].max(1).sum() for rows in at_random)
    assert 1 - made.lengths.sum() / padded > 0.4  # what batches drawn at random would waste


def test_token_counts_of_a_small_case():
    made = TokenBudgetBatchSampler([2, 2, 5], [3, 4, 5], max_tokens=12, shuffle=False)
    assert [batch.tolist() for batch in made.batches(0)] == [[0, 1], [2]]
    assert made.token_counts(0).tolist() == [[4, 7, 12], [5, 5, 10]]
    assert made.padding_share() == pytest.approx(1 / 22)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([], [], "source_lengths is empty"),
        ([1, 2], [1], "2 source_lengths and 1 target_lengths"),
        ([1, 30, 2], [2, 9, 3], "row 1 .* the pair has 30 source and 9 target tokens, more than a batch of 20 may hold"),
    ],
)
def test_errors(source, target, message):
    with pytest.raises(ValueError, match=message):
        TokenBudgetBatchSampler(source, target, max_tokens=20)


@pytest.mark.parametrize("processes", [2, 3, 8])
@pytest.mark.parametrize(("count", "max_tokens"), [(2000, 600), (40, 1000), (8, 10_000)])
def test_processes_share_every_epoch_evenly(processes, count, max_tokens):
    made = TokenBudgetBatchSampler(*lengths(count), max_tokens=max_tokens, num_processes=processes)
    batches = made.batches(3)
    assert len(batches) == len(made)
    assert len(made) % processes == 0
    assert all(len(batch) for batch in batches)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    costs = [len(batch) * made.lengths[:, batch].max(1).sum() for batch in batches]
    assert made.token_counts(3)[:, 2].tolist() == costs
    assert max(costs) <= max_tokens


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_step_takes_all_processes_about_the_same_time(shuffle):
    made = TokenBudgetBatchSampler(*lengths(4000), max_tokens=600, num_processes=4, shuffle=shuffle)
    source, target, padded = made.token_counts(1).T.reshape(3, -1, 4)
    steps = source + 1.5 * target
    assert (steps.min(1) / steps.max(1)).mean() > 0.97
    assert (padded.min(1) / padded.max(1)).mean() > 0.8
    if shuffle:
        assert steps[:, 0].tolist() != sorted(steps[:, 0].tolist())
        assert len({int(step.argmax()) for step in steps}) == 4  # no process always has the dearest


def test_pairs_that_cannot_be_shared_out():
    with pytest.raises(ValueError, match=r"3 batches of one pair each .* num_processes=2"):
        TokenBudgetBatchSampler([9, 9, 9], [9, 9, 9], max_tokens=20, num_processes=2)
    with pytest.raises(ValueError, match="num_processes=4 must be at least 1 and at most the number of pairs, 3"):
        TokenBudgetBatchSampler([9, 9, 9], [9, 9, 9], max_tokens=20, num_processes=4)

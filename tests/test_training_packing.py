"""Packing: rows filled on both sides, every pair once, and the loss and gradients of the pairs alone."""

import copy
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from configs import PAIRWISE, SCHEMES, build, name, tiny
from tiny_training import Tokenizer, pairs
from transduct import TransductForConditionalGeneration
from transduct.training import PackedCollator, Seq2SeqCollator
from transduct.training.packing import PackedBatchSampler, PackedRows, choose_row_lengths, pack_lengths, row_classes


def lengths(count: int = 600, seed: int = 0) -> np.ndarray:
    """(2, pairs): log-normal, targets about as long as their sources."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.3, 0.7, count).astype(int), 1, 60)
    return np.stack([source, np.clip((source * generator.normal(1.1, 0.3, count)).astype(int), 1, 70)])


def examples(sizes: np.ndarray) -> list[dict]:
    generator = np.random.default_rng(0)
    return [dict(zip(("input_ids", "labels"), (generator.integers(3, 20, n) for n in pair), strict=True)) for pair in sizes.T]


def cost(batch: dict[str, torch.Tensor]) -> int:
    return batch["input_ids"].numel() + batch["labels"].numel()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "max_tokens", "processes"), [(600, 400, 1), (600, 1000, 3), (600, 10**6, 1), (5, 150, 2)])
def test_every_pair_once_within_the_budget(count, max_tokens, processes, shuffle):
    sizes = lengths(count)
    sampler = PackedBatchSampler(*sizes, max_tokens, shuffle=shuffle, num_processes=processes)
    collate = PackedCollator(Tokenizer(), decoder_start_token_id=2)
    rows = PackedRows(examples(sizes))
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert len(batches) % processes == 0
        assert sorted(index for batch in batches for row in batch for index in row) == list(range(count))
        for batch in batches:
            assert cost(collate([rows[row] for row in batch])) <= max_tokens


@pytest.mark.parametrize("count", [600, 6000])
def test_batches_cost_what_the_sampler_says(count):
    sizes = lengths(count)
    rows = PackedRows(examples(sizes))
    sampler = PackedBatchSampler(*sizes, 500, seed=3)
    collate = PackedCollator(Tokenizer(), decoder_start_token_id=2)
    sampler.set_epoch(4)
    for batch, counts in zip(sampler, sampler.token_counts(4), strict=True):
        packed = collate([rows[row] for row in batch])
        assert packed["segment_ids"].amax(1).tolist() == [len(row) for row in batch]
        real = (packed["segment_ids"] > 0).sum(), (packed["labels"] != -100).sum()
        assert [*map(int, real), cost(packed)] == counts.tolist()


def test_the_order_depends_on_seed_and_epoch_only():
    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = PackedBatchSampler(*lengths(), 400, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4)
    assert order(1, 3) != order(2, 3)


def test_pairs_of_the_same_lengths_change_places():
    sampler = PackedBatchSampler(*lengths(3000), 400)
    first, second = ({tuple(sorted(row)) for batch in sampler.rows(epoch) for row in batch} for epoch in (0, 1))
    assert len(first & second) < 0.2 * len(first)


@pytest.mark.parametrize(("count", "seeds"), [(2000, 3), (8000, 1)])
def test_at_least_98_of_100_places_are_filled(count, seeds):
    for seed in range(seeds):
        sampler = PackedBatchSampler(*lengths(count, seed), 2000)
        assert sampler.padding_share(epoch=seed) < 0.02
        costs = sampler.token_counts(seed)[:, 2]
        assert costs.min() > 0.9 * costs.max()
        assert costs.max() <= 2000


def test_rows_are_no_longer_than_they_must_be():
    source, target = choose_row_lengths(lengths(5000), 4000)
    assert 60 <= source <= 100
    assert 70 <= target <= 110


def test_long_pairs_have_rows_of_their_own():
    sizes = lengths(10_000)
    sizes[:, :100] = 200  # one in a hundred is much longer than the others
    classes = row_classes(sizes, 1200, num_processes=1)
    assert sorted(np.concatenate([pairs for pairs, _ in classes]).tolist()) == list(range(10_000))
    widths = [sum(sides) for _, sides in classes]
    assert widths[0] >= 400
    assert all(narrower < 0.8 * wider for wider, narrower in pairwise(widths))
    wide = sizes[:, classes[0][0]]
    assert set(range(100)) <= set(classes[0][0].tolist())
    assert wide.sum() < 0.35 * sizes.sum()
    padding = PackedBatchSampler(*sizes, 1200).padding_share()
    assert padding < 0.02


def test_few_pairs_are_one_class():
    assert len(row_classes(lengths(100), 2000, num_processes=1)) == 1


def test_blocks_are_packed_alike():
    sizes = lengths(3000)
    whole, blocks = (pack_lengths(sizes, (80, 90), block_pairs=pairs) for pairs in (10_000, 700))
    assert sorted(np.concatenate(blocks).tolist()) == list(range(3000))
    assert len(blocks) <= 1.02 * len(whole)


def test_processes_get_batches_of_like_cost():
    sampler = PackedBatchSampler(*lengths(4000), 600, num_processes=4)
    steps = sampler.token_counts(0)[:, 2].reshape(-1, 4)
    assert (steps.min(1) / steps.max(1)).mean() > 0.95


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        (([3, 30], [2, 9]), {}, "row 1 .* the pair has 30 source and 9 target tokens"),
        (([3, 9], [2, 11]), {"row_lengths": (8, 12)}, "a row holds 8 and 12"),
        (([3, 3], [2, 2]), {"row_lengths": (15, 6)}, r"row_lengths=\(15, 6\) cost 21 tokens a row, more than max_tokens=20"),
        (([3, 0], [2, 2]), {}, "row 1 .* the pair has an empty side"),
        (([3, 4, 5], [9, 9, 9]), {"num_processes": 2}, "3 batches of one pair each .* num_processes=2"),
        (([3], [2]), {"num_processes": 2}, "num_processes=2 must be"),
    ],
)
def test_the_sampler_refuses(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        PackedBatchSampler(*sizes, max_tokens=20, **options)


def test_literal_batch():
    collate = PackedCollator(Tokenizer(), decoder_start_token_id=2, row_lengths=(5, 6))
    rows = [([5, 6], [7, 1]), ([8], [9, 9, 1]), ([4, 4, 4], [-100, 1])]
    pairs = [{"input_ids": source, "labels": target, "attention_mask": [1] * len(source)} for source, target in rows]
    batch = collate(pairs)
    want = {
        "input_ids": [[5, 6, 8], [4, 4, 4]],
        "segment_ids": [[1, 1, 2], [1, 1, 1]],
        "labels": [[7, 1, 9, 9, 1], [-100, 1, -100, -100, -100]],
        "decoder_input_ids": [[2, 7, 2, 9, 9], [2, 0, 0, 0, 0]],
        "decoder_segment_ids": [[1, 1, 2, 2, 2], [1, 1, 0, 0, 0]],
    }
    assert {key: value.tolist() for key, value in batch.items()} == want
    assert {key: value.tolist() for key, value in collate([pairs[:2], pairs[2:]]).items()} == want
    wider = PackedCollator(Tokenizer(), decoder_start_token_id=2, pad_to_multiple_of=4)([pairs])
    assert wider["input_ids"].shape[1] % 4 == wider["labels"].shape[1] % 4 == 0


def test_targets_that_start_from_their_own_last_token():
    """Packed and padded the same, as the model makes them (mBART)."""
    model = build(TransductForConditionalGeneration, tiny(target_start="last_token", decoder_start_token_id=None))
    pairs = [{"input_ids": [5, 6], "labels": labels} for labels in ([7, 1, 9], [8], [4, -100, 5, -100])]
    batch = PackedCollator(Tokenizer(), model, row_lengths=(6, 8))(pairs)
    assert batch["decoder_input_ids"].tolist() == [[9, 7, 1, 8, 5, 4, 0, 5]]
    padded = Seq2SeqCollator(Tokenizer(), model)(pairs)
    assert padded["decoder_input_ids"].tolist() == [[9, 7, 1, 9], [8, 8, 0, 0], [5, 4, 0, 5]]


def test_leaves_its_input_alone():
    rows = pairs(6)
    before = copy.deepcopy(rows)
    PackedCollator(Tokenizer(), decoder_start_token_id=2, row_lengths=(20, 20))(rows)
    assert rows == before


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "features is empty"),
        ([{"input_ids": [1], "labels": []}], "a pair has an empty side"),
        ([{"input_ids": [1] * 9, "labels": [1]}], r"have 9 and 1 tokens, but row_lengths=\(8, 8\)"),
        ([{"input_ids": [1, 1], "labels": [1], "attention_mask": [1, 0]}], "attention_mask hides tokens"),
        ([{"input_ids": [1], "labels": [1], "weight": 2.0}], "column 'weight' cannot be packed"),
        ([{"input_ids": [1]}], r"have the columns \['input_ids'\]"),
    ],
)
def test_the_collator_refuses(rows, message):
    with pytest.raises(ValueError, match=message):
        PackedCollator(Tokenizer(), decoder_start_token_id=2, row_lengths=(8, 8))(rows)


def test_the_collator_needs_a_start_and_padding():
    with pytest.raises(ValueError, match="decoder_start_token_id is None"):
        PackedCollator(Tokenizer())
    with pytest.raises(ValueError, match="pad_token_id is None"):
        PackedCollator(SimpleNamespace(pad_token_id=None), decoder_start_token_id=2)
    with pytest.raises(ValueError, match="row_lengths is None"):
        PackedCollator(Tokenizer(), decoder_start_token_id=2)(pairs(2))


def test_rows_of_a_data_set():
    pairs_on_disk = Dataset.from_list([{**row, "text": "a"} for row in pairs(5)])
    for data in (pairs_on_disk, [{**row, "text": "a"} for row in pairs(5)]):
        rows = PackedRows(data, ["input_ids", "labels"])
        assert len(rows) == 5
        assert rows[[3, 1]] == [pairs(5)[3], pairs(5)[1]]
        assert PackedRows(data)[[2]] == [data[2]]


# ---- exactness ------------------------------------------------------------------------------------------------------
def gradient(model, batches) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of one update: every loss is divided by the targets of all batches."""
    model.zero_grad()
    count = sum((batch["labels"] != -100).sum() for batch in batches)
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        loss = model(**batch, num_items_in_batch=count).loss
        loss.backward()
        total += loss.detach()
    return total, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("choice", [*SCHEMES, PAIRWISE[-1]], ids=name)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_loss_and_gradients_are_those_of_the_pairs_alone(choice, accumulate):
    model = build(TransductForConditionalGeneration, tiny(**choice, label_smoothing=0.1, z_loss=1e-2)).train()
    rows = examples(np.array([(7, 3, 5, 1, 6, 2, 4, 8, 3, 3), (5, 2, 6, 1, 3, 7, 4, 1, 3, 2)]))
    alone = Seq2SeqCollator(Tokenizer(), model=model)
    want = gradient(model, [alone([row]) for row in rows])
    packed = PackedCollator(Tokenizer(), model=model, row_lengths=(17, 15))
    got = gradient(model, [packed(rows[start::accumulate]) for start in range(accumulate)])
    for one, other in zip(got, want, strict=True):
        assert (one - other).norm() / other.norm() < 1e-9


@pytest.mark.parametrize("pairs", [4, 5, 6, 7])
def test_pairs_that_fill_their_rows_alone_are_shared_out_among_the_blocks(pairs):
    rows = pack_lengths(np.full((2, pairs), 10), (15, 15), block_pairs=3)
    assert sorted(row.tolist() for row in rows) == [[pair] for pair in range(pairs)]

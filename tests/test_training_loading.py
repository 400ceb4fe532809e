"""The loader of a training on pairs: lengths, packing, shares of several processes."""

from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from datasets import Dataset

import loading_runs
from launching import seen_by_each
from test_training_run import start
from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.training import Seq2SeqCollator
from transduct.training.loading import pair_lengths

pytestmark = pytest.mark.xdist_group("loading")  # its processes start once


def targets(batch: dict[str, torch.Tensor]) -> list[tuple[int, ...]]:
    """The targets of a batch, packed or not, sorted."""
    segments = batch.get("decoder_segment_ids", (batch["labels"] != -100).long())
    rows = zip(batch["labels"], segments, strict=True)
    return sorted(tuple(labels[own == n].tolist()) for labels, own in rows for n in range(1, int(own.max()) + 1))


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_packed_batches_hold_every_pair(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=60, packing=True)
    batches = list(trainer.get_train_dataloader())
    assert all(batch["input_ids"].numel() + batch["labels"].numel() <= 60 for batch in batches)
    assert any(batch["segment_ids"].max() > 1 for batch in batches)
    assert sorted(chain.from_iterable(map(targets, batches))) == sorted(tuple(row["labels"]) for row in pairs())


@pytest.mark.parametrize("rows", [pairs(), Dataset.from_list([{**row, "text": "a"} for row in pairs()])], ids=["list", "columns"])
def test_columns_that_the_model_does_not_take_are_removed(tmp_path, rows):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=60, packing=True)
    trainer.train_dataset = rows
    assert "segment_ids" in next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_of_packed_updates_is_one_of_padded_updates(tmp_path, accumulate):
    """As many batches as make the whole epoch one update: then it must not matter how the pairs are laid out."""

    def after(**options) -> torch.Tensor:
        model = tiny_model(dropout=0.0, positions="relative_bias", norm_position="pre").double()
        constant = dict(optim="sgd", learning_rate=0.1, num_train_epochs=1, max_grad_norm=1e9, lr_scheduler_type="constant")
        trainer = tiny_trainer(tmp_path, model, **constant, **options)
        trainer.train()
        assert trainer.state.global_step == 1
        return weights(model)

    budget = {1: 1000, 3: 120}[accumulate]
    packed = after(max_tokens_per_batch=budget, packing=True, gradient_accumulation_steps=accumulate)
    padded = after(per_device_train_batch_size=24)
    by_cost = after(max_tokens_per_batch=90, gradient_accumulation_steps=20)
    assert not torch.equal(packed, weights(tiny_model(positions="relative_bias", norm_position="pre").double()))
    assert torch.allclose(packed, padded, rtol=0, atol=1e-12)
    assert torch.allclose(by_cost, padded, rtol=0, atol=1e-12)


def test_a_resumed_packed_run_is_bit_equal_to_a_straight_one(tmp_path):
    options = dict(max_tokens_per_batch=60, packing=True, schedule="constant", learning_rate=0.01, num_train_epochs=3)
    straight = tiny_trainer(tmp_path, **options, save_steps=7)
    straight.args.save_strategy = type(straight.args.save_strategy)("steps")
    straight.train()
    assert len(straight.get_train_dataloader()) < 7  # the stop is not in the first epoch
    resumed = tiny_trainer(tmp_path, model=tiny_model(seed=9), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert torch.equal(weights(resumed.model), weights(straight.model))


def test_a_share_of_a_loader_that_goes_on_knows_its_epoch(tmp_path, monkeypatch):
    """Inside an epoch the trainer skips batches, and then finds the epoch's setter two samplers down."""
    shares = []
    for process in (0, 1):
        trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40)
        monkeypatch.setattr(type(trainer.args), "world_size", 2)
        share = dict(num_processes=2, process_index=process, put_on_device=False)
        trainer.accelerator = SimpleNamespace(
            prepare=lambda loader, share=share: prepare_data_loader(loader, **share), ddp_handler=None
        )
        monkeypatch.setattr("transformers.Seq2SeqTrainer.get_train_dataloader", lambda self: plain(self))
        loader = trainer.get_train_dataloader()
        loader.set_epoch(1)
        whole = list(map(targets, loader))
        rest = skip_first_batches(trainer.get_train_dataloader(), 2)
        rest.batch_sampler.batch_sampler.set_epoch(1)
        assert list(map(targets, rest)) == whole[2:]
        shares.append(whole)
    assert len(shares[0]) == len(shares[1])
    assert sorted(chain.from_iterable(shares[0] + shares[1])) == sorted(tuple(row["labels"]) for row in pairs())


def plain(trainer) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(trainer.train_dataset, collate_fn=trainer.data_collator)


def test_packing_needs_a_model_and_a_collator_that_can(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=60, packing=True)
    trainer.data_collator = Seq2SeqCollator(Tokenizer(), padding="max_length", max_length=9)
    with pytest.raises(ValueError, match="data_collator=Seq2SeqCollator is not"):
        trainer.get_train_dataloader()
    trainer.data_collator = torch.utils.data.default_collate
    with pytest.raises(ValueError, match="data_collator=function is not"):
        trainer.get_train_dataloader()
    trainer.model.config.is_encoder_decoder = False
    with pytest.raises(ValueError, match="packing=True needs a transduct encoder-decoder"):
        trainer.get_train_dataloader()


def test_labels_of_one_stack_cost_nothing(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40)
    trainer.model.config.is_encoder_decoder = False
    batches = list(trainer.get_train_dataloader())
    assert max(batch["input_ids"].numel() for batch in batches) > 20
    assert all(batch["input_ids"].numel() <= 40 for batch in batches)


def test_lengths_of_pairs():
    rows = pairs(9)
    expected = [len(row["input_ids"]) for row in rows], [len(row["labels"]) for row in rows]
    for dataset in (rows, Dataset.from_list(rows)):
        source, target = pair_lengths(dataset)
        assert (source.tolist(), target.tolist()) == expected
    chosen = Dataset.from_list(rows).select([8, 2])
    assert pair_lengths(chosen)[0].tolist() == [expected[0][8], expected[0][2]]


def test_lengths_need_columns_and_an_end():
    with pytest.raises(ValueError, match=r"\['text'\]"):
        pair_lengths(Dataset.from_dict({"text": ["a"]}))
    with pytest.raises(ValueError, match="this one is a stream"):
        pair_lengths(Dataset.from_list(pairs(2)).to_iterable_dataset())
    for rows in ([], Dataset.from_dict({"input_ids": [], "labels": []})):
        with pytest.raises(ValueError, match="this one is empty"):
            pair_lengths(rows)
    classes = [{"input_ids": [5, 1], "labels": 2}]
    for dataset in (classes, Dataset.from_list(classes)):
        with pytest.raises(ValueError, match=r"the labels of the first row are 2, .* give per_device_train_batch_size"):
            pair_lengths(dataset)


def test_lengths_of_features_are_their_frames():
    rows = [{"input_features": [[0.5, 1.0]] * frames, "labels": [3] * frames} for frames in (4, 1, 7)]
    turned = [{**row, "input_features": [list(channel) for channel in zip(*row["input_features"], strict=True)]} for row in rows]
    for given, layout in ((rows, "time_first"), (turned, "channels_first")):
        for dataset in (given, Dataset.from_list(given)):
            assert [side.tolist() for side in pair_lengths(dataset, layout)] == [[4, 1, 7], [4, 1, 7]]


@pytest.mark.parametrize("budget", [40, "auto"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_recipe_packs(tmp_path, budget, streaming):
    def change(raw):
        raw["data"]["train"]["streaming"] = streaming
        raw["training"].update(packing=True, max_tokens_per_batch=budget, max_steps=2)

    assert start(tmp_path, change).finished
    assert (tmp_path / "out/checkpoints/token_budget.json").is_file() == (budget == "auto")


# ---- several processes ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes saw; all in one start, since that is what takes time."""
    return seen_by_each("loading_runs.py", tmp_path_factory.mktemp("loading"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        dict(max_tokens_per_batch=60),
        dict(per_device_train_batch_size=6),
        dict(max_tokens_per_batch=60, eval_strategy="steps", eval_steps=1),
    ],
    ids=["budget", "rows", "evaluated"],
)
def test_a_run_with_persistent_workers_goes_on_exactly(tmp_path, more):
    options = dict(dataloader_num_workers=1, dataloader_persistent_workers=True, lr_scheduler_type="constant", **more)
    straight = tiny_trainer(tmp_path / "straight", max_steps=12, **options)
    straight.train()
    tiny_trainer(tmp_path / "stopped", max_steps=2, save_strategy="steps", save_steps=2, **options).train()
    resumed = tiny_trainer(tmp_path / "stopped", tiny_model(seed=9), max_steps=12, **options)
    resumed.train(resume_from_checkpoint=True)
    assert straight.state.epoch > 2  # workers of a resumed run are begun once more for its second epoch
    assert torch.equal(weights(resumed.model), weights(straight.model))


def test_an_evaluation_does_not_change_what_is_learnt(tmp_path):
    found = []
    for evaluations in ({}, dict(eval_strategy="steps", eval_steps=2, predict_with_generate=True, generation_max_length=4)):
        metrics = (lambda prediction: {}) if evaluations else None
        trainer = tiny_trainer(tmp_path, max_steps=6, max_tokens_per_batch=60, metrics=metrics, **evaluations)
        trainer.train()
        found.append(weights(trainer.model))
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("batches", list(loading_runs.BATCHES))
def test_two_processes_share_each_epoch_and_learn_what_one_does(two, tmp_path, batches):
    first, second = (seen[batches] for seen in two)
    whole = sorted(tuple(row["labels"]) for row in pairs(40))
    for epoch in (0, 1):
        mine, others = first["labels"][epoch], second["labels"][epoch]
        assert len(mine) == len(others)
        tokens = [int((labels != -100).sum()) for labels in (*mine, *others)]
        assert sum(tokens) == sum(map(len, whole))
        assert min(tokens) > 0
        shares = [sum(int((labels != -100).sum()) for labels in part) for part in (mine, others)]
        assert max(shares) < 1.3 * min(shares)
    assert not all(map(torch.equal, first["labels"][0], first["labels"][1]))
    alone = loading_runs.one_update(tmp_path, batches)
    for seen in (first, second):
        assert torch.allclose(seen["update"], alone, rtol=0, atol=1e-12)
        assert torch.equal(seen["resumed"]["resumed"], seen["resumed"]["straight"])


@pytest.mark.slow
def test_two_processes_go_on_in_a_stream_where_they_were(two):
    """A block is ten rows and three batches, and each process has every other block: batch 20 lies in its seventh, 12 or 13."""
    for rank, seen in enumerate(two):
        assert torch.equal(seen["stream"]["resumed"], seen["stream"]["straight"])
        first = (12 + rank) * 10 % 45
        assert seen["stream"]["read"][0] == first + 1
        assert len(seen["stream"]["read"]) <= 50  # with the blocks of the other process, which are read and left
    assert torch.equal(two[0]["stream"]["resumed"], two[1]["stream"]["resumed"])

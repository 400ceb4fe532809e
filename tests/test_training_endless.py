"""Data without a last row: every row once a pass, the same batches for any number of workers, shares of several processes."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch
from datasets import Dataset

from tiny_training import Tokenizer, pairs, tiny_model
from transduct.training import PackedCollator, Seq2SeqCollator, TransductTrainer, TransductTrainingArguments
from transduct.training.data_position import Position
from transduct.training.endless import Batching, EndlessBatches, EndlessData, MappedPart, StreamedPart
from transduct.training.objectives import CausalLM, ObjectiveCollator
from transduct.training.reading import BadRow, Place, Row


def mapped(count=24, name="pairs", seed=0, **options) -> MappedPart:
    return MappedPart(name, Dataset.from_list(pairs(count, seed)), **options)


class Letters:
    """Encodes "abc" to the numbers of its letters; a text longer than 5 is a bad row."""

    documents = False

    def __call__(self, rows):
        for row in rows:
            ids = [ord(letter) - ord("a") + 3 for letter in row.source]
            yield {"input_ids": ids, "labels": ids[::-1]} if len(ids) <= 5 else BadRow(row.origin, "is long", "long source")


def streamed(texts, read=None) -> StreamedPart:
    """Texts as a stream that notes the numbers of the rows that are read."""

    def rows(place):
        for number, text in enumerate(texts[place.rows :], start=place.rows + 1):
            if read is not None:
                read.append(number)
            place.rows += 1
            yield Row(text, (text,), f"f:{number}", f"f:{number}") if text else BadRow(f"f:{number}", "is empty", "empty source")

    return StreamedPart("letters", rows, Letters())


def first_batches(data, count, packed=False, **options):
    collate = PackedCollator(Tokenizer(), decoder_start_token_id=0) if packed else Seq2SeqCollator(Tokenizer())
    batching = Batching(collate, packed=packed, **options)
    return list(itertools.islice(EndlessBatches(data, batching), count))


def rows_of(batches) -> list[tuple[int, ...]]:
    return [tuple(row[row > 0].tolist()) for batch in batches for row in batch["input_ids"]]


def same(left, right) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(left, right, strict=True)
    )


def test_a_pass_has_every_row_once_and_each_pass_another_order():
    part = mapped(24)
    draws = list(itertools.islice(part.draws(5, 0, Place()), 72))
    passes = [draws[i : i + 24] for i in (0, 24, 48)]
    assert all(sorted(one) == list(range(24)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert list(itertools.islice(part.draws(5, 0, Place()), 72)) == draws
    assert list(itertools.islice(part.draws(5, 1, Place()), 24)) != passes[0]  # another part of a mixture


def test_a_stream_begins_again_where_it_ends():
    part = streamed(["a", "", "bc"])
    names = [row.origin for row in itertools.islice(part.draws(0, 0, Place()), 7)]
    assert names == ["f:1", "f:2", "f:3", "f:1", "f:2", "f:3", "f:1"]
    with pytest.raises(ValueError, match="no usable row in letters"):
        next(iter(EndlessData([streamed([""])], bad_rows="skip")))


def test_the_examples_one_by_one():
    data = EndlessData([streamed(["ab", "cde"])], block_rows=3)
    assert [e["input_ids"] for e in itertools.islice(data, 5)] == [[3, 4], [5, 6, 7], [3, 4], [5, 6, 7], [3, 4]]


@pytest.mark.parametrize("max_tokens", [None, 40])
def test_each_block_is_batched_whole(max_tokens):
    data = EndlessData([mapped(24)], block_rows=24, seed=3)
    count = len(data.batches(next(data.blocks()), max_tokens, 5))
    batches = first_batches(data, count, max_tokens=max_tokens, rows=5)
    assert Counter(rows_of(batches)) == Counter(tuple(row["input_ids"]) for row in pairs(24))
    if max_tokens is None:
        assert [len(batch["labels"]) for batch in batches] == [5, 5, 5, 5, 4]
    else:
        assert all(batch["input_ids"].numel() + batch["labels"].numel() <= max_tokens for batch in batches)
        padding = sum(int((batch["attention_mask"] == 0).sum()) for batch in batches)
        by_rows = first_batches(data, 5, rows=5)
        assert padding < sum(int((batch["attention_mask"] == 0).sum()) for batch in by_rows)  # pairs of like length


@pytest.mark.parametrize("workers", [0, 2])
def test_each_block_is_packed_whole(workers):
    data = EndlessData([mapped(240)], block_rows=240, seed=3)
    block = next(data.blocks())
    count = len(data.batches(block, 80, 5, packed=True))
    batches = first_batches(data, count, packed=True, max_tokens=80, workers=workers)
    found = Counter()
    for batch in batches:
        assert batch["input_ids"].numel() + batch["labels"].numel() <= 80
        for ids, labels, source, target in zip(
            batch["input_ids"], batch["labels"], batch["segment_ids"], batch["decoder_segment_ids"], strict=True
        ):
            for number in range(1, int(source.max()) + 1):
                found[tuple(ids[source == number].tolist()), tuple(labels[target == number].tolist())] += 1
    assert found == Counter((tuple(row["input_ids"]), tuple(row["labels"])) for row in pairs(240))
    places = sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
    tokens = sum(int((batch["segment_ids"] > 0).sum() + (batch["decoder_segment_ids"] > 0).sum()) for batch in batches)
    assert tokens / places > 0.9
    if not workers:
        again = first_batches(data, 2 * count, packed=True, max_tokens=80)
        assert same(again[:count], batches)
        assert not same(again[count:], batches)  # the next block, in another order


@pytest.mark.parametrize("part", [mapped(24), streamed(["abc", "d", "ef", "gg", "hijk"] * 5)], ids=["mapped", "streamed"])
def test_order_depends_on_the_seed_alone_and_not_on_workers(part):
    data = EndlessData([part], block_rows=10, seed=3)
    batches = first_batches(data, 30, max_tokens=40)
    assert same(batches, first_batches(data, 30, max_tokens=40))
    for workers in (1, 2):
        assert same(batches, first_batches(data, 30, max_tokens=40, workers=workers)), workers
    assert not same(batches, first_batches(EndlessData([part], block_rows=10, seed=4), 30, max_tokens=40))


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_share_the_blocks(workers):
    data = EndlessData([mapped(60)], block_rows=10, seed=3)
    blocks = [[tuple(e["input_ids"]) for e in block.examples] for block in itertools.islice(data.blocks(), 6)]
    for process in range(3):
        batches = first_batches(data, 4, rows=5, process=process, processes=3, workers=workers)
        assert sorted(rows_of(batches)) == sorted(blocks[process] + blocks[process + 3])


def test_a_mixture_is_drawn_by_its_rates():
    parts = [mapped(7, "few", seed=1), mapped(50, "many", seed=2)]
    data = EndlessData(parts, np.array([0.75, 0.25]), block_rows=200)
    few = {tuple(row["input_ids"]) for row in pairs(7, 1)} - {tuple(row["input_ids"]) for row in pairs(50, 2)}
    examples = [tuple(e["input_ids"]) for e in next(data.blocks()).examples]
    assert len(examples) == 200
    assert abs(sum(example in few for example in examples) / 200 - 0.75) < 0.12
    counts = Counter(example for example in examples if example in few)
    assert max(counts.values()) - min(counts.values()) <= 2  # of a part that is drawn often, all rows are, equally often


def test_rates_must_fit_the_parts():
    for rates, parts in ((None, 2), (np.array([1.0]), 2), (np.array([0.5, 0.5]), 1)):
        with pytest.raises(ValueError, match="each part of a mixture needs its rate"):
            EndlessData([mapped()] * parts, rates)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_rows_in_a_stream(workers):
    part = streamed(["ab", "", "abcdef", "c"])
    data = EndlessData([part], block_rows=4, bad_rows="skip")
    batches = first_batches(data, 3, workers=workers)
    assert sorted(rows_of(batches)) == [(3, 4)] * 3 + [(5,)] * 3
    assert data.skipped.counts == {"empty source": 3, "long source": 3}
    assert data.skipped.first == {"empty source": "f:2: is empty", "long source": "f:3: is long"}
    with pytest.raises(BadRow, match="f:2: is empty"):
        first_batches(EndlessData([part], block_rows=4), 1, workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_without_a_usable_row_is_not_read_for_ever(workers):
    data = EndlessData([streamed(["abcdef", "", "ghijkl"])], block_rows=2, bad_rows="skip")
    with pytest.raises(
        ValueError, match=r"^no usable row in letters: \d+ rows skipped: \d+ long source \(the first: f:1: is long"
    ):
        first_batches(data, 1, workers=workers)
    data = EndlessData([streamed(["abcdef", "", "ghijkl"])], block_rows=2, bad_rows="skip")
    with pytest.raises(ValueError, match=r"^no usable row in letters"):
        next(iter(data))
    few = EndlessData([streamed([*[""] * 9, "ab"])], block_rows=2, bad_rows="skip")
    assert rows_of(first_batches(few, 3, workers=workers)) == [(3, 4)] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_example_over_the_budget_is_named_by_its_row(workers):
    skips = EndlessData([streamed(["a", "", "abcdef", "abcde"])], block_rows=2, bad_rows="skip")  # in the second block
    with pytest.raises(BadRow, match=r"^f:4: the pair has 5 source and 5 target tokens, more than a batch of 9 may hold"):
        first_batches(skips, 2, max_tokens=9, workers=workers)
    rows = [{"input_ids": [3] * length, "labels": [1]} for length in (2, 9, 3)]
    parts = [streamed(["a", "b"]), MappedPart("pairs", Dataset.from_list(rows))]
    with pytest.raises(BadRow, match=r"^pairs, row 1 \(counted from 0\): the pair has 9 source and 1 target tokens"):
        first_batches(EndlessData(parts, np.array([0.5, 0.5]), block_rows=20), 1, max_tokens=9, workers=workers)
    parts[1] = MappedPart("pairs", Dataset.from_list(rows), origin_of=lambda row: f"file:{row + 1}")
    with pytest.raises(BadRow, match=r"^file:2: the pair has"):
        first_batches(EndlessData(parts, np.array([0.5, 0.5]), block_rows=20), 1, max_tokens=9, workers=workers)


def test_of_a_single_stack_only_the_inputs_count():
    one_stack = EndlessData([streamed(["abcde", "a"])], block_rows=2, one_stack=True)
    assert len(first_batches(one_stack, 1, max_tokens=9)) == 1  # there the labels cost nothing


class Drawn:
    """Replaces each source by two random symbols."""

    def __call__(self, examples, generators):
        return [{**e, "input_ids": g.integers(3, 20, 2).tolist()} for e, g in zip(examples, generators, strict=True)]


def test_variations_are_new_each_time_and_the_same_again():
    data = EndlessData([mapped(4, vary=Drawn())], block_rows=4)
    blocks = [[e["input_ids"] for e in block.examples] for block in itertools.islice(data.blocks(), 3)]
    assert blocks[0] != blocks[1] != blocks[2]
    assert [[e["input_ids"] for e in block.examples] for block in itertools.islice(data.blocks(1), 2)] == blocks[1:]


# ---- going on ----------------------------------------------------------------------------------------------------------
WORDS = ["abc", "d", "", "ef", "gg", "hijkab", "ab", "c", "a", "bb", "kid"] * 7
KINDS = {
    "mapped": lambda read: EndlessData([mapped(24, vary=Drawn())], block_rows=10, seed=3),
    "streamed": lambda read: EndlessData([streamed(WORDS, read)], block_rows=10, seed=3, bad_rows="skip"),
    "mixture": lambda read: EndlessData(
        [mapped(7), streamed(WORDS, read)], np.array([0.2, 0.8]), block_rows=10, seed=3, bad_rows="skip"
    ),
}


@pytest.mark.parametrize("options", [dict(max_tokens=24), dict(rows=3, process=1, processes=2)], ids=["budget", "processes"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_go_on_at_any_position(kind, options):
    batching = Batching(Seq2SeqCollator(Tokenizer()), **options)
    straight = EndlessBatches(KINDS[kind]([]), batching)
    whole = list(itertools.islice(straight, 70))
    for done in (0, 1, 5, 33, 60):
        before = EndlessBatches(KINDS[kind]([]), batching)
        list(itertools.islice(before, done + 1))  # a loader is one batch ahead
        position = Position.from_note(json.loads(json.dumps(before.position(done).note())))
        read = []
        after = EndlessBatches(KINDS[kind](read), batching)
        after.go_on(position, left_out=done)
        batches = list(itertools.islice(after, 70))
        assert batches[:done] == [{}] * done
        assert same(batches[done:], whole[done:]), done
        assert after.data.skipped == straight.data.skipped


def test_only_one_block_is_read_again():
    for workers in (0, 2):
        batching = Batching(Seq2SeqCollator(Tokenizer()), rows=3, workers=workers)
        whole = EndlessBatches(KINDS["streamed"]([]), batching)
        expected = list(itertools.islice(whole, 62))
        position, read = whole.position(60), []
        assert position.block > 10
        again = EndlessBatches(KINDS["streamed"](read), batching)
        again.go_on(position, left_out=60)
        assert same(list(itertools.islice(again, 60, 62)), expected[60:])
        assert again.position(60) == position
        if not workers:  # workers read in processes of their own
            assert 0 < len(read) <= 20  # what was left of the block may be one batch, so that the next one is begun
            assert read[0] == position.places[0]["rows"] + 1


def test_a_position_in_other_parts_is_refused():
    batches = EndlessBatches(KINDS["mapped"]([]), Batching(Seq2SeqCollator(Tokenizer())))
    with pytest.raises(ValueError, match="the position is one in 2 parts, but the data have 1"):
        batches.go_on(Position(places=[{}, {}]), 0)


# ---- in a trainer ----------------------------------------------------------------------------------------------------
def trainer_of(folder, part, steps, **options):
    model = tiny_model()
    arguments = dict(
        output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, logging_strategy="no", seed=7,
        save_strategy="steps", save_steps=4, max_steps=steps, schedule="constant", learning_rate=0.01,
    )  # fmt: skip
    return TransductTrainer(
        model,
        TransductTrainingArguments(**{**arguments, **options}),
        train_dataset=EndlessData([part], block_rows=10, seed=7),
        data_collator=Seq2SeqCollator(Tokenizer(), model=model),
    )


def train(folder, part, steps, resume=None, **options):
    trainer = trainer_of(folder, part, steps, **options)
    trainer.train(resume_from_checkpoint=resume)
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize(
    "options",
    [dict(max_tokens_per_batch=40), dict(max_tokens_per_batch=60, packing=True), dict(per_device_train_batch_size=4)],
    ids=["budget", "packed", "rows"],
)
def test_a_resumed_training_equals_a_straight_one(tmp_path, options):
    part = mapped(24, vary=Drawn())
    straight = train(tmp_path / "straight", part, 10, gradient_accumulation_steps=2, **options)
    train(tmp_path / "twice", part, 4, gradient_accumulation_steps=2, **options)
    checkpoint = str(tmp_path / "twice" / "checkpoint-4")
    assert torch.equal(train(tmp_path / "twice", part, 10, checkpoint, gradient_accumulation_steps=2, **options), straight)


def test_what_an_objective_made_is_packed_as_any_pairs_are(tmp_path):
    losses = []
    for wrapped in (False, True):
        trainer = trainer_of(tmp_path, mapped(24), 2, max_tokens_per_batch=60, packing=True)
        if wrapped:
            trainer.data_collator = ObjectiveCollator(CausalLM(1), trainer.data_collator, labelled="keep")
        losses.append(trainer.train().training_loss)
    assert losses[0] == losses[1]
    trainer.data_collator.labelled = "refuse"
    with pytest.raises(ValueError, match="data_collator=ObjectiveCollator is not"):
        trainer.get_train_dataloader()


def test_options_of_the_arguments_act_here_too(tmp_path):
    trainer = trainer_of(tmp_path, mapped(24), 2, optimizer="adafactor")
    trainer.train()
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    assert type(optimizer).__name__ == "Adafactor"
    with pytest.raises(BadRow, match=r"row \d+ .*the pair has \d+ source and \d+ target tokens"):
        trainer_of(tmp_path, mapped(24), 2, packing=True, max_tokens_per_batch=9).train()


def test_a_budget_that_fits_is_found_from_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr("transduct.training.fitting.free_memory", lambda: 10**7)
    trainer = trainer_of(tmp_path, mapped(24), 2, max_tokens_per_batch="auto")
    trainer.train()
    found = json.loads((tmp_path / "token_budget.json").read_text())["max_tokens_per_batch"]
    lengths = trainer.train_dataset.lengths(next(trainer.train_dataset.blocks()))
    assert lengths.sum(0).max() <= found <= lengths.sum()
    batches = trainer.get_train_dataloader().dataset
    assert batches.batching.max_tokens == found


def test_an_unmodified_trainer_trains_on_it_too(tmp_path):
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    model, steps = tiny_model(), 3
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=steps, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", learning_rate=0.01
    )
    data = EndlessData([mapped(5)], block_rows=5)
    collate = Seq2SeqCollator(Tokenizer(), model=model)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=data, data_collator=collate)
    assert trainer.train().global_step == steps
    assert not torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), before)

"""What checkpoints hold about endless data: a run that goes on reads little again, and ends as one that was not stopped."""

import json

import pytest
import torch

from test_training_endless import Drawn, Letters, mapped, trainer_of
from transduct.training import data_position
from transduct.training.data_position import Position, file_name, read_position
from transduct.training.endless import StreamedPart
from transduct.training.reading import Row

STEPS = 24
TEXTS = [text * (1 + i % 2) for i, text in enumerate(["a", "bc", "d", "fe", "ab"] * 9)]


class Counted:
    """A stream that counts the rows that are read, and those that are encoded."""

    def __init__(self):
        self.read, self.encoded = [], []
        self.part = StreamedPart("letters", self.rows, self.encode)

    def rows(self, place):
        for number, text in enumerate(TEXTS[place.rows :], start=place.rows + 1):
            self.read.append(number)
            place.rows += 1
            yield Row(text, (text,), f"f:{number}", f"f:{number}")

    def encode(self, rows):
        rows = list(rows)
        self.encoded += rows
        return Letters()(rows)


def train(folder, part, steps=STEPS, resume=None, **options):
    trainer = trainer_of(folder, part, steps, per_device_train_batch_size=4, **options)
    trainer.train(resume_from_checkpoint=resume and str(folder / f"checkpoint-{resume}"))
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 24 steps with checkpoints every fourth: its folder and its weights."""
    folder = tmp_path_factory.mktemp("straight")
    return folder, train(folder, Counted().part)


def test_a_resume_reads_one_block_again_and_no_more(straight):
    """A block is ten rows and three batches. Batch 20 is the last of block 6, whose rows begin at 60, in the second pass."""
    folder, weights = straight
    position = read_position(folder / "checkpoint-20", trainer_of(folder, mapped(), 1).args)
    assert (position.block, position.batch, position.places[0]["rows"]) == (6, 2, 60 - len(TEXTS))
    stream = Counted()
    assert torch.equal(train(folder, stream.part, resume=20), weights)
    assert stream.read[0] == 60 - len(TEXTS) + 1
    assert len(stream.read) == len(stream.encoded) == 30  # block 6 again; 7 and, since the loader is one batch ahead, 8


def test_a_change_of_accumulation_changes_no_place_in_the_data(straight):
    folder, _ = straight
    stream = Counted()
    train(folder, stream.part, 21, resume=20, gradient_accumulation_steps=2, save_strategy="no")
    assert stream.read[0] == 60 - len(TEXTS) + 1


def test_a_checkpoint_without_a_position_goes_on_too(straight, tmp_path, caplog, monkeypatch):
    folder, weights = straight
    for written in ({}, {"processes": 2}):
        path = folder / "checkpoint-8" / file_name(0)
        path.write_text(json.dumps({**Position().note(), **written})) if written else path.unlink()
        said, stream = [], Counted()
        monkeypatch.setattr(data_position.logger, "warning", said.append)
        assert torch.equal(train(folder, stream.part, resume=8), weights)
        assert len(stream.read) == 90
        (line,) = said
        assert "all batches before it are made once more" in line
        assert ("it was written by 2 processes, and there are 1" if written else "it holds no position of this process") in line


def test_data_that_are_not_skipped_begin_anew(straight, tmp_path):
    folder, _ = straight
    stream = Counted()
    train(folder, stream.part, 22, resume=20, ignore_data_skip=True, save_steps=1)
    assert stream.read[0] == 1
    position = read_position(folder / "checkpoint-22", trainer_of(folder, mapped(), 1).args)
    assert (position.block, position.batch) == (0, 2)


def test_a_second_training_of_a_trainer_begins_at_the_first_row(tmp_path):
    stream = Counted()
    trainer = trainer_of(tmp_path, stream.part, 4, per_device_train_batch_size=4)
    trainer.train()
    stream.read.clear()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))  # there the run was over: transformers adds a step
    assert stream.read[0] == 11
    stream.read.clear()
    trainer.train()
    assert stream.read[0] == 1


def test_workers_have_the_same_positions(tmp_path):
    notes = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        train(folder, mapped(24, vary=Drawn()), 8, dataloader_num_workers=workers)
        notes.append(json.loads((folder / "checkpoint-8" / file_name(0)).read_text()))
    assert notes[0] == notes[1]
    assert notes[0]["places"][0]["rows"] == 20
    weights = train(tmp_path / "0", mapped(24, vary=Drawn()), 12)
    assert torch.equal(train(tmp_path / "2", mapped(24, vary=Drawn()), 12, resume=8, dataloader_num_workers=2), weights)


def test_the_position_is_sealed_with_the_checkpoint(straight):
    folder, _ = straight
    manifest = json.loads((folder / "checkpoint-20" / "manifest.json").read_text())
    assert file_name(0) in manifest["files"]

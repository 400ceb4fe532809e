"""A disk without room: exit code 2, one message that names what could not be written, nothing half-written, and the run goes on.

The system itself cuts the files off: from some moment on, this process may write files of so many bytes and no more.
"""

import io
import json
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml

from interrupted import when
from test_training_data import GOOD, SPLIT, write
from test_training_data import start as load_data
from test_training_predictions import metrics_of, pairs, trainer_of
from test_training_run import raw_recipe, start, weights
from transduct.cli.main import run as command_line
from transduct.files import save_whole
from transduct.tokenization import TransductTokenizer
from transduct.training import data
from transduct.training.checkpoints import checkpoint_fault, list_checkpoints
from transduct.training.encoding import PairEncoder

ROOM = 20
"""Bytes of a file that still find room."""


def fill() -> None:
    """From now on, the disk has room for the first bytes of each file only."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def command_on_a_full_disk(folder: Path, event: str, path: str) -> tuple[int, str]:
    """Exit code of `transduct train`, and its standard error, where the disk is full from the given moment on; see `when`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            sys.stdout, sys.stderr = io.StringIO(), os.fdopen(writing, "w", buffering=1)
            when(event, path, fill)
            code = command_line(["train", str(folder / "recipe.yaml")])
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def evaluating(raw: dict) -> None:
    raw["training"].update(eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4)


MOMENTS = {
    "recipe.yaml": ("open", "out/recipe.yaml.part$"),
    "out/tokenizer": ("os.mkdir", "out/tokenizer.part$"),
    "data/train-": ("os.mkdir", "out/data$"),
    "data/validation-": ("open", r"out/data/validation-\w+\.json\.0\.part$"),
    "predictions/8.jsonl": ("open", "predictions/8.jsonl.part$"),
    "checkpoint-8": ("os.mkdir", "unfinished/checkpoint-8$"),
    "out/model": ("os.mkdir", "out/model.part$"),
    "metrics.json": ("open", "out/metrics.json.part$"),
    "training_report.html": ("open", "out/training_report.html.part$"),
}
"""What is told not to have been written -> the moment at which the disk is full."""


@pytest.mark.slow
@pytest.mark.parametrize("lost", MOMENTS)
def test_the_command_says_what_it_could_not_write_and_goes_on_when_there_is_room(tmp_path, lost):
    raw = raw_recipe(tmp_path)
    evaluating(raw)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
    code, told = command_on_a_full_disk(tmp_path, *MOMENTS[lost])
    assert code == 2, told
    (line,) = told.splitlines()
    assert line.startswith("transduct: ")
    assert lost in line
    assert "File too large" in line
    out = tmp_path / "out"
    assert [path for path in out.rglob("*") if path.suffix in (".part", ".old") or path.name == "unfinished"] == []
    assert [checkpoint_fault(path) for path in list_checkpoints(out / "checkpoints")] in ([], [None], [None] * 2)
    assert start(tmp_path, evaluating).finished
    (tmp_path / "straight").mkdir()
    start(tmp_path / "straight", evaluating)
    assert torch.equal(weights(out / "model"), weights(tmp_path / "straight" / "out" / "model"))


def test_data_that_find_no_room_leave_nothing_half_written(tmp_path):
    encoder = PairEncoder(TransductTokenizer.train(iter(["abcd"]), "chars"), SPLIT)
    write(tmp_path, GOOD * 100)
    with full_disk(), pytest.raises(OSError, match="File too large") as raised:
        load_data(tmp_path, encoder)
    assert re.fullmatch(rf"{tmp_path}/out/train-\w+\.arrow", raised.value.filename)
    assert list((tmp_path / "out").iterdir()) == []
    assert load_data(tmp_path, encoder).rows == 200


def test_a_note_that_finds_no_room_is_not_half_written(tmp_path, monkeypatch):
    """Beside data that did find it, and that the next start makes anew."""
    encoder = PairEncoder(TransductTokenizer.train(iter(["abcd"]), "chars"), SPLIT)
    write(tmp_path, GOOD)

    def then_full(path, examples, encoder):
        count = data_write(path, examples, encoder)
        fill()
        return count

    data_write, before = data._write, resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(data, "_write", then_full)
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            load_data(tmp_path, encoder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.fullmatch(rf"{tmp_path}/out/train-\w+\.json", raised.value.filename)
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".arrow"]
    monkeypatch.undo()
    assert load_data(tmp_path, encoder).rows == 2


def test_predictions_that_find_no_room_leave_nothing_half_written(tmp_path):
    rows = pairs(10)
    trainer = trainer_of(tmp_path, rows, metrics_of(rows))
    with full_disk(), pytest.raises(OSError, match="File too large") as raised:
        trainer.evaluate()
    assert raised.value.filename == str(tmp_path / "predictions" / "0.jsonl")
    assert list((tmp_path / "predictions").iterdir()) == []
    trainer.evaluate()
    lines = (tmp_path / "predictions" / "0.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(10))


def test_a_library_that_has_its_own_word_for_a_full_disk(tmp_path):
    """safetensors and tokenizers write by themselves, and their exceptions are no `OSError`."""
    model, tokenizer = trainer_of(tmp_path, pairs(2)).model, TransductTokenizer.train(iter(["abcd"]), "chars")
    for saver in (model.save_pretrained, tokenizer.save_pretrained):
        with full_disk(), pytest.raises(OSError, match="File too large") as raised:
            save_whole(tmp_path / "model", saver)
        assert raised.value.filename == str(tmp_path / "model")
        assert not list(tmp_path.glob("model*"))

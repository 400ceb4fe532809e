"""Ctrl-C at work: exit code 130, no traceback, nothing half-written; a real SIGINT, sent where each command does its work."""

import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from doctored import sound_model
from tiny_training import tiny_model
from transduct.cli.main import run


def interrupt(*args, **kwargs):
    """What Ctrl-C does, wherever this is called."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
    raise AssertionError("SIGINT was not heard")


@pytest.fixture(autouse=True)
def heard():
    """Python's own answer to SIGINT, also where these tests run in the background of a shell, which lets it be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, checkpoints, files of lines and a recipe, in which the command runs."""
    model = sound_model(tmp_path / "model", embedding_norm=True, position_offset=2)  # what BART can say
    for number in (1, 2):
        tiny_model(seed=number).save_pretrained(tmp_path / f"checkpoint-{number}")
    for name in ("source.txt", "target.txt"):
        (tmp_path / name).write_text("abc\nxyz\n")
    (tmp_path / "data.jsonl").write_text('{"source": "abc", "target": "xyz"}\n')
    recipe = [
        "output: run",
        "model: {preset: t5-small}",
        "tokenizer: {kind: chars}",
        "data: {train: {json: data.jsonl}}",
        "training: {max_steps: 1}",
    ]
    (tmp_path / "recipe.yaml").write_text("\n".join(recipe))
    assert run(["export", str(model), str(tmp_path / "theirs"), "--to", "bart", "--no-verify"]) == 0
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORK = {
    "describe model": "transduct.accounting.describe",
    "plan recipe.yaml": "transduct.training.recipe.load_recipe",
    "train recipe.yaml --output out": "transduct.training.run.run",
    "translate model --input source.txt --output out": "transduct.decoding.translator.Translator.__call__",
    "translate model --input source.txt": "transduct.decoding.translator.Translator.__call__",
    "score model --source source.txt --target target.txt --output out": "transduct.decoding.score.Scorer.__call__",
    "evaluate model data.jsonl --predictions out": "transduct.decoding.translator.Translator.__call__",
    "average checkpoint-1 checkpoint-2 --output out": "transduct.training.averaging.save_file",
    "import theirs out": "transduct.convert.folders.verify_pair",
    "import theirs out --no-verify": "transduct.convert.writing.save_file",
    "export model out --to bart": "transduct.convert.folders.verify_pair",
    "export model out --to bart --no-verify": "transduct.convert.writing.save_file",
    "push model me/name --dry-run": "transduct.hub.prepare",
    "doctor": "transduct.doctor.examine_computer",
    "doctor model": "transduct.doctor.folder.try_model",
}
"""Command lines, and what is interrupted in each."""
GROWING = (
    "translate model --input source.txt --output out",
    "score model --source source.txt --target target.txt --output out",
    "evaluate model data.jsonl --predictions out",
)
"""Commands whose output grows line by line, and goes on with --resume."""


@pytest.mark.parametrize("line", WORK)
def test_an_interrupt_at_work(line, place, monkeypatch, capsys):
    before = sorted(place.rglob("*"))
    monkeypatch.setattr(WORK[line], interrupt)
    capsys.readouterr()
    assert run(shlex.split(line)) == 130
    assert "Traceback" not in capsys.readouterr().err
    left = [path.name for path in sorted(place.rglob("*")) if path not in before]
    assert "out" not in left
    assert set(left) <= ({"out.part", "out.part.journal"} if line in GROWING else set())


@pytest.mark.parametrize("line", GROWING)
def test_what_was_interrupted_goes_on(line, place, capsys):
    assert run(shlex.split(line)) == 0
    whole = Path("out").read_text()
    Path("out").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WORK[line], interrupt)
        assert run(shlex.split(line)) == 130
    assert run([*shlex.split(line), "--resume"]) == 0
    assert Path("out").read_text() == whole
    assert not list(place.glob("out.*"))

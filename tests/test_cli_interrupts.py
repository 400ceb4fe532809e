"""Ctrl-C at work: exit code 130, no traceback, nothing half-written; a real SIGINT, sent where each command does its work."""

import os
import shlex
import signal
import time
from inspect import isgeneratorfunction
from itertools import islice
from pathlib import Path

import pytest

from doctored import sound_model
from tiny_training import tiny_model
from transduct.cli.main import run
from transduct.modeling import TransductForConditionalGeneration
from transduct.training.encoding import PairEncoder
from transduct.training.run_data import RunData


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
        "model: {preset: t5-small, d_model: 16, d_ff: 16, d_kv: 8, num_heads: 2, encoder_layers: 1, decoder_layers: 1}",
        "tokenizer: {kind: chars}",
        "data: {train: {json: data.jsonl}}",
        "training: {max_steps: 1, use_cpu: true}",
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


@pytest.mark.slow
def test_an_interrupt_while_the_demo_loads_its_model(place, monkeypatch, capsys):
    """It listens by then, and is heard to the end of that: the port is free again."""
    from transduct.page import serving

    sockets = []

    def listening(*args):
        sockets.append(listen(*args))
        return sockets[0]

    listen = serving.listen
    monkeypatch.setattr(serving, "listen", listening)
    monkeypatch.setattr("transduct.decoding.commands.load_model", interrupt)
    assert run(["demo", "model", "--port", "0"]) == 130
    assert capsys.readouterr() == ("", "")
    assert sockets[0].fileno() == -1  # closed


# ---- a training that has not begun yet ----------------------------------------------------------------------------------------
def interrupted_after_one(make):
    """A generator function in place of another one: yields what that yields first, and then Ctrl-C is pressed."""

    def generator(*args, **kwargs):
        yield from islice(make(*args, **kwargs), 1)
        interrupt()

    return generator


PREPARATIONS = {
    "vocabulary": (RunData, "texts", "tokenizer"),
    "training data": (PairEncoder, "__call__", "data/*.arrow"),
    "model": (TransductForConditionalGeneration, "init_weights", "checkpoints/*"),
}
"""What is made before the first step: the class and the method at work, and what must not be there if that was interrupted."""


@pytest.mark.slow
@pytest.mark.parametrize("what", PREPARATIONS)
def test_an_interrupted_preparation_goes_on(what, place, monkeypatch, capsys):
    """Nothing is half-written, and the same command ends with the weights of a run that nobody interrupted."""
    assert run(["train", "recipe.yaml", "--output", "whole"]) == 0
    owner, name, made = PREPARATIONS[what]
    method = getattr(owner, name)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted_after_one(method) if isgeneratorfunction(method) else interrupt)
        capsys.readouterr()
        assert run(["train", "recipe.yaml"]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert not list(Path("run").glob(made))
    assert not [path for path in Path("run").rglob("*") if path.name.endswith((".part", ".old"))]
    assert run(["train", "recipe.yaml"]) == 0
    assert Path("run/model/model.safetensors").read_bytes() == Path("whole/model/model.safetensors").read_bytes()

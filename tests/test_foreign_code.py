"""Code that lies in a model's folder is not run by any command, whatever is on standard input."""

import builtins
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from test_training_run import raw_recipe, start
from tiny_translation import save_translation
from transduct.cli.main import run

CODE = """
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

Path({mark!r}).touch()


class Config(PretrainedConfig):
    model_type = "foreign"


class Model(PreTrainedModel):
    config_class = Config


class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """The file that the code would make. Whoever is asked says yes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\n1\nyes\n")))
    monkeypatch.setattr(builtins, "input", lambda *question: "y")
    mark = tmp_path / "ran"
    yield mark
    assert not mark.exists()


@pytest.fixture(params=["model", "both"])
def folder(request, tmp_path, mark) -> Path:
    """A translator whose model is a class of its own, and its tokenizer as well."""
    folder = Path(save_translation(tmp_path / "foreign"))
    for path in folder.glob("*.py"):
        path.unlink()
    with_foreign_model(folder, mark)
    if request.param == "both":
        with_foreign_tokenizer(folder, mark)
    return folder


def with_foreign_model(folder: Path, mark: Path) -> None:
    (folder / "evil.py").write_text(CODE.format(mark=str(mark)))
    classes = {"AutoConfig": "evil.Config", "AutoModelForSeq2SeqLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "foreign", "auto_map": classes}))


def with_foreign_tokenizer(folder: Path, mark: Path) -> None:
    (folder / "evil.py").write_text(CODE.format(mark=str(mark)))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def recipe(tmp_path: Path, folder: Path) -> dict:
    return raw_recipe(tmp_path) | {"model": {"from_pretrained": str(folder)}, "tokenizer": {"from_pretrained": str(folder)}}


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "{folder}"],
        ["translate", "{folder}", "--engine", "int8"],
        ["score", "{folder}", "--source", "{text}", "--target", "{text}"],
        ["evaluate", "{folder}", "{pairs}"],
        ["demo", "{folder}"],
        ["train", "{recipe}"],
        ["export", "{folder}", "{out}", "--to", "ctranslate2"],
        ["import", "{folder}", "{out}"],
        ["push", "{folder}", "ann/model", "--dry-run"],
    ],
    ids=lambda command: command[0],
)
def test_no_command_runs_it(command, folder, tmp_path, capsys):
    (tmp_path / "text").write_text("a b\n")
    (tmp_path / "pairs.jsonl").write_text('{"source": "a b", "target": "b a"}\n')
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe(tmp_path, folder)))
    places = {"folder": folder, "text": tmp_path / "text", "pairs": tmp_path / "pairs.jsonl", "recipe": tmp_path / "recipe.yaml"}
    assert run([word.format(**places, out=tmp_path / "out of it") for word in command]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert not (tmp_path / "out of it").exists()


def test_what_is_said(folder, capsys):
    assert run(["translate", str(folder)]) == 2
    rule = "needs code of its own, which no command runs: load it in Python, if you trust it"
    assert f"'{folder}' {rule}" in capsys.readouterr().err


def test_looking_at_it_does_not_run_it(folder, capsys):
    for command in ("doctor", "describe"):
        run([command, str(folder)])
        assert "Traceback" not in capsys.readouterr().err


def test_a_run_s_own_folders(tmp_path, mark):
    """What has come into the folder of a run since it was trained is not run either."""
    start(tmp_path)
    with_foreign_tokenizer(tmp_path / "out" / "tokenizer", mark)
    shutil.rmtree(tmp_path / "out" / "model")
    with pytest.raises(ValueError, match=r"tokenizer in .* cannot be read"):
        start(tmp_path)


def test_the_recipe_of_a_run_with_such_a_model(tmp_path, mark, capsys):
    start(tmp_path)
    with_foreign_model(tmp_path / "out" / "model", mark)
    assert run(["evaluate", str(tmp_path / "out")]) == 2
    assert "needs code of its own" in capsys.readouterr().err

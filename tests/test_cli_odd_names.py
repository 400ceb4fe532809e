"""Odd names of files and folders are names to every command: nothing in them is executed, and what is written has them."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from doctored import sound_model
from test_cli import COMMAND, TINY, fails
from transduct.accounting import describe
from transduct.cli.main import run
from transduct.configuration import TransductConfig

ODD = (
    "a b",
    "$(touch touched)",
    "`touch touched`",
    "<b>x&amp;",
    "'\"",
    "; touch touched",
    "-",
    "--help",
    "é中\u202e🙂",
    "100%s{0}",
    "*?[a]",
    "two\nlines",
    "$HOME",
    "#: {x} [y",
    "a::b",
    "\x1b[2J\x07",
    "x[/b]",
)
"""Names that a shell, a page, a terminal or a library could take for something else; the last is in a folder of its own."""


@pytest.mark.parametrize("name", ODD[:-1])
def test_a_folder_is_described(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    TransductConfig(**TINY).save_pretrained(folder)
    assert run(["describe", f"./{name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == describe(TransductConfig(**TINY)).parameters
    (folder / "config.json").unlink()
    assert "is not a folder with a saved model" in fails(capsys, "describe", f"./{name}")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_name_that_is_no_unicode(tmp_path):
    """Such names exist on Linux; they are printed as the bytes that they are."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    TransductConfig(**TINY).save_pretrained(folder)
    result = subprocess.run([COMMAND, "doctor", folder, "--no-load"], capture_output=True)
    assert result.returncode == 1
    assert result.stdout.startswith(os.fsencode(folder) + b"\n")
    assert b"Traceback" not in result.stderr


# ---- all commands -------------------------------------------------------------------------------------------------------------
STEPS = (
    ("plan", "NAME.yaml", "--vocab-size", "30", "--source-length", "5", "--target-length", "5"),
    ("train", "NAME.yaml", "--output", "NAME"),
    ("evaluate", "NAME", "--predictions", "NAME.own"),
    ("translate", "NAME.model", "--input", "NAME.txt", "--output", "NAME.translated"),
    ("translate", "NAME.model", "--input", "NAME.txt", "--output", "NAME.translated", "--resume"),
    ("score", "NAME.model", "--source", "NAME.txt", "--target", "NAME.txt", "--output", "NAME.scored"),
    ("evaluate", "NAME.model", "NAME.jsonl", "--predictions", "NAME.predicted", "--resamples", "0"),
    ("evaluate", "NAME.model", "NAME.jsonl", "--predictions", "NAME.predicted", "--resamples", "0", "--resume"),
    ("average", "NAME.model", "NAME.model", "--output", "NAME.mean"),
    ("export", "NAME.model", "NAME.theirs", "--to", "bart", "--no-verify"),
    ("import", "NAME.theirs", "NAME.ours", "--no-verify"),
    ("push", "NAME.model", "me/name", "--dry-run"),
    ("doctor", "NAME.ours", "--no-load"),
)
GIVEN = (".jsonl", ".txt", ".yaml", ".model")
WRITTEN = ("", ".own", ".translated", ".scored", ".predicted", ".mean", ".theirs", ".ours")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """What BART can say, too."""
    return sound_model(tmp_path_factory.mktemp("sound") / "model", embedding_norm=True, position_offset=2)


def prepare(path: Path, model: Path) -> None:
    """A model, lines, rows, and a recipe that names them, all of one name but for its end."""
    path.parent.mkdir(exist_ok=True)
    shutil.copytree(model, path.with_name(f"{path.name}.model"))
    path.with_name(f"{path.name}.txt").write_text("abc\nxyz\n")
    path.with_name(f"{path.name}.jsonl").write_text('{"source": "abc", "target": "cab"}\n' * 2)
    rows = {"json": f"{path.name}.jsonl"}
    recipe = {
        "output": "unused",
        "model": dict(preset="vaswani-base", d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1),
        "tokenizer": {"kind": "chars"},
        "data": {"train": rows, "test": rows},
        "training": dict(max_steps=1, max_tokens_per_batch=64, schedule="constant", use_cpu=True),
    }
    path.with_name(f"{path.name}.yaml").write_text(yaml.safe_dump(recipe))


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_every_command_takes_it_for_a_name(name, model, tmp_path, monkeypatch, capsys):
    """And prints nothing that a terminal would act on."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    monkeypatch.chdir(tmp_path / "work")
    path = tmp_path / "work" / name
    prepare(path, model)
    for step in STEPS:
        capsys.readouterr()
        code = run([word.replace("NAME", f"./{name}") for word in step])
        out, err = capsys.readouterr()
        assert code == 0, (step, err)
        assert "Traceback" not in err, step
        assert not {"\x1b", "\x07"} & set(out + err), step
    assert sorted(each.name for each in path.parent.iterdir()) == sorted(f"{path.name}{end}" for end in GIVEN + WRITTEN)
    assert len(list((tmp_path / "work").iterdir())) == (1 if "/" in name else len(GIVEN + WRITTEN))
    assert list(home.iterdir()) == []
    assert (path / "model" / "model.safetensors").is_file()
    assert len(path.with_name(f"{path.name}.translated").read_text().splitlines()) == 2


@pytest.mark.parametrize("words", [[], ["--output", "~/run"]], ids=["recipe", "option"])
def test_an_output_in_the_home_of_the_user_is_all_there(words, model, tmp_path, monkeypatch):
    """A recipe's `~` no shell has expanded, nor that of `--output=~/run`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path.parent / "matplotlib"))
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "name", model)
    before = sorted(tmp_path.iterdir())
    if not words:
        recipe = Path("name.yaml")
        recipe.write_text(recipe.read_text().replace("output: unused", "output: ~/run"))
    assert run(["train", "name.yaml", *words]) == 0
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "home"])
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["run"]
    assert {"checkpoints", "data", "model", "tokenizer"} <= {path.name for path in (tmp_path / "home" / "run").iterdir()}

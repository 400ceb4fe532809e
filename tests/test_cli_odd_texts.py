"""Odd texts on their way through the commands: each is translated, scored and measured as itself, or refused in one line."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from tiny_translation import tiny_translation
from transduct import TransductTokenizer
from transduct.cli.main import run

ODD = (
    "<script>got=1</script><b id=got>&amp;",
    "$(touch touched) `touch touched` ; touch touched | touch touched > touched",
    "'\"\\ && || %s %n {0} {{x}} ${y} ../../etc/passwd",
    "=cmd|' /C calc'!A0",
    "[bold]x[/bold] [/]",
    "\u202eright to left\u202c \u2066x\u2069 \u200b\u200d",
    "👩‍👩‍👧 🏳️‍🌈 é e\u0301 ﬁ Ǆ ß İ",
    "no\u2028line\u2029break\x85here\x0bor\x0chere\rnor here",
    "a tab\tand another\t",
    "\ufeffa mark that is not at the beginning \ufffe \uffff \ue000",
    "z" + "\u0301" * 500,
    "𝕬𝖇 \U000e0041\U0010ffff",
)
"""Lines that a shell, a page, a terminal, a spreadsheet or a reader of lines could take for something else."""
ACTING = ("\x1b[2J\x07 clears a terminal", "x \ufffd", "x\x1d")
"""Texts that data sets refuse: they were decoded wrongly."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model, in which the command runs."""
    for part in tiny_translation(end=2.0):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_bytes("".join(f"first\n{line}\n" for line in (*ODD, *ACTING)).encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path: str) -> list[str]:
    """Of a file, cut at newlines alone."""
    return Path(path).read_bytes().decode().removesuffix("\n").split("\n")


def succeeds(command: str, capsys) -> None:
    capsys.readouterr()
    assert run(shlex.split(command)) == 0
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert not {"\x1b", "\x07"} & set(out + err)


def refused(command: str, capsys) -> str:
    """The one line that it says."""
    capsys.readouterr()
    assert run(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not {"\x1b", "\x07"} & set(err)
    return err


def test_lines_that_are_translated(place, capsys):
    succeeds("translate model --input in.txt --output out.jsonl --json", capsys)
    wanted = lines("in.txt")
    assert wanted[1::2] == [*ODD, *ACTING]
    assert [json.loads(line)["source"] for line in lines("out.jsonl")] == wanted
    succeeds("translate model --input in.txt --output out.txt", capsys)
    assert lines("out.txt") == [json.loads(line)["translation"] for line in lines("out.jsonl")]
    succeeds("translate model --input in.txt --output again.txt --split-sentences --long split --max-source-length 20", capsys)
    assert len(lines("again.txt")) == len(wanted)
    assert sorted(path.name for path in place.iterdir()) == ["again.txt", "in.txt", "model", "out.jsonl", "out.txt"]


def test_lines_that_are_scored(place, capsys):
    succeeds("score model --source in.txt --target in.txt --output out.jsonl --json", capsys)
    scored = [json.loads(line) for line in lines("out.jsonl")]
    assert [each["target"] for each in scored][1::2] == [*ODD, *ACTING]
    assert all(each["source"] == each["target"] and math.isfinite(each["score"]) for each in scored)
    assert sorted(path.name for path in place.iterdir()) == ["in.txt", "model", "out.jsonl"]


def test_rows_that_are_measured(place, capsys):
    Path("rows.jsonl").write_text("".join(json.dumps({"source": line, "target": line}) + "\n" for line in ODD))
    metrics = "--metric bleu --metric chrf --metric ter --metric rouge_l --metric wer"
    succeeds(f"evaluate model rows.jsonl --predictions out.jsonl --resamples 5 {metrics}", capsys)
    assert [json.loads(line)["references"] for line in lines("out.jsonl")] == [[line] for line in ODD]
    for line in ACTING:
        Path("rows.jsonl").write_text(json.dumps({"source": line, "target": line}) + "\n")
        assert "rows.jsonl:1: the source holds U+" in refused("evaluate model rows.jsonl", capsys)
    assert sorted(path.name for path in place.iterdir()) == ["in.txt", "model", "out.jsonl", "rows.jsonl"]


# ---- a line of a megabyte -----------------------------------------------------------------------------------------------------
MEGABYTE = {"one word": "x" * 2**20, "a thousand words": f"{'y' * 1023} " * 2**10, "space": " " * 2**20}


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """A folder with a model of words that takes 40 of them at once."""
    tokenizer = TransductTokenizer.train(iter(["hello there world"]), kind="words")
    model, _ = tiny_translation(vocab_size=len(tokenizer), positions="learned", max_positions=40, end=2.0)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEGABYTE)
def test_a_line_of_a_megabyte(kind, limited, capsys):
    """It is taken where the model can take it, cut where it may be, and else refused with its number and its length."""
    Path("in.txt").write_text(f"hello\n{MEGABYTE[kind]}\n")
    Path("rows.jsonl").write_text(
        "".join(json.dumps({"source": f"{line}.", "target": line + "x"}) + "\n" for line in lines("in.txt"))
    )
    commands = ["translate model --input in.txt", "score model --source in.txt --target in.txt", "evaluate model rows.jsonl"]
    if kind == "a thousand words":
        for command in commands:
            assert re.search(r"line \d has 1,?02\d tokens, more than the 40 that", refused(command, capsys))
        commands = [f"{commands[0]} --long split", f"{commands[2]} --long split"]
    for command in commands:
        succeeds(command, capsys)
    succeeds(f"{commands[0]} --output out.txt", capsys)
    assert len(lines("out.txt")) == 2

"""`transduct doctor`: exit codes 0, 1 and 2, a table or JSON."""

import json
import os
import subprocess
import sys

import pytest

from doctored import WEIGHTS, sound_model
from transduct.cli.main import run


@pytest.fixture
def folder(tmp_path):
    return sound_model(tmp_path / "model")


def test_this_computer(capsys):
    assert run(["doctor"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("packages\n")
    assert printed.out.endswith("no problem found\n")
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == 0


def test_a_sound_folder(folder, capsys):
    capsys.readouterr()
    assert run(["doctor", str(folder)]) == 0
    printed = capsys.readouterr()
    assert (printed.err, printed.out.splitlines()[0]) == ("", str(folder))
    assert "with two beams" in printed.out


def test_a_damaged_folder(folder, capsys):
    (folder / WEIGHTS).unlink()
    capsys.readouterr()
    assert run(["doctor", str(folder), "--no-load"]) == 1
    printed = capsys.readouterr()
    assert (printed.err, printed.out.splitlines()[-1]) == ("", "1 problem found")
    assert run(["doctor", str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == 1
    assert [finding["subject"] for finding in found["findings"] if finding["level"] == "problem"] == ["weights"]


def test_no_folder(tmp_path, capsys):
    assert run(["doctor", str(tmp_path / "nothing")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"transduct: there is no folder '{tmp_path}/nothing'\n"


def test_json_of_a_folder_whose_name_is_no_text(tmp_path):
    """Such a name goes to a real output byte by byte, which no reader of JSON would take."""
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    command = [sys.executable, "-m", "transduct.cli.main", "doctor", "--no-load", "--json", odd]
    printed = subprocess.run(command, capture_output=True).stdout
    assert json.loads(printed.decode("utf-8"))["problems"] == 1

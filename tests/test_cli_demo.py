"""`transduct demo`: it serves until Ctrl-C, whatever it is doing, and says in one line what is wrong."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from page_server import request, start_search
from tiny_translation import tiny_translation
from transduct.cli.main import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model whose outputs never end by themselves, in a folder with an odd name."""
    path = tmp_path_factory.mktemp("odd '$(touch got)' <b>")
    model, tokenizer = tiny_translation(end=-1e4)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class Demo:
    """A demo in a process of its own."""

    def __init__(self, folder: Path, *options: str):
        command = [sys.executable, "-m", "transduct.cli.main", "demo", str(folder), "--port", "0", *options]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
        self.process = subprocess.Popen(command, **pipes, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        line = self.process.stdout.readline() if ready else ""
        found = re.search(r"(http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n$", line)
        assert found, (line, self.process.kill(), self.process.communicate())
        self.url = found[1]

    def stop(self, sign: int = signal.SIGINT) -> tuple[int, str, str]:
        """Exit code, and what was printed after the address."""
        self.process.send_signal(sign)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.slow
def test_ctrl_c_ends_it_in_the_middle_of_a_search(folder):
    demo = Demo(folder, "--seconds", "600")
    assert request(demo.url, "/").status == 200
    start_search(demo.url)
    time.sleep(1)
    begin = time.monotonic()
    code, out, err = demo.stop()
    assert (code, out) == (0, "")
    assert "Traceback" not in err
    assert "Error" not in err
    assert time.monotonic() - begin < 30
    assert not (folder / "got").exists()
    with pytest.raises(ConnectionRefusedError):
        request(demo.url, "/")


def test_a_port_that_is_taken_is_told(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["demo", str(folder), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port}" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.2", False), ("0.0.0.0", True)])
def test_who_can_use_it_is_told(folder, host, warned, monkeypatch, capsys):
    monkeypatch.setattr("transduct.page.serving.serve", lambda *_: None)
    assert run(["demo", str(folder), "--host", host, "--port", "0"]) == 0
    assert (f"everybody who reaches {host} can use this page" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere", "--port", "0"], "there is no folder './nowhere'"),
        (["./nowhere", "--port", "99999"], "--port 99999 must lie from 0"),
        (["./nowhere", "--dtype", "float8"], "--dtype 'float8' must be one of float32"),
        (["FOLDER", "--port", "0", "--seconds", "0"], "seconds=0.0 must be positive"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_wrong_is_told_in_one_line(folder, arguments, message, capsys):
    assert run(["demo", *(str(folder) if each == "FOLDER" else each for each in arguments)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_missing_gradio_is_named(folder, monkeypatch, capsys):
    monkeypatch.setattr("transduct.packages.find_spec", lambda name: None)
    assert run(["demo", str(folder)]) == 2
    assert "transduct demo needs the package gradio: pip install 'transduct[page]'" in capsys.readouterr().err

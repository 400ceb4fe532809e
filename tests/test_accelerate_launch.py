"""`accelerate launch` itself, without a GPU: commands that share their lines, and what examples/accelerate/ddp.yaml says of it.

A training and an evaluation start by it in test_training_processes.py and test_cli_evaluate.py.
"""

import re
from pathlib import Path

import pytest

from launching import ACCELERATE, DDP, ON_CPU, accelerate_launch, launch
from tiny_translation import TEXTS, tiny_translation
from transduct.cli.main import run

pytestmark = pytest.mark.slow

LINES = "".join(f"{text.strip()} {number}\n" for number, text in enumerate(TEXTS * 2))


@pytest.fixture
def place(tmp_path):
    """A folder with a model whose translations end soon, and lines."""
    for part in tiny_translation(end=2.0):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text(LINES)
    return tmp_path


@pytest.mark.parametrize("command", ["translate MODEL --input IN --window 5 --sample", "score MODEL --source IN --target IN"])
def test_processes_share_lines(command, place):
    """What is written is what one process writes, once, by the main one."""
    words = [{"MODEL": str(place / "model"), "IN": str(place / "in.txt")}.get(word, word) for word in command.split()]
    assert run([*words, "--output", str(place / "alone.txt")]) == 0
    done = accelerate_launch("-m", "transduct.cli.main", *words, "--output", str(place / "shared.txt"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (place / "shared.txt").read_text() == (place / "alone.txt").read_text()
    assert done.stderr.count("perplexity") == command.startswith("score")


PROGRAM = "import os\nprint('process', os.environ.get('RANK'), 'of', os.environ.get('WORLD_SIZE'))\n"


@pytest.mark.parametrize(("kind", "told"), [("MULTI_GPU", ["0 of 2", "1 of 2"]), ("MULTI_CPU", ["None of None"])])
def test_which_kind_starts_several_processes(kind, told, tmp_path):
    """MULTI_CPU leaves that to mpirun, and starts one process."""
    text = Path(DDP[1]).read_text()
    assert text.count("distributed_type: MULTI_GPU") == 1
    (tmp_path / "config.yaml").write_text(text.replace("distributed_type: MULTI_GPU", f"distributed_type: {kind}"))
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--config_file", str(tmp_path / "config.yaml"), *DDP[2:], *ON_CPU)
    done = launch(str(tmp_path / "program.py"), launcher=(*ACCELERATE, *options))
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(re.findall(r"process (\S+ of \S+)", done.stdout)) == told

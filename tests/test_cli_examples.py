"""The examples in the help of each command: they are there, and the command line takes them."""

import re
import shlex

import pytest
import typer

from transduct.cli.examples import EXAMPLES, epilog
from transduct.cli.main import app, run

GROUP = typer.main.get_command(app)
LINES = [line for lines in EXAMPLES.values() for line in lines]


def words_of(line: str) -> list[str]:
    """What the command gets: without what stands before its name, and without the shell's redirections."""
    words = shlex.split(re.sub(r"[<>] *\S+", "", line))
    if words[0] == "accelerate":
        return ["train", *words[words.index("transduct.training") + 1 :]]
    assert words[0] == "transduct"
    return words[1:]


def test_each_command_has_examples_and_no_other():
    assert set(EXAMPLES) == set(GROUP.commands)
    for name, lines in EXAMPLES.items():
        assert 1 < len(lines) < 6
        assert all(words_of(line)[0] == name for line in lines)


@pytest.mark.parametrize("line", LINES)
def test_the_command_takes_its_example(line):
    name, *arguments = words_of(line)
    context = GROUP.commands[name].make_context(name, arguments)  # raises for an option that is not there, or a wrong value
    assert context.args == []


def test_an_option_that_is_not_there_would_be_noticed():
    with pytest.raises(typer.BadParameter.__bases__, match="No such option"):
        GROUP.commands["plan"].make_context("plan", ["config.yaml", "--nonsense"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_shows_them_line_by_line(name, capsys):
    assert run([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("  Examples:\n" + "".join(f"    {line}\n" for line in EXAMPLES[name]))
    assert max(map(len, EXAMPLES[name])) <= 96


def test_a_command_without_examples_has_none():
    assert epilog("nonsense") is None

"""Every command and every program in README.md and docs/ runs, and prints what the document says; see documents.py."""

from pathlib import Path

import pytest

from documents import NOT_RUN, RUN, Runner, blocks, commands, difference, printed_comments

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

EXCLUDED = {
    "make demo*": "trains for minutes; tests/test_training_recipe.py checks the recipe, tests/test_training_run.py the command",
    ".venv/bin/transduct train examples/g2p/*": "trains for minutes, as make demo does; tests/test_training_run.py",
    "make test*": "is what runs this test",
    "make bench*": "measures for minutes; tests/test_benchmarks.py runs every benchmark, tiny",
    "accelerate launch *": "needs GPUs and a recipe of your own; tests/test_training_processes.py starts one by it without GPUs",
    "transduct import *.pt OUT*": "needs a file of fairseq; tests/test_convert_foreign.py imports tiny ones",
    "transduct import *.npz OUT*": "needs a file of Marian; tests/test_convert_foreign.py imports a tiny one",
    "transduct import google-t5/*": "needs the network; tests/test_finetune_recipes.py imports tiny checkpoints",
    "transduct import checkpoint_best.pt *": "needs a file of fairseq; tests/test_convert_fairseq.py writes some",
    "transduct import bart.large.mnli/*": "needs a file of fairseq; tests/test_convert_fairseq.py writes some",
    "transduct import opus.npz *": "needs a file of Marian; tests/test_convert_marian_npz.py writes some",
    "transduct translate runs/t5-small *": "needs what the network has; tests/test_cli_translate.py translates with tiny models",
    "transduct export runs/t5-small *": "needs what the network has; tests/test_cli_export.py exports tiny models",
    "transduct train examples/finetune-*": "trains for days; tests/test_finetune_recipes.py runs each recipe at toy size",
    "transduct export runs/finetune-*": "needs what was trained; tests/test_finetune_recipes.py exports it at toy size",
    "# on another machine*": "needs a place without this package; tests/test_hub.py loads folders in one",
    "transduct push tiny my-name/tiny --license apache-2.0 --private": "needs the Hub; tests/test_hub_sharing.py has a stand-in",
    "transduct push runs/g2p *": "needs the Hub and a run; tests/test_hub_sharing.py and tests/test_training_sharing.py",
    "transduct push my-model *": "needs the Hub and data; tests/test_cli_push.py and tests/test_hub_facts.py",
    "transduct evaluate my-model *": "needs data of one's own; tests/test_cli_evaluate.py",
    "transduct doctor runs/*": "needs a run; tests/test_cli_doctor.py looks at some",
    "transduct demo *": "serves until it is stopped; tests/test_cli_demo.py starts one and stops it",
    "python3 -m venv *": "makes the environment in which this test runs; .ci/run does it",
    ".venv/bin/pip install *": "needs the network; .ci/run does it",
}
"""Commands, and first lines of python blocks, that are not run here: the reason, and what covers them."""


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_document(document, tmp_path):
    faults = Runner(ROOT, tmp_path, EXCLUDED).faults(document.read_text())
    assert not faults, "\n\n".join(f"{name(document)}, {fault}" for fault in faults)


def test_every_exclusion_has_a_reason_that_exists():
    for reason in EXCLUDED.values():
        for word in reason.replace(";", " ").replace(",", " ").split():
            if "/" in word:
                assert (ROOT / word).is_file(), f"{word} in {reason!r}"


# ---- the runner: that it would tell --------------------------------------------------------------------------------------------


def fence(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


def faults(tmp_path, document: str, excluded=()) -> list[str]:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file.txt").write_text("content\n")
    (tmp_path / "folder").mkdir()
    return Runner(tmp_path / "root", tmp_path / "folder", dict(excluded)).faults(document)


RIGHT = {
    "python with its output": fence("python", "print(1 + 1)\nprint('took', 3.5, 's')")
    + "\nprints\n\n"
    + fence("text", "2\ntook ... s"),
    "python without a given output": fence("python", "print(1)"),
    "comments at print lines": fence("python", "print(1)  # 1\nprint(2)\nprint('#')  # ..."),
    "python continued": fence("python", "x = 5\nprint('first')") + fence("python continued", "print(x)  # 5"),
    "console": fence("console", "$ echo one\none\n$ echo two  # a comment\n$ cat file.txt\nconte..."),
    "a command over two lines": fence("console", "$ echo one \\\n  two\none two"),
    "bash": fence("bash", "# a comment\necho one\necho two  # more") + fence("text", "one\ntwo"),
    "files of earlier blocks": fence("bash", "echo 7 > new.txt") + fence("python", "print(open('new.txt').read().strip())  # 7"),
    "files that a reader makes": fence('python title="new.py"', "print(7)")
    + fence('yaml title="new.yaml"', "a: 1")
    + fence("bash", "python new.py\ncat new.yaml")
    + fence("text", "7\na: 1"),
    "other languages": fence("yaml", "a: [") + fence("", "tree"),
    "an indented block": "- item\n\n  ```python\n  if True:\n      print(3)  # 3\n  ```\n",
}


@pytest.mark.parametrize("document", RIGHT.values(), ids=RIGHT)
def test_right_documents_have_no_faults(document, tmp_path):
    assert faults(tmp_path, document) == []


WRONG = {
    "another output": (fence("python", "print(2)") + fence("text", "3"), ["line 1, python", "3", "got", "2"]),
    "a missing line": (fence("python", "print(2)") + fence("text", "2\n3"), ["line 1, python", "got"]),
    "one line too many": (fence("python", "print(2)\nprint(3)") + fence("text", "2"), ["line 1, python", "got"]),
    "no output": (fence("python", "x = 2") + fence("text", "2"), ["line 1, python", "nothing"]),
    "another comment": (fence("python", "print(2)  # 3"), ["line 1, python", "expected", "3"]),
    "an exception": ("\n" + fence("python", "print('seen')\n1 / 0"), ["line 2, python", "status 1", "seen", "ZeroDivisionError"]),
    "nothing carried over": (fence("python", "x = 1") + fence("python", "print(x)"), ["line 4, python", "NameError"]),
    "a command that fails": (fence("console", "$ false"), ["line 1, console", "$ false", "status 1"]),
    "another output of a command": (fence("console", "$ echo 1\n2"), ["line 1, console", "$ echo 1", "expected"]),
    "another output of bash": (fence("bash", "echo 1") + fence("text", "2"), ["line 1, bash", "expected"]),
}


@pytest.mark.parametrize(("document", "parts"), WRONG.values(), ids=WRONG)
def test_wrong_documents_have_one_fault_that_says_where_and_what(document, parts, tmp_path):
    (fault,) = faults(tmp_path, document)
    for part in parts:
        assert part in fault


def test_all_faults_are_told(tmp_path):
    document = fence("python", "1 / 0") + fence("console", "$ false\n$ echo 1\n2") + fence("python", "print(1)  # 1")
    assert len(faults(tmp_path, document)) == 3


def test_what_is_excluded_does_not_run(tmp_path):
    document = fence("bash", "make demo MINUTES=1\necho yes > yes.txt") + fence("text", "anything") + fence("python", "1 / 0")
    assert faults(tmp_path, document, {"make demo*": "long", "1 / 0": "wrong on purpose"}) == []
    assert (tmp_path / "folder" / "yes.txt").read_text() == "yes\n"
    assert not (tmp_path / "root" / "yes.txt").exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (fence("pyhton", "1"), "'pyhton' is none of"),
        ("```python\n1\n", "line 1: the block has no end"),
        (fence("text", "1"), "leave the language out"),
        (fence("yaml", "a: 1") + fence("text", "1"), "line 4"),
    ],
)
def test_a_document_that_is_not_understood_is_refused(document, message):
    with pytest.raises(ValueError, match=message):
        blocks(document)


def test_a_console_block_starts_with_a_command():
    (block,) = blocks(fence("console", "echo 1"))
    with pytest.raises(ValueError, match="'echo 1'"):
        commands(block)


def test_comments_of_print_lines():
    assert printed_comments("x = 1  # one\nprint(x)") is None
    assert printed_comments("print(x)  # 1\n    print('a')  # a, b\nprint(2)") == "1\na, b\n...\n"


def test_differences():
    assert difference(None, "anything") is None
    assert difference("took ... s\n", "took 0.3 s\n") is None
    assert "got\n    2" in difference("1\n", "2\n")
    assert set(RUN).isdisjoint(NOT_RUN)

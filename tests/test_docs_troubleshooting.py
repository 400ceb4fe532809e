"""docs/troubleshooting.md and docs/architecture.md: the tests, files and messages that they name exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from test_docs import tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@cache
def functions(file: str) -> set[str]:
    """The functions of a file of tests."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def texts_of_the_package() -> str:
    """All texts in the code, those that are broken over lines in one piece, with … where values are put in."""
    found = []
    for path in sorted((ROOT / "transduct").glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
    return "\n".join(found)


@pytest.mark.parametrize("page", ["troubleshooting", "architecture"])
def test_named_tests_exist(page):
    named = re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert len(named) > 6
    for file, function in named:
        assert (ROOT / file).is_file(), file
        assert not function or function in functions(file), f"{file}::{function}"


def test_each_fault_has_a_test():
    (faults,) = [table for table in tables(DOCS / "troubleshooting.md") if table[0][-1] == "kept by"]
    for symptom, *_, kept_by in faults[1:]:
        assert "::" in kept_by, symptom


def test_our_messages_are_in_the_code():
    (messages,) = [table for table in tables(DOCS / "troubleshooting.md") if table[0][0] == "message"]
    for message, _ in messages[1:]:
        assert message.strip("`") in texts_of_the_package(), message


def test_named_files_of_the_package_exist():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = [row for table in tables(DOCS / "architecture.md") if table[0][-1] == "files below training/" for row in table[1:]]
    for file in re.findall(r"`([\w/]+\.py|\w+/)`", " ".join(row[-1] for row in rows)):
        assert (ROOT / "transduct" / "training" / file).exists(), file
    listed = text.split("```")[1]
    for name in re.findall(r"\b\w+\.py\b", listed):
        assert (ROOT / "transduct" / name).is_file(), name

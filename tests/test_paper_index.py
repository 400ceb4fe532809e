"""docs/paper_index.md names only files, classes, functions, fields and presets that exist."""

import ast
import re
from dataclasses import fields
from pathlib import Path

from transduct.configuration import TransductConfig
from transduct.presets import preset_names

ROOT = Path(__file__).parent.parent
INDEX = (ROOT / "docs/paper_index.md").read_text(encoding="utf-8")
ROWS = [line for line in INDEX.splitlines() if line.startswith("|") and not line.startswith("|---")]


def names_defined_in(path: Path) -> set[str]:
    """Functions, classes and methods (as `Class.method`)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef))
            names |= {node.name} | {f"{node.name}.{method.name}" for method in methods}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def code_cells() -> list[str]:
    """The third cell of each row below a heading row."""
    return [row.split("|")[3] for row in ROWS if "`" in row]


def test_code_exists():
    for cell in code_cells():
        for part in cell.split(";"):
            file, *names = re.findall(r"`([^`]+)`", part)
            path = ROOT / file if "/" in file else ROOT / "transduct" / file
            missing = set(names) - names_defined_in(path)
            assert not missing, f"{file} has no {missing}"


def test_fields_exist_and_take_the_value():
    known = {field.name for field in fields(TransductConfig)}
    settings = re.findall(r"`([a-z_]+)=([^`]+)`", INDEX)
    assert len(settings) > 20
    for field, value in settings:
        assert field in known, field
        if field not in ("relative_bias_per_layer", "position_offset", "decoder_embedding_norm"):  # these need a second field
            TransductConfig(**{field: ast.literal_eval(value)})


def test_presets_exist():
    patterns = re.findall(r"presets? `([^`]+)\*`", INDEX)
    assert patterns
    for pattern in patterns:
        assert any(name.startswith(pattern) for name in preset_names()), pattern

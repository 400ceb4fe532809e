"""docs/coming_from_*.md: every option, key and field that they name on the side of transduct exists."""

import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig
from typer.main import get_command

import transduct
from test_docs import tables
from transduct import TransductConfig, TransductForConditionalGeneration, TransductTokenizer, config_from_preset, preset_names
from transduct.cli.main import app
from transduct.training import TransductTrainingArguments
from transduct.training.recipe import Recipe
from transduct.training.recipe_data import DataSection, ObjectiveSection, SplitSource

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("coming_from_*.md"))


@cache
def options() -> dict[str, set[str]]:
    """The options of each command."""
    commands = get_command(app).commands
    return {name: {text for part in command.params for text in part.opts} for name, command in commands.items()}


@cache
def keys() -> set[str]:
    """Keys of recipes and of their sections, and arguments of what is called from Python."""
    of_classes = (TransductConfig, TransductTrainingArguments, Recipe, DataSection, ObjectiveSection, SplitSource)
    found = {field.name for section in of_classes for field in fields(section)} | set(vars(GenerationConfig()))
    for function in (TransductTokenizer.train, transduct.translate, TransductForConditionalGeneration.forward):
        found |= set(inspect.signature(function).parameters)
    return found | {"preset", "from_pretrained", "separate_vocabularies"}


def named(page: Path) -> list[str]:
    """What stands in code in the cells about transduct: the last of each row."""
    rows = [row for table in tables(page) for row in table[1:] if table[0][-1] in ("transduct", "TransductConfig")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row[-1])]


def unknown(code: str) -> list[str]:
    """The names in a piece of code that do not exist."""
    program, *words = code.split()
    command = words[0] if program == "transduct" and words else None
    if command is not None and command not in options():
        return [command]
    found = [word for word in code.split() if word.startswith("--")]
    known = set.union(*options().values()) if command is None else options()[command]
    wrong = [option for option in found if option not in known]
    if command is None and not found and (key := re.match(r"(?:\w+\.)*(\w+)(?=[:=]|$)", code)):
        wrong += [key[0]] if key[1] not in keys() and not hasattr(transduct, key[1]) else []
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_named_exists(page):
    codes = named(page)
    assert len(codes) > 20
    methods = {"resize_token_embeddings", "generate", "evaluate", "from_pretrained", "Seq2SeqTrainer"}
    modules = [code for code in codes if code.startswith(("model.encoder", "model.decoder", "…", "lm_head"))]
    rest = [code for code in codes if code not in modules and code not in methods and not code.startswith("accelerate ")]
    assert {code: wrong for code in rest if (wrong := unknown(code))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_presets_exist(page):
    for name in re.findall(r"preset: ([\w.-]+)", page.read_text(encoding="utf-8")):
        assert name in preset_names()


def test_the_modules_have_these_names():
    sizes = dict(vocab_size=60, d_model=8, d_kv=4, d_ff=8, num_heads=2, encoder_layers=1, decoder_layers=1)
    with torch.device("meta"):
        model = TransductForConditionalGeneration(config_from_preset("t5-v1.1-small", **sizes))
    names = {name for name, _ in model.named_modules()}
    table = [table for table in tables(DOCS / "coming_from_transformers.md") if table[0] == ["T5", "BART and kin", "transduct"]]
    wanted = [row[-1].strip("`") for row in table[0][1:]]
    assert len(wanted) == 10
    for name in wanted:
        assert any(known == name or (name[0] == "…" and known.endswith(f".{name[1:]}")) for known in names), name


def test_unknown_names_are_told():
    assert unknown("--no-such-option") == ["--no-such-option"]
    assert unknown("transduct translate --beams --quantization") == ["--quantization"]
    assert unknown("transduct fly") == ["fly"]
    assert unknown("no_such_key: 1") == ["no_such_key"]
    assert unknown("model.preset: vaswani-big") == unknown("d_model") == unknown('activation="relu"') == []

"""Recipes: what they accept, and errors that name the key's path."""

import copy
from pathlib import Path

import pytest
import yaml

from transduct.training.recipe import build_recipe, load_recipe

EXAMPLE = Path(__file__).parents[1] / "examples" / "g2p" / "config.yaml"
SMALL = {
    "output": "run",
    "model": {"preset": "vaswani-base", "d_model": 16},
    "tokenizer": {"kind": "chars"},
    "data": {"train": {"source": "a", "target": "b"}, "test": {"json": "c"}},
    "training": {"max_steps": 3},
}


def changed(path: str, value) -> dict:
    raw = copy.deepcopy(SMALL)
    *sections, key = path.split(".")
    place = raw
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    return raw


def test_a_small_recipe():
    recipe = build_recipe(SMALL)
    assert recipe.data.train.target == "b"
    assert recipe.data.test.source_field == "source"
    assert recipe.data.validation is None
    assert recipe.evaluation.num_beams == 4


def test_the_example_is_a_recipe():
    recipe = load_recipe(EXAMPLE)
    assert recipe.folder == EXAMPLE.parent
    assert recipe.training["learning_rate"] == 5e-3
    assert recipe.training["max_tokens_per_batch"] == 2048
    assert recipe.data.train.arguments == {"split": "train"}


def test_changes_from_the_command_line():
    changes = [
        "training.learning_rate=1e-4",
        "model.d_model=64",
        "evaluation.num_beams=1",
        "data.test.limit=10",
        "output=elsewhere",
    ]
    recipe = load_recipe(EXAMPLE, changes)
    assert recipe.training["learning_rate"] == 1e-4
    assert (recipe.model["d_model"], recipe.evaluation.num_beams, recipe.data.test.limit) == (64, 1, 10)
    assert recipe.output == "elsewhere"


def test_numbers_and_words_that_yaml_reads_otherwise():
    recipe = build_recipe(changed("training", {"learning_rate": "3e-4", "eval_strategy": False, "optim": "sgd", "max_steps": 5}))
    assert recipe.training == {"learning_rate": 3e-4, "eval_strategy": "no", "optim": "sgd", "max_steps": 5}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("outptu", "x", "outptu is no key of a recipe: did you mean output"),
        ("data.tests", {}, r"data\.tests is no key of a recipe: did you mean test"),
        ("data.train.sauce", "x", r"data\.train\.sauce is no key of a recipe: did you mean source"),
        ("training.lerning_rate", 1, r"training\.lerning_rate is no key of a recipe: did you mean learning_rate"),
        ("training.output_dir", "x", "the key output, at the top"),
        ("training.learning_rate", "fast", r"training\.learning_rate='fast' must be a number"),
        ("model.d_modle", 5, r"model\.d_modle is no key of a recipe: did you mean d_model"),
        ("model.from_pretrained", "x", "model needs either preset"),
        ("tokenizer.texts", 0, "tokenizer.texts=0 must be a whole number of at least 1"),
        ("tokenizer", {"texts": 5, "from_pretrained": "x"}, "tokenizer.texts has no use with from_pretrained"),
        ("tokenizer.knd", "chars", r"tokenizer\.knd is no key of a recipe: did you mean kind"),
        ("evaluation.beams", 5, r"evaluation\.beams is no key"),
        ("evaluation.metrics", {"x": "blue"}, r"evaluation\.metrics\.x='blue' is unknown"),
        ("evaluation.metrics", ["bleu"], "must map names to metrics"),
        ("data.bad_rows", "ignore", "data.bad_rows='ignore'"),
        ("data.train", {"source": "a"}, "data.train needs both source and target"),
        ("data.train", {"source": "a", "target": "b", "json": "c"}, "it has source and target and json"),
        ("data.train", {}, "it has none"),
        ("data.train", None, "data.train is missing"),
        ("data", 5, "data must be a mapping"),
        ("model", "t5", "model must be a mapping"),
        ("training", [1], "training must be a mapping"),
        ("model.preset", "vaswani-bse", "'vaswani-bse' is not a preset; did you mean vaswani-base"),
        ("threads", 0, "threads=0 must be a whole number of at least 1"),
        ("evaluation.num_beams", "four", "evaluation.num_beams='four' must be a whole number of at least 1"),
        ("evaluation.batch_size", 0, "evaluation.batch_size=0 must be a whole number of at least 1"),
        ("evaluation.samples", True, "evaluation.samples=True must be a whole number of at least 0"),
        ("evaluation.length_penalty", "long", "evaluation.length_penalty='long' must be a number"),
        ("evaluation.inputs", [True], r"evaluation.inputs=\[True\] must be a list of texts"),
    ],
)
def test_errors_name_the_path(path, value, message):
    with pytest.raises(ValueError, match=message):
        build_recipe(changed(path, value))


def test_errors_of_files_and_changes(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1")
    with pytest.raises(ValueError, match=r"bad\.yaml is not valid YAML"):
        load_recipe(bad)
    bad.write_text("just text")
    with pytest.raises(ValueError, match=r"bad\.yaml must hold a mapping"):
        load_recipe(bad)
    bad.write_text(yaml.safe_dump(SMALL))
    for change, message in (("training", "must read section.key=value"), ("output.x=1", "output is not a section")):
        with pytest.raises(ValueError, match=message):
            load_recipe(bad, [change])

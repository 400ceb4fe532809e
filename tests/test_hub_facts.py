"""What is known of a model: of its folder, of its run, of its evaluations; nothing else."""

import json
from pathlib import Path

import pytest
import yaml

from configs import tiny
from transduct import TransductConfig, TransductEncoderModel, describe
from transduct.hub import facts_of
from transduct.hub.facts import Measurement, Result, data_name, run_of

HISTORY = [{"loss": 2.0, "step": 10, "epoch": 0.5}, {"eval_loss": 1.5, "step": 10}, {"loss": 1.0, "step": 20, "epoch": 1.0}]


@pytest.fixture
def run(tmp_path) -> Path:
    """The output folder of a run, as far as its facts are read."""
    tiny(architectures=["TransductForConditionalGeneration"]).save_pretrained(tmp_path / "model")
    recipe = {
        "output": "/home/someone/runs/x",
        "data": {
            "train": [{"json": "/home/someone/a.jsonl"}, {"json": "b.jsonl"}],
            "test": {"dataset": "wmt14", "config": "de-en", "split": "test", "source_language": "de", "target_language": "en"},
        },
        "training": {"hub_token": "hf_" + "x" * 30, "hub_model_id": "someone/x", "max_steps": 20, "run_name": "mine"},
        "evaluation": {"metrics": {"BLEU": "bleu"}, "num_beams": None, "inputs": []},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    note = {"metrics": {"BLEU": 27.25}, "signatures": {"BLEU": "nrefs:1|case:mixed"}, "examples": 3003, "steps": 20}
    (tmp_path / "metrics.json").write_text(json.dumps(note))
    for step in (10, 20):
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        state = {"log_history": HISTORY[: step // 10 + 1]}
        (tmp_path / "checkpoints" / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    return tmp_path


def test_a_folder_alone(tmp_path):
    config = tiny()
    config.save_pretrained(tmp_path)
    facts = facts_of(tmp_path)
    assert facts.description == describe(config)
    assert (facts.recipe, facts.history, facts.results, facts.languages) == ({}, [], [], (None, None))
    assert not facts.has_tokenizer
    assert not facts.has_length


def test_another_class(tmp_path):
    model = TransductEncoderModel(tiny())
    model.save_pretrained(tmp_path)
    facts = facts_of(tmp_path)
    assert facts.model_class == "TransductEncoderModel"
    assert facts.description.parameters == model.num_parameters()


def test_a_run(run):
    facts = facts_of(run / "model")
    assert facts.history == HISTORY
    assert facts.languages == ("de", "en")
    assert facts.results == [Result("wmt14, de-en, split test", 3003, [Measurement("BLEU", "bleu", 27.25, "nrefs:1|case:mixed")])]
    assert facts.recipe["training"] == {"hub_token": "...", "max_steps": 20}
    assert facts.recipe["output"] == "x"
    assert facts.recipe["evaluation"] == {"metrics": {"BLEU": "bleu"}, "inputs": []}
    assert facts.split("train") == {"json": "a.jsonl"}
    assert "someone" not in str(facts)


@pytest.mark.parametrize("name", ["mean", "model"])
def test_an_average_in_the_folder_of_a_run(name, run):
    """It has the run's recipe and history, and not the metrics of the model that the run has measured."""
    tiny(architectures=["TransductForConditionalGeneration"]).save_pretrained(run / name)
    assert facts_of(run / name).averaged == []
    (run / name / "average.json").write_text(json.dumps({"checkpoints": ["checkpoint-10", 3, "checkpoint-20"]}))
    facts = facts_of(run / name)
    assert (facts.averaged, facts.results, facts.history) == (["checkpoint-10", "checkpoint-20"], [], HISTORY)
    assert facts.recipe["training"]["max_steps"] == 20
    (run / name / "average.json").write_text('{"checkpoints": "all"}')
    assert facts_of(run / name).averaged == []
    (run / name / "average.json").write_text("[]")
    with pytest.raises(ValueError, match=r"average\.json must hold a JSON object"):
        facts_of(run / name)


def test_a_run_is_known_from_inside_and_by_its_recipe_alone(run, monkeypatch):
    monkeypatch.chdir(run / "model")
    assert run_of(Path(".")) == run
    (run / "recipe.yaml").unlink()
    assert run_of(run / "model") is None
    assert facts_of(run / "model").results == []


def test_a_run_before_its_end(run):
    (run / "metrics.json").unlink()
    assert facts_of(run / "model").results == []


def test_evaluations_take_the_place_of_the_run_s(run, tmp_path):
    file = tmp_path / "bleu.json"
    one = {"metric": "bleu", "score": 30.5, "signature": "nrefs:1", "confidence": 0.5}
    file.write_text(json.dumps({"examples": 10, "metrics": {"bleu": one}}))
    found = facts_of(run / "model", {"newstest": file}).results
    assert found == [Result("newstest", 10, [Measurement("bleu", "bleu", 30.5, "nrefs:1", 0.5)])]
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"bleu\.json is no evaluation"):
        facts_of(run / "model", {"newstest": file})
    file.write_text("{")
    with pytest.raises(ValueError, match=r"bleu\.json is not valid JSON"):
        facts_of(run / "model", {"newstest": file})


@pytest.mark.parametrize(
    "metric",
    [31.0, None, {}, {"metric": "bleu"}, {"metric": "bleu", "score": "31"}, {"metric": 1, "score": 31.0},
     {"metric": "bleu", "score": 31.0, "signature": 3}],
    ids=str,
)  # fmt: skip
def test_metrics_of_another_form_are_no_evaluation(metric, run, tmp_path):
    file = tmp_path / "metrics.of.a.run.json"
    file.write_text(json.dumps({"examples": 10, "metrics": {"bleu": metric}}))
    with pytest.raises(ValueError, match="is no evaluation: write it with"):
        facts_of(run / "model", {"newstest": file})


@pytest.mark.parametrize(
    "noted",
    [{"metrics": [1]}, {"metrics": {"bleu": "x"}}, {"metrics": {"bleu": None}}, {"metrics": {"bleu": 1.0}, "signatures": 5},
     {"metrics": {"bleu": 1.0}, "examples": "x"}],
    ids=repr,
)  # fmt: skip
def test_metrics_of_a_run_that_no_run_wrote(noted, run):
    (run / "metrics.json").write_text(json.dumps(noted))
    with pytest.raises(ValueError, match="is not what a run writes"):
        facts_of(run / "model")


@pytest.mark.parametrize(
    "recipe", ["data: [1]", "evaluation: [1]", "data: {test: [{json: a.jsonl}]}", "data: {test: {source_language: 5}}"]
)
def test_recipes_that_no_run_wrote(recipe, run):
    (run / "recipe.yaml").write_text(recipe)
    assert facts_of(run / "model").languages == (None, None)


def test_a_recipe_that_holds_itself(run):
    (run / "recipe.yaml").write_text("model: &a [*a]")
    with pytest.raises(ValueError, match="holds itself"):
        facts_of(run / "model")


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        facts_of(tmp_path)
    TransductConfig().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"max_length": 9}')
    assert facts_of(tmp_path).has_length


@pytest.mark.parametrize(
    ("split", "name"),
    [
        ({"dataset": "wmt14"}, "wmt14, split train"),
        ({"function": "data.py:pairs", "arguments": {"split": "test", "n": 3}}, "pairs of data.py (split: test, n: 3)"),
        ({"source": "a.en", "target": ["a.de", "b.de"]}, "a.en and a.de, b.de"),
        ({"parquet": "x/*.parquet"}, "x/*.parquet"),
        ({}, "the test set"),
    ],
)
def test_names_of_data(split, name):
    assert data_name(split) == name

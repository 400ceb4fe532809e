"""Folders of every kind: what is wrong with them, in words."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8WeightOnlyConfig
from transformers import TorchAoConfig

from doctored import WEIGHTS, change_json, problems, sound_model, texts
from tiny_training import tiny_model, tiny_trainer
from transduct import TransductEncoderModel, TransductForConditionalGeneration
from transduct.convert.engine_folders import export_engine
from transduct.doctor import examine_folder
from transduct.training.adapters import add_lora


@pytest.fixture
def folder(tmp_path):
    return sound_model(tmp_path / "model")


def test_a_sound_model_loads_and_writes(folder):
    findings = examine_folder(folder)
    assert findings.problems == []
    done = texts(findings, "ok")
    assert {"config.json", "weights", "numbers", "tokenizer", "generation_config.json", "code", "loading", "forward"} <= set(done)
    assert "5 tokens, greedily and with two beams, such as " in done["generate"]


@pytest.mark.parametrize(
    "fields", [{"encoder_input": "features", "feature_size": 4, "tie_embeddings": "none"}, {"decoder_layers": 1}]
)
def test_sound_models_of_other_kinds(tmp_path, fields):
    tiny_model(**fields).save_pretrained(tmp_path)
    findings = examine_folder(tmp_path)
    assert findings.problems == []
    assert "generate" in texts(findings, "ok")


def test_a_quantised_model(folder, tmp_path):
    options = TorchAoConfig(Int8WeightOnlyConfig())
    TransductForConditionalGeneration.from_pretrained(folder, quantization_config=options).save_pretrained(tmp_path / "int8")
    findings = examine_folder(tmp_path / "int8")
    assert findings.problems == []
    assert texts(findings, "note")["weights"].startswith("quantised by torchao")


def test_a_model_that_cannot_generate(tmp_path):
    TransductEncoderModel(tiny_model().config).save_pretrained(tmp_path)
    findings = examine_folder(tmp_path)
    assert findings.problems == []
    assert "generate" not in texts(findings, "ok")


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        examine_folder(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="it is a file"):
        examine_folder(tmp_path / "file")


def test_a_folder_with_nothing_known_points_at_the_model_inside(folder):
    found = problems(examine_folder(folder.parent))
    assert "holds no model, no run, no adapter and no export. Its folder model holds a model" in found["config.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object"),
        ('{"model_type": "t5"}', "model_type='t5': only models of transduct"),
        ('{"model_type": "transduct", "num_heads": 3}', "num_heads=3 must divide"),
        ('{"model_type": "transduct", "norm": "batch"}', "norm"),
        ('{"model_type": "transduct", "architectures": ["Nonsense"]}', "must name one model class"),
        ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_configs_that_are_none(folder, text, message):
    (folder / "config.json").write_text(text)
    assert message in problems(examine_folder(folder, load=False))["config.json"]


def test_keys_of_a_later_version_are_noted(folder):
    change_json(folder / "config.json", from_the_future=1)
    findings = examine_folder(folder, load=False)
    assert findings.problems == []
    assert "ignores: from_the_future" in texts(findings, "note")["config.json"]


def test_code_that_is_missing_or_of_another_version(folder):
    (folder / "layers.py").write_text("")
    assert "layers.py: of another version" in texts(examine_folder(folder, load=False), "note")["code"]
    (folder / "layers.py").unlink()
    assert "layers.py is missing" in texts(examine_folder(folder, load=False), "note")["code"]


def test_what_was_half_written(folder):
    for name in ("out.txt.part", "out.txt.part.journal", ".other.123.part"):
        (folder / name).touch()
    assert set(problems(examine_folder(folder, load=False))) == {"out.txt.part", "out.txt.part.journal", ".other.123.part"}


def test_a_folder_whose_replacement_never_came(folder):
    folder.rename(folder.with_name("model.old"))
    (folder.parent / "recipe.yaml").write_text("model: {}\n")
    assert "give it that name again" in problems(examine_folder(folder.parent, load=False))["model.old"]


def test_what_is_damaged_is_not_loaded(folder):
    (folder / WEIGHTS).write_bytes(b"")
    findings = examine_folder(folder)
    assert list(problems(findings)) == [WEIGHTS]
    assert texts(findings, "note")["loading"] == "not tried, because of the problems above"


def test_a_model_that_computes_nonsense(folder):
    tensors = load_file(folder / WEIGHTS)
    for tensor in tensors.values():
        tensor.fill_(1e38)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    assert "gives NaN or infinite numbers" in problems(examine_folder(folder))["forward"]


def test_odd_names(tmp_path):
    odd = tmp_path / "a <b>'$(touch x)' & é 中 `"
    findings = examine_folder(sound_model(odd))
    assert findings.problems == []
    assert str(odd) in str(findings)


# ---- runs, checkpoints, adapters, exports --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with two checkpoints; not to be changed."""
    path = tmp_path_factory.mktemp("run")
    options = dict(max_steps=2, save_strategy="steps", save_steps=1, per_device_train_batch_size=4)
    tiny_trainer(path / "checkpoints", **options).train()
    (path / "recipe.yaml").write_text("data: {train: none.tsv}\noutput: x\n")
    return path


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_sound_run(run):
    findings = examine_folder(run)
    assert [finding for finding in findings.problems if finding.subject != "recipe.yaml"] == []
    assert texts(findings, "ok")["checkpoints"] == "2 whole, the newest is checkpoint-2"
    assert "goes on with the training" in texts(findings, "note")["model"]
    assert "a training can go on here" in texts(findings, "ok")["checkpoint"]
    assert findings[-1].place == str(run / "checkpoints" / "checkpoint-2")


def test_a_finished_run_is_its_model(run):
    tiny_model().save_pretrained(run / "model")
    findings = examine_folder(run, load=False)
    assert findings[-1].place == str(run / "model")


def test_checkpoints_that_are_damaged_or_half_written(run):
    weights = run / "checkpoints" / "checkpoint-2" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    (run / "checkpoints" / "unfinished" / "checkpoint-3").mkdir(parents=True)
    findings = examine_folder(run, load=False)
    assert f"{WEIGHTS} is cut short: a run that goes on sets it aside" in problems(findings)["checkpoint-2"]
    assert "half-written" in texts(findings, "note")["unfinished"]
    assert findings[-1].place == str(run / "checkpoints" / "checkpoint-1")
    assert f"{WEIGHTS} is cut short" in problems(examine_folder(weights.parent, load=False))["checkpoint"]


def test_a_folder_of_checkpoints(run):
    assert "2 whole" in texts(examine_folder(run / "checkpoints", load=False), "ok")["checkpoints"]


def test_a_recipe_that_is_none(run):
    (run / "recipe.yaml").write_text("a: [")
    assert "recipe.yaml" in problems(examine_folder(run, load=False))


def test_adapters(tmp_path):
    tiny_model().save_pretrained(tmp_path / "base")
    model = TransductForConditionalGeneration.from_pretrained(tmp_path / "base")
    add_lora(model, {"rank": 2}).save_pretrained(tmp_path / "adapter")
    findings = examine_folder(tmp_path / "adapter")
    assert findings.problems == []
    assert texts(findings, "ok")["loading"] == f"onto {tmp_path / 'base'}"
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: torch.full_like(tensor, float("nan")) for name, tensor in tensors.items()}, file)
    assert "NaN or infinite" in problems(examine_folder(tmp_path / "adapter"))[file.name]
    file.write_bytes(b"1")
    assert "damaged or cut off" in problems(examine_folder(tmp_path / "adapter"))[file.name]
    file.unlink()
    change_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="org/name")
    findings = examine_folder(tmp_path / "adapter")
    assert "is missing" in problems(findings)[file.name]
    assert "'org/name' is no folder here" in texts(findings, "note")["adapter_config.json"]


def test_exports_for_another_engine(folder, tmp_path):
    export_engine(folder, tmp_path / "export", "ctranslate2")
    findings = examine_folder(tmp_path / "export")
    assert findings.problems == []
    assert "generate" in texts(findings, "ok")
    (tmp_path / "export" / "model.bin").write_bytes(b"")
    assert "loading" in problems(examine_folder(tmp_path / "export"))


def test_findings_are_json(folder):
    assert json.loads(json.dumps(examine_folder(folder, load=False).to_dict()))["problems"] == 0


def test_links_that_lead_back(run):
    """Of a folder that is its own model, or whose model leads back to it, something is said once."""
    for name in ("model", "other"):
        link = run / name
        if link.is_dir():
            shutil.rmtree(link)
        link.symlink_to(run)
    findings = examine_folder(run, load=False)
    assert len({finding.place for finding in findings}) == 2
    assert any("holds no model" in finding.text for finding in findings.problems)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "manifest.json"])
def test_brackets_within_brackets(name, folder):
    (folder / name).write_text("[" * 100_000)
    assert examine_folder(folder, load=False).problems

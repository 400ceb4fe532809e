"""Files of weights: missing, cut off, of another model, tied to other values, not finite."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from doctored import WEIGHTS, change_json, change_weights, problems, sound_model, texts
from transduct import TransductForConditionalGeneration
from transduct.doctor import Findings
from transduct.doctor.weights import examine_weights
from transduct.presets import config_from_folder


@pytest.fixture
def folder(tmp_path):
    return sound_model(tmp_path / "model")


def examine(path) -> Findings:
    findings = Findings()
    examine_weights(path, config_from_folder(path), "TransductForConditionalGeneration", findings)
    return findings


def shard(folder) -> list[str]:
    """Store the model in several files; returns their names."""
    model = TransductForConditionalGeneration.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="6KB")
    names = sorted(path.name for path in folder.glob("model-*.safetensors"))
    assert len(names) > 2
    return names


def test_sound_weights_have_no_problem(folder):
    findings = examine(folder)
    assert findings.problems == []
    assert texts(findings, "ok")["numbers"] == "all finite, float32"


def test_sound_shards_have_no_problem(folder):
    names = shard(folder)
    findings = examine(folder)
    assert findings.problems == []
    assert f"in {len(names)} files" in texts(findings, "ok")["weights"]


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_file_that_is_cut_off(folder, kept):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:kept])
    assert "is damaged or cut off: copy it again" in problems(examine(folder))[WEIGHTS]


def test_a_pointer_of_git_lfs(folder):
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    assert "git lfs pull" in problems(examine(folder))[WEIGHTS]


def test_no_weights(folder):
    (folder / WEIGHTS).unlink()
    assert "there are none: no model.safetensors" in problems(examine(folder))["weights"]


def test_a_missing_shard_a_damaged_one_and_one_too_many(folder):
    names = shard(folder)
    (folder / names[0]).unlink()
    (folder / "model-00099-of-00099.safetensors").write_bytes(b"")
    findings = examine(folder)
    assert "is missing, with " in problems(findings)[names[0]]
    assert "nothing reads it" in texts(findings, "note")["model-00099-of-00099.safetensors"]
    (folder / f"{WEIGHTS}.index.json").unlink()
    assert "no model.safetensors.index.json that says what is in it" in problems(examine(folder))["weights"]


def test_a_damaged_shard_is_named(folder):
    names = shard(folder)
    (folder / names[1]).write_bytes((folder / names[1]).read_bytes()[:-7])
    assert list(problems(examine(folder))) == [names[1]]


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b"}}'])
def test_an_index_that_is_none(folder, text):
    shard(folder)
    (folder / f"{WEIGHTS}.index.json").write_text(text)
    assert len(problems(examine(folder))) == 1


def test_weights_that_do_not_fit_the_config(folder):
    name = "model__decoder__layers__1__feed_forward__up_proj"
    change_weights(folder / WEIGHTS, **{f"{name}__weight": None, f"{name}__bias": torch.ones(3)}, extra__weight=torch.ones(2))
    found = [finding.text for finding in examine(folder).problems]
    assert any(text.startswith("missing: model.decoder.layers.1.feed_forward.up_proj.weight.") for text in found)
    assert any("config.json has no place for extra.weight" in text for text in found)
    assert any("up_proj.bias is (3,), not (24,)" in text for text in found)
    assert len(found) == 3


def test_ties_with_different_values(folder):
    tensors = load_file(folder / WEIGHTS)
    (stored,) = [name for name in tensors if name.endswith("embed_tokens.weight") or name == "lm_head.weight"]
    other = "lm_head.weight" if stored != "lm_head.weight" else "model.encoder.embed_tokens.weight"
    change_weights(folder / WEIGHTS, **{other.replace(".", "__"): tensors[stored].clone()})
    assert examine(folder).problems == []
    change_weights(folder / WEIGHTS, **{other.replace(".", "__"): tensors[stored] + 1})
    assert "stored with different values" in problems(examine(folder))["ties"]


def test_numbers_that_are_none_and_matrices_of_zeros(folder):
    tensors = load_file(folder / WEIGHTS)
    names = [name for name in tensors if name.endswith("o_proj.weight")]
    tensors[names[0]][0, 0], tensors[names[1]][1] = float("nan"), float("inf")
    tensors[names[2]].zero_()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    findings = examine(folder)
    assert f"NaN or infinite in {names[0]} (1 of 256), {names[1]} (16 of 256)" in problems(findings)["numbers"]
    assert f"all zero in {names[2]}" in texts(findings, "note")["numbers"]


def test_a_pickle_is_noted_and_its_code_never_run(folder, tmp_path):
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(state, folder / "pytorch_model.bin")
    findings = examine(folder)
    assert findings.problems == []
    assert "is a pickle" in texts(findings, "note")["pytorch_model.bin"]
    torch.save({"a": Path("a")}, folder / "pytorch_model.bin")
    assert "would have to be executed" in problems(examine(folder))["pytorch_model.bin"]


def test_the_config_of_another_size(folder):
    change_json(folder / "config.json", encoder_layers=3)
    assert "missing: model.encoder.layers.2." in problems(examine(folder))["weights"]

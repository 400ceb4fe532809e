"""What of a folder is shared, and which folders are not."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from tiny_translation import save_translation, tiny_translation
from transduct.hub.folders import contents, model_folder, weights_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save_translation(tmp_path_factory.mktemp("saved") / "translator")


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "translator"))


def test_only_what_belongs_to_the_model(folder):
    for name in ("optimizer.pt", "training_args.bin", ".hidden", "other.safetensors"):
        (folder / name).write_bytes(b"x")
    (folder / "trainer_state.json").write_text("{}")
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "config.json").write_text("{}")
    (folder / "LICENSE").write_text("terms")
    found = contents(folder)
    assert set(found.left_out) == {
        "optimizer.pt", "training_args.bin", "trainer_state.json", ".hidden", "other.safetensors", "checkpoint-5/config.json",
    }  # fmt: skip
    assert "LICENSE" in {file.path for file in found.files}
    assert "pickle" in found.left_out["optimizer.pt"]


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.PT", "w.joblib", "a.npy", "state.pkl.gz", "opt.distcp", "data_position_0.json", "off_schedule.json",
        "token_budget.json", "predictions/10.jsonl", "events.out.tfevents.1", "runs/x/events.out.tfevents.1", "logs/optimizer.pt",
        "pytorch_model.bin.index.json",
    ],
)  # fmt: skip
def test_pickles_and_states_of_a_training_stay(name, folder):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")
    assert list(contents(folder).left_out) == [name]


@pytest.mark.parametrize(
    "name", ["run.sh", "train.log", "nb.ipynb", "x.toml", "a.csv", "vocab.tsv", "recipe.YAML", "LICENSE", "x/y"]
)
def test_a_token_in_a_file_of_any_name_is_found(name, folder):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("export HF_TOKEN=hf_" + "x" * 30)
    with pytest.raises(ValueError, match="holds a token"):
        contents(folder)


def test_pickles_of_any_name_stay(folder):
    for protocol in range(2, 6):
        (folder / f"state{protocol}").write_bytes(pickle.dumps({"a": 1}, protocol))
    torch.save({"a": torch.zeros(2)}, folder / "weights.dat")
    with zipfile.ZipFile(folder / "texts.dat", "w") as archive:
        archive.writestr("a.txt", "no pickle")
    (folder / "cut.dat").write_bytes(b"PK\3\4")
    found = contents(folder)
    assert {name for name, why in found.left_out.items() if "pickle" in why} == {
        *map("state{}".format, range(2, 6)),
        "weights.dat",
    }
    assert {"texts.dat", "cut.dat", "model.safetensors"} <= {file.path for file in found.files}


def test_an_adapter_beside_the_model_stays(folder):
    """Where peft is installed, transformers loads it on top of the model, and fails where only its config is there."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "another/model"}')
    (folder / "adapter_model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    found = contents(folder)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(found.left_out)
    assert not any("adapter" in file.path for file in found.files)


def test_links_are_told(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.txt").write_text("what only I may read")
    (folder / "inside.txt").symlink_to("config.json")
    assert not any("link" in note for note in contents(folder).notes)
    (folder / "notes.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(".")
    (folder / "gone").symlink_to("nowhere")
    found = contents(folder)
    assert [note for note in found.notes if note.startswith("notes.txt is a link that leads out of the folder")]
    assert {"more", "again", "gone"} <= set(found.left_out)
    assert {"inside.txt", "notes.txt"} <= {file.path for file in found.files}


def test_code_that_is_no_text_is_not_all_there(folder):
    (folder / "modeling.py").write_bytes(b"\xff\xfe")
    assert any("code is not all there" in note for note in contents(folder).notes)


def test_code_that_is_not_there_is_that_of_the_package(folder):
    whole = {file.path: file.size for file in contents(folder).files}
    (folder / "attention.py").unlink()
    found = contents(folder)
    assert {file.path: file.size for file in found.files} == whole
    assert any("code" in note for note in found.notes)


def test_code_of_an_older_version_stays(folder):
    (folder / "attention.py").write_text((folder / "attention.py").read_text() + "\n# older\n")
    found = contents(folder)
    assert {file.path: file.source for file in found.files}["attention.py"] == folder / "attention.py"
    assert not any("code" in note for note in found.notes)


def test_the_record_of_an_import_is_shared_without_folders(folder):
    record = {"source": "/home/someone/t5", "commit": None, "checked": ["logits: they differ by 0.0e+00 at most"]}
    (folder / "import.json").write_text(json.dumps(record))
    shared = {file.path: file.source for file in contents(folder).files}["import.json"]
    assert json.loads(shared) == record | {"source": "t5"}
    assert json.loads((folder / "import.json").read_text()) == record


def test_a_token_of_any_form_is_found(folder):
    (folder / "notes.txt").write_text("my key is not-of-a-known-form")
    contents(folder)
    with pytest.raises(ValueError, match=r"notes\.txt' holds a token") as caught:
        contents(folder, "not-of-a-known-form")
    assert "known-form" not in str(caught.value)


def test_a_text_that_names_a_folder_of_ones_own_is_told(folder):
    (folder / "notes.txt").write_text(f"made of {Path.home() / 'data'}")
    assert contents(folder).notes == ["notes.txt names a folder of yours: look at it, for others will see it"]


def cut(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "t5"}'), "model_type='t5'"),
        (lambda folder: (folder / "model.safetensors").unlink(), "weights there are none"),
        (lambda folder: cut(folder, "model.safetensors"), "model.safetensors"),
        (lambda folder: cut(folder, "tokenizer.json"), "tokenizer"),
        (lambda folder: (folder / "weights.part").write_bytes(b""), "half-written"),
        (lambda folder: (folder / "notes.txt").write_text("my key is hf_" + "x" * 30), "notes.txt' holds a token"),
        (lambda folder: (folder / "README.md").write_text("my key is hf_" + "x" * 30), "README.md' holds a token"),
    ],
)  # fmt: skip
def test_folders_that_are_no_whole_model(spoil, message, folder):
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        contents(model_folder(folder))


def test_a_shard_that_is_missing(tmp_path):
    tiny_translation()[0].save_pretrained(tmp_path, max_shard_size="20KB")
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(ValueError, match="is missing"):
        contents(model_folder(tmp_path))


def test_folders_that_are_not_there_or_not_done(tmp_path, folder):
    with pytest.raises(ValueError, match="there is no folder"):
        contents(model_folder(tmp_path / "nothing"))
    (tmp_path / "recipe.yaml").write_text("output: x\n")
    with pytest.raises(ValueError, match="has no model yet"):
        contents(model_folder(tmp_path))
    with pytest.raises(ValueError, match="half-written"):
        contents(model_folder(folder.rename(folder.with_name("model.part"))))


def test_the_model_of_a_run(folder, tmp_path):
    (tmp_path / "recipe.yaml").write_text("output: x\n")
    assert model_folder(folder.rename(tmp_path / "model")) == tmp_path / "model"
    assert model_folder(tmp_path) == tmp_path / "model"


def test_weights_that_are_read(folder, tmp_path):
    assert weights_of(folder) == {"model.safetensors"}
    tiny_translation()[0].save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert weights_of(tmp_path / "sharded") == {path.name for path in (tmp_path / "sharded").glob("*safetensors*")}
    for path in (tmp_path / "sharded").glob("*safetensors*"):
        shutil.copy(path, folder)
    assert weights_of(folder) == {"model.safetensors"}
    assert "model.safetensors.index.json" in contents(folder).left_out


def test_a_pickle_is_no_model_to_share(folder):
    (folder / "model.safetensors").unlink()
    model, _ = tiny_translation()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="a pickle: load it and save it again"):
        model_folder(folder)


def test_a_model_without_a_tokenizer(tmp_path):
    tiny_translation()[0].save_pretrained(tmp_path)
    assert contents(tmp_path).notes == ["there is no tokenizer: save it in the same folder, unless the sources are no text"]

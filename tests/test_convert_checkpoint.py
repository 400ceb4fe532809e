"""Reading checkpoints: every form of file, nothing executed, nothing read elsewhere, and errors that name the file."""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from transduct.convert.checkpoint import SAFETENSORS, TORCH, Checkpoint, load_without_code

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([7, 8]), "c": torch.randn(5).bfloat16()}


def write_index(folder, name, places):
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def one_safetensors(folder):
    save_file(TENSORS, folder / SAFETENSORS)


def one_zip(folder):
    torch.save(TENSORS, folder / TORCH)


def one_legacy(folder):
    torch.save(TENSORS, folder / TORCH, _use_new_zipfile_serialization=False)


def shards_of_safetensors(folder):
    names = {"a.weight": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
             "c": "model-00002-of-00002.safetensors"}  # fmt: skip
    for file in set(names.values()):
        save_file({name: TENSORS[name] for name in TENSORS if names[name] == file}, folder / file)
    write_index(folder, SAFETENSORS, names)


def shards_of_torch(folder):
    names = {"a.weight": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin",
             "c": "pytorch_model-00001-of-00002.bin"}  # fmt: skip
    for file in set(names.values()):
        legacy = file.startswith("pytorch_model-00002")
        part = {name: TENSORS[name] for name in TENSORS if names[name] == file}
        torch.save(part, folder / file, _use_new_zipfile_serialization=not legacy)
    write_index(folder, TORCH, names)


def of_parameters(folder):
    torch.save({name: torch.nn.Parameter(tensor, tensor.is_floating_point()) for name, tensor in TENSORS.items()}, folder / TORCH)


FORMS = [one_safetensors, one_zip, one_legacy, shards_of_safetensors, shards_of_torch, of_parameters]


@pytest.mark.parametrize("write", FORMS, ids=lambda write: write.__name__)
def test_every_form_gives_the_same_tensors(write, tmp_path):
    write(tmp_path)
    checkpoint = Checkpoint.of_folder(tmp_path)
    assert checkpoint.names == set(TENSORS)
    for name in [*TENSORS, *reversed(TENSORS)]:  # from one file to the other and back
        got = checkpoint.tensor(name)
        assert type(got) is torch.Tensor
        assert not got.requires_grad
        assert got.dtype == TENSORS[name].dtype
        assert torch.equal(got, TENSORS[name])
    assert "a.weight" in checkpoint
    assert "a" not in checkpoint


def test_the_order_is_that_of_from_pretrained(tmp_path):
    for number, name in enumerate([SAFETENSORS, TORCH]):
        shard = {"x": torch.full((1,), 10.0 + number)}
        file = f"shard-{number}{os.path.splitext(name)[1]}"
        (save_file if name == SAFETENSORS else torch.save)(shard, tmp_path / file)
        write_index(tmp_path, name, {"x": file})
    torch.save({"x": torch.full((1,), 21.0)}, tmp_path / TORCH)
    save_file({"x": torch.full((1,), 20.0)}, tmp_path / SAFETENSORS)
    for value, name in [(20, SAFETENSORS), (10, f"{SAFETENSORS}.index.json"), (21, TORCH), (11, f"{TORCH}.index.json")]:
        assert Checkpoint.of_folder(tmp_path).tensor("x").item() == value
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match="holds no weights"):
        Checkpoint.of_folder(tmp_path)


@pytest.mark.parametrize("write", [one_zip, one_safetensors], ids=lambda write: write.__name__)
def test_a_tensor_outlives_its_file(write, tmp_path):
    write(tmp_path)
    tensor = Checkpoint.of_folder(tmp_path).tensor("a.weight")
    for path in tmp_path.iterdir():
        path.unlink()
    assert torch.equal(tensor, TENSORS["a.weight"])


def test_same_compares_bits():
    state = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([0.0, 1.0]), "c": torch.tensor([0.0, 2.0])}
    state |= {"d": state["a"], "e": state["a"].double()}
    checkpoint = Checkpoint.of_state_dict(state, "memory")
    assert [checkpoint.same("a", other) for other in "bcde"] == [True, False, True, False]


def test_find_takes_a_prefix():
    checkpoint = Checkpoint.of_state_dict({"model.shared.weight": torch.zeros(1), "unshared.weight": torch.zeros(1)}, "memory")
    assert checkpoint.find("shared.weight") == "model.shared.weight"
    assert checkpoint.find("lm_head.weight") == "lm_head.weight"


# ---- what is refused -----------------------------------------------------------------------------------------------------------


class Payload:
    """Unpickled, it would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_code_in_a_pickle_is_refused_and_not_executed(zipped, tmp_path):
    trap = tmp_path / "executed"
    torch.save({"a": torch.ones(2), "b": Payload(trap)}, tmp_path / TORCH, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*mkdir would have to be executed, which is never done"):
        Checkpoint.of_folder(tmp_path)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Payload(trap)))
    assert trap.exists()  # the trap works


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "..\\other", "C:x", ""])
@pytest.mark.parametrize("weights", [SAFETENSORS, TORCH])
def test_an_index_may_not_name_files_elsewhere(weights, name, tmp_path):
    (tmp_path / "sub").mkdir()
    for path in ("other.safetensors", "inside/sub/model.safetensors"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        save_file({"a": torch.ones(1)}, tmp_path / path)
    write_index(tmp_path / "inside", weights, {"a": name})
    with pytest.raises(ValueError, match=r"index\.json names files outside its own folder"):
        Checkpoint.of_folder(tmp_path / "inside")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not JSON"),
        ("[1]", "must hold a JSON object, not list"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
    ],
)
def test_a_broken_index(text, message, tmp_path):
    (tmp_path / f"{SAFETENSORS}.index.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        Checkpoint.of_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    shards_of_safetensors(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="shards that are not there: model-00002"):
        Checkpoint.of_folder(tmp_path)


def test_a_tensor_that_the_index_names_and_no_shard_holds(tmp_path):
    shards_of_safetensors(tmp_path)
    save_file({"other": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match="names tensors that its shards do not hold: c;"):
        Checkpoint.of_folder(tmp_path)


def test_a_tensor_in_two_shards(tmp_path):
    shards_of_torch(tmp_path)
    torch.save(TENSORS, tmp_path / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(ValueError, match=r"another shard holds too: a\.weight, c"):
        Checkpoint.of_folder(tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 30, 100, -1])
@pytest.mark.parametrize("write", [one_safetensors, one_zip, one_legacy], ids=lambda write: write.__name__)
def test_a_file_that_was_cut_off(write, kept, tmp_path):
    write(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    with pytest.raises(ValueError, match=rf"{path.name}.* is damaged or cut off"):
        Checkpoint.of_folder(tmp_path)


@pytest.mark.parametrize("name", [SAFETENSORS, TORCH])
def test_a_pointer_of_git_lfs(name, tmp_path):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(ValueError, match="is a pointer of Git LFS, not the file itself: get it with `git lfs pull`"):
        Checkpoint.of_folder(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([torch.ones(1)], "holds no tensors by name, but a list"),
        ({1: torch.ones(1)}, "holds no tensors by name"),
        ({"model": {"a": torch.ones(1)}, "epoch": 3}, "must hold tensors alone, but holds epoch, model too"),
    ],
)
def test_a_torch_file_that_is_no_state_dict(value, message, tmp_path):
    torch.save(value, tmp_path / TORCH)
    with pytest.raises(ValueError, match=message):
        Checkpoint.of_folder(tmp_path)


def test_no_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_without_code(tmp_path / "none.pt")

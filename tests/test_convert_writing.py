"""Writing checkpoints: shards, their index, folders that are whole or not there, and how much memory it takes."""

import json
import os

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from transduct.convert.checkpoint import SAFETENSORS, Checkpoint
from transduct.convert.writing import bytes_of, new_folder, write_weights

TENSORS = {f"layer.{number}.weight": torch.randn(10, 10 + number) for number in range(7)}


def test_one_file(tmp_path):
    written = write_weights(TENSORS.items(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == written.files == [SAFETENSORS]
    assert written.parameters == sum(tensor.numel() for tensor in TENSORS.values())
    assert written.bytes == 4 * written.parameters
    assert written.dtype == torch.float32
    with safe_open(tmp_path / SAFETENSORS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # without which transformers refuses the file
    stored = load_file(tmp_path / SAFETENSORS)
    assert stored.keys() == TENSORS.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in TENSORS.items())


def test_shards_are_those_of_transformers(tmp_path):
    """The same split, the same names of files and the same index as `save_pretrained` makes."""
    written = write_weights(TENSORS.items(), tmp_path, "1KB")
    expected = split_torch_state_dict_into_shards(TENSORS, max_shard_size=1000)
    assert written.files == list(expected.filename_to_tensors)
    index = json.loads((tmp_path / f"{SAFETENSORS}.index.json").read_text())
    assert index["weight_map"] == expected.tensor_to_filename
    assert index["metadata"]["total_size"] == expected.metadata["total_size"]
    assert index["metadata"]["total_parameters"] == written.parameters
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*written.files, f"{SAFETENSORS}.index.json"])
    checkpoint = Checkpoint.of_folder(tmp_path)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in TENSORS.items())


def test_a_tensor_above_the_size_has_its_own_file(tmp_path):
    sizes = {"a": 10, "b": 500, "c": 10, "d": 10}
    written = write_weights([(name, torch.zeros(size)) for name, size in sizes.items()], tmp_path, 100)
    assert [sorted(load_file(tmp_path / file)) for file in written.files] == [["a"], ["b"], ["c", "d"]]


def test_types_are_kept_and_summed_up_by_the_widest(tmp_path):
    tensors = {"a": torch.ones(2).half(), "b": torch.ones(2).bfloat16(), "c": torch.tensor([2**40])}
    written = write_weights(tensors.items(), tmp_path)
    assert {name: tensor.dtype for name, tensor in load_file(tmp_path / SAFETENSORS).items()} == {
        name: tensor.dtype for name, tensor in tensors.items()
    }
    assert written.dtype == torch.float32  # neither half type holds the other's numbers
    assert written.bytes == 4 + 4 + 8


def test_rounding_to_a_type(tmp_path):
    tensors = {"a": torch.tensor([1.00001, -3.0, float("inf")]), "b": torch.tensor([3])}
    written = write_weights(tensors.items(), tmp_path, dtype=torch.float16)
    stored = load_file(tmp_path / SAFETENSORS)
    assert stored["a"].tolist() == [1.0, -3.0, float("inf")]
    assert stored["b"].dtype == torch.int64
    assert written.dtype == torch.float16


def test_values_that_a_type_cannot_hold_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.weight has values up to 70000, which float16 cannot hold"):
        write_weights([("a.weight", torch.tensor([1.0, -70000.0]))], tmp_path, dtype=torch.float16)


def test_a_full_disk_is_an_error_of_the_system(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transduct.convert.writing.save_file", fails)
    with pytest.raises(OSError, match=r"cannot be written into .*No space left"):
        write_weights(TENSORS.items(), tmp_path)


def test_transposed_tensors(tmp_path):
    write_weights([("a", TENSORS["layer.3.weight"].T)], tmp_path)
    assert torch.equal(load_file(tmp_path / SAFETENSORS)["a"], TENSORS["layer.3.weight"].T)


@pytest.mark.parametrize(
    ("size", "count"),
    [("5GB", 5 * 10**9), ("300 MB", 300 * 10**6), ("1.5kb", 1500), (2048, 2048), ("7", 7), ("2TB", 2 * 10**12), ("9B", 9)],
)
def test_sizes(size, count):
    assert bytes_of(size) == count


@pytest.mark.parametrize("size", ["", "5 apples", "-1GB", "0", 0, "0.1B", "GB", "5GiB"])
def test_no_sizes(size):
    with pytest.raises(ValueError, match="shard_size="):
        bytes_of(size)


# ---- the folder ----------------------------------------------------------------------------------------------------------------


def test_a_folder_appears_at_the_end(tmp_path):
    output = tmp_path / "new" / "model"
    with new_folder(output) as part:
        (part / "inside").mkdir()
        (part / "inside" / "file").write_text("content")
        assert not output.exists()
        assert part.parent == output.parent  # on the same disk, so that moving it is one step
    assert (output / "inside" / "file").read_text() == "content"
    assert os.listdir(output.parent) == ["model"]
    (tmp_path / "ordinary").mkdir()
    assert output.stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_an_empty_folder_is_taken(tmp_path):
    with new_folder(tmp_path) as part:
        (part / "file").write_text("content")
    assert os.listdir(tmp_path) == ["file"]


def test_the_current_folder_is_taken_if_it_is_empty(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with new_folder(".") as part:
        (part / "file").write_text("content")
    assert os.listdir(tmp_path / "here") == ["file"]


def test_a_link_is_not_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is there already"), new_folder(tmp_path / "link"):
        pass
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(error, tmp_path):
    def fail():
        with new_folder(tmp_path / "model") as part:
            (part / "file").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_there_is_not_touched(kind, tmp_path):
    output = tmp_path / "model"
    inside = output if kind == "file" else output / "config.json"
    inside.parent.mkdir(exist_ok=True)
    inside.write_text("precious")
    with pytest.raises(ValueError, match="is there already: choose another output"), new_folder(output):
        raise AssertionError("not reached")
    assert inside.read_text() == "precious"
    assert os.listdir(tmp_path) == ["model"]

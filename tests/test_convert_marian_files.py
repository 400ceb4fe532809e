"""Marian's files: what is in them, read one tensor at a time, and what is no such file."""

import struct

import numpy as np
import pytest
import torch
import yaml

from marian_checkpoints import OPTIONS, options_text, write_bin, write_npz
from transduct.convert.marian_files import is_marian, read_marian, type_name

ARRAYS = {
    "Wemb": np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32),
    "encoder_l1_ffn_b1": np.arange(7, dtype=np.float32)[None],
}


@pytest.mark.parametrize("write", [write_npz, write_bin])
def test_options_and_tensors(write, tmp_path):
    path = write(tmp_path, ARRAYS, enc_depth=4)
    file = read_marian(path)
    assert is_marian(path)
    assert file.options == OPTIONS | {"enc-depth": 4}
    assert file.checkpoint.names == set(ARRAYS)
    assert not file.unread
    for name, array in ARRAYS.items():
        assert torch.equal(file.checkpoint.tensor(name), torch.from_numpy(array))


def test_half_precision(tmp_path):
    path = write_bin(tmp_path, {"Wemb": ARRAYS["Wemb"]})
    content = path.read_bytes()
    head = struct.pack("<QQ", 5, 0x0404)  # of the name's length and the type
    assert content.count(head) == 1
    path.write_bytes(content.replace(head, struct.pack("<QQ", 5, 0x0402)))
    want = np.frombuffer(ARRAYS["Wemb"].tobytes(), "<f2")[:20].reshape(5, 4)
    got = read_marian(path).checkpoint.tensor("Wemb")
    assert got.dtype == torch.float16
    assert torch.equal(got.isnan(), torch.from_numpy(want.copy()).isnan())
    assert torch.equal(got.nan_to_num(), torch.from_numpy(want.copy()).nan_to_num())


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (0x4101, "intgemm int8"),
        (0x4102, "intgemm int16"),
        (0x0101, "int8"),
        (0x0204, "unsigned int32"),
        (0x0802, "packed bits16"),
    ],
)
def test_types_that_are_no_floating_point_are_told(kind, name, tmp_path):
    assert type_name(kind) == name
    file = read_marian(write_bin(tmp_path, ARRAYS, kind=kind))
    assert file.unread == dict.fromkeys(ARRAYS, name)
    assert not file.checkpoint.names


def test_arrays_of_objects_are_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "executed"), "w")

    path = write_npz(tmp_path, ARRAYS | {"evil": np.array([Evil()], dtype=object)})
    file = read_marian(path)
    with pytest.raises(ValueError, match="evil is no array of numbers"):
        file.checkpoint.tensor("evil")
    assert not (tmp_path / "executed").exists()


def test_archives_without_options_are_refused(tmp_path):
    np.savez(tmp_path / "model.npz", **ARRAYS)
    with pytest.raises(ValueError, match=r"has no 'special:model\.yml': it is no model of Marian"):
        read_marian(tmp_path / "model.npz")


@pytest.mark.parametrize(("text", "message"), [(b"a: [\0", "is not YAML"), (b"just text\0", "must hold options by name")])
def test_options_that_are_none(text, message, tmp_path):
    np.savez(tmp_path / "model.npz", **{"special:model.yml": np.frombuffer(text, np.int8)})
    with pytest.raises(ValueError, match=message):
        read_marian(tmp_path / "model.npz")


def test_yaml_builds_nothing(tmp_path):
    text = f"!!python/object/apply:builtins.open [{tmp_path / 'executed'}, w]\0".encode()
    np.savez(tmp_path / "model.npz", **{"special:model.yml": np.frombuffer(text, np.int8)})
    with pytest.raises(ValueError, match="is not YAML"):
        read_marian(tmp_path / "model.npz")
    assert not (tmp_path / "executed").exists()


def test_files_cut_short_are_refused(tmp_path):
    path = write_bin(tmp_path, ARRAYS)
    content = path.read_bytes()
    for length in range(9, len(content) - 1, 97):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"model\.bin.* is (no file of Marian, or is )?damaged"):
            read_marian(path)
    archive = write_npz(tmp_path, ARRAYS)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is no file of Marian, or is damaged"):
        read_marian(archive)


def test_headers_of_absurd_numbers_are_refused(tmp_path):
    path = tmp_path / "model.bin"
    for start in (struct.pack("<QQ", 1, 1 << 60), struct.pack("<QQQQQQ", 1, 1, 1 << 40, 0x404, 2, 8), struct.pack("<QQ", 2, 1)):
        path.write_bytes(start + bytes(64))
        with pytest.raises(ValueError, match=r"absurd|no \.bin file of Marian"):
            read_marian(path)


def test_a_shape_larger_than_its_data_is_refused(tmp_path):
    path = write_bin(tmp_path, {"Wemb": ARRAYS["Wemb"]})
    content = path.read_bytes()
    shape = struct.pack("<2i", 5, 4)
    assert content.count(shape) == 1
    path.write_bytes(content.replace(shape, struct.pack("<2i", 5000, 4)))
    with pytest.raises(ValueError, match=r"Wemb of shape \(5000, 4\) has 256 bytes"):
        read_marian(path).checkpoint.tensor("Wemb")


def test_other_files_are_not_marian(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert not is_marian(tmp_path / "pytorch_model.bin")
    assert yaml.safe_load(options_text({}).rstrip(b"\0")) == OPTIONS

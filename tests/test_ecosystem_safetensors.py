"""safetensors: files that any reader of safetensors takes, with the metadata that transformers asks for."""

import json
import struct

import pytest
from safetensors import safe_open

from transduct import TransductForConditionalGeneration, config_from_preset
from transduct.convert.folders import export_folder
from transduct.training.averaging import average_checkpoints


def files_of(tmp_path) -> dict[str, list]:
    """Files of weights from each of our ways to write some."""
    sizes = dict(vocab_size=40, d_model=16, d_ff=24, num_heads=2, encoder_layers=1, decoder_layers=1, max_positions=64)
    model = TransductForConditionalGeneration(config_from_preset("bart-base", **sizes))
    model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="8KB")
    average_checkpoints([tmp_path / "saved", tmp_path / "saved"], tmp_path / "average")
    export_folder(tmp_path / "saved", tmp_path / "bart", to="bart", verify=False)
    return {path.name: sorted(path.glob("*.safetensors")) for path in tmp_path.iterdir()}


@pytest.fixture
def files(tmp_path):
    return files_of(tmp_path)


def test_every_file_says_of_which_framework_it_is(files):
    assert len(files["sharded"]) > 1
    for paths in files.values():
        assert paths
        for path in paths:
            with safe_open(path, framework="np") as file:  # of no torch
                assert file.metadata()["format"] == "pt"
                assert all(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118


def test_headers_are_aligned_and_hold_each_tensor_once(files):
    for paths in files.values():
        names = []
        for path in paths:
            content = path.read_bytes()
            (length,) = struct.unpack("<Q", content[:8])
            header = json.loads(content[8 : 8 + length])
            assert length % 8 == 0
            spans = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__")
            assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
            assert 8 + length + spans[-1][1] == len(content)
            names += [name for name in header if name != "__metadata__"]
        assert len(names) == len(set(names))


def test_tied_matrices_are_stored_once(files):
    model = TransductForConditionalGeneration.from_pretrained(files["saved"][0].parent)
    with safe_open(files["saved"][0], framework="np") as file:
        stored = set(file.keys())
    assert len(stored & {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}) == 1
    assert len(stored) == len(list(model.parameters()))

"""Checkpoints of every released version load with this one, and compute what they did; those of a newer format are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from released import FIXTURES, SHAPES, compute
from transduct import TransductConfig, TransductTokenizer, __version__
from transduct.configuration import FORMAT_VERSION

CHECKPOINTS = sorted(path.parent for path in FIXTURES.glob("*/*/config.json"))


def test_this_version_has_its_checkpoints():
    assert {path.name for path in CHECKPOINTS if path.parent.name == __version__} == set(SHAPES)


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_checkpoint_computes_what_it_did(folder, tmp_path):
    expected = load_file(folder / "expected.safetensors")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    for found in (compute(model), compute(saved_again(model, tmp_path))):
        assert found.keys() == expected.keys()
        torch.testing.assert_close(found["logits"], expected["logits"], rtol=1e-5, atol=1e-5)
        assert torch.equal(found["generated"], expected["generated"])


def saved_again(model, folder: Path):
    """The same model as this version writes and reads it."""
    model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["format_version"] == FORMAT_VERSION
    return type(model).from_pretrained(folder)


@pytest.mark.parametrize(
    "folder",
    [path for path in CHECKPOINTS if (path / "tokenizer.json").is_file()],
    ids=lambda folder: f"{folder.parent.name}-{folder.name}",
)
def test_a_tokenizer_reads_and_writes_as_it_did(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer) is TransductTokenizer
    two = folder.name == "two-vocabularies"
    source, target = "abc fed", "xyz u" if two else "abc f"
    batch = tokenizer(source, text_target=target)
    assert tokenizer.decode(batch["input_ids"], use_source_tokenizer=True) == f"{source}</s>"
    assert tokenizer.decode(batch["labels"]) == f"{target}</s>"
    assert tokenizer.separate_vocabularies == two


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS[0], tmp_path / "model"))


def written(folder: Path, **changes) -> Path:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return folder


def test_a_config_without_a_version_is_of_the_first(folder):
    assert AutoModelForSeq2SeqLM.from_pretrained(written(folder, format_version=None)).config.format_version == FORMAT_VERSION


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99])
def test_a_newer_format_is_refused(version, folder):
    written(folder, format_version=version, attention="of the future")
    for load in (TransductConfig.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained):
        with pytest.raises(ValueError, match=f"format_version={version!r} is of a newer transduct than this one"):
            load(folder)


@pytest.mark.parametrize("version", ["next", "1", 0, -1, True, 1.0])
def test_what_is_no_format_is_refused_as_that(version, folder):
    written(folder, format_version=version)
    for load in (TransductConfig.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained):
        with pytest.raises(ValueError, match=f"format_version={version!r} must be a whole number"):
            load(folder)


def test_a_config_says_which_format_it_is_written_in():
    config = TransductConfig(format_version=FORMAT_VERSION)
    assert config.to_dict()["format_version"] == FORMAT_VERSION
    with pytest.raises(ValueError, match="format_version=7 is of a newer transduct"):
        TransductConfig(format_version=7)

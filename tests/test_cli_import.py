"""`transduct import`: what it prints, what it writes, and what it refuses."""

import json
import os
import re

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration, T5Model

from tiny_tokenizers import write_tokenizer
from transduct.cli.main import run

SIZES = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}


@pytest.fixture
def original(tmp_path):
    """A tiny T5 with its tokenizer, in two shards."""
    folder = write_tokenizer("t5", tmp_path / "original")
    T5ForConditionalGeneration(T5Config(vocab_size=384, **SIZES)).save_pretrained(folder, max_shard_size="30KB")
    assert (folder / "model.safetensors.index.json").exists()
    return folder


def printed(capsys) -> dict[str, str]:
    """The lines of a table by what stands before them, further lines of an entry joined to it."""
    lines = re.sub(r"\n +", " ", capsys.readouterr().out).splitlines()
    return {line[:12].strip(): line[12:] for line in lines}


def test_what_it_prints_and_writes(original, tmp_path, capsys):
    output = tmp_path / "ours"
    assert run(["import", str(original), str(output), "--shard-size", "25KB"]) == 0
    table = printed(capsys)
    assert table["imported"] == str(original)
    assert table["family"] == "t5: T5ForConditionalGeneration -> TransductForConditionalGeneration"
    count = T5ForConditionalGeneration.from_pretrained(original).num_parameters()
    assert table["parameters"].startswith(f"{count:,} in float32, ")
    assert table["vocabulary"].endswith("384 embeddings, 64 of them unused")
    assert {"config.json", "import.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json"} <= set(
        table["files"].split(", ")
    )
    assert table["written to"] == str(output)
    assert re.search(r"logits: they differ by \d\.\de[-+]\d\d at most.*greedy.*identical ids.*beam-4", table["checked"])
    assert AutoModelForSeq2SeqLM.from_pretrained(output).num_parameters() == count


def test_without_verification_it_says_so_loudly(original, tmp_path, capsys):
    assert run(["import", str(original), str(tmp_path / "ours"), "--no-verify"]) == 0
    out, error = capsys.readouterr()
    assert "checked     NOTHING: by the wish of --no-verify" in out
    assert error.startswith("WARNING: ")
    assert "was NOT checked, by the wish of --no-verify" in error
    assert json.loads((tmp_path / "ours" / "import.json").read_text())["checked"] is None


def test_options(original, tmp_path):
    arguments = ["import", str(original), str(tmp_path / "ours"), "--no-verify", "--dtype", "bfloat16"]
    assert run(arguments) == 0
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").dtype == torch.bfloat16
    T5Model(T5Config(vocab_size=40, **SIZES)).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"architectures": None}))
    assert run(["import", str(tmp_path / "model"), str(tmp_path / "two"), "--no-verify", "--class", "T5Model"]) == 0
    assert json.loads((tmp_path / "two" / "config.json").read_text())["architectures"] == ["TransductModel"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "int8"], "--dtype 'int8' must be one of float32, float16, bfloat16, float64"),
        (["--shard-size", "many"], "shard_size='many' must be a number of bytes"),
        (["--revision", "main"], "revision and token belong to an id of the Hub"),
        (["--class", "T5ForAudio"], "T5ForAudio has no counterpart in transduct"),
    ],
)
def test_refuses_options(original, tmp_path, capsys, options, message):
    assert run(["import", str(original), str(tmp_path / "ours"), *options]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["original"]


def test_refuses_sources_and_outputs(original, tmp_path, capsys):
    (original / "model-00001-of-00002.safetensors").unlink()
    for source, output, message in [
        (tmp_path / "nothing", tmp_path / "ours", "there is no file or folder"),
        (original, original, "is there already"),
        (original, tmp_path / "ours", "names shards that are not there: model-00001-of-00002.safetensors"),
    ]:
        assert run(["import", str(source), str(output)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["original"]


@pytest.mark.parametrize("verify", [True, False])
def test_json(original, tmp_path, capsys, verify):
    output = tmp_path / "ours"
    assert run(["import", str(original), str(output), "--json", *([] if verify else ["--no-verify"])]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["source"], found["output"], found["family"]) == (str(original), str(output), "t5")
    assert found["parameters"] == T5ForConditionalGeneration.from_pretrained(original).num_parameters()
    assert found["files"] == sorted(path.name for path in output.iterdir())
    assert (found["checked"] is not None) == verify
    assert ("WARNING" in printed.err) != verify
    if verify:
        assert max(found["differences"].values()) < 1e-4

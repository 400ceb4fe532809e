"""`transduct export`: what it prints, what it writes, and what it refuses."""

import json
import os
import re

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

import transduct
from tiny_translation import TEXTS, tiny_translation
from transduct.cli.main import run
from transduct.convert.families import FAMILIES
from transduct.modeling import TransductForConditionalGeneration

TINY = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture
def ours(tmp_path):
    """A model that was never of another family."""
    config = transduct.config_from_preset("bart-base", **TINY, max_positions=64)
    TransductForConditionalGeneration(config).save_pretrained(tmp_path / "ours")
    return tmp_path / "ours"


def test_what_it_prints_and_writes(ours, tmp_path, capsys):
    output = tmp_path / "bart"
    assert run(["export", str(ours), str(output), "--to", "bart", "--shard-size", "10KB"]) == 0
    printed = capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    assert type(model) is BartForConditionalGeneration
    assert len(list(output.glob("model-*.safetensors"))) > 1
    for line in (
        f"exported    {ours}",
        "family      bart: TransductForConditionalGeneration -> BartForConditionalGeneration",
        f"written to  {output}",
        "vocabulary  no tokenizer",
    ):
        assert line in printed.splitlines()
    assert "logits: they differ by" in printed
    assert "beam-4 generation: identical ids" in printed


def test_back_to_where_it_came_from(tmp_path, capsys):
    config = T5Config(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "original")
    assert run(["import", str(tmp_path / "original"), str(tmp_path / "ours"), "--no-verify"]) == 0
    assert run(["export", str(tmp_path / "ours"), str(tmp_path / "back"), "--dtype", "float16"]) == 0
    assert T5ForConditionalGeneration.from_pretrained(tmp_path / "back").dtype == torch.float16
    assert "T5ForConditionalGeneration" in capsys.readouterr().out


def test_without_verification_it_says_so_loudly(ours, tmp_path, capsys):
    assert run(["export", str(ours), str(tmp_path / "bart"), "--to", "bart", "--no-verify"]) == 0
    out, error = capsys.readouterr()
    assert "checked     NOTHING: by the wish of --no-verify" in out
    assert "was NOT checked, by the wish of --no-verify" in error


def test_the_help_lists_every_family(capsys):
    assert run(["export", "--help"]) == 0
    words = set(capsys.readouterr().out.replace(",", " ").replace(";", " ").split())
    assert set(FAMILIES) <= words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "was not imported from another family: say with `to`"),
        (["--to", "t5"], "cannot be written as t5, which has no way to say"),
        (["--to", "gpt2"], "'gpt2' is none of t5, "),
        (["--to", "bart", "--dtype", "int8"], "--dtype 'int8' must be one of"),
    ],
)
def test_refuses(ours, tmp_path, capsys, options, message):
    assert run(["export", str(ours), str(tmp_path / "out"), *options]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["ours"]


def test_a_run_is_told_from_its_model(ours, tmp_path, capsys):
    ours.rename(tmp_path / "model")
    assert run(["export", str(tmp_path), str(tmp_path / "bart"), "--to", "bart"]) == 2
    assert f"has no config.json: it is no checkpoint of transduct; that of the run is {tmp_path}/model" in capsys.readouterr().err


def test_json(ours, tmp_path, capsys):
    assert run(["export", str(ours), str(tmp_path / "bart"), "--to", "bart", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["output"], found["family"]) == (str(tmp_path / "bart"), "bart")
    assert (found["from_class"], found["to_class"]) == ("TransductForConditionalGeneration", "BartForConditionalGeneration")
    assert run(["export", str(ours), str(tmp_path / "engine"), "--to", "ctranslate2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["engine"], found["stored"], found["output"]) == ("ctranslate2", "float32", str(tmp_path / "engine"))
    assert any("log-probabilities of" in line for line in found["checked"])


def test_quantized_for_another_engine(tmp_path, capsys):
    model, tokenizer = tiny_translation(end=2.0)
    model.generation_config.max_new_tokens = 9
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "ours")
    sizes = {}
    for name, options in (("float32", []), ("int8", ["--quantization", "int8"])):
        assert run(["export", str(tmp_path / "ours"), str(tmp_path / name), "--to", "ctranslate2", *options]) == 0
        printed = capsys.readouterr().out
        assert f"engine      ctranslate2, weights stored as {name}" in printed.splitlines()
        (largest,) = re.findall(r"random pairs: they differ by (\S+) at most", printed)
        card = (tmp_path / name / "README.md").read_text()
        assert f"they differ by {largest} at most" in card
        assert (float(largest) > 1e-3) == (name == "int8")  # its weights are rounded
        sizes[name] = (tmp_path / name / "model.bin").stat().st_size
    assert sizes["int8"] < sizes["float32"]  # most of so small a model are positions, which stay
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    assert run(["translate", str(tmp_path / "int8"), *files]) == 0
    found = (tmp_path / "out.txt").read_text().split("\n")[:-1]
    assert found == transduct.translate(tmp_path / "int8", tokenizer, TEXTS)
    assert any(found)

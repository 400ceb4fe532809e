"""Each benchmark runs by one command and prints its table; the text that they use is read as it was meant."""

import argparse
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import accumulation
import generate
import memory
import peak_memory
import shapes
import side_by_side
import torch
import train_step
import translate
import translation_text

ROOT = Path(__file__).resolve().parents[1]
TABLES = {
    "train_step": ["Training step", "t5-small, no padding", "bart-base, padded", "marian-base, least padded"],
    "generate": ["generate, tiny", "marian-base, source 4, greedy", "bart-base, source 12, beam 4"],
    "decode": ["decode, marian-base", "transduct (s)", "packed (s)", "int8 (s)", "2, 4, 1", "2, 12, 4"],
    "linears": ["linears, float32 products equal", "tiny 48 x 16, 8 rows", "tiny 48 x 16, 256 rows", "packed (ms)", "int8 (ms)"],
    "memory": ["Memory", "mt5-small, 64 targets: process", "bart-base, 8 beams, source 16: cross-attention", "0.125"],
    "accumulation": ["Loss and gradient norm", "transformers' T5", "transduct as T5"],
    "train": ["Targets without padding", "default sampling", "length grouping", "token budget", "packed", "2 processes"],
    "translate": [
        "translate, 6 lines, 4 beams",
        "transformers",
        "transduct",
        "int8",
        "CTranslate2 int8, directly",
        "BLEU",
        "chrF",
    ],
    "translation_text": ["example: 6 pairs", "words of a source", "words of a target"],
}
OPTIONS = {
    "train_step": ["--rounds", "1"],
    "generate": ["--rounds", "1"],
    "decode": ["--rounds", "1", "--batches", "2"],
    "linears": ["--rounds", "1"],
    "memory": ["--target-tokens", "64", "--source-length", "16"],
    "train": ["--rounds", "1", "--updates", "2"],
    "translate": ["--rounds", "1"],
}


def run(name: str, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, f"benchmarks/{name}.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_runs_and_prints_its_table(name):
    result = run(name, "--quick", *OPTIONS.get(name, []))
    assert result.returncode == 0, result.stderr[-3000:]
    for text in TABLES[name]:
        assert text in result.stdout


@pytest.mark.slow
def test_a_beam_takes_no_more_for_a_longer_source():
    result = run("decode", "--growth", "--quick", "--rounds", "1")
    assert result.returncode == 0, result.stderr[-3000:]
    costs, held = result.stdout.split("bytes of keys and values")
    assert re.findall(r"^│ +(\d+) ", costs, flags=re.MULTILINE) == ["4", "8", "16"]
    rows = re.findall(r"^│ +(\d+) +│ +([\d,]+) +│ +([\d,]+) +│", held, flags=re.MULTILINE)
    sources, theirs, ours = ([int(cell.replace(",", "")) for cell in column] for column in zip(*rows, strict=True))
    assert sources == [4, 12]
    assert theirs[0] < theirs[1]
    assert ours[0] == ours[1] > 0


def test_every_benchmark_is_run_here():
    commands = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert commands == set(TABLES)


def test_ratios_are_of_rounds():
    item = side_by_side.Comparison("x", theirs=[2.0, 9.0, 4.0], ours=[1.0, 3.0, 4.0])
    assert item.ratios == [2.0, 3.0, 1.0]
    assert item.ratio == 2.0


def test_each_side_begins_a_round_in_its_turn():
    calls = []
    sides = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    measured = side_by_side.by_turns(sides, rounds=3, found={"b": None})
    assert calls == ["a", "c", *"abc", *"bca", *"cab"]  # what was called before needs no warm-up
    assert [len(seconds) for seconds in measured.values()] == [3, 3, 3]
    assert side_by_side.times_faster({"x": [2.0, 9.0, 4.0], "y": [1.0, 3.0, 4.0]}, "y", than="x") == 2.0


def test_compare_alternates_who_goes_first():
    calls = []
    result = side_by_side.compare("x", lambda: calls.append("theirs"), lambda: calls.append("ours"), rounds=2)
    assert calls == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert (len(result.theirs), len(result.ours)) == (2, 2)


@pytest.mark.parametrize("shape", shapes.SHAPES)
def test_a_pair_is_one_function_with_one_dropout(shape):
    theirs, ours = shapes.pair(shape, tiny=True)
    assert theirs.training
    assert ours.training
    biases = ours.config.vocab_size if ours.config.logits_bias else 0  # a buffer there
    sizes = [
        sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (theirs, ours)
    ]  # theirs: tables are frozen
    assert sizes[0] == sizes[1] - biases
    ids = torch.randint(3, 500, (2, 5))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(input_ids=ids, labels=ids).loss, theirs.eval()(input_ids=ids, labels=ids).loss)
    rates = theirs.config.to_dict()
    assert rates.get("dropout", rates.get("dropout_rate")) == ours.config.dropout == 0.1
    if "attention_dropout" in rates:
        assert (rates["attention_dropout"], rates["activation_dropout"]) == (
            ours.config.attention_dropout,
            ours.config.activation_dropout,
        )


def test_different_models_are_not_timed():
    theirs, ours = shapes.pair("t5-small", tiny=True)
    with torch.no_grad():
        ours.model.decoder.final_norm.weight.mul_(1.01)
    batch = train_step.make_batch(train_step.even_rows(quick=True), ours.config)
    with pytest.raises(AssertionError, match="not the same model"):
        train_step.check_losses("t5-small", theirs, ours, batch)


def test_different_ids_are_not_timed():
    models = [model.eval() for model in shapes.pair("t5-small", tiny=True)]
    with torch.no_grad():
        models[1].model.encoder.embed_tokens.weight.neg_()
    options = argparse.Namespace(quick=True, rounds=1)
    with pytest.raises(AssertionError, match="the ids differ"):
        generate.measure("t5-small", 5, 4, models, options)


def test_different_translations_are_not_timed():
    lines, references = [f"line {number} of a text" for number in range(40)], [f"line {number} of a text" for number in range(40)]
    translate.check(lines, lines, references)
    with pytest.raises(AssertionError, match=r"92\.5% of the lines are transformers'"):
        translate.check(lines, [*lines[:-3], "", "", ""], references)
    with pytest.raises(AssertionError, match=r"97\.5% of the lines .* BLEU 100\.00"):
        translate.check(lines, [*lines[:-1], "something else entirely"], references)


def test_a_model_is_trained_once_and_of_one_recipe(tmp_path, monkeypatch):
    runs = []

    def run(recipe, minutes):
        runs.append(recipe)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "model.safetensors").touch()
        noted = {name: value for name, value in asdict(recipe).items() if name not in ("folder", "file")}
        (tmp_path / "recipe.yaml").write_text(json.dumps(noted, default=str))
        return argparse.Namespace(signal=None)

    monkeypatch.setattr("transduct.training.run.run", run)
    monkeypatch.setattr(sys, "argv", ["translate.py", "--output", str(tmp_path), "--text", "libreoffice"])
    for _ in range(2):
        assert translate.trained(translate.read_options()) == tmp_path / "model"
    (recipe,) = runs
    assert recipe.model["sinusoid_layout"] == "halves"  # as Marian has them
    assert recipe.data.test.function == "data.py:libreoffice"
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--set", "model.d_model=256"])
    with pytest.raises(SystemExit, match="holds a model of another recipe"):
        translate.trained(translate.read_options())


def test_translations_come_in_the_order_of_their_lines():
    model, tokenizer = translate.tiny()
    model.generation_config.max_new_tokens = 9
    lines = ["abc", "a longer line", "x"]
    together = translate.the_usual_way(model, tokenizer, lines, batch=2, beams=2)
    assert together == [translate.the_usual_way(model, tokenizer, [line], batch=1, beams=2)[0] for line in lines]
    assert len(set(together)) == 3


def test_a_batch_has_end_tokens_padding_and_ignored_labels():
    config = shapes.config_of("bart-base", tiny=True)
    batch = train_step.make_batch(([[5, 6, 7], [8]], [[9], [10, 11]]), config)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 2], [8, 2, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[9, 2, -100], [10, 11, 2]]
    assert train_step.describe_batch("x", batch) == "x: 11 tokens in 14 places"
    assert train_step.padding([([5, 6, 7], [9]), ([8], [10, 11])]) == pytest.approx(14 / 11)


def test_peak_is_what_was_allocated_and_freed():
    size = 200 * 2**20
    result = peak_memory.measure_peak(lambda: torch.ones(size // 4))
    assert 0.9 * size < result["peak"] - result["before"] < 1.3 * size
    assert result["how"]


def test_storages_are_counted_once():
    class Layer:
        keys = torch.zeros(4, 8).expand(3, 4, 8)
        values = keys[:1]

    class Cache:
        layers = [Layer, Layer]

    assert memory.held_bytes(Cache) == 4 * 8 * 4


def test_accumulation_of_examples_that_are_unequal_and_fixed():
    rows = accumulation.examples(40)
    assert rows == accumulation.examples(40)
    assert len({len(row["labels"]) for row in rows}) > 4
    assert all(4 <= token < 39 for row in rows for side in row.values() for token in side)


def wheel(folder: Path, files: dict[str, dict]) -> Path:
    path = folder / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, json.dumps(content))
    return path


def test_interface_strings_share_their_keys(tmp_path):
    files = {
        "a/translations/en.json": {"open": "Open", "deep": {"er": "Yes", "only": "English"}, "same": "Name", "number": 3},
        "a/translations/de.json": {"open": "Öffnen", "deep": {"er": "Ja"}, "same": "Name", "number": 3},
        "b/translations/en.json": {"again": "Open", "x": "No"},
        "b/translations/de.json": {"again": "Öffnen", "x": "Nein"},
        "c/translations/en.json": {"lonely": "Alone"},
        "d/other/en.json": {"x": "Elsewhere"},
        "d/other/de.json": {"x": "Anderswo"},
    }
    assert translation_text.interface_strings(wheel(tmp_path, files)) == [("Open", "Öffnen"), ("Yes", "Ja"), ("No", "Nein")]


def test_a_text_that_cannot_be_fetched_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(translation_text, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeError, match=r"pip download --no-deps --dest .*homeassistant==2024\.3\.3"):
        translation_text.translation_pairs()


def test_another_text_than_expected_is_refused(monkeypatch):
    assert len(translation_text.translation_pairs("example")) == 6
    text = translation_text.TEXTS["example"]
    monkeypatch.setitem(translation_text.TEXTS, "example", translation_text.Text(lambda: text.read()[1:], 6, text.digest))
    with pytest.raises(ValueError, match=r"5 pairs .* expected 6"):
        translation_text.translation_pairs("example")
    with pytest.raises(ValueError, match=r"'other' is not one of homeassistant, example"):
        translation_text.translation_pairs("other")


def test_documented_accumulation_table_has_every_model():
    text = (ROOT / "docs/gradient_accumulation.md").read_text(encoding="utf-8")
    assert "python benchmarks/accumulation.py" in text
    rows = re.findall(r"^\| (transformers' \w+|transduct as \w+) \|", text, flags=re.MULTILINE)
    assert rows == [f"{who} {name}" for name in accumulation.NAMES.values() for who in ("transformers'", "transduct as")]


@pytest.mark.parametrize(
    ("options", "message"), [(["--target-tokens", "33"], "multiple of 32"), (["--side", "transduct"], "go together")]
)
def test_memory_refuses_options_that_mean_nothing(options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["memory.py", *options])
    with pytest.raises(SystemExit):
        memory.parse()
    assert message in capsys.readouterr().err

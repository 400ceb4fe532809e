"""`transduct score`: what it writes, and what it refuses."""

import json
import shutil
from itertools import compress

import pytest
import torch

from tiny_translation import tiny_translation
from transduct import score
from transduct.cli.main import run
from transduct.decoding.packed import PackedLinear
from transduct.decoding.score import perplexity

SOURCES = ["abc", "", "hello there.", "x", "the end."]
TARGETS = ["cba", "", "what?", "yz yz", "no"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    for part in tiny_translation():
        part.save_pretrained(path)
    return str(path)


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "source.txt", tmp_path / "target.txt"
    for path, lines in zip(paths, (SOURCES, TARGETS), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return ["--source", str(paths[0]), "--target", str(paths[1])]


def test_scores_and_perplexity(folder, files, capsys):
    want = score(*tiny_translation(), SOURCES, TARGETS, per_token=True)
    assert run(["score", folder, *files, "--window", "2"]) == 0
    printed = capsys.readouterr()
    assert [float(line) for line in printed.out.splitlines()] == pytest.approx([each.score for each in want], abs=2e-5)
    assert printed.err == f"perplexity {perplexity(want):.4f} of the {3 + 5 + 5 + 2 + 4} tokens that this run has scored\n"


def test_a_target_that_the_model_takes_for_impossible(folder, tmp_path, capsys):
    """Its unknown token has a logarithm of -10,000, so that no float holds the perplexity."""
    (tmp_path / "lines.txt").write_text("語\n")
    assert run(["score", folder, *("--source", str(tmp_path / "lines.txt")), *("--target", str(tmp_path / "lines.txt"))]) == 0
    assert "perplexity inf of the 2 tokens" in capsys.readouterr().err


def test_the_folder_of_a_run(folder, files, tmp_path, capsys):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "recipe.yaml").write_text("output: run\n")
    assert run(["score", str(run_folder), *files]) == 2
    assert f"the run in {str(run_folder)!r} has no model yet" in capsys.readouterr().err
    shutil.copytree(folder, run_folder / "model")
    printed = []
    for name in (run_folder / "model", run_folder):
        assert run(["score", str(name), *files]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_json_and_normalisation(folder, files, tmp_path):
    output = tmp_path / "scores.jsonl"
    options = ["--normalization", "gnmt", "--length-penalty", "0.8", "--json", "--output", str(output)]
    assert run(["score", folder, *files, *options]) == 0
    want = score(*tiny_translation(), SOURCES, TARGETS, "gnmt", length_penalty=0.8, per_token=True)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    for number, (row, each) in enumerate(zip(rows, want, strict=True)):
        assert (row["index"], row["source"], row["target"]) == (number, SOURCES[number], TARGETS[number])
        assert row["score"] == pytest.approx(each.score, abs=1e-5)
        assert row["token_ids"] == list(each.token_ids)
        assert row["token_log_probs"] == pytest.approx(each.token_log_probs, abs=1e-5)


@pytest.mark.parametrize("longer", [0, 1])
def test_files_of_different_lengths(folder, files, capsys, longer):
    with open(files[1 + 2 * longer], "a") as file:
        file.write("more\n")
    assert run(["score", folder, *files]) == 2
    assert f"{files[3 - 2 * longer]} ends after 5 lines" in capsys.readouterr().err


def test_refuses(folder, files, capsys):
    with open(files[3], "ab") as file:
        file.write(b"\xff\n")
    with open(files[1], "a") as file:
        file.write("more\n")
    assert run(["score", folder, *files]) == 2
    assert f"line 6 of {files[3]} is not UTF-8" in capsys.readouterr().err
    assert run(["score", folder, *files, "--normalization", "wu"]) == 2
    assert "length_normalization='wu' must be one of" in capsys.readouterr().err


@pytest.mark.slow
def test_scores_of_the_commands_agree(tmp_path, monkeypatch):
    """`translate` computes with blocked matrices and step by step, `score` with the model's own and in one pass."""
    model, tokenizer = tiny_translation(end=3.0, d_model=512, d_ff=1024, encoder_layers=1, decoder_layers=1)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.2)  # many tokens are likely, the end among them
        # Without spaces, an output that is read again has the tokens with which it was written.
        model.lm_head.bias[tokenizer.convert_tokens_to_ids(tokenizer.tokenize(" "))] = -1e4
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    products = []
    forward = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, states: products.append(1) or forward(self, states))
    lines = [*SOURCES, "hello you there", "xyz " * 6]
    source, target, output = (tmp_path / name for name in ("source.txt", "target.txt", "out.txt"))
    source.write_text("".join(f"{line}\n" for line in lines))
    model_and_normalization = [
        str(tmp_path / "model"),
        "--normalization",
        "gnmt",
        "--length-penalty",
        "0.8",
        "--output",
        str(output),
    ]
    common = ["translate", *model_and_normalization, "--input", str(source), "--beams", "4", "--n-best", "4"]
    assert run([*common, "--scores"]) == 0
    columns = [line.split("\t") for line in output.read_text().splitlines()]
    assert run([*common, "--json"]) == 0
    written = [each for line in output.read_text().splitlines() for each in json.loads(line)["hypotheses"]]
    assert [(each["translation"], f"{each['score']:.6f}") for each in written] == [(text, value) for _, text, value in columns]
    each_source = [lines[int(number)] for number, _, _ in columns]
    ended = [len(each["translation"]) < len(line) + 50 for line, each in zip(each_source, written, strict=True)]  # not cut off
    assert len({each["translation"] for each in compress(written, ended)}) > 8
    used = len(products)
    assert used
    source.write_text("".join(f"{line}\n" for line in compress(each_source, ended)))
    target.write_text("".join(f"{each['translation']}\n" for each in compress(written, ended)))
    common = ["score", *model_and_normalization, "--source", str(source), "--target", str(target)]
    assert run(common) == 0
    scores = [float(line) for line in output.read_text().splitlines()]
    assert scores == pytest.approx([float(value) for _, _, value in compress(columns, ended)], abs=1e-5)
    assert run([*common, "--json"]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    for name in ("score", "log_prob"):
        assert [row[name] for row in rows] == pytest.approx([each[name] for each in compress(written, ended)], abs=1e-5)
    assert len(products) == used  # the model's own matrices

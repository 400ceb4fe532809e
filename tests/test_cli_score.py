"""`transduct score`: what it writes, and what it refuses."""

import json
import shutil

import pytest

from tiny_translation import tiny_translation
from transduct import score
from transduct.cli.main import run
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

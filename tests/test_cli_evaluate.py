"""`transduct evaluate`: models and recipes, tables and JSON, files of outputs, refusals."""

import json

import pytest
import yaml

import transduct
from launching import accelerate_launch
from tiny_translation import tiny_translation
from transduct.cli.main import run
from transduct.decoding.engines import MARKS
from transduct.decoding.evaluate import translating
from transduct.training.metrics import METRICS
from transduct.training.predictions import read_predictions
from transduct.training.recipe import load_recipe, note_data_folder

SOURCES = ["hello there.", "abc", "xyz? no!", "what"]
REFERENCES = [["hallo da.", "hello"], ["abc"], ["xyz", "no"], ["was"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for part in tiny_translation():
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "test.jsonl"
    rows = ({"source": source, "target": accepted} for source, accepted in zip(SOURCES, REFERENCES, strict=True))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def printed(capsys, *arguments) -> str:
    capsys.readouterr()
    assert run(["evaluate", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert "Loading" not in err  # a bar is for terminals
    return out


def fails(capsys, *arguments) -> str:
    capsys.readouterr()
    assert run(["evaluate", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_json_holds_what_python_returns(model, data, tmp_path, capsys):
    options = ["--metric", "wer", "--metric", "chrf", "--resamples", 20, "--beams", 2]
    found = json.loads(printed(capsys, model, data, "--json", "--predictions", tmp_path / "out.jsonl", *options))
    pairs = list(zip(SOURCES, REFERENCES, strict=True))
    assert found == transduct.evaluate(*tiny_translation(), pairs, ["wer", "chrf"], num_beams=2, resamples=20)
    outputs, references = read_predictions(tmp_path / "out.jsonl")
    assert references == REFERENCES
    assert outputs == transduct.translate(*tiny_translation(), SOURCES, num_beams=2)
    again = printed(capsys, data, "--hypotheses", tmp_path / "out.jsonl", "--json", *options[:-2])
    assert json.loads(again) == found


def test_the_table(model, data, tmp_path, capsys):
    hypotheses, baseline = tmp_path / "out.txt", tmp_path / "base.txt"
    hypotheses.write_text("hallo\nabc\nxyz\nwo\n")
    baseline.write_text("hallo da.\nabc\nxyz\nwas\n")
    options = ["--hypotheses", hypotheses, "--baseline", baseline, "--metric", "exact_match", "--metric", "bleu"]
    lines = printed(capsys, data, *options, "--resamples", 50).splitlines()
    assert lines[0] == "4 examples"
    assert lines[1].startswith("exact_match  0.5000 (95 %: ")
    assert ", baseline 1.0000, p = " in lines[1]
    assert lines[2].startswith(f"bleu         {METRICS['bleu'](['hallo', 'abc', 'xyz', 'wo'], REFERENCES):.2f} (95 %: ")
    assert lines[3].startswith("exact_match: nrefs:var|bs:50|seed:12345|")
    assert lines[4].startswith("bleu: nrefs:var|bs:50|seed:12345|case:mixed|eff:no|tok:13a")


def test_parallel_files(model, tmp_path, capsys):
    for name, lines in (("en", SOURCES), ("de", ["hallo da.", "abc", "xyz", "was"]), ("de2", ["hello", "", "no", ""])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = [tmp_path / name for name in ("en", "de", "de2")]
    options = ["--json", "--resamples", 0, "--metric", "wer"]
    found = json.loads(printed(capsys, model, *files, *options))
    assert found == transduct.evaluate(*tiny_translation(), list(zip(SOURCES, REFERENCES, strict=True)), ["wer"], resamples=0)
    (tmp_path / "short").write_text("a\n")
    assert "short:2: the file ends before this line" in fails(capsys, model, files[0], tmp_path / "short")


def _recipe(folder, output, **changes):
    """A recipe whose run is over."""
    values = {
        "output": str(output),
        "model": {"preset": "vaswani-base"},
        "tokenizer": {"kind": "chars"},
        "data": {
            "train": {"json": "test.jsonl"},
            "test": {"json": "test.jsonl", "source_prefix": "abc "},
            "max_source_tokens": 12,
            "truncate": "source",
        },
        "training": {"max_steps": 1},
        "evaluation": {"metrics": {"letter error": "token_error", "bleu": "bleu"}, "num_beams": 3},
    } | changes
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.fixture
def finished(model, tmp_path):
    """The output folder of a run."""
    import shutil

    output = tmp_path / "run"
    shutil.copytree(model, output / "model")
    return output


def test_a_recipe_is_evaluated_as_at_the_end_of_its_training(finished, data, tmp_path, capsys):
    from rich.console import Console

    from transduct.training.final import SavedModel, measure
    from transduct.training.recipe import load_recipe
    from transduct.training.run_data import RunData

    file = _recipe(tmp_path, finished)
    recipe = load_recipe(file)
    saved = SavedModel(finished / "model", split=recipe.data.test, max_source_tokens=12)
    test = RunData(recipe, tmp_path / "cache", 0, Console(quiet=True)).test(saved.tokenizer)
    expected, _ = measure(saved, test, recipe.evaluation, Console(quiet=True))
    found = json.loads(printed(capsys, file, "--json", "--resamples", 10))
    assert {name: values["score"] for name, values in found["metrics"].items()} == pytest.approx(expected)
    assert found == json.loads(printed(capsys, finished / "model", file, "--json", "--resamples", 10))
    assert printed(capsys, file, "--limit", 3, "--resamples", 0).startswith("3 examples\n")
    greedy = json.loads(printed(capsys, file, "--json", "--resamples", 10, "--beams", 1, "--predictions", tmp_path / "out.jsonl"))
    recipe.evaluation.num_beams = 1
    assert read_predictions(tmp_path / "out.jsonl")[0] == saved.outputs(SOURCES, recipe.evaluation, Console(quiet=True))
    by_file = printed(capsys, file, "--json", "--resamples", 10, "--hypotheses", tmp_path / "out.jsonl")
    assert json.loads(by_file) == greedy


def test_the_folder_of_a_run(finished, data, tmp_path, capsys):
    file = _recipe(tmp_path, finished)
    expected = printed(capsys, file, "--resamples", 0)
    (finished / "recipe.yaml").write_text(file.read_text())
    assert "data.test.json of " in fails(capsys, finished)
    assert printed(capsys, finished, "--data-folder", tmp_path, "--resamples", 0) == expected


def test_the_folder_of_a_run_is_a_model(finished, data, tmp_path, capsys):
    """Behind which a test set may be named, or a recipe."""
    file = _recipe(tmp_path, finished)
    (finished / "recipe.yaml").write_text(file.read_text())
    for names in ([data], [file]):
        expected = printed(capsys, finished / "model", *names, "--resamples", 0)
        assert printed(capsys, finished, *names, "--resamples", 0) == expected


def test_the_folder_of_a_run_knows_where_its_data_are(finished, data, tmp_path, capsys):
    """As its training has noted it; programs are not run because a folder says so."""
    file = _recipe(tmp_path, finished)
    expected = printed(capsys, file, "--resamples", 0)
    (finished / "recipe.yaml").write_text(file.read_text())
    note_data_folder(load_recipe(file), finished)
    assert printed(capsys, finished, "--resamples", 0) == expected
    both = tmp_path.parent / f"{tmp_path.name}-moved"
    tmp_path.rename(both)
    assert printed(capsys, both / "run", "--resamples", 0) == expected
    (both / "code.py").write_text("raise SystemExit\n")
    data = {"train": {"json": "test.jsonl"}, "test": {"function": "code.py:rows"}}
    (both / "run" / "recipe.yaml").write_text(_recipe(both, both / "run", data=data).read_text())
    assert f"data.test.function of {both}/run/recipe.yaml is a program, noted to be in {both}" in fails(capsys, both / "run")
    both.rename(tmp_path)


def test_a_run_that_was_stopped_goes_on(model, data, tmp_path, capsys, monkeypatch):
    out, want = tmp_path / "out.jsonl", tmp_path / "want.jsonl"
    options = ["--json", "--resamples", 0, "--window", 1, "--beams", 2, "--predictions"]
    expected = printed(capsys, model, data, *options, want)
    asked: list[int] = []

    def only_once_again(*arguments):
        work = translating(*arguments)

        def stops(sources, numbers):
            asked.extend(numbers)
            if len(asked) == 3:
                raise ValueError("stopped here")
            return work(sources, numbers)

        return stops

    monkeypatch.setattr("transduct.decoding.evaluate_command.translating", only_once_again)
    assert "stopped here" in fails(capsys, model, data, *options, out)
    assert "go on with --resume" in fails(capsys, model, data, *options, out)
    assert "num_beams=2, now it is 3" in fails(capsys, model, data, *options, out, "--resume", "--beams", 3)
    assert printed(capsys, model, data, *options, out, "--resume") == expected
    assert asked == [1, 2, 3, 3, 4]
    capsys.readouterr()
    assert run(["evaluate", *map(str, [model, data, *options, out, "--resume"])]) == 0  # it is whole: nothing to do
    told = capsys.readouterr()
    assert told.out == expected
    assert f"{out} is whole already: what it holds is measured" in told.err
    assert asked == [1, 2, 3, 3, 4]
    assert out.read_bytes() == want.read_bytes()
    data.write_text("\n".join(reversed(data.read_text().splitlines())))
    assert "out.jsonl holds the outputs for other examples" in fails(capsys, model, data, *options, out, "--resume")


def test_engines(model, data, tmp_path, capsys):
    large = tiny_translation(d_ff=4096)  # int8 leaves small matrices as they are
    for part in large:
        part.save_pretrained(tmp_path / "large")
    options = ["--json", "--resamples", 0, "--metric", "wer"]
    found = json.loads(printed(capsys, tmp_path / "large", data, *options, "--engine", "int8"))
    pairs = list(zip(SOURCES, REFERENCES, strict=True))
    assert found == transduct.evaluate(*large, pairs, ["wer"], resamples=0, engine="int8")
    assert "was written for no engine" in fails(capsys, model, data, *options, "--engine", "onnx")
    refused = fails(capsys, model, data, "--engine", "int8", "--dtype", "bfloat16")
    assert "--dtype bfloat16 cannot be had with --engine int8" in refused


def test_recipes_that_cannot_be_evaluated(finished, data, tmp_path, capsys):
    file = _recipe(tmp_path, finished)
    assert "prefix, tgt_lang: a recipe says how its test set is searched" in fails(
        capsys, file, "--tgt-lang", "de", "--prefix", "a"
    )
    assert "engine: a recipe says how its test set is searched" in fails(capsys, file, "--engine", "int8")
    assert "--source-field, --split: a recipe says where its texts are" in fails(
        capsys, file, "--source-field", "en", "--split", "dev", "--limit", 2
    )
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / MARKS["ctranslate2"]).touch()
    assert f"{tmp_path}/fast was written for ctranslate2, but the search of a recipe needs a model of torch" in fails(
        capsys, tmp_path / "fast", file
    )
    out = tmp_path / "out.txt"
    out.write_text("a\n" * len(SOURCES))
    for names in ([finished / "model", file], [file, data], [finished / "model", data]):
        told = " ".join(map(str, names))
        assert f"{told}: with --hypotheses there is no MODEL" in fails(capsys, *names, "--hypotheses", out)
    assert printed(capsys, file, "--hypotheses", out, "--data-folder", tmp_path, "--resamples", 0).startswith("4 examples")
    assert "is the recipe trained to its end?" in fails(capsys, _recipe(tmp_path, tmp_path / "elsewhere"))
    assert "has no test set (data.test)" in fails(capsys, _recipe(tmp_path, finished, data={"train": {"json": "test.jsonl"}}))
    denoising = dict(objective={"name": "span_corruption"}, data={"train": {"text": "x.txt"}})
    assert "span_corruption makes no texts of texts" in fails(capsys, _recipe(tmp_path, finished, **denoising))


def test_refusals(model, data, tmp_path, capsys):
    out = tmp_path / "out.txt"
    out.write_text("a\n")
    for arguments, message in (
        ([model], "name the test set behind the model"),
        ([model, data, "--metric", "blue"], "metric 'blue' is unknown; choose one of token_error"),
        ([model, data, "--dtype", "int8"], "--dtype 'int8' must be one of float32"),
        ([model, data, "--data-folder", "x"], "--data-folder 'x' belongs to a recipe"),
        ([model, tmp_path / "nothing.jsonl"], "nothing.jsonl"),
        ([tmp_path / "nothing", data], "there is no folder"),
        ([model, out], "is a file of no known format"),
        ([data, "--hypotheses", out], "out.txt has 1 outputs, but there are 4 examples"),
        ([model, data, "--baseline", out], "out.txt has 1 outputs, but there are 4 examples"),
        ([data, "--hypotheses", out, "--predictions", "x"], "--predictions would be the --hypotheses again"),
        ([data, "--hypotheses", out, "--engine", "onnx"], "--engine onnx: with --hypotheses nothing is searched"),
        ([data, "--hypotheses", out, "--dtype", "bfloat16", "--window", "3"], "--dtype bfloat16, --window 3: with --hypotheses"),
        ([data, "--hypotheses", out, "--data-folder", "x"], "--data-folder 'x' belongs to a recipe"),
        ([model, data, "--predictions", data], f"--predictions {data} is {data}, which is read: name another file"),
        ([model, data, "--baseline", out, "--predictions", out], f"--predictions {out} is {out}, which is read"),
        ([model, data, "--resume"], "--resume belongs to --predictions"),
        ([data, "--hypotheses", out, "--beams", "2"], "num_beams: with --hypotheses nothing is searched"),
        ([model, data, "--source-field", "en"], "no key 'en'"),
        ([model, data, "--beams", "0"], "num_beams=0 must be a whole number of at least 1"),
    ):
        assert message in fails(capsys, *arguments)


@pytest.mark.slow
def test_two_processes_share_the_examples(model, data, tmp_path, capsys):
    options = ["--json", "--resamples", "10", "--metric", "wer", "--predictions"]
    command = ["-m", "transduct.cli.main", "evaluate", str(model), str(data), *options, str(tmp_path / "two.jsonl")]
    done = accelerate_launch(*command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == printed(capsys, model, data, *options, tmp_path / "one.jsonl")  # once, by the main process
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()

"""`transduct translate`: lines in, lines out, in order, by one process or two, however often it is killed."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from launching import launch
from tiny_translation import LETTERS, TEXTS, tiny_translation
from transduct import TransductTokenizer, translate
from transduct.cli.main import run
from transduct.decoding import int8, int8_copy
from transduct.decoding.commands import vocabularies

LINES = [f"{text.strip()} {number}" if text.strip() else "" for number, text in enumerate(TEXTS * 3)]
QUICK = ["--beams", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model whose translations end soon."""
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = tiny_translation(end=2.0)
    model.generation_config.max_new_tokens = 12
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def wanted():
    model, tokenizer = tiny_translation(end=2.0)
    return translate(
        model,
        tokenizer,
        LINES,
        num_beams=2,
        max_new_tokens=12,
        num_return_sequences=2,
        return_scores=True,
        return_alignments=True,
    )


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(path)


def written(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


# ---- what is written ----------------------------------------------------------------------------------------------
def test_from_standard_input_to_standard_output(folder, wanted, monkeypatch, capsys):
    data = "\r\n".join(LINES).encode()  # without a line break at the end
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run(["translate", folder, *QUICK, "--window", "5"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split("\n")[:-1] == [best.text for best, _ in wanted]
    assert [line == "" for line in printed.out.split("\n")[:-1]] == [line == "" for line in LINES]
    assert "translat" not in printed.err  # no bar where there is no terminal


def test_columns(folder, wanted, source, tmp_path):
    output = tmp_path / "out.txt"
    arguments = ["translate", folder, "--input", source, "--output", str(output), *QUICK]
    assert run([*arguments, "--n-best", "2", "--scores", "--alignments", "words"]) == 0
    rows = [line.split("\t") for line in written(output)]
    assert [int(number) for number, *_ in rows] == [number for number in range(len(LINES)) for _ in range(2)]
    for (_, text, score, alignment), want in zip(rows, (each for row in wanted for each in row), strict=True):
        assert text == want.text
        assert float(score) == pytest.approx(want.score, abs=1e-5)
        assert alignment == " ".join(f"{one}-{other}" for one, other in want.alignment)
    assert run([*arguments, "--scores"]) == 0
    assert [line.split("\t")[0] for line in written(output)] == [best.text for best, _ in wanted]


def test_json(folder, wanted, source, tmp_path):
    output = tmp_path / "out.jsonl"
    arguments = ["translate", folder, "--input", source, "--output", str(output), *QUICK, "--json"]
    assert run(arguments) == 0
    for number, (line, (best, _)) in enumerate(zip(map(json.loads, written(output)), wanted, strict=True)):
        assert (line["index"], line["source"], line["translation"]) == (number, LINES[number], best.text)
        assert line["score"] == pytest.approx(best.score, abs=1e-5)
        assert set(line) == {"index", "source", "translation", "score", "log_prob"}
    assert run([*arguments, "--n-best", "2", "--alignments", "tokens"]) == 0
    for line, row in zip(map(json.loads, written(output)), wanted, strict=True):
        assert [each["translation"] for each in line["hypotheses"]] == [each.text for each in row]
        assert all("alignment" in each for each in line["hypotheses"])


def test_options_reach_the_search(folder, source, tmp_path):
    model, tokenizer = tiny_translation(end=2.0)
    output = tmp_path / "out.txt"
    arguments = ["translate", folder, "--input", source, "--output", str(output), "--scores"]
    more = ["--beams", "3", "--normalization", "gnmt", "--length-penalty", "0.9", "--coverage-penalty", "0.2", "--prefix", "a. "]
    assert run([*arguments, *more, "--split-sentences"]) == 0
    options = dict(num_beams=3, length_normalization="gnmt", length_penalty=0.9, coverage_penalty=0.2, prefix="a. ")
    options |= dict(split_sentences=True, max_new_tokens=12, return_scores=True)
    want = translate(model, tokenizer, LINES, **options)
    assert [line.split("\t")[0] for line in written(output)] == [each.text for each in want]
    assert [float(line.split("\t")[1]) for line in written(output)] == pytest.approx([each.score for each in want], abs=1e-5)


# ---- bad input ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b"good\nb\xffd\n", [], "line 2 of {source} is not UTF-8: byte 0xff at its byte 2"),
        (b"good\nb\0d\n", [], "line 2 holds a NUL character"),
        (b"good\n" + b"x" * 10_000 + b"\n", ["--max-source-length", "500"], "line 2 has 10001 tokens, more than the 500"),
        (b"good\n", ["--beams", "0"], "num_beams=0 must be a whole number of at least 1"),
        (b"good\n", ["--beams", "2", "--n-best", "3"], "num_return_sequences=3 must not exceed num_beams=2"),
        (b"good\n", ["--tgt-lang", "de"], "tgt_lang='de': this model and its tokenizer know none"),
        (b"good\n", ["--dtype", "int4"], "--dtype 'int4' must be one of float32, bfloat16, float16"),
        (b"good\n", ["--dtype", "bfloat16", "--engine", "int8"], "--dtype bfloat16 cannot be had with --engine int8"),
        (b"good\n", ["--engine", "int4"], "engine='int4' must be one of ctranslate2, onnx, int8"),
        (b"good\n", ["--alignments", "lines"], "alignments='lines' must be"),
        (b"good\n", ["--window", "0"], "window=0 must be a whole number of at least 1"),
        (b"good\n", ["--long", "cut"], "long='cut' must be"),
    ],
)
def test_bad_input_is_named_in_one_line(folder, tmp_path, capsys, data, options, message):
    path = tmp_path / "in.txt"
    path.write_bytes(data)
    assert run(["translate", folder, "--input", str(path), *options]) == 2
    printed = capsys.readouterr()
    assert message.format(source=path) in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_files_that_are_not_there(folder, tmp_path, capsys):
    assert run(["translate", folder, "--input", str(tmp_path / "none")]) == 2
    assert run(["translate", str(tmp_path / "none")]) == 2
    assert run(["translate", folder, "--resume"]) == 2
    assert run(["translate", "runs/no/model"]) == 2
    assert run(["translate", "runs/no"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "No such file" in errors[0]
    assert "there is no folder" in errors[1]
    assert "--resume belongs to --output" in errors[2]
    assert "there is no folder 'runs/no/model'" in errors[3]
    assert "'runs/no' is no folder here, and the Hub does not give it: " in errors[4]


def test_an_output_does_not_take_the_place_of_what_is_read(folder, source, tmp_path, capsys):
    os.link(source, tmp_path / "same")
    for options in (["--input", source], ["--input", str(tmp_path / "other"), "--phrases", source]):
        for output in (source, str(tmp_path / "same")):
            assert run(["translate", folder, *options, "--output", output, "--resume"]) == 2
            assert f"--output {output} is {source}, which is read: name another file" in capsys.readouterr().err
    assert run(["translate", folder, "--input", source, "--output", str(tmp_path)]) == 2
    assert "is no file that could be replaced" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.txt", "same"]


@pytest.mark.slow
def test_lines_come_out_while_others_go_in(folder, wanted):
    """Through pipes, in UTF-8 whatever the terminal speaks; nothing waits for the end of the input."""
    command = [sys.executable, "-m", "transduct.cli.main", "translate", folder, *QUICK, "--window", "1"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parent.parent)}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with subprocess.Popen(command, env=environment, **pipes) as program:
        for line, (best, _) in zip(LINES[:3], wanted, strict=False):
            program.stdin.write(f"{line}\n".encode())
            program.stdin.flush()
            assert program.stdout.readline().decode() == f"{best.text}\n"
        assert program.communicate()[0] == b""
        assert program.returncode == 0


def test_what_comes_before_a_bad_line_is_kept_and_a_mended_file_goes_on(folder, wanted, tmp_path):
    path, output = tmp_path / "in.txt", tmp_path / "out.txt"
    encoded = [line.encode() for line in LINES]
    path.write_bytes(b"\n".join([*encoded[:9], b"\xff", *encoded[10:]]))
    arguments = ["translate", folder, "--input", str(path), "--output", str(output), *QUICK, "--window", "4"]
    assert run(arguments) == 2
    assert not output.exists()
    assert written(tmp_path / "out.txt.part") == [best.text for best, _ in wanted[:8]]
    assert run(arguments) == 2  # it is not begun anew unasked
    path.write_bytes(b"\n".join(encoded))
    assert run([*arguments, "--resume"]) == 0
    assert written(output) == [best.text for best, _ in wanted]
    assert run([*arguments, "--resume"]) == 0  # it is whole: nothing to do
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.txt", "out.txt"]


# ---- killed -------------------------------------------------------------------------------------------------------
def in_a_child(arguments: list[str], wait: Callable[[], None] | None) -> bool:
    """Run the command in a process of its own, and kill that after `wait`; whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run(arguments)
        finally:
            os._exit(code)
    if wait is not None:
        wait()
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


@pytest.mark.slow
@pytest.mark.parametrize("n_best", [1, 2])
def test_killed_at_any_time_it_goes_on_without_a_gap_or_a_double(folder, wanted, source, tmp_path, n_best):
    output = tmp_path / "out.txt"
    part, journal = tmp_path / "out.txt.part", tmp_path / "out.txt.part.journal"
    arguments = ["translate", folder, "--input", source, "--output", str(output), *QUICK]
    arguments += ["--n-best", str(n_best), "--window", "2", "--resume"]
    want = [f"{number}\t{each.text}" if n_best > 1 else each.text for number, row in enumerate(wanted) for each in row[:n_best]]
    whole = "".join(f"{line}\n" for line in want).encode()
    generator = random.Random(n_best)
    begun = time.monotonic()
    in_a_child([*arguments[:5], str(tmp_path / "other.txt"), *arguments[6:]], None)
    usual = time.monotonic() - begun

    def until_something_is_done() -> None:
        while not journal.exists() or journal.read_text().count("\n") < 3:
            time.sleep(0.001)

    waits = [until_something_is_done] + [lambda: time.sleep(generator.uniform(0.1, 1.0) * usual)] * 5
    finished = False
    while not finished:
        finished = in_a_child(arguments, waits.pop(0) if waits else None)
        if not finished and journal.exists():
            entries = journal.read_text().splitlines()[1:]
            size = json.loads(entries[-1])["bytes"] if entries and entries[-1].endswith("}") else 0
            assert whole.startswith(part.read_bytes()[:size])
            assert not size or whole[:size].endswith(b"\n")
    assert output.read_bytes() == whole
    assert (tmp_path / "other.txt").read_bytes() == whole


# ---- several processes --------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_two_processes_share_the_lines(folder, source, tmp_path):
    """Each with the number that it has in the file, on which samples depend; also where a run goes on."""
    output, alone = tmp_path / "out.txt", tmp_path / "alone.txt"
    command = ["-m", "transduct.cli.main", "translate", folder, "--input", source, "--sample", "--window", "5"]
    assert run([*command[2:], "--output", str(alone)]) == 0
    good = Path(source).read_bytes()
    Path(source).write_bytes(good.replace(LINES[11].encode(), b"\xff"))
    assert run([*command[2:], "--output", str(output)]) == 2
    assert len(written(tmp_path / "out.txt.part")) == 10
    Path(source).write_bytes(good)
    done = launch(*command, "--output", str(output), "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    assert written(output) == written(alone)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\ntwo\nthr\0ee\nfour\n")
    done = launch(*command[:4], "--input", str(bad), *QUICK)
    assert done.returncode != 0
    assert "line 3 holds a NUL character" in done.stderr


# ---- other searches -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def another(tmp_path_factory):
    """A second model of the same vocabulary."""
    path = tmp_path_factory.mktemp("another")
    tiny_translation(seed=9)[0].save_pretrained(path)
    tiny_translation()[1].save_pretrained(path)
    return str(path)


def test_searches_of_the_command_are_those_of_the_function(folder, another, source, tmp_path, monkeypatch):
    monkeypatch.setattr(int8, "SMALLEST", 1)  # so that even a tiny model has int8 matrices
    model, tokenizer = tiny_translation(end=2.0)
    model.generation_config.max_new_tokens = 12
    smaller = tiny_translation(seed=9)[0]
    searches: list[tuple[list[str], dict]] = [
        (["--ensemble", another], {"ensemble": [smaller]}),
        (
            ["--beams", "4", "--beam-groups", "2", "--diversity-penalty", "2"],
            dict(num_beams=4, beam_groups=2, diversity_penalty=2.0),
        ),
        (
            ["--sample", "--top-k", "0", "--temperature", "1.5", "--seed", "3"],
            dict(do_sample=True, top_k=0, temperature=1.5, seed=3),
        ),
        (["--minimum-bayes-risk", "chrf", "--num-samples", "5"], dict(minimum_bayes_risk="chrf", num_samples=5)),
        (["--draft", "source"], dict(drafts=True)),
        (["--draft", another], dict(drafts=smaller)),
        (["--engine", "int8"], dict(engine="int8")),
        (["--engine", "int8", "--ensemble", another], dict(engine="int8", ensemble=[int8_copy(smaller)])),
    ]
    for number, (arguments, options) in enumerate(searches):
        output = tmp_path / f"{number}.txt"
        assert run(["translate", folder, "--input", source, "--output", str(output), *arguments]) == 0
        assert written(output) == translate(model, tokenizer, LINES, **options)


def test_models_of_another_vocabulary_do_not_vote(folder, source, tmp_path, capsys):
    """Though it has as many tokens."""
    model, _ = tiny_translation(seed=9)
    model.save_pretrained(tmp_path / "other")
    TransductTokenizer.train(iter([LETTERS.replace("a", "ä")]), kind="chars").save_pretrained(tmp_path / "other")
    assert run(["translate", folder, "--input", source, "--ensemble", str(tmp_path / "other")]) == 2
    assert f"--ensemble {tmp_path / 'other'} has another vocabulary than {folder}" in capsys.readouterr().err


def test_the_vocabularies_of_both_sides(folder):
    one = tiny_translation()[1]
    assert vocabularies(one) == [one.get_vocab()] * 2
    two = TransductTokenizer.train(iter(["abc"]), kind="chars", target=iter(["xy"]))
    source, target = vocabularies(two)
    assert "a" in source
    assert "x" not in source
    assert "x" in target
    assert vocabularies(AutoTokenizer.from_pretrained(folder)) == vocabularies(one)


def test_phrases_and_prefixes_of_files(folder, source, tmp_path, capsys):
    phrases = [["not", "q"][: number % 3] if line else [] for number, line in enumerate(LINES)]
    prefixes = ["ab" if line and number % 2 else "" for number, line in enumerate(LINES)]
    (tmp_path / "phrases").write_text("".join("\t".join(own) + "\n" for own in phrases))
    (tmp_path / "prefixes").write_text("".join(f"{prefix}\n" for prefix in prefixes))
    arguments = ["translate", folder, "--input", source, *QUICK, "--window", "5", "--phrases", str(tmp_path / "phrases")]
    output = tmp_path / "out.txt"
    assert run([*arguments, "--target-prefixes", str(tmp_path / "prefixes"), "--output", str(output)]) == 0
    model, tokenizer = tiny_translation(end=2.0)
    options = dict(num_beams=2, max_new_tokens=12, phrases=phrases, target_prefixes=prefixes)
    assert written(output) == translate(model, tokenizer, LINES, **options)
    for text, own, prefix in zip(written(output), phrases, prefixes, strict=True):
        assert text.startswith(prefix)
        assert all(phrase in text for phrase in own)
    assert run([*arguments, "--json", "--ordered-phrases", "--output", str(tmp_path / "out.jsonl")]) == 0
    rows = [json.loads(line) for line in written(tmp_path / "out.jsonl")]
    assert [row["source"] for row in rows] == LINES
    assert all("q" in row["translation"].partition("not")[2] for row, own in zip(rows, phrases, strict=True) if len(own) == 2)
    (tmp_path / "phrases").write_text("not\n")
    assert run([*arguments, "--output", str(tmp_path / "other.txt")]) == 2
    assert f"{tmp_path / 'phrases'} ends after 1 lines" in capsys.readouterr().err


def test_options_of_samples_alone_are_refused(folder, source, capsys):
    assert run(["translate", folder, "--input", source, "--top-p", "0.9"]) == 2
    assert "--top-p 0.9 belongs to --sample or --minimum-bayes-risk" in capsys.readouterr().err

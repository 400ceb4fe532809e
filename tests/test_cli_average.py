"""`transduct average`: what it averages, what it prints, and what it refuses."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import transduct
from tiny_training import tiny_model
from transduct.cli.main import run
from transduct.tokenization import TransductTokenizer
from transduct.training.checkpoints import OffSchedule

LOSSES = {10: 2.0, 20: 3.0, 30: 2.5}


@pytest.fixture
def a_run(tmp_path):
    """The output folder of a run of `transduct train` with three checkpoints."""
    folder = tmp_path / "run"
    tokenizer = TransductTokenizer.train(["ab ba", "abc"], kind="chars")
    for step in LOSSES:
        checkpoint = folder / "checkpoints" / f"checkpoint-{step}"
        tiny_model(seed=step).save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({}, checkpoint / name)
        log = [{"step": at, "eval_loss": loss, "eval_score": loss} for at, loss in LOSSES.items()]
        (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": log, "global_step": step}))
    return folder


def mean_of(a_run, *steps):
    tensors = [load_file(a_run / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in steps]
    return {name: torch.stack([each[name].double() for each in tensors]).mean(0).float() for name in tensors[0]}


def assert_written(output, expected):
    transduct.register()
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    for name, tensor in model.state_dict().items():
        if name in expected:
            assert torch.equal(tensor, expected[name])
    assert AutoTokenizer.from_pretrained(output)("ab")["input_ids"]
    assert not (output / "optimizer.pt").exists()


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--last", "2"], (20, 30)),
        (["--best", "2", "--metric", "eval_loss"], (10, 30)),
        (["--best", "1", "--metric", "score"], (20,)),
        (["--best", "1", "--metric", "score", "--better", "lower"], (10,)),
    ],
)
def test_of_a_run(a_run, tmp_path, capsys, options, steps):
    output = tmp_path / "average"
    assert run(["average", str(a_run), *options, "--output", str(output)]) == 0
    assert_written(output, mean_of(a_run, *steps))
    printed = capsys.readouterr().out
    assert [step for step in LOSSES if f"checkpoint-{step}" in printed] == list(steps)
    assert f"the mean of these {len(steps)} is in {output}" in printed
    assert ("score 3.0000" in printed) == ("score" in options and steps == (20,))


def test_of_checkpoints_by_name(a_run, tmp_path, capsys):
    output = tmp_path / "average"
    chosen = [str(a_run / "checkpoints" / f"checkpoint-{step}") for step in (10, 20)]
    assert run(["average", *chosen, "--output", str(output)]) == 0
    assert_written(output, mean_of(a_run, 10, 20))
    assert capsys.readouterr().out.splitlines()[:2] == chosen


def test_what_a_stop_wrote_is_left_out_unless_it_is_named(a_run, tmp_path, capsys):
    stopped = a_run / "checkpoints" / "checkpoint-20"
    OffSchedule(ended=False).write(stopped)
    assert run(["average", str(a_run), "--last", "2", "--output", str(tmp_path / "average")]) == 0
    assert_written(tmp_path / "average", mean_of(a_run, 10, 30))
    assert capsys.readouterr().err.startswith(f"{stopped} is left out: a stop wrote it")
    named = [str(stopped), str(a_run / "checkpoints" / "checkpoint-30")]
    assert run(["average", *named, "--output", str(tmp_path / "named")]) == 0
    assert "left out" not in capsys.readouterr().err
    assert_written(tmp_path / "named", mean_of(a_run, 20, 30))


def test_a_tokenizer_of_two_vocabularies_comes_along(a_run, tmp_path):
    tokenizer = TransductTokenizer.train(["ab ba"], target=["x y z"], kind="chars")
    for step in LOSSES:
        tokenizer.save_pretrained(a_run / "checkpoints" / f"checkpoint-{step}")
    output = tmp_path / "average"
    assert run(["average", str(a_run), "--last", "2", "--output", str(output)]) == 0
    loaded = AutoTokenizer.from_pretrained(output)
    assert loaded(text_target="x z")["input_ids"] == tokenizer(text_target="x z")["input_ids"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "is no checkpoint: for a run, say --last N"),
        (["--last", "1", "--best", "1", "--metric", "loss"], "exclude each other"),
        (["--best", "1"], "--best and --metric belong together"),
        (["--last", "1", "--metric", "loss"], "--best and --metric belong together"),
        (["--last", "1", "--better", "lower"], "belongs to --best"),
        (["--best", "1", "--metric", "loss", "--better", "most"], "'most' must be 'higher' or 'lower'"),
        (["--last", "7"], "7 checkpoints are to be averaged"),
        (["--last", "0"], "0 checkpoints are to be averaged"),
    ],
)
def test_refuses(a_run, tmp_path, capsys, options, message):
    assert run(["average", str(a_run), *options, "--output", str(tmp_path / "average")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "average").exists()


def test_refuses_folders_that_do_not_fit(a_run, tmp_path, capsys):
    assert run(["average", str(tmp_path / "nothing"), "--last", "1", "--output", str(tmp_path / "average")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run(["average", str(a_run), str(a_run), "--last", "1", "--output", str(tmp_path / "average")]) == 2
    assert "2 folders are given" in capsys.readouterr().err
    assert run(["average", str(a_run), "--last", "1", "--output", str(a_run)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_json(a_run, tmp_path, capsys):
    OffSchedule(ended=False).write(a_run / "checkpoints" / "checkpoint-30")
    output = tmp_path / "average"
    assert run(["average", str(a_run), "--best", "2", "--metric", "eval_loss", "--output", str(output), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    checkpoints = a_run / "checkpoints"
    assert found["output"] == str(output)
    assert found["averaged"] == [
        {"checkpoint": str(checkpoints / f"checkpoint-{step}"), "eval_loss": LOSSES[step]} for step in (10, 20)
    ]
    assert found["left_out"] == [str(checkpoints / "checkpoint-30")]
    assert_written(output, mean_of(a_run, 10, 20))
    assert (
        run(["average", *(str(checkpoints / f"checkpoint-{step}") for step in LOSSES), "--output", f"{output}2", "--json"]) == 0
    )
    assert len(json.loads(capsys.readouterr().out)["averaged"]) == 3

"""A whole run, from a recipe to a folder that anybody can load, over several starts."""

import json
import logging
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from transduct.files import reserved
from transduct.training.arguments import TransductTrainingArguments
from transduct.training.averaging import average_checkpoints
from transduct.training.building import build_arguments
from transduct.training.checkpoints import checkpoint_step, list_checkpoints
from transduct.training.recipe import build_recipe, load_recipe, noted_data_folder
from transduct.training.run import _written, is_over, run

ROOT = Path(__file__).parents[1]
WORDS = ["abc", "bca", "cab", "aab", "bba", "cca", "abcab", "bcc", "ca", "ab"]


def raw_recipe(folder: Path, **training) -> dict:
    """Letters to the same letters in capitals, apart by spaces."""
    lines = [json.dumps({"source": word, "target": [" ".join(word.upper())]}) for word in WORDS]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    options = dict(
        max_steps=12,
        max_tokens_per_batch=40,
        schedule="constant",
        learning_rate=0.01,
        use_cpu=True,
        logging_steps=4,
        save_steps=4,
    )
    return {
        "output": str(folder / "out"),
        "threads": 1,
        "model": dict(preset="vaswani-base", d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1,
                      tie_embeddings="target_output"),
        "tokenizer": {"kind": "chars", "target_kind": "words", "separate_vocabularies": True},
        "data": {name: {"json": "pairs.jsonl"} for name in ("train", "validation", "test")},
        "training": {**options, **training},
        "evaluation": dict(metrics={"phoneme error": "token_error", "word error": "sequence_error"}, num_beams=2, inputs=["cb"]),
    }  # fmt: skip


def start(folder: Path, change=None, console: Console | None = None, **options):
    raw = raw_recipe(folder)
    if change is not None:
        change(raw)
    recipe = build_recipe(raw)
    recipe.folder = folder
    return run(recipe, console=console or Console(quiet=True), **options)


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in AutoModelForSeq2SeqLM.from_pretrained(folder).parameters()])


def test_from_a_recipe_to_a_model_that_loads(tmp_path, capsys):
    outcome = start(tmp_path, lambda raw: raw["training"].update(eval_strategy="steps", eval_steps=6), Console())
    out = tmp_path / "out"
    assert outcome.finished
    assert set(outcome.metrics) == {"phoneme error", "word error"}
    note = json.loads((out / "metrics.json").read_text())
    assert set(note.pop("signatures")) == set(outcome.metrics)
    assert note == {"metrics": outcome.metrics, "examples": 10, "steps": 12}
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(out / "model"), AutoTokenizer.from_pretrained(out / "model")
    assert model.generation_config.num_beams == 2
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (len(tokenizer), tokenizer.decoder_vocab_size) == (6, 6)
    assert model.generate(**tokenizer("abc", return_tensors="pt")).shape[0] == 1
    report = (out / "training_report.html").read_text(encoding="utf-8")
    for text in ("12 steps", "phoneme error", "learning rate", "preset: vaswani-base", "TransductForConditionalGeneration"):
        assert text in report
    printed = capsys.readouterr().out
    for text in ("train: 10 sources, 10 pairs", "validation: loss", "saved to", "test: phoneme error", "cb ->", "abc ->"):
        assert text in printed


@pytest.mark.parametrize("fresh", [False, True])
def test_two_runs_do_not_share_a_folder(tmp_path, monkeypatch, fresh):
    start(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr("transduct.training.run.reserved", partial(reserved, seconds=0))
    with reserved(tmp_path / "out"), pytest.raises(ValueError, match="out is being written by another process"):
        start(tmp_path, fresh=fresh)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    start(tmp_path, fresh=fresh)


def test_the_note_holds_what_the_recipe_says_and_no_more(tmp_path):
    start(tmp_path, lambda raw: raw["training"].update(max_steps=1))
    raw = raw_recipe(tmp_path, max_steps=1)
    assert yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text()) == raw
    assert noted_data_folder(tmp_path / "out") == tmp_path.resolve()
    assert build_recipe(raw) == build_recipe(yaml.safe_load(_written(build_recipe(raw))))


def test_a_second_start_only_evaluates(tmp_path, capsys):
    first = start(tmp_path)
    before = weights(tmp_path / "out" / "model")
    assert start(tmp_path, console=Console(width=300)) == first
    printed = capsys.readouterr().out
    assert "nothing is left to train" in printed
    assert "training." not in printed  # no setting has changed
    assert torch.equal(weights(tmp_path / "out" / "model"), before)


def test_more_steps_go_on_and_equal_a_straight_run(tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    (tmp_path / "twice").mkdir(), (tmp_path / "once").mkdir()
    start(tmp_path / "twice")
    start(tmp_path / "twice", lambda raw: raw["training"].update(max_steps=20), Console(width=300))
    printed = capsys.readouterr().out
    assert "going on from" in printed
    assert printed.startswith("training.max_steps was 12 at the last start, and is 20\n")
    assert not [record.getMessage() for record in caplog.records if "missing keys" in record.getMessage()]
    start(tmp_path / "once", lambda raw: raw["training"].update(max_steps=20))
    assert torch.equal(weights(tmp_path / "twice/out/model"), weights(tmp_path / "once/out/model"))


def test_a_half_written_checkpoint_is_left_out(tmp_path, capsys):
    start(tmp_path, lambda raw: raw["training"].update(max_steps=8, save_strategy="steps"))
    checkpoints = tmp_path / "out" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint-4", "checkpoint-8"]
    (checkpoints / "checkpoint-8" / "optimizer.pt").write_bytes(b"PK")
    start(tmp_path, console=Console(width=300))
    printed = capsys.readouterr().out
    assert "checkpoint-8 is damaged (optimizer.pt is cut short): it is now damaged-checkpoint-8" in printed
    assert "going on from" in printed
    (tmp_path / "straight").mkdir()
    start(tmp_path / "straight")
    assert torch.equal(weights(tmp_path / "out/model"), weights(tmp_path / "straight/out/model"))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path, fresh):
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "data" / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"out holds data, but no recipe\.yaml of a run"):
        start(tmp_path, fresh=fresh)
    assert (tmp_path / "out" / "data" / "mine.txt").is_file()


def test_another_model_in_the_folder_is_refused(tmp_path):
    start(tmp_path)
    with pytest.raises(ValueError, match="holds a run with another model"):
        start(tmp_path, lambda raw: raw["model"].update(d_ff=32))
    (tmp_path / "out" / "mine.txt").touch()
    assert (tmp_path / "out" / "metrics.json").is_file()
    assert start(tmp_path, lambda raw: (raw["model"].update(d_ff=32), raw["data"].pop("test")), fresh=True).finished
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "model").config.d_ff == 32
    assert not (tmp_path / "out" / "metrics.json").exists()  # it was of the run before
    assert (tmp_path / "out" / "mine.txt").is_file()


def test_an_average_does_not_outlive_its_run(tmp_path):
    start(tmp_path)
    average_checkpoints(list_checkpoints(tmp_path / "out" / "checkpoints")[-1:], tmp_path / "out" / "mean")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"mean is a mean of the run that --fresh deletes: move it out of .*out, or delete it"):
        start(tmp_path, fresh=True)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "out" / "mean").rename(tmp_path / "mean")
    assert start(tmp_path, fresh=True).finished


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimizer": "adafactor"}, "another training.optimizer: None, not 'adafactor'"),
        ({"freeze": ["encoder"]}, "another training.freeze: None, not"),
        ({"lora": {"rank": 2}}, "another training.lora: None, not"),
        ({"ema_decay": 0.9}, "another training.ema_decay: None, not 0.9"),
    ],
)
def test_other_weights_or_another_optimizer_cannot_go_on(tmp_path, training, message):
    (tmp_path / "out" / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    recipe = build_recipe(raw_recipe(tmp_path))
    (tmp_path / "out" / "recipe.yaml").write_text(_written(recipe))
    with pytest.raises(ValueError, match=message):
        start(tmp_path, lambda raw: raw["training"].update(training))


def test_a_default_may_be_given_or_not(tmp_path):
    defaults = {
        "training": {"optim": TransductTrainingArguments.optim, "freeze": None},
        "tokenizer": {"languages": [], "extra_ids": 0, "texts": None},
        "model": {"dropout": 0.1, "positions": "sinusoidal"},
        "data": {"buffer_rows": 16_384},
    }

    def explicit(raw):
        for section, values in defaults.items():
            raw[section].update(values)

    for change in (None, explicit, None):
        assert start(tmp_path, change).finished
    with pytest.raises(ValueError, match=r"another training\.optim: None, not 'sgd'"):
        start(tmp_path, lambda raw: raw["training"].update(optim="sgd"))


def test_what_the_recipe_reads_is_not_overwritten(tmp_path):
    raw = raw_recipe(tmp_path)
    own = tmp_path / "out" / "recipe.yaml"
    own.parent.mkdir()
    own.write_text("# mine\n" + yaml.safe_dump(raw))
    for fresh in (False, True):
        with pytest.raises(ValueError, match=r"recipe\.yaml is the recipe itself"):
            run(load_recipe(own), fresh=fresh)
    assert own.read_text().startswith("# mine")
    own.write_text("")
    for section, name in (("model", "model"), ("tokenizer", "checkpoints/checkpoint-3")):
        raw = {**raw_recipe(tmp_path), section: {"from_pretrained": str(tmp_path / "out" / name)}}
        with pytest.raises(ValueError, match=rf"{section}\.from_pretrained=.* lies in .*out.*, where the run writes"):
            run(build_recipe(raw), fresh=True)


def test_a_note_that_was_cut_is_named(tmp_path):
    note = tmp_path / "out" / "recipe.yaml"
    note.parent.mkdir()
    for text in ("", "output: [x"):
        note.write_text(text)
        with pytest.raises(ValueError, match=r"out/recipe\.yaml is not what a run has noted"):
            start(tmp_path)


@pytest.mark.parametrize(
    "training", [{"num_train_epochs": 0}, {"max_steps": 2, "per_device_train_batch_size": 99, "dataloader_drop_last": True}]
)
def test_a_run_without_a_step_saves_no_model(tmp_path, training):
    def change(raw):
        for name in ("max_steps", "max_tokens_per_batch"):
            raw["training"].pop(name)
        raw["training"].update(training)

    with pytest.raises(ValueError, match="nothing was trained"):
        start(tmp_path, change)
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("packing", [False, True])
def test_a_pair_that_fits_into_no_batch_is_named_by_its_line(tmp_path, packing):
    with pytest.raises(ValueError, match=r"pairs\.jsonl:7: the pair has 6 source and 6 target tokens, more than a batch of 11"):
        start(tmp_path, lambda raw: raw["training"].update(max_tokens_per_batch=11, packing=packing))


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"lora": {"rank": 0}}, r"^training\.lora\.rank=0 must be"),
        ({"freeze": ["encodr"]}, r"^training\.freeze"),
        (
            {"max_tokens_per_batch": "auto", "packing": True, "optimizer": "adam", "optim": "sgd"},
            r"^training\.optimizer='adam' and",
        ),
    ],
)
def test_errors_of_training_have_their_path(tmp_path, training, message):
    with pytest.raises(ValueError, match=message):
        start(tmp_path, lambda raw: raw["training"].update(training))


def test_a_tokenizer_that_was_cut_is_named(tmp_path):
    start(tmp_path, lambda raw: raw["training"].update(max_steps=1))
    (tmp_path / "out" / "tokenizer" / "tokenizer.json").write_text("")
    with pytest.raises(ValueError, match=r"the run's tokenizer in .*tokenizer cannot be read"):
        start(tmp_path)


def test_minutes_for_a_run_that_had_no_schedule(tmp_path):
    start(tmp_path, lambda raw: (raw["training"].pop("schedule"), raw["training"].update(max_steps=1)))
    with pytest.raises(ValueError, match="another schedule wrote it"):
        start(tmp_path, minutes=1.0)


def test_a_recipe_may_change_while_nothing_is_trained(tmp_path):
    def mistaken(raw):
        raw["model"].update(tie_embeddings="all")
        raw["tokenizer"].update(kind="words")

    with pytest.raises(ValueError, match=r"^model\.tie_embeddings='all' needs two vocabularies of one size"):
        start(tmp_path, mistaken)
    assert (tmp_path / "out" / "tokenizer").is_dir()
    assert start(tmp_path).finished
    (tmp_path / "straight").mkdir()
    start(tmp_path / "straight")
    tokenizers = [(tmp_path / out / "tokenizer" / "tokenizer.json").read_text() for out in ("out", "straight/out")]
    assert tokenizers[0] == tokenizers[1]


def test_fine_tuning_a_finished_model(tmp_path):
    start(tmp_path)
    finished = str(tmp_path / "out" / "model")

    def change(raw):
        raw.update(model={"from_pretrained": finished}, tokenizer={"from_pretrained": finished}, output=str(tmp_path / "tuned"))
        raw["training"].update(learning_rate=0.0, max_steps=1)

    start(tmp_path, change)
    assert torch.equal(weights(tmp_path / "tuned" / "model"), weights(tmp_path / "out" / "model"))


def test_time_is_a_budget_over_all_starts(tmp_path):
    def change(raw):
        raw["training"].pop("max_steps")

    start(tmp_path, change, minutes=0.2 / 60)
    checkpoints = sorted((tmp_path / "out" / "checkpoints").iterdir())
    from transduct.training import TransductTrainingArguments

    def arguments(**options):
        return TransductTrainingArguments(output_dir=str(tmp_path / "x"), schedule="constant", use_cpu=True, **options)

    assert is_over(checkpoints[-1], arguments(max_minutes=0.2 / 60))
    assert not is_over(checkpoints[-1], arguments(max_minutes=60))
    assert not is_over(checkpoints[-1], arguments(max_steps=10**6))
    assert is_over(checkpoints[-1], arguments(max_steps=1))
    assert start(tmp_path, change, minutes=0.2 / 60).finished


def early(raw: dict) -> None:
    """Nothing is learnt, so that the first of the evaluations stays the best."""
    raw["training"].update(
        learning_rate=0.0, eval_strategy="steps", eval_steps=2, early_stopping_patience=2, metric_for_best_model="word error"
    )


def test_early_stopping_by_a_metric_of_the_recipe(tmp_path, capsys):
    first = start(tmp_path, early)
    out = tmp_path / "out"
    assert first.finished
    assert json.loads((out / "metrics.json").read_text())["steps"] == 6
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["checkpoint-2", "checkpoint-6"]
    assert sorted(path.name for path in (out / "predictions").iterdir()) == ["2.jsonl", "4.jsonl", "6.jsonl"]
    rows = [json.loads(line) for line in (out / "predictions" / "2.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == WORDS
    assert [row["references"] for row in rows] == [[" ".join(word.upper())] for word in WORDS]
    assert start(tmp_path, early, Console(width=300)) == first
    assert "nothing is left to train" in capsys.readouterr().out


def test_the_best_is_one_of_the_recipes_metrics(tmp_path):
    def options(name: str):
        raw = raw_recipe(tmp_path)
        early(raw)
        raw["training"]["metric_for_best_model"] = name
        raw["evaluation"]["metrics"]["right"] = "exact_match"
        args = build_arguments(build_recipe(raw), tmp_path)
        return args.metric_for_best_model, args.greater_is_better

    assert options("word error") == options("eval_word_error") == ("word_error", False)
    assert options("right") == ("right", True)
    assert options("loss") == ("loss", False)
    with pytest.raises(ValueError, match=r"metric_for_best_model='bleu' is not measured: choose one of loss, phoneme_error"):
        options("bleu")


def test_a_run_without_a_whole_checkpoint_is_not_started_anew(tmp_path):
    start(tmp_path)
    for path in (tmp_path / "out" / "checkpoints").glob("checkpoint-*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole"):
        start(tmp_path)
    assert start(tmp_path, fresh=True).finished


def command(folder: Path) -> list[str]:
    raw = raw_recipe(folder, max_steps=100_000, save_steps=5, save_strategy="steps", save_total_limit=2)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(raw))
    return [sys.executable, "-m", "transduct.cli.main", "train", str(folder / "recipe.yaml")]


HANGS = 600
"""Seconds after which a command counts as hanging, on however busy a machine."""


def wait_for_checkpoints(folder: Path, process: subprocess.Popen) -> None:
    """Until there are two: one of them is whole, whatever is being written when the signal comes."""
    for _ in range(10 * HANGS):
        if len(list((folder / "out" / "checkpoints").glob("checkpoint-*/trainer_state.json"))) >= 2:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError(f"no checkpoints after {HANGS} seconds")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_goes_on(tmp_path, number):
    arguments = command(tmp_path)
    process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for_checkpoints(tmp_path, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANGS)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert ("the same command goes on" in output) == (number != signal.SIGKILL)
    last = checkpoint_step(list_checkpoints(tmp_path / "out" / "checkpoints")[-1]) + 7
    changed = ["--set", f"training.max_steps={last}"]
    again = subprocess.run([*arguments, *changed], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "going on from" in again.stdout
    assert (tmp_path / "out" / "metrics.json").is_file()
    (tmp_path / "straight").mkdir()
    start(tmp_path / "straight", lambda raw: raw["training"].update(max_steps=last, save_steps=5, save_strategy="steps"))
    assert torch.equal(weights(tmp_path / "out" / "model"), weights(tmp_path / "straight" / "out" / "model"))

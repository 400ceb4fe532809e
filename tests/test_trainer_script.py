"""examples/seq2seq_trainer.py, run as a user would: it trains, evaluates, checkpoints and resumes with transformers' trainer.

Its targets are longer than the 20 tokens at which the library stops generating by default.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments

from tiny_training import QUIET, Tokenizer, pairs, tiny_model
from transduct import TransductForConditionalGeneration, TransductTokenizer
from transduct.training import Seq2SeqCollator

SCRIPT = Path(__file__).parents[1] / "examples" / "seq2seq_trainer.py"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PAIRS = [{"source": str(digit), "target": " ".join([name] * 6)} for digit, name in enumerate(NAMES)]  # 23 to 35 characters
OPTIONS = {"--steps": 120, "--every": 40, "--batch": 5, "--accumulate": 2, "--learning-rate": 4e-3, "--warmup": 20}


def run(folder: Path, *more: str) -> None:
    """The script in a process of its own, with everything that it writes below `folder`."""
    files = {"--model": "start", "--train": "pairs.jsonl", "--validation": "pairs.jsonl", "--output": "runs"}
    options = {**{option: folder / name for option, name in files.items()}, **OPTIONS}
    settings = {**os.environ, "HF_HOME": str(folder / "cache"), "PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(SCRIPT), "--cpu", *more, *(str(part) for option in options.items() for part in option)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A straight run, and one that starts again from the first of its three checkpoints: `straight` and `resumed`."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    run(folder, "--create")
    shutil.copytree(folder / "runs", folder / "straight")
    for later in (80, 120):
        shutil.rmtree(folder / "runs" / f"checkpoint-{later}")
    (folder / "runs" / "model.safetensors").unlink()
    run(folder, "--resume")
    return SimpleNamespace(start=folder / "start", straight=folder / "straight", resumed=folder / "runs")


def state(run: Path, step: int = 120) -> dict:
    return json.loads((run / f"checkpoint-{step}" / "trainer_state.json").read_text())


@pytest.mark.slow
def test_it_learns_targets_longer_than_the_librarys_limit(runs):
    assert json.loads((runs.straight / "eval_results.json").read_text())["eval_exact_match"] >= 0.5
    losses = [entry["eval_loss"] for entry in state(runs.straight)["log_history"] if "eval_loss" in entry]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt"])
def test_a_resumed_run_ends_bit_equal(runs, name):
    straight, resumed = ((run / "checkpoint-120" / name).read_bytes() for run in (runs.straight, runs.resumed))
    assert straight == resumed
    assert straight != (runs.straight / "checkpoint-80" / name).read_bytes()


@pytest.mark.slow
def test_a_resumed_run_evaluates_the_same_and_keeps_the_same_best_model(runs):
    exact = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_exact_match", "step")
    straight, resumed = (
        [[entry.get(name) for name in exact] for entry in state(run)["log_history"]] for run in (runs.straight, runs.resumed)
    )
    assert straight == resumed
    assert (runs.straight / "model.safetensors").read_bytes() == (runs.resumed / "model.safetensors").read_bytes()
    best = Path(state(runs.straight)["best_model_checkpoint"]).name
    best_weights = load_file(runs.straight / best / "model.safetensors")
    final = load_file(runs.straight / "model.safetensors")
    assert best_weights.keys() == final.keys()
    assert all(torch.equal(best_weights[key], final[key]) for key in final)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "checkpoint-120"])
def test_what_it_saved_loads_through_the_auto_classes_and_reads_out_digits(runs, folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(runs.straight / folder)
    tokenizer = AutoTokenizer.from_pretrained(runs.straight / folder)
    assert type(model) is TransductForConditionalGeneration
    assert type(tokenizer) is TransductTokenizer
    assert model.generation_config.max_length is None
    batch = tokenizer([pair["source"] for pair in PAIRS], return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert sum(text == pair["target"] for text, pair in zip(texts, PAIRS, strict=True)) >= 5


@pytest.mark.slow
def test_its_options_are_explained():
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "go on from the last checkpoint" in " ".join(done.stdout.split())


# ---- the library's default of 20 tokens, which Seq2SeqTrainer writes into the model's generation_config ---------------------


def predictor(folder, model):
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder), predict_with_generate=True, per_device_eval_batch_size=2, **QUIET
    )  # fmt: skip
    return Seq2SeqTrainer(model, arguments, data_collator=Seq2SeqCollator(Tokenizer(), model=model))


def endless_model():
    """It never predicts the end, so that its outputs are as long as they may be."""
    model = tiny_model(logits_bias=True)
    with torch.no_grad():
        model.lm_head.bias[1] = -1e9
    return model


def lengths(predictions) -> list[int]:
    return (predictions > 0).sum(-1).tolist()


def test_no_batch_of_an_evaluation_is_cut_at_20_tokens(tmp_path):
    rows = [{"input_ids": [5, 6, 7, 1], "labels": [7, 1]}] * 5
    model = endless_model()
    trainer = predictor(tmp_path, model)
    for _ in range(2):
        assert trainer.predict(rows).predictions.shape == (5, 1 + 4 + 50)
    trainer.save_model()
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert (saved.max_length, saved.num_beams, saved.top_k) == (None, None, None)
    assert model.generate(torch.tensor([[5, 6, 7, 1]])).shape == (1, 55)


@pytest.mark.parametrize(
    ("field", "value", "tokens"), [("max_length", 9, 9), ("max_new_tokens", 20, 21), ("max_new_tokens", 30, 31)]
)
def test_a_chosen_length_outlasts_the_trainer(tmp_path, field, value, tokens):
    model = endless_model()
    setattr(model.generation_config, field, value)
    model.generation_config.num_beams = 2
    trainer = predictor(tmp_path, model)
    assert trainer.predict(pairs(5)).predictions.shape == (5, tokens)
    trainer.save_model()
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert (getattr(saved, field), saved.num_beams, saved.top_k) == (value, 2, None)


def test_a_length_of_20_may_be_asked_for(tmp_path):
    model = endless_model()
    source = torch.tensor([[5, 6, 7, 1]])
    assert model.generate(source, max_length=20).shape == (1, 20)
    assert predictor(tmp_path, model).predict(pairs(5), max_length=20).predictions.shape == (5, 20)
    model = endless_model()
    model.generation_config.max_length = 20
    assert model.generate(source).shape == (1, 20)
    model.save_pretrained(tmp_path)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generate(source).shape == (1, 20)

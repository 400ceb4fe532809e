"""What a training shows of itself."""

import io
import re

import pytest
from rich.console import Console
from transformers import PrinterCallback, Seq2SeqTrainingArguments, TrainerState

from tiny_training import tiny_trainer
from transduct.training.metrics import TIMINGS
from transduct.training.progress import ShowProgress, time_left


def shown(terminal: bool, tmp_path, width: int = 200, **options) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width)
    defaults = dict(max_steps=30, logging_strategy="steps", logging_steps=5)
    if "kind" not in options:
        defaults |= dict(max_tokens_per_batch=40, schedule="constant")
    trainer = tiny_trainer(tmp_path, metrics=lambda prediction: {"word_error": 0.25}, **{**defaults, **options})
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ShowProgress(console, seconds_between_lines=0.0))
    trainer.train()
    return console.file.getvalue()


def test_lines_without_a_terminal(tmp_path):
    lines = shown(False, tmp_path).splitlines()
    figures = r"loss \d+\.\d{4}  learning rate \d\.\d\de-\d\d  [\d,]+ source and [\d,]+ target tokens/s  padding \d+\.\d%"
    pattern = rf" *\d+%  step \d+  \d:\d\d:\d\d left  {figures}"
    assert len(lines) > 10
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert lines[-1].startswith("100%  step 30")


def test_steps_are_counted_where_tokens_are_not(tmp_path):
    options = dict(per_device_train_batch_size=8, kind=Seq2SeqTrainingArguments)
    text = shown(False, tmp_path, **options)
    assert "steps/s" in text
    assert "tokens/s" not in text


def test_a_bar_on_a_terminal(tmp_path):
    text = shown(True, tmp_path)
    assert "training" in text
    assert "tokens/s" in text
    assert "100%" in text


def test_a_narrow_terminal_cuts_the_figures_alone(tmp_path):
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown(True, tmp_path, width=80))
    assert re.search(r"training ━+ *100% \d:\d\d:\d\d step 30  \d:\d\d:\d\d left  loss \d\.\d{4}  [^\n]*…", text)


@pytest.mark.parametrize("terminal", [False, True])
def test_evaluation_is_reported(tmp_path, terminal):
    options = dict(eval_strategy="steps", eval_steps=10, predict_with_generate=True, generation_max_length=4)
    text = shown(terminal, tmp_path, **options)
    assert len(re.findall(r"step \d0  validation: loss \d\.\d{4}, word error 0\.2500", text)) == 3


def test_a_test_set_is_not_called_validation():
    written = io.StringIO()
    progress, state = ShowProgress(Console(file=written)), TrainerState(global_step=3)
    progress.on_evaluate(None, state, None, metrics={"test_loss": 1.0, "test_runtime": 2.0})
    assert written.getvalue() == ""
    progress.on_evaluate(None, state, None, metrics={"eval_loss": 1.0, "eval_runtime": 2.0})
    assert written.getvalue() == "step 3  validation: loss 1.0000\n"


def test_metrics_are_shown_whatever_their_names():
    written = io.StringIO()
    named = {"eval_lead_time": 1.0, "eval_words_per_second": 2.0, "eval_best_epoch": 3.0, "eval_own_runtime": 4.0}
    timings = {f"eval_{name}": 9.0 for name in TIMINGS}
    state = TrainerState(global_step=3)
    ShowProgress(Console(file=written, width=200)).on_evaluate(None, state, None, metrics={**named, **timings, "epoch": 9.0})
    shown = "lead time 1.0000, words per second 2.0000, best epoch 3.0000, own runtime 4.0000"
    assert written.getvalue() == f"step 3  validation: {shown}\n"
    several = {f"eval_news_{name}": value for name, value in {"loss": 1.0, "runtime": 2.0, "samples_per_second": 3.0}.items()}
    ShowProgress(Console(file=written, width=200)).on_evaluate(None, state, None, metrics=several)
    assert written.getvalue().endswith("step 3  validation: news loss 1.0000\n")


def test_time_left_of_runs_in_one_and_in_several_starts():
    assert time_left(60, 0.0, 0.25) == "0:03:00"
    assert time_left(60, 0.5, 0.75) == "0:01:00"
    assert time_left(7200, 0.0, 0.5) == "2:00:00"
    assert time_left(5, 0.0, 1.0) == "0:00:00"
    assert time_left(5, 0.5, 0.5) == "unknown time"

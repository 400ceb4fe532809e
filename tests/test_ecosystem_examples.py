"""The official examples of transformers, unchanged, with our folder as the model.

They are no part of the package transformers: TRANSFORMERS_EXAMPLES names a folder `examples/pytorch` of a clone, and without it
nothing here runs. What they do is tested in any case, step by step, in `test_ecosystem_training.py`. All four pass as they are
in the sources of transformers 5.2.

    TRANSFORMERS_EXAMPLES=.../transformers/examples/pytorch pytest tests/test_ecosystem_examples.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import transduct
from tiny_translation import save_translation

transduct.register()

EXAMPLES = os.environ.get("TRANSFORMERS_EXAMPLES")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXAMPLES is None, reason="TRANSFORMERS_EXAMPLES does not name the folder examples/pytorch of a clone"),
]
WORDS = ["abc", "hello", "xyz no!", "the end.", "a b c", "what?"]
TASKS = {
    "translation": ("sacrebleu", ["--source_lang=en", "--target_lang=xx"]),
    "summarization": ("rouge", ["--source_prefix=a: "]),
}
"""The metric and the options of each task."""
OPTIONS = [
    "--trust_remote_code",
    "--per_device_train_batch_size=2",
    "--num_beams=2",
    "--max_source_length=20",
    "--max_target_length=12",
]
TRAINER = ["--do_train", "--do_eval", "--do_predict", "--predict_with_generate", "--use_cpu", "--report_to=none", "--max_steps=4"]

METRIC = """
import datasets
import evaluate


class Share(evaluate.Metric):
    '''The share of outputs that are right; it has the name of a metric that would come from the Hub.'''

    def _info(self):
        text = datasets.Value("string")
        references = datasets.Sequence(text) if LISTS else text
        features = datasets.Features({"predictions": text, "references": references})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, **_):
        right = [output in wanted if LISTS else output == wanted for output, wanted in zip(predictions, references)]
        return {"score": sum(right) / len(right)}
"""
NLTK = """
class data:
    find = staticmethod(lambda name: name)


def sent_tokenize(text):
    return text.split(". ")
"""


def prepare(task, folder):
    """The data, the metric and, in place of a library that would download, a stub."""
    metric, _ = TASKS[task]
    rows = [{"translation": {"en": word, "xx": word[::-1]}} for word in WORDS]
    if task == "summarization":
        rows = [{"text": word, "summary": word[:2]} for word in WORDS]
    (folder / "data.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / metric).mkdir()
    (folder / metric / f"{metric}.py").write_text(f"LISTS = {metric == 'sacrebleu'}\n{METRIC}")
    (folder / "stubs").mkdir()
    (folder / "stubs" / "nltk.py").write_text(NLTK)


def run(task, script, options, folder):
    """Run a script on a new model, and return what it measured."""
    prepare(task, folder)
    model = save_translation(folder / "model")
    command = [sys.executable, Path(EXAMPLES) / task / script, "--model_name_or_path", model, "--output_dir", "out", *options]
    command += [*TASKS[task][1], *OPTIONS, "--train_file=data.json", "--validation_file=data.json"]
    environment = os.environ | {"PYTHONPATH": str(folder / "stubs"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "out" / "all_results.json").read_text())


def load(folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "out")
    assert type(model) is transduct.TransductForConditionalGeneration
    return model, AutoTokenizer.from_pretrained(folder / "out")


@pytest.mark.parametrize("task", TASKS)
def test_the_script_as_it_is(task, tmp_path):
    results = run(task, f"run_{task}.py", [*TRAINER, "--test_file=data.json"], tmp_path)
    assert {"train_loss", "eval_loss", "eval_gen_len", "predict_loss"} <= set(results)
    model, tokenizer = load(tmp_path)
    prefix = "a: " if task == "summarization" else ""
    batch = tokenizer([prefix + word for word in WORDS], return_tensors="pt", padding=True)
    outputs = tokenizer.batch_decode(model.generate(**batch, max_length=12, num_beams=2), skip_special_tokens=True)
    written = (tmp_path / "out" / "generated_predictions.txt").read_text().splitlines()
    assert [line.strip() for line in written] == [output.strip() for output in outputs]


@pytest.mark.parametrize("task", TASKS)
def test_the_script_without_a_trainer_as_it_is(task, tmp_path):
    results = run(task, f"run_{task}_no_trainer.py", ["--max_train_steps=4"], tmp_path)
    assert any(name.startswith("eval_") for name in results)
    trained, _ = load(tmp_path)
    fresh = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    assert not torch.equal(
        trained.model.encoder.layers[0].self_attention.q_proj.weight, fresh.model.encoder.layers[0].self_attention.q_proj.weight
    )

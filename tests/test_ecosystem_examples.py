"""The official examples of transformers, unchanged, with our folder as the model.

They are no part of the package transformers: TRANSFORMERS_EXAMPLES names a folder `examples/pytorch` of a clone, and without it
nothing here runs. What they do is tested in any case, step by step, in `test_ecosystem_training.py`.

    TRANSFORMERS_EXAMPLES=.../transformers/examples/pytorch pytest tests/test_ecosystem_examples.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
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
OPTIONS = [
    "--do_train", "--do_eval", "--do_predict", "--predict_with_generate", "--use_cpu", "--trust_remote_code", "--report_to=none",
    "--max_steps=4", "--per_device_train_batch_size=2", "--num_beams=2", "--max_source_length=20", "--max_target_length=12",
]  # fmt: skip

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


@pytest.mark.parametrize(
    ("task", "metric", "options"),
    [
        ("translation", "sacrebleu", ["--source_lang", "en", "--target_lang", "xx"]),
        ("summarization", "rouge", ["--source_prefix", "a: "]),
    ],
)
def test_the_script_as_it_is(task, metric, options, tmp_path):
    folder = save_translation(tmp_path / "model")
    rows = [{"translation": {"en": word, "xx": word[::-1]}} for word in WORDS]
    if task == "summarization":
        rows = [{"text": word, "summary": word[:2]} for word in WORDS]
    (tmp_path / "data.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / metric).mkdir()
    (tmp_path / metric / f"{metric}.py").write_text(f"LISTS = {metric == 'sacrebleu'}\n{METRIC}")
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs" / "nltk.py").write_text(NLTK)
    files = [word for part in ("train", "validation", "test") for word in (f"--{part}_file", "data.json")]
    script = Path(EXAMPLES) / task / f"run_{task}.py"
    command = [sys.executable, script, "--model_name_or_path", folder, "--output_dir", "out", *files, *options, *OPTIONS]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "stubs"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "out" / "all_results.json").read_text())
    assert {"train_loss", "eval_loss", "eval_gen_len", "predict_loss"} <= set(results)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert type(model) is transduct.TransductForConditionalGeneration
    prefix = "a: " if task == "summarization" else ""
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")([prefix + word for word in WORDS], return_tensors="pt", padding=True)
    outputs = AutoTokenizer.from_pretrained(tmp_path / "out").batch_decode(
        model.generate(**batch, max_length=12, num_beams=2), skip_special_tokens=True
    )
    written = (tmp_path / "out" / "generated_predictions.txt").read_text().splitlines()
    assert [line.strip() for line in written] == [output.strip() for output in outputs]

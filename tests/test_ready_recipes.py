"""The ready recipes of examples/: as they are, they can be planned; made tiny, they train on real text, and the model loads.

What a recipe names on the Hub is served here from text that is at hand, in the columns of the named data set, so that its `data`
section is used as it stands: pronunciations of CMUdict stand for translations, NumPy's documentation for web pages and books.
"""

import json
import math
import re
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import datasets
import pytest
import torch
import yaml
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from english import paragraphs
from english import tokenizer as english_tokenizer
from transduct import config_from_preset
from transduct.modeling import TransductForConditionalGeneration
from transduct.training.checkpoints import list_checkpoints
from transduct.training.planning import PlanOptions, make_plan
from transduct.training.recipe import load_recipe
from transduct.training.run import run

EXAMPLES = Path(__file__).parents[1] / "examples"
RECIPES = ("vaswani-base-wmt14", "vaswani-big-wmt14", "t5-v1.1-base-c4", "bart-base-denoising", "ul2", "finetune")


def config(name: str) -> Path:
    return EXAMPLES / name / "config.yaml"


@cache
def pronunciations() -> list[tuple[str, str]]:
    """400 words with a pronunciation."""
    spec = spec_from_file_location("_pronunciations", EXAMPLES / "g2p" / "data.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    words = list(module.read_dictionary().items())[::300]
    return [(word, phones[0]) for word, phones in words if len(word) < 10][:400]


def served(name: str, configuration: str | None) -> list[dict]:
    """Rows in the columns of a data set of the Hub."""
    if name in ("wmt/wmt14", "wmt/wmt16"):
        other = {"de-en": "de", "ro-en": "ro"}[configuration]
        return [{"translation": {other: phones, "en": word}} for word, phones in pronunciations()]
    extra = {
        ("allenai/c4", "en"): {"timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org"},
        ("wikimedia/wikipedia", "20231101.en"): {"id": "1", "url": "https://example.org", "title": "A title"},
        ("bookcorpus/bookcorpus", None): {},
    }[name, configuration]
    return [{"text": text, **extra} for text in paragraphs()]


@pytest.fixture
def hub(monkeypatch):
    """`datasets.load_dataset` from local text; what was asked for is kept."""
    asked = []

    def load_dataset(name, configuration=None, *, split, streaming=False):
        asked.append((name, configuration, split, streaming))
        data = Dataset.from_list(served(name, configuration))
        return data.to_iterable_dataset() if streaming else data

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


TINY = [
    f"model.{name}={value}" for name, value in dict(d_model=32, d_ff=48, num_heads=2, encoder_layers=1, decoder_layers=1).items()
]
SHORT = [
    "training.max_steps=40", "training.bf16=false", "training.use_cpu=true", "training.logging_steps=10", "threads=1",
    "training.eval_steps=20", "training.gradient_accumulation_steps=1", "training.save_total_limit=2", "evaluation.samples=2",
]  # fmt: skip
PAIRS = ["data.train.limit=300", "data.validation.limit=30", "data.test.limit=30", "evaluation.num_beams=2"]
DOCUMENTS = [
    "tokenizer.vocab_size=400", "tokenizer.texts=100", "data.validation.limit=10", "data.buffer_rows=64",
    "objective.inputs_length=48", "training.per_device_train_batch_size=8", "training.save_steps=20",
]  # fmt: skip

CHANGES = {
    "vaswani-base-wmt14": [*PAIRS, "tokenizer.vocab_size=200", "training.max_tokens_per_batch=600", "training.warmup_steps=20",
                           "training.learning_rate=0.3", "training.save_seconds=null", "training.save_strategy=steps",
                           "training.save_steps=10", "training.average_checkpoints=2"],
    "t5-v1.1-base-c4": [*DOCUMENTS, "model.d_kv=16", "model.vocab_size=500", "tokenizer.vocab_size=700", "tokenizer.extra_ids=20",
                        "model.vocab_size=700", "training.warmup_steps=100", "training.learning_rate=1"],
    "bart-base-denoising": [*DOCUMENTS, "model.max_positions=128", "training.warmup_steps=5", "training.learning_rate=0.01"],
    "ul2": [*DOCUMENTS, "model.d_kv=16", "model.vocab_size=800", "tokenizer.vocab_size=800", "training.warmup_steps=100"],
    "finetune": [*PAIRS, "training.per_device_train_batch_size=16", "training.learning_rate=0.02", "training.save_steps=20"],
}  # fmt: skip
CHANGES["vaswani-big-wmt14"] = CHANGES["vaswani-base-wmt14"]


def train(name: str, folder: Path, changes: list[str]) -> tuple[Path, list[float]]:
    """The output folder of a tiny run, and its training losses."""
    recipe = load_recipe(config(name), [*SHORT, *changes, f"output={folder / 'out'}"])
    assert run(recipe, console=Console(quiet=True)).finished
    newest = list_checkpoints(folder / "out" / "checkpoints")[-1]
    history = json.loads((newest / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return folder / "out", [row["loss"] for row in history if "loss" in row]


def assert_it_learnt(out: Path, losses: list[float]) -> None:
    assert len(losses) == 4
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] - 0.1
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(out / "model"), AutoTokenizer.from_pretrained(out / "model")
    ids = model.generate(**tokenizer("a word", return_tensors="pt"), max_new_tokens=5)
    assert ids.shape[0] == 1
    assert (out / "training_report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "finetune"])
def test_a_recipe_made_tiny_learns_from_real_text(name, tmp_path, hub):
    out, losses = train(name, tmp_path, [*TINY, *CHANGES[name]])
    assert_it_learnt(out, losses)
    assert all(streaming for asked, _, split, streaming in hub if asked == "allenai/c4")  # never downloaded whole
    if name.startswith("vaswani"):
        assert {split for _, _, split, _ in hub} == {"train", "validation", "test"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transduct", "t5"])
def test_fine_tuning_takes_any_folder(kind, tmp_path, hub):
    """A model of this package, and one of transformers' own classes."""
    start, tokenizer = tmp_path / "start", english_tokenizer("unigram")
    sizes = dict(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=48, num_heads=2)
    torch.manual_seed(0)
    if kind == "t5":
        model = T5ForConditionalGeneration(T5Config(**sizes, num_layers=1, decoder_start_token_id=0))
    else:
        model = TransductForConditionalGeneration(
            config_from_preset("t5-v1.1-small", **sizes, encoder_layers=1, decoder_layers=1)
        )
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    folders = [f"model.from_pretrained={start}", f"tokenizer.from_pretrained={start}"]
    out, losses = train("finetune", tmp_path, [*folders, *CHANGES["finetune"]])
    assert_it_learnt(out, losses)
    tuned = AutoModelForSeq2SeqLM.from_pretrained(out / "model")
    assert type(tuned).__name__ == type(model).__name__
    if kind == "t5":  # transformers would cut it at 21 tokens
        assert tuned.generation_config.max_new_tokens == 512
        with pytest.raises(ValueError, match=r"data\.max_target_tokens is not set, and T5ForConditionalGeneration has no length"):
            train("finetune", tmp_path / "again", [*folders, *CHANGES["finetune"], "data.max_target_tokens=null"])


PARAMETERS = {
    "vaswani-base-wmt14": 63_082_496,
    "t5-v1.1-base-c4": 247_577_856,
    "bart-base-denoising": 139_420_416,
    "ul2": 247_577_856,
}
"""Exact counts of the published models; SwiGLU has as many as a gated GELU."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_model_is_the_published_one(name):
    assert make_plan(load_recipe(config(name))).parameters == PARAMETERS[name]


TOKENS = {"vaswani-base-wmt14": (8, 50_000), "vaswani-big-wmt14": (8, 50_000)}
TEXTS = {"t5-v1.1-base-c4": (64, 2048), "bart-base-denoising": (64, 8000), "ul2": (16, 128)}


@pytest.mark.parametrize("name", TOKENS | TEXTS)
def test_a_step_is_as_large_as_in_the_paper(name):
    options = PlanOptions(gpus=(TOKENS | TEXTS)[name][0], source_length=25, target_length=25)
    planned = make_plan(load_recipe(config(name)), options)
    if name in TOKENS:
        assert planned.tokens_per_step == pytest.approx(TOKENS[name][1], rel=0.01)
    else:
        assert planned.tokens_per_step == TEXTS[name][1] * 50


def test_fine_tuning_sees_128_pairs_a_step():
    training = load_recipe(config("finetune")).training
    assert training["per_device_train_batch_size"] * training["gradient_accumulation_steps"] == 128


SECTIONS = ("model", "tokenizer", "data", "objective", "training", "evaluation")
SPLITS = {"train", "validation", "test"}
"""Of `data`, whose heading may say where all of them are from."""
OF_THE_RUN = {"save_strategy", "save_steps", "save_total_limit", "eval_strategy", "eval_steps", "logging_steps", "seed"}
"""How often a run saves, evaluates and logs, and its random numbers: what no paper gives, and what does not change a result."""


def unsourced(text: str) -> list[str]:
    """The values of a recipe without a comment: on their own lines, on one above them, or for `SPLITS` at their heading."""
    missing = []
    for section, values in yaml.safe_load(text).items():
        if section not in SECTIONS:
            continue
        heading, body = re.search(rf"^{section}:(.*)\n((?:  .*\n)*)", text, re.MULTILINE).groups()
        for key in values:
            (entry,) = re.findall(rf"(?:^  #.*\n)*^  {key}:.*\n(?:^   .*\n)*", body, re.MULTILINE)
            of_all = heading if section == "data" and key in SPLITS else ""
            if key not in OF_THE_RUN and not re.search(r"#.*\w", entry + of_all):
                missing.append(f"{section}.{key}")
    return missing


@pytest.mark.parametrize("name", [*RECIPES, "finetune-t5-summarization", "finetune-bart-cnn", "finetune-nllb"])
def test_every_value_has_its_source(name):
    """Or says that the paper gives none, and why it is as it is."""
    assert unsourced(config(name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("section", "key"), [("model", "preset"), ("tokenizer", "kind"), ("training", "warmup_steps"), ("evaluation", "num_beams")]
)
def test_a_value_without_its_source_is_found(section, key):
    text = config("vaswani-base-wmt14").read_text(encoding="utf-8")
    without = re.sub(rf"^(  {key}: [^#\n]*)#.*", r"\1", text, flags=re.MULTILINE)
    assert without != text
    assert unsourced(without) == [f"{section}.{key}"]
    bare = re.sub(r"^(data:|  train:).*", r"\1", text, flags=re.MULTILINE)
    assert unsourced(bare) == ["data.train"]  # the other two say which test set they are

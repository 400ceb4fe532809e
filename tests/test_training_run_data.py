"""Runs of every kind of data: streamed, mixed, segmented anew, and made by an objective; stopped and gone on with."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from transduct.modeling import TransductForConditionalGeneration
from transduct.tokenization import language_token
from transduct.training.building import NO_LIMIT_OF_STEPS, build_arguments
from transduct.training.recipe import build_recipe
from transduct.training.run import run

WORDS = ["the", "cat", "sat", "on", "a", "mat", ".", "it", "was", "red", ",", "and", "so", "on", "!", "why", "?"]
AUTO = {"causal_lm": AutoModelForCausalLM, "masked_lm": AutoModelForMaskedLM}
OBJECTIVES = [
    {"name": "span_corruption"},
    {"name": "bart"},
    {"name": "composition", "noises": [{"name": "token_masking", "share": 0.2}, {"name": "document_rotation"}]},
    {"name": "ul2"},
    {"name": "prefix_lm"},
    {"name": "prefix_lm", "form": "decoder"},
    {"name": "masked_lm"},
    {"name": "causal_lm"},
]


def raw_recipe(folder: Path, **sections) -> dict:
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(40)]
    for name, chosen in (("a", sentences[:30]), ("b", sentences[30:])):
        rows = [json.dumps({"source": text, "target": text.upper(), "text": text}) for text in chosen]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "corpus").mkdir(exist_ok=True)
    (folder / "corpus" / "train.jsonl").write_bytes((folder / "a.jsonl").read_bytes())
    raw = {
        "output": str(folder / "out"),
        "threads": 1,
        "model": dict(preset="vaswani-base", d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1),
        "tokenizer": {"kind": "words", "special_tokens": ["<BT>", "[NLU]", "[NLG]", "[S2S]"], "mask_token": "<mask>",
                      "extra_ids": 20, "languages": ["de"]},
        "data": {"train": {"json": "a.jsonl"}, **sections.pop("data", {})},
        "training": dict(max_steps=6, max_tokens_per_batch=120, schedule="constant", learning_rate=0.01, use_cpu=True,
                         logging_steps=2, **sections.pop("training", {})),
        "evaluation": {"num_beams": 1},
        **sections,
    }  # fmt: skip
    if build_recipe(raw).without_end is not None:
        raw["data"] = {"buffer_rows": 16, **raw["data"]}
    return raw


def start(folder: Path, raw: dict, console: Console | None = None):
    recipe = build_recipe(raw)
    recipe.folder = folder
    return run(recipe, console=console or Console(quiet=True))


def weights(folder: Path, auto=AutoModelForSeq2SeqLM) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in auto.from_pretrained(folder / "out" / "model").parameters()])


STREAM = {"train": {"json": "a.jsonl", "streaming": True}}
MIXTURE = {
    "train": [{"json": "a.jsonl", "target_language": "de"}, {"json": "b.jsonl", "tag": "<BT>", "name": "back"}],
    "temperature": 2,
    "cap": 20,
}
MIXED_STREAMS = {"train": [{"json": "a.jsonl", "weight": 1, "streaming": True}, {"json": "b.jsonl", "weight": 3}]}
TASKS = {
    "train": [{"json": "a.jsonl"}, {"json": "b.jsonl", "objective": {"name": "span_corruption", "inputs_length": 12}}],
    "validation": {"json": "b.jsonl"},
}
SUBWORDS = {"subwords": {"dropout": 0.3}}


DATA_SET = {"train": {"dataset": "corpus", "streaming": True}}

KINDS = {
    "stream": STREAM,
    "data set": DATA_SET,
    "mixture": MIXTURE,
    "streams": MIXED_STREAMS,
    "tasks": TASKS,
    "subwords": SUBWORDS,
}


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
def test_a_run_that_was_stopped_equals_a_straight_one(tmp_path, data):
    final = []
    for stops in ([6], [3, 6]):
        folder = tmp_path / str(len(stops))
        folder.mkdir()
        raw = raw_recipe(folder, data=data)
        if "subwords" in data:
            raw["tokenizer"] |= {"kind": "bpe", "vocab_size": 80}
        for steps in stops:
            raw["training"]["max_steps"] = steps
            assert start(folder, raw).finished
        final.append(weights(folder))
    assert torch.equal(*final)


PAIRS = {"train": {"json": "a.jsonl"}}
COMBINATIONS = {
    "packing": (PAIRS, dict(packing=True, optimizer="adafactor", gradient_accumulation_steps=2)),
    "auto": (PAIRS, dict(max_tokens_per_batch="auto", ema_decay=0.9, ema_warmup=True)),
    "r-drop": (
        MIXTURE,
        dict(r_drop=1.0, word_dropout=0.2, target_word_dropout=0.1, optimizer="adamw_rms", dataloader_num_workers=1),
    ),
    "lora": (STREAM, dict(lora={"rank": 2, "dropout": 0.2}, ema_decay=0.9, neftune_noise_alpha=1.0)),
    "frozen": (SUBWORDS | PAIRS, dict(freeze=["embeddings"], average_checkpoints=2, save_strategy="steps", save_steps=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "training"), COMBINATIONS.values(), ids=COMBINATIONS)
def test_a_run_with_options_that_was_stopped_equals_a_straight_one(tmp_path, data, training):
    final = []
    for stops in ([6], [2, 5, 6]):
        folder = tmp_path / str(len(stops))
        folder.mkdir()
        raw = raw_recipe(folder, data=data)
        raw["model"]["layer_drop"] = 0.0 if {"lora", "freeze"} & set(training) else 0.2
        if "subwords" in data:
            raw["tokenizer"] |= {"kind": "bpe", "vocab_size": 80}
        for steps in stops:
            raw["training"] |= training | {"max_steps": steps}
            assert start(folder, raw).finished
        final.append(weights(folder))
    assert torch.equal(*final)


def test_a_mixture_says_what_it_draws(tmp_path, capsys):
    start(tmp_path, raw_recipe(tmp_path, data=MIXTURE), Console(width=200))
    share = 20**0.5 / (20**0.5 + 10**0.5)
    assert f"mixture: {share:.1%} a.jsonl, {1 - share:.1%} back" in capsys.readouterr().out


@pytest.mark.parametrize("data", [STREAM, DATA_SET], ids=["stream", "data set"])
def test_workers_change_nothing(tmp_path, data):
    final = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        start(folder, raw_recipe(folder, data=data, training={"dataloader_num_workers": workers}))
        final.append(weights(folder))
    assert torch.equal(*final)


def test_bad_rows_of_a_stream_are_counted_at_the_end(tmp_path, capsys):
    raw = raw_recipe(tmp_path, data={**STREAM, "bad_rows": "skip"})
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"source": ""}\n')
    start(tmp_path, raw, Console(width=300))
    printed = capsys.readouterr().out
    assert "train: streamed from a.jsonl" in printed
    assert "malformed (the first:" in printed
    assert "a.jsonl:31: no key 'target'" in printed


@pytest.mark.parametrize("objective", OBJECTIVES, ids=[" ".join(map(str, o.values()))[:25] for o in OBJECTIVES])
def test_every_objective_trains_its_model(tmp_path, objective, capsys):
    raw = raw_recipe(tmp_path, objective={**objective, "inputs_length": 24})
    raw["data"] |= {"validation": {"json": "b.jsonl"}, "test": {"json": "b.jsonl"}}
    raw["training"] |= {"eval_strategy": "steps", "eval_steps": 3}
    outcome = start(tmp_path, raw, Console(width=200))
    assert set(outcome.metrics) == {"loss"}
    assert 0 < outcome.metrics["loss"] < 10
    auto = AUTO.get(objective["name"], AutoModelForCausalLM if "form" in objective else AutoModelForSeq2SeqLM)
    assert weights(tmp_path, auto).isfinite().all()
    printed = capsys.readouterr().out
    assert "train: 30 documents" in printed
    losses = [line for line in printed.splitlines() if "validation: loss" in line]
    assert len(losses) == 2
    assert losses[0].split()[-1] != losses[1].split()[-1]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"] == outcome.metrics


def test_a_stream_of_documents_goes_on_where_it_stopped(tmp_path):
    final = []
    for stops in ([4], [2, 4]):
        folder = tmp_path / str(len(stops))
        folder.mkdir()
        raw = raw_recipe(folder, data=STREAM, objective={"name": "span_corruption", "inputs_length": 16})
        for steps in stops:
            raw["training"]["max_steps"] = steps
            start(folder, raw)
        final.append(weights(folder))
    assert torch.equal(*final)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_pair_of_a_mixture_that_fits_into_no_batch_is_named_by_its_line(tmp_path, streaming):
    rows = [{"source": "a cat", "target": "A"}, {"source": "so on and so on and on", "target": "B"}]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    parts = [
        {"json": "long.jsonl", "weight": 1, "streaming": streaming},
        {"json": "long.jsonl", "weight": 1, "limit": 1, "name": "x"},
    ]
    raw = raw_recipe(tmp_path, data={"train": parts})
    raw["training"]["max_tokens_per_batch"] = 9
    with pytest.raises(ValueError, match=r"long\.jsonl:2: the pair has 8 source and 2 target tokens, more than a batch of 9"):
        start(tmp_path, raw)


def test_a_run_without_a_last_row_needs_an_end(tmp_path):
    raw = raw_recipe(tmp_path, data=STREAM)
    del raw["training"]["max_steps"]
    with pytest.raises(ValueError, match=r"data\.train is a stream and has no last row: give training\.max_steps or"):
        start(tmp_path, raw)
    raw["training"]["num_train_epochs"] = 2
    with pytest.raises(ValueError, match=r"training\.num_train_epochs: data\.train is a stream"):
        start(tmp_path, raw)
    del raw["training"]["num_train_epochs"]
    raw["training"]["max_minutes"] = 1
    assert build_arguments(build_recipe(raw), tmp_path).max_steps == NO_LIMIT_OF_STEPS
    raw = raw_recipe(tmp_path, data={"buffer_rows": 16})
    with pytest.raises(ValueError, match=r"data\.buffer_rows=16: only data without a last row are batched in blocks"):
        start(tmp_path, raw)
    raw = raw_recipe(tmp_path, objective={"name": "bart"}, training={"predict_with_generate": True})
    with pytest.raises(ValueError, match="predict_with_generate: bart has no references"):
        start(tmp_path, raw)


def test_the_prefix_belongs_to_the_sources_of_the_finished_model_too(tmp_path, capsys):
    raw = raw_recipe(tmp_path)
    split = {"json": "b.jsonl", "source_prefix": "the mat ", "limit": 3}
    raw["data"] |= {"train": {"json": "a.jsonl", "source_prefix": "the mat "}, "test": split, "validation": split}
    raw["evaluation"]["inputs"] = ["a cat"]
    assert set(start(tmp_path, raw, Console(width=200)).metrics) == {"bleu", "chrf"}
    assert "a cat ->" in capsys.readouterr().out


def test_the_language_of_the_target_is_forced_on_every_output(tmp_path, monkeypatch):
    raw = raw_recipe(tmp_path, training={"eval_strategy": "steps", "eval_steps": 3})
    raw["tokenizer"]["languages"] = ["de", "fr"]
    in_target = {"target_language_in": "target", "limit": 5}
    french = {"json": "b.jsonl", "target_language": "fr", **in_target}
    raw["data"] |= {
        "train": [{"json": "a.jsonl", "target_language": "de", **in_target}, {**french, "name": "french"}],
        "validation": french,
        "test": {"json": "b.jsonl", "target_language": "de", **in_target},
    }
    generate, seen = TransductForConditionalGeneration.generate, []

    def watched(model, *inputs, **options):
        outputs = generate(model, *inputs, **options)
        seen.append(outputs[:, 1].tolist())
        return outputs

    monkeypatch.setattr(TransductForConditionalGeneration, "generate", watched)
    start(tmp_path, raw)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "model")
    german, french = tokenizer.convert_tokens_to_ids([language_token("de"), language_token("fr")])
    assert seen == [[french] * 5] * 2 + [[german] * 5]  # two evaluations of the validation set, and the test set at the end
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "model")
    assert model.generation_config.forced_bos_token_id is None  # it writes both languages


def test_alignments_guide_a_run(tmp_path):
    raw = raw_recipe(tmp_path)
    (tmp_path / "s.txt").write_text("the cat\na mat\n" * 4)
    (tmp_path / "t.txt").write_text("CAT THE\nMAT A\n" * 4)
    (tmp_path / "al.txt").write_text("0-1 1-0\n" * 8)
    raw["data"] |= {"train": {"source": "s.txt", "target": "t.txt", "alignment": "al.txt"}, "validation": {"json": "b.jsonl"}}
    raw["training"] |= {"eval_strategy": "steps", "eval_steps": 3}
    with pytest.raises(ValueError, match=r"has alignments in data\.train, but no training\.guided_alignment"):
        start(tmp_path, raw)
    raw["training"]["guided_alignment"] = {"weight": 0.5, "layer": 0}
    assert start(tmp_path, raw).finished
    raw["data"]["train"].pop("alignment")
    with pytest.raises(ValueError, match=r"has training\.guided_alignment, but no alignments in data\.train"):
        start(tmp_path, raw)


def test_a_run_of_before_these_options_goes_on(tmp_path):
    """Its `recipe.yaml` names the options that there were then, and those that were left out with their defaults."""
    import yaml

    start(tmp_path, raw_recipe(tmp_path))
    note = tmp_path / "out" / "recipe.yaml"
    before = yaml.safe_load(note.read_text())
    recipe = build_recipe(raw_recipe(tmp_path))
    for section, name in (("data", "bad_rows"), ("data", "max_source_tokens"), ("evaluation", "batch_size")):
        assert name not in before[section]
        before[section][name] = getattr(getattr(recipe, section), name)
    note.write_text(yaml.safe_dump(before))
    raw = raw_recipe(tmp_path)
    raw["training"]["max_steps"] = 8
    assert start(tmp_path, raw).finished
    raw["data"]["train"]["tag"] = "<BT>"
    with pytest.raises(ValueError, match=r"another data\.train"):
        start(tmp_path, raw)


def test_long_texts_are_cut_in_training_and_in_both_evaluations(tmp_path):
    """A source or target of four tokens at most, of sentences with three words and more, and none is left out."""
    split = {"json": "b.jsonl"}
    data = {"validation": split, "test": split, "max_source_tokens": 4, "max_target_tokens": 4, "truncate": "both"}
    raw = raw_recipe(tmp_path, data=data, training={"eval_strategy": "steps", "eval_steps": 6})
    said = io.StringIO()
    assert start(tmp_path, raw, Console(file=said, width=200)).finished
    assert "data.truncate: sources of more than 4 tokens, targets of more than 4 tokens are cut there" in said.getvalue()
    assert "train: 30 sources, 30 pairs" in said.getvalue()
    for name, rows in (("train", 30), ("validation", 10)):
        encoded = Dataset.from_file(str(next((tmp_path / "out" / "data").glob(f"{name}*.arrow"))))
        assert len(encoded) == rows
        assert {len(row[side]) for row in encoded for side in ("input_ids", "labels")} == {4}
        assert all(row[side][-1] == 1 for row in encoded for side in ("input_ids", "labels"))
    kept = [json.loads(line) for line in (tmp_path / "out" / "predictions" / "6.jsonl").read_text().splitlines()]
    assert all(len(line["references"][0].split()) >= 3 for line in kept)  # measured against whole references
    with pytest.raises(ValueError, match=r"another data\.truncate: 'both', not 'source'"):
        start(tmp_path, {**raw, "data": {**raw["data"], "truncate": "source"}})

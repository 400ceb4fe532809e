"""transformers' own trainer with our models: streams of `datasets`, metrics of `evaluate`, and what the official examples do.

The official examples for translation and summarisation are not part of the package transformers; `examples_script` does what they
do, step by step, with the same classes and calls.
"""

import json
from typing import Any

import datasets
import evaluate
import numpy as np
import pytest
import sacrebleu
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)

import transduct
from tiny_translation import tiny_translation
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments

transduct.register()

WORDS = ["abc", "hello", "xyz no!", "the end.", "a b c", "what?"]
QUIET = dict(use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no", seed=1)


@pytest.fixture
def folder(tmp_path):
    """A model and its tokenizer, as `from_pretrained` takes them."""
    model, tokenizer = tiny_translation()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


class Bleu(evaluate.Metric):
    """A metric of `evaluate` that is written here: those that `evaluate.load` knows by name come from the Hub."""

    def _info(self):
        features = datasets.Features(
            {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
        )
        return evaluate.MetricInfo(description="BLEU", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        columns = [list(column) for column in zip(*references, strict=True)]
        return {"score": sacrebleu.corpus_bleu(predictions, columns).score}


SCRIPT = """
import datasets
import evaluate


class Same(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({"predictions": text, "references": text})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"same": sum(map(str.__eq__, predictions, references)) / len(predictions)}
"""


# ---- what the official examples do -------------------------------------------------------------------------------------------


def write_data(path, task: str) -> None:
    rows = [{"translation": {"en": word, "xx": word[::-1]}} for word in WORDS]
    if task == "summarization":
        rows = [{"text": word, "summary": word[:2]} for word in WORDS]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def texts_of(rows: dict[str, list], task: str) -> tuple[list[str], list[str]]:
    if task == "summarization":
        return rows["text"], rows["summary"]
    return [pair["en"] for pair in rows["translation"]], [pair["xx"] for pair in rows["translation"]]


def examples_script(folder, data, output, task: str, prefix: str = "") -> tuple[Seq2SeqTrainer, dict[str, Any]]:
    """Load, tokenize, train, evaluate and predict as `run_translation.py` and `run_summarization.py` do."""
    raw = datasets.load_dataset("json", data_files={"train": str(data), "test": str(data)}, cache_dir=str(output / "cache"))
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, config=config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))
    assert model.config.decoder_start_token_id is not None

    def preprocess(rows):
        sources, targets = texts_of(rows, task)
        inputs = tokenizer([prefix + text for text in sources], max_length=20, padding=False, truncation=True)
        inputs["labels"] = tokenizer(text_target=targets, max_length=20, padding=False, truncation=True)["input_ids"]
        return inputs

    encoded = raw.map(preprocess, batched=True, remove_columns=raw["train"].column_names)
    metric = Bleu()

    def compute_metrics(predicted):
        ids, labels = predicted
        ids = np.where(ids != -100, ids, tokenizer.pad_token_id)
        labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
        outputs, wanted = (tokenizer.batch_decode(each, skip_special_tokens=True) for each in (ids, labels))
        lengths = [np.count_nonzero(row != tokenizer.pad_token_id) for row in ids]
        score = metric.compute(predictions=outputs, references=[[text] for text in wanted])["score"]
        return {"bleu": score, "gen_len": np.mean(lengths)}

    arguments = Seq2SeqTrainingArguments(
        str(output), **QUIET, max_steps=4, per_device_train_batch_size=2, predict_with_generate=True, learning_rate=1e-3
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=encoded["train"],
        eval_dataset=encoded["test"],
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100),
        compute_metrics=compute_metrics,
    )
    trained = trainer.train()
    trainer.save_model()
    trainer.save_metrics("train", trained.metrics)
    trainer.save_state()
    results = trainer.evaluate(max_length=12, num_beams=2, metric_key_prefix="eval")
    predicted = trainer.predict(encoded["test"], metric_key_prefix="predict", max_length=12, num_beams=2)
    ids = np.where(predicted.predictions != -100, predicted.predictions, tokenizer.pad_token_id)
    results["texts"] = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=True)
    trainer.create_model_card(tasks=task, finetuned_from=str(folder))
    return trainer, results | predicted.metrics


@pytest.mark.parametrize(("task", "prefix"), [("translation", ""), ("summarization", "a: ")])
def test_the_official_examples(task, prefix, folder, tmp_path):
    write_data(tmp_path / "data.json", task)
    output = tmp_path / "out"
    trainer, results = examples_script(folder, tmp_path / "data.json", output, task, prefix)
    assert {"eval_bleu", "eval_gen_len", "eval_loss", "predict_bleu", "predict_loss"} <= set(results)
    assert len(results["texts"]) == len(WORDS)
    assert results["eval_gen_len"] <= 12
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "modeling.py"} <= {
        p.name for p in output.iterdir()
    }
    loaded = AutoModelForSeq2SeqLM.from_pretrained(output)
    sources = [prefix + text for text in WORDS]
    batch = AutoTokenizer.from_pretrained(output)(sources, return_tensors="pt", padding=True)
    ids = loaded.generate(**batch, max_length=12, num_beams=2)
    assert trainer.processing_class.batch_decode(ids, skip_special_tokens=True) == results["texts"]


# ---- datasets ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [False, True])
def test_training_from_a_stream(ours, folder, tmp_path):
    """Rows are read and encoded while the model is trained on them, by transformers' trainer and by ours."""
    write_data(tmp_path / "data.json", "summarization")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    stream = datasets.load_dataset("json", data_files=str(tmp_path / "data.json"), split="train", streaming=True)
    assert isinstance(stream, datasets.IterableDataset)
    encoded = stream.shuffle(seed=1, buffer_size=4).map(
        lambda rows: tokenizer(rows["text"], text_target=rows["summary"]), batched=True, remove_columns=["text", "summary"]
    )
    kinds: Any = (TransductTrainer, TransductTrainingArguments) if ours else (Seq2SeqTrainer, Seq2SeqTrainingArguments)
    collator = Seq2SeqCollator(tokenizer, model=model) if ours else DataCollatorForSeq2Seq(tokenizer, model=model)
    options = dict(max_steps=6, per_device_train_batch_size=4, learning_rate=1e-3)
    trainer = kinds[0](model, kinds[1](str(tmp_path / "out"), **QUIET, **options), train_dataset=encoded, data_collator=collator)
    before = trainer.evaluate(encoded)["eval_loss"]
    result = trainer.train()
    assert result.global_step == 6  # more than one pass
    assert trainer.evaluate(encoded)["eval_loss"] < before


# ---- evaluate -----------------------------------------------------------------------------------------------------------------


def test_metrics_from_a_local_script(folder, tmp_path):
    """`evaluate.load` takes the path of a script, and then needs no network."""
    (tmp_path / "same").mkdir()
    (tmp_path / "same" / "same.py").write_text(SCRIPT)
    metric = evaluate.load(str(tmp_path / "same"), cache_dir=str(tmp_path / "cache"))
    texts = transduct.translate(AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), WORDS)
    assert metric.compute(predictions=texts, references=texts) == {"same": 1.0}
    for text, word in zip(texts, WORDS, strict=True):
        metric.add(prediction=text, reference=word)
    assert metric.compute() == {"same": sum(map(str.__eq__, texts, WORDS)) / len(WORDS)}


def test_several_metrics_on_what_a_pipeline_writes(folder):
    metrics = evaluate.combine({"bleu": Bleu(), "again": Bleu()}, force_prefix=True)
    texts = [each["translation_text"] for each in pipeline("translation", str(folder), max_new_tokens=6)(WORDS)]
    found = metrics.compute(predictions=texts, references=[[word] for word in WORDS])
    wanted = sacrebleu.corpus_bleu(texts, [WORDS]).score
    assert found == {"bleu_score": wanted, "again_score": wanted}

"""The saved model at work: outputs in the order of the inputs, whatever the batches, and figures of the test set."""

import io

import pytest
import torch
from datasets import Dataset
from rich.console import Console

from tiny_training import tiny_model
from transduct.tokenization import TransductTokenizer
from transduct.training import Seq2SeqCollator
from transduct.training.final import SavedModel, measure, show, signatures
from transduct.training.recipe import EvaluationSection

TEXTS = ["abc", "a", "cbabcacb", "ba", "bacc", "abab"]
METRICS = {"letter error": "token_error", "word error": "sequence_error"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model that has begun to learn to copy, so that its outputs end, differ, and are not all right."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = TransductTokenizer.train(iter(TEXTS), "chars")
    tokenizer.save_pretrained(folder)
    model = tiny_model(vocab_size=len(tokenizer), dropout=0.0)
    batch = Seq2SeqCollator(tokenizer)([dict(tokenizer(text, text_target=text)) for text in TEXTS])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return SavedModel(folder)


def options(**changes) -> EvaluationSection:
    return EvaluationSection(metrics=METRICS, **{"num_beams": 2, "batch_size": 2, **changes})


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_outputs_keep_the_order_and_do_not_depend_on_the_batches(saved):
    alone = [saved.outputs([text], options(), quiet())[0] for text in TEXTS]
    assert len(set(alone)) > 3
    for size in (1, 4, 100):
        assert saved.outputs(TEXTS, options(batch_size=size), quiet()) == alone


def test_beam_width_and_length_penalty_are_used(saved, monkeypatch):
    generate, seen = saved.model.generate, []
    monkeypatch.setattr(saved.model, "generate", lambda **given: seen.append(given) or generate(**given))
    saved.outputs(TEXTS[:1], options(num_beams=3, length_penalty=0.6), quiet())
    assert [(given["num_beams"], given["length_penalty"]) for given in seen] == [(3, 0.6)]


def test_sources_are_cut_at_their_limit(saved, tmp_path):
    saved.tokenizer.save_pretrained(tmp_path)
    saved.model.save_pretrained(tmp_path)
    cutting = SavedModel(tmp_path, max_source_tokens=4)
    assert cutting.outputs(["cbabcacb", "a"], options(), quiet()) == saved.outputs(["cba", "a"], options(), quiet())


def test_figures_and_samples(saved):
    console = quiet()
    outputs = saved.outputs(TEXTS, options(), console)
    targets = [[output] for output in outputs[:-2]] + [["no such", "text"], ["wrong"]]
    figures, samples = measure(saved, Dataset.from_dict({"source": TEXTS, "targets": targets}), options(samples=6), console)
    assert figures["word error"] == pytest.approx(2 / 6)
    assert figures["letter error"] > 0
    assert [(sample.source, sample.output) for sample in samples] == list(zip(TEXTS, outputs, strict=True))
    assert [sample.equals_a_reference for sample in samples] == [True] * 4 + [False] * 2
    printed = console.file.getvalue()
    assert f"abc -> {outputs[0]}  (right)" in printed
    assert "(not no such / text)" in printed


def test_inputs_of_the_recipe_are_shown(saved):
    console = quiet()
    samples = show(saved, options(inputs=["ab", "[c]"]), console)
    assert [(sample.source, sample.equals_a_reference) for sample in samples] == [("ab", None), ("[c]", None)]
    assert [line.split(" -> ")[0].strip() for line in console.file.getvalue().splitlines()] == ["ab", "[c]"]


def test_signatures_are_those_of_an_evaluation_of_all_of_it():
    from transduct.decoding.measuring import measure as measure_all

    references = [["a b", "c"], ["d e f"], ["", "g"], [""]]
    metrics = {"BLEU": "bleu", "chrF": "chrf", "word error": "token_error"}
    outputs = ["a b", "d e", "g", "h"]
    whole = measure_all(outputs[:3], references[:3], metrics, resamples=0)
    assert signatures(metrics, references) == {name: values["signature"] for name, values in whole.items()}
    assert "nrefs:var" in signatures(metrics, references)["BLEU"]
    assert "nrefs:1" in signatures(metrics, [["a"], ["b"]])["BLEU"]
    assert signatures(metrics, [[""], ["  "]]) == {}

"""`transduct.evaluate`: what the model writes is what is measured; outputs of files; what does not fit."""

import inspect
import json

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

import transduct
from tiny_translation import tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.decoding.evaluate import NOT_MEASURED, OF_STRATEGIES, OPTIONS, read_outputs
from transduct.decoding.test_sets import Columns
from transduct.training.metrics import METRICS
from transduct.training.predictions import read_predictions

SOURCES = ["hello there.", "abc", "xyz? no!", "what", "a"]
REFERENCES = [["hallo da.", "hello"], ["abc"], ["xyz", "no"], ["was"], ["a", "b", "c"]]
PAIRS = list(zip(SOURCES, REFERENCES, strict=True))


@pytest.fixture(scope="module")
def loaded():
    return tiny_translation()


def scores(result):
    return {name: values["score"] for name, values in result["metrics"].items()}


def test_what_the_model_writes_is_measured(loaded, tmp_path):
    outputs = transduct.translate(*loaded, SOURCES, num_beams=2, max_new_tokens=6)
    named = {"per": "token_error", "chrf": "chrf"}
    file = tmp_path / "new" / "outputs.jsonl"
    found = transduct.evaluate(*loaded, PAIRS, named, predictions=file, num_beams=2, max_new_tokens=6, window=2, resamples=20)
    assert found["examples"] == 5
    assert scores(found) == pytest.approx({name: METRICS[metric](outputs, REFERENCES) for name, metric in named.items()})
    assert read_predictions(file) == (outputs, REFERENCES)
    assert [json.loads(line)["source"] for line in file.read_text().splitlines()] == SOURCES
    assert read_outputs(file, 5) == outputs
    assert [path.name for path in file.parent.iterdir()] == ["outputs.jsonl"]
    again = transduct.evaluate(None, None, PAIRS, named, hypotheses=outputs, resamples=20)
    assert again == found


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "seed": 3, "top_k": 0},
        {"minimum_bayes_risk": "chrf", "num_samples": 4},
        {"drafts": True, "no_repeat_ngram_size": 2},
        {"replace_unknown": True, "alignment_layer": 0},
        {"max_length_by_source": (0, 3), "num_beams": 1},
    ],
    ids=str,
)
def test_options_of_translate_are_those_of_an_evaluation(loaded, tmp_path, options):
    file = tmp_path / "outputs.jsonl"
    transduct.evaluate(*loaded, PAIRS, ["wer"], predictions=file, max_new_tokens=6, resamples=0, **options)
    outputs = transduct.translate(*loaded, SOURCES, max_new_tokens=6, **options)
    assert read_outputs(file, 5) == outputs != transduct.translate(*loaded, SOURCES, max_new_tokens=7)


def test_every_argument_of_translate_is_taken_or_refused_by_name(loaded):
    taken = inspect.signature(transduct.translate).parameters.keys() - {"texts", "generation"}
    named = inspect.signature(transduct.evaluate).parameters.keys()
    others = {"alignment_layer", "alignment_heads"}
    assert taken - named == OPTIONS | OF_STRATEGIES | NOT_MEASURED | others
    for name in NOT_MEASURED:
        with pytest.raises(ValueError, match=f"^{name}: one text for each source is measured"):
            transduct.evaluate(*loaded, PAIRS, **{name: 1})


def test_predictions_are_there_while_they_come(loaded, tmp_path):
    """A source that is refused ends the run; what was written before is kept, under another name."""
    file = tmp_path / "outputs.jsonl"
    pairs = [*PAIRS[:4], ("too long " * 40, "a")]
    with pytest.raises(ValueError, match="line 5 has"):
        transduct.evaluate(*loaded, pairs, predictions=file, max_new_tokens=4, window=2, max_source_length=30)
    part = tmp_path / "outputs.jsonl.part"
    assert [json.loads(line)["index"] for line in part.read_text().splitlines()] == [0, 1, 2, 3]
    assert not file.exists()
    options = dict(predictions=file, resume=True, max_new_tokens=4, window=2, max_source_length=30)
    found = transduct.evaluate(*loaded, [*pairs[:4], PAIRS[4]], ["chrf"], **options)
    assert found == transduct.evaluate(*loaded, [*pairs[:4], PAIRS[4]], ["chrf"], max_new_tokens=4)
    assert len(read_outputs(file, 5)) == 5


def test_a_run_goes_on_with_its_own_model_alone(tmp_path):
    """Models are known by the names that they were loaded by, those that draft, too."""
    file = tmp_path / "outputs.jsonl"
    for name, seed in (("one", 0), ("other", 7)):
        for part in tiny_translation(seed=seed):
            part.save_pretrained(tmp_path / name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    one, again, other = (
        TransductForConditionalGeneration.from_pretrained(tmp_path / name, dtype=torch.float32)
        for name in ("one", "one", "other")
    )
    options = dict(metrics=["wer"], predictions=file, max_new_tokens=4, window=1, resamples=0, max_source_length=30)
    with pytest.raises(ValueError, match="line 2 has"):
        transduct.evaluate(one, tokenizer, [PAIRS[0], ("too long " * 40, "a")], drafts=one, **options)
    options |= dict(resume=True)
    for model, drafts, name in ((other, one, "model"), (one, other, "drafts")):
        with pytest.raises(ValueError, match=rf"was written with {name}='.*one', now it is '.*other': say the same"):
            transduct.evaluate(model, tokenizer, PAIRS, drafts=drafts, **options)
    transduct.evaluate(again, tokenizer, PAIRS, drafts=again, **options)
    assert len(read_outputs(file, 5)) == 5


def test_data_of_every_kind(loaded, tmp_path):
    expected = transduct.evaluate(*loaded, PAIRS, ["wer"], max_new_tokens=6, resamples=0)
    rows = [{"en": source, "de": accepted} for source, accepted in PAIRS]
    columns = Columns("en", "de")
    assert (
        transduct.evaluate(*loaded, Dataset.from_list(rows), ["wer"], columns=columns, max_new_tokens=6, resamples=0) == expected
    )
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert transduct.evaluate(*loaded, path, ["wer"], columns=columns, max_new_tokens=6, resamples=0) == expected
    first = [accepted[0] for accepted in REFERENCES]
    files = [tmp_path / "en", tmp_path / "de"]
    for file, lines in zip(files, (SOURCES, first), strict=True):
        file.write_text("\n".join(lines) + "\n")
    pairs = list(zip(SOURCES, first, strict=True))
    assert transduct.evaluate(*loaded, files, ["wer"], max_new_tokens=6, resamples=0) == transduct.evaluate(
        *loaded, pairs, ["wer"], max_new_tokens=6, resamples=0
    )


def test_a_baseline(loaded):
    baseline = [accepted[0] for accepted in REFERENCES]
    found = transduct.evaluate(*loaded, PAIRS, ["bleu", "exact_match"], baseline=baseline, max_new_tokens=6, resamples=50)
    assert found["metrics"]["exact_match"]["baseline"] == 1
    assert found["metrics"]["bleu"]["baseline"] == pytest.approx(METRICS["bleu"](baseline, REFERENCES))
    assert all(0 < values["p_value"] <= 1 for values in found["metrics"].values())


def test_outputs_of_files(tmp_path):
    lines = tmp_path / "out.txt"
    lines.write_bytes(b"eins\n\nzwei drei\r\n")
    assert read_outputs(lines, 3) == ["eins", "", "zwei drei"]
    with pytest.raises(ValueError, match=r"out.txt has 3 outputs, but there are 4 examples"):
        read_outputs(lines, 4)
    translated = tmp_path / "out.jsonl"
    translated.write_text('{"index": 0, "translation": "eins"}\n{"prediction": "zwei"}\n')
    assert read_outputs(translated, 2) == ["eins", "zwei"]
    for bad, message in (
        ("nonsense", "line 1 of .* is not JSON"),
        ("{}", "has no text under prediction"),
        ("[1]", "has no text"),
    ):
        translated.write_text(bad + "\n")
        with pytest.raises(ValueError, match=message):
            read_outputs(translated, 1)
    lines.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_outputs(lines, 1)


def test_arguments_that_contradict_each_other(loaded):
    for arguments, options, message in (
        (loaded, {"hypotheses": SOURCES}, "leave out model, tokenizer, window and search options"),
        ((None, loaded[1]), {"hypotheses": SOURCES}, "leave out model, tokenizer"),
        ((None, None), {"hypotheses": SOURCES, "num_beams": 2}, "leave out model, tokenizer"),
        ((None, None), {"hypotheses": SOURCES, "window": 3}, "leave out model, tokenizer, window"),
        ((None, None), {}, "model or tokenizer is None"),
        ((None, None), {"hypotheses": SOURCES, "predictions": "x"}, "predictions would be the hypotheses again"),
        ((None, None), {"hypotheses": SOURCES[:2]}, "there are 2 predictions, but 5 examples"),
        (loaded, {"metrics": ["blue"]}, "metric 'blue' is unknown"),
        (loaded, {"num_beams": 0}, "num_beams=0 must be a whole number of at least 1"),
        (loaded, {"tgt_lang": "de"}, "tgt_lang='de'"),
    ):
        with pytest.raises(ValueError, match=message):
            transduct.evaluate(*arguments, PAIRS, **options)
    with pytest.raises(ValueError, match="there are no examples"):
        transduct.evaluate(*loaded, [])

"""Metrics with signatures, confidence and comparison: sacreBLEU's own figures, and ours by a second implementation."""

import numpy as np
import pytest
import sacrebleu

from transduct.decoding.measuring import ALIASES, measure, named_metrics
from transduct.training.metrics import METRICS

PREDICTIONS = ["the cat sat on the mat", "a b d", "yes it is so", "no", "the dog ran far away"]
REFERENCES = [
    ("the cat sat on a mat", "a cat was on the mat"),
    ("a b c d",),
    ("yes it is so",),
    ("yes", "no"),
    ("a dog ran away",),
]
OTHER = ["a cat was on the mat", "a b c d", "yes it is", "no", "a dog ran"]


def test_scores_are_those_of_training():
    found = measure(PREDICTIONS, REFERENCES, named_metrics(list(METRICS)), resamples=0)
    assert {name: values["score"] for name, values in found.items()} == pytest.approx(
        {name: metric(PREDICTIONS, REFERENCES) for name, metric in METRICS.items()}
    )
    assert [name for name, values in found.items() if not values["higher_is_better"]] == ["token_error", "sequence_error", "ter"]
    assert not any("confidence" in values for values in found.values())


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_confidence_and_signature_are_sacrebleus(metric):
    counter = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}[metric]()
    streams = [[accepted[0] for accepted in REFERENCES], ["a cat was on the mat", None, None, "no", None]]
    expected = counter.corpus_score(PREDICTIONS, streams, n_bootstrap=50)
    found = measure(PREDICTIONS, REFERENCES, {"x": metric}, resamples=50)["x"]
    assert (found["score"], found["mean"], found["confidence"]) == pytest.approx(
        (expected.score, expected._mean, expected._ci), rel=1e-6
    )
    assert str(counter.get_signature()) == found["signature"]
    assert {"nrefs:var", "bs:50", "seed:12345"} <= set(found["signature"].split("|"))


@pytest.mark.parametrize("metric", ["token_error", "exact_match", "sequence_error", "rouge_lsum"])
def test_confidence_of_ours(metric):
    """Against the metric itself on the same resampled test sets."""
    found = measure(PREDICTIONS, REFERENCES, {metric: metric}, OTHER, resamples=40)[metric]
    rng = np.random.default_rng(12345)
    drawn = [rng.integers(5, size=5) for _ in range(40)]
    one, two = (
        np.array([METRICS[metric]([outputs[i] for i in rows], [REFERENCES[i] for i in rows]) for rows in drawn])
        for outputs in (PREDICTIONS, OTHER)
    )
    ordered = sorted(one)
    assert found["mean"] == pytest.approx(one.mean())
    assert found["confidence"] == pytest.approx((ordered[38] - ordered[1]) / 2)  # 2.5 % of 40 on either side
    assert found["baseline"] == pytest.approx(METRICS[metric](OTHER, REFERENCES))
    differences = abs(one - two)
    real = abs(found["score"] - found["baseline"])
    assert found["p_value"] == pytest.approx((sum(differences - differences.mean() > real) + 1) / 41)
    assert "nrefs:var|bs:40|seed:12345" in found["signature"]


def test_the_seed_is_sacrebleus(monkeypatch):
    usual = measure(PREDICTIONS, REFERENCES, named_metrics(["bleu", "wer"]), resamples=30)
    assert usual == measure(PREDICTIONS, REFERENCES, named_metrics(["bleu", "wer"]), resamples=30)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    for name, values in measure(PREDICTIONS, REFERENCES, named_metrics(["bleu", "wer"]), resamples=30).items():
        assert "seed:7" in values["signature"]
        assert values["mean"] != usual[name]["mean"]
        assert values["score"] == usual[name]["score"]


@pytest.mark.parametrize("metric", ["bleu", "chrf", "token_error", "rouge_lsum"])
def test_a_system_is_not_better_than_itself_and_better_than_nonsense(metric):
    references = [(f"the cat number {i} sat on the mat of house {i % 7}",) for i in range(60)]
    good = [text if i % 3 else text.replace("cat", "dog") for i, (text,) in enumerate(references)]
    same = measure(good, references, {metric: metric}, good, resamples=100)[metric]
    assert same["p_value"] == 1
    assert same["score"] == same["baseline"]
    bad = ["the cat" if i % 2 else text for i, text in enumerate(good)]
    assert measure(good, references, {metric: metric}, bad, resamples=100)[metric]["p_value"] < 0.02


def test_an_interval_holds_the_score_and_narrows_with_more_examples():
    references = [("a b c d",)] * 40
    outputs = ["a b c d", "a b c", "a x y d", "b c"] * 10
    few, many = (measure(outputs[:n], references[:n], {"per": "token_error"}, resamples=200)["per"] for n in (8, 40))
    for values in (few, many):
        assert abs(values["score"] - values["mean"]) < values["confidence"]
    assert many["confidence"] < 0.7 * few["confidence"]


def test_names_of_metrics():
    assert named_metrics(["wer", "bleu"]) == {"wer": "token_error", "bleu": "bleu"}
    assert named_metrics({"phoneme error": "token_error"}) == {"phoneme error": "token_error"}
    assert set(ALIASES.values()) <= set(METRICS)
    with pytest.raises(ValueError, match=r"metric 'blue' is unknown; choose one of token_error, .*bleu, .*wer"):
        named_metrics(["bleu", "blue"])
    with pytest.raises(ValueError, match="metrics is empty"):
        named_metrics([])
    with pytest.raises(ValueError, match=r"metrics='bleu' must be a list"):
        named_metrics("bleu")


@pytest.mark.parametrize(
    ("predictions", "references", "options", "message"),
    [
        (["a"], [("a",), ("b",)], {}, "there are 1 predictions, but 2 examples"),
        (["a"], [("a",)], {"baseline": ["a", "b"]}, "there are 2 outputs of the baseline, but 1 examples"),
        ([], [], {}, "there are no examples"),
        (["a", "b"], [("a",), ("", " ")], {}, "example 2 has no reference that is not empty"),
        (["a"], [()], {}, "example 1 has no reference"),
        (["a"], [("a",)], {"resamples": -1}, "resamples=-1 must be at least 0"),
        (["a"], [("a",)], {"resamples": 0, "baseline": ["a"]}, "a comparison with a baseline needs resampled"),
    ],
)
def test_what_does_not_fit_is_refused(predictions, references, options, message):
    with pytest.raises(ValueError, match=message):
        measure(predictions, references, {"bleu": "bleu"}, **options)

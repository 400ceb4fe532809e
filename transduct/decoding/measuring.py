"""How good outputs are, and how sure that is: metrics with signature, confidence interval and comparison with a baseline.

The metrics are those of `training/metrics.py`. Confidence and comparison come from resampling the test set with replacement
(Koehn 2004, "Statistical significance tests for machine translation evaluation"):
- BLEU, chrF and TER by sacreBLEU's own paired bootstrap;
- the others by the same procedure here, with the same seed: 12345, or what the environment variable SACREBLEU_SEED says.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transduct.training.metrics import METRICS, closest_edits, higher_is_better, reference_streams

ROUGE = {"rouge1": "rouge_1", "rouge2": "rouge_2", "rougeL": "rouge_l", "rougeLsum": "rouge_lsum"}
ALIASES = {"wer": "token_error", "per": "token_error", "chrf2": "chrf", **ROUGE}
"""Other names of metrics: word and phoneme error rates are token error rates, with words or phones as tokens."""
RESAMPLES = 1000
TOKENS = dict.fromkeys(ROUGE.values(), "case:lc|tok:alphanumeric|stem:no")
"""How texts are made tokens, where it is not by white space."""

Measured = dict[str, Any]
"""`metric`, `score`, `signature`, `higher_is_better`; of resampled test sets `mean` and `confidence`, half the width of the 95 %
interval; with a baseline its score as `baseline`, and `p_value`, the probability of such a difference by chance."""


def named_metrics(metrics: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The names to show with those of `METRICS`.

    Raises:
        ValueError: for an unknown metric, naming those that there are, and for none.
    """
    if isinstance(metrics, str):
        raise ValueError(f"metrics={metrics!r} must be a list of names, such as [{metrics!r}]")
    named = dict(metrics) if isinstance(metrics, Mapping) else {name: name for name in metrics}
    if not named:
        raise ValueError(f"metrics is empty; choose some of {', '.join(METRICS)}")
    for name, metric in named.items():
        named[name] = ALIASES.get(metric, metric)
        if named[name] not in METRICS:
            raise ValueError(f"metric {metric!r} is unknown; choose one of {', '.join([*METRICS, *ALIASES])}")
    return named


def measure(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Mapping[str, str],
    baseline: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
) -> dict[str, Measured]:
    """Each of the metrics of the outputs.

    Args:
        references: one or more for each output, not equally many for all.
        metrics: of `named_metrics`.
        baseline: outputs of another system for the same inputs.
        resamples: test sets to draw; 0: none, for the scores alone.

    Raises:
        ValueError: for numbers that do not fit each other.
    """
    _check(predictions, references, baseline, resamples)
    measured = {}
    for name, metric in metrics.items():
        by = _by_sacrebleu if metric in ("bleu", "chrf", "ter") else _by_shares
        values = by(metric, predictions, references, baseline, resamples)
        if values.get("baseline") == values["score"]:
            values["p_value"] = 1.0  # chance always does as much as nothing; the test counts larger differences alone
        measured[name] = {"metric": metric, **values, "higher_is_better": higher_is_better(metric)}
    return measured


def _check(
    predictions: Sequence[str], references: Sequence[Sequence[str]], baseline: Sequence[str] | None, resamples: int
) -> None:
    for what, texts in (("predictions", predictions), ("outputs of the baseline", baseline)):
        if texts is not None and len(texts) != len(references):
            raise ValueError(f"there are {len(texts):,} {what}, but {len(references):,} examples: each needs its own")
    if not references:
        raise ValueError("there are no examples, so that there is nothing to measure")
    for number, accepted in enumerate(references, start=1):
        if not any(text.strip() for text in accepted):
            raise ValueError(f"example {number} has no reference that is not empty")
    if resamples < 0:
        raise ValueError(f"resamples={resamples} must be at least 0")
    if baseline is not None and resamples == 0:
        raise ValueError("resamples=0: a comparison with a baseline needs resampled test sets")


# ---- sacreBLEU's metrics ---------------------------------------------------------------------------------------------------
def _by_sacrebleu(
    metric: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    baseline: Sequence[str] | None,
    resamples: int,
) -> Measured:
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    counter = {"bleu": BLEU, "chrf": CHRF, "ter": TER}[metric]()
    streams = reference_streams(references)
    if resamples == 0:
        score = counter.corpus_score(list(predictions), streams).score
        return {"score": score, "signature": str(counter.get_signature())}
    systems = [("system", list(predictions))]
    if baseline is not None:
        systems.insert(0, ("baseline", list(baseline)))
    signatures, results = PairedTest(systems, {metric: counter}, streams, test_type="bs", n_samples=resamples)()
    ((name, signature),) = signatures.items()
    found = results[name][-1]
    measured = {"score": float(found.score), "signature": str(signature)}
    measured |= {"mean": float(found.mean), "confidence": float(found.ci)}
    if baseline is not None:
        measured |= {"baseline": float(results[name][0].score), "p_value": float(found.p_value)}
    return measured


# ---- our own ---------------------------------------------------------------------------------------------------------------
def _by_shares(
    metric: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    baseline: Sequence[str] | None,
    resamples: int,
) -> Measured:
    """Metrics that are a sum over examples by a sum over examples."""
    counts = {len(accepted) for accepted in references}
    seed = _seed()
    parts = [f"nrefs:{counts.pop() if len(counts) == 1 else 'var'}"]
    parts += [f"bs:{resamples}", f"seed:{str(seed).lower()}"] if resamples else []
    parts += [TOKENS.get(metric, "case:mixed|tok:whitespace"), f"version:{_version()}"]
    systems = [predictions] if baseline is None else [predictions, baseline]
    shares = np.array([_shares(metric, outputs, references) for outputs in systems])  # (systems, examples, 2)
    scores = _ratio(shares.sum(1))  # (systems)
    measured: Measured = {"score": float(scores[0]), "signature": "|".join(parts)}
    if resamples == 0:
        return measured
    from sacrebleu.significance import estimate_ci

    rng = np.random.default_rng(seed)
    drawn = [rng.integers(len(predictions), size=len(predictions)) for _ in range(resamples)]
    resampled = np.array([_ratio(shares[:, rows].sum(1)) for rows in drawn])  # (resamples, systems)
    mean, half_width = estimate_ci(resampled[:, 0])
    measured |= {"mean": float(mean), "confidence": float(half_width)}
    if baseline is not None:
        measured |= {"baseline": float(scores[1]), "p_value": _p_value(resampled, abs(scores[0] - scores[1]))}
    return measured


def _shares(metric: str, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[tuple[float, float]]:
    """What each output adds to numerator and denominator."""
    if metric == "token_error":
        return [closest_edits(text, accepted) for text, accepted in zip(predictions, references, strict=True)]
    one: Callable[..., float] = METRICS[metric]  # a mean over examples
    return [(one([text], [accepted]), 1) for text, accepted in zip(predictions, references, strict=True)]


def _ratio(sums: np.ndarray) -> np.ndarray:
    """Numerators by denominators (..., 2)."""
    return sums[..., 0] / sums[..., 1]


def _p_value(resampled: np.ndarray, difference: float) -> float:
    """How often the difference of resampled systems (resamples, 2) exceeds its mean by more than the one that was observed."""
    differences = np.abs(resampled[:, 0] - resampled[:, 1])
    beyond = np.sum(differences - differences.mean() > difference)
    return float(beyond + 1) / (len(resampled) + 1)


def _seed() -> int | None:
    """The one that sacreBLEU uses."""
    said = os.environ.get("SACREBLEU_SEED", "12345")
    return None if said.lower() == "none" else int(said)


def _version() -> str:
    from transduct import __version__

    return f"transduct-{__version__}"

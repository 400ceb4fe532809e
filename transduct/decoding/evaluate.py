"""What a model makes of a test set, measured: `transduct.evaluate`, on which `transduct evaluate` rests.

Outputs are written while they come, as JSON lines (`training/predictions.py`), so that they can be measured again by other
metrics, or serve as the baseline of another system.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transduct.decoding.lines import read_lines
from transduct.decoding.measuring import RESAMPLES, measure, named_metrics
from transduct.decoding.progress import progress_bar
from transduct.decoding.sharing import Processes
from transduct.decoding.test_sets import Columns, Example, examples_of_pairs, open_test_set
from transduct.decoding.translator import TranslationOptions, Translator
from transduct.decoding.windows import WINDOW, windows
from transduct.training.predictions import PredictionFile, TextMetrics

OPTIONS = frozenset(field.name for field in fields(TranslationOptions)) - {"alignments", "num_return_sequences", "generation"}
"""Arguments of `translate` that an evaluation has, too."""

Predict = Callable[[Sequence[str], Sequence[int]], list[str]]
"""The outputs for sources with these numbers."""


def evaluate(
    model: Any,
    tokenizer: Any,
    data: Any,
    metrics: Sequence[str] | Mapping[str, str] = ("bleu", "chrf"),
    *,
    hypotheses: Sequence[str] | None = None,
    baseline: Sequence[str] | None = None,
    resamples: int = RESAMPLES,
    predictions: str | Path | None = None,
    columns: Columns | None = None,
    window: int = WINDOW,
    progress: bool = False,
    **search: Any,
) -> dict[str, Any]:
    """Translate a test set, or summarise or correct it, and measure what came of it.

    Args:
        model, tokenizer: as of `translate`; None with `hypotheses`.
        data: pairs (source, reference or list of references); a data set with the columns `columns`; or what `open_test_set`
            reads: the name of a file or data set, or a list of names of a file of sources and files of references.
        metrics: of bleu, chrf, ter, rouge_lsum, exact_match, sequence_error and token_error (wer, per), or a mapping of names to
            show to these.
        hypotheses: outputs that are there already, to be measured in place of a model's.
        baseline: outputs of another system, to compare with.
        resamples: test sets to draw for confidence and comparison; 0: none.
        predictions: a file to write outputs to.
        columns: where the texts are.
        window, progress, search: arguments of `translate`, such as `num_beams` or `tgt_lang`.

    Returns:
        `{"examples": number, "metrics": {name: ...}}`, each with `score`, `signature`, `mean`, `confidence`, and with a baseline
        `baseline` and `p_value`; see `measuring.py`.

    Raises:
        ValueError: for unknown metrics, bad examples, and numbers of texts that do not fit each other.
    """
    named = named_metrics(metrics)
    columns = columns or Columns()
    names = [data] if isinstance(data, (str, Path)) else data
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, (str, Path)) for name in names):
        examples = list(open_test_set([str(name) for name in names], columns))
    else:
        examples = list(examples_of_pairs(data, columns))
    if hypotheses is not None and (model is not None or search):
        raise ValueError("hypotheses are measured in place of what a model writes: leave out model and search options, or them")
    if hypotheses is None:
        if model is None or tokenizer is None:
            raise ValueError("model or tokenizer is None: evaluate needs both, or hypotheses")
        work = translating(model, tokenizer, search)
        hypotheses = predict(examples, work, None if predictions is None else Path(predictions), window, progress)
    elif predictions is not None:
        raise ValueError("predictions would be the hypotheses again: leave it out")
    return report(examples, hypotheses, named, baseline, resamples)


def report(
    examples: Sequence[Example],
    outputs: Sequence[str],
    metrics: Mapping[str, str],
    baseline: Sequence[str] | None,
    resamples: int,
) -> dict[str, Any]:
    """What `evaluate` returns, of outputs."""
    references = [example.references for example in examples]
    return {"examples": len(examples), "metrics": measure(outputs, references, metrics, baseline, resamples)}


def translating(model: Any, tokenizer: Any, search: Mapping[str, Any]) -> Predict:
    """A model as what writes the best hypothesis for each source."""
    own = {name: value for name, value in search.items() if name in OPTIONS}
    generation = {name: value for name, value in search.items() if name not in OPTIONS}
    translator = Translator(model, tokenizer, TranslationOptions(**own, generation=generation))
    return lambda sources, numbers: [found[0].text for found in translator(sources, numbers)]


def predict(
    examples: Sequence[Example],
    work: Predict,
    file: Path | None = None,
    window: int = WINDOW,
    progress: bool = False,
    processes: Processes | None = None,
) -> list[str]:
    """The outputs for all examples, in order; of several processes, the main one has them.

    Args:
        file: where they are written, window by window; it has its name once it is whole.
        processes: that share each window.
    """
    written = None
    if file is not None and (processes is None or processes.is_main):
        references, sources = [example.references for example in examples], [example.source for example in examples]
        written = PredictionFile(TextMetrics(None, references, {}, sources=sources), file)
    outputs: list[str] = []
    done = 0
    with progress_bar(progress) as bar:
        task = bar.add_task("evaluating", total=len(examples))
        own = windows((example.source for example in examples), window)
        for some in own if processes is None else processes.windows(own):
            numbers = range(done + 1, done + 1 + len(some))
            texts = work(some, numbers) if processes is None else processes.share(work, some, done + 1)
            outputs += texts
            done += len(some)
            if written is not None:
                written.add(texts)
            bar.update(task, completed=done)
    if written is not None and examples:
        written.unfinished.replace(written.path)
    return outputs


def read_outputs(name: str | Path, examples: int) -> list[str]:
    """Outputs of a file: lines of text, or in ".jsonl" what `evaluate --predictions` or `translate --json` wrote.

    Raises:
        ValueError: for a line that is not UTF-8 or no JSON object with an output, and for more or fewer than the examples.
    """
    with Path(name).open("rb") as file:
        outputs = list(read_lines(file, str(name)))
    if Path(name).suffix == ".jsonl":
        outputs = [_output_of(line, f"line {number} of {name}") for number, line in enumerate(outputs, start=1)]
    if len(outputs) != examples:
        raise ValueError(f"{name} has {len(outputs):,} outputs, but there are {examples:,} examples: each needs its own")
    return outputs


def _output_of(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    text = next((row[key] for key in ("prediction", "translation") if key in row), None) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{where} has no text under prediction or translation")
    return text

"""What a model makes of a test set, measured: `transduct.evaluate`, on which `transduct evaluate` rests.

Outputs are written while they come, as JSON lines as `training/predictions.py` writes them, so that a run that was killed can go
on, and they can be measured again by other metrics, or serve as the baseline of another system.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from transduct.decoding.engines import Engine, load_engine
from transduct.decoding.lines import OutputFile, read_lines
from transduct.decoding.measuring import RESAMPLES, measure, named_metrics
from transduct.decoding.progress import progress_bar
from transduct.decoding.sharing import Processes
from transduct.decoding.strategies import Strategy
from transduct.decoding.test_sets import Columns, Example, examples_of_pairs, open_test_set
from transduct.decoding.translate import alignment_options
from transduct.decoding.translator import TranslationOptions, Translator
from transduct.decoding.windows import WINDOW, windows
from transduct.terminal import printable

OF_STRATEGIES = frozenset(field.name for field in fields(Strategy))
"""Arguments of `translate` that are fields of a strategy."""
OPTIONS = frozenset(field.name for field in fields(TranslationOptions)) - {
    "alignments", "generation", "num_return_sequences", "strategy",
}  # fmt: skip
"""Arguments of `translate` that are fields of its options, and that an evaluation has, too."""
NOT_MEASURED = frozenset({"num_return_sequences", "phrases", "return_alignments", "return_scores", "target_prefixes"})
"""Arguments of `translate` that an evaluation has not: it measures one text for each source, from the source alone."""

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
    resume: bool = False,
    columns: Columns | None = None,
    window: int = WINDOW,
    progress: bool = False,
    share: bool = False,
    engine: Engine | None = None,
    **search: Any,
) -> dict[str, Any]:
    """Translate a test set, or summarise or correct it, and measure what came of it.

    Args:
        model, tokenizer: as of `translate`; None with `hypotheses`.
        data: pairs (source, reference or list of references); a data set with the columns `columns`; or what `open_test_set`
            reads: the name of a file or data set, or a list of names of a file of sources and files of references.
        metrics: of bleu, chrf, ter, rouge_1, rouge_2, rouge_l, rouge_lsum, exact_match, sequence_error and token_error (wer,
            per), or a mapping of names to show to these.
        hypotheses: outputs that are there already, to be measured in place of a model's.
        baseline: outputs of another system, to compare with.
        resamples: test sets to draw for confidence and comparison; 0: none.
        predictions: a file to write outputs to. resume: go on with it where a run was stopped, with the same options and the
            same model. Models are known by the names that they were loaded by: of two that were made in Python, or changed since,
            nothing tells that they are not the same.
        columns: where the texts are.
        window, progress, share, engine, search: arguments of `translate`, such as `num_beams`, `tgt_lang` or `do_sample`; all but
            those of `NOT_MEASURED`.

    Returns:
        `{"examples": number, "metrics": {name: ...}}`, each with `score`, `signature`, `mean`, `confidence`, and with a baseline
        `baseline` and `p_value`; see `measuring.py`.

    Raises:
        ValueError: for unknown metrics, bad examples, numbers of texts that do not fit each other, and as of `translate`.
    """
    named = named_metrics(metrics)
    columns = columns or Columns()
    names = [data] if isinstance(data, (str, Path)) else data
    if isinstance(names, (list, tuple)) and names and all(isinstance(name, (str, Path)) for name in names):
        examples = list(open_test_set([str(name) for name in names], columns))
    else:
        examples = list(examples_of_pairs(data, columns))
    if resume and predictions is None:
        raise ValueError("resume=True belongs to predictions, the file to go on with")
    unused = search or window != WINDOW or any(each is not None for each in (model, tokenizer, engine))
    if hypotheses is not None and unused:
        raise ValueError(
            "hypotheses are measured in place of what a model writes: leave out model, tokenizer, window and search "
            "options, or them"
        )
    if hypotheses is None:
        if model is None or tokenizer is None:
            raise ValueError("model or tokenizer is None: evaluate needs both, or hypotheses")
        settings: dict[str, Any] = {name: str(_known_as(value)) for name, value in search.items()}
        settings |= {"command": "evaluate", "engine": engine, "model": str(_known_as(model))}
        if engine is not None or isinstance(model, (str, Path)):
            model = load_engine(model, engine)
        written = None if predictions is None else Written(Path(predictions), settings, resume)
        hypotheses = predict(examples, translating(model, tokenizer, search), written, window, progress, Processes(share))
    elif predictions is not None:
        raise ValueError("predictions would be the hypotheses again: leave it out")
    return report(examples, hypotheses, named, baseline, resamples)


def _known_as(value: Any) -> Any:
    """What tells a value from others when a run goes on: of a model the name that it was loaded by, "" for one made here."""
    return getattr(value, "name_or_path", value)


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
    """A model as what writes the best hypothesis for each source.

    Args:
        search: arguments of `translate`.

    Raises:
        ValueError: for those of `NOT_MEASURED`, and for options that contradict each other.
    """
    if refused := sorted(NOT_MEASURED.intersection(search)):
        raise ValueError(
            f"{', '.join(refused)}: one text for each source is measured, and what the source alone gives; leave it out, or "
            "measure what translate gives, as hypotheses"
        )
    rest = dict(search)
    alignments = alignment_options(False, rest.pop("alignment_layer", None), rest.pop("alignment_heads", None))
    strategy = Strategy(**{name: rest.pop(name) for name in OF_STRATEGIES.intersection(rest)})
    own = {name: rest.pop(name) for name in OPTIONS.intersection(rest)}
    options = TranslationOptions(**own, alignments=alignments, strategy=strategy, generation=rest)
    translator = Translator(model, tokenizer, options)
    return lambda sources, numbers: [found[0].text for found in translator(sources, numbers)]


@dataclass(frozen=True)
class Written:
    """Where outputs are written while they come.

    Args:
        path: of the file once it is whole; settings: what the outputs depend on; resume: go on where a run was stopped.
    """

    path: Path
    settings: Mapping[str, Any]
    resume: bool = False


def predict(
    examples: Sequence[Example], work: Predict, written: Written | None, window: int, progress: bool, processes: Processes
) -> list[str]:
    """The outputs for all examples, in order.

    Args:
        written: where they are written, window by window; None: nowhere. processes: that share each window.

    Raises:
        ValueError: as of `OutputFile`, and for a file to go on with that is of other examples.
    """
    with ExitStack() as stack:
        file: OutputFile | None = None

        def begin() -> list[str]:
            nonlocal file
            if written is None:
                return []
            done, file = _begun(written, examples, stack)
            return done

        outputs = processes.from_main(begin)
        bar = stack.enter_context(progress_bar(progress and processes.is_main))
        task = bar.add_task("evaluating", total=len(examples), completed=len(outputs))
        for sources in processes.windows(windows((example.source for example in examples[len(outputs) :]), window)):
            first = len(outputs)
            texts = processes.share(work, sources, first + 1)
            outputs += texts
            if written is not None:
                processes.from_main(partial(_write, file, _rows(examples, texts, first), len(outputs)))
            bar.update(task, completed=len(outputs))
        processes.from_main(lambda: None if file is None else file.finish())
    return outputs


def _write(file: OutputFile | None, rows: Sequence[str], done: int) -> None:
    if file is not None:
        file.write(rows, done, "")  # the rows say what they are of


def _begun(written: Written, examples: Sequence[Example], stack: ExitStack) -> tuple[list[str], OutputFile | None]:
    """The outputs that an earlier run has written, and the file that further ones belong to; None: all are there."""
    written.path.parent.mkdir(parents=True, exist_ok=True)
    file = None
    if written.resume and OutputFile.is_whole(written.path):
        with written.path.open("rb") as whole:
            rows = list(read_lines(whole, str(written.path)))
        print(printable(f"{written.path} is whole already: what it holds is measured, whoever wrote it"), file=sys.stderr)
    else:
        file = OutputFile(written.path, dict(written.settings), written.resume)
        stack.callback(file.close)
        rows = file.lines()
    outputs = [_output_of(row, f"line {number} of {written.path}") for number, row in enumerate(rows, start=1)]
    if len(rows) > len(examples) or (file is None and len(rows) < len(examples)) or rows != _rows(examples, outputs, 0):
        raise ValueError(f"{written.path} holds the outputs for other examples: name another file")
    return outputs, file


def _rows(examples: Sequence[Example], outputs: Sequence[str], first: int) -> list[str]:
    """JSON lines of outputs, from that of the example number `first` on."""
    numbered = zip(range(first, first + len(outputs)), outputs, strict=True)
    return [
        json.dumps(
            {"index": number, "source": example.source, "prediction": output, "references": list(example.references)},
            ensure_ascii=False,
        )
        for (number, output), example in zip(numbered, examples[first:], strict=False)
    ]


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

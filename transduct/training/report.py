"""`training_report.html`: how a run went, in one file that needs nothing beside it and can be sent to anybody.

It holds the curves of loss and learning rate and the validation metrics over all starts of the run, the figures of the finished
model on the test set, some of its outputs, and what is needed to do it again: command, recipe, versions, model.
"""

import math
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transduct.accounting import describe
from transduct.files import write_whole
from transduct.training.charts import line_chart
from transduct.training.metrics import without_timings

PACKAGES = ("transduct", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "sacrebleu")
REPORT = "training_report.html"


@dataclass(frozen=True)
class Sample:
    """A source, what the finished model makes of it, and the texts that are right, if that is known."""

    source: str
    output: str
    references: Sequence[str] = ()

    @property
    def equals_a_reference(self) -> bool | None:
        if not self.references:
            return None
        return self.output.split() in [reference.split() for reference in self.references]


@dataclass(frozen=True)
class TrainingRecord:
    """All that the report shows."""

    title: str
    recipe: str
    """The recipe as YAML."""
    history: Sequence[Mapping[str, Any]]
    """`trainer.state.log_history`: a resumed run's holds that of the starts before."""
    model: str
    """What `transduct.describe` says of it, or any text."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the finished model on the test set."""
    samples: Sequence[Sample] = ()
    command: str = ""


def command_line() -> str:
    """The command that this process was started with, as a shell takes it."""
    program, *arguments = sys.argv
    name = Path(program).name
    start = ["python", "-m", "transduct.training"] if name == "__main__.py" else [name]
    return shlex.join([*start, *arguments])


def report_run(
    output: Path, history: Sequence[Mapping[str, Any]], model: Any, metrics: Mapping[str, float], samples: Sequence[Sample]
) -> None:
    """The report of the run in `output`, which holds its `recipe.yaml`.

    Args:
        history: `trainer.state.log_history`.
        model: the finished model; one that is not of this package is described by its class and its number of parameters.
        metrics, samples: of the test set, and whatever else was tried.
    """
    own = model.config.model_type == "transduct"
    described = str(describe(model)) if own else f"{model.num_parameters():,} parameters"
    recipe = (output / "recipe.yaml").read_text(encoding="utf-8")
    record = TrainingRecord(
        str(output), recipe, history, f"{type(model).__name__}\n{described}", metrics, samples, command_line()
    )
    write_whole(output / REPORT, render(record))


def _without_secrets(text: str) -> str:
    return re.sub(r"(hub_token['\"]?\s*[:=]\s*)\S+", r"\1…", text)


def render(record: TrainingRecord) -> str:
    """The page. Every text of the run's is escaped."""
    sections = [
        ("Test set", _metrics(record.metrics)),
        ("Outputs", _samples(record.samples)),
        ("Training", _curves(record.history)),
        ("Validation", _validation(record.history)),
        ("Do it again", _reproduction(record)),
        ("Model", f"<pre>{escape(record.model)}</pre>"),
    ]
    body = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections if content)
    title = escape(record.title)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>{_summary(record.history)}{body}</main></body></html>\n"
    )


STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1c1c1c; --soft: #666; --rule: #ddd;
  --series-1: #2563a8; --series-2: #c2410c; --series-3: #15803d; --series-4: #7e22ce; --equal: #15803d; }
@media (prefers-color-scheme: dark) { :root { --page: #161616; --text: #e6e6e6; --soft: #a0a0a0; --rule: #3a3a3a;
  --series-1: #7ab5f0; --series-2: #f0965a; --series-3: #6fce8f; --series-4: #c79bf2; --equal: #6fce8f; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 50rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h3 { font-size: 1rem; font-weight: normal; margin-bottom: 0; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td { overflow-wrap: anywhere; }
.wide { overflow-x: auto; } .note, .soft { color: var(--soft); font-size: .9rem; }
.equal { color: var(--equal); }
pre { background: color-mix(in srgb, var(--text) 6%, transparent); padding: .7rem; overflow-x: auto; font-size: .85rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; } svg .grid { stroke: var(--rule); }
svg .axis { stroke: var(--soft); } .legend span { margin-right: 1.2rem; font-size: .9rem; }
.legend i { display: inline-block; width: 1rem; height: .2rem; margin-right: .4rem; vertical-align: middle; }
"""


def number(value: Any) -> str:
    """A figure with four digits that count, or what it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return escape(str(value))
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.4g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """Cells are HTML already; all columns but the first are figures, if `numbers`."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["", *([' class="number"' if numbers else ""] * (len(row) - 1))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def logged_points(history: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """(step, value) of all entries with the key; a step that was logged twice, after a resume, counts as it was last."""
    found = {row["step"]: float(row[key]) for row in history if isinstance(row.get(key), (int, float)) and "step" in row}
    return sorted(found.items())


def _summary(history: Sequence[Mapping[str, Any]]) -> str:
    steps = max((row.get("step", 0) for row in history), default=0)
    epochs = max((row.get("epoch") or 0 for row in history), default=0)
    losses = logged_points(history, "loss")
    loss = f", last training loss {number(losses[-1][1])}" if losses else ""
    return f'<p class="soft">{steps:,} steps, {epochs:,.2f} epochs{loss}</p>'


def _metrics(metrics: Mapping[str, float]) -> str:
    if not metrics:
        return ""
    return _table(["metric", "value"], [(escape(name), number(value)) for name, value in metrics.items()])


def _samples(samples: Sequence[Sample]) -> str:
    if not samples:
        return ""
    rows = []
    for sample in samples:
        verdict = {None: "", True: "equal", False: "differs"}[sample.equals_a_reference]
        rows.append((
            escape(sample.source),
            f'<span class="{verdict}">{escape(sample.output)}</span>',
            "<br>".join(map(escape, sample.references)),
            verdict,
        ))  # fmt: skip
    return _table(["source", "output", "reference", ""], rows, numbers=False)


def _curves(history: Sequence[Mapping[str, Any]]) -> str:
    losses = {"training": logged_points(history, "loss"), "validation": logged_points(history, "eval_loss")}
    charts = [("Loss", {name: points for name, points in losses.items() if points})]
    for key, name in (("learning_rate", "Learning rate"), ("grad_norm", "Norm of the gradient"), *_further(history)):
        if points := logged_points(history, key):
            charts.append((name, {name: points}))
    return "".join(f"<h3>{escape(name)}</h3>{line_chart(series, f'{name} by step')}" for name, series in charts)


def _further(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Other numbers that were logged while training, such as tokens a second."""
    known = {"loss", "learning_rate", "grad_norm", "step", "epoch"}
    keys = {key: None for row in history if "loss" in row for key in row if key not in known}
    return [(key, key.replace("_", " ")) for key in keys if len(logged_points(history, key)) > 1]


def _validation(history: Sequence[Mapping[str, Any]]) -> str:
    keys = without_timings({key: None for row in history for key in row if key.startswith("eval_")})
    if not keys:
        return ""
    columns = {key: dict(logged_points(history, key)) for key in keys}
    steps = sorted({step for points in columns.values() for step in points})
    names = [key.removeprefix("eval_").replace("_", " ") for key in keys]
    charts = "".join(
        f"<h3>{escape(name)}</h3>{line_chart({name: list(columns[key].items())}, f'{name} on the validation set by step')}"
        for key, name in zip(keys, names, strict=True)
        if key != "eval_loss"
    )
    rows = [(f"{step:,.0f}", *(number(columns[key][step]) if step in columns[key] else "" for key in keys)) for step in steps]
    table = _table(["step", *map(escape, names)], rows)
    return f"{charts}<details><summary>all {len(rows)} evaluations</summary>{table}</details>"


def _reproduction(record: TrainingRecord) -> str:
    versions = [(name, installed) for name in PACKAGES if (installed := _version(name))]
    rows = [("Python", platform.python_version()), *versions, ("system", f"{platform.system()} {platform.machine()}")]
    command = f"<pre>{escape(_without_secrets(record.command))}</pre>" if record.command else ""
    table = _table(["package", "version"], [(escape(name), escape(value)) for name, value in rows], numbers=False)
    recipe = f"<h3>Recipe</h3><pre>{escape(_without_secrets(record.recipe))}</pre>"
    return f"{command}{recipe}<details><summary>versions</summary>{table}</details>"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:
        return None

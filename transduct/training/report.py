"""`training_report.html`: how a run went, in one file that needs nothing beside it and can be sent to anybody.

It holds the curves of loss and learning rate and the validation metrics over all starts of the run, the figures of the finished
model on the test set, some of its outputs, and what is needed to do it again: command, recipe, versions, model.
"""

import math
import os
import platform
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduct.accounting import describe
from transduct.files import write_whole
from transduct.plot import training_curves
from transduct.training.history import History, logged_points
from transduct.training.metrics import without_timings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    history: History
    """`trainer.state.log_history`: a resumed run's holds that of the starts before."""
    model: str
    """What `transduct.describe` says of it, or any text."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the finished model on the test set."""
    samples: Sequence[Sample] = ()
    command: str = ""
    processes: int = 1
    """That a launcher started with this command, on all machines together."""


def command_line() -> str:
    """The command that this process was started with, as a shell takes it."""
    program, *arguments = sys.argv
    name = Path(program).name
    start = ["python", "-m", "transduct.training"] if name == "__main__.py" else [name]
    return shlex.join([*start, *arguments])


def started_processes() -> int:
    """How many processes a launcher started with this command, as it has told torch; 1 where there is no launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def report_run(output: Path, history: History, model: Any, metrics: Mapping[str, float], samples: Sequence[Sample]) -> None:
    """The report of the run in `output`, which holds its `recipe.yaml`.

    Args:
        history: `trainer.state.log_history`.
        model: the finished model; one that is not of this package is described by its class and its number of parameters.
        metrics, samples: of the test set, and whatever else was tried.
    """
    own = model.config.model_type == "transduct"
    described = str(describe(model)) if own else f"{model.num_parameters():,} parameters"
    recipe = (output / "recipe.yaml").read_text(encoding="utf-8")
    model_text = f"{type(model).__name__}\n{described}"
    run_as = (command_line(), started_processes())
    record = TrainingRecord(str(output), recipe, history, model_text, metrics, samples, *run_as)
    write_whole(output / REPORT, render(record))


def _without_secrets(text: str) -> str:
    return re.sub(r"(hub_token['\"]?\s*[:=]\s*)\S+", r"\1…", text)


def render(record: TrainingRecord) -> str:
    """The page. Every text of the run's is escaped."""
    sections = [
        ("Test set", _metrics(record.metrics)),
        ("Outputs", _samples(record.samples)),
        ("Training", _curves(record.history) + _evaluations(record.history)),
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
:root { color-scheme: light dark; --page: #fff; --text: #1c1c1c; --soft: #666; --rule: #ddd; --equal: #15803d; }
@media (prefers-color-scheme: dark) {
  :root { --page: #161616; --text: #e6e6e6; --soft: #a0a0a0; --rule: #3a3a3a; --equal: #6fce8f; }
}
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
svg { max-width: 100%; height: auto; }
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


def _summary(history: History) -> str:
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


def _curves(history: History) -> str:
    values = [value for row in history for value in row.values() if isinstance(value, float)]
    dropped = sum(not math.isfinite(value) for value in values)
    note = f'<p class="note">{dropped} values are not finite and are left out.</p>' if dropped else ""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "transduct", "text.usetex": False}):
        try:
            figure = training_curves(history)
        except ValueError as error:  # nothing was logged
            return f'<p class="note">{escape(str(error))}</p>'
        return f'<div role="img" aria-label="what was logged by update">{_svg(figure)}</div>{note}'


def _svg(figure: "Figure") -> str:
    """The figure as an element of a page, its text as text; the same figure is the same string."""
    file = StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's browser has fonts of its own
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return file.getvalue()[file.getvalue().index("<svg") :]


def _evaluations(history: History) -> str:
    keys = without_timings({key: None for row in history for key in row if key.startswith("eval_")})
    if not keys:
        return ""
    columns = {key: dict(logged_points(history, key)) for key in keys}
    steps = sorted({step for points in columns.values() for step in points})
    names = [key.removeprefix("eval_").replace("_", " ") for key in keys]
    rows = [(f"{step:,.0f}", *(number(columns[key][step]) if step in columns[key] else "" for key in keys)) for step in steps]
    table = _table(["step", *map(escape, names)], rows)
    return f"<details><summary>all {len(rows)} evaluations</summary>{table}</details>"


def _reproduction(record: TrainingRecord) -> str:
    versions = [(name, installed) for name in PACKAGES if (installed := _version(name))]
    rows = [("Python", platform.python_version()), *versions, ("system", f"{platform.system()} {platform.machine()}")]
    command = f"<pre>{escape(_without_secrets(record.command))}</pre>" if record.command else ""
    if command and record.processes > 1:
        command += f"<p>in {record.processes} processes, started by a launcher such as accelerate launch</p>"
    table = _table(["package", "version"], [(escape(name), escape(value)) for name, value in rows], numbers=False)
    recipe = f"<h3>Recipe</h3><pre>{escape(_without_secrets(record.recipe))}</pre>"
    return f"{command}{recipe}<details><summary>versions</summary>{table}</details>"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:
        return None

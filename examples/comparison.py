"""What the comparisons of examples/ have in common: results that outlive a stop, batches of ids, and a table.

Each run of a comparison is computed once and written to a JSON file; the same command goes on with the runs that are missing.
"""

import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import TrainerCallback

Result = dict[str, Any]


class Results:
    """The finished runs of a comparison, kept in a file.

    Args:
        path: the JSON file; made if it is not there.
        settings: what all runs have in common, such as their steps.

    Raises:
        ValueError: for a file with results of other settings, which would not compare.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path, self.settings = path, dict(settings)
        self.runs: dict[str, Result] = {}
        if path.is_file():
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["settings"] != self.settings:
                raise ValueError(
                    f"{path} holds results of {stored['settings']}, not of {self.settings}: choose another file with --results, "
                    "or delete it"
                )
            self.runs = stored["runs"]

    def get(self, name: str, compute: Callable[[], Result]) -> Result:
        """The result of a run, computed unless it is there, and written before this returns."""
        if name not in self.runs:
            print(f"{name} ...", flush=True)
            self.runs[name] = compute()
            self._write()
        return self.runs[name]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps({"settings": self.settings, "runs": self.runs}, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.path)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation, "12.30 ± 0.40"; of a single value the value alone."""
    mean = statistics.fmean(values)
    return f"{mean:.{digits}f}" + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of a table in Markdown, columns aligned; a row of one cell is a heading."""
    full = [head, *(row for row in rows if len(row) > 1)]
    widths = [max(len(row[i]) for row in full) for i in range(len(head))]
    widths[0] = max(widths[0], *(len(row[0]) for row in rows)) if rows else widths[0]

    def line(row: Sequence[str]) -> str:
        cells = [*row, *[""] * (len(head) - len(row))]
        padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(head), rule, *map(line, rows)])


def padded(rows: Sequence[Sequence[int]], fill: int, left: bool = False) -> torch.Tensor:
    """Rows of ids as one tensor (B, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[fill] * (longest - len(r)) + list(r) if left else [*r, *[fill] * (longest - len(r))] for r in rows])


def batches(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` that cover `count` rows."""
    return (slice(start, start + size) for start in range(0, count, size))


def load_file(path: Path) -> ModuleType:
    """A Python file as a module, whatever other files of its name there are."""
    spec = importlib.util.spec_from_file_location(f"_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


class Quiet(TrainerCallback):
    """Notes the last training loss and prints nothing."""

    def __init__(self):
        self.loss = float("nan")

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.loss = (logs or {}).get("loss", self.loss)

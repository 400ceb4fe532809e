"""`transduct average RUN|CHECKPOINTS... --output FOLDER`: the mean of checkpoints as a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from transduct.terminal import json_text, printable


def average(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RUN|CHECKPOINT", help="The folder of one run, with --last or --best; or checkpoints."),
    ],
    output: Annotated[str, typer.Option(help="Folder to write; it must not hold anything yet.")],
    last: Annotated[int | None, typer.Option(help="Average so many of the run's newest checkpoints.")] = None,
    best: Annotated[int | None, typer.Option(help="Average so many of its checkpoints, the best by --metric.")] = None,
    metric: Annotated[str | None, typer.Option(help="A result of the run's evaluations, such as eval_loss or bleu.")] = None,
    better: Annotated[
        str | None, typer.Option(help="Whether a 'higher' or a 'lower' metric is better, where its name does not say it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Average the weights of checkpoints into a model.

    Tokenizer and config are those of the last checkpoint. The checkpoints stay as they are. One that was written only because the
    run was stopped is left out, unless it is named.
    """
    from transduct.training.averaging import average_checkpoints, best_checkpoints, last_checkpoints, left_out, metric_values
    from transduct.training.metrics import higher_is_better

    _check_options(sources, last, best, metric, better)
    values: dict[int, float] = {}
    if last is not None:
        chosen = last_checkpoints(sources[0], last)
    elif best is not None and metric is not None:
        higher = higher_is_better(metric) if better is None else better == "higher"
        chosen = best_checkpoints(sources[0], best, metric, higher)
        values = metric_values(chosen[-1], metric)
    else:
        chosen = [Path(source) for source in sources]
    written = average_checkpoints(chosen, output)
    passing = [] if last is None and best is None else left_out(sources[0])
    if as_json:
        means = [{"checkpoint": str(path), **({} if metric is None else {metric: _value(path, values)})} for path in chosen]
        found = {"output": str(written), "averaged": means, "left_out": [str(path) for path in passing]}
        typer.echo(json_text(found))
        return
    for path in passing:
        reason = "a stop wrote it, off the run's schedule. To average it too, name the checkpoints"
        typer.echo(printable(f"{path} is left out: {reason}"), err=True)
    for path in chosen:
        value = _value(path, values)
        typer.echo(printable(f"{path}" + ("" if value is None else f"  {metric} {value:.4f}")))
    typer.echo(printable(f"the mean of these {len(chosen)} is in {written}"))


def _value(path: Path, values: dict[int, float]) -> float | None:
    """What the metric was at a checkpoint."""
    step = path.name.removeprefix("checkpoint-")
    return values.get(int(step)) if step.isdigit() else None


def _check_options(sources: list[str], last: int | None, best: int | None, metric: str | None, better: str | None) -> None:
    for source in sources:
        if not Path(source).is_dir():
            raise ValueError(f"there is no folder {source!r}")
    if last is not None and best is not None:
        raise ValueError(f"--last {last} and --best {best} exclude each other")
    if (best is None) != (metric is None):
        raise ValueError("--best and --metric belong together: the metric says which checkpoints are the best")
    if better not in (None, "higher", "lower") or (better is not None and best is None):
        raise ValueError(f"--better {better!r} must be 'higher' or 'lower', and belongs to --best")
    if (last is not None or best is not None) and len(sources) != 1:
        raise ValueError(f"--last and --best choose among the checkpoints of one run; {len(sources)} folders are given")
    if last is None and best is None and not all((Path(source) / "config.json").is_file() for source in sources):
        raise ValueError(f"{sources[0]!r} is no checkpoint: for a run, say --last N or --best N --metric NAME")

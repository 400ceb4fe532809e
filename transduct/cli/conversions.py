"""What `transduct import` and `transduct export` share: options, data types, and what they print."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from transduct.terminal import json_text, printable

if TYPE_CHECKING:
    import torch

    from transduct.convert.engine_folders import Exported
    from transduct.convert.folders import Converted

DTYPES = ("float32", "float16", "bfloat16", "float64")

Output = Annotated[str, typer.Argument(help="Folder to write; it must not hold anything yet.")]
Dtype = Annotated[str | None, typer.Option(help="Round weights to float32, float16 or bfloat16; kept as they are without it.")]
ShardSize = Annotated[str, typer.Option(help="Bytes of one file of weights at most, such as 500MB.")]
Verify = Annotated[bool, typer.Option(help="Run both models on random inputs and compare them; needs the memory of both.")]
VerifyMemory = Annotated[
    str | None,
    typer.Option(help="For the weights of each model while both are compared, such as 4GB; the rest stays on disk, slowly."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def dtype_of(name: str | None) -> "torch.dtype | None":
    """torch's type of that name.

    Raises:
        ValueError: for a name that is none of `DTYPES`.
    """
    import torch

    if name is None:
        return None
    if name not in DTYPES:
        raise ValueError(f"--dtype {name!r} must be one of {', '.join(DTYPES)}")
    return getattr(torch, name)


def report(verb: str, result: "Converted", as_json: bool) -> None:
    """Print what was converted, and what was compared; that nothing was, on stderr too."""
    if as_json:
        _print(_converted(result))
    else:
        _show(verb, result)
    if result.checked is None:
        warning = f"WARNING: {result.output} was NOT checked, {result.unchecked}: it may compute something else"
        typer.echo(printable(warning), err=True)


def _show(verb: str, result: "Converted") -> None:
    """The table."""
    weights = result.weights
    lines = {
        verb: result.source,
        "family": f"{result.family}: {result.from_class} -> {result.to_class}",
        "parameters": f"{weights.parameters:,} in {str(weights.dtype).removeprefix('torch.')}, {_size(weights.bytes)}",
        "vocabulary": result.vocabulary,
        "files": _files(result.files),
        "written to": str(result.output),
        "checked": f"NOTHING: {result.unchecked}" if result.checked is None else str(result.checked),
    }
    for name, value in lines.items():
        typer.echo(printable(f"{name:<11} {value}".replace("\n", "\n" + " " * 12), lines=True))
    for note in result.notes:
        typer.echo(printable(f"{'note':<11} {note}"))


def _converted(result: "Converted") -> dict[str, Any]:
    """The table for programs."""
    weights = result.weights
    return {
        "source": result.source,
        "output": str(result.output),
        "family": result.family,
        "from_class": result.from_class,
        "to_class": result.to_class,
        "parameters": weights.parameters,
        "dtype": str(weights.dtype).removeprefix("torch."),
        "bytes": weights.bytes,
        "vocabulary": result.vocabulary,
        "files": result.files,
        "differences": None if result.checked is None else result.checked.differences,
        "checked": None if result.checked is None else str(result.checked).splitlines(),
        "notes": result.notes,
    }


def _print(values: dict[str, Any]) -> None:
    typer.echo(json_text(values))


def report_engine(source: str, result: "Exported", as_json: bool) -> None:
    """Print what was written for another engine, and how closely it agrees."""
    if as_json:
        checked = str(result.checked).splitlines()
        found = {"source": source, "output": str(result.output), "engine": result.engine, "stored": result.stored}
        _print(found | {"files": result.files, "checked": checked})
        return
    lines = {
        "exported": source,
        "engine": f"{result.engine}, weights stored as {result.stored}",
        "files": _files(result.files),
        "written to": str(result.output),
        "checked": str(result.checked),
    }
    for name, value in lines.items():
        typer.echo(printable(f"{name:<11} {value}".replace("\n", "\n" + " " * 12), lines=True))


def _files(names: list[str]) -> str:
    code = [name for name in names if name.endswith(".py")]
    others = ", ".join(name for name in names if name not in code)
    return f"{others}, and {len(code)} of code" if code else others


def _size(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 10**9 else f"{count / 1e6:,.2f} MB"

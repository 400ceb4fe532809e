"""`transduct COMMAND ...`: the program itself; each command is a function in a module of its own.

- Starting is cheap: a command's module imports typer and the standard library only, and imports torch, transformers and the
  rest of transduct inside its function. A test checks that `transduct --help` loads neither.
- Bad input is a `ValueError` or an `OSError` anywhere below, a package that is missing an `ImportError`: one line on stderr and
  exit code 2. Any other exception is a fault: one line and exit code 1. `--debug`, anywhere on the line, shows the traceback.

To add a command, write `def name(...)` in `cli/name.py` and register it below; the order there is the order in the help.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from transduct.cli.average import average
from transduct.cli.describe import describe
from transduct.cli.doctor import doctor
from transduct.cli.evaluate import evaluate
from transduct.cli.export import export
from transduct.cli.import_ import import_
from transduct.cli.plan import plan
from transduct.cli.push import push
from transduct.cli.score import score
from transduct.cli.train import train
from transduct.cli.translate import translate

USAGE_ERRORS: Any = typer.BadParameter.__bases__
"""click's `UsageError`, from wherever this version of typer takes click."""

app = typer.Typer(
    name="transduct",
    help="One encoder-decoder Transformer: Vaswani et al. 2017, T5 or BART by configuration alone.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(describe)
app.command()(plan)
app.command()(train)
app.command()(translate)
app.command()(score)
app.command()(evaluate)
app.command()(average)
app.command(name="import")(import_)
app.command()(export)
app.command()(push)
app.command()(doctor)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; allowed anywhere on the line."),
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed_version

        typer.echo(f"transduct {installed_version('transduct')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0, 1 for a fault, 2 for bad input, 130 when interrupted."""
    debug = "--debug" in arguments
    try:
        code = app(args=[part for part in arguments if part != "--debug"], prog_name="transduct", standalone_mode=False)
    except typer.Abort:
        return _report("stopped", 130)
    except USAGE_ERRORS as error:
        command = error.ctx.command_path if error.ctx is not None else "transduct"
        return _report(f"{error.format_message()} (see {command} --help)", 2)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is not None:
            return _report(f"{error.filename}: {error.strerror}", 2)
        if isinstance(error, (ValueError, OSError, ImportError)):  # the last: an optional package that is not there
            return _report(f"{error}", 2)
        return _report(f"{type(error).__name__}: {error} (a fault of the program; --debug shows where)", 1)
    return code if isinstance(code, int) else 0


def _report(message: str, code: int) -> int:
    """Say it on stderr, in one line however the message was broken; of several processes, all but the first say who they are."""
    process = os.environ.get("RANK", "0")
    name = "transduct" if process == "0" else f"transduct (process {process})"
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> None:
    """The entry point of `pyproject.toml`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

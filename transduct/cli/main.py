"""`transduct COMMAND ...`: the program itself; each command is a function in a module of its own.

- Starting is cheap: a command's module imports typer and the standard library only, and imports torch, transformers and the
  rest of transduct inside its function. A test checks that `transduct --help` loads neither.
- Bad input is a `ValueError` or an `OSError` anywhere below, a package that is missing an `ImportError`: one line on stderr and
  exit code 2, and so is memory that does not suffice. Any other exception is a fault: one line and exit code 1. `--debug`,
  anywhere on the line, shows the traceback.
- Ctrl-C is exit code 130, without a word. Where what is printed is no longer read, as by `head`, the end is as quiet, with 1.
- `--show-completion` and `--install-completion` complete commands, options and files in bash, zsh and fish.

To add a command, write `def name(...)` in `cli/name.py`, register it below (the order there is the order in the help), and give
it examples in `cli/examples.py`.
"""

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from transduct.cli.average import average
from transduct.cli.demo import demo
from transduct.cli.describe import describe
from transduct.cli.doctor import doctor
from transduct.cli.evaluate import evaluate
from transduct.cli.examples import epilog
from transduct.cli.export import export
from transduct.cli.import_ import import_
from transduct.cli.plan import plan
from transduct.cli.push import push
from transduct.cli.score import score
from transduct.cli.train import train
from transduct.cli.translate import translate
from transduct.terminal import printable

USAGE_ERRORS: Any = typer.BadParameter.__bases__
"""click's `UsageError`, from wherever this version of typer takes click."""

app = typer.Typer(
    name="transduct",
    help="One encoder-decoder Transformer: Vaswani et al. 2017, T5 or BART by configuration alone.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(describe)
app.command()(plan)
app.command()(train)
app.command(short_help="Translate lines, or summarise or correct them.")(translate)
app.command()(score)
app.command(short_help="Measure a model on a test set, with confidence.")(evaluate)
app.command()(average)
app.command(name="import")(import_)
app.command(short_help="Write a checkpoint of ours in another format.")(export)
app.command()(push)
app.command()(demo)
app.command(short_help="Say what works here, or what ails a folder.")(doctor)
for registered in app.registered_commands:
    registered.epilog = epilog(str(registered.name or getattr(registered.callback, "__name__", "")))


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
    except (typer.Abort, KeyboardInterrupt):
        return 130
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
        if _is_of_weights(error):
            return _report(f"a file of weights is damaged or cannot be written ({error}): `transduct doctor FOLDER` says more", 2)
        if _is_of_memory(error):
            return _report(f"there is not enough memory: smaller batches, or shorter texts, take less ({error})", 2)
        return _report(f"{type(error).__name__}: {error} (a fault of the program; --debug shows where)", 1)
    return code if isinstance(code, int) else 0


def _is_of_weights(error: Exception) -> bool:
    """Whether safetensors, which is imported where it is needed, has raised it: for a file that is damaged, or a full disk."""
    safetensors = sys.modules.get("safetensors")
    return safetensors is not None and isinstance(error, safetensors.SafetensorError)


def _is_of_memory(error: Exception) -> bool:
    """Whether Python or torch, on any device, was refused memory; torch has no class of its own for a processor's."""
    refused = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and refused)


def _report(message: str, code: int) -> int:
    """Say it on stderr, in one line however the message was broken, and without what would act on a terminal.

    Of several processes, all but the first say who they are.
    """
    process = os.environ.get("RANK", "0")
    name = "transduct" if process == "0" else f"transduct (process {process})"
    print(f"{name}: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def main() -> None:
    """The entry point of `pyproject.toml`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if stream is sys.stdout else "backslashreplace")  # odd names of files
    for talkative in ("torchao", "torch.utils._pytree"):  # which kernels of its own torchao cannot use here
        logging.getLogger(talkative).setLevel(logging.ERROR)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""`transduct push FOLDER NAME/MODEL`: share a model on the Hub, with a card that says what is known of it."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transduct.terminal import json_text, printable

if TYPE_CHECKING:
    from transduct.hub import Share, Shared


def push(
    folder: Annotated[str, typer.Argument(help="A model's folder, or the output folder of a run, whose model is shared.")],
    repository: Annotated[str, typer.Argument(metavar="NAME/MODEL", help="Of you or an organisation; made if it is not there.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Who may see a new repository; without it, as the Hub has it.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch to write, made if it is not there; main without it.")] = None,
    token: Annotated[
        str | None,
        typer.Option(help="With the right to write; without it HF_TOKEN, or that of `hf auth login`.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and card; send nothing.")] = False,
    license: Annotated[str | None, typer.Option(help="For the card, as the Hub writes it, such as apache-2.0.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="For the card, such as en; may be repeated.")] = None,
    task: Annotated[str | None, typer.Option(help="For the card, such as translation or summarization.")] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="For the card: what `transduct evaluate --json` wrote for the test set NAME."),
    ] = None,
    overwrite_card: Annotated[
        bool, typer.Option("--overwrite-card", help="Replace a README.md that a person wrote, here or there.")
    ] = False,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Share a model on the Hub.

    Weights, tokenizer, code and a model card go there in one commit; optimizers and other pickles never do. A push that breaks
    off goes on when it is repeated.
    """
    from transduct.hub import Options, Said, prepare, upload

    said = Said(license, tuple(language or ()), task)
    options = Options(private, revision, overwrite_card, said, _named(evaluation or ()), message)
    share = prepare(folder, repository, options, token)
    if not as_json:
        _show(share, dry_run)
    with ended_by_interrupts():
        shared = None if dry_run else upload(share, token)
    if as_json:
        typer.echo(json_text(_as_json(share, shared)))
    elif shared is not None:
        for path in shared.deleted:
            _tell("deleted", path)
        for note in shared.notes:
            _tell("note", note)
        _tell("shared", f"{shared.url}, commit {shared.commit}")


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C ends this process at once, with exit code 130.

    The Hub's client uploads in threads, and would wait for what they have begun, which may take hours. There is nothing to clean
    up: nothing is being written here, and there the commit, which comes last, is made or is not.
    """

    def end(number: int, frame: Any) -> None:
        sys.stdout.flush()
        os._exit(128 + number)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # SIGINT is ignored, as in the background of a shell, or is another's business
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _named(evaluations: Any) -> dict[str, str]:
    found = {}
    for text in evaluations:
        name, equals, file = text.partition("=")
        if not equals or not name or not file:
            raise ValueError(f"--evaluation {text!r} must read NAME=FILE, such as WMT14=wmt14.json")
        found[name] = file
    return found


def _show(share: "Share", whole: bool) -> None:
    """What goes where; of a rehearsal each file, and the card."""
    _tell("folder", str(share.folder))
    _tell("to", f"{share.repository}{'' if share.options.revision is None else f', branch {share.options.revision}'}")
    if whole:
        width = max(len(file.path) for file in share.files)
        for file in share.files:
            _tell("file", f"{file.path:<{width}}  {file.size:>14,} bytes")
    _tell("files", f"{len(share.files)} and the card, {share.size:,} bytes")
    for name, reason in share.left_out.items():
        _tell("left out", f"{name}: {reason}")
    for note in share.notes:
        _tell("note", note)
    if whole:
        card = printable(share.card, lines=True)
        typer.echo(f"\nREADME.md:\n\n{card}\nNothing was sent.")


def _tell(what: str, text: str) -> None:
    typer.echo(f"{what:<9}{printable(text)}")


def _as_json(share: "Share", shared: "Shared | None") -> dict[str, Any]:
    return {
        "folder": str(share.folder),
        "repository": share.repository,
        "revision": share.options.revision or "main",
        "files": {file.path: file.size for file in share.files},
        "left_out": dict(share.left_out),
        "deleted": [] if shared is None else list(shared.deleted),
        "card": share.card if shared is None else shared.card,
        "notes": [*share.notes, *(() if shared is None else shared.notes)],
        "url": None if shared is None else shared.url,
        "commit": None if shared is None else shared.commit,
    }

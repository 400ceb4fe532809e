"""`transduct doctor [FOLDER]`: what works on this computer, and what is wrong with a folder."""

from typing import Annotated

import typer

from transduct.terminal import harmless, json_text


def doctor(
    folder: Annotated[
        str | None,
        typer.Argument(help="A model, a checkpoint, a run of transduct train, an adapter or an export.", show_default=False),
    ] = None,
    load: Annotated[bool, typer.Option(help="Load the model too, run it once, and let it write a few tokens.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what works on this computer, or what is wrong with a folder.

    Without a folder: versions, devices, memory, threads, kinds of attention. With one: files, config, weights, tokenizer,
    settings of generation, and a trial. Nothing is changed. The exit code is 1 if there is a problem.
    """
    from transduct.doctor import examine_computer, examine_folder

    findings = examine_computer() if folder is None else examine_folder(folder, load)
    typer.echo(json_text(findings.to_dict()) if as_json else harmless(str(findings)))
    if findings.problems:
        raise typer.Exit(1)

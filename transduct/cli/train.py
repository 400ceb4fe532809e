"""`transduct train CONFIG.yaml`: train what a recipe says, or go on where it was stopped."""

import os
from typing import Annotated

import typer


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yaml", help="The recipe; examples/g2p/config.yaml is one.")],
    output: Annotated[str | None, typer.Option(help="Folder for checkpoints and model, instead of the recipe's.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Training time over all starts, instead of the recipe's.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value: --set training.seed=2. Repeatable."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, and delete the run in the output folder.")] = False,
) -> None:
    """Train a model from a recipe.

    After a stop, the same command goes on; Ctrl-C writes a checkpoint first. The output folder then holds model/, which
    from_pretrained loads, metrics.json and training_report.html.
    """
    from transduct.training.progress import HarmlessConsole
    from transduct.training.recipe import load_recipe
    from transduct.training.run import run

    recipe = load_recipe(config, changes or ())
    if output is not None:
        recipe.output = os.path.expanduser(output)
    outcome = run(recipe, minutes=minutes, fresh=fresh, console=HarmlessConsole())
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)

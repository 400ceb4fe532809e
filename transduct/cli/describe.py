"""`transduct describe PRESET|FOLDER`: parameters, multiply-adds and memory of an architecture or a saved model."""

from pathlib import Path
from typing import Any

import typer

from transduct.terminal import json_text


def _list_presets(wanted: bool) -> None:
    if wanted:
        from transduct.presets import preset_names

        typer.echo("\n".join(preset_names()))
        raise typer.Exit


def describe(
    model: str = typer.Argument(
        metavar="PRESET|FOLDER",
        help="A preset's name, or the folder of a saved model (write ./NAME where a preset has its name).",
    ),
    batch_size: int = typer.Option(32, help="Sequence pairs in the batch that the memory is estimated for."),
    source_length: int = typer.Option(128, help="Tokens in each of its sources."),
    target_length: int = typer.Option(128, help="Tokens in each of its targets."),
    dtype: str = typer.Option("float32", help="float32, bfloat16, float16 or float64."),
    optimizer: str = typer.Option("adamw", help="adamw, adafactor, momentum or sgd."),
    attention: str = typer.Option("sdpa", help="sdpa or eager, which keeps the attention weights."),
    gradient_checkpointing: bool = typer.Option(False, "--gradient-checkpointing", help="Keep only each layer's input."),
    list_presets: bool = typer.Option(
        False, "--list", help="Print the names of all presets and exit.", callback=_list_presets, is_eager=True
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Count parameters, operations and memory.

    Parameters by part, multiply-adds per token, cache and training memory, by closed formulas; nothing is built.
    """
    from transduct.accounting import describe as account

    description = account(
        _load(model),
        batch_size=batch_size,
        source_length=source_length,
        target_length=target_length,
        dtype=dtype,
        optimizer=optimizer,
        attention=attention,
        gradient_checkpointing=gradient_checkpointing,
    )
    typer.echo(json_text(description.to_dict()) if as_json else str(description))


def _load(name: str) -> Any:
    """The config of a preset or of a saved model with its language-model head; for other classes, the model without weights."""
    from transduct.presets import config_from_preset, preset_names

    if name in preset_names():
        return config_from_preset(name)
    folder = Path(name)
    if not folder.exists():
        if "/" in name or folder.is_absolute():
            raise ValueError(f"there is no folder {name!r}")
        try:
            return config_from_preset(name)
        except ValueError as error:
            raise ValueError(f"{error}; and there is no folder {name!r}") from None
    return _load_folder(folder)


def _load_folder(folder: Path) -> Any:
    from transduct import modeling
    from transduct.presets import config_from_folder, model_without_weights

    config = config_from_folder(folder)
    classes = config.architectures or []
    if classes in ([], ["TransductForConditionalGeneration"]):
        return config
    if len(classes) != 1 or not classes[0].startswith("Transduct") or not hasattr(modeling, classes[0]):
        file = str(folder / "config.json")
        raise ValueError(f"{file!r} has architectures={classes!r}, which must name one model class of transduct")
    return model_without_weights(config, classes[0])

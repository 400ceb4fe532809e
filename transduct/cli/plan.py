"""`transduct plan CONFIG.yaml`: memory, tokens, steps, operations and hours of a recipe, before anything is started."""

from typing import Annotated

import typer

from transduct.terminal import json_text


def plan(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG.yaml", help="The recipe; examples/vaswani-base-wmt14/config.yaml is one.")
    ],
    gpus: Annotated[int, typer.Option(help="Devices, over all machines.")] = 1,
    gpu: Annotated[str | None, typer.Option(help="Their kind, such as a100-80 or h100: gives peak and memory.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(help="GiB of one device; alone: the slowest known of this size.")] = None,
    flops: Annotated[float | None, typer.Option(help="Peak floating-point operations a second of one device.")] = None,
    utilisation: Annotated[float, typer.Option(help="Share of the peak that the training reaches.")] = 0.4,
    reserve: Annotated[float, typer.Option(help="Share of the memory that is set aside.")] = 0.1,
    source_length: Annotated[int | None, typer.Option(help="Mean tokens of a source.")] = None,
    target_length: Annotated[int | None, typer.Option(help="Mean tokens of a target.")] = None,
    examples: Annotated[int | None, typer.Option(help="Training pairs, where they cannot be counted by lines.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Token ids, where the tokenizer is not there yet.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a training: memory, steps, FLOPs and hours.

    Memory is that of one device under DDP, ZeRO-1, ZeRO-2 and FSDP. Nothing is built, and no GPU is needed.
    """
    from transduct.training.planning import PlanOptions, make_plan
    from transduct.training.recipe import load_recipe

    options = PlanOptions(
        gpus=gpus,
        gpu=gpu,
        gpu_memory=gpu_memory,
        flops=flops,
        utilisation=utilisation,
        reserve=reserve,
        source_length=source_length,
        target_length=target_length,
        examples=examples,
        vocab_size=vocab_size,
    )
    planned = make_plan(load_recipe(config, changes or ()), options)
    typer.echo(json_text(planned.to_dict()) if as_json else str(planned))

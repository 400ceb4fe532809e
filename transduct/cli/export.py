"""`transduct export SOURCE OUTPUT --to FAMILY`: a checkpoint of ours as one of another family's, compared with ours.

`--to ctranslate2` and `--to onnx` write it for another engine.
"""

from typing import Annotated

import typer

ENGINES = ("ctranslate2", "onnx")


def export(
    source: Annotated[str, typer.Argument(help="A checkpoint of ours: a folder, or an id of the Hub.")],
    output: Annotated[str, typer.Argument(help="Folder to write; it must not hold anything yet.")],
    to: Annotated[
        str | None,
        typer.Option(
            help="The family: t5, mt5, umt5, bart, mbart, plbart, blenderbot, blenderbot-small, pegasus, marian, m2m_100 or "
            "whisper; without it the one from which the model was imported. Or an engine: ctranslate2, onnx."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Round weights to float32, float16 or bfloat16; kept as they are without it.")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Bytes of one file of weights at most, such as 500MB.")] = "5GB",
    quantization: Annotated[
        str | None,
        typer.Option(help="Of --to ctranslate2: int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16."),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Run both models on random inputs and compare them; needs the memory of both.")
    ] = True,
    verify_memory: Annotated[
        str | None,
        typer.Option(help="For the weights of each model while both are compared, such as 4GB; the rest stays on disk, slowly."),
    ] = None,
) -> None:
    """Write a checkpoint of ours in another family's format, or in that of another engine.

    transformers' own class of that family loads it, and so does whatever reads its files. A model that the family or the engine
    has no way to describe is refused, naming what differs. What is written for an engine is run by `transduct translate`.
    """
    from transduct.cli.conversions import dtype_of, report, report_engine

    if to in ENGINES:
        from transduct.convert.engine_folders import export_engine

        given = {"--dtype": dtype, "--verify-memory": verify_memory, "--no-verify": None if verify else True}
        if quantization is not None and to != "ctranslate2":
            raise ValueError(f"--quantization {quantization} belongs to --to ctranslate2")
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} has no use with --to {to}, whose export is always compared, whole")
        report_engine(source, export_engine(source, output, to, quantization))
        return
    if quantization is not None:
        raise ValueError(f"--quantization {quantization} belongs to --to ctranslate2; other formats have --dtype")
    from transduct.convert.folders import export_folder

    report(
        "exported",
        export_folder(
            source,
            output,
            to=to,
            verify=verify,
            verify_memory=verify_memory,
            shard_size=shard_size,
            dtype=dtype_of(dtype),
        ),
    )

"""`transduct export SOURCE OUTPUT --to FAMILY`: a checkpoint of ours as one of another family's, compared with ours.

`--to ctranslate2` and `--to onnx` write it for another engine.
"""

from typing import Annotated

import typer

from transduct.cli.conversions import AsJson, Dtype, Output, ShardSize, Verify, VerifyMemory, dtype_of, report, report_engine

ENGINES = ("ctranslate2", "onnx")


def export(
    source: Annotated[str, typer.Argument(help="A checkpoint of ours: a folder, or an id of the Hub.")],
    output: Output,
    to: Annotated[
        str | None,
        typer.Option(
            help="The family: t5, mt5, umt5, bart, mbart, plbart, blenderbot, blenderbot-small, pegasus, marian, m2m_100 or "
            "whisper; without it the one from which the model was imported. Or an engine: ctranslate2, onnx."
        ),
    ] = None,
    dtype: Dtype = None,
    shard_size: ShardSize = "5GB",
    quantization: Annotated[
        str | None,
        typer.Option(help="Of --to ctranslate2: int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16."),
    ] = None,
    verify: Verify = True,
    verify_memory: VerifyMemory = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint of ours in another family's format, or in that of another engine.

    transformers' own class of that family loads it, and so does whatever reads its files. A model that the family or the engine
    has no way to describe is refused, naming what differs. What is written for an engine is run by `transduct translate`.
    """
    if to in ENGINES:
        from transduct.convert.engine_folders import export_engine

        given = {"--dtype": dtype, "--verify-memory": verify_memory, "--no-verify": None if verify else True}
        if quantization is not None and to != "ctranslate2":
            raise ValueError(f"--quantization {quantization} belongs to --to ctranslate2")
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} has no use with --to {to}, whose export is always compared, whole")
        report_engine(source, export_engine(source, output, to, quantization), as_json)
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
        as_json,
    )

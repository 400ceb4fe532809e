"""`transduct evaluate MODEL DATASET`: how good a model's outputs are, or those of a file, and how sure that is."""

from typing import Annotated

import typer

from transduct.terminal import json_text


def evaluate(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL DATASET...",
            help="A folder or id of the Hub, and a file (.jsonl, .csv, .tsv, .parquet), a data set, or a file of sources and "
            "files of references; or a recipe or the output folder of a run, alone or behind a model.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="bleu, chrf, ter, rouge_1, rouge_2, rouge_l, rouge_lsum, exact_match, sequence_error, token_error (wer, per); "
            "may be repeated."
        ),
    ] = None,
    hypotheses: Annotated[str | None, typer.Option(help="Measure the outputs of this file; there is no MODEL then.")] = None,
    baseline: Annotated[str | None, typer.Option(help="File of another system's outputs, to compare with.")] = None,
    predictions: Annotated[str | None, typer.Option(help="File of JSON lines to write the outputs to.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --predictions where a run was stopped.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
    resamples: Annotated[int, typer.Option(help="Test sets to draw for confidence and comparison; 0: none.")] = 1000,
    source_field: Annotated[str, typer.Option(help="Column or key of the sources.")] = "source",
    target_field: Annotated[str, typer.Option(help="Column or key of the references, one text or a list.")] = "target",
    config: Annotated[str | None, typer.Option(help="Configuration of a data set.")] = None,
    split: Annotated[str, typer.Option(help="Split of a data set.")] = "test",
    limit: Annotated[int | None, typer.Option(help="Use the first so many examples only.")] = None,
    data_folder: Annotated[str | None, typer.Option(help="Folder that the paths of a recipe are relative to.")] = None,
    beams: Annotated[int | None, typer.Option(help="Beams; as the recipe or the generation config says, else 4.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Exponent of the length; as they say, else 1.0.")] = None,
    max_tokens_per_batch: Annotated[int | None, typer.Option(help="Source tokens of a batch, 4096 with padding.")] = None,
    window: Annotated[int, typer.Option(help="Examples that are sorted and written together.")] = 2048,
    src_lang: Annotated[str | None, typer.Option(help="Language of the sources, as the tokenizer calls it.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Language to write.")] = None,
    task: Annotated[str | None, typer.Option(help="A task that config.json has settings for.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Text before each source.")] = None,
    long: Annotated[str | None, typer.Option(help="What becomes of sources that are too long: refuse or split.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    engine: Annotated[str | None, typer.Option(help="As of translate: int8, ctranslate2 or onnx.")] = None,
) -> None:
    """Evaluate a model on a test set, with confidence intervals and the signatures of the metrics.

    Under `accelerate launch` the examples are shared.
    """
    from transduct.decoding.evaluate_command import EvaluationOptions, run, table
    from transduct.decoding.test_sets import Columns

    search = dict(
        num_beams=beams, length_penalty=length_penalty, max_tokens_per_batch=max_tokens_per_batch, src_lang=src_lang,
        tgt_lang=tgt_lang, task=task, prefix=prefix, long=long,
    )  # fmt: skip
    result = run(
        EvaluationOptions(
            names, metric or (), Columns(source_field, target_field, config, split, limit), data_folder, hypotheses, baseline,
            predictions, resume, resamples, window, dtype, engine,  # type: ignore[arg-type]
            search={name: value for name, value in search.items() if value is not None},
        )
    )  # fmt: skip
    if result is not None:
        typer.echo(json_text(result) if as_json else table(result))

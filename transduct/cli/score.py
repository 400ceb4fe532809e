"""`transduct score MODEL --source FILE --target FILE`: log-probabilities of given pairs, and their perplexity."""

from typing import Annotated

import typer


def score(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder of ours, a run's included, or of transformers, or an id of the Hub.")
    ],
    source: Annotated[str, typer.Option(help="File of source lines, UTF-8.")],
    target: Annotated[str, typer.Option(help="File of target lines, as many.")],
    output: Annotated[str | None, typer.Option(help="File to write; without it standard output.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --output where a run was stopped.")] = False,
    normalization: Annotated[str, typer.Option(help="Of lengths: none, hf, gnmt or sockeye.")] = "none",
    length_penalty: Annotated[float | None, typer.Option(help="Its exponent: 1.0, but 0.6 for gnmt, unless given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON objects, with each token's log-probability.")] = False,
    max_tokens_per_batch: Annotated[int, typer.Option(help="Source and target tokens of a batch, with padding.")] = 4096,
    window: Annotated[int, typer.Option(help="Lines that are read, sorted and written together.")] = 2048,
    src_lang: Annotated[str | None, typer.Option(help="Language of the sources, as the tokenizer calls it.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Language of the targets.")] = None,
    task: Annotated[str | None, typer.Option(help="A task that config.json has settings for.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Text before each source; as config.json says without it.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Score pairs of lines: a natural log-probability a line.

    The perplexity of all is told on standard error. Under `accelerate launch` lines are shared.
    """
    from transduct.decoding.commands import ScoreCommand
    from transduct.decoding.score import ScoringOptions

    options = ScoringOptions(
        length_normalization=normalization, length_penalty=length_penalty,  # type: ignore[arg-type]
        max_tokens_per_batch=max_tokens_per_batch, src_lang=src_lang, tgt_lang=tgt_lang, task=task, prefix=prefix,
    )  # fmt: skip
    ScoreCommand(model, dtype, options, as_json=as_json, target=target).run(source, output, window, resume)

"""`transduct translate MODEL < in.txt > out.txt`: any number of lines, in order, however often the run is stopped."""

from typing import Annotated

import typer


def translate(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder of ours, of transformers or of an export; or an id of the Hub.")
    ],
    input: Annotated[str | None, typer.Option(help="File of lines, UTF-8; without it standard input.")] = None,
    output: Annotated[str | None, typer.Option(help="File to write; without it standard output.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --output where a run was stopped.")] = False,
    beams: Annotated[
        int | None, typer.Option(help="Beams; 1 is greedy search. As the generation config says, else 4.", show_default=False)
    ] = None,
    n_best: Annotated[int, typer.Option(help="Hypotheses of each line.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Write each hypothesis's score behind it.")] = False,
    alignments: Annotated[
        str | None, typer.Option(help="Write alignments i-j behind it, of words or of tokens.", metavar="words|tokens")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write each line as a JSON object.")] = False,
    normalization: Annotated[str, typer.Option(help="Of lengths: hf, gnmt (the paper's), sockeye or none.")] = "hf",
    length_penalty: Annotated[
        float | None, typer.Option(help="Its exponent; as the generation config says for hf, else 1.0; 0.6 for gnmt.")
    ] = None,
    coverage_penalty: Annotated[float, typer.Option(help="What source tokens cost that were never attended to.")] = 0.0,
    max_tokens_per_batch: Annotated[int, typer.Option(help="Source tokens of a batch, padding included.")] = 4096,
    window: Annotated[int, typer.Option(help="Lines that are read, sorted and written together.")] = 2048,
    src_lang: Annotated[str | None, typer.Option(help="Language of the lines, as the tokenizer calls it.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Language to write.")] = None,
    task: Annotated[str | None, typer.Option(help="A task that config.json has settings for, such as summarization.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Text before each line; as config.json says without it.")] = None,
    split_sentences: Annotated[bool, typer.Option("--split-sentences", help="Translate each sentence by itself.")] = False,
    long: Annotated[str, typer.Option(help="What becomes of lines that are too long: refuse or split.")] = "refuse",
    max_source_length: Annotated[int | None, typer.Option(help="Tokens of a line that are too many if exceeded.")] = None,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Write the aligned source word in place of the unknown token.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    engine: Annotated[
        str | None, typer.Option(help="ctranslate2 or onnx, for which MODEL was exported; without it, known by its files.")
    ] = None,
) -> None:
    """Translate lines, or summarise or correct them: whatever the model does.

    An empty line gives an empty line. With --n-best, --scores or --alignments a line has columns, apart by tabs: the number of
    the input line, from 0 (with --n-best), the text, the score, the alignment. Under `accelerate launch` lines are shared.
    """
    from transduct.decoding.commands import TranslateCommand
    from transduct.decoding.translate import alignment_options
    from transduct.decoding.translator import TranslationOptions

    generation = {"coverage_penalty": coverage_penalty} if coverage_penalty else {}
    options = TranslationOptions(
        num_beams=beams, length_normalization=normalization, length_penalty=length_penalty,  # type: ignore[arg-type]
        num_return_sequences=n_best, max_tokens_per_batch=max_tokens_per_batch, src_lang=src_lang, tgt_lang=tgt_lang, task=task,
        prefix=prefix, split_sentences=split_sentences, long=long,  # type: ignore[arg-type]
        max_source_length=max_source_length, alignments=alignment_options(alignments or False),  # type: ignore[arg-type]
        replace_unknown=replace_unknown, generation=generation,
    )  # fmt: skip
    command = TranslateCommand(model, dtype, options, scores=scores, as_json=as_json, engine=engine)  # type: ignore[arg-type]
    command.run(input, output, window, resume)

"""`transduct translate MODEL < in.txt > out.txt`: any number of lines, in order, however often the run is stopped."""

from typing import Annotated

import typer


def translate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder of ours, a run's included, of transformers or of an export; or an id of the Hub."
        ),
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
    phrases: Annotated[
        str | None, typer.Option(help="File with a line for each line: what its output must contain, apart by tabs.")
    ] = None,
    ordered_phrases: Annotated[bool, typer.Option("--ordered-phrases", help="Phrases must come in their order.")] = False,
    target_prefixes: Annotated[
        str | None, typer.Option(help="File with a line for each line: what its output begins with.")
    ] = None,
    ensemble: Annotated[list[str] | None, typer.Option(help="A further model that votes; may be given several times.")] = None,
    beam_groups: Annotated[int, typer.Option(help="Groups of beams that are kept apart.")] = 1,
    diversity_penalty: Annotated[float, typer.Option(help="What a token costs that an earlier group has chosen.")] = 0.0,
    sample: Annotated[bool, typer.Option("--sample", help="Draw outputs at random.")] = False,
    minimum_bayes_risk: Annotated[
        str | None, typer.Option(help="Of samples, write those that agree most with the others.", metavar="chrf|bleu")
    ] = None,
    num_samples: Annotated[int | None, typer.Option(help="How many; 32 without it.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of samples.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="Of samples.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Of samples; 0: any token. As the generation config says, else 50.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of samples.")] = None,
    epsilon_cutoff: Annotated[float | None, typer.Option(help="Of samples: the least probability of a token.")] = None,
    draft: Annotated[
        str | None, typer.Option(help="Greedy search in fewer steps, with guesses from there.", metavar="source|MODEL")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    engine: Annotated[
        str | None,
        typer.Option(help="int8: faster matrices on a CPU. ctranslate2, onnx: for which MODEL was exported, known by its files."),
    ] = None,
) -> None:
    """Translate lines, or summarise or correct them: whatever the model does.

    An empty line gives an empty line. With --n-best, --scores or --alignments a line has columns, apart by tabs: the number of
    the input line, from 0 (with --n-best), the text, the score, the alignment. Under `accelerate launch` lines are shared.
    """
    from transduct.decoding.commands import Companions, TranslateCommand
    from transduct.decoding.strategies import Strategy
    from transduct.decoding.translate import alignment_options
    from transduct.decoding.translator import TranslationOptions

    chosen = {
        "coverage_penalty": coverage_penalty or None, "ordered_phrases": ordered_phrases or None, "temperature": temperature,
        "beam_groups": beam_groups if beam_groups != 1 else None, "diversity_penalty": diversity_penalty or None,
        "top_k": top_k, "top_p": top_p, "epsilon_cutoff": epsilon_cutoff,
    }  # fmt: skip
    strategy = Strategy(sample, seed, minimum_bayes_risk, num_samples)
    check_sampling(strategy.samples, temperature=temperature, top_k=top_k, top_p=top_p, epsilon_cutoff=epsilon_cutoff)
    options = TranslationOptions(
        num_beams=beams, length_normalization=normalization, length_penalty=length_penalty,  # type: ignore[arg-type]
        num_return_sequences=n_best, max_tokens_per_batch=max_tokens_per_batch, src_lang=src_lang, tgt_lang=tgt_lang, task=task,
        prefix=prefix, split_sentences=split_sentences, long=long,  # type: ignore[arg-type]
        max_source_length=max_source_length, alignments=alignment_options(alignments or False),  # type: ignore[arg-type]
        replace_unknown=replace_unknown, strategy=strategy,
        generation={name: value for name, value in chosen.items() if value is not None},
    )  # fmt: skip
    companions = Companions(tuple(ensemble or ()), draft, phrases, target_prefixes)
    command = TranslateCommand(model, dtype, options, scores, as_json, engine, companions)  # type: ignore[arg-type]
    command.run(input, output, window, resume)


def check_sampling(samples: bool, **options: float | None) -> None:
    """Refuse options of samples where none are drawn.

    Raises:
        ValueError: naming one.
    """
    for name, value in options.items():
        if value is not None and not samples:
            raise ValueError(f"--{name.replace('_', '-')} {value} belongs to --sample or --minimum-bayes-risk")

"""`transduct import SOURCE OUTPUT`: a checkpoint of another family as ours, compared with the original."""

from typing import Annotated

import typer

from transduct.cli.conversions import AsJson, Dtype, Output, ShardSize, Verify, VerifyMemory, dtype_of, report


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of transformers, an id of the Hub such as google-t5/t5-small, or a fairseq or Marian file."
        ),
    ],
    output: Output,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the Hub's repository.")] = None,
    token: Annotated[str | None, typer.Option(help="Of the Hub, for what is not public.", show_default=False)] = None,
    dtype: Dtype = None,
    shard_size: ShardSize = "5GB",
    their_class: Annotated[
        str | None, typer.Option("--class", help="The class in transformers, where config.json does not say it.")
    ] = None,
    vocabulary: Annotated[
        list[str] | None,
        typer.Option(help="Of a fairseq file: the folder of its dictionaries; of a Marian file: its one or two vocabularies."),
    ] = None,
    head: Annotated[str | None, typer.Option(help="Of a fairseq file: the classification head to import.")] = None,
    tokenizer: Annotated[bool, typer.Option(help="Of a fairseq or Marian file: make a tokenizer of its vocabularies.")] = True,
    verify: Verify = True,
    verify_memory: VerifyMemory = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint of another family as ours.

    With its tokenizer, generation config, licence and a record of where it came from, import.json. Nothing that its files hold is
    executed.
    """
    from transduct.convert.folders import import_folder

    chosen = {"vocabularies": vocabulary or None, "classification_head": head, "tokenizer": None if tokenizer else False}
    report(
        "imported",
        import_folder(
            source,
            output,
            revision=revision,
            token=token,
            verify=verify,
            verify_memory=verify_memory,
            shard_size=shard_size,
            dtype=dtype_of(dtype),
            their_class=their_class,
            **{name: value for name, value in chosen.items() if value is not None},
        ),
        as_json,
    )

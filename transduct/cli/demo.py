"""`transduct demo FOLDER`: a page on this computer that shows what a model does, and how."""

from typing import Annotated

import typer

from transduct.terminal import printable


def demo(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder of ours or of transformers; or an id of the Hub.")],
    host: Annotated[str, typer.Option(help="Address to listen at; others than this computer's own let others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: any that is free.")] = 7860,
    seconds: Annotated[float, typer.Option(help="The most that one search may take.")] = 60.0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Show a model at work on a local web page.

    Type a source; see the outputs with their scores, where the model looked, and the search step by step. Nothing but a model of
    the Hub is fetched from the network, and nothing is shared. Ctrl-C ends it.
    """
    import sys

    from transduct.packages import require

    require("transduct demo", "gradio")
    from transduct.decoding.commands import DTYPES, load
    from transduct.decoding.engines import engine_of
    from transduct.decoding.sharing import Processes
    from transduct.page.answers import Demonstration
    from transduct.page.guard import is_loopback
    from transduct.page.serving import address, application, listen, serve

    if dtype not in DTYPES:
        raise ValueError(f"--dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    engine = engine_of(model)
    if engine is not None:
        raise ValueError(f"{model} was exported to {engine}, which tells no attention: open the folder that it was exported from")
    with listen(host, port) as sock:
        page = Demonstration(*load(model, DTYPES[dtype], Processes().device), seconds=seconds)
        app = application(page, model, host)
        if not is_loopback(host):
            print(f"transduct demo: everybody who reaches {host} can use this page", file=sys.stderr)
        typer.echo(f"{printable(model)}: {address(host, sock)} (Ctrl-C ends it)")
        serve(app, page, sock)

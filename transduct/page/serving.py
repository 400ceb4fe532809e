"""The server of the page: on this computer alone unless told otherwise, until Ctrl-C."""

import socket
from contextlib import suppress
from typing import Any

import fastapi
import gradio as gr
import uvicorn

from transduct.page.answers import Demonstration
from transduct.page.guard import Guard, names_of
from transduct.page.layout import CSS, Layout, theme


def application(page: Demonstration, name: str, host: str) -> Guard:
    """The page as an ASGI application: no uploads, no telemetry, nothing shared, nothing from elsewhere."""
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    blocks = Layout(page, name).blocks
    gr.mount_gradio_app(
        app,
        blocks,
        path="",
        app_kwargs={"openapi_url": None},
        server_name=host,
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=1,  # there is nothing to upload
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=CSS,
    )
    return Guard(app, names_of(host))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: any that is free.

    Raises:
        ValueError: for an address that is not to be had.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port} must lie from 0 (any that is free) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # for all its connections: no part of an answer waits
        return listening
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"the page cannot be served at {host}, port {port} ({reason}): choose others by --host and --port"
        ) from None


def address(host: str, sock: socket.socket) -> str:
    """What a visitor on this computer opens."""
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}/"


class Server(uvicorn.Server):
    """Ends at once when it is told to: a search that is running is stopped, and nobody is waited for."""

    def __init__(self, app: Guard, page: Demonstration):
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=1, server_header=False
        )
        super().__init__(config)
        self.page = page

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.page.close()
        super().handle_exit(sig, frame)


def serve(app: Guard, page: Demonstration, sock: socket.socket) -> None:
    """Serve until Ctrl-C."""
    with suppress(KeyboardInterrupt):  # which uvicorn hands on when all is closed
        Server(app, page).run(sockets=[sock])

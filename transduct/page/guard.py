"""Whom the page's server answers, and what: this page in a visitor's browser, no page of anybody else, nothing it does not need.

A browser lets any web site send requests to a server on the visitor's own computer. Three things keep those out:

- The `Host` of a request must be a name under which this server is known: a foreign name may have been made to lead here (DNS
  rebinding).
- Its `Origin`, if a browser tells one, must be the page's own; and `Sec-Fetch-Site` must not tell of another site, unless the
  page itself is opened, by a link.
- Answers forbid the browser to load anything from elsewhere, and other sites to show the page in a frame.

Of what gradio serves, the page's own part is answered; uploads, links that keep a visitor's results, and the like are not there.
"""

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""The content security policy. Inline scripts and styles, and code made of text, are gradio's own."""
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
SERVICES = frozenset({"app_id", "cancel", "info", "queue/data", "queue/join", "reset", "startup-events", "theme.css"})
"""What the page uses under `/gradio_api/`, beside `heartbeat/...`. The rest takes uploads, keeps results or reads files."""
MOST_BYTES = 8 * 1024 * 1024
"""Of a request: room for what a visitor may paste by mistake, so that the page can say that it is too much."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Names:
    """What a server may be called in a request.

    Args:
        known: names in lower case.
        addresses: whether it may be called by any address, too.
    """

    known: frozenset[str]
    addresses: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.known or (self.addresses and _address(name) is not None)


def names_of(host: str) -> Names:
    """The names under which a server that listens at `host` is known.

    One that listens everywhere is known by addresses and by its computer's names; looking these up may take a while.
    """
    if host in ("0.0.0.0", "::", ""):
        return Names(LOOPBACK | {socket.gethostname().lower(), socket.getfqdn().lower()}, addresses=True)
    return Names((LOOPBACK if is_loopback(host) else frozenset()) | {host.lower()})


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches a server that listens there."""
    address = _address(host)
    return host.lower() in LOOPBACK or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def refusal(headers: Iterable[tuple[bytes, bytes]], names: Names) -> tuple[int, str] | None:
    """Why a request with these headers is not answered, as a status and a sentence; None: it is.

    Args:
        headers: lower-case names and values, as ASGI has them.
    """
    found: dict[str, str] = {}
    for key, value in headers:
        name = key.decode("latin-1")
        if name in found and name in ("host", "origin"):
            return 400, f"a request has one {name}"
        found[name] = value.decode("latin-1")
    host = found.get("host", "")
    if _hostname(host) not in names:
        return 421, "this server is not known by that name: open the address that `transduct demo` has printed"
    origin = found.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return 403, "this page answers no other site"
    opened = found.get("sec-fetch-mode") == "navigate" and found.get("sec-fetch-dest") == "document"
    if found.get("sec-fetch-site") in ("cross-site", "same-site") and not opened:
        return 403, "this page answers no other site"
    length = found.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BYTES:
        return 413, f"a request has at most {MOST_BYTES:,} bytes"
    return None


def is_of_the_page(path: str) -> bool:
    """Whether the page needs what is served at a path."""
    part, _, name = path.strip("/").partition("/")
    return part != "gradio_api" or name in SERVICES or name.startswith("heartbeat/")


def _hostname(host: str) -> str:
    """The name in a `Host`, without its port; "" for what is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """An ASGI application around another one, which sees only what is not refused.

    Args:
        names: of the server, see `names_of`.
    """

    def __init__(self, app: Any, names: Names):
        self.app, self.names = app, names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":  # no part of the page speaks by web sockets
            await send({"type": "websocket.close", "code": 1008})
        elif why := refusal(scope["headers"], self.names):
            await _refuse(send, *why)
        elif not is_of_the_page(scope["path"]):
            await _refuse(send, 404, "the page has nothing there")
        else:
            await self.app(scope, Counted(receive), _with_headers(send))


class Counted:
    """Receives a request's body; one of more than `MOST_BYTES`, whatever its header says, ends as if its visitor had left."""

    def __init__(self, receive: Any):
        self.receive, self.seen = receive, 0

    async def __call__(self) -> Any:
        message = await self.receive()
        self.seen += len(message.get("body", b""))
        if self.seen > MOST_BYTES:
            return {"type": "http.disconnect"}
        return message


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            own = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return sending


async def _refuse(send: Any, status: int, why: str) -> None:
    body = f"{why}\n".encode()
    length = str(len(body)).encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

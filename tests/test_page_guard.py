"""Whom the page's server answers, header by header, and what it does with the others."""

import asyncio

import pytest

from transduct.page.guard import HEADERS, MOST_BYTES, Guard, is_loopback, is_of_the_page, names_of, refusal

LOCAL = names_of("127.0.0.1")


def status(names=LOCAL, **headers: str) -> int | None:
    given = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
    found = refusal(given, names)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"host": "127.0.0.1:7860"}, None),
        ({"host": "localhost:7860"}, None),
        ({"host": "LOCALHOST"}, None),
        ({"host": "[::1]:7860"}, None),
        ({"host": "127.0.0.1:7860", "origin": "http://127.0.0.1:7860"}, None),
        ({"host": "localhost:7860", "origin": "http://LOCALHOST:7860"}, None),
        ({"host": "localhost:7860", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}, None),
        ({"host": "localhost", "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, None),
        ({"host": "localhost", "content_length": str(MOST_BYTES)}, None),
        # another name: DNS rebinding
        ({}, 421),
        ({"host": ""}, 421),
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:7860", "origin": "http://evil.example:7860"}, 421),
        ({"host": "localhost.evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "evil@localhost.example"}, 421),
        ({"host": "[::1"}, 421),
        ({"host": "192.168.0.7"}, 421),
        # another site
        ({"host": "localhost:7860", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:7860", "origin": "http://localhost:8000"}, 403),
        ({"host": "localhost:7860", "origin": "http://127.0.0.1:7860"}, 403),
        ({"host": "localhost:7860", "origin": "null"}, 403),
        ({"host": "localhost:7860", "origin": ""}, 403),
        ({"host": "localhost:7860", "origin": "file://localhost:7860"}, 403),
        ({"host": "localhost:7860", "origin": "http://[::1"}, 403),
        ({"host": "localhost", "sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ({"host": "localhost", "sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403),
        ({"host": "localhost", "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}, 403),
        # too much
        ({"host": "localhost", "content_length": str(MOST_BYTES + 1)}, 413),
        ({"host": "localhost", "content_length": "-1"}, 413),
        ({"host": "localhost", "content_length": "many"}, 413),
    ],
    ids=str,
)
def test_who_is_answered(headers, wanted):
    assert status(**headers) == wanted


def test_the_computers_name_is_looked_up_once(monkeypatch):
    """Not for each request: others would wait."""
    asked = []
    monkeypatch.setattr("socket.getfqdn", lambda: asked.append(1) or "Box.Example")
    names = names_of("0.0.0.0")
    assert [status(names, host=host) for host in ("box.example:7860", "evil.example", "box.example")] == [None, 421, None]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("LocalHost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("192.168.0.7", False),
        ("127.evil.example", False),
        ("", False),
    ],
)
def test_where_only_this_computer_is_served(host, wanted):
    assert is_loopback(host) == wanted


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/", True),
        ("/config", True),
        ("/assets/index.js", True),
        ("/gradio_api/queue/join", True),
        ("/gradio_api/heartbeat/visitor", True),
        ("/gradio_api/info/", True),
        ("/gradio_api/upload", False),
        ("//gradio_api/upload/", False),
        ("/gradio_api/deep_link", False),
        ("/gradio_api/file=/tmp/a", False),
        ("/gradio_api/proxy=http://elsewhere.example/gradio_api/info", False),
        ("/gradio_api/call/run", False),
        ("/gradio_api/", False),
    ],
)
def test_what_is_answered(path, wanted):
    assert is_of_the_page(path) == wanted


def test_a_header_that_comes_twice_is_refused():
    for name in (b"host", b"origin"):
        headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (name, b"evil.example")]
        assert refusal(headers, LOCAL) == (400, f"a request has one {name.decode()}")


def test_servers_that_listen_elsewhere_are_known_by_their_own_names():
    named = names_of("Box.Example")
    assert status(named, host="box.example:80") is None
    assert status(named, host="localhost") == 421
    assert status(names_of("127.0.0.2"), host="127.0.0.2:7860") is None
    everywhere = names_of("0.0.0.0")
    for host in ("192.168.0.7:7860", "localhost", "[fe80::1]:7860"):
        assert status(everywhere, host=host) is None
    assert status(everywhere, host="evil.example") == 421


def asked(scope: dict, body: list[bytes] = ()) -> tuple[list[dict], list[dict]]:
    """What a guarded application was handed, and what was sent for a request with this body."""
    seen, sent = [], []
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in body]

    async def app(scope, receive, send):
        for _ in messages.copy():
            seen.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"own", b"1")]})
        await send({"type": "http.response.body", "body": b"page"})

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(app, LOCAL)(scope, receive, send))
    return seen, sent


def test_answers_carry_the_policy():
    _, sent = asked({"type": "http", "path": "/", "headers": [(b"host", b"localhost")]})
    assert sent[0]["headers"] == [(b"own", b"1"), *((key.encode(), value.encode()) for key, value in HEADERS.items())]
    assert "default-src 'self'" in HEADERS["content-security-policy"]
    assert "http" not in HEADERS["content-security-policy"]


def test_what_is_refused_reaches_no_application():
    seen, sent = asked({"type": "http", "path": "/", "headers": [(b"host", b"evil.example")]}, [b"x"])
    assert seen == []
    assert (sent[0]["status"], b"not known by that name" in sent[1]["body"]) == (421, True)
    upload = {"type": "http", "path": "/gradio_api/upload", "headers": [(b"host", b"localhost")]}
    seen, sent = asked(upload, [b"x"])
    assert (seen, sent[0]["status"]) == ([], 404)
    seen, sent = asked({"type": "websocket", "headers": [(b"host", b"localhost")]}, [b"x"])
    assert (seen, sent[0]["type"]) == ([], "websocket.close")


def test_a_body_without_an_end_is_cut_off():
    part = b"x" * (MOST_BYTES // 2)
    seen, _ = asked({"type": "http", "path": "/", "headers": [(b"host", b"localhost")]}, [part, part, b"x"])
    assert [message["type"] for message in seen] == ["http.request", "http.request", "http.disconnect"]

"""The server of the page over HTTP: this computer's own browser is answered, others are not, and there is nothing to misuse."""

import json
import socket
import threading
import time

import gradio
import pytest

from page_server import NAME, request, send, served, start_search, told
from transduct.page.serving import address, listen

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of gradio's own threads


@pytest.fixture(scope="module")
def server():
    with served() as (url, _):
        yield url


def test_the_page_is_served_with_its_policy(server):
    answer = request(server, "/")
    assert answer.status == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["access-control-allow-origin"] is None
    text = answer.content.decode()
    assert "<img src=x" not in text  # the model's name, escaped wherever it stands
    assert NAME in json.loads(request(server, "/config").content)["title"]
    assert "fonts.googleapis" not in text
    assert "googleapis" not in request(server, "/theme.css").content.decode()


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example", "origin": "http://evil.example"}, 421),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}, 403),
    ],
    ids=str,
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/config"), ("POST", "/gradio_api/queue/join")])
def test_other_origins_are_refused(server, method, path, headers, wanted):
    body = b"{}" if method == "POST" else None
    answer = request(server, path, method, body, content_type="text/plain", **headers)
    assert answer.status == wanted
    assert answer.headers["access-control-allow-origin"] is None
    assert b"gradio" not in answer.content


def test_a_preflight_of_another_origin_is_refused(server):
    answer = request(
        server, "/gradio_api/queue/join", "OPTIONS", origin="http://evil.example", access_control_request_method="POST"
    )
    assert answer.status == 403
    assert answer.headers["access-control-allow-origin"] is None


def test_the_page_itself_may_ask(server):
    own = server.removesuffix("/")
    assert request(server, "/config", origin=own, sec_fetch_site="same-origin").status == 200


def test_nothing_can_be_uploaded_read_or_called_by_name(server):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nx\r\n--x--\r\n'
    answer = request(server, "/gradio_api/upload", "POST", body, content_type="multipart/form-data; boundary=x")
    assert answer.status >= 400
    for path in ("/etc/hostname", __file__, "pyproject.toml"):
        assert request(server, f"/gradio_api/file={path}").status >= 400
    assert request(server, "/gradio_api/info").status == 200
    assert json.loads(request(server, "/gradio_api/info").content)["named_endpoints"] == {}
    for path in ("/docs", "/openapi.json", "/monitoring", "/gradio_api/mcp/sse"):
        assert request(server, path).status >= 400


def test_no_value_is_fetched(server, monkeypatch):
    """gradio would fetch an address in place of a value, keep what it got, and serve it."""
    fetched = []

    async def fetch(url, *_, **__):
        fetched.append(url)
        raise OSError("not in this test")

    monkeypatch.setattr(gradio.processing_utils, "async_ssrf_protected_get", fetch)
    value = {"path": "http://elsewhere.example/x.html", "meta": {"_type": "gradio.FileData"}}
    events = json.loads(request(server, "/config").content)["dependencies"]
    assert len(events) > 5
    for event in events:
        send(server, event["id"], [value for _ in event["inputs"]], visitor=f"visitor{event['id']}")
        told = request(server, f"/gradio_api/queue/data?session_hash=visitor{event['id']}").content
        assert b'"success":false' in told
    assert fetched == []


@pytest.mark.parametrize("value", [None, "", "<b>", -99, 1e300, {"path": "/etc/hostname"}, [1]], ids=repr)
def test_values_that_cannot_be_are_told_on_the_page_alone(value, server, capfd):
    """For every input of every event: no traceback on the terminal, no markup, and the page goes on."""
    events = json.loads(request(server, "/config").content)["dependencies"]
    for event in events:
        visitor = f"{value!r}".encode().hex() + str(event["id"])
        send(server, event["id"], [value for _ in event["inputs"]], visitor=visitor)
        told = request(server, f"/gradio_api/queue/data?session_hash={visitor}").content
        assert b'"success":' in told
        assert b"<b>" not in told
    assert "Traceback" not in capfd.readouterr().err
    assert request(server, "/").status == 200


def test_a_request_of_too_many_bytes_is_refused(server):
    assert request(server, "/gradio_api/queue/join", "POST", b"x", content_length=str(10**10)).status == 413


def test_no_telemetry(server):
    assert json.loads(request(server, "/config").content)["analytics_enabled"] is False


def test_addresses():
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert address("127.0.0.1", sock) == f"http://127.0.0.1:{port}/"
        assert address("0.0.0.0", sock) == f"http://127.0.0.1:{port}/"
        assert address("::1", sock) == f"http://[::1]:{port}/"
        with pytest.raises(
            ValueError, match=rf"cannot be served at 127\.0\.0\.1, port {port} .*: choose others by --host and --port"
        ):
            listen("127.0.0.1", port)
    with pytest.raises(ValueError, match="--port 70000 must lie from 0"):
        listen("127.0.0.1", 70000)
    with pytest.raises(ValueError, match=r"cannot be served at no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 0)


def test_by_default_only_this_computer_is_served():
    with listen("127.0.0.1", 0) as sock:
        assert sock.family == socket.AF_INET
        assert sock.getsockname()[0] == "127.0.0.1"


def test_a_search_is_stopped_with_the_server():
    """Also one whose visitor has left."""
    with served(seconds=600, end=-1e4) as (url, page):
        start_search(url)
        begin = time.monotonic()
        while not page.busy:
            assert time.monotonic() - begin < 30
            time.sleep(0.02)
    begin = time.monotonic()
    while page.busy:
        assert time.monotonic() - begin < 10
        time.sleep(0.02)


def test_what_becomes_of_the_searches_of_a_visitor_who_leaves(monkeypatch):
    """The one that has begun goes on to its end, one that waits for it is never begun, and then others are answered."""
    begun, ended, goes_on = [], [], threading.Event()
    with served() as (url, page):
        answer = page.answer

        def held(text, settings):
            begun.append(text)
            assert text == "hello" or goes_on.wait(60)
            ended.append(answer(text, settings).text)
            return answer(text, settings)

        monkeypatch.setattr(page, "answer", held)
        for text in ("abc", "cab"):
            start_search(url, "gone", text)
        with told(url, "gone") as stream:
            while not begun:
                time.sleep(0.02)
        start_search(url, "other", "hello")
        with told(url, "other") as stream:
            while b'"rank":0' not in stream.readline():  # the next one: nothing else waits
                assert begun in ([], ["abc"])
            goes_on.set()
            assert b'"success":true' in stream.read()
    assert begun == ended == ["abc", "hello"]

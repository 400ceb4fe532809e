"""The page of a tiny model on a free port of this computer, served by a thread."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tiny_translation import LETTERS, tiny_translation
from transduct import TransductTokenizer
from transduct.page.answers import Demonstration
from transduct.page.serving import Server, address, application, listen

NAME = "<img src=x onerror=alert(1)> ${alert(2)} {{3}}"
"""Of the model: what a folder may be called."""


@contextmanager
def served(seconds: float = 60.0, end: float = 2.0) -> Iterator[tuple[str, Demonstration]]:
    """The address, and the model behind it."""
    tokenizer = TransductTokenizer.train(iter([f"{LETTERS}<>={{}}$/\u202e"]), kind="chars")
    model, _ = tiny_translation(end=end, vocab_size=len(tokenizer))
    page = Demonstration(model, tokenizer, seconds=seconds)
    with listen("127.0.0.1", 0) as sock:
        url = address("127.0.0.1", sock)
        server = Server(application(page, NAME, "127.0.0.1"), page)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.02)
            yield url, page
        finally:
            server.handle_exit(0, None)
            thread.join(20)
    assert not thread.is_alive()


def request(url: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
    """An answer, read whole as its `content`; `_` in a header's name stands for `-`."""
    host = url.removeprefix("http://").removesuffix("/")
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
    response = connection.getresponse()
    response.content = response.read()
    connection.close()
    return response


def send(url: str, event: int, data: list[Any], visitor: str = "visitor") -> None:
    """Let something happen with these inputs, as a browser would, and do not wait for it."""
    body = json.dumps({"data": data, "fn_index": event, "session_hash": visitor, "event_data": None}).encode()
    answer = request(url, "/gradio_api/queue/join", "POST", body, content_type="application/json")
    assert answer.status == 200, answer.content


@contextmanager
def told(url: str, visitor: str) -> Iterator[http.client.HTTPResponse]:
    """What a visitor's page is told of its events, as it comes; at the end of this the visitor leaves."""
    connection = http.client.HTTPConnection(url.removeprefix("http://").removesuffix("/"), timeout=60)
    connection.request("GET", f"/gradio_api/queue/data?session_hash={visitor}")
    with closing(connection), connection.getresponse() as response:
        yield response


def start_search(url: str, visitor: str = "visitor", text: str = "a") -> None:
    """Press the page's button for a search of as many steps as there can be."""
    config = json.loads(request(url, "/config").content)
    components = {each["id"]: each["props"] for each in config["components"]}
    event = next(
        each
        for each in config["dependencies"]
        if any(components[number].get("elem_id") == "run" for number, _ in each["targets"])
    )
    chosen = {"source": text, "tokens": 512}
    data = [chosen.get(components[number].get("elem_id"), components[number].get("value")) for number in event["inputs"]]
    send(url, event["id"], data, visitor)

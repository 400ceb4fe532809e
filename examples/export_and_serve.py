"""Write a model for another engine and answer requests with it, by HTTP and JSON, with nothing but Python's own server.

    python examples/export_and_serve.py runs/dates/model runs/dates/fast                # CTranslate2 with int8 matrices
    python examples/export_and_serve.py runs/dates/model runs/dates/onnx --to onnx
    curl -H 'Content-Type: application/json' -d '{"texts": ["5 May 1955"]}' http://127.0.0.1:8000/translate
    {"outputs": ["1955-05-05"]}

The export is compared with the model when it is written; if the folder is there already, it is served as it is. Needs the extra
`ctranslate2` or `onnx`. This is an example of the calls, not a server for the open network: it listens on this machine alone,
refuses what comes from a page in a browser, and answers one request at a time.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from transformers import AutoTokenizer

import transduct
from transduct.convert.engine_folders import export_engine
from transduct.decoding.engines import load_engine

LONGEST_REQUEST = 1_000_000
"""Bytes."""
MOST_TEXTS = 1_000


class Refused(Exception):
    """A request that is not answered: its HTTP status, and why."""


class Translations(BaseHTTPRequestHandler):
    """POST /translate {"texts": [...]} -> {"outputs": [...]}; anything else is an error that says what is wrong."""

    engine: Any
    tokenizer: Any
    beams: int
    one_at_a_time: Lock

    def do_POST(self) -> None:
        try:
            texts = self.texts()
            with self.one_at_a_time:
                outputs = transduct.translate(self.engine, self.tokenizer, texts, num_beams=self.beams)
            self.answer(200, {"outputs": outputs})
        except Refused as error:
            self.answer(*error.args)
        except ValueError as error:  # a text that is too long for the model, such as
            self.answer(400, {"error": str(error)})

    def texts(self) -> list[str]:
        """The texts of the request.

        Raises:
            Refused: for a request of any other form.
        """
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_REQUEST:
            raise Refused(413, {"error": f"Content-Length must say how long the request is, {LONGEST_REQUEST:,} bytes at most"})
        body = self.rfile.read(int(length))
        if self.path != "/translate":
            raise Refused(404, {"error": "the only address is /translate"})
        if self.headers.get("Origin") is not None or self.headers.get_content_type() != "application/json":
            raise Refused(403, {"error": "requests are JSON (Content-Type: application/json), and from no page in a browser"})
        try:
            texts = json.loads(body)["texts"]
        except (ValueError, KeyError, TypeError):
            texts = None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) > MOST_TEXTS:
            raise Refused(400, {"error": f'the request must be {{"texts": [...]}}, {MOST_TEXTS:,} strings at most'})
        return texts

    def answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def server(folder: Path, port: int, beams: int) -> ThreadingHTTPServer:
    """A server for an exported folder, on this machine's own address; port 0: any that is free."""
    parts = {"engine": load_engine(folder), "tokenizer": AutoTokenizer.from_pretrained(folder), "beams": beams}
    return ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (Translations,), parts | {"one_at_a_time": Lock()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint of ours: a folder, or an id of the Hub")
    parser.add_argument("folder", type=Path, help="where the export goes, or is")
    parser.add_argument("--to", choices=("ctranslate2", "onnx"), default="ctranslate2", help="(%(default)s)")
    parser.add_argument("--quantization", default=None, help="of CTranslate2: int8 unless told otherwise, or float32, …")
    parser.add_argument("--port", type=int, default=8000, help="(%(default)s)")
    parser.add_argument("--beams", type=int, default=4, help="(%(default)s)")
    options = parser.parse_args()
    if not options.folder.exists():
        quantization = options.quantization or ("int8" if options.to == "ctranslate2" else None)
        print(f"export: {export_engine(options.model, options.folder, options.to, quantization).checked}")
    with server(options.folder, options.port, options.beams) as running:
        print(f"http://127.0.0.1:{running.server_port}/translate; Ctrl-C stops it", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()

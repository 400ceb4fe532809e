"""The scripts in examples/ that teach one thing each, run at toy size: train, fine-tune, export and serve, share."""

import importlib.util
import json
import sys
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

import transduct
from tiny_tokenizers import write_tokenizer
from transduct import TransductForConditionalGeneration, TransductTokenizer, config_from_preset

EXAMPLES = Path(__file__).parents[1] / "examples"


def script(name: str):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, monkeypatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    script(name).main()


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The folder of a model that was not trained, with its tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = TransductTokenizer.train(iter(["a text about 1955"]), kind="chars")
    sizes = dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1)
    torch.manual_seed(0)
    for part in (
        TransductForConditionalGeneration(config_from_preset("vaswani-base", vocab_size=len(tokenizer), **sizes)),
        tokenizer,
    ):
        part.save_pretrained(folder)
    return folder


# ---- train_from_scratch.py -------------------------------------------------------------------------------------------
def test_a_model_is_trained_measured_and_kept(tmp_path, monkeypatch, capsys):
    run("train_from_scratch", monkeypatch, "--output", tmp_path, "--steps", 3, "--pairs", 40)
    printed = capsys.readouterr().out
    assert "of 20 dates are right" in printed
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.vocab_size == len(tokenizer)


def test_the_dates_are_right_and_none_is_there_twice():
    pairs = script("train_from_scratch").dates(300, seed=2)
    assert len({target for _, target in pairs}) == 300
    for source, target in pairs:
        year, _, day = target.split("-")
        assert year in source
        assert str(int(day)) in source


# ---- finetune_imported.py --------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_checkpoint_is_imported_trained_and_exported(tmp_path, monkeypatch, capsys):
    original, output = tmp_path / "original", tmp_path / "output"
    write_tokenizer("t5", original)
    torch.manual_seed(0)
    config = T5Config(vocab_size=328, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(original)
    pairs = [{"source": f"the value of field {number}", "target": f"field {number}"} for number in range(20)]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    files = ("--train", tmp_path / "train.jsonl", "--validation", tmp_path / "valid.jsonl")
    options = ("--prefix", "shorten: ", "--steps", 5, "--learning-rate", 0.01, "--tokens", 300)
    run("finetune_imported", monkeypatch, "--checkpoint", original, "--output", output, *files, *options)

    printed = capsys.readouterr().out
    (losses,) = [line for line in printed.splitlines() if line.startswith("validation loss: ")]
    before, after = (float(word) for word in losses.split() if word[0].isdigit())
    assert after < before
    assert printed.count("greedy generation: identical ids") == 2
    trained = AutoModelForSeq2SeqLM.from_pretrained(output / "model")
    exported = T5ForConditionalGeneration.from_pretrained(output / "exported")
    assert type(trained) is TransductForConditionalGeneration
    assert torch.equal(exported.shared.weight, trained.get_input_embeddings().weight)
    assert not torch.equal(exported.shared.weight, T5ForConditionalGeneration.from_pretrained(original).shared.weight)


# ---- export_and_serve.py ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def address(saved, tmp_path_factory) -> str:
    """Of the server, which answers with an export of the saved model."""
    module = script("export_and_serve")
    folder = tmp_path_factory.mktemp("export") / "fast"
    module.export_engine(saved, folder, "ctranslate2", "float32")
    with module.server(folder, port=0, beams=2) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def ask(address: str, data: bytes, **headers: str) -> tuple[int, dict]:
    """The status and the content of an answer."""
    request = Request(address, data, {"Content-Type": "application/json", **headers})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_the_server_writes_what_the_model_does(address, saved):
    texts = ["a text", "", "about 1955"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    wanted = transduct.translate(model, tokenizer, texts, num_beams=2, early_stopping=True)
    assert ask(f"{address}/translate", json.dumps({"texts": texts}).encode()) == (200, {"outputs": wanted})


@pytest.mark.parametrize(
    ("path", "data", "headers", "status"),
    [
        ("/", b'{"texts": []}', {}, 404),
        ("/translate", b"not JSON", {}, 400),
        ("/translate", b"\xff\xfe", {}, 400),
        ("/translate", b'["a"]', {}, 400),
        ("/translate", b'{"texts": "a"}', {}, 400),
        ("/translate", b'{"texts": [1]}', {}, 400),
        ("/translate", json.dumps({"texts": [""] * 1001}).encode(), {}, 400),
        ("/translate", b"{}", {"Content-Length": "1000001"}, 413),
        ("/translate", b"{}", {"Content-Length": "-1"}, 413),
        ("/translate", b'{"texts": []}', {"Origin": "http://example.org"}, 403),
        ("/translate", b'{"texts": []}', {"Content-Type": "text/plain"}, 403),
    ],
)
def test_what_the_server_refuses(address, path, data, headers, status):
    got, content = ask(f"{address}{path}", data, **headers)
    assert got == status
    assert list(content) == ["error"]


# ---- share_on_the_hub.py ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_rehearsal_shows_files_and_card_and_loads_without_the_package(saved, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    run("share_on_the_hub", monkeypatch, saved, "my-name/texts", "--text", "about")
    printed = capsys.readouterr().out
    for part in ("model.safetensors", "modeling.py", "my-name/texts", "the same without transduct"):
        assert part in printed

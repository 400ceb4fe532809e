"""`transduct push` on the command line: what it prints. What it does is tested in test_hub_sharing.py."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hub_clients import client_in_this_process
from hub_server import Account, Blob, Hub, serving
from tiny_translation import save_translation
from transduct.cli.main import run

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the client's own uploads


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_translation(tmp_path_factory.mktemp("saved") / "translator")


def test_the_command_tells_where_the_model_is(folder, capsys, tmp_path, monkeypatch):
    hub = Hub({"a-token": Account("ann")})
    with serving(hub) as url, client_in_this_process(url, tmp_path, monkeypatch, "a-token"):
        assert run(["push", str(folder), "ann/model", "--license", "mit", "--language", "en", "--task", "translation"]) == 0
        assert f"shared   {url}/ann/model, commit " in capsys.readouterr().out
        card = ModelCard(hub.repositories["ann/model"].files()["README.md"].content.decode())
        assert (card.data.license, card.data.language, card.data.pipeline_tag) == ("mit", ["en"], "translation")
        assert run(["push", str(folder), "ann/model", "--json", "--license", "mit"]) == 0
        told = json.loads(capsys.readouterr().out)
        repository = hub.repositories["ann/model"]
        assert told["card"] == repository.files()["README.md"].content.decode()
        repository.commit("main", repository.files() | {"adapter_config.json": Blob(b"{}"), "README.md": Blob(b"# Theirs\n")})
        assert run(["push", str(folder), "ann/model", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert (again["card"], again["deleted"]) == ("# Theirs\n", ["adapter_config.json"])
    assert told["url"] == f"{url}/ann/model"
    assert told["files"]["model.safetensors"] == (folder / "model.safetensors").stat().st_size


def test_a_rehearsal_sends_nothing(folder, capsys):
    """This process is offline: a request would fail."""
    assert run(["push", str(folder), "ann/model", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"{(folder / 'model.safetensors').stat().st_size:,} bytes" in printed
    assert "AutoModelForSeq2SeqLM" in printed
    assert printed.endswith("Nothing was sent.\n")
    assert run(["push", str(folder), "ann/model", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["url"] is None
    assert "model.safetensors" in told["files"]


def test_names_of_files_do_nothing_to_a_terminal(folder, tmp_path, capsys):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "\x1b[2J.txt").write_text("")
    (copy / "\x1b]0;x\x07.pt").write_text("")
    (copy / "README.md").write_text("# \x1b[2J\n")
    assert run(["push", str(copy), "ann/model", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(printed)
    assert "\\x1b[2J.txt" in printed
    assert "# \\x1b[2J\n" in printed


def test_an_evaluation_is_told_in_the_card(folder, tmp_path, capsys):
    found = {"examples": 3003, "metrics": {"BLEU": {"metric": "bleu", "score": 27.25, "signature": "nrefs:1|tok:13a"}}}
    (tmp_path / "found.json").write_text(json.dumps(found))
    assert run(["push", str(folder), "ann/model", "--dry-run", "--evaluation", f"newstest 2014={tmp_path / 'found.json'}"]) == 0
    printed = capsys.readouterr().out
    assert "On newstest 2014, 3,003 examples:" in printed
    assert "| BLEU | 27.2500 | `nrefs:1\\|tok:13a` |" in printed


def test_without_the_network(folder, capsys):
    assert run(["push", str(folder), "ann/model"]) == 2
    assert capsys.readouterr().err == "transduct: HF_HUB_OFFLINE is set, so that nothing can be shared: unset it\n"


def test_an_evaluation_has_a_name(folder, capsys):
    assert run(["push", str(folder), "ann/model", "--evaluation", "x.json"]) == 2
    assert "must read NAME=FILE" in capsys.readouterr().err

"""`transduct push` against a Hub over real HTTP: what goes there, what does not, and what is said when it fails."""

import base64
import json
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch

from hub_clients import client_in_this_process
from hub_server import Account, Blob, Fault, Hub, Response, serving
from tiny_translation import save_translation, tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.cli.main import run
from transduct.hub import Options, Said, facts_of, prepare, push, write_card
from transduct.hub.cards import is_ours, license_in, said_in

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the client's own uploads

TOKEN, READER = "hf_" + "w" * 30, "hf_" + "r" * 30


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return save_translation(tmp_path_factory.mktemp("saved") / "translator")


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "translator"))


@pytest.fixture
def hub() -> Hub:
    return Hub({TOKEN: Account("ann", ("team",)), READER: Account("ann", writes=False)})


@pytest.fixture
def online(hub, tmp_path, monkeypatch):
    with serving(hub) as url, client_in_this_process(url, tmp_path / "home", monkeypatch, TOKEN):
        yield url
    assert hub.unknown == []


def files(hub: Hub, name: str = "ann/model", revision: str = "main") -> dict[str, Blob]:
    return hub.repositories[name].files(revision)


def fails(capsys, *arguments) -> str:
    """Run `transduct push`, which must refuse; return the one line that it says."""
    assert run(["push", *map(str, arguments)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]  # behind bars of uploads
    assert said.startswith("transduct: ")
    return said


# ---- what goes there ----------------------------------------------------------------------------------------------------------
def test_a_model_goes_there_whole_in_one_commit(online, hub, folder):
    (folder / "Büß & <b> $(x) 'y'.txt").write_text("a name like any other")
    shared = push(folder, "ann/model")
    there = files(hub)
    for path in folder.rglob("*"):
        if path.is_file():
            assert there[path.relative_to(folder).as_posix()].content == path.read_bytes()
    assert set(there) == {"README.md", ".gitattributes"} | {path.name for path in folder.iterdir()}
    assert len(hub.repositories["ann/model"].commits) == 2  # the Hub's own, and this
    assert shared.commit == hub.repositories["ann/model"].branches["main"]
    assert shared.url == f"{online}/ann/model"
    assert {"modeling.py", "configuration.py", "tokenizer.json"} <= set(there)


def test_what_is_downloaded_computes_the_same(online, hub, folder, tmp_path):
    push(folder, "ann/model")
    back = huggingface_hub.snapshot_download("ann/model", cache_dir=tmp_path / "cache")
    ids = torch.tensor([[4, 5, 6, 1]])
    models = [TransductForConditionalGeneration.from_pretrained(place) for place in (folder, back)]
    with torch.no_grad():
        logits = [model(ids, decoder_input_ids=ids).logits for model in models]
    assert torch.equal(*logits)


def test_shards_replace_a_file_and_a_file_replaces_shards(online, hub, folder):
    model, tokenizer = tiny_translation()
    push(folder, "ann/model")
    sharded = folder.with_name("sharded")
    model.save_pretrained(sharded, max_shard_size="20KB")
    tokenizer.save_pretrained(sharded)
    push(sharded, "ann/model")
    weights = {name for name in files(hub) if "safetensors" in name}
    assert weights == {path.name for path in sharded.glob("*.safetensors*")}
    assert len(weights) > 2
    push(folder, "ann/model")
    assert {name for name in files(hub) if "safetensors" in name} == {"model.safetensors"}


def test_parts_of_an_earlier_model_go(online, hub, folder):
    """Its generation config and adapter, and its tokenizer if the new one has one; what is not known stays."""
    push(folder, "ann/model")
    old = {name: Blob(b"{}") for name in ("adapter_config.json", "spiece.model", "preprocessor_config.json", "notes.json")}
    hub.repositories["ann/model"].commit("main", files(hub) | old)
    (folder / "generation_config.json").unlink()
    shared = push(folder, "ann/model")
    assert set(shared.deleted) == {"generation_config.json", "adapter_config.json", "spiece.model", "preprocessor_config.json"}
    assert "notes.json" in files(hub)
    assert not set(shared.deleted) & set(files(hub))
    for path in folder.glob("*token*"):
        if path.suffix != ".py":
            path.unlink()
    shared = push(folder, "ann/model")
    assert shared.deleted == []
    assert "tokenizer.json stays as it is there, since the folder has no tokenizer" in shared.notes
    assert "tokenizer.json" in files(hub)


def test_branches_and_private_repositories(online, hub, folder):
    push(folder, "team/model", private=True, revision="next/one")
    repository = hub.repositories["team/model"]
    assert repository.private
    assert set(repository.branches) == {"main", "next/one"}
    assert set(repository.files("main")) == {".gitattributes"}
    assert "model.safetensors" in repository.files("next/one")
    push(folder, "team/public", private=False)
    assert not hub.repositories["team/public"].private
    with pytest.raises(ValueError, match="everybody can see it"):
        push(folder, "team/public", private=True, revision="next")
    assert set(hub.repositories["team/public"].branches) == {"main"}
    notes = push(folder, "team/model", private=False).notes
    assert "the repository is private and stays so: the Hub's settings change it" in notes
    assert repository.private


def test_a_password_in_the_address_of_the_hub_is_not_told(hub, folder, tmp_path, monkeypatch, capsys):
    hub.accounts["Basic " + base64.b64encode(b"ann:pass-word").decode()] = Account("ann")  # what the client makes of it
    with serving(hub) as url:
        address = url.replace("://", "://ann:pass-word@")
        with client_in_this_process(address, tmp_path / "home", monkeypatch, TOKEN):
            assert push(folder, "ann/model").url == f"{url}/ann/model"
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with client_in_this_process("http://ann:pass-word@127.0.0.1:9", tmp_path / "home", monkeypatch, TOKEN):
        assert "pass-word" not in fails(capsys, folder, "ann/model")


def test_nothing_is_sent_twice(online, hub, folder):
    first = push(folder, "ann/model")
    assert push(folder, "ann/model") == first
    assert len(hub.seen("PUT", "/lfs/")) == len([blob for blob in files(hub).values() if blob.lfs])


# ---- whose card ---------------------------------------------------------------------------------------------------------------
def card_there(hub: Hub) -> str:
    return files(hub)["README.md"].content.decode()


def test_a_card_of_a_person_in_the_folder_is_shared_as_it_is(online, hub, folder):
    (folder / "README.md").write_text("# My model\n")
    share = prepare(folder, "ann/model", Options())
    assert any("a person wrote" in note for note in share.notes)
    push(folder, "ann/model")
    assert card_there(hub) == "# My model\n"
    with pytest.raises(ValueError, match="what you say for the card would not be in it"):
        push(folder, "ann/model", said=Said(license="mit"))
    push(folder, "ann/model", overwrite_card=True, said=Said(license="mit"))
    assert is_ours(card_there(hub))
    assert (folder / "README.md").read_text() == "# My model\n"


def test_a_card_in_the_folder_that_is_no_text(folder, capsys):
    (folder / "README.md").write_bytes(b"caf\xe9")
    assert "README.md' is not UTF-8" in fails(capsys, folder, "ann/model", "--dry-run")


def test_a_card_that_a_person_changed_on_the_hub_stays(online, hub, folder):
    push(folder, "ann/model")
    changed = card_there(hub).replace("## Use", "## How to use it")
    hub.repositories["ann/model"].commit("main", files(hub) | {"README.md": Blob(changed.encode())})
    (folder / "LICENSE").write_text("terms")
    shared = push(folder, "ann/model", said=Said(license="mit"))
    assert card_there(hub) == changed
    assert "LICENSE" in files(hub)
    assert any("README.md stays as it is there" in note and "what you said" in note for note in shared.notes)
    assert push(folder, "ann/model", overwrite_card=True).notes == []
    assert is_ours(card_there(hub))


def test_a_card_of_a_person_in_the_folder_does_not_replace_another_person_s(online, hub, folder):
    push(folder, "ann/model")
    hub.repositories["ann/model"].commit("main", files(hub) | {"README.md": Blob(b"# Theirs\n")})
    (folder / "README.md").write_text("# Mine\n")
    shared = push(folder, "ann/model")
    assert card_there(hub) == "# Theirs\n"
    assert any("README.md stays as it is there" in note for note in shared.notes)
    hub.repositories["ann/model"].commit("main", files(hub) | {"README.md": Blob(b"# Mine\n")})
    assert push(folder, "ann/model").notes == []


def test_a_card_that_cannot_be_read(online, hub, folder, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    push(folder, "ann/model")
    hub.faults.append(Fault("HEAD", "README.md", 503, times=99))
    assert "not sent twice" in fails(capsys, folder, "ann/model")


def test_a_card_of_ours_is_written_anew_and_keeps_the_licence(online, hub, folder):
    push(folder, "ann/model", said=Said(license="mit", languages=("en",)))
    first = card_there(hub)
    generation = folder / "generation_config.json"
    generation.write_text(generation.read_text().replace("{", '{"max_length": 9,', 1))
    push(folder, "ann/model")
    assert is_ours(card_there(hub))
    assert card_there(hub) != first
    assert license_in(card_there(hub)) == "mit"
    push(folder, "ann/model", said=Said(license="apache-2.0"))
    assert license_in(card_there(hub)) == "apache-2.0"


def test_what_was_said_before_is_kept_until_it_is_said_anew(online, hub, folder):
    push(folder, "ann/model", said=Said("mit", ("de",), "translation"))
    assert push(folder, "ann/model").notes == []
    assert said_in(card_there(hub)) == Said("mit", ("de",), "translation")
    changed = card_there(hub) + "By hand.\n"
    hub.repositories["ann/model"].commit("main", files(hub) | {"README.md": Blob(changed.encode())})
    push(folder, "ann/model", overwrite_card=True)
    assert is_ours(card_there(hub))
    assert said_in(card_there(hub)) == Said("mit", ("de",), "translation")
    push(folder, "ann/model", said=Said(languages=("en",)))
    assert said_in(card_there(hub)) == Said("mit", ("en",), "translation")


def test_the_licence_of_the_folder_s_card_goes_there(online, hub, folder):
    push(folder, "ann/model")
    (folder / "README.md").write_text(write_card(facts_of(folder), "ann/model", Said("mit")))
    push(folder, "ann/model")
    assert license_in(card_there(hub)) == "mit"


def test_languages_of_another_recipe_are_told(online, hub, folder, tmp_path):
    push(folder, "ann/model", said=Said(languages=("de", "en")))
    (tmp_path / "run").mkdir()
    folder.rename(tmp_path / "run" / "model")
    data = "data: {test: {json: a.jsonl, source_language: fr, target_language: en}}\n"
    (tmp_path / "run" / "recipe.yaml").write_text(data)
    assert push(tmp_path / "run", "ann/model").notes == [
        "the card keeps the language of the one before, ['de', 'en'], and not ['fr', 'en']: --language changes it"
    ]


def test_results_that_are_gone_are_told(online, hub, folder, tmp_path):
    found = {"examples": 3, "metrics": {"BLEU": {"metric": "bleu", "score": 27.25}}}
    (tmp_path / "found.json").write_text(json.dumps(found))
    push(folder, "ann/model", evaluations={"newstest": tmp_path / "found.json"})
    assert push(folder, "ann/model", evaluations={"newstest": tmp_path / "found.json"}).notes == []
    assert push(folder, "ann/model").notes == ["the card no longer tells results on newstest: give them again with --evaluation"]


def test_a_language_that_the_hub_does_not_take(online, hub, folder, capsys):
    (folder / "README.md").write_text("---\nlanguage: pt-BR\n---\n# Mine\n")
    assert "must be of ISO 639" in fails(capsys, folder, "ann/model")


def test_the_card_of_a_run_tells_of_its_training(online, hub, folder, tmp_path):
    (tmp_path / "run").mkdir()
    folder.rename(tmp_path / "run" / "model")
    (tmp_path / "run" / "recipe.yaml").write_text("data: {train: {json: a.jsonl}}\n")
    push(tmp_path / "run", "ann/model")
    assert "Trained on a.jsonl" in card_there(hub)
    assert "recipe.yaml" not in files(hub)


# ---- what is refused before anything is sent ----------------------------------------------------------------------------------
def test_a_folder_that_is_not_whole(folder, capsys):
    (folder / "model.safetensors").unlink()
    assert "cannot be shared: weights there are none" in fails(capsys, folder, "ann/model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model"], "must begin with a user or an organisation"),
        (["ann/mo del"], "cannot be a name on the Hub"),
        (["ann/model", "--revision", "../x"], "must be the name of a branch"),
        (["ann/model", "--evaluation", "x.json"], "must read NAME=FILE"),
        (["ann/model", "--evaluation", "WMT=no/such.json"], "no/such.json is no evaluation"),
    ],
)
def test_names_that_cannot_be(arguments, message, folder, capsys):
    assert message in fails(capsys, folder, *arguments)


# ---- what the Hub refuses -----------------------------------------------------------------------------------------------------
def test_tokens_that_do_not_do(online, hub, folder, capsys, monkeypatch):
    assert "knows no valid token" in fails(capsys, folder, "ann/model", "--token", "hf_" + "n" * 30)
    assert "may not write to ann/model" in fails(capsys, folder, "ann/model", "--token", READER)
    assert "may not write to stranger/model" in fails(capsys, folder, "stranger/model")
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN" in fails(capsys, folder, "ann/model")
    assert hub.repositories == {}
    assert run(["push", str(folder), "ann/model", "--token", TOKEN]) == 0


def test_no_message_tells_a_token(online, hub, folder, capsys, caplog):
    secret = "hf_" + "s" * 30
    for token in (secret, f"{secret} x", f"{secret}\nx"):
        fails(capsys, folder, "ann/model", "--token", token)
        run(["push", str(folder), "ann/model", "--token", token, "--debug"])
        printed = capsys.readouterr()
        assert secret not in printed.out + printed.err + caplog.text
    hub.accounts[secret] = Account("ann")
    (folder / "notes.txt").write_text(secret)
    assert secret not in fails(capsys, folder, "ann/model", "--token", secret)
    (folder / "notes.txt").unlink()
    assert run(["push", str(folder), "ann/model", "--token", secret]) == 0
    printed = capsys.readouterr()
    assert secret not in printed.out + printed.err + caplog.text
    assert all(secret.encode() not in blob.content for blob in files(hub).values())


@pytest.mark.parametrize(
    ("status", "message"), [(404, "finds no ann/model"), (409, "changed by somebody else"), (400, "refuses")]
)
def test_errors_of_the_hub(status, message, online, hub, folder, capsys):
    hub.faults.append(Fault("POST", "/commit/", status))
    assert message in fails(capsys, folder, "ann/model")
    assert set(files(hub)) == {".gitattributes"}


def test_somebody_else_was_faster(online, hub, folder, monkeypatch):
    push(folder, "ann/model")

    class Slower(huggingface_hub.HfApi):
        def create_commit(self, *args, **kwargs):
            hub.repositories["ann/model"].commit("main", files(hub) | {"new.txt": Blob(b"new")})
            return super().create_commit(*args, **kwargs)

    monkeypatch.setattr("transduct.hub.sharing.HfApi", Slower)
    (folder / "LICENSE").write_text("terms")
    with pytest.raises(ValueError, match="changed by somebody else"):
        push(folder, "ann/model")
    assert "new.txt" in files(hub)
    assert "LICENSE" not in files(hub)


@pytest.mark.parametrize("fault", [Fault("PUT", "/lfs/part/.*/3", drop_after=1000), Fault("PUT", "/lfs/part/.*/3", 503)], ids=str)
def test_a_fault_that_passes_is_not_noticed(fault, online, hub, folder):
    hub.part_size = 10_000
    hub.faults.append(fault)
    push(folder, "ann/model")
    assert fault.times == 0
    assert files(hub)["model.safetensors"].content == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("method", "path"), [("POST", "/repos/create"), ("GET", "/api/models/"), ("POST", "/commit/")])
def test_a_hub_that_never_answers(method, path, online, hub, folder, capsys, monkeypatch):
    monkeypatch.setattr("transduct.hub.sharing.PATIENCE", 1.0)
    hub.faults.append(Fault(method, path, silent=True))
    said = fails(capsys, folder, "ann/model")
    assert re.search(r"connection to .* failed: .*timed out", said)
    assert len(huggingface_hub.get_session().event_hooks["request"]) == 1  # the client's own: it is the user's again
    push(folder, "ann/model")


def test_a_push_that_breaks_off_goes_on(online, hub, folder, capsys, monkeypatch):
    """Of several shards one does not arrive, however often it is tried: the next push sends only what is not there yet."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    model, _ = tiny_translation()
    model.save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    shards = sorted(folder.glob("model-*.safetensors"))
    lost = huggingface_hub.utils.sha.sha_fileobj(shards[-1].open("rb")).hex()
    hub.faults.append(Fault("PUT", f"/lfs/whole/{lost}", drop_after=100, times=6))
    said = fails(capsys, folder, "ann/model")
    assert "connection to" in said
    assert "not sent twice" in said
    assert set(files(hub)) == {".gitattributes"}
    arrived, sent = set(hub.objects), len(hub.seen("PUT", "/lfs/whole/"))
    push(folder, "ann/model")
    again = {request.path[-64:] for request in hub.seen("PUT", "/lfs/whole/")[sent:]}
    assert arrived
    assert lost in again
    assert not again & arrived
    assert all(files(hub)[shard.name].content == shard.read_bytes() for shard in shards)


@pytest.mark.parametrize("body", [b"<html>Log in</html>", b"{}", b"null", b"[]", b""], ids=repr)
@pytest.mark.parametrize("place", ["/api/repos/create", "/api/models/ann/model", "/preupload/", "/objects/batch", "/commit/"])
def test_answers_that_are_none_of_the_hub(body, place, online, hub, folder, capsys, monkeypatch):
    """As of a network that wants a log-in first: one line that says so, and no fault of the program."""
    answering = hub._respond
    wrong = lambda request: Response(200, body) if place in request.path else answering(request)  # noqa: E731
    monkeypatch.setattr(hub, "_respond", wrong)
    said = fails(capsys, folder, "ann/model")
    assert "does not answer as the Hub does" in said or "improperly formatted" in said or "Malformed response" in said
    assert "a fault of the program" not in said


@pytest.mark.parametrize(
    ("error", "message"), [(ConnectionError, "the connection to .* failed: no way. Push again"), (PermissionError, "refuses the")]
)
def test_errors_of_the_hub_s_storage(error, message, online, folder, monkeypatch):
    """The client raises what hf_xet does, without a number, where it uploads by that."""

    def upload(*args, **kwargs):
        raise error("no way")

    monkeypatch.setattr("huggingface_hub._commit_api._upload_lfs_files", upload)
    with pytest.raises((ValueError, ConnectionError), match=message):
        push(folder, "ann/model")


def test_an_upload_that_is_sent_elsewhere(online, hub, folder, monkeypatch, capsys):
    """The client cannot send a body twice; and it would not tell another host the token."""
    answering = hub._respond
    away = lambda request: Response(307, b"", {"Location": f"http://localhost:9{request.path}"})  # noqa: E731
    monkeypatch.setattr(hub, "_respond", lambda request: (away if "/lfs/" in request.path else answering)(request))
    said = fails(capsys, folder, "ann/model")
    assert "Push again later" in said
    assert "a fault of the program" not in said


def test_errors_of_the_disk_are_no_errors_of_the_hub(online, folder, monkeypatch):
    def upload(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub._commit_api._upload_lfs_files", upload)
    with pytest.raises(OSError, match="No space left"):
        push(folder, "ann/model")


def test_an_answer_to_the_commit_that_was_lost(online, hub, folder, monkeypatch, capsys):
    """The commit may have been made: it is not said that it was not, and the next push finds that all is there."""
    answering = hub._respond

    def lost(request):
        answer = answering(request)
        return Response(504) if "/commit/" in request.path else answer

    with monkeypatch.context() as patch:
        patch.setattr(hub, "_respond", lost)
        assert "committed" not in fails(capsys, folder, "ann/model")
    there = files(hub)
    assert "model.safetensors" in there
    push(folder, "ann/model")
    assert files(hub) == there


def test_a_hub_that_cannot_be_reached(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with client_in_this_process("http://127.0.0.1:9", tmp_path / "home", monkeypatch, TOKEN):
        assert "the connection to http://127.0.0.1:9 failed" in fails(capsys, folder, "ann/model")

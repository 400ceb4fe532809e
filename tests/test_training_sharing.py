"""What a training puts on the Hub: code, a card of facts, no token. Whole trainings that share are in test_hub_loading.py."""

import copy
import inspect
import io
import pickle
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

from hub_clients import client_in_this_process
from hub_server import GITATTRIBUTES, Account, Blob, Fault, Hub, Repository, serving
from test_training_run import start
from tiny_training import tiny_trainer
from transduct.hub import Said
from transduct.hub.cards import is_ours, license_in, said_in
from transduct.training.sharing import Secret, SharingTrainer, facts_of_trainer, given_arguments, hide_token, update_card

TOKEN = "hf_" + "w" * 30

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the client's own uploads


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub({TOKEN: Account("ann")})
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # made anew, for the address of this test
    with serving(hub) as url, client_in_this_process(url, tmp_path / "home", monkeypatch, TOKEN):
        yield hub
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    assert hub.unknown == []


def files(hub: Hub, name: str) -> dict[str, bytes]:
    return {path: blob.content for path, blob in hub.repositories[name].files().items()}


def test_methods_take_what_those_of_transformers_take():
    own = {name: value for name, value in vars(SharingTrainer).items() if inspect.isfunction(value)}
    assert set(own) == {"init_hf_repo", "push_to_hub", "create_model_card", "_push_from_checkpoint"}
    for name, method in own.items():
        assert list(inspect.signature(method).parameters) == list(inspect.signature(getattr(Seq2SeqTrainer, name)).parameters)


# ---- the token ----------------------------------------------------------------------------------------------------------------
def test_a_secret_is_used_but_not_written():
    secret = Secret(TOKEN)
    assert f"Bearer {secret}" == f"Bearer {TOKEN}"
    assert TOKEN not in repr([secret])
    assert pickle.loads(pickle.dumps({"token": secret})) == {"token": None}
    assert copy.deepcopy([secret]) == copy.copy([secret]) == [TOKEN]


@pytest.mark.parametrize("shares", [False, True])
def test_arguments_are_written_without_the_token(shares, tmp_path):
    args = Seq2SeqTrainingArguments(output_dir=str(tmp_path), hub_token=TOKEN, use_cpu=True)
    if shares:
        hide_token(args)
    torch.save(args, tmp_path / "training_args.bin")
    assert (TOKEN.encode() in (tmp_path / "training_args.bin").read_bytes()) is not shares
    assert args.hub_token == TOKEN


# ---- the card -----------------------------------------------------------------------------------------------------------------
def test_what_a_trainer_knows(tmp_path):
    trainer = tiny_trainer(
        tmp_path, max_steps=3, learning_rate=0.25, hub_model_id="ann/model", logging_strategy="steps", logging_steps=1
    )
    trainer.train()
    facts = facts_of_trainer(trainer)
    assert facts.model_class == "TransductForConditionalGeneration"
    assert facts.description.parameters == trainer.model.num_parameters()
    assert facts.arguments["learning_rate"] == 0.25
    assert facts.arguments["max_steps"] == 3
    assert not {"output_dir", "hub_model_id", "report_to", "hub_token"} & set(given_arguments(trainer.args))
    assert str(tmp_path) not in str(facts)
    assert max(row["step"] for row in facts.history) == 3


def test_the_card_of_a_person_stays(tmp_path):
    trainer, card = tiny_trainer(tmp_path), tmp_path / "README.md"
    update_card(trainer, Said(license="mit"))
    assert is_ours(card.read_text())
    update_card(trainer, Said(license="apache-2.0"))
    assert license_in(card.read_text()) == "apache-2.0"
    update_card(trainer, Said(languages=("en",)))
    assert said_in(card.read_text()) == Said("apache-2.0", ("en",))
    card.write_text("# Mine\n")
    update_card(trainer, Said())
    assert card.read_text() == "# Mine\n"


def test_a_model_of_another_package_has_the_form_of_transformers(tmp_path):
    sizes = dict(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    trainer = tiny_trainer(tmp_path, model=T5ForConditionalGeneration(T5Config(**sizes)))
    trainer.create_model_card(license="mit")
    assert "generated automatically" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("# Mine\n")
    trainer.create_model_card(license="mit")
    assert (tmp_path / "README.md").read_text() == "# Mine\n"


def test_options_that_only_the_form_knows_are_not_ignored(tmp_path):
    trainer = tiny_trainer(tmp_path)
    trainer.create_model_card(license="mit", dataset="wmt14", model_name="x")
    assert "wmt14" in (tmp_path / "README.md").read_text()


# ---- on the Hub ---------------------------------------------------------------------------------------------------------------
def test_a_card_that_a_person_changed_on_the_hub_stays(hub, tmp_path):
    trainer = tiny_trainer(tmp_path / "out", push_to_hub=True, hub_model_id="ann/model", max_steps=1)
    trainer.push_to_hub()
    changed = files(hub, "ann/model")["README.md"].replace(b"## Use", b"## How to use it")
    repository = hub.repositories["ann/model"]
    repository.commit("main", repository.files() | {"README.md": Blob(changed)})
    trainer.train()
    trainer.push_to_hub()
    assert files(hub, "ann/model")["README.md"] == changed
    assert (tmp_path / "out" / "README.md").read_bytes() == changed
    with_checkpoints = tiny_trainer(
        tmp_path / "out", push_to_hub=True, hub_model_id="ann/model", max_steps=1, save_strategy="steps", save_steps=1
    )
    again = changed + b"More."
    repository.commit("main", repository.files() | {"README.md": Blob(again)})
    with_checkpoints.train()
    with_checkpoints._finish_current_push()
    assert files(hub, "ann/model")["README.md"] == again


def public(hub: Hub, name: str, card: bytes | None = None, branch: str = "main") -> Repository:
    """A repository that is there before, with the card of a person on a branch."""
    hub.repositories[name] = repository = Repository(private=False)
    repository.commit("main", {".gitattributes": Blob(GITATTRIBUTES)})
    if card is not None:
        repository.commit(branch, repository.files() | {"README.md": Blob(card)})
    return repository


def test_what_should_be_private_does_not_go_where_everybody_sees_it(hub, tmp_path):
    repository = public(hub, "ann/public")
    with pytest.raises(ValueError, match="everybody can see it"):
        tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/public", hub_private_repo=True)
    trainer = tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/public")
    with pytest.raises(ValueError, match="everybody can see it"):
        trainer.push_to_hub(private=True)
    assert set(repository.files()) == {".gitattributes"}


def test_two_cards_of_persons(hub, tmp_path):
    public(hub, "ann/model", b"# Theirs\n")
    trainer = tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/model")
    (tmp_path / "README.md").write_text("# Mine\n")
    trainer.push_to_hub()
    assert files(hub, "ann/model")["README.md"] == b"# Theirs\n"
    assert (tmp_path / "_README.1.md").read_text() == "# Mine\n"
    assert not any(name.startswith("_README") for name in files(hub, "ann/model"))


@pytest.mark.parametrize("given", [{"tags": "x"}, {"dataset": "wmt14"}, {"tasks": ["translation", "summarization"]}], ids=str)
def test_the_form_of_transformers_takes_the_place_of_no_person_s_card(given, hub, tmp_path, caplog):
    public(hub, "ann/model", b"# Theirs\n")
    trainer = tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/model")
    trainer.push_to_hub(**given)
    assert files(hub, "ann/model")["README.md"] == b"# Theirs\n"
    assert (tmp_path / "README.md").read_text() == "# Theirs\n"


def test_the_card_of_the_branch_that_is_written_counts(hub, tmp_path):
    repository = public(hub, "ann/model", b"# Theirs\n", branch="next")
    tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/model").push_to_hub(revision="next")
    assert repository.files("next")["README.md"].content == b"# Theirs\n"
    assert "model.safetensors" in repository.files("next")


def test_the_token_that_is_given_sees_the_card(hub, tmp_path, monkeypatch):
    repository = public(hub, "ann/model", b"# Theirs\n")
    repository.private = True
    monkeypatch.delenv("HF_TOKEN")
    trainer = tiny_trainer(tmp_path, hub_model_id="ann/model")
    trainer.push_to_hub(token=TOKEN)
    assert "model.safetensors" in repository.files()
    assert repository.files()["README.md"].content == b"# Theirs\n"


def test_a_card_that_cannot_be_read_is_not_taken_for_none(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    public(hub, "ann/model", b"# Theirs\n")
    trainer = tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/model")
    hub.faults.append(Fault("HEAD", "README.md", 503, times=99))
    with pytest.raises(ConnectionError, match="Push again later"):
        trainer.push_to_hub()
    assert files(hub, "ann/model")["README.md"] == b"# Theirs\n"


def test_what_the_card_on_the_hub_says_is_kept(hub, tmp_path):
    tiny_trainer(tmp_path / "one", push_to_hub=True, hub_model_id="ann/model").push_to_hub(license="mit")
    tiny_trainer(tmp_path / "two", push_to_hub=True, hub_model_id="ann/model").push_to_hub(language="en")
    assert said_in(files(hub, "ann/model")["README.md"].decode()) == Said("mit", ("en",))


def test_a_form_that_nobody_has_filled_in_is_written_anew(hub, tmp_path):
    trainer = tiny_trainer(tmp_path, push_to_hub=True, hub_model_id="ann/model")
    trainer.push_to_hub(tags="one")
    trainer.push_to_hub(tags="two")
    assert b"- two" in files(hub, "ann/model")["README.md"]


@pytest.mark.slow
def test_a_run_ends_on_the_hub(hub, tmp_path):
    def shares(raw):
        raw["training"].update(push_to_hub=True, hub_model_id="ann/run", hub_strategy="end", hub_private_repo=True)

    said = io.StringIO()
    assert start(tmp_path, shares, Console(file=said, width=200)).finished
    there = files(hub, "ann/run")
    model = tmp_path / "out" / "model"
    assert there["model.safetensors"] == (model / "model.safetensors").read_bytes()
    assert set(there) == {path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()} | {
        "README.md", ".gitattributes",
    }  # fmt: skip
    card = there["README.md"].decode()
    assert "transduct train recipe.yaml" in card
    assert "| phoneme error |" in card
    assert "nrefs:1" in card
    assert str(Path(tmp_path)) not in card
    assert hub.repositories["ann/run"].private
    assert "shared: http://127.0.0.1:" in said.getvalue()

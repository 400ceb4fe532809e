"""Sharing and loading, each in a process of its own, with the unmodified client: with the package and without it."""

import re
from pathlib import Path

import pytest
import torch

from hub_clients import World, client_in_this_process
from hub_server import Account, Hub, serving
from sharing_programs import SOURCE
from tiny_translation import tiny_translation
from transduct.hub import push
from transduct.hub.cards import is_ours, license_in
from transduct.hub.snippets import EXAMPLE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")]

TOKEN, OTHER = "hf_" + "w" * 30, "hf_" + "o" * 30
PROGRAMS = Path(__file__).with_name("sharing_programs.py")
WITHOUT_THE_PACKAGE = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "transduct" or name.startswith("transduct."):
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    hub = Hub({TOKEN: Account("ann"), OTHER: Account("bob")}, part_size=40_000)
    with serving(hub) as url:
        yield World(url, hub, tmp_path_factory.mktemp("world"), (TOKEN, OTHER))
    assert hub.unknown == []


def shared(world, monkeypatch, name: str, seed: int = 5, **options) -> str:
    """Share a model from this process; what it makes of the source."""
    folder = world.folder / f"{name.replace('/', '-')}-{seed}"
    model, tokenizer = tiny_translation(seed)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    with client_in_this_process(world.url, world.folder / "mine", monkeypatch, TOKEN):
        push(folder, name, **options)
    ids = model.generate(**tokenizer([SOURCE], return_tensors="pt"), max_new_tokens=8, num_beams=2)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip()


def test_the_program_of_the_card_runs_without_the_package(world, monkeypatch):
    told = shared(world, monkeypatch, "ann/snippet")
    card = world.files("ann/snippet")["README.md"].decode()
    code = re.search(r"```python\n(.*?)\n```", card, re.DOTALL)[1]
    assert 'name = "ann/snippet"' in code
    assert "trust_remote_code=True" in code
    code = code.replace(repr(EXAMPLE), repr(SOURCE)).replace("max_new_tokens=64", "max_new_tokens=8, num_beams=2")
    assert world.run("-c", WITHOUT_THE_PACKAGE + code) == told
    assert world.run("-c", WITHOUT_THE_PACKAGE + code, HF_HUB_OFFLINE="1") == told  # from its caches, code and all


def test_revisions_with_the_package(world, monkeypatch):
    first = shared(world, monkeypatch, "ann/twice", seed=5)
    commit = world.hub.repositories["ann/twice"].branches["main"]
    second = shared(world, monkeypatch, "ann/twice", seed=7, revision="next")
    assert first != second
    assert world.run(str(PROGRAMS), "load", "ann/twice", "main", "next", commit).splitlines() == [first, second, first]


def test_a_private_model_needs_a_token(world, monkeypatch):
    told = shared(world, monkeypatch, "ann/secret", private=True)
    assert world.run(str(PROGRAMS), "load_private", "ann/secret", OTHER, TOKEN) == told


def test_methods_of_model_and_tokenizer(world):
    main, other, first, second = world.run(str(PROGRAMS), "share_by_methods", "ann/methods", token=TOKEN).splitlines()
    assert (main, other) == (first, second)
    assert main != other
    assert world.hub.repositories["ann/methods"].private
    for revision in ("main", "other"):
        files = world.files("ann/methods", revision)
        assert {"modeling.py", "config.json", "tokenizer.json", "model.safetensors.index.json"} <= set(files)


@pytest.mark.parametrize("strategy", ["every_save", "end"])
def test_a_training_that_shares(strategy, world):
    name = f"ann/trained-{strategy.replace('_', '-')}"
    world.run(str(PROGRAMS), "train", name, TOKEN, strategy, home=strategy)
    commits = [files for files in world.hub.repositories[name].commits.values() if "model.safetensors" in files]
    assert len(commits) >= (2 if strategy == "every_save" else 1)
    for files in commits:
        assert {"modeling.py", "configuration.py", "config.json", "tokenizer.json"} <= set(files)  # each of them loads anywhere
        assert all(TOKEN.encode() not in blob.content for blob in files.values())
    card = world.files(name)["README.md"].decode()
    assert is_ours(card)
    assert license_in(card) == "mit"
    assert "4 steps" in card
    assert "max_steps: 4" in card
    assert str(world.folder) not in card


LOAD = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("ann/theirs", trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained("ann/theirs", trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
print(model(**tokenizer(["cab"], text_target=["bac"], return_tensors="pt")).logits.tolist())
"""


def test_transformers_own_trainer_shares_what_loads_without_the_package(world):
    told = world.run(str(PROGRAMS), "train_by_theirs", "ann/theirs", token=TOKEN, home="theirs").splitlines()[-1]
    assert told.startswith("[[")
    assert {"modeling.py", "configuration.py", "config.json", "tokenizer.json"} <= set(world.files("ann/theirs"))
    assert world.run("-c", WITHOUT_THE_PACKAGE + LOAD, home="elsewhere") == told


def test_options_of_saving_that_sharing_would_not_know(tmp_path):
    model, _ = tiny_translation()
    with pytest.raises(ValueError, match="push_to_hub=True knows nothing of state_dict, variant"):
        model.save_pretrained(tmp_path, push_to_hub=True, variant="fp16", state_dict={"x": torch.zeros(1)})
    assert list(tmp_path.iterdir()) == []

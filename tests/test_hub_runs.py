"""What trainings leave, shared over real HTTP and loaded from there: averages of checkpoints, and adapters, merged and alone."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load, load_file

from hub_clients import World
from hub_server import Account, Hub, serving
from test_training_run import raw_recipe, start
from transduct.cli.main import run
from transduct.training.averaging import average_checkpoints

pytestmark = pytest.mark.slow

TOKEN = "hf_" + "w" * 30
PROGRAMS = str(Path(__file__).with_name("sharing_programs.py"))


@pytest.fixture
def world(tmp_path):
    hub = Hub({TOKEN: Account("ann")})
    with serving(hub) as url:
        yield World(url, hub, tmp_path / "world", (TOKEN,))
    assert hub.unknown == []


def command(world: World, *words: str | Path) -> str:
    return world.run("-m", "transduct.cli.main", *map(str, words), token=TOKEN)


def card(world: World, name: str) -> str:
    return world.files(name)["README.md"].decode()


def same_weights(there: bytes, folder: Path) -> bool:
    here, shared = load_file(folder / "model.safetensors"), load(there)
    return here.keys() == shared.keys() and all(torch.equal(here[name], shared[name]) for name in here)


def saved_every_four_steps(**training):
    """A change of the recipe."""
    return lambda raw: raw["training"].update(save_strategy="steps", save_steps=4, **training)


def test_a_run_that_averages_its_checkpoints(world, tmp_path):
    start(tmp_path, saved_every_four_steps(average_checkpoints=2))
    mean = average_checkpoints([tmp_path / "out" / "checkpoints" / f"checkpoint-{step}" for step in (8, 12)], tmp_path / "mean")
    command(world, "push", tmp_path / "out", "ann/averaged")
    assert same_weights(world.files("ann/averaged")["model.safetensors"], mean)
    assert "average_checkpoints: 2" in card(world, "ann/averaged")
    assert "word error" in card(world, "ann/averaged")


def test_an_average_of_checkpoints_of_a_run(world, tmp_path):
    """It tells how it came to be, and not the metrics of the run's own model."""
    start(tmp_path, saved_every_four_steps())
    mean = tmp_path / "out" / "mean"
    assert run(["average", str(tmp_path / "out"), "--last", "2", "--output", str(mean)]) == 0
    command(world, "push", mean, "ann/mean")
    assert same_weights(world.files("ann/mean")["model.safetensors"], mean)
    assert not same_weights(world.files("ann/mean")["model.safetensors"], tmp_path / "out" / "model")
    assert "The weights are the mean of 2 checkpoints: checkpoint-8, checkpoint-12." in card(world, "ann/mean")
    assert "max_steps: 12" in card(world, "ann/mean")
    assert "model-index" not in card(world, "ann/mean")
    command(world, "push", tmp_path / "out", "ann/whole")
    assert "The weights are the mean" not in card(world, "ann/whole")
    assert "model-index" in card(world, "ann/whole")


def test_a_run_of_adapters(world, tmp_path):
    """Fine-tuned from the Hub: the merged model of the run is shared by `transduct push`, the adapter alone by peft."""
    start(tmp_path)
    command(world, "push", tmp_path / "out", "ann/base")
    raw = raw_recipe(tmp_path)
    raw.update(model={"from_pretrained": "ann/base"}, tokenizer={"from_pretrained": "ann/base"}, output=str(tmp_path / "tuned"))
    raw["training"].update(lora={"rank": 2})
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(raw))
    command(world, "train", tmp_path / "tune.yaml")
    command(world, "push", tmp_path / "tuned", "ann/merged")
    adapter = tmp_path / "tuned" / "adapter"
    world.run(PROGRAMS, "share_adapter", str(adapter), "ann/adapter", token=TOKEN)
    assert b"ann/base" in world.files("ann/adapter")["adapter_config.json"]
    assert world.files("ann/adapter")["adapter_model.safetensors"] == (adapter / "adapter_model.safetensors").read_bytes()
    assert "adapter" not in "".join(world.files("ann/merged"))
    world.run(PROGRAMS, "answers", str(tmp_path / "answers.pt"), "ann/base", "ann/merged", "ann/adapter", home="elsewhere")
    base, merged, adapted = torch.load(tmp_path / "answers.pt")
    assert torch.allclose(merged, adapted, atol=1e-5)
    assert not torch.allclose(merged, base, atol=1e-3)

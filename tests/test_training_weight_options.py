"""Options about weights in a run of `transduct train`: which model is finished, also where nothing is left to train."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from test_training_run import WORDS, raw_recipe, weights
from tiny_training import tiny_trainer
from transduct.training.averaging import averaged_tensors
from transduct.training.checkpoints import list_checkpoints
from transduct.training.moving_average import AVERAGE
from transduct.training.optimizers import Adafactor
from transduct.training.recipe import build_recipe
from transduct.training.run import run
from transduct.training.weight_options import checkpoints_to_keep


def start(folder: Path, **training) -> str:
    """Train with some options; returns what was printed."""
    raw = raw_recipe(folder, save_strategy="steps", save_steps=2, **training)
    raw["evaluation"]["inputs"] = []
    del raw["data"]["test"]
    recipe = build_recipe(raw)
    recipe.folder = folder
    printed = io.StringIO()
    run(recipe, console=Console(file=printed, width=500))
    return printed.getvalue()


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def model_of(folder: Path) -> torch.Tensor:
    return weights(folder / "out" / "model")


def test_the_mean_of_the_last_checkpoints_over_two_starts(tmp_path):
    printed = start(tmp_path, average_checkpoints=3)
    paths = list_checkpoints(tmp_path / "out" / "checkpoints")
    assert [path.name for path in paths] == ["checkpoint-8", "checkpoint-10", "checkpoint-12"]
    assert "the model is the mean of checkpoint-8, checkpoint-10, checkpoint-12" in printed
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "model")
    for name, tensor in averaged_tensors(paths):
        assert torch.equal(model.state_dict()[name], tensor)
    first = model_of(tmp_path)
    assert "nothing is left to train" in start(tmp_path, average_checkpoints=3)
    assert torch.equal(model_of(tmp_path), first)


def test_the_moving_average_over_two_starts(tmp_path):
    printed = start(tmp_path, ema_decay=0.5)
    assert "the model is the moving average of the weights over 12 updates" in printed
    first = model_of(tmp_path)
    last = tmp_path / "out" / "checkpoints" / "checkpoint-12"
    assert (last / AVERAGE).is_file()
    assert not torch.equal(first, weights(last))
    assert "nothing is left to train" in start(tmp_path, ema_decay=0.5)
    assert torch.equal(model_of(tmp_path), first)


@pytest.mark.slow
def test_adapters_are_merged_and_kept(tmp_path):
    base = tmp_path / "base"
    start(tmp_path)
    (tmp_path / "out" / "model").rename(base)
    printed = fine_tune(tmp_path, base, lora={"rank": 2, "target": "all"})
    assert "trained: " in printed
    first = model_of(tmp_path)
    assert not torch.equal(first, weights(base))
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    assert "nothing is left to train" in fine_tune(tmp_path, base, fresh=False, lora={"rank": 2, "target": "all"})
    assert torch.equal(model_of(tmp_path), first)


@pytest.mark.slow
def test_frozen_parts_of_a_run(tmp_path):
    start(tmp_path)
    base = (tmp_path / "out" / "model").rename(tmp_path / "base")
    fine_tune(tmp_path, base, freeze=["encoder"], optimizer="adafactor")
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (base, tmp_path / "out" / "model"))
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        if name.startswith("model.encoder."):
            assert torch.equal(old, new)
    assert not torch.equal(flat(before.parameters()), flat(after.parameters()))


def fine_tune(folder: Path, base: Path, fresh: bool = True, **training) -> str:
    raw = raw_recipe(folder, save_strategy="steps", save_steps=4, **training)
    raw["model"], raw["tokenizer"] = {"from_pretrained": str(base)}, {"from_pretrained": str(base)}
    raw["evaluation"]["inputs"] = []
    del raw["data"]["test"]
    recipe = build_recipe(raw)
    recipe.folder = folder
    printed = io.StringIO()
    run(recipe, fresh=fresh, console=Console(file=printed, width=500))
    return printed.getvalue()


def test_a_recipe_with_alignments(tmp_path):
    raw = raw_recipe(tmp_path, guided_alignment={"layer": 0, "weight": 1.0}, r_drop=1.0, word_dropout=0.2)
    lines = [json.dumps({"source": word, "target": " ".join(word.upper()), "alignment": "0-0"}) for word in WORDS]
    (tmp_path / "aligned.jsonl").write_text("\n".join(lines) + "\n")
    raw["evaluation"]["inputs"] = []
    raw["data"] = {"train": {"json": "aligned.jsonl", "alignment_field": "alignment"}}
    recipe = build_recipe(raw)
    recipe.folder = tmp_path
    assert run(recipe, console=Console(quiet=True)).finished
    with pytest.raises(ValueError, match=r"training\.guided_alignment, but no alignments in data\.train"):
        start(tmp_path / "out", guided_alignment={"layer": 0})


def test_a_run_keeps_the_checkpoints_that_it_needs():
    assert checkpoints_to_keep({}) == 2
    assert checkpoints_to_keep({"average_checkpoints": 5}) == 5
    assert checkpoints_to_keep({"average_checkpoints": 1}) == 2
    assert checkpoints_to_keep({"average_best": 3}) is None


def test_two_optimizers_are_refused_and_a_second_training_is_not(tmp_path):
    trainer = tiny_trainer(tmp_path, optimizer="adafactor", max_steps=1)
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, Adafactor)
    trainer.train()
    other = tiny_trainer(tmp_path, optimizer="adafactor", max_steps=1)
    other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="exclude each other"):
        other.train()

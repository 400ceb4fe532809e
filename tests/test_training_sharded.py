"""FSDP2 on two processes: the same losses, gradients and outputs, and checkpoints that anybody can load."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from launching import seen_by_each
from sharded_runs import PRESETS, TYINGS
from transduct.training.checkpoints import checkpoint_fault

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sharded")]  # its processes start once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def two(folder):
    return seen_by_each("sharded_runs.py", folder)


@pytest.mark.parametrize("name", PRESETS)
def test_the_update_is_that_of_whole_weights(two, name):
    for seen in two:
        whole, split = seen["updates"][name]
        assert (whole["class"], split["class"]) == ("TransductForConditionalGeneration", "FSDPTransductForConditionalGeneration")
        assert split["loss"] == pytest.approx(whole["loss"], rel=1e-6)
        assert split["norm"] == pytest.approx(whole["norm"], rel=1e-6)
        assert split["gradient"].keys() == whole["gradient"].keys()
        for weight, gradient in whole["gradient"].items():
            assert (split["gradient"][weight] - gradient).norm() <= 2e-6 * gradient.norm() + 1e-9, weight


@pytest.mark.parametrize("tying", TYINGS)
def test_checkpoint_and_finished_model_load_through_from_pretrained(two, folder, tying):
    trained, checkpoint = two[0]["saving"][tying].values()
    assert checkpoint_fault(folder / tying / "checkpoint-2") is None
    stored = load_file(f"{checkpoint}/model.safetensors")
    shared = {"all": 2, "target_output": 1, "source_target": 1, "none": 0}[tying]
    assert len(stored) == len(trained) - shared  # what is tied is stored once
    for path in (checkpoint, folder / tying / "model"):
        loaded = AutoModelForSeq2SeqLM.from_pretrained(path).state_dict()
        assert loaded.keys() == trained.keys()
        assert all(torch.equal(loaded[name], weight) for name, weight in trained.items())


def test_generation_waits_for_the_longest_and_changes_nothing(two):
    for seen in two:
        whole, split = seen["generating"][False], seen["generating"][True]
        assert split[0] == pytest.approx(whole[0], rel=1e-6)
        for place in (2, 4):  # outputs with one beam and with three
            assert split[place] == whole[place]
            lengths = {len(text.split()) for text in whole[place]}
            assert len(lengths) > 1
            assert len(whole[place]) == 6


def test_all_processes_leave_out_the_same_layers(two):
    """A layer is put together by all of them or by none: otherwise they would wait for each other for ever."""
    first, second = (seen["dropping"] for seen in two)
    assert first["once ran"] == second["once ran"] == first["twice ran"]
    assert len({frozenset(layers) for layers in first["once ran"]}) > 2
    weights = first["once"]
    assert all(torch.equal(weight, first["twice"][name]) for name, weight in weights.items())


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_a_resumed_training_equals_one_at_once(two, folder, kind):
    once, twice = two[0]["resuming"][kind].values()
    assert once.numel() > 0
    assert torch.equal(once, twice)
    assert checkpoint_fault(folder / kind / "twice" / "checkpoint-6") is None

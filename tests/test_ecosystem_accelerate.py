"""accelerate: weights on several devices, some of them on disk; tied matrices apart; what `accelerate estimate-memory` says.

`accelerate launch` is tried in test_accelerate_launch.py, and by a whole training in test_training_processes.py.
"""

import json
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from accelerate.commands import estimate
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoModelForSeq2SeqLM

import transduct
from configs import TIES, build, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductModel

transduct.register()
IDS = words(2, 5, seed=1)
SIZES = dict(vocab_size=200, positions="relative_bias")


def model_of(**fields):
    return build(TransductForConditionalGeneration, tiny(**SIZES | fields), dtype=torch.float32)


def generate(model) -> torch.Tensor:
    return model.generate(IDS, num_beams=3, max_new_tokens=5, min_new_tokens=5)


def size_of(model) -> int:
    return sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("share", [0.1, 0.8, 1.2, 1.5])
@pytest.mark.parametrize("tie", TIES)
def test_device_map_auto_with_weights_on_disk(tie, share, tmp_path):
    """accelerate keeps so much of the model in memory, and reads the rest from disk layer by layer."""
    plain = model_of(tie_embeddings=tie)
    plain.save_pretrained(tmp_path / "model")
    memory = {"cpu": int(share * size_of(plain))}
    model = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "model", device_map="auto", max_memory=memory, offload_folder=tmp_path / "offload"
    )
    assert "disk" in getattr(model, "hf_device_map", {}).values() or share > 1  # all in memory, it has no map
    assert torch.equal(generate(model), generate(plain))


PARTS = ("model.encoder", "model.decoder", "lm_head")


@pytest.mark.parametrize("away", [("model.encoder",), ("model.decoder",), ("lm_head",), ("model.encoder", "lm_head"), PARTS])
@pytest.mark.parametrize("tie", TIES)
def test_tied_matrices_in_different_places(tie, away, tmp_path):
    """Each part in memory or on disk, also where parts on both sides share a matrix."""
    plain = model_of(tie_embeddings=tie)
    wanted = generate(plain)
    places = {part: "disk" if part in away else "cpu" for part in PARTS}
    model = dispatch_model(plain, places, main_device="cpu", offload_dir=tmp_path, force_hooks=True)
    assert torch.equal(generate(model), wanted)


@pytest.mark.parametrize("tie", TIES)
def test_offloading_of_a_whole_model(tie, tmp_path):
    wanted = generate(model_of(tie_embeddings=tie))
    assert torch.equal(generate(cpu_offload(model_of(tie_embeddings=tie), torch.device("cpu"))), wanted)
    assert torch.equal(generate(disk_offload(model_of(tie_embeddings=tie), tmp_path, torch.device("cpu"))), wanted)


def test_estimate_memory(tmp_path, monkeypatch):
    """`accelerate estimate-memory` asks the Hub what a repository is; the answer is put in its place here, as it is there."""
    plain = model_of()
    plain.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    monkeypatch.setattr(estimate, "verify_on_hub", lambda *_: SimpleNamespace(config=config, library_name="transformers"))
    decoder = estimate.create_empty_model(str(tmp_path), library_name=None)  # the first class that `auto_map` names
    assert type(decoder) is TransductForCausalLM
    del config["auto_map"]
    empty = estimate.create_empty_model(str(tmp_path), library_name=None)
    assert type(empty) is TransductModel
    assert all(weight.device.type == "meta" for weight in empty.parameters())
    total, (largest, names) = calculate_maximum_sizes(empty)
    named = plain.model.named_parameters(remove_duplicate=False)  # it counts a matrix once for each of its names
    assert total == sum(weight.nbytes for _, weight in named)
    whole = [
        each for each in plain.model.modules() if type(each).__name__ in plain._no_split_modules or not list(each.children())
    ]
    assert largest == max(map(size_of, whole))
    assert names
    options = Namespace(model_name=str(tmp_path), library_name=None, trust_remote_code=False, dtypes=["float32", "int8"])
    rows = estimate.gather_data(options)
    assert [row[0] for row in rows] == ["float32", "int8"]
    assert rows[0][2] == total

"""Two models whose weights stay on disk are compared like any others."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from conversions import Case, build
from transduct import TransductForConditionalGeneration
from transduct.convert.folders import export_folder, import_folder, load_precisely
from transduct.convert.memory import import_model
from transduct.convert.offloading import weights_on_disk
from transduct.convert.verifying import verify

CASES = [
    Case(
        "t5",
        T5ForConditionalGeneration,
        T5Config(vocab_size=40, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0),
    ),
    Case(
        "bart",
        BartForConditionalGeneration,
        BartConfig(
            vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "memory", "dtype"),
    [(CASES[0], 0, torch.float32), (CASES[0], "10KB", torch.bfloat16), (CASES[1], 0, torch.bfloat16)],
    ids=str,
)
def test_models_on_disk_are_compared_in_float32(case, memory, dtype, tmp_path):
    theirs = build(case).to(dtype)
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(theirs).save_pretrained(tmp_path / "ours")
    with weights_on_disk(memory, tmp_path / "x") as there, weights_on_disk(memory, tmp_path / "x") as here:
        pair = [
            load_precisely(case.model_class, tmp_path / "theirs", dtype, **there),
            load_precisely(TransductForConditionalGeneration, tmp_path / "ours", dtype, **here),
        ]
        for model in pair:
            assert model.dtype == torch.float32
            assert any(weight.device.type == "meta" for weight in model.parameters())
        result = verify(*pair)
    assert max(result.differences.values()) <= 1e-5
    assert len(result.generated) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours"}


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_folders_are_converted_and_compared_from_disk(file, tmp_path):
    theirs = build(CASES[0])
    theirs.save_pretrained(tmp_path / "theirs")
    if file != "model.safetensors":
        (tmp_path / "theirs" / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), tmp_path / "theirs" / file)
    imported = import_folder(tmp_path / "theirs", tmp_path / "ours", verify_memory=0)
    exported = export_folder(tmp_path / "ours", tmp_path / "back", verify_memory="10KB")
    assert imported.checked is not None
    assert exported.checked is not None
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in back.items())
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "ours", "back"}


def test_rounded_weights_cannot_be_compared_from_disk(tmp_path):
    for convert in (import_folder, export_folder):
        with pytest.raises(ValueError, match="verify_memory=0 leaves weights on disk as they are"):
            convert(tmp_path, tmp_path / "new", verify_memory=0, dtype=torch.float16)


def test_a_fault_on_disk_is_found(tmp_path):
    theirs = build(CASES[0])
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(theirs).save_pretrained(tmp_path / "ours")
    state = load_file(tmp_path / "ours" / "model.safetensors")
    state["model.decoder.layers.1.feed_forward.up_proj.weight"] *= 1.01
    save_file(state, tmp_path / "ours" / "model.safetensors", metadata={"format": "pt"})
    with weights_on_disk(0, tmp_path / "x") as here:
        ours = load_precisely(TransductForConditionalGeneration, tmp_path / "ours", torch.float32, **here)
        with pytest.raises(ValueError, match="first in the decoder's layer 1"):
            verify(theirs, ours)

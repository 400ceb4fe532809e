"""Two models whose weights stay on disk are compared like any others."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from conversions import Case, build
from transduct import TransductForConditionalGeneration
from transduct.convert.memory import import_model
from transduct.convert.offloading import load_offloaded
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
    [(CASES[0], 0, torch.float32), (CASES[0], 10_000, torch.bfloat16), (CASES[1], 0, torch.bfloat16)],
    ids=str,
)
def test_models_on_disk_are_compared_in_float32(case, memory, dtype, tmp_path):
    theirs = build(case).to(dtype)
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(theirs).save_pretrained(tmp_path / "ours")
    pair = [
        load_offloaded(case.model_class, tmp_path / "theirs", memory, tmp_path / "spill theirs"),
        load_offloaded(TransductForConditionalGeneration, tmp_path / "ours", memory, tmp_path / "spill ours"),
    ]
    for model in pair:
        assert any(weight.device.type == "meta" for weight in model.parameters())
    result = verify(*pair)
    assert max(result.differences.values()) <= 1e-5
    assert len(result.generated) == 3


def test_a_fault_on_disk_is_found(tmp_path):
    theirs = build(CASES[0])
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(theirs).save_pretrained(tmp_path / "ours")
    state = load_file(tmp_path / "ours" / "model.safetensors")
    state["model.decoder.layers.1.feed_forward.up_proj.weight"] *= 1.01
    save_file(state, tmp_path / "ours" / "model.safetensors", metadata={"format": "pt"})
    pair = [
        load_offloaded(T5ForConditionalGeneration, tmp_path / "theirs", 0, tmp_path / "spill theirs"),
        load_offloaded(TransductForConditionalGeneration, tmp_path / "ours", 0, tmp_path / "spill ours"),
    ]
    with pytest.raises(ValueError, match="first in the decoder's layer 1"):
        verify(*pair)

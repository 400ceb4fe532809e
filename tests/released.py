"""Checkpoints as each released version wrote them, in `fixtures/VERSION/`: what every later version must load, for ever.

    python tests/released.py     # once, when a version is released: writes those of the installed one

Each holds a model without its code, a tokenizer if the source is text, and `expected.safetensors`: inputs, and the logits and ids
that the version computed from them, in float32. Fixtures that are there are never written again.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import transduct
from transduct import TransductConfig, TransductForConditionalGeneration, TransductTokenizer

FIXTURES = Path(__file__).with_name("fixtures")
SIZES = dict(d_model=8, d_ff=12, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
SHAPES: dict[str, dict[str, Any]] = {
    "vaswani": {},
    "t5": dict(
        norm="rmsnorm", norm_position="pre", norm_bias=False, positions="relative_bias", relative_buckets=8, initializer="t5",
        relative_max_distance=16, attention_scale="none", attention_bias=False, ffn_bias=False, gated_ffn=True,
        activation="gelu_new", scale_embeddings=False, d_kv=6, tie_embeddings="source_target", final_dropout=True,
    ),
    "bart": dict(
        positions="learned", max_positions=32, position_offset=2, embedding_norm=True, activation="gelu", logits_bias=True,
        scale_embeddings=False, freeze_padding_embedding=True, initializer="normal",
    ),
    "two-vocabularies": dict(tie_embeddings="target_output", norm_position="pre", sinusoid_layout="halves"),
    "features": dict(
        encoder_input="features", feature_size=5, feature_stem="conv", tie_embeddings="target_output", vocab_size=20
    ),
}  # fmt: skip


def write(folder: Path, name: str) -> None:
    """One checkpoint, with random weights."""
    torch.manual_seed(0)
    fields = SIZES | SHAPES[name]
    if name != "features":
        two = {"target": iter(["xyz uvw"])} if name == "two-vocabularies" else {}
        tokenizer = TransductTokenizer.train(iter(["abc de fghij"]), kind="chars", **two)
        tokenizer.save_pretrained(folder)
        fields |= {"vocab_size": len(tokenizer)} | ({"decoder_vocab_size": tokenizer.decoder_vocab_size} if two else {})
    model = TransductForConditionalGeneration(TransductConfig(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    model.save_pretrained(folder)
    for code in folder.glob("*.py"):  # a test of its own shows that a checkpoint loads by its code
        code.unlink()
    save_file(compute(model), folder / "expected.safetensors")


def compute(model: Any) -> dict[str, torch.Tensor]:
    """Inputs that every model of this vocabulary takes, its logits, and what it writes."""
    source = {
        "input_ids": torch.tensor([[4, 7, 5, 1], [6, 1, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    if model.config.encoder_input == "features":
        frames = torch.arange(2 * 8 * 5).reshape(2, 8, 5) % 7 / 7 - 0.5
        source = {"input_features": frames, "attention_mask": torch.tensor([[1] * 8, [1] * 4 + [0] * 4])}
    target = torch.tensor([[0, 3, 5], [0, 4, 6]])
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=target).logits
        ids = model.generate(**source, num_beams=2, max_new_tokens=6)
    return {**source, "decoder_input_ids": target, "logits": logits, "generated": ids.contiguous()}


def main() -> None:
    folder = FIXTURES / transduct.__version__
    for name in SHAPES:
        if not (folder / name).exists():
            part = folder / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            write(part, name)
            part.rename(folder / name)


if __name__ == "__main__":
    main()

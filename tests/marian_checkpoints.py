"""Models as Marian writes them, made by hand of models of transformers, which then say what they must compute.

`MarianMTModel` (post-norm) and M2M100 (pre-norm) get the positions and the epsilon that Marian's own code has.
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch
import yaml
from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel, PreTrainedModel

SIZE = 30
"""Tokens of a vocabulary; the padding token of transformers' models is the one after them."""
PAD = SIZE
LENGTH = 40
SIZES = dict(
    d_model=16, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_attention_heads=4,
    decoder_attention_heads=4, max_position_embeddings=LENGTH, vocab_size=SIZE + 1, pad_token_id=PAD, eos_token_id=0,
    decoder_start_token_id=PAD, forced_eos_token_id=None, bos_token_id=None, scale_embedding=True,
)  # fmt: skip
OPTIONS = {
    "bert-train-type-embeddings": True, "bert-type-vocab-size": 2, "dec-cell": "gru", "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1, "dec-depth": 3, "dim-emb": 16, "dim-rnn": 1024, "dim-vocabs": [SIZE, SIZE], "enc-cell": "gru",
    "enc-cell-depth": 1, "enc-depth": 2, "enc-type": "bidirectional", "input-types": [], "layer-normalization": False,
    "lemma-dim-emb": 0, "output-omit-bias": False, "right-left": False, "skip": False, "tied-embeddings": False,
    "tied-embeddings-all": True, "tied-embeddings-src": False, "transformer-aan-activation": "swish",
    "transformer-aan-depth": 2, "transformer-aan-nogate": False, "transformer-decoder-autoreg": "self-attention",
    "transformer-dim-aan": 2048, "transformer-dim-ffn": 24, "transformer-ffn-activation": "swish", "transformer-ffn-depth": 2,
    "transformer-guided-alignment-layer": "last", "transformer-heads": 4, "transformer-no-projection": False,
    "transformer-pool": False, "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "", "transformer-preprocess": "", "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False, "type": "transformer", "ulr": False, "ulr-dim-emb": 0,
    "ulr-trainable-transformation": False, "version": "v1.10.0 6f6d484 2021-02-06 15:35:16 -0800",
}  # fmt: skip
PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
TWO_VOCABULARIES = {"tied-embeddings-all": False, "tied-embeddings": True}
LAYER = {
    "self_attn.q_proj": "self_?q", "self_attn.k_proj": "self_?k", "self_attn.v_proj": "self_?v", "self_attn.out_proj": "self_?o",
    "encoder_attn.q_proj": "context_?q", "encoder_attn.k_proj": "context_?k", "encoder_attn.v_proj": "context_?v",
    "encoder_attn.out_proj": "context_?o", "fc1": "ffn_?1", "fc2": "ffn_?2", "self_attn_layer_norm": "self_Wo_ln_",
    "encoder_attn_layer_norm": "context_Wo_ln_", "final_layer_norm": "ffn_ffn_ln_",
}  # fmt: skip


def positions() -> torch.Tensor:
    """One number after the other, as Marian's code computes them."""
    scales = SIZES["d_model"] // 2
    table = torch.zeros(LENGTH, 2 * scales)
    for position in range(LENGTH):
        for scale in range(scales):
            angle = position * math.exp(scale * -(math.log(10000) / (scales - 1)))
            table[position, scale], table[position, scales + scale] = math.sin(angle), math.cos(angle)
    return table


def draw(model: PreTrainedModel) -> PreTrainedModel:
    """Random weights, Marian's epsilon, and a padding token that is zero and never written; in evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.requires_grad and "embed_positions" not in name:
                weight.copy_(noise * 0.35 if weight.ndim > 1 else noise * 0.2 + ("norm" in name and "weight" in name))
                if weight.shape[0] == SIZE + 1:
                    weight[PAD] = 0
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-6
    return model.eval()


def marian(two_vocabularies: bool = False, activation: str = "silu") -> MarianMTModel:
    """Post-norm."""
    shares = not two_vocabularies
    config = MarianConfig(
        **SIZES, activation_function=activation, share_encoder_decoder_embeddings=shares, tie_word_embeddings=True
    )
    model = draw(MarianMTModel(config))
    with torch.no_grad():
        model.final_logits_bias.copy_(torch.randn(1, SIZE + 1, generator=torch.Generator().manual_seed(2)))
        model.final_logits_bias[0, PAD] = -math.inf
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(positions())
    return model


def pre_norm() -> M2M100ForConditionalGeneration:
    """Pre-norm, with norms at the end; its output has no bias."""
    model = draw(M2M100ForConditionalGeneration(M2M100Config(**SIZES, activation_function="silu")))
    table = torch.cat([torch.zeros(PAD + 1, SIZES["d_model"]), positions()])  # its positions begin after the padding token's id
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weights = table
    return model


def arrays_of(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Its tensors under Marian's names, in Marian's shapes, without the padding token."""
    arrays = {}
    pre = isinstance(model, M2M100ForConditionalGeneration)
    for name, tensor in model.state_dict().items():
        parts = name.removeprefix("model.").split(".")
        array = tensor.detach().numpy()
        if parts[1:2] == ["layers"]:
            inside = LAYER[".".join(parts[3:-1])]
            if "ln_" in inside:
                inside += {"weight": "scale", "bias": "bias"}[parts[-1]] + ("_pre" if pre else "")
            matrix = array.ndim == 2
            inside = inside.replace("?", "W" if matrix else "b")
            arrays[f"{parts[0]}_l{int(parts[2]) + 1}_{inside}"] = array.T if matrix else array[None]
        elif parts[1:2] == ["layer_norm"]:
            arrays[f"{parts[0]}_top_ln_{'scale' if parts[-1] == 'weight' else 'bias'}"] = array[None]
    if model.model.encoder.embed_tokens.weight is model.model.decoder.embed_tokens.weight:
        arrays["Wemb"] = model.model.encoder.embed_tokens.weight.detach().numpy()[:SIZE]
    else:
        arrays["encoder_Wemb"] = model.model.encoder.embed_tokens.weight.detach().numpy()[:SIZE]
        arrays["decoder_Wemb"] = model.model.decoder.embed_tokens.weight.detach().numpy()[:SIZE]
    if not pre:
        arrays["decoder_ff_logit_out_b"] = model.final_logits_bias.numpy()[:, :SIZE]
    return arrays


def options_text(options: dict) -> bytes:
    return yaml.safe_dump(OPTIONS | options).encode() + b"\0"


def write_vocabularies(folder: Path) -> None:
    words = ["</s>", "<unk>", *(f"word{number}" for number in range(SIZE - 2))]
    other = ["</s>", "<unk>", *(f"Wort{number}" for number in range(SIZE - 2))]
    for name, listed in (("vocab.yml", words), ("target.vocab.yml", other)):
        (folder / name).write_text("".join(f"{token!r}: {number}\n" for number, token in enumerate(listed)), encoding="utf-8")
    written = {"vocabs": ["/somewhere/else/vocab.yml"] * 2, "beam-size": 6, "normalize": 0.6}
    (folder / "decoder.yml").write_text(yaml.safe_dump(written), encoding="utf-8")


def write_npz(folder: Path, arrays: dict[str, np.ndarray], **options) -> Path:
    path = folder / "model.npz"
    text = np.frombuffer(options_text({name.replace("_", "-"): value for name, value in options.items()}), dtype=np.int8)
    np.savez(path, **arrays, **{"special:model.yml": text})
    write_vocabularies(folder)
    return path


def write_bin(folder: Path, arrays: dict[str, np.ndarray], kind: int = 0x0404, **options) -> Path:
    """A `.bin`, tensors in the order of their names, each filled up to 256 bytes."""
    items = [(name, kind, array.shape, array.astype("<f4").tobytes()) for name, array in sorted(arrays.items())]
    text = options_text({name.replace("_", "-"): value for name, value in options.items()})
    items.append(("special:model.yml", 0x0101, (len(text),), text))
    items = [(name, kind, shape, data + bytes(-len(data) % 256)) for name, kind, shape, data in items]
    start = struct.pack("<QQ", 1, len(items))
    for name, kind, shape, data in items:
        start += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(data))
    start += b"".join(name.encode() + b"\0" for name, *_ in items)
    start += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(start) + 8) % 256
    path = folder / "model.bin"
    path.write_bytes(start + struct.pack("<Q", padding) + bytes(padding) + b"".join(data for *_, data in items))
    write_vocabularies(folder)
    return path

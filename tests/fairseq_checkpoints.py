"""Checkpoints as fairseq writes them, made by hand of models of transformers, which then say what they must compute.

FSMT is fairseq's post-norm Transformer, M2M100 its pre-norm one, BART and mBART are fairseq's own: the names of their tensors
inside the layers are fairseq's still.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    FSMTConfig,
    FSMTForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
)

WORDS = {"de": 28, "en": 20}
"""Words of each dictionary beside the four special ones."""
SIZES = dict(
    d_model=16, encoder_layers=2, decoder_layers=3, encoder_ffn_dim=24, decoder_ffn_dim=40, encoder_attention_heads=4,
    decoder_attention_heads=2, max_position_embeddings=64,
)  # fmt: skip
TOKENS = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
OPTIONS = dict(
    encoder_embed_dim=16, decoder_embed_dim=16, decoder_output_dim=16, decoder_input_dim=16, encoder_layers=2, decoder_layers=3,
    encoder_ffn_embed_dim=24, decoder_ffn_embed_dim=40, encoder_attention_heads=4, decoder_attention_heads=2,
    encoder_learned_pos=False, decoder_learned_pos=False, encoder_normalize_before=False, decoder_normalize_before=False,
    share_all_embeddings=False, share_decoder_input_output_embed=False, adaptive_input=False, adaptive_softmax_cutoff=None,
    max_source_positions=64, max_target_positions=64, dropout=0.3, attention_dropout=0.1, activation_dropout=0.0,
    relu_dropout=0.05, lr=[0.0005], optimizer="adam", criterion="label_smoothed_cross_entropy", label_smoothing=0.1,
    source_lang="de", target_lang="en", task="translation", data="data-bin", arch="transformer_iwslt_de_en",
)  # fmt: skip


def draw(model: PreTrainedModel) -> PreTrainedModel:
    """Random weights so large that a small mistake moves the logits far; in evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            sinusoid = isinstance(model, FSMTForConditionalGeneration) and "embed_positions" in name
            if weight.requires_grad and not sinusoid:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * 0.35 if weight.ndim > 1 else noise * 0.2 + ("norm" in name and "weight" in name))
    return model.eval()


def fsmt() -> PreTrainedModel:
    config = FSMTConfig(**SIZES, **TOKENS, src_vocab_size=WORDS["de"] + 4, tgt_vocab_size=WORDS["en"] + 4, num_beams=1)
    return draw(FSMTForConditionalGeneration(config))


def m2m_100() -> PreTrainedModel:
    config = M2M100Config(**SIZES, **TOKENS, vocab_size=WORDS["de"] + 4, scale_embedding=True, activation_function="relu")
    return draw(M2M100ForConditionalGeneration(config))


def bart(rows: int, classifier: bool = False) -> PreTrainedModel:
    model_class = BartForSequenceClassification if classifier else BartForConditionalGeneration
    return draw(model_class(BartConfig(**SIZES, **TOKENS, vocab_size=rows, num_labels=3)))


def mbart() -> PreTrainedModel:
    config = MBartConfig(**SIZES, **TOKENS, vocab_size=WORDS["de"] + 4, scale_embedding=True)
    return draw(MBartForConditionalGeneration(config))


def state_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Its tensors under fairseq's names of 0.12."""
    state = {name.removeprefix("model."): tensor.clone() for name, tensor in model.state_dict().items()}
    shared = state.pop("shared.weight", None)
    head = state.pop("lm_head.weight", None)
    state.pop("final_logits_bias", None)
    if shared is not None:
        state |= dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), shared)
    if head is not None:
        state["decoder.output_projection.weight"] = head
    for stack in ("encoder", "decoder"):
        state[f"{stack}.version"] = torch.tensor([3.0])
        if isinstance(model, (FSMTForConditionalGeneration, M2M100ForConditionalGeneration)):  # sinusoids
            state.pop(f"{stack}.embed_positions.weight", None)
            state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    return {name.replace("classification_head.", "classification_heads.mnli."): tensor for name, tensor in state.items()}


def with_old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As versions up to 0.5 wrote them: one matrix of queries, keys and values, norms in a list, `embed_out`."""
    old = {}
    order = {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1}
    for name, tensor in state.items():
        stack = name.split(".")[0]
        parts = name.rsplit(".", 2)
        if parts[1] == "q_proj":
            rest = [state[f"{parts[0]}.{letter}_proj.{parts[2]}"] for letter in "kv"]
            old[f"{parts[0]}.in_proj_{parts[2]}"] = torch.cat([tensor, *rest])
        elif len(parts) > 2 and parts[1] in (*order, "final_layer_norm"):
            number = order.get(parts[1], 2 if stack == "decoder" else 1)
            old[f"{parts[0]}.layer_norms.{number}.{parts[2]}"] = tensor
        elif name == "decoder.output_projection.weight":
            old["decoder.embed_out"] = tensor
        elif name.endswith("_float_tensor"):
            old[name.replace("_float_tensor", "weights")] = torch.zeros(66, 16)
        elif parts[1] not in ("k_proj", "v_proj") and not name.endswith("version"):
            old[name] = tensor
    return old


def write_dictionary(path: Path, words: int | list[str]) -> None:
    listed = [f"word{number}" for number in range(words)] if isinstance(words, int) else words
    path.write_text("".join(f"{word} {1000 - number}\n" for number, word in enumerate(listed)), encoding="utf-8")


def write_checkpoint(folder: Path, state: dict[str, torch.Tensor], legacy: bool = False, **options: Any) -> Path:
    """A file of up to 0.9, with its dictionaries beside it.

    Args:
        legacy: in the format of before torch 1.6. options: those that differ from OPTIONS.
    """
    path = folder / "checkpoint_best.pt"
    saved = {
        "args": argparse.Namespace(**OPTIONS | options),
        "model": state,
        "optimizer_history": [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 10, "best_loss": 3.5}],
        "extra_state": {"train_iterator": {"epoch": 2}, "val_loss": 3.5},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}},
    }
    torch.save(saved, path, _use_new_zipfile_serialization=not legacy)
    write_dictionary(folder / "dict.de.txt", WORDS["de"])
    write_dictionary(folder / "dict.en.txt", WORDS["de" if options.get("share_all_embeddings") else "en"])
    return path

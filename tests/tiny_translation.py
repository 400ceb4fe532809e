"""A model and a tokenizer of characters that are just large enough to translate with: random, but sharp, weights."""

from pathlib import Path

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from configs import build, tiny
from published import randomise
from transduct import TransductForConditionalGeneration, TransductTokenizer

LETTERS = "abcdefgh ijklm. nopq! rstuvw xyz? ABC 0123"
TEXTS = ["abc", "", "hello there. what? no!", "a", "   ", "xyz " * 6, "cab", "the end."]


def tiny_translation(seed: int = 5, end: float = 0.0, **fields):
    """Model and tokenizer; `end` is added to the end token's logit."""
    tokenizer = TransductTokenizer.train(iter([LETTERS]), kind="chars")
    config = tiny(**{"vocab_size": len(tokenizer), "logits_bias": True, "tie_embeddings": "none", **fields})
    model = build(TransductForConditionalGeneration, config, dtype=torch.float32, seed=seed)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.eos_token_id] += end
        model.lm_head.bias[[tokenizer.pad_token_id, tokenizer.unk_token_id]] = -1e4
    return model, tokenizer


def save_translation(folder: Path) -> Path:
    """The folder, which then holds model and tokenizer."""
    for part in tiny_translation():
        part.save_pretrained(folder)
    return folder


def theirs(family: str, tokenizer, seed: int = 0):
    """A random model of transformers with the tokenizer's ids."""
    ids = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    ids |= dict(decoder_start_token_id=tokenizer.pad_token_id)
    sizes = dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes |= dict(encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, forced_eos_token_id=None)
    if family == "t5":
        model = T5ForConditionalGeneration(T5Config(**ids, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4))
    elif family == "bart":
        model = BartForConditionalGeneration(BartConfig(**ids | sizes, bos_token_id=tokenizer.pad_token_id))
    else:
        model = MarianMTModel(MarianConfig(**ids | sizes, decoder_vocab_size=len(tokenizer)))
    randomise(model, seed)
    return model.eval()

"""A model and a tokenizer of characters that are just large enough to translate with: random, but sharp, weights."""

import torch

from configs import build, tiny
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

"""A translator exported to CTranslate2, for the tests of the export and of what runs it."""

from pathlib import Path

import torch

from configs import build, tiny
from tiny_translation import tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.convert import to_ctranslate2
from transduct.decoding.engines import load_engine


def exported_translator(folder: Path):
    """A model, its tokenizer, its folder and the engine's model."""
    model, tokenizer = tiny_translation(end=2.0)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    to_ctranslate2(model, tokenizer, folder / "model")
    return model, tokenizer, folder / "model", load_engine(folder / "model")


def model_of(dtype=torch.float32, seed=0, **fields) -> TransductForConditionalGeneration:
    return build(TransductForConditionalGeneration, tiny(**fields), dtype=dtype, seed=seed)

"""A model, a tokenizer and pairs that are just large enough for a training loop."""

from typing import Any

import torch
from datasets import Dataset

from transduct.configuration import TransductConfig
from transduct.modeling import TransductForConditionalGeneration
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments

VOCABULARY = 20


class Tokenizer:
    """What collators and trainers ask of a tokenizer."""

    pad_token_id, eos_token_id, padding_side = 0, 1, "right"

    def save_pretrained(self, folder: str) -> None:
        """Nothing to save."""


def tiny_model(seed: int = 0, **fields: Any) -> TransductForConditionalGeneration:
    torch.manual_seed(seed)
    sizes = dict(vocab_size=VOCABULARY, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.1)
    return TransductForConditionalGeneration(TransductConfig(**{**sizes, **fields}))


def pairs(count: int = 24, seed: int = 0, longest: int = 7) -> list[dict[str, list[int]]]:
    """Sources of random symbols and their reversals, each with the end token."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(1, longest, (1,), generator=generator))
        symbols = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        rows.append({"input_ids": [*symbols, 1], "labels": [*symbols[::-1], 1]})
    return rows


QUIET = dict(use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no", seed=7)


def tiny_trainer(
    folder: Any, model: Any = None, rows: Any = None, kind: type = TransductTrainingArguments, metrics: Any = None, **options: Any
) -> TransductTrainer:
    """A silent trainer; `options` are fields of `kind`."""
    model = model or tiny_model()
    arguments = kind(output_dir=str(folder), **{**QUIET, **options})
    return TransductTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_list(rows or pairs()),
        eval_dataset=Dataset.from_list(rows or pairs()),
        data_collator=Seq2SeqCollator(Tokenizer(), model=model),
        compute_metrics=metrics,
    )

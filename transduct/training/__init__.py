"""Training: batches, schedules, metrics, and a trainer on top of transformers' `Seq2SeqTrainer`."""

import importlib

from transduct.training.arguments import TransductTrainingArguments
from transduct.training.batching import TokenBudgetBatchSampler
from transduct.training.collators import Seq2SeqCollator
from transduct.training.packing import PackedBatchSampler, PackedCollator, PackedRows
from transduct.training.trainer import TransductTrainer

__all__ = [
    "PackedBatchSampler",
    "PackedCollator",
    "PackedRows",
    "Seq2SeqCollator",
    "TokenBudgetBatchSampler",
    "TransductTrainer",
    "TransductTrainingArguments",
]


def __getattr__(name: str):
    if name == "objectives":  # loaded when it is asked for
        return importlib.import_module("transduct.training.objectives")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

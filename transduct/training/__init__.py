"""Training: batches, schedules, metrics, and a trainer on top of transformers' `Seq2SeqTrainer`.

What a Python program needs beside the trainer is here by name; `objectives` holds what pre-training is made of.
"""

from transduct.training import objectives
from transduct.training.adapters import finished_model, prepare_weights
from transduct.training.alignments import AlignmentCollator
from transduct.training.arguments import TransductTrainingArguments
from transduct.training.averaging import average_checkpoints, best_checkpoints, last_checkpoints
from transduct.training.batching import TokenBudgetBatchSampler
from transduct.training.checkpoints import resume_point
from transduct.training.collators import Seq2SeqCollator
from transduct.training.moving_average import MovingAverage
from transduct.training.optimizers import Adafactor, RelativeAdamW
from transduct.training.packing import PackedBatchSampler, PackedCollator, PackedRows
from transduct.training.predictions import TextMetrics
from transduct.training.schedules import BudgetedLR, schedule_function
from transduct.training.trainer import TransductTrainer

__all__ = [
    "Adafactor",
    "AlignmentCollator",
    "BudgetedLR",
    "MovingAverage",
    "PackedBatchSampler",
    "PackedCollator",
    "PackedRows",
    "RelativeAdamW",
    "Seq2SeqCollator",
    "TextMetrics",
    "TokenBudgetBatchSampler",
    "TransductTrainer",
    "TransductTrainingArguments",
    "average_checkpoints",
    "best_checkpoints",
    "finished_model",
    "last_checkpoints",
    "objectives",
    "prepare_weights",
    "resume_point",
    "schedule_function",
]

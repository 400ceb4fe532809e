"""Training: batches, schedules, metrics, and a trainer on top of transformers' `Seq2SeqTrainer`."""

from transduct.training.arguments import TransductTrainingArguments
from transduct.training.batching import TokenBudgetBatchSampler
from transduct.training.collators import Seq2SeqCollator
from transduct.training.trainer import TransductTrainer

__all__ = ["Seq2SeqCollator", "TokenBudgetBatchSampler", "TransductTrainer", "TransductTrainingArguments"]

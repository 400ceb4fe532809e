"""One optimizer step on the same 16 examples, however they are split: what `test_accumulation.py` compares.

Imported by the test, and started by it once more as each of two processes:

    torchrun --nproc-per-node 2 tests/accumulation_runs.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
)

from tiny_training import Tokenizer
from transduct import TransductForConditionalGeneration, config_from_preset
from transduct.training import Seq2SeqCollator

VOCABULARY = 40
SIZES = dict(vocab_size=VOCABULARY, d_model=16, d_ff=32, encoder_layers=1, decoder_layers=1, num_heads=2)
WITHOUT_DROPOUT = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
PRESETS = {
    "vaswani": ("vaswani-base", dict(SIZES)),
    "t5": ("t5-small", dict(SIZES, d_kv=8)),
    "bart": ("bart-base", dict(SIZES, max_positions=32)),
}
SMOOTHINGS = (0.0, 0.1)
TWO_PROCESSES = ((1, 8), (4, 2))  # gradient accumulation, examples a process and step

Update = tuple[float, torch.Tensor]
"""The loss that the trainer logs, and the gradient that the optimizer gets, as one vector."""


def lengths_of(count: int = 16) -> list[tuple[int, int]]:
    """Tokens of each source and target: from 1 to 16, in an order that gives every split batches of unequal size."""
    return [(1 + (5 * i) % count, 1 + (7 * i + 3) % count) for i in range(count)]


def examples() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()

    return [{"input_ids": tokens(source), "labels": tokens(target)} for source, target in lengths_of()]


def our_model(name: str, label_smoothing: float) -> TransductForConditionalGeneration:
    """A tiny model of the architecture `name` of `PRESETS`, always with the same weights."""
    preset, sizes = PRESETS[name]
    torch.manual_seed(0)
    config = config_from_preset(preset, **sizes, **WITHOUT_DROPOUT, label_smoothing=label_smoothing)
    return TransductForConditionalGeneration(config)


def their_t5() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCABULARY, d_model=16, d_ff=32, d_kv=8, num_layers=2, num_heads=2)
    return T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0))


class Gradient(TrainerCallback):
    """Copies the gradient just before the optimizer uses it."""

    def __init__(self, model: torch.nn.Module):
        self.model, self.seen = model, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.seen.append(torch.cat([weight.grad.flatten() for weight in self.model.parameters()]).clone())


def collator(model: Any) -> Seq2SeqCollator:
    tokenizer = Tokenizer()
    tokenizer.pad_token_id = model.config.pad_token_id
    return Seq2SeqCollator(tokenizer, model=model)


def one_update(
    model: Any, folder: Any, accumulate: int, size: int, trainer_class: type = Seq2SeqTrainer, **options: Any
) -> Update:
    """Train `model` for one optimizer step of `accumulate` batches of `size` examples (in each process)."""
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=size, gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, **options,
    )  # fmt: skip
    gradient = Gradient(model)
    trainer = trainer_class(model, arguments, train_dataset=examples(), data_collator=collator(model), callbacks=[gradient])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    (seen,) = gradient.seen
    return trainer.state.log_history[0]["loss"], seen


def main(folder: str) -> None:
    """Every architecture, smoothing and split on the processes that there are; the first writes what it saw."""
    torch.set_num_threads(1)
    seen: dict[Any, Update] = {}
    for accumulate, size in TWO_PROCESSES:
        for name in PRESETS:
            for smoothing in SMOOTHINGS:
                model = our_model(name, smoothing)
                seen[name, smoothing, accumulate, size] = one_update(model, folder, accumulate, size, ddp_backend="gloo")
        seen["transformers", 0.0, accumulate, size] = one_update(their_t5(), folder, accumulate, size, ddp_backend="gloo")
    torch.save(seen, Path(folder) / f"rank{torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

"""What gradient accumulation does to loss and gradient: transformers' models and ours under transformers' `Seq2SeqTrainer`.

The same 16 examples of unequal length make one update as one batch of 16, as four of 4 and as two of 8, on tiny models with
equal weights and without dropout. Each figure is what the trainer logs, divided by the exact one: mean over all targets of the
16 examples, and its gradient. 1 is right. The result is explained in docs/gradient_accumulation.md.

    python benchmarks/accumulation.py
"""

import argparse
import tempfile
from types import SimpleNamespace

from side_by_side import one_thread, print_table  # first: it settles threads before torch starts

# isort: split
import torch
from datasets import Dataset
from shapes import published
from transformers import PrinterCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments

from transduct.training import Seq2SeqCollator

NAMES = {"t5": "T5", "bart": "BART", "marian": "Marian"}
SPLITS = ((1, 16), (4, 4), (2, 8))  # steps, examples a step
NO_CLIPPING = 1e9


def examples(vocabulary: int, count: int = 16) -> list[dict[str, list[int]]]:
    """Sources and targets of 2 to 20 random tokens."""
    generator = torch.Generator().manual_seed(0)

    def tokens() -> list[int]:
        length = int(torch.randint(2, 21, (), generator=generator))
        return torch.randint(4, vocabulary - 1, (length,), generator=generator).tolist()

    return [{"input_ids": tokens(), "labels": tokens()} for _ in range(count)]


def exact(model: torch.nn.Module, rows: list[dict], collate) -> tuple[float, float]:
    """Loss and gradient norm of all rows in one batch, by the model's own forward."""
    model.zero_grad()
    loss = model(**collate(rows)).loss
    loss.backward()
    norms = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    return loss.item(), torch.stack(norms).norm().item()


def logged(model: torch.nn.Module, rows: list[dict], collate, steps: int, batch_size: int) -> tuple[float, float]:
    """Loss and gradient norm of one update that moves nothing, as `Seq2SeqTrainer` logs them."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Seq2SeqTrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch_size, gradient_accumulation_steps=steps, max_steps=1,
            learning_rate=0.0, weight_decay=0.0, max_grad_norm=NO_CLIPPING, logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = Seq2SeqTrainer(model, settings, train_dataset=Dataset.from_list(rows), data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    first = trainer.state.log_history[0]
    return first["loss"], first["grad_norm"]


def table_row(name: str, model: torch.nn.Module, rows: list[dict]) -> list[str]:
    tokenizer = SimpleNamespace(pad_token_id=model.config.pad_token_id, padding_side="right")
    collate = Seq2SeqCollator(tokenizer)
    loss, norm = exact(model, rows, collate)
    row = [name]
    for steps, batch_size in SPLITS:
        found = logged(model, rows, collate, steps, batch_size)
        row += [f"{found[0] / loss:.4f}", f"{found[1] / norm:.4f}"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="T5 alone")
    options = parser.parse_args()
    one_thread()
    table = []
    for family in ["t5"] if options.quick else NAMES:
        theirs, ours = (model.train() for model in published.pair(family))
        rows = examples(ours.config.vocab_size)
        table.append(table_row(f"transformers' {NAMES[family]}", theirs, rows))
        table.append(table_row(f"transduct as {NAMES[family]}", ours, rows))
    headings = [f"{what} {steps}x{size}" for steps, size in SPLITS for what in ("loss", "gradient")]
    print_table("Loss and gradient norm of one update, divided by the exact ones", ["model", *headings], table)


if __name__ == "__main__":
    main()

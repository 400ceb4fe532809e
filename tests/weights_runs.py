"""Optimizers, averages and extra losses on two processes, what `test_training_weights.py` compares with one alone.

    torchrun --nproc-per-node 2 tests/weights_runs.py FOLDER

Writes the weights of each case into FOLDER, as `rankN.pt`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from test_training_extras import aligned_rows
from tiny_training import QUIET, Tokenizer, tiny_model
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments
from transduct.training.alignments import AlignmentCollator
from transduct.training.moving_average import MovingAverage
from transduct.training.weights import whole

RATE = dict(schedule="constant", learning_rate=0.02)
CASES: dict[str, dict[str, Any]] = {
    "adafactor": dict(RATE, optimizer="adafactor"),
    "adamw_rms": dict(RATE, optimizer="adamw_rms", weight_decay=0.1),
    "moving average": dict(RATE, optimizer="adafactor", ema_decay=0.5, eval_strategy="steps", eval_steps=2),
    "mean of checkpoints": dict(RATE, optimizer="adafactor", average_checkpoints=2, save_strategy="steps", save_steps=1),
    "extra losses": dict(RATE, optim="sgd", r_drop=1.0, guided_alignment={"weight": 0.5, "layer": 0}),
}


def new_model() -> Any:
    """Wide enough for factored moments; without the bias of keys, whose gradient is nothing but rounding errors."""
    return tiny_model(dropout=0.0, d_ff=160, d_model=128, key_bias=False)


def train(folder: Path, case: str, rows_per_process: int, steps: int = 4, resume: bool = False, shard: Any = None, **more: Any):
    """A trainer after some updates on the same rows, however many processes share them."""
    model = new_model()
    common = dict(train_sampling_strategy="sequential", per_device_train_batch_size=rows_per_process, max_steps=steps)
    args = TransductTrainingArguments(output_dir=str(folder), **{**QUIET, **common, **CASES[case], **more})
    rows = Dataset.from_list(aligned_rows(24))
    collator = AlignmentCollator(Seq2SeqCollator(Tokenizer(), model=model))
    evaluated = rows.remove_columns("alignments")
    trainer = TransductTrainer(model, args, train_dataset=rows, eval_dataset=evaluated, data_collator=collator)
    if shard is not None:
        shard(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: whole(parameter.detach()).clone() for name, parameter in trainer.model.named_parameters()}


def seen_in(trainer: Any) -> dict[str, Any]:
    """Weights, losses of evaluations, and the moving average."""
    averages = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, MovingAverage)]
    values = [[whole(tensor).clone() for tensor in callback.averages] for callback in averages]
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {"weights": weights(trainer), "averages": values, "losses": losses}


def in_two_parts(folder: Path, case: str, **options: Any) -> dict[str, Any]:
    """Two updates, and two more after a start from their checkpoint."""
    common = dict(options, save_strategy="steps", save_steps=2)
    train(folder, case, 4, steps=2, **common)
    return seen_in(train(folder, case, 4, resume=True, **common))


def main(folder: Path) -> None:
    from sharded_runs import shard

    torch.set_num_threads(1)
    gloo = dict(ddp_backend="gloo")
    seen = {case: seen_in(train(folder / case, case, 4, **gloo)) for case in CASES}
    for case in CASES:  # last, since accelerate then splits every model
        seen[f"sharded {case}"] = seen_in(train(folder / f"sharded {case}", case, 4, shard=shard, **gloo))
    seen["resumed"] = in_two_parts(folder / "resumed", "moving average", shard=shard, **gloo)
    torch.save(seen, folder / f"rank{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The token budgets of two processes on devices of unequal memory: what `test_training_fitting.py` compares.

    torchrun --nproc-per-node 2 tests/fitting_runs.py FOLDER

Each process writes what it saw into FOLDER, as `rankN.pt`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from processes_runs import rank
from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.training import fitting

CPU = {"the first": (90, 200), "the second": (200, 90)}
"""What fits in the memory of each process, by which of them has less: tokens on a CPU ..."""
ROWS = {"the first": (6, 30), "the second": (30, 6)}
"""... and rows of 7 source and 7 target tokens on an accelerator."""


def batches(folder: Path) -> dict[str, Any]:
    """What batches of the budget that is found cost here, and what is noted of it."""
    trainer = tiny_trainer(folder, tiny_model(), pairs(200), max_tokens_per_batch="auto", ddp_backend="gloo")
    loader = trainer.get_train_dataloader()
    costs = [batch["input_ids"].numel() + batch["labels"].numel() for batch in loader]
    trainer.accelerator.wait_for_everyone()
    note = Path(trainer.args.output_dir) / "token_budget.json"
    noted = json.loads(note.read_text())["max_tokens_per_batch"] if note.is_file() else None
    return {"costs": costs, "noted": noted}


def on_a_cpu(folder: Path, smaller: str) -> dict[str, Any]:
    real, fitting.cpu_budget = fitting.cpu_budget, lambda trainer, longest: CPU[smaller][rank()]
    try:
        return batches(folder)
    finally:
        fitting.cpu_budget = real


def on_an_accelerator(folder: Path, smaller: str) -> dict[str, Any]:
    """With a step that runs out of memory beyond so many rows."""
    real, on_cpu = fitting.trial_step, fitting.runs_on_cpu
    tried = []

    def step(trainer: Any, longest: Any, rows: int, backward: bool) -> None:
        tried.append(rows)
        if rows > ROWS[smaller][rank()]:
            raise torch.OutOfMemoryError("no memory left")
        real(trainer, longest, rows, backward)

    fitting.trial_step, fitting.runs_on_cpu = step, lambda trainer: False
    try:
        return {**batches(folder), "tried": tried}
    finally:
        fitting.trial_step, fitting.runs_on_cpu = real, on_cpu


def going_on(folder: Path) -> dict[str, Any]:
    """The folder of each process is its own: only the first has a checkpoint and the budget that its run began with."""
    own = folder / str(rank())
    if rank() == 0:
        (own / "checkpoint-1").mkdir(parents=True)
        (own / "token_budget.json").write_text('{"max_tokens_per_batch": 60}')
    return batches(own)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    seen = {
        "cpu": {smaller: on_a_cpu(folder / "cpu" / smaller, smaller) for smaller in CPU},
        "accelerator": {smaller: on_an_accelerator(folder / "accelerator" / smaller, smaller) for smaller in ROWS},
        "going on": going_on(folder / "going on"),
    }
    torch.save(seen, folder / f"rank{rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

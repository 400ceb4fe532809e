"""What `test_training_loading.py` compares, run by two processes at once and again by one alone.

    torchrun --nproc-per-node 2 tests/loading_runs.py FOLDER

Each process writes what it saw into FOLDER, as `rankN.pt`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from test_training_data_position import Counted
from test_training_endless import trainer_of
from tiny_training import pairs, tiny_model, tiny_trainer

BATCHES = {"budget": dict(max_tokens_per_batch=60), "packed": dict(max_tokens_per_batch=60, packing=True)}


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def one_update(folder: Path, batches: str, **options) -> torch.Tensor:
    """The weights after an epoch of 40 pairs that is one update."""
    constant = dict(optim="sgd", learning_rate=0.1, lr_scheduler_type="constant", max_grad_norm=1e9, num_train_epochs=1)
    model = tiny_model(dropout=0.0).double()
    trainer = tiny_trainer(folder, model, pairs(40), gradient_accumulation_steps=100, **BATCHES[batches], **constant, **options)
    trainer.train()
    assert trainer.state.global_step == 1
    return weights(trainer)


def labels_by_step(folder: Path, batches: str, **options) -> list[list[torch.Tensor]]:
    """The targets that this process sees in each step of two epochs."""
    trainer = tiny_trainer(folder, rows=pairs(40), **BATCHES[batches], **options)
    loader, seen = trainer.get_train_dataloader(), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen.append([batch["labels"] for batch in loader])
    return seen


def resumed_in_the_second_epoch(folder: Path, batches: str, **options) -> dict[str, torch.Tensor]:
    """Weights of a run at once, and of one that stopped inside its second epoch."""
    common = dict(
        schedule="constant", learning_rate=0.01, num_train_epochs=3, save_strategy="steps", **BATCHES[batches], **options
    )
    straight = tiny_trainer(folder, rows=pairs(40), save_steps=1, **common)
    straight.train()
    epoch = straight.state.global_step // 3
    assert epoch > 1
    resumed = tiny_trainer(folder, model=tiny_model(seed=9), rows=pairs(40), save_steps=1, **common)
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{epoch + 1}"))
    return {"straight": weights(straight), "resumed": weights(resumed)}


def resumed_in_a_stream(folder: Path, **options) -> dict[str, Any]:
    """Weights of a run on endless data at once, and of one that stopped, with the rows that were read after that."""
    common = dict(per_device_train_batch_size=4, dataloader_num_workers=0, **options)
    straight = trainer_of(folder, Counted().part, 24, **common)
    straight.train()
    stream = Counted()
    resumed = trainer_of(folder, stream.part, 24, **common)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-20"))
    return {"straight": weights(straight), "resumed": weights(resumed), "read": stream.read}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    options = dict(ddp_backend="gloo")
    seen = {
        name: {
            "update": one_update(folder / "update", name, **options),
            "labels": labels_by_step(folder / "labels", name, **options),
            "resumed": resumed_in_the_second_epoch(folder / f"resumed {name}", name, **options),
        }
        for name in BATCHES
    }
    seen["stream"] = resumed_in_a_stream(folder / "stream", **options)
    torch.save(seen, folder / f"rank{rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

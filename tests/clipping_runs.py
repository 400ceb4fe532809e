"""One update of 40 pairs with and without clipping, however they are split: what `test_training_clipping.py` compares.

Imported by the test, and started by it once more as each of two processes:

    torchrun --nproc-per-node 2 tests/clipping_runs.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch

from processes_runs import rank
from sharded_runs import WholeGradient, shard
from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.training import Seq2SeqCollator

RATE = 0.5
LIMITS = {"below": 0.25, "above": 4.0, "none": None}
"""`max_grad_norm` as a multiple of the gradient's norm; None: 0, which is no clipping."""
SPLITS: dict[str, dict[str, Any]] = {
    "at once": dict(per_device_train_batch_size=40),
    "accumulated": dict(per_device_train_batch_size=5, gradient_accumulation_steps=100),
    "budget": dict(max_tokens_per_batch=60, gradient_accumulation_steps=100),
    "packed": dict(max_tokens_per_batch=60, packing=True, gradient_accumulation_steps=100),
}
"""Each makes an epoch one update, of one batch or of all of them."""


def model() -> Any:
    """Always the same weights; in float64, so that a sum does not depend on its order."""
    return tiny_model(dropout=0.0).double()


def vector(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].detach().flatten() for name in sorted(tensors)])


def whole_gradient() -> torch.Tensor:
    """That of the mean loss of all pairs in one batch, without any trainer."""
    computed = model()
    collate = Seq2SeqCollator(Tokenizer(), model=computed)
    computed.train()(**collate(pairs(40))).loss.backward()
    return vector({name: weight.grad for name, weight in computed.named_parameters()})


def one_update(folder: Path, split: str, max_grad_norm: float, sharded: bool = False, **options: Any) -> dict[str, Any]:
    """What plain gradient descent takes from the weights, the gradient that it got, and the norm that was logged."""
    gradient, constant = WholeGradient(), dict(optim="sgd", learning_rate=RATE, lr_scheduler_type="constant", num_train_epochs=1)
    logged = dict(logging_strategy="steps", logging_steps=1, max_grad_norm=max_grad_norm)
    trainer = tiny_trainer(folder, model(), pairs(40), **SPLITS[split], **constant, **logged, **options)
    trainer.add_callback(gradient)
    before = vector(dict(trainer.model.named_parameters()))
    if sharded:
        shard(trainer)
    trainer.train()
    assert trainer.state.global_step == 1
    weights = dict(trainer.model.named_parameters())
    whole = {name: getattr(weight, "full_tensor", weight.detach)() for name, weight in weights.items()}
    norm = trainer.state.log_history[0]["grad_norm"]
    return {"update": before - vector(whole), "gradient": vector(gradient.seen), "norm": float(norm)}


def main(folder: Path) -> None:
    """Every split and limit, and last of all one in pieces, since a process stays with FSDP once it has begun."""
    torch.set_num_threads(1)
    norm = whole_gradient().norm().item()
    limits = {name: 0.0 if share is None else share * norm for name, share in LIMITS.items()}
    options = dict(ddp_backend="gloo")
    splits = [split for split in SPLITS if split != "at once"]
    seen = {(split, name): one_update(folder, split, limit, **options) for split in splits for name, limit in limits.items()}
    for name, limit in limits.items():
        seen["in pieces", name] = one_update(folder, "accumulated", limit, sharded=True, **options)
    torch.save(seen, folder / f"rank{rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

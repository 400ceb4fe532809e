"""Run by a test as one of several processes: trains a little, evaluates, and writes what it saw."""

import json
import os
import sys

import torch

from tiny_training import pairs, tiny_model, tiny_trainer

folder, rank = sys.argv[1], os.environ["RANK"]
torch.set_num_threads(1)
trainer = tiny_trainer(
    folder,
    tiny_model(dropout=0.0),
    pairs(20),
    metrics=lambda prediction: {},
    max_tokens_per_batch=40,
    per_device_eval_batch_size=5,
    schedule="constant",
    learning_rate=0.01,
    max_minutes=0.5 / 60,
    ddp_backend="gloo",
)
before = trainer.evaluate()["eval_loss"]  # before training: that must not keep the processes from sharing gradients
trainer.train()
seen = {
    "no copies of gradients": trainer.model_wrapped.gradient_as_bucket_view,
    "before": before,
    "after": trainer.evaluate()["eval_loss"],
    "steps": trainer.state.global_step,
    "elapsed": trainer.lr_scheduler.elapsed,
    "weights": float(sum(parameter.detach().double().sum() for parameter in trainer.model.parameters())),
    "processes": trainer.accelerator.num_processes,
}
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump(seen, file)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()

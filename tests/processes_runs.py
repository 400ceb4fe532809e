"""What `test_training_processes.py` compares, run by two processes at once and again by one alone.

    torchrun --nproc-per-node 2 tests/processes_runs.py FOLDER

Each process writes what it saw into FOLDER, as `rankN.pt`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from test_training_faults import clean_pairs, poisoned, with_poison
from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.training.adapters import freeze_weights
from transduct.training.callbacks import StopOnSignal
from transduct.training.faults import RECORD, NonFiniteGradient
from transduct.training.predictions import TextMetrics
from transduct.training.processes import decided_by_main

NAMES = {"error": "token_error"}


def rank() -> int:
    return int(os.environ.get("RANK", 0))


class Words(Tokenizer):
    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(str(int(id)) for id in row if id > 2) for row in ids]


def weights(trainer: Any) -> torch.Tensor:
    """All weights of the trainer's model in one vector, put together where they are in pieces."""
    state = trainer.accelerator.get_state_dict(trainer.model) if trainer.is_fsdp_enabled else trainer.model.state_dict()
    return torch.cat([state[name].detach().flatten() for name in sorted(state)]) if state else torch.zeros(0)


def evaluation(folder: Path, **options) -> dict[str, Any]:
    """Ten rows in batches of four: over two processes, the first six rows come again as padding."""
    rows = pairs(10)
    texts = Words().batch_decode([row["labels"] for row in rows], True)
    metrics = TextMetrics(Words(), texts, NAMES, folder)
    common = dict(per_device_eval_batch_size=4, predict_with_generate=True, generation_max_length=8, **options)
    trainer = tiny_trainer(folder, tiny_model(dropout=0.0), rows, metrics=metrics, **common)
    streamed = trainer.evaluate()
    predicted = trainer.predict(trainer.eval_dataset)
    plain = tiny_trainer(folder, tiny_model(dropout=0.0), rows, **common | {"predict_with_generate": False}).evaluate()
    return {
        "loss": streamed["eval_loss"],
        "plain loss": plain["eval_loss"],
        "error": streamed["eval_error"],
        "predictions": Words().batch_decode(predicted.predictions, True),
        "labels": [[id for id in row if id != -100] for row in predicted.label_ids.tolist()],
    }


def skipping(folder: Path, **options) -> dict[str, Any]:
    """The second process meets a batch whose loss is not a number, at the second of three updates."""
    rows = poisoned(clean_pairs(), 13)  # 24 rows, four each for two processes: rows 8 to 15 are the second update
    common = dict(per_device_train_batch_size=4, train_sampling_strategy="sequential", max_steps=3, learning_rate=0.01, **options)
    seen: dict[str, Any] = {}
    for on_nan in ("stop", "skip"):
        trainer = tiny_trainer(folder, with_poison(tiny_model(dropout=0.0)), rows, on_nan=on_nan, **common)
        try:
            trainer.train()
            seen["record"], seen["weights"] = trainer.state.stateful_callbacks[RECORD], weights(trainer)
        except NonFiniteGradient as error:
            seen["error"], seen["stopped at"] = str(error), trainer.state.global_step
    return seen


class SignalTo(TrainerCallback):
    """Sends one of the processes a SIGTERM after the second step."""

    def __init__(self, to: int):
        self.to = to

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and rank() == self.to:
            os.kill(os.getpid(), signal.SIGTERM)


def stopping(folder: Path, to: int, **options) -> dict[str, Any]:
    common = dict(max_steps=50, max_tokens_per_batch=40, schedule="constant", **options)
    trainer, stop = tiny_trainer(folder, tiny_model(), pairs(24), **common), StopOnSignal()
    trainer.add_callback(SignalTo(to))
    trainer.add_callback(stop)
    with stop.listening():
        trainer.train()
    return {"step": trainer.state.global_step, "received": stop.received}


def resuming(folder: Path, shard=lambda trainer: None, **options) -> dict[str, Any]:
    """Six steps at once, and in two parts."""
    common = dict(max_tokens_per_batch=60, schedule="inverse_sqrt", warmup_steps=2, learning_rate=0.01, save_steps=3, **options)
    common |= dict(save_strategy="steps", max_steps=6)
    seen = {}
    for name, parts in (("once", [6]), ("twice", [3, 6])):
        for last in parts:
            trainer = tiny_trainer(folder / name, tiny_model(dropout=0.2), pairs(40), **common | {"max_steps": last})
            shard(trainer)
            trainer.train(resume_from_checkpoint=last != parts[0])
        seen[name] = weights(trainer)
    return seen


class DrawApart(TrainerCallback):
    """Each process draws its own random numbers, so that they leave out different layers."""

    def on_step_begin(self, args, state, control, **kwargs):
        torch.manual_seed(2 * state.global_step + rank())


def dropping(folder: Path, **options) -> dict[str, Any]:
    """A decoder's only layer is trained, and left out in half of the steps of each process."""
    model = tiny_model(layer_drop=0.5)
    freeze_weights(model, ["encoder", "embeddings"])
    trainer = tiny_trainer(folder, model, max_steps=8, learning_rate=0.01, per_device_train_batch_size=2, **options)
    trainer.add_callback(DrawApart())
    before = weights(trainer)
    trainer.train()
    return {"before": before, "weights": weights(trainer)}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    options = dict(ddp_backend="gloo")
    seen = {
        "evaluation": evaluation(folder / "predictions", **options),
        "skipping": skipping(folder / "skipping", **options),
        "stopping": [stopping(folder / f"stopping{to}", to, **options) for to in (0, 1)],
        "resuming": resuming(folder / "resuming", **options),
        "dropping": dropping(folder / "dropping", **options),
        "decided": decided_by_main(lambda: f"by {rank()}"),
    }
    torch.save(seen, folder / f"rank{rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

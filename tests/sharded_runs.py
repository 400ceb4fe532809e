"""FSDP2 on two processes without a GPU, beside the same without it: what `test_training_sharded.py` compares.

torchrun --nproc-per-node 2 tests/sharded_runs.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from accumulation_runs import PRESETS, collator, examples, our_model
from processes_runs import Words, rank, resuming
from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.training import TransductTrainer, TransductTrainingArguments
from transduct.training.final import save_finished
from transduct.training.predictions import TextMetrics

TYINGS = ("all", "target_output", "source_target", "none")


def shard(trainer: Any, **options) -> None:
    """Let accelerate split the model, which it does by itself on accelerators only."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP", cpu_ram_efficient_loading=False,
        **{"state_dict_type": "FULL_STATE_DICT", **options},
    )  # fmt: skip
    trainer.accelerator.state._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    trainer.is_fsdp_enabled = True


class WholeGradient(TrainerCallback):
    """The gradient before the update, weight by weight, its pieces put together."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self.seen = {name: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for name, g in grads.items()}


def one_update(model: Any, folder: Path, split: bool) -> dict[str, Any]:
    gradient = WholeGradient()
    arguments = TransductTrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_grad_norm=0.0,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, ddp_backend="gloo",
    )  # fmt: skip
    trainer = TransductTrainer(model, arguments, train_dataset=examples(), data_collator=collator(model), callbacks=[gradient])
    if split:
        shard(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    return {"loss": log["loss"], "norm": log["grad_norm"], "gradient": gradient.seen, "class": type(trainer.model).__name__}


def saving(folder: Path, tying: str) -> dict[str, Any]:
    """The weights in memory, to be compared with those of the checkpoint and of the finished model."""
    model = tiny_model(tie_embeddings=tying)
    trainer = tiny_trainer(folder, model, pairs(24), max_steps=2, save_steps=2, save_strategy="steps", ddp_backend="gloo")
    trainer.processing_class = Words()
    shard(trainer)
    trainer.train()
    save_finished(trainer, folder)
    checkpoint = get_last_checkpoint(str(folder))
    assert checkpoint is not None
    return {"weights": trainer.accelerator.get_state_dict(trainer.model), "checkpoint": checkpoint}


def generating(folder: Path) -> dict[str, Any]:
    """Rows of very different length on the two processes, whole and in pieces."""
    rows = [{"input_ids": [3 + i] * (1 + 5 * (i % 2)) + [1], "labels": [4, 1]} for i in range(6)]
    seen = {}
    for split in (False, True):
        model = tiny_model(seed=3, dropout=0.0)
        model.generation_config.eos_token_id = [1, 5, 7, 9]  # outputs of many lengths
        metrics = TextMetrics(Words(), ["4"] * 6, {"error": "token_error"}, folder / str(split))
        options = dict(per_device_eval_batch_size=1, predict_with_generate=True, max_steps=1, learning_rate=0.0)
        trainer = tiny_trainer(folder, model, rows, metrics=metrics, ddp_backend="gloo", **options)
        if split:
            shard(trainer)
        trainer.train()  # before it, accelerate cannot split a model
        seen[split] = [trainer.evaluate()["eval_loss"]]
        for beams in (1, 3):
            output = trainer.predict(trainer.eval_dataset, num_beams=beams)
            seen[split] += [output.metrics["test_loss"], Words().batch_decode(output.predictions.tolist(), True)]
    return seen


class LayersThatRan(TrainerCallback):
    """Which layers took part, step by step."""

    def __init__(self, model: Any):
        self.steps: list[set[str]] = []
        for name, layer in model.named_modules():
            if name.rpartition(".")[0].endswith(".layers"):
                layer.register_forward_hook(lambda *_, name=name: self.steps[-1].add(name))

    def on_step_begin(self, args, state, control, **kwargs):
        self.steps.append(set())


def dropping(folder: Path) -> dict[str, Any]:
    """Layers are left out, while dropout has drawn differently often in each process; at once, and in two starts."""
    common = dict(per_device_train_batch_size=2, save_strategy="steps", save_steps=3, schedule="constant", ddp_backend="gloo")
    seen: dict[str, Any] = {}
    for name, parts in (("once", [6]), ("twice", [3, 6])):
        seen[f"{name} ran"] = []
        for last in parts:
            model = tiny_model(layer_drop=0.4, encoder_layers=2, decoder_layers=2)
            trainer, ran = tiny_trainer(folder / name, model, pairs(40), max_steps=last, **common), LayersThatRan(model)
            trainer.add_callback(ran)
            shard(trainer)
            trainer.train(resume_from_checkpoint=last != parts[0])
            seen[f"{name} ran"] += ran.steps
        seen[name] = trainer.accelerator.get_state_dict(trainer.model)
    return seen


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    models = [(name, lambda name=name: our_model(name, 0.1)) for name in PRESETS]
    seen: dict[str, Any] = {}
    seen["updates"] = {name: [one_update(make(), folder, split) for split in (False, True)] for name, make in models}
    seen["saving"] = {tying: saving(folder / tying, tying) for tying in TYINGS}
    seen["dropping"] = dropping(folder / "dropping")
    seen["generating"] = generating(folder / "generating")
    seen["resuming"] = {
        kind: resuming(folder / kind, lambda trainer, kind=kind: shard(trainer, state_dict_type=kind), ddp_backend="gloo")
        for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT")
    }
    torch.save(seen, folder / f"rank{rank()}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""`max_tokens_per_batch: auto`: the largest token budget whose batches fit in the memory of the device.

- On an accelerator it is found by trial: forward and backward of a batch of the longest pairs, twice as many each time until
  memory runs out, then by halves. The optimizer's two moments are there meanwhile. `MARGIN` of what fitted is used.
- On a CPU running out of memory ends the process, or the machine. There the budget is computed from what one row of the longest
  pairs keeps for its backward pass, and all batches together may take `CPU_SHARE` of the memory that is free.

No budget is larger than an epoch. What is found is written to `token_budget.json` in the output folder and read from there once
there are checkpoints: the batches of a run that goes on must be those that it began with. Before that, the next start may be one
of another model. Mind that the number of tokens in an update, and with it what is learnt, depends on the device; for a result to
compare, write the number into the recipe.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from accelerate.utils import gather_object
from torch.autograd.graph import saved_tensors_hooks

from transduct.files import write_whole
from transduct.training.checkpoints import list_checkpoints

MARGIN = 0.9
"""Share of the largest budget that fitted: memory becomes fragmented, and evaluation needs some."""
PRECISION = 1.05
"""The search ends when the budget that fits and the one that does not differ by less than this factor."""
CPU_SHARE = 0.5
"""Share of the free memory that the batches of all processes of a machine may take."""
BACKWARD = 2.0
"""Memory of a forward and backward pass, as a multiple of what is kept between them: gradients of states come and go."""


def fitting_budget(trainer: Any, lengths: np.ndarray) -> int:
    """The budget of a trainer's batches of pairs with `lengths` (2, pairs): read from its output folder, or found and written.

    Raises:
        ValueError: where the model is sharded or offloaded, so that what one device needs is not known before the training; and
            where not even one row of the longest pairs fits.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError('max_tokens_per_batch="auto" cannot be found for a model that FSDP or DeepSpeed shards: give a number')
    note = Path(trainer.args.output_dir) / "token_budget.json"
    goes_on = note.is_file() and len(list_checkpoints(note.parent)) > 0
    known = gather_object([json.loads(note.read_text())["max_tokens_per_batch"] if goes_on else None])[0]
    if known is not None:
        return int(known)
    longest = lengths.max(1)
    row, epoch = int(longest.sum()), int(lengths.sum()) // trainer.args.world_size
    if runs_on_cpu(trainer):
        budget = cpu_budget(trainer, longest)
    else:
        budget = int(MARGIN * largest_budget(lambda tokens: fits(trainer, longest, tokens), row, max(row, epoch)))
    budget = max(row, min(budget, epoch, *gather_object([budget])))
    if trainer.is_world_process_zero():
        note.parent.mkdir(parents=True, exist_ok=True)
        write_whole(note, json.dumps({"max_tokens_per_batch": budget, "device": str(trainer.args.device)}) + "\n")
    return budget


def runs_on_cpu(trainer: Any) -> bool:
    """Whether memory is that of the machine, which must not run out."""
    return trainer.args.device.type == "cpu"


def largest_budget(fits: Callable[[int], bool], lowest: int, highest: int) -> int:
    """The largest budget between `lowest` and `highest` that `fits`, up to a factor of `PRECISION`.

    Raises:
        ValueError: if `lowest` does not fit.
    """
    if not fits(lowest):
        raise ValueError(
            f"a batch of one row of {lowest} tokens, the longest source and target, does not fit in memory: limit the length of "
            "the data, or train with activation_checkpointing or a smaller model"
        )
    good, bad = lowest, None
    while good < highest and (bad is None or bad > PRECISION * good):
        tried = min(highest, 2 * good) if bad is None else (good + bad) // 2
        if tried == good:
            break
        if fits(tried):
            good = tried
        else:
            bad = tried
    return good


def fits(trainer: Any, longest: np.ndarray, max_tokens: int) -> bool:
    """Whether memory suffices for a step on a batch of the longest pairs. Weights, gradients and random numbers stay."""
    model, device = trainer.model, trainer.args.device
    moments = []
    try:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        copies = 2 if vars(trainer.args).get("ema_decay") is None else 3  # an average beside the optimizer's two moments
        moments = [torch.empty_like(parameter) for parameter in trained for _ in range(copies)]
        trial_step(trainer, longest, max_tokens // int(longest.sum()), backward=True)
    except torch.OutOfMemoryError:
        return False
    finally:
        del moments
        model.zero_grad(set_to_none=True)
        if device.type != "cpu":
            torch.accelerator.empty_cache()
    return True


def trial_step(trainer: Any, longest: np.ndarray, rows: int, backward: bool) -> None:
    """Loss of `rows` pairs of the `longest` lengths, in training mode, and the backward pass if wanted.

    Of an encoder or a decoder alone, where targets have no length, the labels lie on the inputs.
    """
    model, device = trainer.model, trainer.args.device
    was_training = model.training
    if vars(trainer.args).get("r_drop"):
        rows *= 2  # each batch will pass twice
    end = model.config.eos_token_id
    token = (end[0] if isinstance(end, list) else end) or 0
    ids = torch.full((rows, int(longest[0])), token, device=device)  # (rows, S)
    labels = torch.full((rows, int(longest[1])), token, device=device) if longest[1] else ids  # (rows, T)
    decoder = {"decoder_input_ids": labels} if model.config.is_encoder_decoder else {}
    others = [] if device.type == "cpu" else [device.index or 0]  # devices whose random numbers are put back, beside the CPU's
    try:
        with torch.random.fork_rng(others):
            with trainer.compute_loss_context_manager():
                batch = {**_source(model, ids), **decoder, "attention_mask": torch.ones_like(ids), "labels": labels}
                loss = trainer.compute_loss(model.train(), batch, num_items_in_batch=torch.tensor(labels.numel(), device=device))
            if backward:
                loss.backward()
    finally:
        model.train(was_training)


def _source(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The ids (rows, S), or features of as many frames where the model reads these."""
    if model.main_input_name != "input_features":
        return {"input_ids": ids}
    frames = torch.zeros(*ids.shape, model.config.feature_size, device=ids.device, dtype=model.dtype)  # (rows, S, F)
    return {"input_features": frames if model.config.feature_layout == "time_first" else frames.transpose(1, 2)}


def cpu_budget(trainer: Any, longest: np.ndarray) -> int:
    """The budget whose batches, on all processes of this machine, take `CPU_SHARE` of the memory that is free."""
    one, three = (saved_bytes(trainer, longest, rows) for rows in (1, 3))
    bytes_per_row = BACKWARD * (three - one) / 2
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", trainer.args.world_size))  # of this machine
    rows = int(CPU_SHARE * free_memory() / processes / bytes_per_row)
    if rows < 1:
        raise ValueError(
            f"one row of the longest pairs, {longest[0]} and {longest[1]} tokens, needs {bytes_per_row / 1e6:.0f} MB for a step, "
            f"more than {CPU_SHARE:.0%} of the free memory: limit the length of the data, or give max_tokens_per_batch"
        )
    return rows * int(longest.sum())


def saved_bytes(trainer: Any, longest: np.ndarray, rows: int) -> int:
    """Bytes of the distinct tensors that the forward pass keeps for the backward pass."""
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        trial_step(trainer, longest, rows, backward=False)
    return sum(storages.values())


def free_memory() -> int:
    """Bytes that this process may still take: what the system has free, and what its control group leaves."""
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return free
    return min(free, limit - used)

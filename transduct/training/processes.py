"""What several processes do together beside training."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from transduct.training.weights import save_tied_weights_once

T = TypeVar("T")


def decided_by_main(decide: Callable[[], T]) -> T:
    """What `decide` returns in the main process, in every process; the others do not call it."""
    answer: list[Any] = [decide() if PartialState().is_main_process else None]
    broadcast_object_list(answer)
    return answer[0]


def expect_all_gradients(args: Any, config: Any) -> None:
    """Spare DDP the search for weights without a gradient after each step, unless layers are dropped, where there are some."""
    if args.ddp_find_unused_parameters is None and getattr(config, "layer_drop", None) == 0 and not config.decoder_layer_drop:
        args.ddp_find_unused_parameters = False


def keep_gradients_in_buckets(trainer: Any) -> None:
    """Let DDP send gradients from where they are, instead of copying all of them into buckets and back for each update."""
    if trainer.accelerator.ddp_handler is not None:
        trainer.accelerator.ddp_handler.gradient_as_bucket_view = True


def keep_tied_weights_together(trainer: Any) -> None:
    """Let FSDP2 split a model some of whose modules share a weight, as embeddings and the output projection do.

    Accelerate gives embeddings and output projection groups of their own, and FSDP2 refuses a weight that two groups see. Without
    these groups they belong to the model as a whole, whose weights are together from the start of a step to its end. Put together
    for saving, what was one weight is several copies; one of them is saved.
    """
    accelerator = trainer.accelerator
    if not trainer.is_fsdp_enabled or accelerator.state.fsdp_plugin.fsdp_version != 2 or "prepare" in vars(accelerator):
        return
    save_tied_weights_once(trainer.model)
    prepare = accelerator.prepare

    def prepare_without_groups(*parts: Any, **options: Any) -> Any:
        models = [part for part in parts if isinstance(part, torch.nn.Module)]
        for model in models:
            vars(model).update(get_input_embeddings=lambda: None, get_output_embeddings=lambda: None)
        try:
            return prepare(*parts, **options)
        finally:
            for model in models:
                del vars(model)["get_input_embeddings"], vars(model)["get_output_embeddings"]

    vars(accelerator)["prepare"] = prepare_without_groups

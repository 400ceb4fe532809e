"""What several processes do together, beside what the trainer does: who goes first, who decides, and who saves a split model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list

T = TypeVar("T")


def decided_by_main(decide: Callable[[], T]) -> T:
    """What `decide` returns in the main process, in every process; the others do not call it."""
    from accelerate import PartialState

    answer: list[Any] = [decide() if PartialState().is_main_process else None]
    broadcast_object_list(answer)
    return answer[0]


def save_model(trainer: Any, folder: str | Path) -> None:
    """The trainer's model with its weights put together, for `from_pretrained`. All processes call it, the main one writes."""
    split = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    whole = trainer.accelerator.get_state_dict(trainer.model_wrapped) if split else None
    if trainer.accelerator.is_main_process:
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder, state_dict=whole)

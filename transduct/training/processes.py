"""What several processes do together beside training."""

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

T = TypeVar("T")


def decided_by_main(decide: Callable[[], T]) -> T:
    """What `decide` returns in the main process, in every process; the others do not call it."""
    answer: list[Any] = [decide() if PartialState().is_main_process else None]
    broadcast_object_list(answer)
    return answer[0]

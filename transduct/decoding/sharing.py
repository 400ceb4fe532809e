"""Windows of texts shared among processes: the main one reads, each does a part, all have the whole, the order stays.

Each window is sent to all processes, which take texts by turns in the order of their lengths, so that they have about as much to
do. An error in one of them ends all, with its message.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from transduct.decoding.windows import size

Item = TypeVar("Item")
Result = TypeVar("Result")


class Processes:
    """The processes that torch or Accelerate has started.

    Args:
        shared: False: this one alone, whatever there are.
    """

    def __init__(self, shared: bool = True):
        if not shared:
            self.count, self.number = 1, 0
            return
        import torch
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        without_gpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        self.state = PartialState(cpu=without_gpu)  # unless told so, it takes several processes without a GPU for single ones
        self.count, self.number = self.state.num_processes, self.state.process_index

    @property
    def is_main(self) -> bool:
        return self.number == 0

    @property
    def device(self) -> Any:
        return self.state.device

    def windows(self, of_main: Iterable[list[Item]]) -> Iterator[list[Item]]:
        """The windows that the main process reads, in every process.

        Raises:
            ValueError: in every process, where reading raised one.
        """
        if self.count == 1:
            yield from of_main
            return
        reading = iter(of_main)
        while True:
            window = self.from_main(lambda: next(reading, None))
            if window is None:
                return
            yield window

    def from_main(self, read: Callable[[], Any]) -> Any:
        """What `read` returns in the main process, in every process; so is the ValueError that it may raise."""
        if self.count == 1:
            return read()
        from accelerate.utils import broadcast_object_list

        sent: list[Any] = [None, None]
        if self.is_main:
            sent = [*_tried(read)]
        result, error = broadcast_object_list(sent)
        if error is not None:
            raise ValueError(error)
        return result

    def share(
        self, work: Callable[[Sequence[Item], Sequence[int]], list[Result]], window: Sequence[Item], first: int
    ) -> list[Result]:
        """What `work` makes of a window, in order, in every process.

        Args:
            work: given items and their numbers.
            first: the number of the window's first item.

        Raises:
            ValueError: in every process, where the work of one raised it.
        """
        if self.count == 1:
            return work(window, range(first, first + len(window)))
        from accelerate.utils import gather_object

        own = sorted(range(len(window)), key=lambda each: -size(window[each]))[self.number :: self.count]
        done, error = _tried(lambda: work([window[each] for each in own], [first + each for each in own]))
        parts = gather_object([(own, done, error)])
        for _, _, message in parts:
            if message is not None:
                raise ValueError(message)
        results = {number: result for numbers, part, _ in parts for number, result in zip(numbers, part, strict=True)}
        return [results[number] for number in range(len(window))]


def _tried(work: Callable[[], Any]) -> tuple[Any, str | None]:
    """The result, or the message of an error of input."""
    try:
        return work(), None
    except (ValueError, OSError) as error:
        return None, str(error)

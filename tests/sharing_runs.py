"""Run by a test as one of several processes: shares windows of texts, and writes what each did and saw."""

import os
import sys
from functools import partial
from pathlib import Path

import torch

from tiny_translation import tiny_translation
from transduct import evaluate, score, translate
from transduct.decoding.commands import LinesCommand, opened
from transduct.decoding.lines import read_lines
from transduct.decoding.sharing import Processes

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
processes = Processes()
own: list[int] = []


def capitals(texts, numbers):
    own.extend(numbers)
    if "bad" in texts:
        raise ValueError(f"line {numbers[texts.index('bad')]} is bad")
    return [text.upper() for text in texts]


def unreadable():
    yield ["a"]
    raise ValueError("line 2 cannot be read")


class Capitals(LinesCommand):
    """Which needs no model."""

    what = "capitals"

    def load(self, device):
        return None, None

    def worker(self, model, tokenizer):
        return capitals

    def read(self, stack, source):
        return read_lines(opened(stack, source), source)

    def written(self, number, item, result):
        return [result]


def command(lines, output=None, resume=False):
    """Run it on lines; None: on a file that is not there."""
    name = folder / ("nothing.txt" if lines is None else "lines.txt")
    if lines is not None and processes.is_main:
        name.write_text("".join(f"{line}\n" for line in lines))
    Capitals("none", "float32").run(str(name), None if output is None else str(output), 2, resume)


def message(work) -> str:
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


model, tokenizer = tiny_translation()
texts = ["abc", "", "hello there.", "a", "xyz xyz", "cab"] if processes.is_main else []
translated = translate(model, tokenizer, texts, share=True, window=4, do_sample=True, max_new_tokens=5)
scored = score(model, tokenizer, iter(texts), iter(translated), share=True, window=4)
pairs = [("abc", "a"), ("hello there.", "b"), ("a", "c")]
evaluated = evaluate(model, tokenizer, pairs, ["wer"], share=True, window=2, max_new_tokens=5, resamples=0)

windows = [["abc", "b" * 9, "c", "dd", "e" * 5], ["f"], []]
read = list(processes.windows(iter(windows) if processes.is_main else iter(())))
results = [processes.share(capitals, window, 1 + 5 * number) for number, window in enumerate(read)]
shared = list(own)
measure = partial(evaluate, model, tokenizer, pairs, ["wer"], share=True, max_new_tokens=5, resamples=0)
of_main = [
    message(lambda: measure(predictions=folder)),
    message(lambda: command(None)),
    message(lambda: command(["a"], folder)),
    message(lambda: command(["a", "b", "c", "bad"], folder / "out.txt")),
    message(lambda: command(["a", "b", "c", "d"], folder / "out.txt")),
    message(lambda: command(["a", "x", "c", "d"], folder / "out.txt", resume=True)),
    message(lambda: command(["a", "b", "c", "d"], folder / "out.txt", resume=True)),
]
seen = {
    "read": read,
    "results": results,
    "own": shared,
    "bad": message(lambda: processes.share(capitals, ["x", "bad", "y"], 11)),
    "unreadable": message(lambda: list(processes.windows(unreadable() if processes.is_main else iter(())))),
    "decided": processes.from_main(lambda: f"by {rank}"),
    "count": processes.count,
    "of_main": of_main,
    "translated": translated,
    "scored": scored,
    "evaluated": evaluated,
}
torch.save(seen, folder / f"rank{rank}.pt")
torch.distributed.destroy_process_group()

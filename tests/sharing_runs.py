"""Run by a test as one of several processes: shares windows of texts, and writes what each did and saw."""

import os
import sys
from pathlib import Path

import torch

from tiny_translation import tiny_translation
from transduct import evaluate, score, translate
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
seen = {
    "read": read,
    "results": results,
    "own": shared,
    "bad": message(lambda: processes.share(capitals, ["x", "bad", "y"], 11)),
    "unreadable": message(lambda: list(processes.windows(unreadable() if processes.is_main else iter(())))),
    "decided": processes.from_main(lambda: f"by {rank}"),
    "count": processes.count,
    "translated": translated,
    "scored": scored,
    "evaluated": evaluated,
}
torch.save(seen, folder / f"rank{rank}.pt")
torch.distributed.destroy_process_group()

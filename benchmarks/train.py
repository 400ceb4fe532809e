"""Training with transformers' `Seq2SeqTrainer` and with ours: equal models, optimizer, data and tokens an update, one core.

A Marian of width 256 with 3 + 3 layers learns real translations (see `translation_text.py`). Its batches are made by
- "default sampling": rows at random, padded to the longest; transformers' model and trainer;
- "length grouping": rows of like source length (`train_sampling_strategy="group_by_length"`); transformers' model and trainer;
- "token budget": `TransductTrainer` with `max_tokens_per_batch`; our model of the same weights;
- "packed": the same with `packing`.

The budgets are chosen so that an epoch has the same number of updates on each side, hence an update the same number of tokens.
Each round trains all four on updates from the whole range of batch sizes in an epoch: those at equal distances in the order of
their padded cost, from a random start. The rate counts targets without padding; it covers the whole update, from asking for the
batch to the optimizer's step. Peak memory is that of updates on the dearest batches of an epoch, each side in a process of its
own. In the second table ours is trained by one and by two processes (gloo), each on a core and with batches of four times as many
tokens, as several processes are used for; a quotient of 1 means that a second core doubles the rate. Two that train apart at the
same time show what two cores take from each other without exchanging anything: memory, caches, clock.

    python benchmarks/train.py
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from side_by_side import one_thread, print_table  # first: it settles threads before torch starts

# isort: split
import torch
from datasets import Dataset
from peak_memory import measure_peak
from shapes import pair_of
from torch.utils.data import DataLoader
from train_step import check_losses
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from translation_text import translation_pairs

from transduct import TransductConfig, TransductTokenizer, config_from_preset
from transduct.training import Seq2SeqCollator, TransductTrainer, TransductTrainingArguments
from transduct.training.batching import EpochBatchSampler, TokenBudgetBatchSampler
from transduct.training.packing import PackedBatchSampler

SIZES = dict(d_model=256, d_ff=1024, num_heads=4, encoder_layers=3, decoder_layers=3)
TINY = dict(d_model=32, d_ff=64, num_heads=4, encoder_layers=1, decoder_layers=1)
VOCABULARY = 8000
TOKENS = 1000  # of an update, sources and targets, without padding
WARM_UP = 2  # updates that are not measured
SIDES = ("default sampling", "length grouping", "token budget", "packed")
Batches = list[list[Any]]  # indices of pairs, or rows of them


@dataclass
class Task:
    """What is learnt: tokenised pairs, and pairs an update."""

    data: Dataset
    tokenizer: Any
    pairs: int
    config: TransductConfig

    @property
    def lengths(self) -> tuple[list[int], list[int]]:
        return [len(ids) for ids in self.data["input_ids"]], [len(ids) for ids in self.data["labels"]]


def make_task(quick: bool, larger: int = 1) -> Task:
    """The text in tokens, for updates of `TOKENS` tokens times `larger`."""
    texts = translation_pairs("example") * 6 if quick else translation_pairs()
    tokenizer = TransductTokenizer.train(chain.from_iterable(texts), kind="bpe", vocab_size=300 if quick else VOCABULARY)
    sources, targets = (tokenizer(list(side))["input_ids"] for side in zip(*texts, strict=True))
    data = Dataset.from_dict({"input_ids": sources, "labels": targets})
    tokens = 200 if quick else TOKENS * larger
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    special["decoder_start_token_id"] = tokenizer.pad_token_id
    config = config_from_preset("marian-base", vocab_size=len(tokenizer), **(TINY if quick else SIZES), **special)
    return Task(data, tokenizer, max(1, round(tokens * len(texts) / sum(map(len, chain(sources, targets))))), config)


def equal_budget(task: Task, make_sampler: Callable[[int], EpochBatchSampler]) -> int:
    """The least budget with which an epoch has no more updates than batches of `task.pairs` pairs make."""
    updates = -(-len(task.data) // task.pairs)
    low = sum(map(max, task.lengths))
    high = 2 * low
    while len(make_sampler(high)) > updates:
        low, high = high, 2 * high
    while high > 1.005 * low:
        middle = (low + high) // 2
        if middle == low:
            break
        low, high = (middle, high) if len(make_sampler(middle)) > updates else (low, middle)
    return high


class Meter(TrainerCallback):
    """Seconds of each update, those of waiting for its batch, and its tokens."""

    def __init__(self, trainer: Seq2SeqTrainer):
        self.take = trainer.get_batch_samples
        vars(trainer)["get_batch_samples"] = self.taken
        trainer.add_callback(self)
        self.started = 0.0
        self.updates: list[tuple[float, float, int, int, int]] = []  # seconds, of loading; source and target tokens, places
        self.loaded: tuple[float, int, int, int] = (0.0, 0, 0, 0)

    def taken(self, *args: Any) -> Any:
        self.started = time.perf_counter()
        batches, items = self.take(*args)
        seconds = time.perf_counter() - self.started
        (batch,) = batches
        source = int(batch.get("segment_ids", batch.get("attention_mask")).ne(0).sum())
        target = int((batch["labels"] != -100).sum())
        self.loaded = (seconds, source, target, batch["input_ids"].numel() + batch["labels"].numel())
        return batches, items

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any):
        self.updates.append((time.perf_counter() - self.started, *self.loaded))

    def forget(self) -> None:
        self.updates.clear()


@dataclass
class Run:
    """What a side did in one round."""

    seconds: float
    loading: float
    source: int
    target: int
    places: int
    updates: int

    @property
    def rate(self) -> float:
        return self.target / self.seconds


class Side:
    """A trainer whose updates can be chosen."""

    def __init__(self, name: str, task: Task, theirs: Any, ours: Any, folder: str, **options: Any):
        common = dict(
            output_dir=folder, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
            learning_rate=1e-4, lr_scheduler_type="constant", dataloader_pin_memory=False, **options,
        )  # fmt: skip
        self.name, self.lengths = name, task.lengths
        if name in SIDES[:2]:
            grouping = "group_by_length" if name == "length grouping" else "random"
            rows = dict(per_device_train_batch_size=task.pairs, train_sampling_strategy=grouping)
            collate = DataCollatorForSeq2Seq(task.tokenizer, model=theirs)
            kind, arguments, model = Seq2SeqTrainer, Seq2SeqTrainingArguments(**common, **rows), theirs
        else:
            packing = name == "packed"
            sampler = PackedBatchSampler if packing else TokenBudgetBatchSampler
            budget = equal_budget(task, lambda most: sampler(*task.lengths, most))
            collate = Seq2SeqCollator(task.tokenizer, model=ours)
            arguments = TransductTrainingArguments(**common, max_tokens_per_batch=budget, packing=packing)
            kind, model = TransductTrainer, ours
        self.trainer = kind(model, arguments, train_dataset=task.data, data_collator=collate)
        self.trainer.remove_callback(PrinterCallback)
        self.loader = self.trainer.get_train_dataloader()
        self.batches: Batches = [list(batch) for batch in self.loader.batch_sampler]
        self.batches.sort(key=self.cost)
        self.meter = Meter(self.trainer)

    def cost(self, batch: list[Any]) -> int:
        """Places of a batch."""
        rows = batch if self.name == "packed" else [[pair] for pair in batch]
        sides = [[sum(self.lengths[side][pair] for pair in row) for row in rows] for side in (0, 1)]
        return len(rows) * sum(map(max, sides))

    def train(self, batches: Batches) -> Run:
        """Updates on these batches, the first `WARM_UP` of which are not measured."""
        loader = DataLoader(self.loader.dataset, batch_sampler=batches, collate_fn=self.loader.collate_fn)  # type: ignore[arg-type]
        vars(self.trainer)["get_train_dataloader"] = lambda: self.trainer.accelerator.prepare(loader)
        self.trainer.args.max_steps = len(batches)
        self.meter.forget()
        self.trainer.train()
        measured = self.meter.updates[WARM_UP:]
        return Run(*map(sum, zip(*measured, strict=True)), updates=len(measured))  # type: ignore[arg-type]

    def some(self, count: int, start: float) -> Batches:
        """`count` batches at equal distances in the order of cost, shuffled, and those that warm up."""
        distance = len(self.batches) / count
        chosen = [self.batches[int((number + start) * distance)] for number in range(count)]
        random.Random(start).shuffle(chosen)
        return chosen[:1] * WARM_UP + chosen


def make_side(name: str, task: Task, folder: str) -> Side:
    theirs, ours = pair_of("marian-base", task.config)
    return Side(name, task, theirs, ours, folder)


def check_models(task: Task) -> None:
    """The loss of both models is the same."""
    theirs, ours = pair_of("marian-base", task.config)
    rows = [task.data[index] for index in range(8)]
    check_losses("marian-base", theirs, ours, Seq2SeqCollator(task.tokenizer)(rows))


def speed(options: argparse.Namespace) -> dict[str, list[Run]]:
    """All sides in alternation, the order turning round after each round."""
    task = make_task(options.quick)
    check_models(task)
    runs: dict[str, list[Run]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        sides = [make_side(name, task, folder) for name in SIDES]
        for number in range(options.rounds):
            start = random.Random(number).random()
            for side in sides if number % 2 else reversed(sides):
                runs[side.name].append(side.train(side.some(options.updates, start)))
    return runs


def memory(options: argparse.Namespace) -> None:
    """Prints the peak of a process that trains on the dearest batches of an epoch, above that before."""
    task = make_task(options.quick)
    with tempfile.TemporaryDirectory() as folder:
        side = make_side(options.side, task, folder)
        result = measure_peak(lambda: side.train(side.batches[-2:] + side.batches[:1] + side.batches[-1:]))
    print(json.dumps(result))


def process(options: argparse.Namespace) -> None:
    """One of several processes that train together, or one alone: prints its targets a second."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[int(os.environ.get("BENCHMARK_CORE", 0)) % len(cores)]})
    task = make_task(options.quick, larger=4)
    together = dict(ddp_backend="gloo", ddp_find_unused_parameters=False) if "RANK" in os.environ else {}
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = pair_of("marian-base", task.config)
        side = Side("token budget", task, theirs, ours, folder, max_steps=WARM_UP + options.updates // 2, **together)
        side.trainer.train()
    measured = side.meter.updates[WARM_UP:]
    seconds, _, _, target, _ = map(sum, zip(*measured, strict=True))
    print(json.dumps({"rate": target / seconds}))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def call(
    job: str, options: argparse.Namespace, side: str | None = None, processes: int = 1, apart: bool = False
) -> list[dict[str, Any]]:
    """This file again, as one process or as several, together or apart; the last line of each is its result."""
    command = [sys.executable, __file__, "--job", job, "--updates", str(options.updates)] + ["--quick"] * options.quick
    command += ["--side", side] if side else []
    running = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for rank in range(processes):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
        environment = os.environ | {"BENCHMARK_CORE": str(rank)} | (of_rank | address if processes > 1 and not apart else {})
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = []
    for each in running:
        out, errors = each.communicate()
        if each.returncode:
            raise RuntimeError(f"{job} ended with {each.returncode}\n{errors[-2000:]}")
        results.append(json.loads(out.splitlines()[-1]))
    return results


def ratio_text(ours: list[Run], theirs: list[Run]) -> str:
    ratios = [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def speed_table(runs: dict[str, list[Run]], peaks: dict[str, dict[str, int]]) -> None:
    rows = []
    for name, own in runs.items():
        tokens, places = sum(run.source + run.target for run in own), sum(run.places for run in own)
        above = peaks[name]["peak"] - peaks[name]["before"]
        rows.append(
            [
                name,
                f"{statistics.median(run.rate for run in own):,.0f}",
                ratio_text(own, runs[SIDES[0]]),
                ratio_text(own, runs[SIDES[1]]),
                f"{tokens / sum(run.updates for run in own):,.0f}",
                f"{tokens / places:.1%}",
                f"{sum(run.loading for run in own) / sum(run.seconds for run in own):.1%}",
                f"{above / 1e6:,.0f}",
            ]
        )
    headings = ["batches", "targets/s", "to default", "to grouping", "tokens", "non-pad", "loading", "peak MB"]
    print_table(
        "Targets without padding a second; ratios: median of rounds (lowest to highest); tokens of an update", headings, rows
    )


def processes_table(options: argparse.Namespace) -> None:
    ways = {"1 process": (1, True), "2 processes, apart": (2, True), "2 processes": (2, False)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds if options.quick else 3):
        for name in ways if number % 2 else reversed(ways):
            count, apart = ways[name]
            rates[name].append(statistics.mean(each["rate"] for each in call("process", options, processes=count, apart=apart)))
    rows = []
    for name, own in rates.items():
        quotients = [each / one for each, one in zip(own, rates["1 process"], strict=True)]
        ratio = f"{statistics.median(quotients):.2f} ({min(quotients):.2f} to {max(quotients):.2f})"
        rows.append([name, f"{statistics.median(own):,.0f}", ratio])
    print_table("Targets a second of each process, token budget, batches four times as large", ["", "each", "to one alone"], rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training.", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side")
    parser.add_argument("--updates", type=int, default=16, help="of each side in a round")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, its figures mean nothing")
    parser.add_argument("--job", choices=("memory", "process"), help="one measurement, in this process")
    parser.add_argument("--side", choices=SIDES, help="whose memory")
    options = parser.parse_args()
    if options.rounds < 1 or options.updates < 2:
        parser.error("--rounds must be at least 1, --updates at least 2")
    if (options.job == "memory") != (options.side is not None):
        parser.error("--job memory and --side go together")
    return options


def main() -> None:
    options = parse()
    one_thread()
    if options.job is not None:
        {"memory": memory, "process": process}[options.job](options)
        return
    runs = speed(options)
    speed_table(runs, {name: call("memory", options, side=name)[0] for name in SIDES})
    processes_table(options)


if __name__ == "__main__":
    main()

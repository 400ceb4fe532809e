"""Peak memory of transformers' models and ours, each measurement in a process of its own, on one thread.

- "training": forward and backward of the mT5-small shape, vocabulary 250,112, 32 pairs of 32 source and 96 target tokens: 3,072
  targets. Parameters, gradients and activations, without an optimizer. With `--target-tokens 4096` transformers needs about
  18 GB; the default stays below 16.
- "beam search": 8 beams, one source of 1,024 tokens, BART-base, 16 new tokens; also the bytes of the cross-attention's keys and
  values that the cache holds at the end.

"Process" is the most resident memory of the whole process, Python, libraries and weights included; "above the model" is that
without what was resident before the step, after a warm-up on a few tokens.

    python benchmarks/memory.py
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

from side_by_side import one_thread, print_table  # first: it settles threads before torch starts

# isort: split
import torch
from peak_memory import available, measure_peak
from shapes import config_of, ours_of, theirs_of
from transformers.cache_utils import Cache

SIDES = {"transformers": theirs_of, "transduct": ours_of}
TRAINING_SHAPE, SEARCH_SHAPE = "mt5-small", "bart-base"
ROWS, SOURCE_TOKENS, BEAMS, NEW_TOKENS = 32, 32, 8, 16


def training(options: argparse.Namespace) -> dict:
    """Peak of one forward and backward pass."""
    model = SIDES[options.side](TRAINING_SHAPE, options.quick)

    def step(rows: int, source_length: int, target_length: int) -> None:
        ids, labels = torch.randint(3, 500, (rows, source_length)), torch.randint(3, 500, (rows, target_length))  # (B, S), (B, T)
        model(input_ids=ids, labels=labels).loss.backward()

    step(1, 2, 2)  # loads what is loaded late
    model.zero_grad(set_to_none=True)
    return measure_peak(lambda: step(ROWS, SOURCE_TOKENS, options.target_tokens // ROWS))


def beam_search(options: argparse.Namespace) -> dict:
    """Peak of one search, and the bytes `cross` of the cross-attention's keys and values."""
    model = SIDES[options.side](SEARCH_SHAPE, options.quick).eval()
    outputs = []

    def search(length: int, tokens: int) -> None:
        limits = {"num_beams": BEAMS, "do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens}
        ids = torch.randint(3, 500, (1, length))  # (B, S)
        mask = torch.ones_like(ids)
        outputs.append(model.generate(input_ids=ids, attention_mask=mask, return_dict_in_generate=True, **limits))

    search(4, 2)
    outputs.clear()
    result = measure_peak(lambda: search(options.source_length, NEW_TOKENS))
    return result | {"cross": held_bytes(outputs[0].cache.cross_attention_cache)}


def held_bytes(cache: Cache) -> int:
    """Bytes of the distinct storages behind a cache's keys and values."""
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


JOBS: dict[str, Callable[[argparse.Namespace], dict]] = {"training": training, "beam search": beam_search}


def in_own_process(job: str, side: str, options: argparse.Namespace) -> dict:
    """Run one measurement by calling this file again; its last line of output is the result."""
    command = [sys.executable, __file__, "--job", job, "--side", side, "--target-tokens", str(options.target_tokens)]
    command += ["--source-length", str(options.source_length)] + ["--quick"] * options.quick
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        ended = f"ended with {result.returncode}" + (", killed: too little memory?" if result.returncode == -9 else "")
        raise RuntimeError(f"{job} of {side} {ended}\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def check_memory(options: argparse.Namespace) -> None:
    """Refuse what would bring the machine to its knees.

    In backward, transformers holds the matrix of logits three times over, beside weights and gradients (three matrices each of
    the vocabulary's size), what the layers saved (about 1 MB a target) and the libraries.
    """
    config = config_of(TRAINING_SHAPE, options.quick)
    logits, weights = 3 * options.target_tokens * config.vocab_size, 6 * config.d_model * config.vocab_size
    needed = 4 * (logits + weights) + 2**20 * options.target_tokens + 2**29
    free = available()
    if free is not None and needed > free:
        raise SystemExit(f"this needs about {needed / 1e9:.0f} GB and {free / 1e9:.0f} are free: pass a smaller --target-tokens")


def rows_of(name: str, theirs: dict, ours: dict) -> list[list[str]]:
    """One table row a figure: both sides in MB, and ours as a share of theirs."""
    figures: dict[str, Callable[[dict], int]] = {
        "process": lambda found: found["peak"],
        "above the model": lambda found: found["peak"] - found["before"],
    }
    if "cross" in ours:
        figures["cross-attention keys and values"] = lambda found: found["cross"]
    return [
        [f"{name}: {figure}", f"{of(theirs) / 1e6:,.1f}", f"{of(ours) / 1e6:,.1f}", f"{of(ours) / max(1, of(theirs)):.3f}"]
        for figure, of in figures.items()
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Peak memory, against transformers.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--target-tokens", type=int, default=3072, help=f"of the training step, a multiple of {ROWS}")
    parser.add_argument("--source-length", type=int, default=1024, help="of the beam search, at most 1,024")
    parser.add_argument("--quick", action="store_true", help="tiny models: shows that it runs, its figures mean nothing")
    parser.add_argument("--job", choices=list(JOBS), help="one measurement, in this process")
    parser.add_argument("--side", choices=list(SIDES), help="whose, for --job")
    options = parser.parse_args()
    if options.target_tokens < ROWS or options.target_tokens % ROWS:
        parser.error(f"--target-tokens {options.target_tokens} must be a multiple of {ROWS}")
    if (options.job is None) != (options.side is None):
        parser.error("--job and --side go together")
    return options


def main() -> None:
    options = parse()
    one_thread()
    if options.job is not None:
        print(json.dumps(JOBS[options.job](options)))
        return
    check_memory(options)
    names = {
        "training": f"{TRAINING_SHAPE}, {options.target_tokens:,} targets",
        "beam search": f"{SEARCH_SHAPE}, {BEAMS} beams, source {options.source_length:,}",
    }
    rows = []
    for job, name in names.items():
        theirs, ours = (in_own_process(job, side, options) for side in SIDES)
        rows += rows_of(name, theirs, ours)
    print_table(f"Memory ({ours['how']})", ["what", "transformers (MB)", "transduct (MB)", "share"], rows)


if __name__ == "__main__":
    main()

"""Plain `generate` of transformers' models and ours: equal weights, one thread, the encoder's time included.

Eight sources of 32 or 512 random tokens, exactly 32 new tokens, greedy and with 4 beams. Both must produce the same ids before
anything is timed. The weights are random, so that how often beams move differs from a trained model's; the share of moves
that was seen is printed.

    python benchmarks/generate.py --rounds 5
"""

import argparse
from contextlib import contextmanager

from side_by_side import Comparison, arguments, compare, one_thread, show  # first: it settles threads before torch starts

# isort: split
import torch
from shapes import SHAPES, pair

BATCH, NEW_TOKENS, SOURCE_LENGTHS, BEAMS = 8, 32, (32, 512), (1, 4)


@contextmanager
def moved_beams(model: torch.nn.Module):
    """Counts, while open, the rows of the decoder and those whose beam was another one a step before."""
    counts = {"rows": 0, "moved": 0}
    reorder = model._reorder_cache

    def counting(cache, beam_idx):
        counts["rows"] += len(beam_idx)
        counts["moved"] += int((beam_idx != torch.arange(len(beam_idx), device=beam_idx.device)).sum())
        return reorder(cache, beam_idx)

    model._reorder_cache = counting
    try:
        yield counts
    finally:
        del model._reorder_cache


def measure(shape: str, length: int, beams: int, models, options: argparse.Namespace) -> Comparison:
    theirs, ours = models
    batch, new_tokens = (2, 4) if options.quick else (BATCH, NEW_TOKENS)
    ids = torch.randint(3, 500, (batch, length), generator=torch.Generator().manual_seed(length))  # (B, S)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    limits = {"num_beams": beams, "do_sample": False, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}
    with moved_beams(ours) as counts:
        found = ours.generate(**inputs, **limits)
    wanted = theirs.generate(**inputs, **limits)
    if not torch.equal(found, wanted):
        raise AssertionError(f"{shape}, source {length}, {beams} beams: the ids differ\n{wanted}\n{found}")
    search = "greedy" if beams == 1 else f"beam {beams} ({counts['moved'] / counts['rows']:.0%} of the beams moved)"
    return compare(
        f"{shape}, source {length}, {search}",
        lambda: theirs.generate(**inputs, **limits),
        lambda: ours.generate(**inputs, **limits),
        options.rounds,
    )


def main() -> None:
    parser = arguments("Greedy and beam search, against transformers.", SHAPES, ["marian-base", "bart-base"], rounds=5)
    options = parser.parse_args()
    one_thread()
    comparisons = []
    for shape in options.shapes:
        models = [model.eval() for model in pair(shape, tiny=options.quick)]
        for length in (4, 12) if options.quick else SOURCE_LENGTHS:
            for beams in BEAMS:
                comparisons.append(measure(shape, length, beams, models, options))
    size = "tiny" if options.quick else f"{BATCH} sources, {NEW_TOKENS} new tokens"
    show(f"generate, {size}, ids equal; ratio above 1: transduct is faster", comparisons)


if __name__ == "__main__":
    main()

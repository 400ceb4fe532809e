"""Forward and backward pass of transformers' models and ours: equal weights, shapes and dropout, one thread.

- "no padding": 32 pairs of 32 source and 32 target tokens, random ids; 2,048 tokens.
- "padded": 64 random pairs of real translations, padded to the longest on each side (labels with -100). One long pair decides
  how much padding there is, so of 101 random draws the one with median padding is taken, and, as the worst case for us, the one
  with the least.

Each side computes the loss in its own forward. Before anything is timed, both losses must agree without dropout.

    python benchmarks/train_step.py --rounds 7
"""

import argparse
import random
from itertools import chain

from side_by_side import Comparison, arguments, compare, one_thread, show  # first: it settles threads before torch starts

# isort: split
import torch
from shapes import SHAPES, pair
from translation_text import translation_pairs

from transduct import TransductTokenizer

DRAWS = 101
VOCABULARY = 8000  # of the tokenizer: all its ids exist in the vocabulary of each shape
TOLERANCE = 1e-4  # relative, between the losses; float32 sums of thousands of terms

Rows = list[list[int]]
Batch = dict[str, torch.Tensor]


def translation_draws(quick: bool) -> dict[str, tuple[Rows, Rows]]:
    """Token ids, 3 and up, of 64 random pairs: of `DRAWS` such batches the one with median padding and the one with the least."""
    name = "example" if quick else "homeassistant"
    pairs = translation_pairs(name)
    tokenizer = TransductTokenizer.train(chain.from_iterable(pairs), kind="bpe", vocab_size=300 if quick else VOCABULARY)
    sides = [tokenizer(list(side), add_special_tokens=False)["input_ids"] for side in zip(*pairs, strict=True)]
    examples = list(zip(*sides, strict=True))
    draws = [random.Random(seed).sample(examples, 3 if quick else 64) for seed in range(DRAWS)]
    draws.sort(key=padding)
    return {"padded": unzip(draws[DRAWS // 2]), "least padded": unzip(draws[0])}


def padding(pairs: list[tuple[list[int], list[int]]]) -> float:
    """Places in the padded batch for each token, an end token on both sides included."""
    lengths = [[len(row) + 1 for row in side] for side in unzip(pairs)]
    return sum(max(side) * len(side) for side in lengths) / sum(map(sum, lengths))


def unzip(pairs: list[tuple[list[int], list[int]]]) -> tuple[Rows, Rows]:
    return [source for source, _ in pairs], [target for _, target in pairs]


def even_rows(quick: bool) -> tuple[Rows, Rows]:
    rows, length = (2, 5) if quick else (32, 31)  # and the end token
    generator = torch.Generator().manual_seed(0)
    sources, targets = torch.randint(3, 500, (2, rows, length), generator=generator).tolist()
    return sources, targets


def make_batch(rows: tuple[Rows, Rows], config) -> Batch:
    """Each row with the model's end token, padded on the right."""
    sources, targets = ([torch.tensor([*row, config.eos_token_id]) for row in side] for side in rows)
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in sources], batch_first=True)  # (B, S)
    return {
        "input_ids": pad(sources, batch_first=True, padding_value=config.pad_token_id),  # (B, S)
        "attention_mask": mask,  # (B, S)
        "labels": pad(targets, batch_first=True, padding_value=-100),  # (B, T)
    }


def describe_batch(name: str, batch: Batch) -> str:
    real = int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum())
    slots = batch["input_ids"].numel() + batch["labels"].numel()
    return f"{name}: {real:,} tokens in {slots:,} places" if real < slots else f"{name}: {real:,} tokens"


def check_losses(shape: str, theirs: torch.nn.Module, ours: torch.nn.Module, batch: Batch) -> None:
    """In evaluation mode both are the same function, or the comparison means nothing."""
    with torch.no_grad():
        losses = [model.eval()(**batch).loss.item() for model in (theirs, ours)]
    if abs(losses[0] - losses[1]) > TOLERANCE * abs(losses[0]):
        raise AssertionError(f"{shape}: transformers' loss is {losses[0]}, ours {losses[1]}: these are not the same model")
    theirs.train()
    ours.train()


def step(model: torch.nn.Module, batch: Batch) -> None:
    model.zero_grad(set_to_none=True)
    model(**batch).loss.backward()


def measure(shape: str, rows: dict[str, tuple[Rows, Rows]], options: argparse.Namespace) -> list[Comparison]:
    theirs, ours = pair(shape, tiny=options.quick)
    comparisons = []
    for name, texts in rows.items():
        batch = make_batch(texts, ours.config)
        check_losses(shape, theirs, ours, batch)
        title = f"{shape}, {describe_batch(name, batch)}"
        comparisons.append(
            compare(title, lambda batch=batch: step(theirs, batch), lambda batch=batch: step(ours, batch), options.rounds)
        )
        for model in (theirs, ours):
            model.zero_grad(set_to_none=True)
    return comparisons


def main() -> None:
    options = arguments(
        "Forward and backward, against transformers.", SHAPES, ["t5-small", "bart-base", "marian-base"]
    ).parse_args()
    one_thread()
    rows = {"no padding": even_rows(options.quick), **translation_draws(options.quick)}
    comparisons = [item for shape in options.shapes for item in measure(shape, rows, options)]
    show("Training step, losses equal without dropout; ratio above 1: transduct is faster", comparisons)


if __name__ == "__main__":
    main()

"""Which architecture learns pronunciation best: norms, positions, and the structures of T5's comparison (arXiv 1910.10683, 3.2).

One task, English words to phones (CMUdict, see examples/g2p/data.py), and the same batches for every run. Compared are

- pre-norm against post-norm;
- sinusoidal, learned, relative-bias and rotary positions;
- an encoder-decoder against a prefix-LM and a decoder-only model, as in T5's section 3.2.2: a decoder of 2 L layers has about the
  parameters of L + L layers, at twice their operations; it has about the operations of 2 L + 2 L layers, at half the parameters.
  A decoder alone reads the word, then writes the phones; its loss is that of the phones. The prefix-LM sees the whole word.

    python examples/architectures/compare.py                # a quarter of an hour on one core: 8 models, three seeds
    python examples/architectures/compare.py --steps 4000   # a longer one

A stopped comparison goes on with the same command. Errors are of greedy outputs on validation words, as mean ± standard deviation
over the seeds.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, set_seed

sys.path.insert(0, str(Path(__file__).parents[1]))
from comparison import Quiet, Result, Results, batches, load_file, padded, spread, table

from transduct import TransductForCausalLM, TransductForConditionalGeneration, config_from_preset, describe
from transduct.training import TransductTrainer, TransductTrainingArguments
from transduct.training.metrics import sequence_error, token_error

pronunciations = load_file(Path(__file__).parents[1] / "g2p" / "data.py").pronunciations
PAD, END = 0, 1
LAYERS = 2
"""L of the docstring: layers of each stack of the small encoder-decoder."""
MODELS: dict[str, dict[str, Any]] = {
    "encoder-decoder, 2 + 2 layers": {},
    "post-norm": dict(norm_position="post"),
    "learned positions": dict(positions="learned"),
    "relative bias": dict(positions="relative_bias"),
    "rotary positions": dict(positions="rotary"),
    "encoder-decoder, 4 + 4 layers": dict(encoder_layers=2 * LAYERS, decoder_layers=2 * LAYERS),
    "prefix-LM, 4 layers": dict(structure="prefix_lm", decoder_layers=2 * LAYERS),
    "decoder-only, 4 layers": dict(structure="causal_lm", decoder_layers=2 * LAYERS),
}
"""What differs from the first: pre-norm, sinusoidal positions."""
GROUPS = {
    "norm": {"pre-norm": "encoder-decoder, 2 + 2 layers", "post-norm": "post-norm"},
    "positions": {
        "sinusoidal": "encoder-decoder, 2 + 2 layers",
        "learned": "learned positions",
        "relative bias": "relative bias",
        "rotary": "rotary positions",
    },
    "structure": {name: name for name in MODELS if "layers" in name},
}


class Words:
    """Words and phones in one vocabulary of ids; 0 pads, 1 ends a text."""

    def __init__(self, train: int, validation: int):
        self.train = self._read("train", train)
        self.validation = self._read("validation", validation)
        symbols = sorted({symbol for word, _, phones in self.train for symbol in (*word, *phones)})
        self.ids = {symbol: i for i, symbol in enumerate(symbols, start=2)}
        self.symbols = {i: symbol for symbol, i in self.ids.items()}
        self.validation = [entry for entry in self.validation if set(entry[0]) <= set(self.ids)]

    @staticmethod
    def _read(split: str, most: int) -> list[tuple[str, list[str], list[str]]]:
        """Word, its pronunciations, and the phones of the first."""
        rows = []
        for word, accepted in pronunciations(split):
            rows.append((word, accepted, accepted[0].split()))
            if len(rows) == most:
                break
        return rows

    @property
    def size(self) -> int:
        return len(self.ids) + 2

    def encode(self, symbols: Sequence[str]) -> list[int]:
        return [*(self.ids[symbol] for symbol in symbols), END]

    def decode(self, ids: Sequence[int]) -> str:
        """Phones up to the end, apart by spaces."""
        ids = list(ids)
        return " ".join(self.symbols.get(i, "") for i in ids[: ids.index(END)] if i != PAD) if END in ids else ""

    def examples(self, structure: str) -> Dataset:
        """Training examples: two sides, or both in one text."""
        pairs = [(self.encode(word), self.encode(phones)) for word, _, phones in self.train]
        if structure == "encoder_decoder":
            return Dataset.from_list([{"input_ids": source, "labels": target} for source, target in pairs])
        return Dataset.from_list([{
            "input_ids": source + target,
            "labels": [-100] * len(source) + target,
            "prefix_mask": [structure == "prefix_lm"] * len(source) + [False] * len(target),
        } for source, target in pairs])  # fmt: skip


def collate(rows: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """One batch; a text is padded on the right."""
    batch = {
        "input_ids": padded([row["input_ids"] for row in rows], PAD),
        "labels": padded([row["labels"] for row in rows], -100),
    }
    batch["attention_mask"] = padded([[1] * len(row["input_ids"]) for row in rows], 0)
    if "prefix_mask" in rows[0]:
        batch["prefix_mask"] = padded([row["prefix_mask"] for row in rows], 0).bool()
    return batch


def build(changes: dict[str, Any], words: Words, width: int) -> tuple[Any, str]:
    """The model and its structure."""
    changes = dict(changes)
    structure = changes.pop("structure", "encoder_decoder")
    sizes = dict(vocab_size=words.size, d_model=width, d_ff=4 * width, num_heads=4, encoder_layers=LAYERS, decoder_layers=LAYERS)
    tokens = dict(pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD, max_positions=96)
    options = dict(norm_position="pre", dropout=0.0, label_smoothing=0.0)
    config = config_from_preset("vaswani-base", **{**sizes, **tokens, **options, **changes})
    return (TransductForConditionalGeneration if structure == "encoder_decoder" else TransductForCausalLM)(config), structure


def train(model: Any, examples: Dataset, options: argparse.Namespace, seed: int) -> float:
    """Train and return the last loss."""
    quiet = Quiet()
    with TemporaryDirectory() as folder:
        arguments = TransductTrainingArguments(
            output_dir=folder, max_steps=options.steps, per_device_train_batch_size=options.batch, learning_rate=options.rate,
            schedule="inverse_sqrt", warmup_steps=max(1, options.steps // 10), cooldown=0.5, adam_beta2=0.98, seed=seed,
            use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", logging_steps=max(1, options.steps // 10),
        )  # fmt: skip
        trainer = TransductTrainer(model, arguments, train_dataset=examples, data_collator=collate, callbacks=[quiet])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return quiet.loss


@torch.inference_mode()
def outputs(model: Any, structure: str, words: Words) -> list[str]:
    """Greedy pronunciations of the validation words."""
    model.eval()
    sources = [words.encode(word) for word, _, _ in words.validation]
    found = []
    for rows in batches(len(sources), 250):
        alone = structure != "encoder_decoder"
        ids = padded(sources[rows], PAD, left=alone)
        batch = {"input_ids": ids, "attention_mask": padded([[1] * len(row) for row in sources[rows]], 0, left=alone)}
        if structure == "prefix_lm":
            batch["prefix_mask"] = batch["attention_mask"].bool()
        written = model.generate(**batch, max_new_tokens=40, do_sample=False)
        found += [words.decode(row) for row in (written[:, ids.shape[1] :] if alone else written[:, 1:]).tolist()]
    return found


def multiply_adds(model: Any, structure: str, source: int = 9, target: int = 8) -> int:
    """One forward pass of a pair of usual length; the head of a decoder alone sees the target only."""
    described = describe(model)
    if structure == "encoder_decoder":
        return described.multiply_adds(source, target)
    length = source + target
    layers = length * described.multiply_adds_per_target_token + described.attention_multiply_adds(0, length)
    return layers + target * described.output_multiply_adds_per_target_token


def measure(name: str, seed: int, words: Words, options: argparse.Namespace) -> Result:
    """One run: a model from scratch, trained and measured."""
    set_seed(seed)
    model, structure = build(MODELS[name], words, options.width)
    started = time.monotonic()
    loss = train(model, words.examples(structure), options, seed)
    seconds = time.monotonic() - started
    found, accepted = outputs(model, structure, words), [entry[1] for entry in words.validation]
    return {
        "phoneme error": 100 * token_error(found, accepted),
        "word error": 100 * sequence_error(found, accepted),
        "loss": loss,
        "seconds": seconds,
        "parameters": model.num_parameters(),
        "multiply-adds": multiply_adds(model, structure),
    }


def report(results: dict[str, list[Result]]) -> str:
    """The table: a heading for each question, a row for each answer."""
    rows: list[list[str]] = []
    for group, members in GROUPS.items():
        rows.append([group])
        for shown, name in members.items():
            runs = results[name]
            rows.append([
                f"  {shown}", f"{runs[0]['parameters']:,}", f"{runs[0]['multiply-adds'] / 1e6:.2f}",
                *(spread([run[key] for run in runs]) for key in ("phoneme error", "word error", "loss")),
            ])  # fmt: skip
    return table(["", "parameters", "M multiply-adds", "phoneme error, %", "word error, %", "training loss"], rows)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800, help="updates of each run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model (%(default)s)")
    parser.add_argument("--width", type=int, default=64, help="d_model (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="words a step (%(default)s)")
    parser.add_argument("--rate", type=float, default=5e-3, help="peak learning rate (%(default)s)")
    parser.add_argument("--words", type=int, default=40_000, help="training words (%(default)s)")
    parser.add_argument("--validation", type=int, default=1_000, help="words that are measured (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("runs/architectures.json"), help="(%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    settings = {name: value for name, value in vars(options).items() if name not in ("seeds", "results")}
    kept, words = Results(options.results, settings), Words(options.words, options.validation)
    torch.set_num_threads(1)
    found: dict[str, list[Result]] = {name: [] for name in MODELS}
    for seed in range(1, options.seeds + 1):
        for name, runs in found.items():
            runs.append(kept.get(f"{name}, seed {seed}", lambda name=name, seed=seed: measure(name, seed, words, options)))
    print(f"\n{options.steps} steps of {options.batch} words, {options.seeds} seeds, {len(words.validation)} validation words\n")
    print(report(found))


if __name__ == "__main__":
    main()

"""transduct against transformers' Marian: the same shape, text, tokenizer, number of steps and target tokens a step.

transduct trains with batches by token budget, Marian with `Seq2SeqTrainer`, its length grouping and as many pairs a batch as give
the same mean number of target tokens (`--plain`: its default sampling). Both have the paper's Adam and the same learning rates,
dropout and label smoothing. Each translates greedily at intervals, while its clock stands still. The table has BLEU and chrF
(sacreBLEU) on the test set, and the seconds of training after which the BLEU of the weaker of the two was reached.

    python examples/translation/compare.py                      # about half an hour on one core
    python examples/translation/compare.py --text libreoffice --steps 8000

A stopped comparison goes on with the run that is missing.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    MarianConfig,
    MarianMTModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from comparison import Result, Results, batches, load_file, spread, table

from transduct import TransductForConditionalGeneration, TransductTokenizer, config_from_preset
from transduct.training import Seq2SeqCollator, TokenBudgetBatchSampler, TransductTrainer, TransductTrainingArguments
from transduct.training.metrics import bleu, chrf

data = load_file(Path(__file__).with_name("data.py"))
MODELS = ("transduct", "Marian")
LONGEST = 100
"""Tokens of a side; longer pairs are left out of training."""


class Corpus:
    """A text with its tokenizer: training pairs as ids, and texts to measure."""

    def __init__(self, pairs: dict[str, list[tuple[str, str]]], vocabulary: int, measured: int):
        sides = [side for pair in pairs["train"] for side in pair]
        self.tokenizer: Any = TransductTokenizer.train(iter(sides), kind="bpe", vocab_size=vocabulary)
        sources, targets = zip(*pairs["train"], strict=True)
        encoded = self.tokenizer(list(sources), text_target=list(targets))
        rows = zip(encoded["input_ids"], encoded["labels"], strict=True)
        kept = [{"input_ids": s, "labels": t} for s, t in rows if max(len(s), len(t)) <= LONGEST]
        self.train = Dataset.from_list(kept)
        self.validation, self.test = pairs["validation"][:measured], pairs["test"]
        lengths = [(len(row["input_ids"]), len(row["labels"])) for row in kept]
        self.source_lengths, self.target_lengths = map(list, zip(*lengths, strict=True))

    def targets_per_step(self, budget: int) -> float:
        """Target tokens of a batch with the token budget, on average."""
        return sum(self.target_lengths) / len(TokenBudgetBatchSampler(self.source_lengths, self.target_lengths, budget))


class Clock(TrainerCallback):
    """Counts seconds of training, and measures BLEU at intervals while it stands still."""

    def __init__(self, corpus: Corpus, every: int):
        self.corpus, self.every = corpus, every
        self.seconds, self.targets = 0.0, 0
        self.curve: list[tuple[float, float]] = []
        self._since = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self._since = time.monotonic()

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every and state.global_step < state.max_steps:
            return
        self.seconds += time.monotonic() - self._since
        sources, references = zip(*self.corpus.validation, strict=True)
        score = bleu(translate(model, self.corpus.tokenizer, sources), list(references))
        self.curve.append((self.seconds, score))
        print(f"  step {state.global_step:,}, {self.seconds:.0f} s: BLEU {score:.2f}", flush=True)
        model.train()
        self._since = time.monotonic()


@torch.inference_mode()
def translate(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Greedy translations, in the order of the texts."""
    model.eval()
    sources = tokenizer(list(texts))["input_ids"]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    collate, found = Seq2SeqCollator(tokenizer), [""] * len(sources)
    for part in batches(len(order), 64):
        batch = collate([{"input_ids": sources[i]} for i in order[part]])
        ids = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=LONGEST)
        for i, text in zip(order[part], tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            found[i] = text.strip()
    return found


def build(name: str, corpus: Corpus, width: int, layers: int) -> Any:
    """The same shape from either library: post-norm, ReLU, sinusoids, tied and scaled embeddings."""
    tokenizer = corpus.tokenizer
    tokens = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    if name == "transduct":
        sizes = dict(vocab_size=len(tokenizer), d_model=width, d_ff=4 * width, num_heads=4, max_positions=256)
        both = dict(encoder_layers=layers, decoder_layers=layers, decoder_start_token_id=tokenizer.pad_token_id)
        return TransductForConditionalGeneration(config_from_preset("vaswani-base", **sizes, **both, **tokens))
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": layers, f"{side}_ffn_dim": 4 * width, f"{side}_attention_heads": 4}
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=width, activation_function="relu", scale_embedding=True, dropout=0.1,
        max_position_embeddings=256, decoder_start_token_id=tokenizer.pad_token_id, forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True, **sides, **tokens,
    )  # fmt: skip
    return MarianMTModel(config)


def make_trainer(name: str, corpus: Corpus, options: argparse.Namespace, seed: int, folder: str) -> Any:
    """The trainer of a model, with as many target tokens a step for both."""
    model = build(name, corpus, options.width, options.layers)
    common: dict[str, Any] = dict(
        output_dir=folder, max_steps=options.steps, learning_rate=options.rate, warmup_steps=options.warmup, adam_beta2=0.98,
        adam_epsilon=1e-9, max_grad_norm=1.0, seed=seed, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no",
        logging_steps=max(1, options.steps // 5),
    )  # fmt: skip
    if name == "transduct":
        arguments = TransductTrainingArguments(**common, schedule="inverse_sqrt", max_tokens_per_batch=options.tokens)
        kind = TransductTrainer
    else:
        pairs = corpus.targets_per_step(options.tokens) / statistics.fmean(corpus.target_lengths)
        sampling = "random" if options.plain else "group_by_length"
        arguments = Seq2SeqTrainingArguments(
            **common, lr_scheduler_type="inverse_sqrt", label_smoothing_factor=0.1, per_device_train_batch_size=round(pairs),
            train_sampling_strategy=sampling,
        )  # fmt: skip
        kind = Seq2SeqTrainer
    collator = Seq2SeqCollator(corpus.tokenizer, model=model)
    trainer = kind(model, arguments, train_dataset=corpus.train, data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    return trainer


def measure(name: str, corpus: Corpus, options: argparse.Namespace, seed: int) -> Result:
    """Train one model and measure it."""
    set_seed(seed)
    clock = Clock(corpus, options.every)
    with TemporaryDirectory() as folder:
        trainer = make_trainer(name, corpus, options, seed, folder)
        trainer.add_callback(clock)
        trainer.train()
    sources, references = zip(*corpus.test, strict=True)
    found = translate(trainer.model, corpus.tokenizer, sources)
    return {
        "bleu": bleu(found, list(references)),
        "chrf": chrf(found, list(references)),
        "seconds": clock.seconds,
        "curve": clock.curve,
        "parameters": trainer.model.num_parameters(only_trainable=True),  # Marian counts its sinusoids otherwise
        "pairs per step": trainer.state.epoch * len(corpus.train) / options.steps,
    }


def seconds_to(score: float, curve: Sequence[Sequence[float]]) -> float | None:
    """When a curve of (seconds, BLEU) reaches a score first, in a straight line between its points; None: never."""
    before = (0.0, 0.0)
    for seconds, reached in curve:
        if reached >= score:
            share = (score - before[1]) / (reached - before[1]) if reached > before[1] else 1.0
            return before[0] + share * (seconds - before[0])
        before = (seconds, reached)
    return None


def report(results: dict[str, list[Result]]) -> str:
    """One row a model; times are those to the lower of the two best BLEUs of a seed."""
    times: dict[str, list[float]] = {name: [] for name in results}
    for runs in zip(*results.values(), strict=True):
        score = min(max(point[1] for point in run["curve"]) for run in runs)
        for name, run in zip(results, runs, strict=True):
            times[name].append(seconds_to(score, run["curve"]) or float("nan"))
    rows = [
        [name, f"{runs[0]['parameters']:,}", *(spread([run[key] for run in runs]) for key in ("bleu", "chrf")),
         spread([run["seconds"] for run in runs], 0), spread(times[name], 0)]
        for name, runs in results.items()
    ]  # fmt: skip
    return table(["", "parameters", "BLEU", "chrF", "seconds in all", "seconds to the same BLEU"], rows)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", choices=["homeassistant", "libreoffice", "example"], default="homeassistant",
                        help="see data.py; example: a few pairs, to try the command (%(default)s)")  # fmt: skip
    parser.add_argument("--steps", type=int, default=3000, help="updates of each model (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each model (%(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="source and target tokens of transduct's batches (%(default)s)")
    parser.add_argument("--every", type=int, default=300, help="steps between two measurements (%(default)s)")
    parser.add_argument("--measured", type=int, default=200, help="validation pairs that are translated then (%(default)s)")
    parser.add_argument("--width", type=int, default=128, help="d_model (%(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="of each stack (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="shared BPE pieces (%(default)s)")
    parser.add_argument("--rate", type=float, default=7e-4, help="peak learning rate (%(default)s)")
    parser.add_argument("--warmup", type=int, default=400, help="steps up to it (%(default)s)")
    parser.add_argument("--plain", action="store_true", help="Marian with the default sampling instead of length grouping")
    parser.add_argument("--results", type=Path, default=Path("runs/translation-compare.json"), help="(%(default)s)")
    return parser.parse_args(arguments)


def read_pairs(text: str) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each split."""
    if text == "example":
        few = load_file(Path(__file__).parents[2] / "benchmarks" / "translation_text.py").translation_pairs("example")
        return {"train": few * 8, "validation": few, "test": few}
    return {
        split: list({"homeassistant": data.homeassistant, "libreoffice": data.libreoffice}[text](split)) for split in data.SPLITS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    settings = {name: value for name, value in vars(options).items() if name not in ("seeds", "results")}
    kept = Results(options.results, settings)
    torch.set_num_threads(1)
    corpus = Corpus(read_pairs(options.text), options.vocabulary, options.measured)
    found: dict[str, list[Result]] = {name: [] for name in MODELS}
    for seed in range(1, options.seeds + 1):
        for name, runs in found.items():
            runs.append(kept.get(f"{name}, seed {seed}", lambda name=name, seed=seed: measure(name, corpus, options, seed)))
    targets = corpus.targets_per_step(options.tokens)
    print(f"\n{options.text}: {len(corpus.train):,} training pairs, {len(corpus.test):,} test pairs")
    print(f"{options.steps:,} steps of about {targets:,.0f} target tokens\n")
    print(report(found))


if __name__ == "__main__":
    main()

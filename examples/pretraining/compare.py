"""What pre-training is worth: span corruption and BART's noise against a start from scratch, at equal fine-tuning.

The text are the docstrings of installed packages (see data.py). Two models of one shape are pre-trained, by T5's span corruption
(arXiv 1910.10683, section 3.1.4) and by BART's infilling and permutation (arXiv 1910.13461, section 2.2). Both, and one with new
weights, then learn the same tasks in the same number of steps on the same batches: to name the small words that a sentence has
lost, which asks for what they mean, and to put capitals and marks back into a sentence, which is mostly copying. The tables have
the loss per token and the share of wrong words or chrF, on docstrings of files that no run has seen, mean and standard deviation
of three fine-tunings.

    python examples/pretraining/compare.py                                  # some forty minutes on one core
    python examples/pretraining/compare.py --tasks summaries --pretraining-steps 20000

A third task, to write the first sentence of a docstring from what follows it, needs far more of both.

A stopped comparison goes on where it was: each part is a run of `transduct train` in a folder of its own.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))
from comparison import Result, Results, spread, table

from transduct.training.checkpoints import list_checkpoints
from transduct.training.recipe import build_recipe
from transduct.training.run import run

STARTS = {"from scratch": None, "span corruption": "span_corruption", "BART": "bart"}
"""What the fine-tuning starts from: the objective of a pre-training, or none."""
TASKS = {"gaps": ("word error", "token_error", 3), "corrections": ("chrF", "chrf", 2), "summaries": ("chrF", "chrf", 2)}
"""Functions of data.py -> what is measured: its name in the table and in `transduct.training.metrics`, and its digits."""


class Comparison:
    """The runs of a comparison, in folders below `options.output`."""

    def __init__(self, options: argparse.Namespace):
        self.options = options

    def pretrain(self, objective: str) -> Path:
        """The folder of a pre-trained model."""
        options = self.options
        folder = options.output / objective
        documents = {"function": "data.py:documents"}
        training = dict(
            max_steps=options.pretraining_steps, per_device_train_batch_size=options.batch, learning_rate=options.rate
        )
        self._run({
            "output": str(folder),
            "model": self.model(),
            "tokenizer": dict(kind="bpe", vocab_size=options.vocabulary, extra_ids=60, mask_token="<mask>", texts=10_000),
            "objective": {"name": objective, "inputs_length": options.length},
            "data": {"train": {**documents, "arguments": self.arguments("train", options.documents)}, "buffer_rows": 2048},
            "training": {**training, **self.schedule(options.pretraining_steps), "seed": 1},
        })  # fmt: skip
        return folder

    def finetune(self, name: str, task: str, seed: int) -> Result:
        """The figures of a fine-tuned model."""
        options, objective = self.options, STARTS[name]
        folder = options.output / f"{name.replace(' ', '-')}-{task}-{seed}"
        vocabulary = self.pretrain("span_corruption") / "tokenizer"  # the same for all
        start = self.model() if objective is None else {"from_pretrained": str(self.pretrain(objective) / "model")}
        data = {"function": f"data.py:{task}"}
        steps, pairs = options.steps, {"train": options.pairs, "validation": options.measured, "test": options.measured}
        self._run({
            "output": str(folder),
            "model": start,
            "tokenizer": {"from_pretrained": str(vocabulary)},
            "data": {split: {**data, "arguments": self.arguments(split, most)} for split, most in pairs.items()},
            "training": dict(
                max_steps=steps, per_device_train_batch_size=options.batch, learning_rate=options.finetuning_rate,
                eval_strategy="steps", eval_steps=steps, predict_with_generate=False, seed=seed, **self.schedule(steps),
            ),
            "evaluation": dict(metrics={"score": TASKS[task][1]}, num_beams=1, samples=3, batch_size=32),
        })  # fmt: skip
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["metrics"]
        state = json.loads((list_checkpoints(folder / "checkpoints")[-1] / "trainer_state.json").read_text(encoding="utf-8"))
        losses = [row["eval_loss"] for row in state["log_history"] if "eval_loss" in row]
        return {"loss": losses[-1], "score": metrics["score"]}

    def model(self) -> dict[str, Any]:
        """The Transformer's shape, made small, norms before the layers: its positions let it learn early to copy a source."""
        width, layers = self.options.width, self.options.layers
        sizes = dict(d_model=width, d_ff=4 * width, num_heads=width // 32, encoder_layers=layers, decoder_layers=layers)
        return dict(preset="vaswani-base", **sizes, norm_position="pre", max_positions=512, dropout=0.0, label_smoothing=0.0)

    def arguments(self, split: str, most: int | None) -> dict[str, Any]:
        """Arguments of a function of data.py."""
        return {"split": split, "most": most, "packages": self.options.packages}

    @staticmethod
    def schedule(steps: int) -> dict[str, Any]:
        """The same curve for every run, over its steps."""
        return dict(
            schedule="inverse_sqrt", warmup_steps=max(1, steps // 10), cooldown=0.5, adam_beta2=0.98, use_cpu=True,
            save_seconds=60, save_total_limit=1, logging_steps=max(1, steps // 20),
        )  # fmt: skip

    def _run(self, raw: dict[str, Any]) -> None:
        if (Path(raw["output"]) / "training_report.html").is_file():
            return
        print(f"{raw['output']} ...", flush=True)
        recipe = build_recipe({**raw, "threads": 1})
        recipe.folder = Path(__file__).parent
        outcome = run(recipe, console=Console(quiet=True))
        if not outcome.finished:
            raise SystemExit(128 + (outcome.signal or 0))


def report(results: dict[str, list[Result]], task: str) -> str:
    """One row a start."""
    name, _, digits = TASKS[task]
    rows = [
        [start, *(spread([run[key] for run in runs], places) for key, places in (("loss", 3), ("score", digits)))]
        for start, runs in results.items()
    ]
    return table([f"{task}, after", "validation loss per token", f"{name}, test"], rows)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["gaps", "corrections"],
                        help="what is learnt, see data.py (%(default)s)")  # fmt: skip
    parser.add_argument("--pretraining-steps", type=int, default=4000, help="updates of each pre-training (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="updates of each fine-tuning (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="fine-tunings of each start (%(default)s)")
    parser.add_argument("--width", type=int, default=128, help="d_model, a multiple of 32 (%(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="of each stack (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=4000, help="BPE pieces (%(default)s)")
    parser.add_argument("--length", type=int, default=96, help="tokens of a pre-training input (%(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="texts a step (%(default)s)")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate of the pre-training (%(default)s)")
    parser.add_argument("--finetuning-rate", type=float, default=1e-3, help="peak learning rate of the fine-tuning (%(default)s)")
    parser.add_argument("--documents", type=int, default=None, help="most documents to pre-train on (all)")
    parser.add_argument("--pairs", type=int, default=None, help="most texts to fine-tune on (all)")
    parser.add_argument("--measured", type=int, default=500, help="texts that are measured (%(default)s)")
    parser.add_argument(
        "--packages", nargs="+", default=["numpy", "torch", "transformers"], help="whose docstrings (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/pretraining"), help="folder of the runs (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    settings = {name: value for name, value in vars(options).items() if name not in ("seeds", "output", "tasks")}
    kept, comparison = Results(options.output / "results.json", settings), Comparison(options)

    def figures(*run: Any) -> Result:
        return kept.get(", ".join(map(str, run)), lambda: comparison.finetune(*run))

    seeds = range(1, options.seeds + 1)
    found = {task: {name: [figures(name, task, seed) for seed in seeds] for name in STARTS} for task in options.tasks}
    print(f"\n{options.pretraining_steps:,} steps of pre-training, {options.steps:,} of fine-tuning, {options.seeds} times each")
    for task, results in found.items():
        print(f"\n{report(results, task)}")


if __name__ == "__main__":
    main()

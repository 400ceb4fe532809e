"""Predictions of an evaluation as a file of JSON lines, and the metrics that are computed from it.

A line reads `{"index": 0, "source": "...", "prediction": "...", "references": ["...", ...]}`; the lines are in the order of the
data set, one for each row. The file has its name once it is whole.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import EvalPrediction, TrainingArguments

from transduct.files import naming
from transduct.training.metrics import METRICS


@dataclass
class TextMetrics:
    """`compute_metrics` for a trainer that generates: metrics of texts against references.

    `TransductTrainer` streams an evaluation's predictions through `folder`; any other trainer calls it with all predictions.

    Args:
        tokenizer: decodes the predictions.
        references: for each row of the evaluated data set its reference, or the references that are all right.
        metrics: names to report -> names of `METRICS`.
        folder: where the files of predictions are kept, `STEP.jsonl`; None: in `predictions` in the trainer's `output_dir`.
        sources: for each row its source, to be written beside the prediction.
        first_token: that every output begins with (`forced_bos_token_id`), such as that of the language to be written; acts
            in `TransductTrainer`. None: as the model's generation config says.
        start_token: that the decoder starts from (`decoder_start_token_id`), likewise.
    """

    tokenizer: Any
    references: Sequence[str | Sequence[str]]
    metrics: Mapping[str, str]
    folder: str | Path | None = None
    sources: Sequence[str] | None = None
    first_token: int | None = None
    start_token: int | None = None

    def __post_init__(self):
        for name, metric in self.metrics.items():
            if metric not in METRICS:
                raise ValueError(f"metrics: {name}={metric!r} is unknown; choose one of {', '.join(METRICS)}")

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        texts = self.tokenizer.batch_decode(prediction.predictions, skip_special_tokens=True)
        return self.measured(texts, self.references)

    def measured(self, texts: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict[str, float]:
        return {name: METRICS[metric](texts, references) for name, metric in self.metrics.items()}

    def file(self, name: str, args: TrainingArguments) -> "PredictionFile":
        """A new file of this name, or ValueError if the rows would not come in the order of the references."""
        if getattr(args, "train_sampling_strategy", None) == "group_by_length":
            raise ValueError(
                "train_sampling_strategy='group_by_length' changes the order of the evaluation too, so that predictions would "
                "not meet their references: use max_tokens_per_batch instead"
            )
        folder = Path(args.output_dir) / "predictions" if self.folder is None else Path(self.folder)
        return PredictionFile(self, folder / f"{name}.jsonl")


class PredictionFile:
    """Predictions of one evaluation; written by the main process only."""

    def __init__(self, metrics: TextMetrics, path: Path):
        self.metrics, self.path = metrics, path
        self.rows = 0

    @property
    def unfinished(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    def decode(self, ids: torch.Tensor) -> list[str]:
        """Texts of generated ids (rows, T)."""
        return self.metrics.tokenizer.batch_decode(ids, skip_special_tokens=True)

    def add(self, texts: Sequence[str]) -> None:
        """Append the predictions of the next rows; where that fails, nothing of the file is left."""
        try:
            self._append(texts)
        except BaseException:
            self.unfinished.unlink(missing_ok=True)
            raise
        self.rows += len(texts)

    def _append(self, texts: Sequence[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        references, sources = self.metrics.references, self.metrics.sources
        with naming(self.path), self.unfinished.open("a" if self.rows else "w", encoding="utf-8") as file:
            for index, text in enumerate(texts, start=self.rows):
                if index >= len(references):
                    raise ValueError(f"row {index} of the evaluated data set has no reference: there are {len(references)}")
                accepted = references[index]
                row = {"index": index, **({} if sources is None else {"source": sources[index]}), "prediction": text}
                row["references"] = [accepted] if isinstance(accepted, str) else list(accepted)
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def measured(self) -> dict[str, float]:
        """The metrics of what was written, as numbers that are the same for whoever reads the file; it gets its name."""
        if self.rows != len(self.metrics.references):
            self.unfinished.unlink(missing_ok=True)
            raise ValueError(f"{self.rows} rows were predicted, but there are {len(self.metrics.references)} references")
        texts, references = read_predictions(self.unfinished)
        self.unfinished.replace(self.path)
        return self.metrics.measured(texts, references)


def read_predictions(path: str | Path) -> tuple[list[str], list[list[str]]]:
    """Predictions and their references from a file of `PredictionFile`."""
    texts, references = [], []
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            texts.append(row["prediction"])
            references.append(row["references"])
    return texts, references

"""What transformers' evaluation loop gets wrong for sequences, put right around it.

- The loss is per target token over the whole data set. The loop's own is a mean over batches, which depends on their size.
- Predicted ids hold no -100: rows of different length are filled with the padding token, so that they can be decoded.
- Labels keep their -100.
- The model's `generation_config` stays as it was. `Seq2SeqTrainer` writes the library's defaults into it after the first
  batch, among them a length of 20 tokens at which all later batches would be cut.
- Every row counts once. Where several processes share a data set that they cannot divide evenly, its first rows come again at
  the end, as padding; they weigh nothing here, and no prediction of theirs is kept.
- With `TextMetrics`, predictions go to a file batch by batch and the metrics are computed from it: nothing is collected whole.
- A model that is evaluated before it is trained is still wrapped for training. Accelerate marks it as prepared, and each of
  several processes would then train a model of its own.
"""

import copy
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import EvalPrediction
from transformers.trainer_pt_utils import find_batch_size, nested_truncate
from transformers.trainer_utils import EvalLoopOutput, has_length

from transduct.loss import IGNORE_INDEX
from transduct.training.predictions import PredictionFile, TextMetrics
from transduct.training.processes import decided_by_main


class RowCount:
    """Which rows of an evaluation this process has, and which of them are padding.

    Step by step, the processes take one batch each: the rows of a step are those of the first process, then of the second, and
    so on, in the order of the data set; what goes beyond its length is padding.
    """

    def __init__(self, accelerator: Any, dataset: Any):
        self.accelerator = accelerator
        self.total = len(dataset) if dataset is not None and has_length(dataset) else None
        self.taken = self.kept = 0  # rows of all processes up to now, with and without padding
        self.step = (1, 1)  # of the last step, rows without padding and all rows

    def take(self, rows: int) -> int:
        """Note a batch of so many rows in each process, and say how many of this process's are not padding."""
        whole, process = rows * self.accelerator.num_processes, self.accelerator.process_index
        real = whole if self.total is None else min(whole, max(0, self.total - self.taken))
        state = self.accelerator.gradient_state
        if self.total is None and state.end_of_dataloader and state.remainder > 0 and self.accelerator.num_processes > 1:
            real = min(whole, state.remainder)
        self.taken, self.kept, self.step = self.taken + whole, self.kept + real, (real, whole)
        return min(rows, max(0, real - process * rows))

    def without_padding(self, arrays: Any, of_step: bool = False) -> Any:
        """Arrays (rows x any number for each) of all processes without their last rows, if these are padding."""
        kept, whole = self.step if of_step else (self.kept, self.taken)
        if arrays is None or kept == whole:
            return arrays
        if isinstance(arrays, list):  # eval_do_concat_batches=False: padding is in the last batch
            return [*arrays[:-1], self.without_padding(arrays[-1], of_step=True)]
        return nested_truncate(arrays, find_batch_size(arrays) * kept // whole)


class ExactEvaluation:
    """Used as a context around a trainer's inherited evaluation loop, whose steps and metrics then pass through here."""

    def __init__(self, trainer: Any, dataset: Any = None, stream: str | None = None):
        """`dataset` is what is evaluated; with a name for it in `stream`, `TextMetrics` write predictions to a file."""
        self.trainer = trainer
        self.step, self.metrics = trainer.prediction_step, trainer.compute_metrics
        self.generation_config = trainer.model.generation_config if trainer.args.predict_with_generate else None
        self.totals = torch.zeros(2, dtype=torch.float64)  # loss summed over targets, number of targets
        self.rows = RowCount(trainer.accelerator, dataset)
        self.file: PredictionFile | None = None
        if isinstance(self.metrics, TextMetrics) and self.generation_config is None:
            raise ValueError("compute_metrics measures texts, so it needs predict_with_generate=True")
        if stream is not None and isinstance(self.metrics, TextMetrics) and not trainer.args.prediction_loss_only:
            self.file = self.metrics.file(stream, trainer.args)

    def __enter__(self) -> "ExactEvaluation":
        vars(self.trainer)["prediction_step"] = self.counted_step
        if self.metrics is not None:
            self.trainer.compute_metrics = self.decodable_metrics
        return self

    def __exit__(self, *_: object) -> None:
        del vars(self.trainer)["prediction_step"]
        self.trainer.compute_metrics = self.metrics
        if self.generation_config is not None:
            self.trainer.model.generation_config = self.generation_config
        sharded = self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled  # these are prepared for both at once
        if self.trainer.accelerator.num_processes > 1 and not sharded and self.trainer.model_wrapped is self.trainer.model:
            vars(self.trainer.model).pop("_is_accelerate_prepared", None)

    def counted_step(self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys=None, **options: Any):
        """The trainer's `prediction_step`, whose loss is noted with the number of targets that it is a mean of."""
        generates = self.generation_config is not None and not prediction_loss_only
        real = self.rows.take(find_batch_size(inputs))
        inputs = _without_targets(inputs, real)
        if generates:
            self.trainer.model.generation_config = self._own_generation_config()
        loss, predictions, labels = self.step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **options)
        if loss is not None and "labels" in inputs:
            targets = (self._targets_in(inputs["labels"]) != IGNORE_INDEX).sum().to(loss.device)
            weight = targets if generates else self._targets_behind(targets)
            if weight > 0:
                self.totals += torch.stack([loss.detach().double() * weight, targets.double()]).cpu()
        if generates and labels is not None:
            labels = inputs["labels"].to(labels.device)  # the step fills short ones with the padding token
        if self.file is not None and predictions is not None:
            self._write(predictions, real, find_batch_size(inputs))
            return loss, None, None
        return loss, predictions, labels

    def _targets_in(self, labels: torch.Tensor) -> torch.Tensor:
        """The labels that the trainer counts as targets: of a decoder alone, none but those behind the first token."""
        return labels[..., 1:] if self.trainer._loss_shifts_labels else labels

    def _own_generation_config(self) -> Any:
        """The model's as it was, and the first tokens of `TextMetrics`."""
        config: Any = copy.deepcopy(self.generation_config)
        if isinstance(self.metrics, TextMetrics) and self.metrics.first_token is not None:
            config.forced_bos_token_id = self.metrics.first_token
        if isinstance(self.metrics, TextMetrics) and self.metrics.start_token is not None:
            config.decoder_start_token_id = self.metrics.start_token
        return config

    def _write(self, ids: torch.Tensor, real: int, rows: int) -> None:
        """The first output (rows x outputs of each, T) of each row that is no padding, of all processes, into the file."""
        assert self.file is not None
        texts = self.file.decode(ids[:: len(ids) // rows][:real])
        texts = gather_object(texts)
        if self.trainer.accelerator.is_main_process:
            self.file.add(texts)

    def _targets_behind(self, targets: torch.Tensor) -> torch.Tensor:
        """What to multiply the loss of `compute_loss` with to get this process's sum over its targets.

        With several processes it is this process's sum times their number over the targets of all.
        """
        trainer, processes = self.trainer, self.trainer.accelerator.num_processes
        if processes == 1 or not trainer.args.average_tokens_across_devices or not trainer.model_accepts_loss_kwargs:
            return targets
        return trainer.accelerator.gather(targets).sum() / processes

    def decodable_metrics(self, prediction: EvalPrediction, **options: Any) -> dict[str, float]:
        """The user's metrics, given each row once, and predictions without -100."""
        parts = {
            name: self.rows.without_padding(getattr(prediction, name), self.trainer.args.batch_eval_metrics)
            for name in ("predictions", "label_ids", "inputs", "losses")
        }
        parts["predictions"] = self.decodable(parts["predictions"])
        return self.metrics(EvalPrediction(**parts), **options)

    def decodable(self, predictions: Any) -> Any:
        """Generated ids with -100 replaced by the padding token; anything else as it is."""
        if self.generation_config is None:
            return predictions
        padding = self.trainer.model.config.pad_token_id
        if isinstance(predictions, list):  # eval_do_concat_batches=False
            return [self.decodable(batch) for batch in predictions]
        if isinstance(predictions, np.ndarray) and np.issubdtype(predictions.dtype, np.integer):
            return np.where(predictions == IGNORE_INDEX, padding, predictions)
        return predictions

    def corrected(self, output: EvalLoopOutput, prefix: str) -> EvalLoopOutput:
        """The loop's output with the loss per target token, each row once, decodable predictions, and what the file says."""
        accelerator, totals = self.trainer.accelerator, self.totals
        if accelerator.num_processes > 1:
            totals = accelerator.reduce(totals.to(accelerator.device), "sum")
        if f"{prefix}_loss" in output.metrics and totals[1] > 0:
            output.metrics[f"{prefix}_loss"] = (totals[0] / totals[1]).item()
        if self.file is not None:
            measured = decided_by_main(self.file.measured)
            output.metrics.update({f"{prefix}_{name}": value for name, value in measured.items()})
        predictions, labels = map(self.rows.without_padding, (output.predictions, output.label_ids))
        return output._replace(predictions=self.decodable(predictions), label_ids=labels)


def _without_targets(inputs: dict[str, Any], real: int) -> dict[str, Any]:
    """`inputs` whose rows from `real` on have no targets, so that they have no part in the loss.

    Labels that are fractions (regression, several labels at once) have no value for that, and stay.
    """
    if "labels" not in inputs or real >= len(inputs["labels"]) or inputs["labels"].is_floating_point():
        return inputs
    labels = inputs["labels"].clone()
    labels[real:] = IGNORE_INDEX
    return {**inputs, "labels": labels}

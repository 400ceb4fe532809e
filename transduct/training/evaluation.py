"""What transformers' evaluation loop gets wrong for sequences, put right around it.

- The loss is per target token over the whole data set. The loop's own is a mean over batches, which depends on their size.
- Predicted ids hold no -100: rows of different length are filled with the padding token, so that they can be decoded.
- Labels keep their -100.
- The model's `generation_config` stays as it was. `Seq2SeqTrainer` writes the library's defaults into it after the first
  batch, among them a length of 20 tokens at which all later batches would be cut.
- A model that is evaluated before it is trained is still wrapped for training. Accelerate marks it as prepared, and each of
  several processes would then train a model of its own.
"""

import copy
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput

IGNORED = -100


class ExactEvaluation:
    """Used as a context around a trainer's inherited evaluation loop, whose steps and metrics then pass through here."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.step, self.metrics = trainer.prediction_step, trainer.compute_metrics
        self.generation_config = trainer.model.generation_config if trainer.args.predict_with_generate else None
        self.totals = torch.zeros(2, dtype=torch.float64)  # loss summed over targets, number of targets

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
        if generates:
            self.trainer.model.generation_config = copy.deepcopy(self.generation_config)
        loss, predictions, labels = self.step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **options)
        if loss is not None and "labels" in inputs:
            targets = (inputs["labels"] != IGNORED).sum().to(loss.device)
            weight = targets if generates else self._targets_behind(targets)
            if weight > 0:
                self.totals += torch.stack([loss.detach().double() * weight, targets.double()]).cpu()
        if generates and labels is not None:
            labels = inputs["labels"].to(labels.device)  # the step fills short ones with the padding token
        return loss, predictions, labels

    def _targets_behind(self, targets: torch.Tensor) -> torch.Tensor:
        """What to multiply the loss of `compute_loss` with to get this process's sum over its targets.

        With several processes it is this process's sum times their number over the targets of all.
        """
        trainer, processes = self.trainer, self.trainer.accelerator.num_processes
        if processes == 1 or not trainer.args.average_tokens_across_devices or not trainer.model_accepts_loss_kwargs:
            return targets
        return trainer.accelerator.gather(targets).sum() / processes

    def decodable_metrics(self, prediction: EvalPrediction, **options: Any) -> dict[str, float]:
        """The user's metrics, given predictions without -100."""
        prediction.predictions = self.decodable(prediction.predictions)
        return self.metrics(prediction, **options)

    def decodable(self, predictions: Any) -> Any:
        """Generated ids with -100 replaced by the padding token; anything else as it is."""
        if self.generation_config is None:
            return predictions
        padding = self.trainer.model.config.pad_token_id
        if isinstance(predictions, list):  # eval_do_concat_batches=False
            return [self.decodable(batch) for batch in predictions]
        if isinstance(predictions, np.ndarray) and np.issubdtype(predictions.dtype, np.integer):
            return np.where(predictions == IGNORED, padding, predictions)
        return predictions

    def corrected(self, output: EvalLoopOutput, prefix: str) -> EvalLoopOutput:
        """The loop's output with the loss per target token and decodable predictions."""
        accelerator, totals = self.trainer.accelerator, self.totals
        if accelerator.num_processes > 1:
            totals = accelerator.reduce(totals.to(accelerator.device), "sum")
        if f"{prefix}_loss" in output.metrics and totals[1] > 0:
            output.metrics[f"{prefix}_loss"] = (totals[0] / totals[1]).item()
        return output._replace(predictions=self.decodable(output.predictions))

"""`TransductTrainer`: transformers' `Seq2SeqTrainer` with token-budget batches, the papers' schedules and an exact evaluation.

It overrides three methods and works with plain `Seq2SeqTrainingArguments` too: then batches and schedule are the inherited
ones. What it does on the Hub is that of its base, in `sharing.py`. The model needs none of this; an unmodified `Seq2SeqTrainer`
trains it as well.
"""

from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput

from transduct.training.arguments import TransductTrainingArguments
from transduct.training.callbacks import ByTheClock, MarkStops
from transduct.training.endless import EndlessData, endless_loader
from transduct.training.evaluation import ExactEvaluation
from transduct.training.faults import watch_for_faults
from transduct.training.loading import budgeted_loader, draw_apart, seed_workers_apart
from transduct.training.moving_average import average_in_use
from transduct.training.processes import keep_gradients_in_buckets, keep_tied_weights_together
from transduct.training.schedules import BudgetedLR, schedule_function
from transduct.training.sharing import SharingTrainer
from transduct.training.throughput import TokenCounter
from transduct.training.weight_options import add_callbacks, choose_optimizer


class TransductTrainer(SharingTrainer):
    """`Seq2SeqTrainer`, which see for its arguments; `TransductTrainingArguments` adds the options that are acted on here."""

    lr_scheduler: Any

    def get_train_dataloader(self) -> DataLoader:
        """The inherited loader; with `max_tokens_per_batch`, batches by cost or packed, in the same order for the same seed.

        Raises:
            ValueError: if `label_smoothing_factor` would make other options of the loss ignored ones.
        """
        keep_tied_weights_together(self)
        keep_gradients_in_buckets(self)
        refuse_ignored_loss(self)
        if isinstance(self.args, TransductTrainingArguments):
            TokenCounter.watch(self)
            choose_optimizer(self)
        if isinstance(self.train_dataset, EndlessData):
            return endless_loader(self)
        loader = super().get_train_dataloader()
        if isinstance(self.args, TransductTrainingArguments) and self.args.max_tokens_per_batch is not None:
            loader = budgeted_loader(self, loader)
        seed_workers_apart(loader, self.args.seed)
        return loader

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The inherited scheduler; with `schedule`, the papers' curve within a budget of steps and minutes."""
        watch_for_faults(self)  # here, since every training comes by
        self.remove_callback(MarkStops)
        self.add_callback(MarkStops(self))
        args = self.args
        if isinstance(args, TransductTrainingArguments):
            add_callbacks(self)
        if not isinstance(args, TransductTrainingArguments) or args.schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            warmup = args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = BudgetedLR(
                optimizer or self.optimizer,
                schedule_function(args.schedule, warmup, self.model.config.hidden_size),
                total_steps=num_training_steps,
                seconds=args.max_minutes and args.max_minutes * 60,
                cooldown=args.cooldown,
                cosine_after=warmup if args.schedule == "cosine" else None,
            )
            self._created_lr_scheduler = True  # a second call of `train` makes a new one
            self.remove_callback(ByTheClock)
            self.add_callback(ByTheClock(args.save_seconds))
        return self.lr_scheduler

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The inherited loop, with the loss per target token and ids that can be decoded; see `evaluation.py`."""
        keep_tied_weights_together(self)
        draw_apart(dataloader, self.args.seed)
        name = f"{self.state.global_step}{metric_key_prefix.removeprefix('eval').replace('_', '-')}"
        stream = name if description == "Evaluation" else None
        with ExactEvaluation(self, dataloader.dataset, stream) as exact, average_in_use(self):
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        return exact.corrected(output, metric_key_prefix)


def refuse_ignored_loss(trainer: Any) -> None:
    """The trainer's label smoothing takes the labels away from the model, whose own loss and what is added to it then do nothing.

    And it takes the logits of a decoder alone for those of their own tokens, but for models of transformers.
    """
    args, config = trainer.args, trainer.model.config
    if not args.label_smoothing_factor:
        return
    own = {name: value for name in ("label_smoothing", "z_loss") if (value := getattr(config, name, 0))}
    own |= {name: value for name in ("r_drop", "guided_alignment") if (value := getattr(args, name, None))}
    fault = f"replaces the model's loss, so its {own} would be ignored" if own else None
    if config.model_type == "transduct" and trainer._loss_shifts_labels:
        fault = "would compare each token with itself, where the model is a decoder alone"
    if fault is not None:
        raise ValueError(
            f"label_smoothing_factor={args.label_smoothing_factor} {fault}; "
            "set label_smoothing in the model's config and leave label_smoothing_factor at 0"
        )

"""Training arguments about averages of weights, extra losses, frozen weights and adapters, with their checks.

`TransductTrainingArguments` inherits them, and `TransductTrainer` acts on them through `choose_optimizer` and `add_callbacks`.
Frozen weights and adapters must be there before the trainer is: see `adapters.prepare_weights`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transduct.training.adapters import is_adapted, with_weights_of
from transduct.training.averaging import AverageAtEnd
from transduct.training.checks import check_count
from transduct.training.extras import GuidedAlignment, RDrop, WordDropout
from transduct.training.hooks import TrainingHooks
from transduct.training.layer_drop import SameLayers, StepsWithoutLayers, may_drop_all, must_drop_alike
from transduct.training.moving_average import MovingAverage, check_decay
from transduct.training.optimizers import OptimizerName, optimizer_of


@dataclass
class WeightOptions:
    """What happens to weights besides the updates of an optimizer, and what is added to the model's loss."""

    optimizer: OptimizerName | None = field(
        default=None,
        metadata={
            "help": "'adam' (Vaswani's), 'adafactor' (T5's) or 'adamw_rms', see training/optimizers.py; None: optim is used."
        },
    )
    ema_decay: float | None = field(
        default=None,
        metadata={"help": "Keep a moving average of the weights that an update leaves so much of, such as 0.999."},
    )
    ema_warmup: bool = field(
        default=False, metadata={"help": "Let the decay of the moving average be at most (1 + t) / (10 + t) at update t."}
    )
    ema_evaluate: bool = field(default=True, metadata={"help": "Evaluate the moving average while training, not the weights."})
    ema_finish: bool = field(default=True, metadata={"help": "Make the moving average the finished model."})
    average_checkpoints: int | None = field(
        default=None, metadata={"help": "Make the mean of so many of the last checkpoints the finished model (the paper: 5)."}
    )
    average_best: int | None = field(
        default=None,
        metadata={"help": "Make the mean of so many checkpoints, the best by metric_for_best_model, the finished model."},
    )
    r_drop: float = field(
        default=0.0,
        metadata={"help": "Weight alpha of R-drop: each batch passes twice, and the two predictions are drawn together."},
    )
    guided_alignment: dict[str, Any] | None = field(
        default=None,
        metadata={"help": "{weight: 0.05, layer: -2, head: 0}: train a head of the cross-attention on given alignments."},
    )
    word_dropout: float = field(default=0.0, metadata={"help": "Share of the source's tokens that are hidden while training."})
    target_word_dropout: float = field(
        default=0.0, metadata={"help": "Share of the tokens of the decoder's input that are hidden while training."}
    )
    word_dropout_by: Literal["unk", "zero"] = field(
        default="unk", metadata={"help": "Hidden tokens become the unknown token ('unk'), or their embeddings zero ('zero')."}
    )
    freeze: list[str] | None = field(
        default=None,
        metadata={"help": "Weights that are not trained: 'embeddings', or the start of names, such as 'encoder.layers.0'."},
    )
    lora: dict[str, Any] | None = field(
        default=None,
        metadata={"help": "{rank: 8, alpha: 16, target: default}: train low-rank adapters of the weights through peft."},
    )

    def check_weight_options(self) -> None:
        """Raises ValueError for values out of range, and for options that contradict each other."""
        self._check_average()
        hooks_of(self)  # each checks its own
        if self.guided_alignment is not None:
            vars(self)["remove_unused_columns"] = False  # the column of alignments is no argument of the model

    def _check_average(self) -> None:
        if self.ema_decay is not None:
            check_decay(self.ema_decay)
        if self.ema_decay is None and self.ema_warmup:
            raise ValueError("ema_warmup=True needs ema_decay")
        counts = {name: vars(self)[name] for name in ("average_checkpoints", "average_best") if vars(self)[name] is not None}
        if not counts:
            return
        for name, count in counts.items():
            check_count(count, name, 1)
        if len(counts) == 2:
            raise ValueError("average_checkpoints and average_best exclude each other: choose the last or the best")
        if self.lora is not None:
            raise ValueError(f"{next(iter(counts))} and lora exclude each other: the factors of adapters cannot be averaged")
        if self.ema_decay is not None and self.ema_finish:
            raise ValueError(f"{next(iter(counts))} and ema_decay would both make the finished model: set ema_finish=False")
        self._check_checkpoints(*next(iter(counts.items())))

    def _check_checkpoints(self, name: str, count: int) -> None:
        """Whether the checkpoints of the average are written and kept."""
        values = vars(self)
        if values["save_strategy"] == "no" and values.get("save_seconds") is None:
            raise ValueError(f"{name}={count} needs checkpoints: set save_seconds, or save_strategy and save_steps")
        limit = values["save_total_limit"]
        if name == "average_checkpoints" and limit is not None and limit < count:
            raise ValueError(f"{name}={count} needs so many checkpoints, and save_total_limit={limit} keeps fewer: raise it")
        if name == "average_best":
            if limit is not None:
                raise ValueError(f"{name}={count} keeps the checkpoints that it needs: leave save_total_limit={limit} out")
            for needed, unset in (("metric_for_best_model", None), ("eval_strategy", "no")):
                if values[needed] == unset:
                    raise ValueError(f"{name}={count} needs {needed}, by which the best are found")


def checkpoints_to_keep(training: dict[str, Any]) -> int | None:
    """`save_total_limit` of a recipe that does not give it: two, or as many as its average needs."""
    return None if training.get("average_best") is not None else max(2, training.get("average_checkpoints") or 0)


def hooks_of(args: WeightOptions) -> list[TrainingHooks]:
    """What takes part in the forward pass as the arguments say, in the order in which they belong.

    Raises:
        ValueError: for values out of range, and unknown keys of `guided_alignment`.
    """
    hooks: list[TrainingHooks] = []
    if args.r_drop:
        hooks.append(RDrop(args.r_drop))
    if args.guided_alignment is not None:
        if unknown := set(args.guided_alignment) - {"weight", "layer", "head"}:
            raise ValueError(f"guided_alignment.{min(unknown)} is unknown; its keys are weight, layer and head")
        hooks.append(GuidedAlignment(**args.guided_alignment))
    word_dropout = WordDropout(args.word_dropout, args.target_word_dropout, args.word_dropout_by)
    if args.word_dropout or args.target_word_dropout:
        hooks.append(word_dropout)
    return hooks


def add_callbacks(trainer: Any) -> None:
    """Give a trainer the callbacks that its arguments ask for; those that it has already stay. Called before each training."""
    args: WeightOptions = trainer.args
    present = {type(callback) for callback in trainer.callback_handler.callbacks}
    for hooks in hooks_of(args):
        if type(hooks) not in present:
            trainer.add_callback(hooks)
    if StepsWithoutLayers not in present and may_drop_all(trainer.model):
        trainer.add_callback(StepsWithoutLayers(trainer))  # after those that add to the loss
    if SameLayers not in present and must_drop_alike(trainer):
        trainer.add_callback(SameLayers())
    if args.ema_decay is not None and MovingAverage not in present:
        trainer.add_callback(MovingAverage(trainer, args.ema_decay, args.ema_warmup, args.ema_finish))
    if AverageAtEnd not in present and (args.average_checkpoints is not None or args.average_best is not None):
        trainer.add_callback(AverageAtEnd(trainer, args.average_checkpoints, args.average_best))


def finish_at(trainer: Any, checkpoint: Path) -> None:
    """Make the trainer's model what a training that has ended at `checkpoint` made of it, averages included."""
    trainer.model = with_weights_of(trainer.model, checkpoint)
    add_callbacks(trainer)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, AverageAtEnd):
            callback.finish()
        elif isinstance(callback, MovingAverage) and callback.finishes:
            callback.finish(checkpoint)


def described_average(trainer: Any) -> str | None:
    """A line about the average that the finished model is; None where it is none."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, AverageAtEnd) and callback.averaged:
            return f"the model is the mean of {', '.join(path.name for path in callback.averaged)}"
        if isinstance(callback, MovingAverage) and callback.finishes:
            return f"the model is the moving average of the weights over {callback.updates:,} updates"
    return None


def choose_optimizer(trainer: Any) -> None:
    """Let a trainer make the optimizer that its arguments name. Called before each training.

    `Seq2SeqTrainer` does not take `optimizer_cls_and_kwargs` as `Trainer` does, but reads it all the same.

    Raises:
        ValueError: if the trainer was given an optimizer besides, and for `freeze` and `lora` that did not reach the model.
    """
    args = trainer.args
    if args.optimizer is not None and trainer.optimizer_cls_and_kwargs is None:
        if trainer.optimizer is not None:
            raise ValueError(f"optimizer={args.optimizer!r} and an optimizer that the trainer is given exclude each other")
        trainer.optimizer_cls_and_kwargs = optimizer_of(args)
    frozen = any(not parameter.requires_grad for parameter in trainer.model.parameters())
    for name, acts in (("freeze", frozen), ("lora", is_adapted(trainer.model))):
        if getattr(args, name) is not None and not acts:
            raise ValueError(
                f"{name}={getattr(args, name)!r} has not reached the model: give the trainer "
                "transduct.training.adapters.prepare_weights(model, args)"
            )

"""Training arguments: defaults that depend on each other, and options that contradict."""

from dataclasses import fields, replace

import numpy as np
import pytest
from transformers import Seq2SeqTrainingArguments

from transduct.training import TransductTrainingArguments
from transduct.training.arguments import checked_types


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0"),
        ({"max_tokens_per_batch": "some"}, "max_tokens_per_batch='some' must be a positive whole number"),
        ({"max_tokens_per_batch": 0.5}, "max_tokens_per_batch=0.5 must be a positive whole number"),
        ({"max_tokens_per_batch": 9, "train_sampling_strategy": "group_by_length"}, "leave train_sampling_strategy out"),
        ({"max_tokens_per_batch": 9, "dataloader_drop_last": True}, "leave dataloader_drop_last out"),
        ({"max_tokens_per_batch": 9, "per_device_train_batch_size": 4}, "leave per_device_train_batch_size out"),
        ({"max_tokens_per_batch": 9, "auto_find_batch_size": True}, "leave auto_find_batch_size out"),
        (
            {"dataloader_drop_last": True, "eval_strategy": "epoch"},
            "dataloader_drop_last=True would leave rows out of evaluations",
        ),
        ({"max_steps": 0}, "max_steps=0 must be at least 1"),
        ({"max_steps": 3.5}, "max_steps=3.5 must be a whole number$"),
        ({"gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps=1.5 must be a whole number"),
        ({"eval_steps": 0, "eval_strategy": "steps"}, "eval_steps=0 must be a whole number of at least 1, or a share"),
        ({"logging_steps": -1}, "logging_steps=-1 must be a whole number of at least 1"),
        ({"save_steps": 2.5}, "save_steps=2.5 must be a whole number of at least 1"),
        ({"optimizer": "adam", "adam_beta2": 0.9}, "optimizer='adam' has no use for adam_beta2=0.9"),
        ({"optimizer": "adafactor", "adam_epsilon": 0.1}, "optimizer='adafactor' has no use for adam_epsilon=0.1"),
        ({"optimizer": "adamw_rms", "optim_args": "x=1"}, "optimizer='adamw_rms' has no use for optim_args=x=1"),
        ({"schedule": "constant", "lr_scheduler_kwargs": {"a": 1}}, "lr_scheduler_kwargs={'a': 1} belong to lr_scheduler_type"),
        ({"packing": True}, "packing=True needs max_tokens_per_batch"),
        ({"max_minutes": 1}, "max_minutes=1 needs a schedule"),
        ({"save_seconds": 5}, "save_seconds=5 needs a schedule"),
        ({"cooldown": 0.1}, "cooldown=0.1 needs a schedule"),
        ({"cooldown": 1.1, "schedule": "constant"}, "cooldown=1.1 must lie in"),
        ({"schedule": "square"}, "schedule='square' must be 'vaswani', 'inverse_sqrt', .* or None"),
        ({"schedule": "cosine", "cooldown": 0.1}, "a cosine ends at zero itself"),
        ({"optimizer": "sgd"}, "optimizer='sgd' must be 'adam', 'adafactor', 'adamw_rms' or None"),
        ({"optimizer": "adam", "optim": "adafactor"}, "exclude each other"),
        ({"schedule": "t5"}, r"^schedule='t5' needs warmup_steps of at least 1 \(T5: 10000\)"),
        ({"schedule": "vaswani", "warmup_steps": 0}, r"^schedule='vaswani' needs warmup_steps of at least 1"),
        ({"schedule": "constant", "lr_scheduler_type": "cosine"}, "lr_scheduler_type='cosine' exclude each other"),
        ({"schedule": "constant", "max_minutes": 1, "warmup_steps": 0.1}, "warmup_steps=0.1 is a share"),
        ({"learning_rate": -1}, "learning_rate=-1 must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be at least 0"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a number"),
        ({"adam_beta2": 1.5}, "adam_beta2=1.5 must be between 0 and 1"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must be at least 0"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be at least 1"),
        ({"warmup_steps": -5}, "warmup_steps=-5 must be at least 0"),
        ({"save_total_limit": 0}, "save_total_limit=0 must be at least 1"),
        ({"on_nan": "ignore"}, "on_nan='ignore' must be 'stop' or 'skip'"),
        ({"on_nan_limit": 0}, "on_nan_limit=0 must be at least 1"),
        ({"early_stopping_patience": 0}, "early_stopping_patience=0 must be at least 1"),
        ({"early_stopping_patience": 2}, "early_stopping_patience=2 needs metric_for_best_model"),
        ({"early_stopping_patience": 2, "metric_for_best_model": "loss"}, "early_stopping_patience=2 needs eval_strategy"),
        ({"early_stopping_threshold": 0.1}, "early_stopping_threshold=0.1 needs early_stopping_patience"),
    ],
)
def test_arguments_that_contradict(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        TransductTrainingArguments(output_dir=str(tmp_path), **options)


def test_a_value_of_a_wrong_type_is_named(tmp_path):
    own = {f.name for f in fields(TransductTrainingArguments)} - {f.name for f in fields(Seq2SeqTrainingArguments)}
    assert own - {"max_tokens_per_batch"} <= set(checked_types())  # which has a check of its own
    assert {"learning_rate", "seed", "bf16", "eval_strategy", "eval_steps", "metric_for_best_model"} <= set(checked_types())
    for name in checked_types():
        given = {"output_dir": str(tmp_path), name: object()}
        with pytest.raises(ValueError, match=f"^{name}=<object .* must be "):
            TransductTrainingArguments(**given)


def test_arguments_can_be_copied(tmp_path):
    made = TransductTrainingArguments(output_dir=str(tmp_path), schedule="constant", lora={"rank": 2}, warmup_steps=np.int64(3))
    assert replace(made, max_steps=5) == replace(replace(made), max_steps=5)


def test_defaults_of_arguments(tmp_path):
    def made(**options):
        return TransductTrainingArguments(output_dir=str(tmp_path), **options)

    assert (made().learning_rate, made().num_train_epochs) == (5e-5, 3.0)
    assert made(max_tokens_per_batch="4096").max_tokens_per_batch == 4096  # as a command line gives it
    assert made(max_tokens_per_batch="auto").max_tokens_per_batch == "auto"
    assert made(optimizer="adamw_rms", adam_beta2=0.9).adam_beta2 == 0.9
    assert made(eval_strategy="steps", eval_steps=0.25, save_steps=4.0).eval_steps == 0.25
    assert made(schedule="vaswani", warmup_steps=9).learning_rate == 1.0
    assert made(schedule="constant", max_minutes=1).num_train_epochs == 1e6
    assert made(schedule="constant", max_minutes=1, num_train_epochs=2).num_train_epochs == 2


@pytest.mark.parametrize(
    ("name", "greater"),
    [("loss", False), ("eval_loss", False), ("word_error", False), ("ter", False), ("eval_wer", False), ("bleu", True),
     ("character", True), ("exact_match", True)],
)  # fmt: skip
def test_less_is_better_for_errors(tmp_path, name, greater):
    assert TransductTrainingArguments(output_dir=str(tmp_path), metric_for_best_model=name).greater_is_better is greater
    chosen = TransductTrainingArguments(output_dir=str(tmp_path), metric_for_best_model=name, greater_is_better=not greater)
    assert chosen.greater_is_better is not greater


def test_early_stopping_keeps_and_loads_the_best(tmp_path):
    options = dict(output_dir=str(tmp_path), early_stopping_patience=2, metric_for_best_model="bleu", eval_strategy="steps")
    args = TransductTrainingArguments(**options, save_strategy="no")
    assert args.load_best_model_at_end
    assert args.save_strategy == "best"
    assert TransductTrainingArguments(**options, save_strategy="steps").save_strategy == "steps"

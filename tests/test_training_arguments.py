"""Training arguments: defaults that depend on each other, and options that contradict."""

import pytest

from transduct.training import TransductTrainingArguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0"),
        ({"max_minutes": 1}, "max_minutes=1 needs a schedule"),
        ({"save_seconds": 5}, "save_seconds=5 needs a schedule"),
        ({"cooldown": 0.1}, "cooldown=0.1 needs a schedule"),
        ({"cooldown": 1.1, "schedule": "constant"}, "cooldown=1.1 must lie in"),
        ({"schedule": "square"}, "schedule='square' is unknown"),
        ({"schedule": "cosine", "cooldown": 0.1}, "a cosine ends at zero itself"),
        ({"optimizer": "sgd"}, "optimizer='sgd' is unknown"),
        ({"optimizer": "adam", "optim": "adafactor"}, "exclude each other"),
        ({"schedule": "constant", "lr_scheduler_type": "cosine"}, "lr_scheduler_type='cosine' exclude each other"),
        ({"schedule": "constant", "max_minutes": 1, "warmup_steps": 0.1}, "warmup_steps=0.1 is a share"),
    ],
)
def test_arguments_that_contradict(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        TransductTrainingArguments(output_dir=str(tmp_path), **options)


def test_defaults_of_arguments(tmp_path):
    def made(**options):
        return TransductTrainingArguments(output_dir=str(tmp_path), **options)

    assert (made().learning_rate, made().num_train_epochs) == (5e-5, 3.0)
    assert made(schedule="vaswani", warmup_steps=9).learning_rate == 1.0
    assert made(schedule="constant", max_minutes=1).num_train_epochs == 1e6
    assert made(schedule="constant", max_minutes=1, num_train_epochs=2).num_train_epochs == 2

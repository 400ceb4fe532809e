"""An update without a finite gradient: stopped before or left out, named and written down."""

import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import Seq2SeqTrainingArguments, TrainerCallback

from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.training.checkpoints import checkpoint_fault
from transduct.training.faults import RECORD, NonFiniteGradient, NonFiniteGuard, watch_for_faults

POISON = 19
"""A source with this symbol has a loss that is not a number."""


def clean_pairs(count: int = 24) -> list[dict[str, list[int]]]:
    return [{name: [min(id, POISON - 1) for id in ids] for name, ids in row.items()} for row in pairs(count)]


def poisoned(rows: list, *places: int) -> list:
    """Copies of `rows` with the symbol at the start of the sources at these places."""
    return [{**row, "input_ids": [POISON, *row["input_ids"]]} if i in places else row for i, row in enumerate(rows)]


def with_poison(model, value: float = float("nan")):
    def ruin(module, args, kwargs, output):
        if (kwargs["input_ids"] == POISON).any():
            output.loss = output.loss * value
        return output

    model.register_forward_hook(ruin, with_kwargs=True)
    return model


class Updates(TrainerCallback):
    """Whether each update changed anything at all of weights and optimizer."""

    def __init__(self):
        self.changed = []

    def _all(self, model, optimizer) -> torch.Tensor:
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        return torch.cat([tensor.detach().double().flatten() for tensor in (*model.parameters(), *state)])

    def on_step_begin(self, args, state, control, **kwargs):
        self.before = self._all(kwargs["model"], kwargs["optimizer"])

    def on_step_end(self, args, state, control, **kwargs):
        after = self._all(kwargs["model"], kwargs["optimizer"])
        self.changed.append(not (after.shape == self.before.shape and torch.equal(after, self.before)))


def trainer_of(folder, *places: int, value: float = float("nan"), **options):
    """24 pairs in their order, four in a batch."""
    defaults = dict(per_device_train_batch_size=4, train_sampling_strategy="sequential", max_steps=6, learning_rate=0.01)
    trainer = tiny_trainer(folder, with_poison(tiny_model(), value), poisoned(clean_pairs(), *places), **{**defaults, **options})
    trainer.add_callback(Updates())
    return trainer


def changed(trainer) -> list[bool]:
    return next(c for c in trainer.callback_handler.callbacks if isinstance(c, Updates)).changed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_stops_before_the_update_and_writes_the_batch(tmp_path, value, accumulate):
    options = dict(gradient_accumulation_steps=accumulate, max_steps=6 // accumulate, save_strategy="steps", save_steps=1)
    trainer = trainer_of(tmp_path, 9, value=value, **options)
    update, batch = 3 if accumulate == 1 else 2, 1
    with pytest.raises(
        NonFiniteGradient, match=rf"update {update}: the gradient is not finite .* batch {batch} of {accumulate}, 4 rows"
    ):
        trainer.train()
    assert changed(trainer) == [True] * (update - 1)
    path = tmp_path / f"nan_batch_{update}.safetensors"
    written = load_file(path)[f"{batch - 1}.input_ids"]
    expected = [row["input_ids"] for row in poisoned(clean_pairs(), 9)[8:12]]
    assert [[id for id in row if id] for row in written.tolist()] == expected
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"0.loss": str(value)}
    assert checkpoint_fault(tmp_path / f"checkpoint-{update - 1}") is None


def test_the_message_shows_the_source_and_what_to_do(tmp_path):
    class Decoder(Tokenizer):
        def decode(self, ids, skip_special_tokens):
            return " ".join(f"<{id}>" for id in ids.tolist() if id > 1)

    trainer = trainer_of(tmp_path, 0)
    trainer.processing_class = Decoder()
    with pytest.raises(NonFiniteGradient, match=r"update 1: .*the first '<19> .*written to .*training\.on_nan=skip") as raised:
        trainer.train()
    assert isinstance(raised.value, ValueError)


class UnderDeepSpeed(TrainerCallback):
    """Lets the trainer believe, once a step has begun, that DeepSpeed computes: it would have updated the weights by then."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.trainer.is_deepspeed_enabled = True


@pytest.mark.parametrize(
    ("deepspeed", "said"),
    [
        (False, "The weights and checkpoints are those from before it"),
        (True, "DeepSpeed has updated the weights with it already; the checkpoints are those from before it"),
    ],
)
def test_the_message_says_which_weights_are_left(tmp_path, deepspeed, said):
    trainer = trainer_of(tmp_path, 1)
    if deepspeed:
        trainer.add_callback(UnderDeepSpeed(trainer))
    with pytest.raises(NonFiniteGradient, match=said) as raised:
        trainer.train()
    assert ("training.on_nan=skip" in str(raised.value)) == (not deepspeed)  # which is refused there
    assert "training.learning_rate" in str(raised.value)


def test_skipping_is_refused_under_deepspeed(tmp_path):
    trainer = trainer_of(tmp_path, on_nan="skip")
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ValueError, match=r"on_nan='skip' cannot work with DeepSpeed.*use 'stop'"):
        watch_for_faults(trainer)


def test_left_out_updates_change_nothing_and_are_counted(tmp_path):
    trainer = trainer_of(tmp_path, 5, 14, 22, on_nan="skip")
    trainer.train()
    assert changed(trainer) == [True, False, True, False, True, False]
    assert trainer.state.stateful_callbacks[RECORD] == {"skipped": 3, "in_a_row": 1}
    assert sorted(path.name for path in tmp_path.glob("nan*")) == [f"nan_batch_{step}.safetensors" for step in (2, 4, 6)]


def test_one_bad_batch_leaves_out_its_whole_update(tmp_path):
    trainer = trainer_of(tmp_path, 13, gradient_accumulation_steps=3, max_steps=2, on_nan="skip")
    trainer.train()
    assert changed(trainer) == [True, False]
    assert {name.split(".")[0] for name in load_file(tmp_path / "nan_batch_2.safetensors")} == {"0"}


def test_a_run_with_an_update_left_out_is_that_run_without_its_gradient(tmp_path):
    """With plain gradient descent, an update of zero."""
    weights = []
    for value in (float("nan"), 0.0):
        trainer = trainer_of(tmp_path, 9, value=value, on_nan="skip", optim="sgd", max_grad_norm=0.0)
        trainer.train()
        weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert torch.equal(*weights)


def test_too_many_in_a_row(tmp_path):
    trainer = trainer_of(tmp_path, 1, 9, 13, 17, on_nan="skip", on_nan_limit=3)
    with pytest.raises(NonFiniteGradient, match=r"update 5: .*3 in a row, which is on_nan_limit"):
        trainer.train()
    assert changed(trainer) == [False, True, False, False]


def test_the_count_goes_on_after_a_resume(tmp_path):
    options = dict(on_nan="skip", save_strategy="steps", save_steps=3)
    trainer_of(tmp_path, 9, 13, max_steps=3, lr_scheduler_type="constant", **options).train()
    trainer = trainer_of(tmp_path, 9, 13, on_nan_limit=2, lr_scheduler_type="constant", **options)
    with pytest.raises(NonFiniteGradient, match=r"update 4: .*2 in a row"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.stateful_callbacks[RECORD] == {"skipped": 2, "in_a_row": 2}


@pytest.mark.parametrize(("scale", "value", "stops"), [(2.0**127, 1e4, False), (2.0, float("nan"), True)])
def test_an_overflow_is_left_to_the_loss_scaler(tmp_path, scale, value, stops):
    trainer = trainer_of(tmp_path, 1, value=value, max_steps=1)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    if stops:
        with pytest.raises(NonFiniteGradient):
            trainer.train()
    else:
        trainer.train()
        assert trainer.accelerator.scaler.get_scale() < scale
        assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_a_batch_that_cannot_be_written_does_not_hide_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(NonFiniteGuard, "_path", lambda self, step: Path("/dev/null/none"))
    with pytest.raises(NonFiniteGradient, match="could not be written to /dev/null/none"):
        trainer_of(tmp_path, 1).train()


def test_a_second_training_is_watched_once(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=1)
    trainer.train()
    trainer.train()
    assert sum(isinstance(callback, NonFiniteGuard) for callback in trainer.callback_handler.callbacks) == 1
    assert len(trainer.state.log_history) == 1


def test_transformers_own_arguments_have_no_guard(tmp_path):
    options = dict(per_device_train_batch_size=4, max_steps=1, save_strategy="steps", save_steps=1)
    trainer = tiny_trainer(
        tmp_path, with_poison(tiny_model()), poisoned(clean_pairs(), *range(24)), Seq2SeqTrainingArguments, **options
    )
    trainer.train()
    assert checkpoint_fault(tmp_path / "checkpoint-1") is None  # whole, for what it is worth
    assert not re.search("nan", " ".join(path.name for path in tmp_path.iterdir()))

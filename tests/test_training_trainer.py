"""`TransductTrainer`: batches by cost, the paper's schedule, budgets of time, and a resume that changes nothing."""

import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_callback import TrainerCallback

from launching import launch
from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.modeling import TransductForCausalLM
from transduct.training import TransductTrainer
from transduct.training.fitting import trial_step
from transduct.training.schedules import vaswani


class Note(TrainerCallback):
    """The learning rate of each update."""

    def __init__(self):
        self.rates = []

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_overrides_three_methods_at_most():
    own = {name for name, value in vars(TransductTrainer).items() if inspect.isfunction(value)}
    assert own == {"get_train_dataloader", "create_scheduler", "evaluation_loop"}
    for name in own:
        theirs = list(inspect.signature(vars(TransductTrainer)[name]).parameters)
        assert theirs == list(inspect.signature(getattr(Seq2SeqTrainer, name)).parameters)


def test_batches_keep_the_budget_and_hold_every_pair(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40)
    batches = list(trainer.get_train_dataloader())
    assert all(batch["input_ids"].numel() + batch["labels"].numel() <= 40 for batch in batches)
    assert sum(len(batch["labels"]) for batch in batches) == len(pairs())
    again = list(tiny_trainer(tmp_path, max_tokens_per_batch=40).get_train_dataloader())
    assert [batch["labels"].tolist() for batch in batches] == [batch["labels"].tolist() for batch in again]


def test_plain_arguments_keep_the_inherited_batches_and_schedule(tmp_path):
    trainer = tiny_trainer(tmp_path, kind=Seq2SeqTrainingArguments, max_steps=3, per_device_train_batch_size=5)
    assert len(next(iter(trainer.get_train_dataloader()))["labels"]) == 5
    trainer.train()
    assert trainer.state.global_step == 3
    assert type(trainer.lr_scheduler).__name__ == "LambdaLR"


@pytest.mark.parametrize("option", ["label_smoothing", "z_loss"])
def test_refuses_two_losses_at_once(tmp_path, option):
    trainer = tiny_trainer(tmp_path, max_steps=1, label_smoothing_factor=0.1)
    setattr(trainer.model.config, option, 0.05)
    with pytest.raises(ValueError, match=option):
        trainer.train()


@pytest.mark.parametrize("option", [{"r_drop": 0.5}, {"guided_alignment": {"weight": 0.1}}])
def test_refuses_what_would_be_added_to_a_loss_that_is_replaced(tmp_path, option):
    with pytest.raises(ValueError, match=f"so its .*{next(iter(option))}.* would be ignored"):
        tiny_trainer(tmp_path, max_steps=1, label_smoothing_factor=0.1, **option).train()


def test_refuses_label_smoothing_that_does_not_know_a_decoder_alone(tmp_path):
    model = TransductForCausalLM(tiny_model().config)
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in pairs()]
    trainer = tiny_trainer(tmp_path, model, rows, max_steps=1, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="compare each token with itself, where the model is a decoder alone"):
        trainer.train()


def test_the_papers_schedule(tmp_path):
    note = Note()
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40, schedule="vaswani", warmup_steps=4, max_steps=9)
    trainer.add_callback(note)
    trainer.train()
    assert note.rates == pytest.approx([vaswani(step, 16, 4) for step in range(1, 10)], rel=1e-12)


def test_peak_form_with_cooldown(tmp_path):
    note = Note()
    options = dict(schedule="inverse_sqrt", learning_rate=0.5, warmup_steps=2, cooldown=0.5, max_steps=8)
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40, **options)
    trainer.add_callback(note)
    trainer.train()
    shape = [0.5, 1.0] + [math.sqrt(2 / step) for step in range(3, 9)]
    fall = [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert note.rates == pytest.approx([0.5 * a * b for a, b in zip(shape, fall, strict=True)])


@pytest.mark.parametrize("stop", [4, 7])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_is_bit_equal_to_a_straight_one(tmp_path, stop, accumulate):
    options = dict(
        max_tokens_per_batch=40,
        schedule="inverse_sqrt",
        learning_rate=0.01,
        warmup_steps=3,
        cooldown=0.5,
        num_train_epochs=3,
        gradient_accumulation_steps=accumulate,
    )
    straight = tiny_trainer(tmp_path / "straight", **options)
    straight.train()
    steps = straight.state.global_step
    assert steps > stop
    first = tiny_trainer(tmp_path / "stopped", **options, save_steps=stop)
    first.args.save_strategy = type(first.args.save_strategy)("steps")
    first.train()
    assert torch.equal(weights(first.model), weights(straight.model))
    resumed = tiny_trainer(tmp_path / "stopped", model=tiny_model(seed=99), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / f"checkpoint-{stop}"))
    assert resumed.state.global_step == steps
    assert torch.equal(weights(resumed.model), weights(straight.model))
    assert not torch.equal(weights(straight.model), weights(tiny_model()))


def test_stops_with_a_checkpoint_when_the_time_is_up(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40, schedule="constant", max_minutes=0.2 / 60)
    trainer.train()
    assert trainer.lr_scheduler.time_is_up
    assert trainer.state.max_steps > 1000 * trainer.state.global_step
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}").is_dir()
    budget = trainer.lr_scheduler.elapsed + 0.1  # a busy machine may have spent more than was given
    longer = tiny_trainer(tmp_path, max_tokens_per_batch=40, schedule="constant", max_minutes=budget / 60)
    longer.train(resume_from_checkpoint=True)
    assert longer.state.global_step > trainer.state.global_step
    assert longer.lr_scheduler.elapsed >= budget


def test_saves_by_the_clock_and_keeps_two(tmp_path):
    options = dict(schedule="constant", max_minutes=3 / 60, save_seconds=0.2, save_total_limit=2)
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40, **options)
    trainer.train()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    assert len(trainer.callback_handler.callbacks) == len({type(each) for each in trainer.callback_handler.callbacks})


def test_training_twice_starts_a_new_schedule(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=40, schedule="vaswani", warmup_steps=4, max_steps=3)
    trainer.train()
    note = Note()
    trainer.add_callback(note)
    trainer.train()
    assert note.rates[0] == pytest.approx(vaswani(1, 16, 4))


def test_learns_to_reverse(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch=400, schedule="constant", learning_rate=0.01, max_steps=60)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.7 * before


@pytest.mark.slow
def test_two_processes_agree_on_time_weights_and_loss(tmp_path):
    done = launch(str(Path(__file__).with_name("two_processes.py")), str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["processes"] == 2
    assert first["no copies of gradients"]
    assert first["steps"] > 1
    alone = tiny_trainer(tmp_path, tiny_model(dropout=0.0), pairs(20), per_device_eval_batch_size=3)
    assert first["before"] == pytest.approx(alone.evaluate()["eval_loss"], rel=1e-5)
    assert first["after"] < first["before"]


# ---- sources of features ------------------------------------------------------------------------------------------
FEATURES = dict(encoder_input="features", feature_size=3, tie_embeddings="target_output", norm_position="pre", dropout=0.0)


def frames(count: int = 24) -> list[dict]:
    """Rows of one-hot frames and the symbols that they stand for."""
    rows = []
    for pair in pairs(count):
        symbols = [symbol % 3 for symbol in pair["labels"][:-1]]
        rows.append({"input_features": [[float(n == symbol) for n in range(3)] for symbol in symbols]})
        rows[-1]["labels"] = [*(symbol + 3 for symbol in symbols), 1]
    return rows


@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_features_train_in_batches_by_cost_and_are_evaluated_by_generation(tmp_path, stem):
    predicted = []
    options = dict(max_tokens_per_batch=120, learning_rate=0.01, num_train_epochs=8, predict_with_generate=True)
    model = tiny_model(**FEATURES, feature_stem=stem)

    def note(prediction) -> dict:
        predicted.append(prediction.predictions)
        return {}

    trainer = tiny_trainer(tmp_path, model, frames(), metrics=note, logging_strategy="epoch", **options)
    before = trainer.evaluate()["eval_loss"]
    for batch in trainer.get_train_dataloader():
        assert batch["attention_mask"].numel() + batch["labels"].numel() <= 120
        assert batch["input_features"].shape[:2] == batch["attention_mask"].shape
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    assert predicted[-1].shape[0] == 24
    counts = [log for log in trainer.state.log_history if "source_tokens_per_second" in log]
    assert counts
    assert all(log["source_tokens_per_second"] > 0 and 0 <= log["padding_share"] < 0.6 for log in counts)


def test_features_find_their_own_budget(tmp_path):
    trainer = tiny_trainer(tmp_path, tiny_model(**FEATURES, feature_layout="channels_first"), frames())
    longest = torch.tensor([9, 7]).numpy()
    trial_step(trainer, longest, rows=2, backward=True)
    assert trainer.model.model.encoder.stem.proj.weight.grad is not None


def test_features_cannot_be_packed(tmp_path):
    trainer = tiny_trainer(tmp_path, tiny_model(**FEATURES), frames(), max_tokens_per_batch=60, packing=True)
    with pytest.raises(ValueError, match="the source of this model is features"):
        trainer.get_train_dataloader()

"""Means of checkpoints: their values, their files, which ones are chosen, and the callback that makes them the model."""

import itertools
import json
import math
import os
import signal
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, TrainerCallback

import transduct
from tiny_training import pairs, tiny_model, tiny_trainer
from transduct.training import trainer as trainers
from transduct.training.averaging import (
    AVERAGE,
    AverageAtEnd,
    StoredWeights,
    average_checkpoints,
    averaged_tensors,
    best_checkpoints,
    last_checkpoints,
    left_out,
    values_in_log,
)
from transduct.training.callbacks import StopOnSignal
from transduct.training.checkpoints import OffSchedule, checkpoint_step, list_checkpoints
from transduct.training.schedules import BudgetedLR
from transduct.training.weights import load_into

transduct.register()


def saved_models(folder, count=3, **options):
    """Folders of models of one shape with different weights."""
    paths = [folder / f"model-{seed}" for seed in range(count)]
    for seed, path in enumerate(paths):
        tiny_model(seed=seed).save_pretrained(path, **options)
    return paths


def stored(folder):
    """All tensors of a folder, from however many files."""
    return {name: tensor for path in folder.glob("model*.safetensors") for name, tensor in load_file(path).items()}


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "4KB"}])
def test_the_mean_of_each_tensor(tmp_path, options):
    paths = saved_models(tmp_path, **options)
    output = average_checkpoints(paths, tmp_path / "average")
    tensors = [stored(path) for path in paths]
    mean = stored(output)
    assert mean.keys() == tensors[0].keys()
    for name, value in mean.items():
        expected = torch.stack([each[name].double() for each in tensors]).mean(0)
        torch.testing.assert_close(value.double(), expected, rtol=1e-7, atol=1e-9)
    assert {path.name for path in output.iterdir()} == {path.name for path in paths[0].iterdir()} | {AVERAGE}
    assert json.loads((output / AVERAGE).read_text()) == {"checkpoints": [path.name for path in paths]}
    assert (len(list(output.glob("*.safetensors"))) > 1) == bool(options)
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    assert torch.equal(model.lm_head.weight, mean["model.encoder.embed_tokens.weight"])
    assert "lm_head.weight" not in mean
    assert not (tmp_path / "average.part").exists()


def test_checkpoints_are_noted_by_the_names_of_their_folders(tmp_path, monkeypatch):
    first, second = saved_models(tmp_path)[:2]
    monkeypatch.chdir(first)
    note = average_checkpoints([".", f"../{second.name}"], tmp_path / "average") / AVERAGE
    assert json.loads(note.read_text()) == {"checkpoints": [first.name, second.name]}


def test_the_mean_of_one_is_itself_and_order_matters_for_whole_numbers_only(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        tensors = {"w": torch.full((3,), number / 3, dtype=torch.bfloat16), "n": torch.tensor([number]), "half": torch.ones(1)}
        save_file(tensors, tmp_path / str(number) / "model.safetensors")
    folders = [tmp_path / "1", tmp_path / "2"]
    alone = dict(averaged_tensors(folders[:1]))
    assert torch.equal(alone["w"], torch.full((3,), 1 / 3, dtype=torch.bfloat16))
    both, reverse = dict(averaged_tensors(folders)), dict(averaged_tensors(folders[::-1]))
    expected = (torch.tensor(1 / 3).bfloat16().double() + torch.tensor(2 / 3).bfloat16().double()) / 2
    assert torch.equal(both["w"], expected.bfloat16().expand(3))
    assert torch.equal(reverse["w"], both["w"])
    assert (both["n"].item(), reverse["n"].item()) == (2, 1)


def test_float32_is_summed_more_precisely(tmp_path):
    """A thousandth of 1 is lost beside 2^24 in float32, and not in the mean of four."""
    folders = []
    for number, value in enumerate([2.0**24, 1.0, 1.0, 2.0]):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        save_file({"w": torch.tensor([value])}, folders[-1] / "model.safetensors")
    assert dict(averaged_tensors(folders))["w"].item() == 2.0**22 + 1.0


def test_a_training_state_is_not_copied(tmp_path):
    paths = saved_models(tmp_path, 2)
    for name in (
        "optimizer.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
        "manifest.json",
        "off_schedule.json",
        "note.txt",
    ):
        (paths[1] / name).write_text("x")
    names = {path.name for path in average_checkpoints(paths, tmp_path / "average").iterdir()}
    assert names == {path.name for path in paths[0].iterdir()} | {"note.txt", AVERAGE}
    assert {"config.json", "generation_config.json"} <= names


def test_refuses_checkpoints_of_different_models(tmp_path):
    tiny_model().save_pretrained(tmp_path / "one")
    tiny_model(d_ff=48).save_pretrained(tmp_path / "wider")
    tiny_model(decoder_layers=2).save_pretrained(tmp_path / "deeper")
    tiny_model().bfloat16().save_pretrained(tmp_path / "half")
    first = r"model\.decoder\.layers\.0\.feed_forward\.down_proj\.weight is 16x32 of F32 in .*one and 16x48 of F32 in .*wider"
    with pytest.raises(ValueError, match=first):
        average_checkpoints([tmp_path / "one", tmp_path / "wider"], tmp_path / "average")
    with pytest.raises(ValueError, match=r"model\.decoder\.layers\.1\..* is in .*deeper and not in .*one"):
        averaged_tensors([tmp_path / "one", tmp_path / "deeper"])
    with pytest.raises(ValueError, match="BF16"):
        averaged_tensors([tmp_path / "one", tmp_path / "half"])
    assert not (tmp_path / "average").exists()


def test_refuses_what_is_no_checkpoint_and_a_full_output(tmp_path):
    paths = saved_models(tmp_path, 2)
    with pytest.raises(ValueError, match="at least one"):
        average_checkpoints([], tmp_path / "average")
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor"):
        StoredWeights(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="merge each into its model"):
        StoredWeights(tmp_path / "adapter")
    with pytest.raises(ValueError, match="is there already"):
        average_checkpoints(paths, paths[0])


def test_refuses_to_load_another_model(tmp_path):
    tiny_model(d_ff=48).save_pretrained(tmp_path / "wider")
    tiny_model(decoder_layers=2).save_pretrained(tmp_path / "deeper")
    with pytest.raises(ValueError, match="16, 48"):
        load_into(tiny_model(), averaged_tensors([tmp_path / "wider"]))
    with pytest.raises(ValueError, match=r"decoder\.layers\.1\..* is no tensor of this"):
        load_into(tiny_model(), averaged_tensors([tmp_path / "deeper"]))
    with pytest.raises(ValueError, match=r"no value for model\.decoder\.layers\.2\."):
        load_into(tiny_model(decoder_layers=3), averaged_tensors([tmp_path / "deeper"]))


SAVING = dict(max_tokens_per_batch=60, schedule="constant", learning_rate=0.01, max_steps=6, save_strategy="steps", save_steps=1)


def test_the_finished_model_is_the_mean_of_the_last(tmp_path):
    trainer = tiny_trainer(tmp_path, **SAVING, save_total_limit=3, average_checkpoints=3)
    trainer.train()
    paths = list_checkpoints(tmp_path)
    assert [checkpoint_step(path) for path in paths] == [4, 5, 6]
    models = [AutoModelForSeq2SeqLM.from_pretrained(path) for path in paths]
    expected = torch.stack([weights(model).double() for model in models]).mean(0)
    torch.testing.assert_close(weights(trainer.model).double(), expected, rtol=1e-7, atol=1e-9)
    assert not torch.equal(weights(trainer.model), weights(models[-1]))


def test_a_resumed_run_ends_in_the_same_mean(tmp_path):
    options = dict(SAVING, average_checkpoints=3)
    straight = tiny_trainer(tmp_path, **options)
    straight.train()
    for path in list_checkpoints(tmp_path)[3:]:
        path.rename(tmp_path / f"old-{path.name}")
    resumed = tiny_trainer(tmp_path, tiny_model(seed=9), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(weights(resumed.model), weights(straight.model))


def test_the_finished_model_is_the_mean_of_the_best(tmp_path):
    options = dict(eval_strategy="steps", eval_steps=1, metric_for_best_model="loss", average_best=2)
    trainer = tiny_trainer(tmp_path, **{**SAVING, "learning_rate": 0.3}, **options)
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    best = sorted(losses, key=losses.__getitem__)[:2]
    kept = {checkpoint_step(path) for path in list_checkpoints(tmp_path)}
    assert kept == {*best, 5, 6}
    models = [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / f"checkpoint-{step}") for step in best]
    expected = torch.stack([weights(model).double() for model in models]).mean(0)
    torch.testing.assert_close(weights(trainer.model).double(), expected, rtol=1e-7, atol=1e-9)


class Kill(TrainerCallback):
    """Sends this process SIGTERM after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def a_second_per_step(monkeypatch):
    """By the schedule's clock, the start of a training takes a second, and so does each update."""
    monkeypatch.setattr(trainers, "BudgetedLR", partial(BudgetedLR, clock=partial(next, itertools.count())))


SCORES = [1.0, 3.0, 6.0, 9.0, 8.0, 5.0, 4.0, 2.0]  # of each step: those of the stops, 4 and 5, are the best
BEST = dict(average_best=2, eval_strategy="steps", eval_steps=1, metric_for_best_model="score", greater_is_better=True)


def train_to(folder, resume: int | None = None, stop: int | None = None, **options):
    """A trainer that has trained on from step `resume`, and was stopped by a signal at step `stop`."""
    scores = iter(SCORES[resume or 0 :])
    trainer = tiny_trainer(folder, tiny_model(seed=resume or 0), metrics=lambda _: {"score": next(scores)}, **options)
    stopping = StopOnSignal(lambda line: None)
    if stop is not None:
        trainer.add_callback(Kill(stop))
    trainer.add_callback(stopping)
    with stopping.listening():
        trainer.train(resume_from_checkpoint=None if resume is None else str(folder / f"checkpoint-{resume}"))
    return trainer


def steps_in(folder) -> list[int]:
    return [checkpoint_step(path) for path in list_checkpoints(folder)]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (dict(average_checkpoints=3), [3, 4, 5]),
        (dict(average_checkpoints=2, save_total_limit=2), [3, 5]),
        (dict(average_checkpoints=2, save_total_limit=2, save_strategy="no", save_seconds=3.0), [3, 5]),
        (BEST, [3, 5]),
    ],
)
def test_a_run_that_signals_stopped_ends_in_the_same_mean(tmp_path, a_second_per_step, options, kept):
    """Stopped at steps 4 and 5; checkpoints are due at 3 and 6, and the end is at 8."""
    options = {**SAVING, "max_steps": 8, "save_steps": 3, **options}
    straight = train_to(tmp_path / "straight", **options)
    folder = tmp_path / "stopped"
    train_to(folder, stop=4, **options)
    train_to(folder, 4, stop=5, **options)
    assert steps_in(folder) == kept
    assert [checkpoint_step(path) for path in left_out(folder)] == [step for step in kept if step in (4, 5)]
    resumed = train_to(folder, 5, **options)
    assert torch.equal(weights(resumed.model), weights(straight.model))
    assert set(steps_in(folder)) - {4, 5} == set(steps_in(tmp_path / "straight"))
    assert bool({4, 5} & {*steps_in(folder)}) == (4 in kept)


def test_a_run_of_more_minutes_than_at_first_ends_in_the_same_mean(tmp_path, a_second_per_step):
    options = {**SAVING, "max_steps": -1, "save_steps": 3, "average_checkpoints": 3, "save_total_limit": 3}
    straight = train_to(tmp_path / "straight", **options, max_minutes=9 / 60)
    folder = tmp_path / "longer"
    shorter = train_to(folder, **options | {"average_checkpoints": 2}, max_minutes=6 / 60)
    assert steps_in(folder) == [3, 5]
    mean = dict(averaged_tensors([folder / "checkpoint-3", folder / "checkpoint-5"]))
    assert torch.equal(shorter.model.model.encoder.embed_tokens.weight, mean["model.encoder.embed_tokens.weight"])
    longer = train_to(folder, 5, **options, max_minutes=9 / 60)
    assert torch.equal(weights(longer.model), weights(straight.model))
    assert steps_in(folder) == steps_in(tmp_path / "straight") == [3, 6, 8]


@pytest.fixture
def run(tmp_path):
    """A run with three checkpoints and a log."""
    for step in (10, 20, 30):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        tiny_model(seed=step).save_pretrained(folder)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({}, folder / name)
        log = [{"step": at, "eval_loss": loss, "eval_bleu": 10 * loss} for at, loss in ((10, 2.0), (20, 3.0), (30, 2.5))]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": log, "global_step": step}))
    return tmp_path


def test_a_checkpoint_without_a_number_is_none_of_the_best():
    """NaN is neither less nor more than anything, so that nothing beside it would be in order either."""
    log = [{"step": step, "eval_loss": loss} for step, loss in enumerate((2.0, math.nan, 1.0, math.inf, 3.0), start=1)]
    assert values_in_log(log, "loss") == {1: 2.0, 3: 1.0, 4: math.inf, 5: 3.0}


def test_choice_of_the_last_and_the_best(run):
    assert [checkpoint_step(path) for path in last_checkpoints(run, 2)] == [20, 30]
    assert [checkpoint_step(path) for path in last_checkpoints(run / "checkpoints", 3)] == [10, 20, 30]
    assert [checkpoint_step(path) for path in best_checkpoints(run, 2, "loss", False)] == [10, 30]
    assert [checkpoint_step(path) for path in best_checkpoints(run, 2, "eval_bleu", True)] == [20, 30]


def test_what_a_stop_wrote_does_not_count_unless_the_training_is_over(run):
    last, first = run / "checkpoints" / "checkpoint-30", run / "checkpoints" / "checkpoint-10"
    OffSchedule(ended=False).write(last)
    assert [checkpoint_step(path) for path in last_checkpoints(run, 2)] == [10, 20]
    assert [checkpoint_step(path) for path in best_checkpoints(run, 2, "bleu", True)] == [10, 20]
    assert left_out(run) == [last]
    with pytest.raises(ValueError, match="holds 2: checkpoint-10, checkpoint-20, and besides checkpoint-30, written off the"):
        last_checkpoints(run, 3)
    assert [checkpoint_step(path) for path in last_checkpoints(run, 2, over_at=30)] == [20, 30]
    for path in (first, last):
        OffSchedule(ended=True).write(path)
    assert [checkpoint_step(path) for path in last_checkpoints(run, 2)] == [20, 30]
    assert left_out(run) == [first]


def test_refuses_more_than_there_are(run):
    with pytest.raises(ValueError, match=r"4 checkpoints are to be averaged, and .* holds 3: checkpoint-10"):
        last_checkpoints(run, 4)
    with pytest.raises(ValueError, match="no evaluations with 'chrf'; they have eval_bleu, eval_loss"):
        best_checkpoints(run, 1, "chrf", True)
    with pytest.raises(ValueError, match=r"the best 4 checkpoints by 'bleu' .* holds 3 with a value of it: checkpoint-10"):
        best_checkpoints(run, 4, "bleu", True)
    (run / "checkpoints" / "checkpoint-30" / "optimizer.pt").unlink()
    assert [checkpoint_step(path) for path in last_checkpoints(run, 2)] == [10, 20]


def test_refuses_an_average_of_more_than_a_run_will_write(tmp_path):
    trainer = tiny_trainer(tmp_path, **{**SAVING, "save_steps": 4}, average_checkpoints=3)
    with pytest.raises(ValueError, match="save_steps=4 writes 2 in 6 steps"):
        trainer.train()
    with pytest.raises(ValueError, match="exactly one"):
        AverageAtEnd(trainer)


def test_refuses_checkpoints_in_pieces(tmp_path):
    trainer = tiny_trainer(tmp_path, **SAVING, average_checkpoints=2)
    callback = AverageAtEnd(trainer, last=2)
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ValueError, match="needs whole weights"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average_checkpoints": 5, "save_total_limit": 2}, "save_total_limit=2 keeps fewer"),
        ({"average_checkpoints": 0}, "average_checkpoints=0 must be a whole number"),
        ({"average_checkpoints": 2, "average_best": 2}, "exclude each other"),
        ({"average_checkpoints": 2, "save_strategy": "no"}, "needs checkpoints"),
        ({"average_checkpoints": 2, "ema_decay": 0.9}, "ema_finish=False"),
        ({"average_checkpoints": 2, "lora": {}}, "average_checkpoints and lora exclude each other"),
        ({"average_best": 2, "save_total_limit": 3}, "leave save_total_limit=3 out"),
        ({"average_best": 2}, "needs metric_for_best_model"),
        ({"average_best": 2, "metric_for_best_model": "loss"}, "needs eval_strategy"),
    ],
)
def test_arguments_that_cannot_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tiny_trainer(tmp_path, rows=pairs(3), **{"save_strategy": "steps", **options})


def test_a_metric_goes_by_its_name_in_the_recipe_or_in_the_log():
    log = [{"step": 1, "eval_word_error": 0.5}, {"step": 2, "loss": 3.0}, {"step": 3, "eval_word_error": 0.25}]
    for name in ("word error", "word_error", "eval_word_error"):
        assert values_in_log(log, name) == {1: 0.5, 3: 0.25}
    assert values_in_log([{"step": 1, "eval_word error": 0.5}], "word error") == {1: 0.5}
    assert values_in_log(log, "loss") == {}

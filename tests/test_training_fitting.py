"""`max_tokens_per_batch: auto`, with limits of memory that are made up."""

import json

import numpy as np
import pytest
import torch

from fitting_runs import CPU, ROWS
from launching import seen_by_each
from tiny_training import Tokenizer, pairs, tiny_model, tiny_trainer
from transduct.modeling import TransductForCausalLM, TransductForMaskedLM
from transduct.training import Seq2SeqCollator, fitting
from transduct.training.fitting import cpu_budget, fits, fitting_budget, largest_budget, saved_bytes

LONGEST = np.array([7, 7])

pytestmark = pytest.mark.xdist_group("fitting")  # its processes start once


@pytest.mark.parametrize("limit", [10, 11, 37, 160, 999, 1000, 5000])
def test_the_largest_budget_below_any_limit(limit):
    tried = []

    def below(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= limit

    found = largest_budget(below, 10, 1000)
    assert found <= min(limit, 1000) <= 1.05 * found + 1
    assert len(tried) < 16
    assert max(tried) <= 1000


def test_not_even_one_row():
    with pytest.raises(ValueError, match="a batch of one row of 10 tokens"):
        largest_budget(lambda tokens: False, 10, 1000)


def limited(monkeypatch, rows: int) -> list[int]:
    """A device on which a step of more than `rows` rows runs out of memory; the numbers of rows tried."""
    tried, real = [], fitting.trial_step

    def step(trainer, longest, count, backward):
        tried.append(count)
        if count > rows:
            raise torch.OutOfMemoryError("no memory left")
        real(trainer, longest, count, backward)

    monkeypatch.setattr(fitting, "trial_step", step)
    return tried


def test_a_trial_leaves_nothing_behind(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path)
    trainer.model.eval()
    state = torch.get_rng_state()
    limited(monkeypatch, 3)
    assert fits(trainer, LONGEST, 3 * 14 + 13)
    assert not fits(trainer, LONGEST, 4 * 14)
    assert torch.equal(torch.get_rng_state(), state)
    assert not trainer.model.training
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_trainer_on_an_accelerator_tries(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch="auto")
    tried = limited(monkeypatch, 9)
    monkeypatch.setattr(fitting, "runs_on_cpu", lambda trainer: False)
    batches = list(trainer.get_train_dataloader())
    assert max(tried) > 9
    costs = [batch["input_ids"].numel() + batch["labels"].numel() for batch in batches]
    assert 0.6 * 9 * 14 < max(costs) <= 0.9 * 9 * 14 + 14
    note = json.loads((tmp_path / "token_budget.json").read_text())
    assert max(costs) <= note["max_tokens_per_batch"] <= 9 * 14


def test_a_run_that_goes_on_keeps_its_budget(tmp_path):
    (tmp_path / "token_budget.json").write_text('{"max_tokens_per_batch": 40}')
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch="auto", packing=True)
    (tmp_path / "checkpoint-1").mkdir()
    assert all(batch["input_ids"].numel() + batch["labels"].numel() <= 40 for batch in trainer.get_train_dataloader())
    (tmp_path / "checkpoint-1").rmdir()  # nothing goes on, and the model may be another one
    trainer.get_train_dataloader()
    assert json.loads((tmp_path / "token_budget.json").read_text())["max_tokens_per_batch"] > 40


def test_what_a_row_keeps_grows_with_rows_and_length(tmp_path):
    trainer = tiny_trainer(tmp_path)
    one, two, three = (saved_bytes(trainer, LONGEST, rows) for rows in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=0.02)
    longer = saved_bytes(trainer, 10 * LONGEST, 2) - saved_bytes(trainer, 10 * LONGEST, 1)
    assert longer > 9 * (two - one)


def test_a_cpu_takes_half_of_what_is_free(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path)
    row = saved_bytes(trainer, LONGEST, 2) - saved_bytes(trainer, LONGEST, 1)
    for rows in (5, 50):
        monkeypatch.setattr(fitting, "free_memory", lambda rows=rows: 2 * 2 * row * (rows + 0.5))
        assert cpu_budget(trainer, LONGEST) == pytest.approx(rows * 14, rel=0.03)
    monkeypatch.setattr(fitting, "free_memory", lambda: row)
    with pytest.raises(ValueError, match="one row of the longest pairs, 7 and 7 tokens, needs"):
        cpu_budget(trainer, LONGEST)


def test_both_passes_of_r_drop_must_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "free_memory", lambda: 10**7)
    once, twice = (cpu_budget(tiny_trainer(tmp_path, r_drop=alpha), LONGEST) for alpha in (0.0, 1.0))
    assert twice == pytest.approx(once / 2, rel=0.05)


@pytest.mark.parametrize("kind", [TransductForCausalLM, TransductForMaskedLM])
def test_a_budget_of_one_stack(tmp_path, kind):
    model = kind(tiny_model(eos_token_id=[1, 2]).config)
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in pairs()]
    trainer = tiny_trainer(tmp_path, model, rows, max_tokens_per_batch="auto", max_steps=1)
    trainer.data_collator = Seq2SeqCollator(Tokenizer())
    trainer.train()
    assert json.loads((tmp_path / "token_budget.json").read_text())["max_tokens_per_batch"] >= 7


def test_a_budget_with_the_label_smoothing_of_the_trainer(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch="auto", max_steps=1, label_smoothing_factor=0.1)
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_cpu_has_more_memory_than_an_epoch_needs(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch="auto", num_train_epochs=1)
    trainer.train()
    assert 1 <= trainer.state.global_step <= 3


def test_sharded_models_need_a_number(tmp_path):
    trainer = tiny_trainer(tmp_path, max_tokens_per_batch="auto")
    trainer.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="give a number"):
        fitting_budget(trainer, np.array([[5, 7], [7, 6]]))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What each of two processes saw; all in one start, since that is what takes time."""
    return seen_by_each("fitting_runs.py", tmp_path_factory.mktemp("fitting"))


def assert_one_budget(first: dict, second: dict, lowest: float, highest: float) -> None:
    """Both processes have batches of one budget between these two, which is noted."""
    assert first["noted"] == second["noted"]
    assert lowest <= first["noted"] <= highest
    assert len(first["costs"]) == len(second["costs"]) > 3
    for seen in (first, second):
        assert 0.7 * first["noted"] < max(seen["costs"]) <= first["noted"]


@pytest.mark.slow
@pytest.mark.parametrize("smaller", CPU)
def test_two_processes_take_the_budget_of_the_smaller_memory(two_processes, smaller):
    assert_one_budget(*(seen["cpu"][smaller] for seen in two_processes), min(CPU[smaller]), min(CPU[smaller]))


@pytest.mark.slow
@pytest.mark.parametrize("smaller", ROWS)
def test_two_accelerators_take_the_budget_of_the_smaller_one(two_processes, smaller):
    first, second = (seen["accelerator"][smaller] for seen in two_processes)
    least, most = min(ROWS[smaller]), max(ROWS[smaller])
    assert_one_budget(first, second, 0.9 * least * 14 / 1.05, 0.9 * (least + 1) * 14)
    more = (first, second)[ROWS[smaller].index(most)]
    assert any(least < rows <= most for rows in more["tried"])  # what fitted there is not what was taken


@pytest.mark.slow
def test_two_processes_go_on_with_the_budget_that_the_first_has_noted(two_processes):
    first, second = (seen["going on"] for seen in two_processes)
    assert (first["noted"], second["noted"]) == (60, None)
    assert len(first["costs"]) == len(second["costs"])
    assert 0.7 * 60 < max(first["costs"] + second["costs"]) <= 60

"""Two processes see what one sees, stop together, leave out the same updates, and go on as if they had not stopped."""

import json

import pytest
import torch

import processes_runs
from launching import accelerate_launch, seen_by_each
from test_training_faults import POISON
from test_training_run import raw_recipe
from tiny_training import pairs
from transduct.training.checkpoints import checkpoint_fault
from transduct.training.processes import decided_by_main

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]  # its processes start once


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def two(folder):
    """What each of two processes saw; all in one start, since that is what takes time."""
    return seen_by_each("processes_runs.py", folder)


def test_an_evaluation_does_not_depend_on_the_number_of_processes(two, tmp_path):
    alone = processes_runs.evaluation(tmp_path)
    for seen in two:
        for name in ("loss", "plain loss"):
            assert seen["evaluation"][name] == pytest.approx(alone[name], rel=1e-6)
        for name in ("error", "predictions", "labels"):
            assert seen["evaluation"][name] == alone[name]


def test_each_row_is_predicted_once_in_its_place(two, folder):
    rows = pairs(10)
    lines = [json.loads(line) for line in (folder / "predictions/0.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(10))
    assert [line["references"] for line in lines] == [
        [text] for text in processes_runs.Words().batch_decode([row["labels"] for row in rows], True)
    ]
    assert [line["prediction"] for line in lines] == two[0]["evaluation"]["predictions"]
    assert two[0]["evaluation"]["labels"] == [row["labels"] for row in rows]


def test_all_stop_before_an_update_that_one_cannot_compute(two, folder):
    for seen in two:
        assert seen["skipping"]["stopped at"] == 1
        assert "update 2: the gradient is not finite" in seen["skipping"]["error"]
        assert "process 1: loss nan in batch 1 of 1, 4 rows" in seen["skipping"]["error"]
        assert "process 0" not in seen["skipping"]["error"]
    (written,) = (folder / "skipping").glob("nan_batch_*")
    assert written.name == "nan_batch_2_process1.safetensors"
    from safetensors.torch import load_file

    assert (load_file(written)["0.input_ids"] == POISON).any()


def test_all_leave_out_the_same_update(two):
    first, second = (seen["skipping"] for seen in two)
    assert first["record"] == second["record"] == {"skipped": 1, "in_a_row": 0}
    assert torch.equal(first["weights"], second["weights"])
    assert first["weights"].isfinite().all()


@pytest.mark.parametrize("to", [0, 1])
def test_a_signal_to_one_stops_all_at_one_step_with_a_checkpoint(two, folder, to):
    first, second = (seen["stopping"][to] for seen in two)
    assert first == second
    assert first["received"] == 15
    assert first["step"] in (2, 3, 4)
    checkpoint = folder / f"stopping{to}" / f"checkpoint-{first['step']}"
    assert checkpoint_fault(checkpoint) is None
    assert sorted(path.name for path in checkpoint.glob("rng_state*")) == ["rng_state_0.pth", "rng_state_1.pth"]


def test_a_resumed_training_equals_one_at_once(two):
    for seen in two:
        assert torch.equal(seen["resuming"]["once"], seen["resuming"]["twice"])
    assert torch.equal(two[0]["resuming"]["once"], two[1]["resuming"]["once"])


def test_a_process_whose_step_leaves_out_all_trained_layers_keeps_no_other_waiting(two):
    first, second = (seen["dropping"] for seen in two)
    assert torch.equal(first["weights"], second["weights"])
    assert not torch.equal(first["weights"], first["before"])


def test_the_main_process_decides(two):
    assert [seen["decided"] for seen in two] == ["by 0", "by 0"]
    assert decided_by_main(lambda: 3) == 3


def test_the_command_in_two_processes(tmp_path):
    """Started by `accelerate launch`: one writes and prints; the model loads; a second start only evaluates."""
    import yaml
    from transformers import AutoModelForSeq2SeqLM

    options = dict(eval_strategy="steps", eval_steps=6, save_strategy="steps", ddp_backend="gloo", per_device_eval_batch_size=4)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw_recipe(tmp_path, **options)))
    done = accelerate_launch("-m", "transduct.training", str(tmp_path / "recipe.yaml"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "find_unused_parameters" not in done.stderr  # DDP's warning about a needless search
    for text in ("train: 10 sources", "model: ", "step 12  validation", "saved to", "test: phoneme error", "cb ->"):
        assert done.stdout.count(text) == 1
    assert len((tmp_path / "out/predictions/12.jsonl").read_text().splitlines()) == 10
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out" / "model").config.d_model == 16
    again = accelerate_launch("-m", "transduct.training", str(tmp_path / "recipe.yaml"))
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stdout.count("nothing is left to train") == 1

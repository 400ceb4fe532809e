"""`transduct plan`: parameters, operations and steps against the model, PyTorch's counter and the paper's own figures."""

import json
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transduct.accounting import describe
from transduct.cli.main import run as command
from transduct.configuration import TransductConfig
from transduct.modeling import TransductForConditionalGeneration
from transduct.training.planning import PlanOptions, make_plan, training_flops
from transduct.training.recipe import Recipe, build_recipe

DOCUMENTS = {"train": {"text": "a.txt"}}


def recipe(tmp_path, model=None, tokenizer=None, data=None, objective=None, **training) -> Recipe:
    made = build_recipe({
        "output": str(tmp_path / "out"),
        "model": model or {"preset": "vaswani-base"},
        "tokenizer": tokenizer or {"kind": "bpe", "vocab_size": 37000},
        "data": {"train": {"source": "a.txt", "target": "b.txt"}, **(data or {})},
        "training": training,
        **({"objective": objective} if objective else {}),
    })  # fmt: skip
    made.folder = tmp_path
    return made


PAPER = dict(max_tokens_per_batch=6250, bf16=True, max_steps=100_000, schedule="vaswani", warmup_steps=4000)
"""Section 5.1: about 25,000 source and as many target tokens a step, on 8 devices."""


def test_parameters_are_those_of_the_model(tmp_path):
    for model in (
        {"preset": "vaswani-base"},
        {"preset": "bart-base", "d_model": 96, "num_heads": 4},
        {"preset": "t5-v1.1-small"},
    ):
        planned = make_plan(recipe(tmp_path, model, {"kind": "bpe", "vocab_size": 1000}))
        fields = {**model, "vocab_size": 1000, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        from transduct.presets import config_from_preset

        with torch.device("meta"):
            built = TransductForConditionalGeneration(
                config_from_preset(fields.pop("preset"), decoder_start_token_id=0, **fields)
            )
        assert planned.parameters == sum(parameter.numel() for parameter in built.parameters())


def test_the_papers_own_training(tmp_path):
    """Vaswani et al., table 2: base took 3.3e18 FLOPs = 12 hours x 8 devices x 9.5e12, which counts time, not operations."""
    options = PlanOptions(gpus=8, gpu="p100", utilisation=1.0, source_length=25, target_length=25, examples=4_500_000)
    planned = make_plan(recipe(tmp_path, **PAPER), options)
    assert planned.tokens_per_step == 8 * 125 * 50 == 50_000
    assert planned.steps == 100_000
    assert planned.epochs == pytest.approx(100_000 * 1000 / 4_500_000, rel=1e-3)
    per_token = describe(TransductConfig(vocab_size=37000)).multiply_adds_per_source_token
    assert planned.flops_per_step > 6 * 50_000 * per_token
    assert 0.2 < planned.flops / 3.3e18 < 0.4  # what of the sustained peak the multiplications are
    assert planned.hours == pytest.approx(planned.flops / (8 * 9.5e12) / 3600)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("changes", [{}, dict(norm_position="pre", gated_ffn=True, tie_embeddings="source_target")])
def test_operations_are_those_that_pytorch_counts(changes, checkpointing):
    sizes = dict(vocab_size=53, d_model=24, d_ff=40, num_heads=4, encoder_layers=2, decoder_layers=3, dropout=0.1)
    config = TransductConfig(**{**sizes, **changes})
    config._attn_implementation = "eager"
    model = TransductForConditionalGeneration(config).train()
    if checkpointing:
        model.activation_checkpointing_enable()
    rows, source, target = 3, 11, 5
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.full((rows, source), 3), labels=torch.full((rows, target), 3)).loss.backward()
    described = describe(config)
    hidden_future = target * (target - 1) // 2 * described.attention_multiply_adds_per_pair["decoder"]  # eager computes it too
    expected = training_flops(described, source, target, checkpointing) + 2 * (3 + checkpointing) * hidden_future
    assert counter.get_total_flops() == pytest.approx(rows * expected, rel=0.01)


def test_steps_follow_from_lines_batches_and_epochs(tmp_path):
    (tmp_path / "a.txt").write_text("word\n" * 103)
    rows = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    planned = make_plan(recipe(tmp_path, num_train_epochs=2.5, **rows), PlanOptions(gpus=3))
    assert (planned.examples, planned.steps_per_epoch, planned.steps) == (103, math.ceil(103 / 24), math.ceil(2.5 * 5))
    assert make_plan(recipe(tmp_path, data={"train": {"source": "a.txt", "target": "b", "limit": 50}})).examples == 50
    assert make_plan(recipe(tmp_path, **rows), PlanOptions(examples=7)).steps_per_epoch == 1
    budget = recipe(tmp_path, max_tokens_per_batch=1000)
    assert make_plan(budget).steps_per_epoch is None  # how many pairs a batch holds is not known
    assert make_plan(budget, PlanOptions(source_length=6, target_length=4)).steps_per_epoch == 2


def test_without_a_last_row_there_are_no_epochs(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"source": "x", "target": "y"}\n' * 50)
    mixture = [{"json": "a.jsonl"}, {"source": "b.txt", "target": "c.txt"}]
    planned = make_plan(recipe(tmp_path, data={"train": mixture}, max_steps=9), PlanOptions(examples=100))
    assert (planned.steps, planned.steps_per_epoch, planned.epochs) == (9, None, None)


@pytest.mark.parametrize("name", ["causal_lm", "masked_lm"])
def test_one_stack_alone_is_planned_as_such(tmp_path, name):
    planned = make_plan(recipe(tmp_path, data=DOCUMENTS, objective={"name": name, "inputs_length": 64}, max_steps=9, bf16=True))
    whole = make_plan(recipe(tmp_path, data=DOCUMENTS, objective={"name": "bart", "inputs_length": 64}, max_steps=9, bf16=True))
    assert planned.parameters < 0.7 * whole.parameters
    assert planned.layouts[0].activations < 0.75 * whole.layouts[0].activations
    assert planned.flops_per_step < 0.6 * whole.flops_per_step


@pytest.mark.parametrize("name", ["causal_lm", "masked_lm"])
def test_labels_of_one_stack_are_no_tokens_of_a_batch(tmp_path, name):
    objective = {"name": name, "inputs_length": 64}
    planned = make_plan(recipe(tmp_path, data=DOCUMENTS, objective=objective, max_steps=9, max_tokens_per_batch=640))
    assert (planned.pairs_per_batch, planned.tokens_per_step) == (10, 640)
    assert "10 x 64 tokens" in str(planned)


def test_r_drop_and_averages_cost_what_they_do(tmp_path):
    plain, dropped, averaged = (make_plan(recipe(tmp_path, **options)) for options in ({}, {"r_drop": 1.0}, {"ema_decay": 0.9}))
    assert dropped.flops_per_step == 2 * plain.flops_per_step
    assert dropped.layouts[0].activations > 1.7 * plain.layouts[0].activations
    assert averaged.layouts[0].total - plain.layouts[0].total == 4 * plain.parameters


def test_only_what_is_trained_has_gradients_and_state(tmp_path):
    whole = make_plan(recipe(tmp_path)).layouts[0]
    frozen = make_plan(recipe(tmp_path, freeze=["embeddings", "encoder"])).layouts[0]
    decoder = 25_165_824  # the matrices of base's decoder
    assert frozen.parameters == whole.parameters
    assert frozen.gradients == pytest.approx(4 * decoder, rel=0.01)
    assert frozen.optimizer == 2 * frozen.gradients
    adapted = make_plan(recipe(tmp_path, lora={"rank": 8}))
    added = 18 * 2 * 8 * (512 + 512)  # 18 attentions, q_proj and v_proj, two matrices of rank 8
    assert adapted.parameters == 63_082_496 + added
    assert adapted.layouts[0].gradients == 4 * added
    assert any("training.lora: FLOPs" in note for note in adapted.assumptions)


def test_minutes_limit_the_steps(tmp_path):
    timed = recipe(tmp_path, max_minutes=10, schedule="constant")
    planned = make_plan(timed, PlanOptions(flops=1e12, utilisation=0.5))
    assert planned.hours == pytest.approx(1 / 6, rel=0.01)
    open_end = make_plan(timed)
    assert (open_end.steps, open_end.hours, open_end.flops) == (None, None, None)
    assert any("the number of steps is open" in note for note in open_end.assumptions)


def test_lengths_come_from_the_options_the_recipe_or_an_assumption(tmp_path):
    data = {"max_source_tokens": 300, "max_target_tokens": 200}
    planned = make_plan(recipe(tmp_path, data=data), PlanOptions(source_length=30))
    assert (planned.source_length, planned.target_length) == (30, 200)
    assert any("a target has 200 tokens: data.max_target_tokens" in note for note in planned.assumptions)
    small = make_plan(recipe(tmp_path, {"preset": "vaswani-base", "max_positions": 64}))
    assert (small.source_length, small.target_length) == (64, 64)


def test_memory_of_mixed_precision_lies_between(tmp_path):
    full, mixed = (make_plan(recipe(tmp_path, max_tokens_per_batch=8192, bf16=bf16)).layouts[0] for bf16 in (False, True))
    assert 0.5 * full.activations < mixed.activations < full.activations
    assert (full.parameters, full.optimizer) == (mixed.parameters, mixed.optimizer)
    assert mixed.working > full.working == 0


@pytest.mark.parametrize(("optim", "values"), [("adamw_torch", 2.0), ("sgd", 0.0), ("adafactor", 0.01)])
def test_the_optimizers_state(tmp_path, optim, values):
    if optim == "adafactor":
        assert make_plan(recipe(tmp_path, optimizer=optim)).layouts == make_plan(recipe(tmp_path, optim=optim)).layouts
    layout = make_plan(recipe(tmp_path, optim=optim)).layouts[0]
    assert layout.optimizer / layout.parameters == pytest.approx(values, abs=0.01)


def test_a_saved_model_is_planned_as_it_is(tmp_path):
    config = TransductConfig(vocab_size=11, d_model=8, d_ff=12, num_heads=2, encoder_layers=1, decoder_layers=2)
    config.save_pretrained(tmp_path / "model")
    planned = make_plan(recipe(tmp_path, {"from_pretrained": str(tmp_path / "model")}))
    assert planned.parameters == describe(config).parameters
    (tmp_path / "model" / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ValueError, match="model_type='t5', not 'transduct'"):
        make_plan(recipe(tmp_path, {"from_pretrained": str(tmp_path / "model")}))
    with pytest.raises(ValueError, match="is not a folder with a saved model"):
        make_plan(recipe(tmp_path, {"from_pretrained": "no/such"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(gpus=0), "gpus=0 must be a whole number of at least 1"),
        (dict(examples=-1), "examples=-1 must be"),
        (dict(gpu_memory=-80.0), "gpu_memory=-80.0 must be more than 0"),
        (dict(flops=math.nan), "flops=nan must be a number"),
        (dict(utilisation=1.4), r"utilisation=1.4 must lie in \(0, 1\]"),
        (dict(reserve=1.0), r"reserve=1.0 must lie in \[0, 1\)"),
        (dict(gpu="a100"), "gpu='a100' is unknown: did you mean a100-40 or a100-80"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PlanOptions(**options)


def test_recipes_that_cannot_be_planned_are_refused(tmp_path):
    with pytest.raises(ValueError, match="max_tokens_per_batch=100 is less than one pair of 128 \\+ 128 tokens"):
        make_plan(recipe(tmp_path, max_tokens_per_batch=100))
    with pytest.raises(ValueError, match="max_tokens_per_batch='auto' is found out on the device"):
        make_plan(recipe(tmp_path, max_tokens_per_batch="auto"))
    with pytest.raises(ValueError, match=r"training.optim='rmsprop' cannot be planned"):
        make_plan(recipe(tmp_path, optim="rmsprop"))
    with pytest.raises(ValueError, match=r"training.bf16 and training.fp16 exclude"):
        make_plan(recipe(tmp_path, bf16=True, fp16=True))
    every_other = dict(activation_checkpointing=True, activation_checkpointing_kwargs={"every_n_layers": 2})
    with pytest.raises(ValueError, match="only every layer, without offload"):
        make_plan(recipe(tmp_path, **every_other))


CONFIG = """
output: {folder}/out
model: {{preset: vaswani-base}}
tokenizer: {{kind: bpe, vocab_size: 37000}}
data: {{train: {{source: a.txt, target: b.txt}}}}
training: {{max_tokens_per_batch: 6400, bf16: true, max_steps: 1000}}
"""


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.format(folder=tmp_path))
    assert command(["plan", str(file), "--gpus", "64", "--gpu-memory", "80"]) == 0
    table = capsys.readouterr().out
    for text in ("63,082,496", "FSDP (ZeRO-3)", "fits", "409,600", "the slowest known here with 80 GiB: --gpu names yours"):
        assert text in table
    assert command(["plan", str(file), "--gpus", "64", "--gpu", "a100-80"]) == 0
    named = capsys.readouterr().out.splitlines()
    (hours,) = [line for line in table.splitlines() if line.startswith("hours")]
    assert hours in named
    assert not (tmp_path / "out").exists()
    assert command(["plan", str(file), "--gpus", "2", "--gpu", "t4", "--set", "model.preset=vaswani-big", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"] > 200e6
    assert {layout["layout"]: layout["fits"] for layout in plan["layouts"]} == dict.fromkeys(
        ("ddp", "zero1", "zero2", "fsdp"), True
    )
    assert command(["plan", str(file), "--gpu-memory", "0.5"]) == 0
    small = capsys.readouterr().out
    assert "does not fit" in small
    assert "hours need --flops" in small
    assert command(["plan", str(file), "--utilisation", "2"]) == 2
    assert "utilisation=2.0 must lie in" in capsys.readouterr().err

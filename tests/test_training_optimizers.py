"""The optimizers against the papers' algorithms in NumPy, their state through a file, and their way to the trainer."""

import numpy as np
import pytest
import torch
from transformers.optimization import Adafactor as TransformersAdafactor

from tiny_training import QUIET, pairs, tiny_model, tiny_trainer
from transduct.training import TransductTrainingArguments
from transduct.training.optimizers import Adafactor, RelativeAdamW, optimizer_of, rms

SHAPES = [(6, 4), (3, 5, 4), (7,), ()]


def random_run(shapes=SHAPES, steps=6, seed=0, dtype=torch.float64):
    """First values of some tensors, and their gradients at each step."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    gradients = [
        [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes] for _ in range(steps)
    ]
    return weights, gradients


def train(optimizer_class, weights, gradients, **options):
    """The parameters after all gradients, and the optimizer."""
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = optimizer_class(parameters, **options)
    for step in gradients:
        feed(optimizer, parameters, step)
    return parameters, optimizer


def feed(optimizer, parameters, step):
    for parameter, gradient in zip(parameters, step, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def root_mean_square(array):
    return np.sqrt(np.mean(np.square(array)))


def algorithm_4(matrix, gradients, rate):
    """Adafactor for a weight matrix, line by line as in the paper, with its constants of section 9."""
    row_sums, column_sums = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[1])
    for t, gradient in enumerate(gradients, start=1):
        step_size = max(1e-3, root_mean_square(matrix)) * rate
        decay = 1 - t**-0.8
        squared = gradient**2 + 1e-30
        row_sums = decay * row_sums + (1 - decay) * squared @ np.ones(matrix.shape[1])
        column_sums = decay * column_sums + (1 - decay) * np.ones(matrix.shape[0]) @ squared
        second_moment = np.outer(row_sums, column_sums) / row_sums.sum()
        update = gradient / np.sqrt(second_moment)
        matrix = matrix - step_size * update / max(1.0, root_mean_square(update) / 1.0)
    return matrix


def algorithm_5(vector, gradients, rate):
    """Adafactor for a weight vector."""
    second_moment = np.zeros_like(vector)
    for t, gradient in enumerate(gradients, start=1):
        step_size = max(1e-3, root_mean_square(vector)) * rate
        decay = 1 - t**-0.8
        second_moment = decay * second_moment + (1 - decay) * (gradient**2 + 1e-30)
        update = gradient / np.sqrt(second_moment)
        vector = vector - step_size * update / max(1.0, root_mean_square(update) / 1.0)
    return vector


def test_adafactor_is_the_papers():
    weights, gradients = random_run()
    parameters, _ = train(Adafactor, weights, gradients, lr=0.1, min_size_to_factor=1)
    per_tensor = [[step[i].numpy() for step in gradients] for i in range(len(SHAPES))]
    expected = [
        algorithm_4(weights[0].numpy(), per_tensor[0], 0.1),
        None,
        algorithm_5(weights[2].numpy(), per_tensor[2], 0.1),
        algorithm_5(weights[3].numpy(), per_tensor[3], 0.1),
    ]
    for parameter, values in zip(parameters, expected, strict=True):
        if values is not None:
            np.testing.assert_allclose(parameter.detach().numpy(), values, rtol=1e-12)


def test_adafactor_clips_updates_and_starts_from_zeros():
    """A sudden gradient of 1000 moves a zero matrix by no more than 0.001 of the rate in root mean square."""
    weights, gradients = [torch.zeros(4, 4)], [[torch.full((4, 4), 1e-3)]] * 5 + [[torch.full((4, 4), 1e3)]]
    before, optimizer = train(Adafactor, weights, gradients[:5], lr=1.0, min_size_to_factor=1)
    old = before[0].detach().clone()
    feed(optimizer, before, gradients[5])
    moved = root_mean_square((before[0].detach() - old).numpy())
    assert moved == pytest.approx(max(1e-3, root_mean_square(old.numpy())), rel=1e-5)


def test_adafactor_factors_large_matrices_only():
    """As in T5's settings: a table of 32 buckets for 8 heads keeps all its second moments."""
    weights, gradients = random_run([(32, 8), (128, 130)], steps=2)
    parameters, optimizer = train(Adafactor, weights, gradients)
    assert optimizer.state[parameters[0]]["moments"].shape == (32, 8)
    state = optimizer.state[parameters[1]]
    assert (state["row_moments"].shape, state["column_moments"].shape) == ((128,), (130,))
    expected = algorithm_5(weights[0].numpy(), [step[0].numpy() for step in gradients], 1e-3)
    np.testing.assert_allclose(parameters[0].detach().numpy(), expected, rtol=1e-12)


def test_adafactor_agrees_with_transformers_own():
    weights, gradients = random_run()
    ours, _ = train(Adafactor, weights, gradients, lr=0.01, min_size_to_factor=1)
    theirs, _ = train(TransformersAdafactor, weights, gradients, lr=0.01, relative_step=False, scale_parameter=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_relative_adamw_scales_each_tensors_update():
    weights, gradients = random_run()
    weights[2].zero_()
    parameters, _ = train(RelativeAdamW, weights, gradients, lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
    for i, start in enumerate(weights):
        values, first, second = start.numpy(), 0.0, 0.0
        for t, step in enumerate(gradients, start=1):
            gradient = step[i].numpy()
            first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
            update = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.98**t)) + 1e-9)
            values = values * (1 - 0.01 * 0.1) - 0.01 * max(1e-3, root_mean_square(values)) * update
        np.testing.assert_allclose(parameters[i].detach().numpy(), values, rtol=1e-9)


def test_relative_adamw_takes_tensors_that_join_later():
    weights, gradients = random_run([(4, 3), (4, 3)], steps=4)
    together = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = RelativeAdamW(together)
    for number, step in enumerate(gradients):
        together[0].grad, together[1].grad = step[0], step[1] if number >= 2 else None
        optimizer.step()
    late, _ = train(RelativeAdamW, weights[1:], [step[1:] for step in gradients[2:]])
    torch.testing.assert_close(together[1], late[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("optimizer_class", [Adafactor, RelativeAdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_through_a_file_bit_by_bit(tmp_path, optimizer_class, dtype):
    weights, gradients = random_run([(130, 128), (5,)], steps=6, dtype=dtype)
    straight, _ = train(optimizer_class, weights, gradients, lr=0.05)
    halfway, optimizer = train(optimizer_class, weights, gradients[:3], lr=0.05)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    again = [torch.nn.Parameter(parameter.detach().clone()) for parameter in halfway]
    resumed = optimizer_class(again, lr=0.7)
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for step in gradients[3:]:
        feed(resumed, again, step)
    for parameter, expected in zip(again, straight, strict=True):
        assert torch.equal(parameter, expected)
        moments = [value for value in resumed.state[parameter].values() if isinstance(value, torch.Tensor)]
        assert all(moment.dtype == torch.float32 for moment in moments)


@pytest.mark.parametrize("other", [torch.optim.AdamW, Adafactor, RelativeAdamW])
@pytest.mark.parametrize("kind", [Adafactor, RelativeAdamW])
def test_the_state_of_another_optimizer_is_refused(kind, other):
    if kind is other:
        return
    weights, gradients = random_run(steps=1)
    _, written = train(other, weights, gradients)
    _, optimizer = train(kind, weights, gradients)
    with pytest.raises(ValueError, match=f"so that of {kind.__name__} it is not"):
        optimizer.load_state_dict(written.state_dict())


def test_root_mean_square_of_a_tensor():
    assert rms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).item() == 2.5


@pytest.mark.parametrize("name", ["adam", "adafactor", "adamw_rms"])
def test_a_resumed_run_is_bit_equal_to_a_straight_one(tmp_path, name):
    options = dict(optimizer=name, schedule="constant", learning_rate=0.02, max_tokens_per_batch=60, num_train_epochs=2)
    straight = optimised_trainer(tmp_path / "straight", **options)
    straight.train()
    untrained = optimised_trainer(tmp_path / "untrained", **options).evaluate()["eval_loss"]
    assert straight.evaluate()["eval_loss"] < untrained
    first = optimised_trainer(tmp_path / "stopped", save_strategy="steps", save_steps=3, **options)
    first.train()
    resumed = optimised_trainer(tmp_path / "stopped", model=tiny_model(seed=99), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-3"))
    assert resumed.state.global_step == straight.state.global_step > 3
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def optimised_trainer(folder, **options):
    return tiny_trainer(folder, rows=pairs(), **options)


def arguments(tmp_path, **options):
    return TransductTrainingArguments(output_dir=str(tmp_path), **{**QUIET, **options})


def test_options_of_the_arguments(tmp_path):
    assert optimizer_of(arguments(tmp_path)) is None
    assert optimizer_of(arguments(tmp_path, optimizer="adam", schedule="vaswani", warmup_steps=9)) == (
        torch.optim.AdamW,
        {"lr": 1.0, "betas": (0.9, 0.98), "eps": 1e-9},
    )
    assert optimizer_of(arguments(tmp_path, optimizer="adafactor")) == (Adafactor, {"lr": 1e-3})
    kind, options = optimizer_of(arguments(tmp_path, optimizer="adamw_rms", learning_rate=0.01, adam_beta2=0.98))
    assert kind is RelativeAdamW
    assert options == {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8}


@pytest.mark.parametrize("model_options", [{}, {"norm": "rmsnorm", "norm_position": "pre", "positions": "relative_bias"}])
def test_norms_and_biases_do_not_decay(tmp_path, model_options):
    trainer = optimised_trainer(tmp_path, model=tiny_model(**model_options), optimizer="adamw_rms", weight_decay=0.1)
    trainer.get_train_dataloader()
    decayed, kept = trainer.create_optimizer().param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    decayed, kept = ({names[id(parameter)] for parameter in group["params"]} for group in (decayed, kept))
    assert decayed | kept == set(names.values())
    assert kept == {name for name in names.values() if "norm" in name or "bias" in name}
    assert all("norm" not in name and not name.endswith("bias") for name in decayed)


@pytest.mark.parametrize("name", ["adafactor", "adamw_rms"])
def test_refuses_flat_pieces_of_tensors(tmp_path, monkeypatch, name):
    args = arguments(tmp_path, optimizer=name)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert optimizer_of(args) is not None
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(ValueError, match="choose its version 2"):
        optimizer_of(args)
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ValueError, match="DeepSpeed"):
        optimizer_of(args)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda weights: Adafactor(weights, lr=-1), "lr=-1"),
        (lambda weights: Adafactor(weights, clip_threshold=0), "clip_threshold=0"),
        (lambda weights: RelativeAdamW(weights, betas=(0.9, 1.0)), r"betas=\(0.9, 1.0\)"),
        (lambda weights: RelativeAdamW(weights, eps=0.0), "eps=0.0"),
    ],
)
def test_errors_name_value_and_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make([torch.nn.Parameter(torch.zeros(2))])


@pytest.mark.parametrize("optimizer_class", [Adafactor, RelativeAdamW])
def test_a_closure_computes_loss_and_gradient(optimizer_class):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = optimizer_class([weight])

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    assert optimizer.step(closure) == 3.0
    assert (weight < 1).all()

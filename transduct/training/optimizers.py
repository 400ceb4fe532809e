"""Optimizers of the papers: Vaswani's Adam, T5's Adafactor, and AdamW whose updates are relative to the size of the weights.

- `adam`: betas 0.9 and 0.98, epsilon 1e-9 (Vaswani et al. 2017, section 5.3). Weight decay, if any, is decoupled.
- `adafactor`: Shazeer & Stern 2018, algorithms 4 and 5, as T5 set it: no momentum, decay `1 - t^-0.8`, updates clipped to a root
  mean square of 1 and multiplied by that of the weights, no relative step sizes; the schedule is the trainer's.
- `adamw_rms`: AdamW with each tensor's update multiplied by `max(1e-3, RMS(weights))`, as Adafactor does it, so that T5's
  learning rates suit it.

`TransductTrainer` uses them where `args.optimizer` says so, any `Trainer` as `optimizer_cls_and_kwargs=optimizer_of(args)`.
It puts norms and biases into a group without weight decay.

Why not transformers' own Adafactor: it has no least size below which a tensor is not factored (T5 had 128: its relative position
biases are not), it does not run on the sharded tensors of FSDP2, and its state loses bits when it is loaded for bfloat16 weights.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch.optim import AdamW, Optimizer

from transduct.training.weights import at_least_float32, whole

OptimizerName = Literal["adam", "adafactor", "adamw_rms"]

RELATIVE_TO_WEIGHTS = ("adafactor", "adamw_rms")
"""Their updates need whole tensors in their own shape."""

OPTIONS_WITHOUT_USE = {
    "adam": ("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "optim_target_modules"),
    "adafactor": ("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "optim_target_modules"),
    "adamw_rms": ("optim_args", "optim_target_modules"),
}
"""Training arguments that an optimizer does not ask: `adam` has the paper's betas and epsilon."""

Options = tuple[type[Optimizer], dict[str, Any]]


def optimizer_of(args: Any) -> Options | None:
    """What `Trainer` takes as `optimizer_cls_and_kwargs` for `args.optimizer`; None where the trainer's own `optim` is used.

    Args:
        args: `TransductTrainingArguments`.

    Raises:
        ValueError: for an optimizer that the distribution of the run would hand flattened parts of tensors.
    """
    if args.optimizer is None:
        return None
    rate = args.learning_rate
    if args.optimizer == "adam":
        return AdamW, {"lr": rate, "betas": (0.9, 0.98), "eps": 1e-9}
    _refuse_flat_parameters(args)
    if args.optimizer == "adafactor":
        return Adafactor, {"lr": rate}
    return RelativeAdamW, {"lr": rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}


def _refuse_flat_parameters(args: Any) -> None:
    """FSDP's first version and DeepSpeed's ZeRO hand an optimizer flat pieces, which have no rows and columns."""
    if args.deepspeed is not None or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        raise ValueError(
            f"optimizer={args.optimizer!r} needs whole tensors, which DeepSpeed's ZeRO cuts into flat pieces: "
            'use FSDP2, or optimizer="adam"'
        )
    version = args.fsdp_plugin_args["fsdp_version"] if args.fsdp_plugin_args else None
    if version is None and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        version = int(os.environ.get("FSDP_VERSION", "1"))
    if version == 1:
        raise ValueError(
            f"optimizer={args.optimizer!r} needs tensors in their own shape, which FSDP's first version flattens: "
            'choose its version 2, or optimizer="adam"'
        )


class Adafactor(Optimizer):
    """Adafactor without momentum and with the learning rate of a schedule (Shazeer & Stern 2018, algorithms 4 and 5).

    The second moments of a tensor (..., R, C) are kept as a mean per row (..., R) and per column (..., C); those of a tensor with
    fewer than two dimensions, or with fewer than `min_size_to_factor` rows or columns, as they are. The state is float32 or
    finer, whatever the type of the weights.

    Args:
        lr: learning rate, relative to the size of the weights.
        eps: what is added to squared gradients, and the least size that weights count with.
        clip_threshold: largest root mean square of an update before its multiplication with `lr`.
        decay_exponent: second moments decay by `1 - t^-decay_exponent` at update t.
        weight_decay: share of the weights that is taken away at each update, times `lr`.
        min_size_to_factor: T5 used 128; the paper factors every matrix, as with 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_exponent: float = 0.8,
        weight_decay: float = 0.0,
        min_size_to_factor: int = 128,
    ):
        _check_positive(lr=lr, clip_threshold=clip_threshold, decay_exponent=decay_exponent)
        defaults = dict(
            lr=lr,
            eps=eps,
            clip_threshold=clip_threshold,
            decay_exponent=decay_exponent,
            weight_decay=weight_decay,
            min_size_to_factor=min_size_to_factor,
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; `closure` computes the loss anew."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)
        return loss

    def _update(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        assert weight.grad is not None
        gradient = at_least_float32(weight.grad)
        state = self.state[weight]
        state["step"] = state.get("step", 0) + 1
        decay = 1.0 - state["step"] ** -group["decay_exponent"]
        squared = gradient.square() + group["eps"][0]
        if weight.ndim >= 2 and min(weight.shape[-2:]) >= group["min_size_to_factor"]:
            rows = _moving_mean(state, "row_moments", squared.mean(-1), decay)  # (..., R)
            columns = _moving_mean(state, "column_moments", squared.mean(-2), decay)  # (..., C)
            per_row = (rows / rows.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)  # (..., R, 1)
            update = gradient * per_row * columns.rsqrt().unsqueeze(-2)  # (..., R, C)
        else:
            update = gradient * _moving_mean(state, "moments", squared, decay).rsqrt()
        update = update / (rms(update) / group["clip_threshold"]).clamp(min=1.0)
        values = at_least_float32(weight)
        scale = rms(values).clamp(min=group["eps"][1])
        if group["weight_decay"]:
            values = values * (1 - group["lr"] * group["weight_decay"])
        weight.copy_(values - update * (scale * group["lr"]))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _load_exactly(self, super().load_state_dict, state_dict)


class RelativeAdamW(Optimizer):
    """AdamW (Loshchilov & Hutter 2019) with the update of each tensor multiplied by `max(min_scale, RMS(weights))`.

    The moments are float32 or finer, whatever the type of the weights; many tensors are updated by one call where torch can.

    Args:
        lr: learning rate, relative to the size of the weights. weight_decay: times `lr`, not multiplied by their size again.
        betas: decay of the two moments. eps: added to the root of the second.
        min_scale: the least size that weights count with, so that zeros can move.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        min_scale: float = 1e-3,
    ):
        _check_positive(lr=lr, eps=eps, min_scale=min_scale)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must each lie in [0, 1)")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, min_scale=min_scale))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; `closure` computes the loss anew."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            by_step: dict[int, list[torch.Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    state["step"] = state.get("step", 0) + 1
                    by_step.setdefault(state["step"], []).append(weight)
            for step, weights in by_step.items():
                self._update(weights, step, group)
        return loss

    def _update(self, weights: list[torch.Tensor], step: int, group: dict[str, Any]) -> None:
        """Tensors of the same number of updates."""
        first_beta, second_beta = group["betas"]
        gradients = [at_least_float32(weight.grad) for weight in weights if weight.grad is not None]
        first = [_moments(self.state[w], "exp_avg", g) for w, g in zip(weights, gradients, strict=True)]
        second = [_moments(self.state[w], "exp_avg_sq", g) for w, g in zip(weights, gradients, strict=True)]
        torch._foreach_lerp_(first, gradients, 1 - first_beta)
        torch._foreach_mul_(second, second_beta)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - second_beta)
        divisors = torch._foreach_sqrt(second)
        torch._foreach_div_(divisors, (1 - second_beta**step) ** 0.5)
        torch._foreach_add_(divisors, group["eps"])
        updates = torch._foreach_div(first, divisors)
        rates = [rms(at_least_float32(weight)).clamp(min=group["min_scale"]) for weight in weights]
        torch._foreach_mul_(updates, [rate * (group["lr"] / (1 - first_beta**step)) for rate in rates])
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for weight, update in zip(weights, updates, strict=True):
            weight.sub_(update)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _load_exactly(self, super().load_state_dict, state_dict)


def rms(tensor: torch.Tensor) -> torch.Tensor:
    """Root mean square of all elements, a scalar on the same device; of the whole tensor where it is sharded."""
    return whole(torch.linalg.vector_norm(tensor)) / max(tensor.numel(), 1) ** 0.5


def _moments(state: dict[str, Any], name: str, like: torch.Tensor) -> torch.Tensor:
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]


def _moving_mean(state: dict[str, Any], name: str, value: torch.Tensor, decay: float) -> torch.Tensor:
    """The state's mean after it has taken in `value`; the first value replaces the zeros it starts from."""
    state[name] = _moments(state, name, value).lerp_(value, 1 - decay)
    return state[name]


def _load_exactly(optimizer: Optimizer, load: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]) -> None:
    """`load`, which turns a state into the type of its weights, and then the state in the type that it was saved in.

    Raises:
        ValueError: for the state of another optimizer.
    """
    own = set(optimizer.defaults) - {"differentiable"}  # which torch adds to all optimizers, sooner or later
    for saved in state_dict["param_groups"]:
        if missing := own - set(saved):
            raise ValueError(
                f"this optimizer state has no {min(missing)}, so that of {type(optimizer).__name__} it is not: resume with the "
                "optimizer that wrote it, or start in a new folder"
            )
    load(state_dict)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    for number, weight in zip(numbers, weights, strict=True):
        for name, value in state_dict["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor):
                optimizer.state[weight][name] = value.to(weight.device)


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0 or (value == 0 and name != "lr"):
            raise ValueError(f"{name}={value} must be positive")

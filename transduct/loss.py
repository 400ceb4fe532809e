"""Token-normalised, label-smoothed cross-entropy with z-loss, without the `tokens x vocabulary` matrix.

For targets y with logits x, log Z = logsumexp(x), smoothing e and z-loss weight w, each target contributes
    (1 - e) * (log Z - x_y) + e * (log Z - mean(x)) + w * (log Z)^2
(Vaswani et al. 2017, section 5.4; Szegedy et al. 2016, section 7; z-loss: T5X). The sum is divided by N, the number of targets
of the whole optimizer step, so gradients do not depend on accumulation, padding or the number of processes.

Deviation from recomputing the logits in the backward pass: gradients of hidden states and weight are formed chunk by chunk
in the forward pass, while a chunk's logits exist. Memory is `chunk x V` as well, and one matrix product is saved.
"""

from collections.abc import Callable

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from .layers import linear

IGNORE_INDEX = -100
CHUNK_TOKENS = 256


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Sum over targets; hidden (tokens, D), weight (V, D), bias (V) or None, labels (tokens) with -100 ignored."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, label_smoothing: float, z_loss: float, chunk_tokens: int):
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        precise = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=precise, device=hidden.device)
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad_weight: torch.Tensor | None = None
        grad_bias = torch.zeros_like(bias, dtype=precise) if need_bias else None
        chunks = max(1, -(-hidden.shape[0] // chunk_tokens))
        size = max(1, -(-hidden.shape[0] // chunks))  # even chunks: each reads the whole weight
        for start in range(0, hidden.shape[0], size):
            rows, targets = hidden[start : start + size], labels[start : start + size]
            logits = linear(rows, weight, bias).to(precise)  # (chunk, V)
            if not any(ctx.needs_input_grad):
                total += _sum_of_losses(logits, targets, label_smoothing, z_loss)
                continue
            loss, grad_logits = _loss_and_gradient(logits, targets, label_smoothing, z_loss)
            total += loss
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            grad_logits = grad_logits.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad_logits, weight, out=grad_hidden[start : start + size])  # (chunk, D)
            if need_weight and grad_weight is None:
                grad_weight = (grad_logits.t() @ rows).to(precise)  # (V, D)
            elif grad_weight is not None and grad_weight.dtype == rows.dtype:
                grad_weight.addmm_(grad_logits.t(), rows)  # (V, D)
            elif grad_weight is not None:  # half precision: add up in float32
                grad_weight += grad_logits.t() @ rows  # (V, D)
        if need_weight and grad_weight is None:  # no targets
            grad_weight = torch.zeros_like(weight, dtype=precise)
        ctx.dtype = hidden.dtype
        gradients: tuple[torch.Tensor | None, ...] = (grad_hidden, grad_weight, grad_bias)
        if hidden.dtype != torch.float16:  # where a sum over many targets overflows: only after its division by N
            gradients = tuple(None if gradient is None else gradient.to(hidden.dtype) for gradient in gradients)
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total):
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the loss was already differentiated once; call forward again")
        return *(None if g is None else g.mul_(grad_total.to(g.dtype)).to(ctx.dtype) for g in gradients), None, None, None, None


def _sum_of_losses(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float, z_loss: float) -> torch.Tensor:
    """Summed loss of logits (tokens, V), differentiable."""
    at_target = logits.gather(-1, labels.clamp(min=0)[:, None]).squeeze(-1)  # (tokens)
    mean = logits.mean(-1) if label_smoothing else None
    return (_losses(logits.logsumexp(-1), at_target, mean, label_smoothing, z_loss) * _kept(labels, logits.dtype)).sum()


def _losses(log_z: torch.Tensor, at_target: torch.Tensor, mean: torch.Tensor | None, label_smoothing: float, z_loss: float):
    """The formula above for each target, from log Z, x_y and, if there is smoothing, the mean of x (tokens)."""
    loss = log_z - (1 - label_smoothing) * at_target
    if mean is not None:
        loss = loss - label_smoothing * mean
    return loss + z_loss * log_z.square() if z_loss else loss


def _kept(labels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """1 at targets, 0 where ignored (tokens)."""
    return (labels != IGNORE_INDEX).to(dtype)


def _loss_and_gradient(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float, z_loss: float):
    """Summed loss and, written over `logits` (tokens, V), its gradient; one exponential an element serves both."""
    keep = _kept(labels, logits.dtype)
    targets = labels.clamp(min=0)[:, None]  # (tokens, 1)
    at_target = logits.gather(-1, targets).squeeze(-1)
    mean = logits.mean(-1) if label_smoothing else None
    highest = logits.amax(-1, keepdim=True)
    gradient = logits.sub_(highest).exp_()
    mass = gradient.sum(-1)
    log_z = highest.squeeze(-1) + mass.log()
    loss = (_losses(log_z, at_target, mean, label_smoothing, z_loss) * keep).sum()
    gradient.mul_((keep * (1 + 2 * z_loss * log_z) / mass)[:, None])  # softmax, and what the z-loss adds
    if label_smoothing:
        gradient.sub_((keep * label_smoothing / logits.shape[-1])[:, None])
    gradient.scatter_add_(-1, targets, (keep * (label_smoothing - 1))[:, None])
    return loss, gradient


def cross_entropy_of_logits(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The same loss where logits (..., V) exist anyway, as in evaluation."""
    labels = labels.reshape(-1)
    logits = logits.reshape(-1, logits.shape[-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return _sum_of_losses(logits, labels, label_smoothing, z_loss) / count_targets(labels, num_items)


def cross_entropy_of_chunks(
    project: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The same loss through any `project`, hidden states (..., D) to logits: chunk by chunk, recomputed backward."""

    def sum_of_chunk(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = project(rows)  # (chunk, V)
        return _sum_of_losses(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, label_smoothing, z_loss)

    num_items = count_targets(labels, num_items)
    hidden, labels = only_targets(hidden, labels)
    chunks = zip(hidden.split(CHUNK_TOKENS), labels.split(CHUNK_TOKENS), strict=True)
    losses = [checkpoint(sum_of_chunk, rows, targets, use_reentrant=False) for rows, targets in chunks]
    return torch.stack(losses).sum() / num_items


def only_targets(hidden: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States (..., D) and labels (...) as (targets, D) and (targets), so that the head sees no padding.

    All tokens stay where shapes must not depend on data: compiling, and on the meta device.
    """
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    if torch.compiler.is_compiling() or hidden.device.type == "meta":
        return hidden, labels
    targets = (labels != IGNORE_INDEX).nonzero().squeeze(1)  # (targets)
    if len(targets) == len(labels):
        return hidden, labels
    return hidden.index_select(0, targets), labels.index_select(0, targets)  # (targets, D), (targets)


def count_targets(labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor | int:
    """N: what the caller counted over the whole step, or the targets of this batch; 1 where there are none."""
    if num_items is None:
        num_items = (labels != IGNORE_INDEX).sum()
    return num_items.where(num_items > 0, 1) if isinstance(num_items, torch.Tensor) else num_items or 1


def cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Loss of the output projection `hidden @ weight.T + bias` against `labels`.

    Args:
        hidden: decoder states (..., D), already scaled if the architecture scales them.
        weight: output matrix (V, D); bias: (V) or None.
        labels: int64 (...), -100 where there is no target.
        num_items: the number N of targets that the sum is divided by; None: those of this call.

    Returns:
        A scalar; 0 with a zero gradient where there is no target.
    """
    num_items = count_targets(labels, num_items)
    hidden, labels = only_targets(hidden, labels)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    with torch.autocast(device, enabled=False):
        total = _ChunkedCrossEntropy.apply(hidden, weight, bias, labels, label_smoothing, z_loss, CHUNK_TOKENS)
    return total / num_items

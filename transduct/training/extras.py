"""Losses beside the cross-entropy, and words that are hidden, while a model is trained.

- `RDrop`: each batch passes twice with different dropout, and the predictions are drawn together (Liang et al. 2021).
- `GuidedAlignment`: attention that looks where given alignments say (Chen et al. 2016; Garg et al. 2019).
- `WordDropout`: whole tokens are hidden from the model (Gal & Ghahramani 2016; Sennrich et al. 2016, section 3).

Each is a callback that `TransductTrainer` adds where its arguments say so, and that any `Trainer` takes for a model of transduct.
Together they belong in the order of this list. The random choices are torch's, whose state is part of a checkpoint.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import TrainerControl, TrainerState, TrainingArguments

from transduct.attention import AttentionContext, split_heads
from transduct.loss import CHUNK_TOKENS, IGNORE_INDEX, count_targets, only_targets
from transduct.training.checks import check_count, check_number
from transduct.training.hooks import TrainingHooks, inner_model
from transduct.training.weights import at_least_float32


class RDrop(TrainingHooks):
    """Adds `alpha / 4 * (KL(p || q) + KL(q || p))` for each target, where p and q are the predictions of two passes.

    This is half of equation 4 of the paper, whose cross-entropy is the sum over both passes: here it is their mean, so that with
    `alpha=0` the loss is that without R-drop. Both passes are one batch of twice the rows; the memory of a step doubles, and a
    token budget counts each row once. Of the vocabulary's logits, only those of a few hundred targets exist at a time.
    """

    def __init__(self, alpha: float):
        super().__init__()
        if not 0 <= alpha < math.inf:
            raise ValueError(f"r_drop={alpha} must be a number of at least 0: the weight of the divergence")
        self.alpha = alpha
        self._targets: tuple[torch.Tensor, Any] | None = None  # labels (B, T) and N of the forward pass that is under way
        self._divergence: torch.Tensor | None = None

    def attach(self, model: nn.Module) -> None:
        inner = inner_model(model, "r_drop")
        self._handles = [
            model.register_forward_pre_hook(self._double, with_kwargs=True),
            inner.model.register_forward_hook(lambda _, __, output: self._compare(inner, output.last_hidden_state)),
            model.register_forward_hook(self._add),
        ]

    def _double(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]):
        self._targets = self._divergence = None
        labels = kwargs.get("labels")
        if not model.training or labels is None:
            return None
        doubled = {name: twice(value, len(labels)) for name, value in kwargs.items()}
        if kwargs.get("num_items_in_batch") is not None:
            doubled["num_items_in_batch"] = kwargs["num_items_in_batch"] * 2
        self._targets = labels, count_targets(doubled["labels"], doubled.get("num_items_in_batch"))
        return args, doubled

    def _compare(self, inner: Any, hidden: torch.Tensor) -> None:
        """Takes the states (2B, T, D), inside the forward pass, where its mixed precision holds."""
        if self._targets is not None:
            labels, count = self._targets
            first, second = hidden.chunk(2)  # (B, T, D) each
            self._divergence = self.alpha / 2 * symmetric_divergence(inner.project, first, second, labels) / count

    def _add(self, model: nn.Module, args: tuple, output: Any) -> Any:
        if self._divergence is None:
            return None
        output.loss = output.loss + self._divergence
        self._targets = self._divergence = None
        return output


def twice(value: Any, rows: int) -> Any:
    """A tensor (rows, ...) below itself once more; anything else as it is."""
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) and value.ndim and len(value) == rows else value


def symmetric_divergence(
    project: Callable[[torch.Tensor], torch.Tensor], first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """`KL(p || q) + KL(q || p)` summed over targets, differentiable in both.

    Args:
        project: states (..., D) to logits (..., V); first, second: states (B, T, D) of two passes.
        labels: (B, T), -100 where there is no target.
    """

    def of_chunk(one: torch.Tensor, other: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        log_p, log_q = (at_least_float32(project(rows)).log_softmax(-1) for rows in (one, other))  # (chunk, V)
        divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)  # (chunk)
        return (divergence * (targets != IGNORE_INDEX)).sum()

    one, targets = only_targets(first, labels)
    other, _ = only_targets(second, labels)
    chunks = zip(*(tensor.split(CHUNK_TOKENS) for tensor in (one, other, targets)), strict=True)
    return torch.stack([checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks]).sum()


class GuidedAlignment(TrainingHooks):
    """Adds `weight` times the cross-entropy of attention against alignments, for each target that is aligned.

    A target that is aligned with several source tokens spreads its weight over them evenly. The sum is divided by the number of
    all targets, as the model's loss is. A batch holds them as `alignments` (B, A, 2), see `alignments.AlignmentCollator`.

    Args:
        weight: on this loss beside the model's own (Garg et al.: 0.05).
        layer: of the decoder; negative numbers count from its end (Garg et al.: the last but one).
        head: of its cross-attention; None: the mean of all heads.
    """

    def __init__(self, weight: float = 0.05, layer: int = -2, head: int | None = 0):
        super().__init__()
        check_number(weight, "guided_alignment.weight")
        if weight < 0:
            raise ValueError(f"guided_alignment.weight={weight} must be a number of at least 0")
        check_count(layer, "guided_alignment.layer")
        if head is not None:
            check_count(head, "guided_alignment.head", 0)
        self.weight, self.layer, self.head = weight, layer, head
        self._alignments: torch.Tensor | None = None
        self._batch: dict[str, Any] = {}
        self._projected: dict[str, torch.Tensor] = {}
        self._loss: torch.Tensor | None = None

    def attach(self, model: nn.Module) -> None:
        inner = inner_model(model, "guided_alignment")
        layers = inner.model.decoder.layers
        if not -len(layers) <= self.layer < len(layers):
            raise ValueError(
                f"guided_alignment.layer={self.layer}: the decoder has {len(layers)} layers, counted from 0 or from -1"
            )
        attention = layers[self.layer].cross_attention
        if self.head is not None and not 0 <= self.head < attention.num_heads:
            raise ValueError(f"guided_alignment.head={self.head}: there are {attention.num_heads} heads, counted from 0")
        self._handles = [
            model.register_forward_pre_hook(self._take, with_kwargs=True),
            attention.q_proj.register_forward_hook(lambda _, __, output: self._projected.update(query=output)),
            attention.k_proj.register_forward_hook(lambda _, __, output: self._projected.update(key=output)),
            attention.register_forward_hook(self._compare),
            model.register_forward_hook(self._add),
        ]

    def _take(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]):
        self._alignments = self._loss = None
        alignments = kwargs.pop("alignments", None)
        if not model.training or kwargs.get("labels") is None:
            return args, kwargs
        if alignments is None:
            raise ValueError(
                "guided_alignment: the batch has no alignments. The data need a column of them, a collator that keeps it, "
                "transduct.training.alignments.AlignmentCollator, and remove_unused_columns=False"
            )
        if kwargs.get("segment_ids") is not None or kwargs.get("attention_mask") is None:
            raise ValueError("guided_alignment needs one pair in a row, with an attention_mask: no packed batches")
        self._alignments, self._batch = alignments, kwargs
        return args, kwargs

    def _compare(self, attention: Any, args: tuple, output: torch.Tensor) -> None:
        """Computes the head's weights from what was projected; also when activation checkpointing repeats the layer."""
        if self._alignments is None:
            self._projected.clear()
            return
        query, key = self._projected.pop("query"), self._projected.pop("key")
        labels = self._batch["labels"]
        if not torch.is_grad_enabled():
            raise ValueError("guided_alignment needs activation checkpointing without reentry: use_reentrant=False")
        log_weights = self._log_weights(attention, query, key, args[1])  # (B, T, S)
        total = alignment_loss(log_weights, self._alignments, labels)
        self._loss = self.weight * total / count_targets(labels, self._batch.get("num_items_in_batch"))

    def _log_weights(self, attention: Any, query: torch.Tensor, key: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        query = split_heads(query, attention.num_heads, context.query_layout).transpose(1, 2)  # (B, H, T, K)
        key = split_heads(key, attention.num_key_value_heads, context.key_layout).transpose(1, 2)  # (B, G, S, K)
        key = key.repeat_interleave(attention.num_key_value_groups, dim=1)  # (B, H, S, K)
        if self.head is not None:
            query, key = query[:, [self.head]], key[:, [self.head]]
        scores = at_least_float32(query @ key.transpose(2, 3) * attention.scale)  # (B, 1 or H, T, S)
        real = self._batch["attention_mask"].bool()[:, None, None]  # (B, 1, 1, S)
        log_weights = scores.masked_fill(~real, torch.finfo(scores.dtype).min).log_softmax(-1)
        return log_weights.logsumexp(1) - math.log(log_weights.shape[1])  # the log of the mean of the heads

    def _add(self, model: nn.Module, args: tuple, output: Any) -> Any:
        if self._loss is None:
            return None
        output.loss = output.loss + self._loss
        self._loss = None
        return output


def alignment_loss(log_weights: torch.Tensor, alignments: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of attention against alignments, summed over aligned targets.

    Args:
        log_weights: (B, T, S); alignments: (B, A, 2), pairs of source and target positions, -1 where there is none.
        labels: (B, T), -100 where there is no target.
    """
    source, target = alignments.unbind(-1)  # (B, A)
    real = target >= 0
    source, target = source.clamp(min=0), target.clamp(min=0)
    real = real & (labels.gather(1, target) != IGNORE_INDEX)
    partners = torch.zeros_like(log_weights[:, :, 0]).scatter_add_(1, target, real.to(log_weights.dtype))  # (B, T)
    rows = torch.arange(len(source), device=source.device)[:, None]  # (B, 1)
    chosen = log_weights[rows, target, source]  # (B, A)
    return -(chosen * real / partners.gather(1, target).clamp(min=1)).sum()


class WordDropout(TrainingHooks):
    """Hides tokens of the source and of the decoder's input, each with a probability of its own, and never special ones.

    Args:
        source, target: probabilities.
        by: "unk" puts the unknown token in their place, "zero" makes their embeddings zero, which leaves their positions.
        unk_token_id, special_ids: those of the trainer's tokenizer and of the model's config if None.
    """

    def __init__(
        self,
        source: float = 0.0,
        target: float = 0.0,
        by: str = "unk",
        unk_token_id: int | None = None,
        special_ids: Iterable[int] | None = None,
    ):
        super().__init__()
        for name, share in (("word_dropout", source), ("target_word_dropout", target)):
            if not 0 <= share < 1:
                raise ValueError(f"{name}={share} must lie in [0, 1): the share of tokens that are hidden")
        if by not in ("unk", "zero"):
            raise ValueError(f"word_dropout_by={by!r} must be 'unk' or 'zero'")
        self.source, self.target, self.by = source, target, by
        self.unk_token_id = unk_token_id
        self.special_ids = None if special_ids is None else frozenset(special_ids)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        tokenizer, config = kwargs.get("processing_class"), kwargs["model"].config
        if self.unk_token_id is None:
            self.unk_token_id = getattr(tokenizer, "unk_token_id", None)
        if self.by == "unk" and self.unk_token_id is None:
            raise ValueError("word_dropout_by='unk' needs a tokenizer with an unknown token: use 'zero'")
        if self.special_ids is None:
            names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
            own = [getattr(config, name, None) for name in names]
            self.special_ids = frozenset(i for i in (*own, *getattr(tokenizer, "all_special_ids", ())) if i is not None)
        super().on_train_begin(args, state, control, **kwargs)

    def attach(self, model: nn.Module) -> None:
        inner = inner_model(model, "word_dropout")
        if self.by == "zero":
            encoder, decoder = inner.model.encoder.embed_tokens, inner.model.decoder.embed_tokens
            for share, embedding in ((self.source, encoder), (self.target, decoder)):
                if share:
                    self._handles.append(embedding.register_forward_hook(self._zero(model, share)))
            return
        self._handles = [
            model.register_forward_pre_hook(lambda *call: self._replace(inner, *call), with_kwargs=True),
        ]

    def _replace(self, inner: Any, model: nn.Module, args: tuple, kwargs: dict[str, Any]):
        if not model.training:
            return None
        kwargs = dict(kwargs)
        if self.target and kwargs.get("decoder_input_ids") is None and kwargs.get("labels") is not None:
            kwargs["decoder_input_ids"] = inner.prepare_decoder_input_ids_from_labels(kwargs["labels"])
        for name, share in (("input_ids", self.source), ("decoder_input_ids", self.target)):
            if share and kwargs.get(name) is not None:
                kwargs[name] = kwargs[name].masked_fill(self.hidden(kwargs[name], share), self.unk_token_id)
        return args, kwargs

    def _zero(self, model: nn.Module, share: float) -> Callable:
        def hook(embedding: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
            return output.masked_fill(self.hidden(args[0], share)[..., None], 0) if model.training else None

        return hook

    def hidden(self, ids: torch.Tensor, share: float) -> torch.Tensor:
        """True at tokens (B, T) that are hidden."""
        special = torch.isin(ids, torch.tensor(sorted(self.special_ids or ()), dtype=ids.dtype, device=ids.device))
        return (torch.rand(ids.shape, device=ids.device) < share) & ~special

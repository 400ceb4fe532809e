"""Where the decoder looks: the cross-attention weights of a source and a target, with a label for each token.

`transduct.plot` draws them, and so does the page of `transduct demo`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transduct.decoding.cross_attention import attention_weights, mean_attention
from transduct.decoding.forcing import forced
from transduct.decoding.score import Scorer, ScoringOptions, Target
from transduct.decoding.token_labels import source_labels, target_labels


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one pair.

    Args:
        source, target: labels of the S and T tokens, special ones included.
        layers: for each decoder layer the weights (H, T, S) while each target token was chosen; each row of S adds up to 1.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    layers: tuple[torch.Tensor, ...]

    @property
    def heads(self) -> int:
        """H, of each layer."""
        return self.layers[0].shape[0]

    def mean(self, layer: int = -1, heads: Sequence[int] | None = None) -> torch.Tensor:
        """Weights (T, S): the mean of some heads of a layer, None: of all.

        Raises:
            ValueError: for a layer or a head that is not there.
        """
        return mean_attention([weights[None] for weights in self.layers], layer, heads)[0]


def attention_map(
    model: Any,
    tokenizer: Any,
    source: str,
    target: Target,
    *,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    task: str | None = None,
    prefix: str | None = None,
) -> AttentionMap:
    """Let the model read a target that is given, and tell where in the source it looks.

    Args:
        model: of transduct, or any AutoModelForSeq2SeqLM; tokenizer: its own.
        target: a text, or the ids of its tokens as in `Translation.token_ids`.
        src_lang, tgt_lang, task, prefix: see `languages.py`.

    Raises:
        ValueError: for a text that is too long or none.
    """
    options = ScoringOptions(src_lang=src_lang, tgt_lang=tgt_lang, task=task, prefix=prefix)
    scorer = Scorer(model, tokenizer, options)
    (source_ids,), (target_ids,) = scorer.encode([(source, target)], [1])
    inputs = {"input_ids": torch.tensor([source_ids], device=model.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    was_training = model.training
    model.eval()
    try:
        with attention_weights(model):
            output, _, _ = forced(model, inputs, [target_ids], scorer.start, output_attentions=True)
    finally:
        model.train(was_training)
    layers = tuple(weights[0].float().cpu() for weights in output.cross_attentions)  # (H, T, S) each
    return AttentionMap(tuple(source_labels(tokenizer, source_ids)), tuple(target_labels(tokenizer, target_ids)), layers)

"""Language models as objectives: prefix-LM (Raffel et al. 2020, arXiv 1910.10683, section 3.2.3) and causal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from transduct.training.objectives.examples import IGNORED, Example, check_share, check_token, token_ids, without_end

Form = Literal["encoder_decoder", "decoder"]


@dataclass(frozen=True)
class PrefixLM:
    """Reads the first part of a text and writes the rest (T5, section 3.2.3).

    Neither part is empty; of a text with fewer than two tokens all is written.

    Args:
        eos_token_id: ends the text, and the encoder's input too. If the text ends with it, it is not doubled.
        target_share: share of the tokens to be written, rounded; UL2: 0.25 (table 1). None: the cut is uniformly random.
        form: "encoder_decoder": `input_ids` is the first part, `labels` the rest. "decoder": `input_ids` (T,) is the whole text,
            `prefix_mask` (T,) is True in the first part, which all tokens may see, and `labels` (T,) is -100 there.

    Raises:
        ValueError: for options out of range.
    """

    eos_token_id: int
    target_share: float | None = None
    form: Form = "encoder_decoder"

    def __post_init__(self):
        check_token("eos_token_id", self.eos_token_id)
        if self.target_share is not None:
            check_share("target_share", self.target_share)
        if self.form not in get_args(Form):
            raise ValueError(f"form={self.form!r} must be one of {get_args(Form)}")

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, **options: Any) -> "PrefixLM":
        """With the end token of a tokenizer; `options` are `target_share` and `form`."""
        return cls(tokenizer.eos_token_id, **options)

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        text = without_end(token_ids(ids), self.eos_token_id)
        cut = self._cut(len(text), rng)
        whole = np.append(text, self.eos_token_id)
        if self.form == "encoder_decoder":
            return {"input_ids": np.append(text[:cut], self.eos_token_id), "labels": whole[cut:]}
        prefix = np.arange(len(whole)) < cut
        return {"input_ids": whole, "labels": np.where(prefix, IGNORED, whole), "prefix_mask": prefix}

    def _cut(self, length: int, rng: np.random.Generator) -> int:
        if length < 2:
            return 0
        if self.target_share is None:
            return int(rng.integers(1, length))
        return length - min(max(round(length * self.target_share), 1), length - 1)


@dataclass(frozen=True)
class CausalLM:
    """Each token of a text from those before it, for a decoder alone: `labels` are `input_ids` (Radford et al. 2018).

    Args:
        eos_token_id: ends the text, unless it does so already.
    """

    eos_token_id: int

    def __post_init__(self):
        check_token("eos_token_id", self.eos_token_id)

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        whole = np.append(without_end(token_ids(ids), self.eos_token_id), self.eos_token_id)
        return {"input_ids": whole, "labels": whole.copy()}

"""UL2's mixture of denoisers (Tay et al. 2022, arXiv 2205.05131, section 3.1 and table 1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from transduct.training.objectives.examples import Example, check_token, token_ids
from transduct.training.objectives.language_models import PrefixLM
from transduct.training.objectives.spans import SpanCorruption, sentinel_ids


class Denoiser(NamedTuple):
    """One denoiser of the mixture."""

    mode: str
    """The token before the input."""
    density: float
    """Share of the tokens to be written."""
    mean_span: float | None
    """Mean length of a hidden span in tokens. None: the end of the text is to be written (prefix-LM)."""


REGULAR = (Denoiser("[NLU]", 0.15, 3), Denoiser("[NLU]", 0.15, 8))
EXTREME = (Denoiser("[NLG]", 0.5, 3), Denoiser("[NLG]", 0.5, 8), Denoiser("[NLG]", 0.15, 64), Denoiser("[NLG]", 0.5, 64))
SEQUENTIAL = (Denoiser("[S2S]", 0.25, None),)
DENOISERS = (*REGULAR, *EXTREME, *SEQUENTIAL)
"""The seven of table 1: R, X and S."""


@dataclass(frozen=True)
class UL2:
    """Draws a denoiser for each text, and says by a mode token before the input which one it was (section 3.1.2).

    An input is a mode token longer than those of `SpanCorruption` and `PrefixLM`; in all a text of n tokens becomes at most
    n + 2 of input and n + 1 of labels. At density 0.5 and mean span 3 there are n / 6 spans: T5's 100 sentinels suffice
    for texts of 600 tokens.

    Args:
        sentinels, eos_token_id: as in `SpanCorruption`.
        modes: the id of each mode token, such as {"[NLU]": 3, "[NLG]": 4, "[S2S]": 5}.
        denoisers: what the mixture is made of.
        weights: how often each is drawn, relative to their sum; None: all equally often.

    Raises:
        ValueError: for a mode without token, and for weights that do not fit; see also `SpanCorruption`.
    """

    sentinels: tuple[int, ...]
    eos_token_id: int
    modes: dict[str, int]
    denoisers: tuple[Denoiser, ...] = DENOISERS
    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        for mode, token_id in self.modes.items():
            check_token(f"modes[{mode!r}]", token_id)
        if not self.denoisers:
            raise ValueError("denoisers is empty: a mixture needs at least one")
        if missing := sorted({denoiser.mode for denoiser in self.denoisers} - set(self.modes)):
            raise ValueError(f"modes={self.modes} has no token for {missing}: each denoiser has a mode token")
        if self.weights is not None:
            weights = np.asarray(self.weights, dtype=float)
            if (
                weights.shape != (len(self.denoisers),)
                or not np.isfinite(weights).all()
                or weights.min() < 0
                or weights.sum() == 0
            ):
                rule = "must be a number for each, none negative, not all 0"
                raise ValueError(f"weights={self.weights} of {len(self.denoisers)} denoisers {rule}")
        _ = self._mixture  # each denoiser checks its numbers

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, **options: Any) -> "UL2":
        """With the sentinels, end token and mode tokens of a tokenizer; `options` are `denoisers` and `weights`."""
        vocabulary = tokenizer.get_vocab()
        modes = {denoiser.mode for denoiser in options.get("denoisers", DENOISERS)}
        if missing := sorted(modes - set(vocabulary)):
            raise ValueError(f"the tokenizer has no tokens {missing}: train it with special_tokens={missing}, or add them")
        return cls(sentinel_ids(tokenizer), tokenizer.eos_token_id, {mode: vocabulary[mode] for mode in sorted(modes)}, **options)

    @cached_property
    def _mixture(self) -> list[tuple[int, SpanCorruption | PrefixLM]]:
        """The mode token and the objective of each denoiser."""
        return [(self.modes[denoiser.mode], self._objective(denoiser)) for denoiser in self.denoisers]

    def _objective(self, denoiser: Denoiser) -> SpanCorruption | PrefixLM:
        if denoiser.mean_span is None:
            return PrefixLM(self.eos_token_id, denoiser.density)
        return SpanCorruption(self.sentinels, self.eos_token_id, denoiser.density, denoiser.mean_span)

    def text_length(self, inputs_length: int) -> int:
        """Tokens of the longest text whose input is no longer than `inputs_length` with any of the denoisers."""
        rest = inputs_length - 1  # behind the mode token
        fitting = [
            int((rest - 1) / (1 - denoiser.density)) if isinstance(objective, PrefixLM) else objective.lengths(rest)[0]
            for denoiser, (_, objective) in zip(self.denoisers, self._mixture, strict=True)
        ]
        return min(fitting)

    @cached_property
    def _cumulative(self) -> np.ndarray:
        weights = np.ones(len(self.denoisers)) if self.weights is None else np.asarray(self.weights, dtype=float)
        return np.cumsum(weights) / weights.sum()

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        mode, objective = self._mixture[int(np.searchsorted(self._cumulative[:-1], rng.random(), side="right"))]
        example = objective(token_ids(ids), rng)
        return {**example, "input_ids": np.concatenate([[mode], example["input_ids"]])}

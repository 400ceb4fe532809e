"""What a visitor of the page chooses: the search and its options, checked before a model sees them."""

import math
from dataclasses import dataclass
from typing import Any, get_args

from transduct.decoding.languages import own_codes, setting, target_codes
from transduct.decoding.normalization import Normalization
from transduct.decoding.strategies import Strategy
from transduct.decoding.translator import PENALTIES, TranslationOptions

SEARCHES = ("beam search", "sampling")
MOST_BEAMS = 16
MOST_TOKENS = 512
"""Of an output."""
MOST_CHARACTERS = 20_000
"""Of a source."""


@dataclass(frozen=True)
class Settings:
    """One search.

    Args:
        search: of `SEARCHES`; beams: of a beam search, 1 is greedy search; hypotheses: how many are shown, or drawn.
        normalization, length_penalty: see `decoding/normalization.py`; of a beam search.
        tokens: the most that an output may have; 0: as the model says.
        temperature, top_k (0: any token), top_p, seed: of samples.
        src_lang, tgt_lang, task, prefix: see `decoding/languages.py`; "" and None: as the model says.

    Raises:
        ValueError: for a value that is not possible, naming it.
    """

    search: str = SEARCHES[0]
    beams: int = 4
    hypotheses: int = 4
    normalization: Normalization = "hf"
    length_penalty: float = 1.0
    tokens: int = 0
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0
    src_lang: str | None = None
    tgt_lang: str | None = None
    task: str | None = None
    prefix: str | None = None

    def __post_init__(self):
        _one_of("search", self.search, SEARCHES)
        _one_of("normalization", self.normalization, get_args(Normalization))
        _within("beams", self.beams, 1, MOST_BEAMS)
        _within("hypotheses", self.hypotheses, 1, MOST_BEAMS)
        _within("tokens", self.tokens, 0, MOST_TOKENS)
        _within("length_penalty", self.length_penalty, -10, 10, whole=False)
        _within("temperature", self.temperature, 0.01, 10, whole=False)
        _within("top_k", self.top_k, 0, 1_000_000)
        _within("top_p", self.top_p, 0.01, 1, whole=False)
        _within("seed", self.seed, 0, 2**31 - 1)
        for name in ("src_lang", "tgt_lang", "task", "prefix"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and len(value) <= 200):
                raise ValueError(f"{name} must be a text of at most 200 characters")
        if not self.samples and self.hypotheses > self.beams:
            raise ValueError(f"hypotheses={self.hypotheses} must not exceed beams={self.beams}: a beam search finds no more")

    @property
    def samples(self) -> bool:
        """Whether outputs are drawn at random."""
        return self.search == "sampling"

    def options(self, **generation: Any) -> TranslationOptions:
        """The same for a `Translator`, with more arguments of `generate`."""
        if self.tokens:
            generation["max_new_tokens"] = self.tokens
        if self.samples:
            generation |= {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return TranslationOptions(
            num_beams=None if self.samples else self.beams,
            length_normalization=self.normalization,
            length_penalty=self.length_penalty,
            num_return_sequences=self.hypotheses,
            strategy=Strategy(do_sample=self.samples, seed=self.seed),
            generation=generation,
            **self.direction(),
        )

    def direction(self) -> dict[str, Any]:
        """Languages, task and prefix, None where nothing was chosen."""
        return {name: getattr(self, name) or None for name in ("src_lang", "tgt_lang", "task", "prefix")}


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}")


def _within(name: str, value: Any, least: float, most: float, whole: bool = True) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value <= most or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {kind} from {least:g} to {most:g}")


@dataclass(frozen=True)
class Offer:
    """What a model and its tokenizer let a visitor choose, and what they do where nothing is chosen.

    Args:
        source_languages, target_languages, tasks: codes and names; empty: there is nothing to choose.
        defaults: of the model's generation config.
        layers, heads: of the decoder's cross-attention.
    """

    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    tasks: tuple[str, ...]
    defaults: Settings
    layers: int
    heads: int


def offer(model: Any, tokenizer: Any) -> Offer:
    """What can be chosen for this model."""
    own = tuple(own_codes(tokenizer)) if hasattr(tokenizer, "tgt_lang") else ()
    tasks = setting(model.config, "task_specific_params") or {}
    config = model.generation_config
    beams = min(max(config.num_beams or 1, 1), MOST_BEAMS)
    beams = beams if beams > 1 else 4
    penalty = 1.0 if config.length_penalty is None else float(config.length_penalty)
    layers, heads = _cross_attention(model)
    return Offer(
        source_languages=own,
        target_languages=own or tuple(target_codes(tokenizer)),
        tasks=tuple(tasks) if isinstance(tasks, dict) else (),
        defaults=Settings(beams=beams, hypotheses=beams, length_penalty=min(max(penalty, -10.0), 10.0)),
        layers=layers,
        heads=heads,
    )


def _cross_attention(model: Any) -> tuple[int, int]:
    """Layers of the decoder, and heads of each."""
    decoder = model.config.get_text_config(decoder=True)  # with the decoder's sizes under general names, but for T5's layers
    layers = getattr(decoder, "num_decoder_layers", None) or decoder.num_hidden_layers
    return layers, decoder.num_attention_heads


def default_penalty(normalization: str, of_model: float) -> float:
    """The exponent of a normalisation where nobody names one; "hf" is the one that models' configs are written for."""
    return of_model if normalization == "hf" else PENALTIES.get(normalization, 1.0)

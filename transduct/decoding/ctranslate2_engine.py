"""A folder of `convert.to_ctranslate2` as an object that stands where a model does: ids in, hypotheses out.

CTranslate2's search is its own, and differs from ours in three ways:

- A source is done when as many hypotheses are found as there are beams (our `early_stopping=True`); there is no other rule.
- Where a token is forbidden (`no_repeat_ngram_size`, `bad_words_ids`, `min_new_tokens`), the others share its probability.
- A target that ends right behind its forced first token, an empty one, is not found where that end is the likeliest token.

A call there has one limit of length. Sources that have limits of their own are searched with the largest of the batch, and those
that were not done before their own limit once more, with it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import inf
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from transduct.configuration import TransductConfig
from transduct.decoding.engines import MARKS
from transduct.decoding.forcing import padded
from transduct.decoding.search import BeamSearchOutput, beam_search
from transduct.packages import require

TAKEN = (
    "num_beams", "length_penalty", "length_normalization", "num_return_sequences", "max_new_tokens", "max_length",
    "max_length_by_source", "min_new_tokens", "min_length", "no_repeat_ngram_size", "forced_bos_token_id",
    "decoder_start_token_id", "bad_words_ids", "early_stopping",
)  # fmt: skip
"""Options of `generate` that are honoured."""
WITHOUT_EFFECT = (
    "bos_token_id", "eos_token_id", "pad_token_id", "custom_generate", "do_sample", "return_dict_in_generate", "use_cache",
    "transformers_version", "_from_model_config", "forced_eos_token_id", "temperature", "top_k", "top_p", "typical_p", "min_p",
    "epsilon_cutoff", "eta_cutoff", "top_h",
)  # fmt: skip
"""Others that have none here: settings of sampling, of the tokens that config.json names, and the token that a hypothesis ends
with which is cut off at its limit."""
NEUTRAL: tuple[Any, ...] = (None, False, 0, 1.0, "hybrid", (), [])
"""Values with which an option does nothing."""

LEAST_POSITIONS = 4096
"""Rows of the table at least, where positions are computed here and have no end."""

Hypothesis = tuple[list[int], float]
"""Ids, the end included, and the sum of their log-probabilities."""


@dataclass(frozen=True)
class _Search:
    """What one call of the translator is told.

    Args:
        beams, wanted: hypotheses kept and asked for; penalty: exponent of the length; prefix: tokens that targets begin with.
        returned: hypotheses of a source that come out; for one alone, and a penalty of 0, it stops where none can be better.
        options: further arguments of `translate_batch`.
    """

    beams: int
    wanted: int
    penalty: float
    prefix: list[str]
    options: dict[str, Any]
    returned: int = 1


class CTranslate2Model:
    """What `translate` needs of a model, by CTranslate2.

    Args:
        folder: that `to_ctranslate2` has written; device: "cpu", "cuda" or "cuda:1". It uses as many threads as torch does.

    Raises:
        ImportError: without the package.
    """

    main_input_name = "input_ids"
    training = False
    device = torch.device("cpu")
    """Where ids come and go; the work may be done elsewhere."""

    def __init__(self, folder: str | Path, device: Any = "cpu"):
        require("engine='ctranslate2'", "ctranslate2")
        import ctranslate2

        folder, place = Path(folder), torch.device(device)
        self.config = TransductConfig.from_dict(_read(folder / MARKS["ctranslate2"]))
        if self.config.encoder_input != "tokens":
            raise ValueError(f"{str(folder)!r} reads {self.config.encoder_input}, not text: use ctranslate2.models.Whisper")
        self.generation_config = GenerationConfig.from_pretrained(folder)
        self.translator = ctranslate2.Translator(
            str(folder), device=place.type, device_index=place.index or 0, intra_threads=torch.get_num_threads()
        )
        shared = folder / "shared_vocabulary.json"
        files = [shared if shared.is_file() else folder / f"{side}_vocabulary.json" for side in ("source", "target")]
        self.source_tokens, self.target_tokens = map(_read, files)
        self.target_ids = {token: number for number, token in enumerate(self.target_tokens)}
        start = _read(folder / "config.json")["decoder_start_token"]
        self.own_start = None if start is None else self.target_ids[start]
        self.most_positions = most_positions(self.config)

    def eval(self) -> "CTranslate2Model":
        return self

    def train(self, mode: bool = True) -> "CTranslate2Model":
        return self

    def set_attn_implementation(self, implementation: str) -> None:
        """Raises ValueError: attention is not told."""
        raise ValueError("engine='ctranslate2' tells no attention: alignments and replace_unknown need the model itself")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ValueError: there are no logits to be had."""
        raise ValueError("engine='ctranslate2' tells no logits: score with the model itself, or by token_log_probs")

    # ---- scoring --------------------------------------------------------------------------------------------------
    def token_log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each token of given targets, which end with the end of sequence."""
        start = self._prefix(self._start({}), None)
        texts = [[*start, *self._strings(target[:-1], self.target_tokens)] for target in targets]
        scored = self.translator.score_batch([self._strings(source, self.source_tokens) for source in sources], texts)
        return [each.log_probs for each in scored]

    # ---- searching ------------------------------------------------------------------------------------------------
    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any) -> Any:
        """As `generate` with `custom_generate=beam_search`: the same arguments and outputs, but for what the module's text says.

        Raises:
            ValueError: for an option that CTranslate2 cannot honour, and for sources that are too long.
        """
        settings = self._settings(options)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        sources = [list(compress(*row)) for row in zip(input_ids.tolist(), mask.tolist(), strict=True)]
        search, limits = self._search(settings), self._limits(settings, [len(source) for source in sources])
        if search.wanted > 1 or len(set(limits)) > 1:  # all that the search has found: they tell when it was done
            search = replace(search, returned=search.beams)
        found = self._translate(sources, search, max(limits))
        for row, limit in enumerate(limits):
            if limit < max(limits) and any(len(ids) >= limit for ids, _ in found[row]):
                found[row] = self._translate([sources[row]], search, limit)[0]
        output = self._output(found, search, self._start(settings))
        return output if options.get("return_dict_in_generate") else output.sequences

    def _translate(self, sources: Sequence[Sequence[int]], search: _Search, limit: int) -> list[list[Hypothesis]]:
        results = self.translator.translate_batch(
            [self._strings(source, self.source_tokens) for source in sources],
            target_prefix=[search.prefix] * len(sources) if search.prefix else None,
            beam_size=search.beams,
            num_hypotheses=search.returned,
            length_penalty=search.penalty,
            max_decoding_length=limit,
            return_scores=True,
            return_end_token=True,
            max_input_length=0,
            **search.options,
        )
        return [
            [self._hypothesis(*each, search) for each in zip(result.hypotheses, result.scores, strict=True)] for result in results
        ]

    def _hypothesis(self, tokens: list[str], score: float, search: _Search) -> Hypothesis:
        return [self.target_ids[token] for token in tokens], score * max(1, len(tokens)) ** search.penalty

    def _output(self, found: list[list[Hypothesis]], search: _Search, start: int) -> BeamSearchOutput:
        """Hypotheses as `beam_search` returns them; those that were not found score minus infinity."""
        nothing: Hypothesis = ([], float("-inf"))
        rows = [hypothesis for each in found for hypothesis in [*each, *[nothing] * search.wanted][: search.wanted]]
        lengths = torch.tensor([len(ids) for ids, _ in rows])
        log_probs = torch.tensor([log_prob for _, log_prob in rows])
        ids, _ = padded([[start, *ids] for ids, _ in rows], self.config.pad_token_id or 0)
        scores = log_probs / lengths.clamp(min=1) ** search.penalty
        return BeamSearchOutput(sequences=ids, sequences_scores=scores, lengths=lengths, log_probs=log_probs)

    # ---- options --------------------------------------------------------------------------------------------------
    def _settings(self, options: dict[str, Any]) -> dict[str, Any]:
        """What is asked for: by the caller, else by the generation config.

        Raises:
            ValueError: for what cannot be had.
        """
        own = {name: value for name, value in self.generation_config.to_dict().items() if value is not None}
        for name, value in {**own, **options}.items():
            if name not in TAKEN + WITHOUT_EFFECT and value not in NEUTRAL:
                told = f"{name}={value!r}" if isinstance(value, str | int | float) else name
                raise ValueError(f"{told} cannot be had with engine='ctranslate2'; leave it out, or the engine")
        if options.get("do_sample"):
            raise ValueError("do_sample=True cannot be had with engine='ctranslate2', which searches with beams here")
        search = options.get("custom_generate") or beam_search
        if search is not beam_search:
            raise ValueError(
                f"{search.__name__} cannot be had with engine='ctranslate2', which searches with beams here: leave out drafts"
            )
        if options.get("early_stopping", True) is not True:
            given = options["early_stopping"]
            raise ValueError(
                f"early_stopping={given!r} cannot be had with engine='ctranslate2', which has the rule of True alone"
            )
        return {**own, **options}

    def _search(self, settings: dict[str, Any]) -> _Search:
        beams, wanted = settings.get("num_beams") or 1, settings.get("num_return_sequences") or 1
        if beams < wanted:
            raise ValueError(f"num_return_sequences={wanted} must not exceed num_beams={beams}")
        normalization = settings.get("length_normalization", "hf")
        if normalization not in ("hf", "none"):
            raise ValueError(f"length_normalization={normalization!r} cannot be had with engine='ctranslate2': 'hf' or 'none'")
        penalty = 1.0 if settings.get("length_penalty") is None else settings["length_penalty"]
        forbidden = settings.get("bad_words_ids") or []
        options = {
            "min_decoding_length": max((settings.get("min_length") or 0) - 1, settings.get("min_new_tokens") or 0, 0),
            "no_repeat_ngram_size": settings.get("no_repeat_ngram_size") or 0,
            "suppress_sequences": [self._strings(ids, self.target_tokens) for ids in forbidden] or None,
        }
        prefix = self._prefix(self._start(settings), settings.get("forced_bos_token_id"))
        return _Search(beams, wanted, 0.0 if normalization == "none" else penalty, prefix, options)

    def _start(self, settings: dict[str, Any]) -> int:
        """The token that the decoder starts with.

        Raises:
            ValueError: if the folder has another one, or there is none.
        """
        start = settings.get("decoder_start_token_id", self.generation_config.decoder_start_token_id)
        start = self.config.decoder_start_token_id if start is None else start
        if self.own_start is not None and start not in (None, self.own_start):
            raise ValueError(
                f"decoder_start_token_id={start} cannot be had with engine='ctranslate2': this folder's is {self.own_start}"
            )
        start = self.own_start if start is None else start
        return 0 if start is None else start

    def _prefix(self, start: int, first: int | None) -> list[str]:
        given = [] if self.own_start is not None else [start]
        return self._strings([*given, *([] if first is None else [first])], self.target_tokens)

    def _limits(self, settings: dict[str, Any], lengths: list[int]) -> list[int]:
        """The most tokens of each source's hypotheses (B), as `beam_search` has them.

        Raises:
            ValueError: for a source that is longer than the table of positions.
        """
        if max(lengths) > self.most_positions:
            raise ValueError(f"a source of {max(lengths)} tokens exceeds the {self.most_positions} positions of the folder")
        most = settings.get("max_new_tokens")
        if most is None and settings.get("max_length") is not None:
            most = settings["max_length"] - 1  # which counts the token that the decoder starts with
        ratio = settings.get("max_length_by_source") or (None if most is not None else (1, 50))
        limits = lengths if ratio is None else [max(1, int(ratio[0] * length + ratio[1])) for length in lengths]
        return [limit if most is None else most if ratio is None else min(limit, most) for limit in limits]

    @staticmethod
    def _strings(ids: Sequence[int], tokens: list[str]) -> list[str]:
        return [tokens[number] for number in ids]


def most_positions(config: TransductConfig) -> float:
    """How long a source may be: as long as the table of positions, which is written whole."""
    if config.positions == "learned":
        return config.max_positions
    return max(config.max_positions, LEAST_POSITIONS) if config.positions in ("sinusoidal", "none") else inf


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))

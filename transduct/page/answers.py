"""The model behind the page: one visitor at a time has it, and nobody has it for longer than was agreed."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from transduct.decoding.attention_maps import AttentionMap, attention_map
from transduct.decoding.score import Scorer, ScoringOptions
from transduct.decoding.token_labels import target_labels
from transduct.decoding.translator import Translation, Translator, check_text
from transduct.page.search_tree import Labels, Recorder, SearchTree, tree_of_samples
from transduct.page.settings import MOST_CHARACTERS, Settings, offer

MOST_SOURCE_TOKENS = 1024


@dataclass(frozen=True)
class Answer:
    """What a search found for a text.

    Args:
        hypotheses: best first; tree: how the search came to them.
    """

    text: str
    settings: Settings
    hypotheses: tuple[Translation, ...]
    tree: SearchTree


class Demonstration:
    """A model and its tokenizer, which several threads may ask.

    Args:
        model: an encoder-decoder of text; tokenizer: its own; seconds: the most that one search may take.

    Raises:
        ValueError: for a model that does not turn texts into texts.
    """

    def __init__(self, model: Any, tokenizer: Any, seconds: float = 60.0):
        if not seconds > 0:
            raise ValueError(f"seconds={seconds} must be positive: the most that one search may take")
        Scorer(model, tokenizer, ScoringOptions())  # which refuses other models
        self.model, self.tokenizer, self.seconds = model, tokenizer, seconds
        self.offer = offer(model, tokenizer)
        self._free = threading.Lock()
        self._closed = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether somebody has the model."""
        return self._free.locked()

    def close(self) -> None:
        """Stop the search that is running, and start no other."""
        self._closed.set()

    def answer(self, text: str, settings: Settings) -> Answer:
        """Search.

        Raises:
            ValueError: for a text that is none or too long, for settings that do not fit the model, and when time is up.
        """
        if not isinstance(text, str) or not text.strip():
            raise ValueError("there is no text yet: type one")
        if len(text) > MOST_CHARACTERS:
            rule = "shorten it, or use `transduct translate`"
            raise ValueError(f"the text has more than the {MOST_CHARACTERS:,} characters that this page takes: {rule}")
        check_text(text, "line 1")
        with self._free:
            return self._searched(text, settings)

    def _searched(self, text: str, settings: Settings) -> Answer:
        recorder = Recorder(self._labels)
        watch: dict[str, Any] = {} if settings.samples else {"observer": recorder}
        patience = StoppingCriteriaList([Patience(self.seconds, self._closed)])
        translator = Translator(self.model, self.tokenizer, settings.options(stopping_criteria=patience, **watch))
        self._check_length(translator, text)
        (found,) = translator([text])
        if not settings.samples:
            return Answer(text, settings, tuple(found), recorder.tree())
        found = sorted(found, key=lambda each: -each.score)
        return Answer(text, settings, tuple(found), self._tree_of(text, settings, [each.token_ids for each in found]))

    def _check_length(self, translator: Translator, text: str) -> None:
        with translator.direction.applied(self.tokenizer):
            tokens = len(self.tokenizer(translator.direction.prefix + text, verbose=False)["input_ids"])
        most = min(MOST_SOURCE_TOKENS, translator.limit or MOST_SOURCE_TOKENS)
        if tokens > most:
            raise ValueError(f"the text has {tokens:,} tokens; the model takes at most {most:,} here: shorten it")

    def _tree_of(self, text: str, settings: Settings, samples: list[tuple[int, ...]]) -> SearchTree:
        scorer = Scorer(self.model, self.tokenizer, ScoringOptions(**settings.direction()))
        scored = scorer([(text, sample) for sample in samples])
        return tree_of_samples(samples, [each.token_log_probs for each in scored], self._labels)

    @property
    def _labels(self) -> Labels:
        return lambda tokens: target_labels(self.tokenizer, tokens)

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of target tokens."""
        with self._free:
            return self.tokenizer.batch_decode([list(row) for row in rows], skip_special_tokens=True)

    def look(self, answer: Answer, rank: int) -> AttentionMap:
        """Where the model looked while it wrote the hypothesis `rank`, counted from 0."""
        if not 0 <= rank < len(answer.hypotheses):
            raise ValueError(f"there are {len(answer.hypotheses)} hypotheses; choose one of them")
        with self._free:
            tokens = answer.hypotheses[rank].token_ids
            return attention_map(self.model, self.tokenizer, answer.text, tokens, **answer.settings.direction())


class Patience(StoppingCriteria):
    """Ends a search that takes too long, or when the page is closed.

    Args:
        seconds: from now on; closed: set when the page is.
    """

    def __init__(self, seconds: float, closed: threading.Event):
        self.seconds, self.closed = seconds, closed
        self.end = time.monotonic() + seconds

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """False for each row (rows).

        Raises:
            ValueError: when it is over.
        """
        if self.closed.is_set():
            raise ValueError("the page is being closed")
        if time.monotonic() > self.end:
            rule = "ask for fewer beams or tokens, or start the page with more --seconds"
            raise ValueError(f"the search took longer than {self.seconds:g} seconds and was stopped: {rule}")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

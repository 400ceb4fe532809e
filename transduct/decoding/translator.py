"""A model, a tokenizer and the settings of a search as one thing that translates a window of texts.

A window is encoded, sorted by length, cut into batches by a budget of tokens, searched by `beam_search`, and put in order again.
What the caller says nothing about is as the config's task and the model's generation config have it, and as the paper has it
where they say nothing either: at most as many tokens as the source has, plus 50 (Vaswani et al. 2017, section 6.1).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from transduct.decoding.alignments import (
    Alignment,
    AlignmentOptions,
    attended,
    pairs,
    source_units,
    target_units,
    with_unknown_replaced,
)
from transduct.decoding.forcing import padded
from transduct.decoding.languages import direction
from transduct.decoding.models import check_model, check_tokenizer, first_tokens, source_limit, target_limit
from transduct.decoding.normalization import Normalization, Scoring
from transduct.decoding.placing import Spread, place
from transduct.decoding.required import NOTHING, Required, phrase_ids, prefix_ids
from transduct.decoding.search import check_ratio
from transduct.decoding.sentences import Piece, fitted, sentences
from transduct.decoding.source_error import SourceError
from transduct.decoding.strategies import OF_BEAMS, Strategy
from transduct.decoding.texts import check_text
from transduct.decoding.windows import length_batches
from transduct.training.checks import check_count

PENALTIES: dict[str, float] = {"hf": 1.0, "gnmt": 0.6, "sockeye": 1.0, "none": 0.0}
"""The exponent of each normalisation where nobody names one; 0.6 is the paper's."""
NOT_FOR_TEXTS = frozenset({
    "assistant_model", "attention_mask", "custom_generate", "decoder_attention_mask", "decoder_input_ids", "encoder_outputs",
    "generation_config", "input_ids", "inputs", "inputs_embeds", "return_dict_in_generate", "seeds", "stop_strings", "streamer",
    "tokenizer",
})  # fmt: skip
"""Arguments of `generate` that have no place here, or would be lost."""


@dataclass(frozen=True)
class Translation:
    """One hypothesis for a text.

    Args:
        text: what the model wrote.
        score: as the search compared hypotheses, or the expected utility; log_prob: the sum over tokens. Of a text in pieces, the
            sums over them.
        token_ids: of all pieces, one after the other.
        alignment: (source, target) words or tokens, where it was asked for.
    """

    text: str
    score: float
    log_prob: float
    token_ids: tuple[int, ...]
    alignment: Alignment | None = None


@dataclass(frozen=True)
class TranslationOptions:
    """How texts are translated; see `translate`. None: as the model's generation config has it."""

    num_beams: int | None = None
    length_normalization: Normalization = "hf"
    length_penalty: float | None = None
    num_return_sequences: int = 1
    max_tokens_per_batch: int = 4096
    max_length_by_source: tuple[float, float] | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None
    task: str | None = None
    prefix: str | None = None
    split_sentences: bool = False
    long: Literal["refuse", "split"] = "refuse"
    max_source_length: int | None = None
    alignments: AlignmentOptions = field(default_factory=AlignmentOptions)
    replace_unknown: bool = False
    strategy: Strategy = field(default_factory=Strategy)
    generation: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.long not in ("refuse", "split"):
            raise ValueError(f"long={self.long!r} must be 'refuse' or 'split'")
        for name in ("num_beams", "num_return_sequences", "max_source_length", "max_tokens_per_batch"):
            if (value := getattr(self, name)) is not None:
                check_count(value, name, 1)
        if self.max_length_by_source is not None:
            check_ratio("max_length_by_source", self.max_length_by_source)
        attention = (self.alignments.layer, self.alignments.heads)
        if attention != (None, None) and self.alignments.unit is None and not self.replace_unknown:
            raise ValueError(f"alignment_layer, alignment_heads={attention} belong to alignments or replace_unknown")


@dataclass
class _Source:
    """A piece of a text on its way to the model: its ids, and what came of it."""

    text: str
    ids: list[int]
    place: tuple[int, int] = (0, 0)  # the number of its line, and of the piece within it
    phrases: list[list[list[int]]] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    found: list[Translation] = field(default_factory=list)


class Translator:
    """Translates windows of texts.

    Args:
        model: an encoder-decoder with `generate`; tokenizer: its own; options: see `translate`.

    Raises:
        ValueError: for a model without a source of text, an unknown language or task, and options that contradict each other.
    """

    def __init__(self, model: Any, tokenizer: Any, options: TranslationOptions):
        check_model(model)
        check_tokenizer(tokenizer)
        if options.prefix is not None:
            check_text(options.prefix, "prefix")
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.direction = direction(model, tokenizer, options.src_lang, options.tgt_lang, options.task, options.prefix)
        self.settings = self._settings()
        self.limit = source_limit(model, tokenizer, options.max_source_length)
        self.start, self.first = first_tokens(model, self.settings)

    def _settings(self) -> dict[str, Any]:
        """What `generate` is told in every batch: what the caller said, else the task, else the model's own."""
        options, config, task = self.options, self.model.generation_config, self.direction.task
        own = {name: getattr(config, name, None) for name in ("num_beams", "length_penalty")}
        said = _with_new_tokens(task) | self.direction.generation | _with_new_tokens(options.generation)
        settings = {"num_beams": own["num_beams"] or 4, **said}
        if options.num_beams is not None:
            settings["num_beams"] = options.num_beams
        if refused := sorted(NOT_FOR_TEXTS.intersection(options.generation)):
            raise ValueError(
                f"{', '.join(refused)} cannot be had where texts are translated: leave it out, or call model.generate"
            )
        if (unused := sorted(OF_BEAMS.intersection(options.generation))) and not options.strategy.has_beams:
            raise ValueError(f"{', '.join(unused)}: needs beam search, so leave out do_sample, minimum_bayes_risk and drafts")
        if not options.strategy.has_beams and (options.num_beams or 1) > 1:
            raise ValueError(f"num_beams={options.num_beams} has no use with samples and drafts: leave it out")
        penalty = options.length_penalty
        if penalty is None and options.length_normalization == "hf":  # theirs is an exponent of this one
            penalty = settings.get("length_penalty", own["length_penalty"])
        settings["length_penalty"] = PENALTIES.get(options.length_normalization, 1.0) if penalty is None else penalty
        wanted = options.num_return_sequences
        settings |= options.strategy.settings(wanted) | {"return_dict_in_generate": True}
        if not options.strategy.has_beams:
            return settings
        if wanted > settings["num_beams"]:
            raise ValueError(f"num_return_sequences={wanted} must not exceed num_beams={settings['num_beams']}")
        return settings | {"length_normalization": options.length_normalization}

    def __call__(
        self, texts: Sequence[str], numbers: Sequence[int] | None = None, required: Sequence[Required] | None = None
    ) -> list[list[Translation]]:
        """The hypotheses of each text, best first. A text of white space alone has empty ones, and costs nothing.

        Args:
            numbers: of the texts, for messages; None: from 1 on.
            required: what the targets of each text must have; None: nothing.

        Raises:
            ValueError: for a text that cannot be encoded or is too long, naming its number.
        """
        numbers = range(1, len(texts) + 1) if numbers is None else numbers
        documents = self._documents(texts, numbers)
        told = zip(documents, numbers, required or [NOTHING] * len(texts), strict=True)
        spreads = [spread for one in told if (spread := self._require(*one)) is not None]
        was_training = self.model.training
        self.model.eval()
        try:
            self._search([source for document in documents for _, source in document if source is not None])
            if spreads:
                place(spreads, self._search, bool(self.options.generation.get("ordered_phrases")))
        finally:
            self.model.train(was_training)
        return [self._joined(text, document) for text, document in zip(texts, documents, strict=True)]

    # ---- texts to ids ---------------------------------------------------------------------------------------------
    def _documents(self, texts: Sequence[str], numbers: Sequence[int]) -> list[list[tuple[Piece, _Source | None]]]:
        """The pieces of each text, those with text encoded."""
        for number, text in zip(numbers, texts, strict=True):
            check_text(text, f"line {number}")
        cut = [sentences(text) if self.options.split_sentences else [Piece("", text)] for text in texts]
        with self.direction.applied(self.tokenizer):
            ids = iter(self._encode([piece.text for piece in itertools.chain(*cut) if piece.text.strip()]))
            documents = []
            for number, pieces in zip(numbers, cut, strict=True):
                document: list[tuple[Piece, _Source | None]] = []
                for piece in pieces:
                    document += self._fitting(piece, next(ids), number) if piece.text.strip() else [(piece, None)]
                documents.append(document)
        return documents

    def _require(self, document: Sequence[tuple[Piece, _Source | None]], number: int, required: Required) -> Spread | None:
        """Note for the pieces of a text where they stand and what its targets must have. Returns phrases of several pieces."""
        pieces = [source for _, source in document if source is not None]
        for index, source in enumerate(pieces):
            source.place = number, index
        if required == NOTHING:
            return None
        if not pieces:
            raise ValueError(f"line {number} is empty, and so is its output: it can hold no phrases and no prefix")
        with self.direction.applied(self.tokenizer):
            phrases = [phrase_ids(self.tokenizer, phrase, number) for phrase in required.phrases]
            pieces[0].prefix = prefix_ids(self.tokenizer, required.prefix, self.first, number)
        if phrases and len(pieces) > 1:
            return Spread(pieces, phrases)
        pieces[0].phrases = phrases
        return None

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return self.tokenizer([self.direction.prefix + text for text in texts], verbose=False)["input_ids"]

    def _fitting(self, piece: Piece, ids: list[int], number: int) -> Iterable[tuple[Piece, _Source | None]]:
        """A piece as it is, or if it is too long, cut or refused; one without tokens is refused."""
        if not ids:
            raise ValueError(
                f"line {number} has text without tokens, {piece.text[:40]!r}: this tokenizer sees nothing in it; remove it"
            )
        if self.limit is None or len(ids) <= self.limit:
            return [(piece, _Source(piece.text, ids))]
        if self.options.long == "refuse":
            raise ValueError(
                f"line {number} has {len(ids)} tokens, more than the {self.limit} that the model takes: shorten it, or ask for "
                "long='split' (max_source_length sets another limit)"
            )
        if self.limit <= len(self._encode([""])[0]):
            raise ValueError(f"max_source_length={self.limit} leaves no room for a text beside prefix and special tokens")
        parts = fitted(piece.text, lambda text: len(self._encode([text])[0]) <= (self.limit or 0))
        parts[0] = Piece(piece.space + parts[0].space, parts[0].text)
        return [(part, _Source(part.text, self._encode([part.text])[0]) if part.text else None) for part in parts]

    # ---- ids to hypotheses ----------------------------------------------------------------------------------------
    def _search(self, sources: Sequence[_Source], may_fail: bool = False) -> None:
        """Find the hypotheses of sources, in batches; with `may_fail`, those that have none stay without.

        Raises:
            ValueError: naming the line of a source from which something is asked that cannot be met.
        """
        for numbers in length_batches([len(source.ids) for source in sources], self.options.max_tokens_per_batch):
            batch = [sources[number] for number in numbers]
            try:
                self._translate(batch)
            except ValueError as error:
                if not may_fail and isinstance(error, SourceError):
                    raise ValueError(f"line {batch[error.source].place[0]} {error.problem}") from None
                if not may_fail:
                    raise
                if len(batch) > 1:
                    for source in batch:
                        self._search([source], may_fail)

    def _translate(self, batch: Sequence[_Source]) -> None:
        """Let the model translate a batch."""
        side, filler = self.tokenizer.padding_side, self.tokenizer.pad_token_id
        ids, mask = padded([source.ids for source in batch], filler, side)
        inputs = {"input_ids": ids.to(self.model.device), "attention_mask": mask.to(self.model.device)}
        told = self.settings | self._lengths(max(len(source.ids) for source in batch))
        phrases, prefixes, places = ([getattr(source, name) for source in batch] for name in ("phrases", "prefix", "place"))
        told |= self.options.strategy.of_sources(phrases, prefixes, places, told.get("logits_processor") or [])
        output = self.model.generate(**inputs, **told)
        hypotheses = [row[1 : 1 + length] for row, length in zip(output.sequences.tolist(), output.lengths.tolist(), strict=True)]
        scores = self._scores(output)  # (rows)
        kept = scores.isfinite().tolist()
        texts = self._decode(hypotheses)
        rows = [source for source in batch for _ in range(self.settings["num_return_sequences"])]
        alignments: list[Alignment | None] = [None] * len(rows)
        if self.options.alignments.unit is not None or self.options.replace_unknown:
            texts, alignments = self._aligned(inputs, rows, hypotheses, texts)
        numbers = scores.tolist(), output.log_probs.tolist()
        for source, exists, *fields in zip(rows, kept, texts, *numbers, map(tuple, hypotheses), alignments, strict=True):
            if exists:
                source.found.append(Translation(*fields))
        for source in batch:
            best = self.options.strategy.best([each.text for each in source.found], self.options.num_return_sequences)
            if best is not None:
                source.found = [replace(source.found[place], score=utility) for place, utility in best]

    def _scores(self, output: Any) -> torch.Tensor:
        """Scores (rows) as the search has them; of samples and drafts, by the same formula."""
        if "sequences_scores" in output:
            return output.sequences_scores
        scoring = Scoring(self.options.length_normalization, self.settings["length_penalty"])
        return scoring.score(output.log_probs, output.lengths)

    def _decode(self, hypotheses: Sequence[Sequence[int]]) -> list[str]:
        return self.tokenizer.batch_decode(hypotheses, skip_special_tokens=True)

    def _lengths(self, longest: int) -> dict[str, Any]:
        """How many tokens each source of a batch may have at most, of which the longest has so many."""
        said = {**self.direction.task, **self.options.generation}
        names = ("max_length", "max_new_tokens")
        chosen = any(said.get(name) is not None or getattr(self.model.generation_config, name, None) for name in names)
        ratio = self.options.max_length_by_source
        if ratio is None and chosen:
            return {}
        a, b = ratio or (1, max(50, self._least(said)))
        most = max(1, math.floor(a * longest + b))
        limit = target_limit(self.model)
        most = most if limit is None else min(most, limit)
        return {"max_length_by_source": (a, b)} | ({} if chosen else {"max_new_tokens": most})

    def _least(self, said: dict[str, Any]) -> int:
        """The least tokens that are asked for, which the default of the most must leave room for."""
        names = ("min_length", "min_new_tokens")
        return max(said.get(name) or getattr(self.model.generation_config, name, None) or 0 for name in names)

    # ---- alignments -----------------------------------------------------------------------------------------------
    def _aligned(
        self, inputs: dict[str, torch.Tensor], rows: Sequence[_Source], hypotheses: list[list[int]], texts: list[str]
    ) -> tuple[list[str], list[Alignment | None]]:
        """Texts and alignments of hypotheses (rows), a number of them for each source of `inputs` (B)."""
        options = self.options.alignments
        each = len(rows) // len(inputs["input_ids"])
        repeated = {name: value.repeat_interleave(each, dim=0) for name, value in inputs.items()}
        skipped = len(self.direction.prefix)
        with self.direction.applied(self.tokenizer):
            units, words = (
                [source_units(self.tokenizer, self.direction.prefix + row.text, skipped, row.ids, unit) for row in rows]
                for unit in (options.unit or "words", "words")
            )
        usable, offsets = _usable(units, repeated["attention_mask"])
        chosen = attended(self.model, repeated, usable, hypotheses, self.start, options)
        chosen = [[place - offset for place in row] for row, offset in zip(chosen, offsets, strict=True)]
        if self.options.replace_unknown:
            unknown = self.tokenizer.unk_token_id
            texts = [
                with_unknown_replaced(self.tokenizer, row.text, ids, own, places) if unknown in ids else text
                for row, ids, own, places, text in zip(rows, hypotheses, words, chosen, texts, strict=True)
            ]
        if options.unit is None:
            return texts, [None] * len(rows)
        replaced = self.options.replace_unknown
        targets = [target_units(self.tokenizer, ids, options.unit, replaced) for ids in hypotheses]
        return texts, [pairs(*row) for row in zip(units, targets, chosen, strict=True)]

    # ---- pieces to texts ------------------------------------------------------------------------------------------
    def _joined(self, text: str, document: Sequence[tuple[Piece, _Source | None]]) -> list[Translation]:
        """The hypotheses of a text from those of its pieces: the k-th of each make up the k-th."""
        sources = [source for _, source in document if source is not None]
        if not sources:
            nothing = Translation("", 0.0, 0.0, (), None if self.options.alignments.unit is None else ())
            return [nothing] * self.options.num_return_sequences
        if len(document) == 1:
            return sources[0].found
        count = min(len(source.found) for source in sources)
        return [self._join(document, rank) for rank in range(count)]

    def _join(self, document: Sequence[tuple[Piece, _Source | None]], rank: int) -> Translation:
        text = read = ""
        ids: list[int] = []
        alignment: set[tuple[int, int]] = set()
        score = log_prob = 0.0
        unit, tokens = self.options.alignments.unit, (0, 0)
        for piece, source in document:
            text, read = text + piece.space, read + piece.space
            if source is None:
                continue
            found = source.found[rank]
            if found.alignment is not None:
                before = (_words_before(read), _words_before(text)) if unit == "words" else tokens
                alignment |= {(one + before[0], other + before[1]) for one, other in found.alignment}
                tokens = tokens[0] + self._count(source.ids), tokens[1] + self._count(found.token_ids)
            text, read = text + found.text, read + source.text
            ids += found.token_ids
            score, log_prob = score + found.score, log_prob + found.log_prob
        return Translation(text, score, log_prob, tuple(ids), None if unit is None else tuple(sorted(alignment)))

    def _count(self, ids: Sequence[int]) -> int:
        """Tokens of a piece, without special ones and those of a prefix."""
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        return sum(token not in special for token in ids)


def _with_new_tokens(said: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` with `max_new_tokens` for `max_length`, and so with the least.

    Both mean the same here, where the decoder starts with one token; but of a `max_length` that is said and `max_new_tokens` of
    the generation config, `generate` would take the second.
    """
    said = dict(said)
    for length, new in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        if type(said.get(length)) is int and said[length] > 1 and said.get(new) is None:
            said[new] = said.pop(length) - 1
    return said


def _words_before(text: str) -> int:
    """Words of a text, but for one that goes on in what follows."""
    return len(text.split()) - bool(text and not text[-1].isspace())


def _usable(units: Sequence[Sequence[int | None]], mask: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Source tokens (B, S) that belong to a word, and the padding before each row's first token."""
    offsets = mask.argmax(1).tolist()
    usable = torch.zeros_like(mask, dtype=torch.bool)
    for row, own, offset in zip(usable, units, offsets, strict=True):
        row[offset : offset + len(own)] = torch.tensor([unit is not None for unit in own])
    return usable, offsets

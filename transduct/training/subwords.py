"""Subword regularisation: a text is cut into other pieces each time that it is trained on.

- `BPEDropout` leaves merges out at random (Provilkov et al. 2020, arXiv 1910.13267, algorithm 1).
- `UnigramSampling` draws a segmentation in proportion to its probability to the power of alpha (Kudo 2018, arXiv 1804.10959,
  section 3.2, with l = infinity): sums over all ways to end at a character, then a draw from the last character to the first.

Both cut the words that the tokenizer itself has found, so that normalisation, special tokens and what stands around a text are
its own. What it can only write as `<unk>` or as bytes stays as it is. The `tokenizers` library has a BPE dropout of its own,
whose random numbers cannot be seeded.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import exp, inf, log
from typing import Any, Protocol

import numpy as np

from transduct.tokenization import TransductTokenizer
from transduct.training.encoding import Example, PairEncoder
from transduct.training.recipe_data import SubwordSection
from transduct.vocabulary import BYTES

DRAWS_AT_ONCE = 256


class Draws:
    """Uniform numbers in [0, 1), one by one; asking a generator for each would cost much more."""

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self._numbers: list[float] = []

    def __call__(self) -> float:
        if not self._numbers:
            self._numbers = self._rng.random(DRAWS_AT_ONCE).tolist()
        return self._numbers.pop()


class Cutter(Protocol):
    """Cuts a word into pieces of the vocabulary at random; None: it has characters that are no pieces."""

    def __call__(self, word: str, draw: Draws) -> list[str] | None: ...


@dataclass(frozen=True)
class BPEDropout:
    """BPE that leaves out each possible merge of a step with a probability (Provilkov et al. 2020, algorithm 1).

    Args:
        ranks: each pair of pieces that merges, with its place in the list of merges.
        vocabulary: all pieces.
        dropout: the probability; 0 is plain BPE, 1 leaves characters.
    """

    ranks: dict[tuple[str, str], int]
    vocabulary: frozenset[str]
    dropout: float

    def __call__(self, word: str, draw: Draws) -> list[str] | None:
        pieces = list(word)
        if not self.vocabulary.issuperset(pieces):
            return None
        while True:
            best, place = len(self.ranks), -1
            for i, pair in enumerate(pairwise(pieces)):
                rank = self.ranks.get(pair)
                if rank is not None and (self.dropout == 0 or draw() >= self.dropout) and rank < best:
                    best, place = rank, i
            if place < 0:
                return pieces
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


@dataclass(frozen=True)
class UnigramSampling:
    """A segmentation drawn with probability proportional to (product of its pieces' probabilities)^alpha.

    Args:
        scores: log-probability of each piece.
        alpha: 1 draws from the model itself, 0 from all segmentations alike; a large one takes the best.
    """

    scores: dict[str, float]
    alpha: float
    longest: int

    def __call__(self, word: str, draw: Draws) -> list[str] | None:
        total = [0.0]  # log of the sum over all segmentations of the first characters
        for end in range(1, len(word) + 1):
            total.append(_log_sum([weight for _, weight in self._ending_at(word, end, total)]))
        if total[-1] == -inf:
            return None
        pieces: list[str] = []
        end = len(word)
        while end:
            starts = self._ending_at(word, end, total)
            start = _drawn(starts, total[end], draw())
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _ending_at(self, word: str, end: int, total: list[float]) -> list[tuple[int, float]]:
        """The beginning of each last piece of the first `end` characters, with the log-weight of all that end with it."""
        starts = range(max(0, end - self.longest), end)
        scored = ((start, self.scores.get(word[start:end])) for start in starts if total[start] > -inf)
        return [(start, total[start] + self.alpha * score) for start, score in scored if score is not None]


def _drawn(weights: list[tuple[int, float]], total: float, number: float) -> int:
    """The key whose share of exp(total) the number in [0, 1) falls into."""
    for key, weight in weights:
        number -= exp(weight - total)
        if number < 0:
            return key
    return weights[-1][0]  # the shares' rounding errors


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values, default=-inf)
    return largest if largest == -inf else largest + log(sum(exp(value - largest) for value in values))


class SubwordSampler:
    """Token ids of texts on one side of a tokenizer, in segmentations that are drawn.

    Args:
        tokenizer: a fast one, whose model is BPE (for `dropout`) or unigram (for `alpha`).
        section: which of the two, and how much.
        target: the texts are targets.

    Raises:
        ValueError: for a tokenizer of another kind.
    """

    def __init__(self, tokenizer: Any, section: SubwordSection, target: bool):
        self.tokenizer, self.target = tokenizer, target
        backend = _backend(tokenizer, target)
        model = json.loads(backend.to_str())["model"]
        self.ids = backend.get_vocab(with_added_tokens=True)
        kept = [token.content for token in backend.get_added_tokens_decoder().values()]
        kept += [tokenizer.unk_token, *(BYTES if model.get("byte_fallback") else [])]
        self.cut = make_cutter(model, section, kept)
        self.fixed = {self.ids[token] for token in kept if token in self.ids}

    def __call__(self, texts: Sequence[str], draws: Sequence[Draws]) -> list[list[int]]:
        """The ids of each text, with the tokens that the tokenizer puts around it; `draws` gives each its random numbers."""
        return [self._recut(encoding, draw) for encoding, draw in zip(self._encodings(texts), draws, strict=True)]

    def _encodings(self, texts: Sequence[str]) -> Any:
        side = {"text_target": list(texts)} if self.target else {"text": list(texts)}
        return self.tokenizer(**side).encodings

    def _recut(self, encoding: Any, draw: Draws) -> list[int]:
        result: list[int] = []
        for word, group in groupby(zip(encoding.word_ids, encoding.ids, encoding.tokens, strict=True), key=lambda item: item[0]):
            items = list(group)
            ids = [token_id for _, token_id, _ in items]
            if word is not None and self.fixed.isdisjoint(ids):
                pieces = self.cut("".join(token for *_, token in items), draw)
                ids = ids if pieces is None else [self.ids[piece] for piece in pieces]
            result += ids
        return result


def _backend(tokenizer: Any, target: bool) -> Any:
    if target and isinstance(tokenizer, TransductTokenizer):
        with tokenizer.as_target():
            return tokenizer.backend_tokenizer
    return tokenizer.backend_tokenizer


def make_cutter(model: dict[str, Any], section: SubwordSection, never: Iterable[str] = ()) -> Cutter:
    """The cutter of a vocabulary, given as in the "model" of a `tokenizer.json`; no word is cut into pieces of `never`.

    Raises:
        ValueError: for `dropout` without BPE, `alpha` without unigram, and BPE with marks inside or behind its words.
    """
    if section.dropout is not None:
        if model["type"] != "BPE":
            raise ValueError(
                f"data.subwords.dropout={section.dropout} is for BPE, but the tokenizer is {model['type']}; see alpha"
            )
        for option in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(option):
                raise ValueError(f"data.subwords.dropout: the tokenizer's {option}={model[option]!r} is not supported")
        pairs = [tuple(pair if isinstance(pair, list) else pair.split(" ")) for pair in model["merges"]]
        return BPEDropout({pair: rank for rank, pair in enumerate(pairs)}, frozenset(model["vocab"]), section.dropout)
    if model["type"] != "Unigram":
        raise ValueError(f"data.subwords.alpha={section.alpha} is for unigram, but the tokenizer is {model['type']}; see dropout")
    assert section.alpha is not None
    names = set(never)
    scores = {piece: score for piece, score in model["vocab"] if piece and piece not in names}
    return UnigramSampling(scores, section.alpha, max(map(len, scores)))


class SubwordVariation:
    """Pairs in another segmentation each time; a pair that would become too long by it keeps the tokenizer's own.

    Args:
        encoder: of the pairs, with their texts kept.
        section: what is sampled, on which sides.

    Raises:
        ValueError: for a tokenizer of another kind.
    """

    def __init__(self, encoder: PairEncoder, section: SubwordSection):
        assert encoder.keep_texts == "pair"
        self.encoder = encoder
        self.source = SubwordSampler(encoder.tokenizer, section, False) if section.sides in ("both", "source") else None
        self.target = SubwordSampler(encoder.tokenizer, section, True) if section.sides in ("both", "target") else None

    def __call__(self, examples: list[Example], generators: Sequence[np.random.Generator]) -> list[Example]:
        draws, around = [Draws(generator) for generator in generators], self.encoder.around
        sources = [example["input_ids"] for example in examples]
        targets = [example["labels"] for example in examples]
        if self.source is not None:
            cut = self.source([around.text + example["source"] for example in examples], draws)
            sources = _short_enough(cut, around.before_source, sources, self.encoder.max_source_tokens)
        if self.target is not None:
            cut = self.target([example["target"] for example in examples], draws)
            targets = _short_enough(cut, around.before_target, targets, self.encoder.max_target_tokens)
        return [{"input_ids": source, "labels": target} for source, target in zip(sources, targets, strict=True)]


def _short_enough(cut: list[list[int]], before: list[int], whole: list[list[int]], limit: int | None) -> list[list[int]]:
    """The texts as they were cut, each behind its tokens, and as they are where that is longer than the limit."""
    found = ([*before, *ids] for ids in cut)
    return [own if limit is not None and len(ids) > limit else ids for ids, own in zip(found, whole, strict=True)]

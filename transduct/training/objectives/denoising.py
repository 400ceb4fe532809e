"""BART's noises (Lewis et al. 2020, arXiv 1910.13461, section 2.2), and BERT's masking, which is one of them.

The model reads the text with noise and writes the text: `labels` is the text as it came. No noise touches special tokens;
what is permuted, rotated or hidden lies between them. Words and sentences are those of `TokenText`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from transduct.training.objectives.examples import IGNORED, Example, check_share, token_ids
from transduct.training.objectives.text import TokenText


class Noise:
    """What the noises have in common: the text with noise is read, the text itself is written."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, **options: Any) -> Self:
        """The noise with options, for the vocabulary of a fast tokenizer."""
        return cls(TokenText.from_tokenizer(tokenizer), **options)  # type: ignore[call-arg]

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        labels = token_ids(ids)
        return {"input_ids": self.apply(labels.copy(), rng), "labels": labels}

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The text (n,) with noise, another length where tokens are deleted or hidden."""
        raise NotImplementedError


@dataclass(frozen=True)
class TokenMasking(Noise):
    """Random tokens become the mask (BART, section 2.2); as a masked language model with BERT's 80/10/10: `TokenMasking.bert`.

    Args:
        text: the vocabulary, which must have a mask token.
        share: of the tokens that are chosen, rounded, but at least one unless it is 0; BERT: 0.15 (section 3.1).
        random_share: of the chosen tokens that become any token of the vocabulary instead; BERT: 0.1.
        keep_share: of the chosen tokens that stay as they are; BERT: 0.1.
        predict: "text": `labels` is the whole text; "chosen": -100 but at the chosen tokens, for an encoder alone.

    Raises:
        ValueError: for options out of range, and for a vocabulary without mask token.
    """

    text: TokenText
    share: float = 0.15
    random_share: float = 0.0
    keep_share: float = 0.0
    predict: Literal["text", "chosen"] = "text"

    def __post_init__(self):
        for name in ("share", "random_share", "keep_share"):
            check_share(name, vars(self)[name])
        if self.random_share + self.keep_share > 1:
            raise ValueError(f"random_share={self.random_share} and keep_share={self.keep_share} are more than 1 together")
        if self.predict not in ("text", "chosen"):
            raise ValueError(f'predict={self.predict!r} must be "text" or "chosen"')
        _mask_token(self.text)

    @classmethod
    def bert(cls, tokenizer: Any, share: float = 0.15) -> "TokenMasking":
        """BERT's masked language model (Devlin et al. 2019, arXiv 1810.04805, section 3.1)."""
        return cls.from_tokenizer(tokenizer, share=share, random_share=0.1, keep_share=0.1, predict="chosen")

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        text = token_ids(ids)
        noisy, chosen = self._masked(text, rng)
        if self.predict == "text":
            return {"input_ids": noisy, "labels": text}
        labels = np.full_like(text, IGNORED)
        labels[chosen] = text[chosen]
        return {"input_ids": noisy, "labels": labels}

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._masked(ids, rng)[0]

    def _masked(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The text with masks (n,), and the places that were chosen."""
        free = np.flatnonzero(~self.text.is_fixed(ids))
        count = min(max(round(self.share * len(free)), int(self.share > 0)), len(free))
        chosen = free[rng.choice(len(free), count, replace=False, shuffle=False)] if count else free[:0]
        fate = rng.random(count)
        noisy = ids.copy()
        noisy[chosen[fate >= self.keep_share]] = _mask_token(self.text)
        if self.random_share:
            random = chosen[(fate >= self.keep_share) & (fate < self.keep_share + self.random_share)]
            noisy[random] = rng.choice(self.text.ordinary_ids, len(random))
        return noisy, chosen


@dataclass(frozen=True)
class TokenDeletion(Noise):
    """Random tokens are left out; which is for the model to find out (BART, section 2.2).

    Args:
        text: the vocabulary.
        share: of the tokens that are deleted, rounded. The paper gives none; 0.15 is BERT's share of masks.

    Raises:
        ValueError: for a share out of range.
    """

    text: TokenText
    share: float = 0.15

    def __post_init__(self):
        check_share("share", self.share)

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        free = np.flatnonzero(~self.text.is_fixed(ids))
        return np.delete(ids, free[rng.choice(len(free), round(self.share * len(free)), replace=False, shuffle=False)])


@dataclass(frozen=True)
class TextInfilling(Noise):
    """Spans of whole words become one mask each, however long they are; a span of no word is one mask more (BART, section 2.2).

    Spans are drawn until they have used up the budget of `ceil(share * words)`: a span of k words uses k of it, one of no
    word 1, and the last is cut to fit. Each way to place them without overlap is equally likely. A span that meets a
    special token goes on behind it with a mask of its own.

    Args:
        text: the vocabulary, which must have a mask token.
        share: of the words that are hidden, at most; BART large: 0.3 (section 5).
        mean_words: lambda of the Poisson distribution of span lengths, in words; BART: 3.

    Raises:
        ValueError: for options out of range, and for a vocabulary without mask token.
    """

    text: TokenText
    share: float = 0.3
    mean_words: float = 3.0

    def __post_init__(self):
        check_share("share", self.share)
        if not 0 <= self.mean_words < float("inf"):
            raise ValueError(
                f"mean_words={self.mean_words} must be a number that is not negative: the mean length of a span in words"
            )
        _mask_token(self.text)

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        fixed, starts = self.text.is_fixed(ids), self.text.word_starts(ids)
        return infill(ids, fixed, starts, self.share, self.mean_words, _mask_token(self.text), rng)


@dataclass(frozen=True)
class SentencePermutation(Noise):
    """Sentences change places at random (BART, section 2.2); a rest without sentence mark is one too.

    Args:
        text: the vocabulary.
        share: of the sentences that take part, rounded up; BART large: all (section 5).

    Raises:
        ValueError: for a share out of range.
    """

    text: TokenText
    share: float = 1.0

    def __post_init__(self):
        check_share("share", self.share)

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return permute_sentences(ids, self.text.is_fixed(ids), self.text.sentence_ends(ids), self.share, rng)


@dataclass(frozen=True)
class DocumentRotation(Noise):
    """The text is turned so that it begins with a uniformly random one of its tokens (BART, section 2.2).

    Special tokens at both ends stay there; any between them turn with the text.

    Args:
        text: the vocabulary.
    """

    text: TokenText

    def apply(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        free = np.flatnonzero(~self.text.is_fixed(ids))
        if not free.size:
            return ids
        ids, body = ids.copy(), slice(free[0], free[-1] + 1)
        ids[body] = np.roll(ids[body], free[0] - free[rng.integers(len(free))])
        return ids


@dataclass(frozen=True)
class Compose:
    """Several noises, one after the other.

    Args:
        noises: the first is applied first.

    Raises:
        ValueError: for no noise, and for a masked language model among them: its labels are not the text.
    """

    noises: tuple[Noise, ...]

    def __post_init__(self):
        object.__setattr__(self, "noises", tuple(self.noises))
        if not self.noises:
            raise ValueError("noises is empty: name at least one")
        if any(isinstance(noise, TokenMasking) and noise.predict == "chosen" for noise in self.noises):
            raise ValueError('noises: TokenMasking(predict="chosen") stands alone; composed noises have the whole text as labels')

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        labels = token_ids(ids)
        noisy = labels.copy()
        for noise in self.noises:
            noisy = noise.apply(noisy, rng)
        return {"input_ids": noisy, "labels": labels}


def bart_noise(tokenizer: Any) -> Compose:
    """What BART large was trained with (section 5): all sentences permuted, then 30 % of the words hidden by infilling."""
    text = TokenText.from_tokenizer(tokenizer)
    return Compose((SentencePermutation(text), TextInfilling(text)))


def infill(
    ids: np.ndarray,
    fixed: np.ndarray,
    word_starts: np.ndarray,
    share: float,
    mean_words: float,
    mask_token_id: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The text (n,) with spans of whole words replaced by masks; see `TextInfilling`.

    Args:
        fixed: bool (n,), tokens that stay.
        word_starts: bool (n,), the first token of each word, to which those up to the next belong.
    """
    starts = np.flatnonzero(word_starts)
    words = len(starts)
    if not (budget := math.ceil(share * words)):
        return ids.copy()
    lengths = _span_lengths(budget, mean_words, rng)
    seen = words - int(lengths.sum())
    # An arrangement of the spans and the words that are seen; a span stands behind as many words as come before it.
    places = np.sort(rng.choice(seen + len(lengths), len(lengths), replace=False, shuffle=False)) - np.arange(len(lengths))
    first = places + np.cumsum(lengths) - lengths  # the first word of each span
    hidden_word = np.zeros(words + 1, dtype=bool)
    hidden_word[np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = True
    hidden = hidden_word[np.cumsum(word_starts) - 1] & ~fixed  # the place before the first word is that after the last
    end = np.flatnonzero(~fixed)[-1] + 1
    begins = np.append(starts, end)[first]
    again = hidden & np.concatenate([[False], fixed[:-1]])  # behind a special token, if the span began before it
    again[begins[lengths > 0]] = False
    masks = np.sort(np.concatenate([begins, np.flatnonzero(again)]))
    kept = np.where(hidden, -1, ids)
    mixed = np.insert(kept, masks, mask_token_id)
    return mixed[mixed >= 0]


def _span_lengths(budget: int, mean_words: float, rng: np.random.Generator) -> np.ndarray:
    """Poisson lengths in random order that use the budget up, each at least 1 of it."""
    lengths = rng.poisson(mean_words, budget)  # enough, as each uses 1 or more
    used = np.cumsum(np.maximum(lengths, 1))
    count = int(np.searchsorted(used, budget)) + 1
    lengths = lengths[:count]
    lengths[-1] -= max(int(used[count - 1]) - budget, 0)
    return rng.permutation(lengths)  # or the span that was cut would always come last


def permute_sentences(
    ids: np.ndarray, fixed: np.ndarray, sentence_ends: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """The text (n,) with a share of its sentences in random order.

    Args:
        fixed: bool (n,), tokens that stay; sentences change places between two of them only.
        sentence_ends: bool (n,), the last token of each sentence.
    """
    ids = ids.copy()
    edges = np.flatnonzero(np.diff(np.concatenate([[True], fixed, [True]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2):  # between special tokens
        ends = np.flatnonzero(sentence_ends[start : stop - 1]) + start + 1
        bounds = np.concatenate([[start], ends, [stop]])
        sentences = len(bounds) - 1
        moved = rng.choice(sentences, math.ceil(share * sentences), replace=False)
        order = np.arange(sentences)
        order[np.sort(moved)] = moved
        ids[start:stop] = np.concatenate([ids[bounds[i] : bounds[i + 1]] for i in order])
    return ids


def _mask_token(text: TokenText) -> int:
    if text.mask_token_id is None:
        raise ValueError('the vocabulary has no mask token: train the tokenizer with mask_token="<mask>"')
    return text.mask_token_id

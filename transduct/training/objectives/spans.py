"""T5's span corruption (Raffel et al. 2020, arXiv 1910.10683, section 3.1.4): hide spans, write them after their sentinels.

    text     Thank you for inviting me to your party last week </s>
    input    Thank you <extra_id_0> me to your party <extra_id_1> week </s>
    labels   <extra_id_0> for inviting <extra_id_1> last </s>

As in T5's released code, the numbers of hidden tokens and of spans are exact, not drawn; the lengths are a random composition.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transduct.training.objectives.examples import Example, check_token, random_composition, token_ids, without_end


@dataclass(frozen=True)
class SpanCorruption:
    """Hides spans of a text (section 3.1.4). A text of fewer than two tokens is left whole.

    Args:
        sentinels: token ids of `<extra_id_0>`, `<extra_id_1>`, ...: in T5's vocabulary falling from the highest id.
        eos_token_id: ends input and labels. If the text ends with it, it is not hidden and not doubled.
        density: share of the tokens that is hidden; T5: 0.15 (table 6).
        mean_span: mean length of a span in tokens; T5: 3 (table 7).

    Raises:
        ValueError: for options out of range, and when called for a text with more spans than there are sentinels.
    """

    sentinels: tuple[int, ...]
    eos_token_id: int
    density: float = 0.15
    mean_span: float = 3.0

    def __post_init__(self):
        _check_rates(self.density, self.mean_span)
        check_token("eos_token_id", self.eos_token_id)
        object.__setattr__(self, "sentinels", tuple(self.sentinels))
        if not self.sentinels:
            raise ValueError("sentinels is empty: train the tokenizer with extra_ids=100, or pass the ids that stand for spans")
        for sentinel in self.sentinels:
            check_token("sentinels", sentinel)
        if len(set(self.sentinels)) < len(self.sentinels):
            raise ValueError(f"sentinels={self.sentinels} must be distinct: each stands for one span")

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, **options: Any) -> "SpanCorruption":
        """With the sentinels and the end token of a tokenizer; `options` are `density` and `mean_span`."""
        return cls(sentinel_ids(tokenizer), tokenizer.eos_token_id, **options)

    def __call__(self, ids: Sequence[int] | np.ndarray, rng: np.random.Generator) -> Example:
        text = without_end(token_ids(ids), self.eos_token_id)
        inputs, labels = corrupt(
            text, noise_mask(len(text), self.density, self.mean_span, rng), self.sentinels, self.eos_token_id
        )
        return {"input_ids": inputs, "labels": labels}

    def lengths(self, inputs_length: int) -> tuple[int, int]:
        """Tokens of text that fill an input of `inputs_length`, and the length of its labels; see `span_corruption_lengths`."""
        return span_corruption_lengths(inputs_length, self.density, self.mean_span)


def span_corruption_lengths(inputs_length: int, density: float, mean_span: float) -> tuple[int, int]:
    """How many tokens of text fill an input, so that nothing is padded or cut.

    Args:
        inputs_length: tokens of the corrupted input, its sentinels and end token included; at least 3.
        density, mean_span: as in `SpanCorruption`.

    Returns:
        The tokens of text, without an end token, and those of the labels with sentinels and end token. (512, 0.15, 3) gives
        (568, 114). As in T5's released code, at density 0.5 the labels are not a token longer than the input: (512, 0.5, 3)
        gives (766, 512). Where that code rounds to no span at all, the one span that a text always has is counted here.

    Raises:
        ValueError: for arguments out of range.
    """
    _check_rates(density, mean_span)
    if inputs_length < 3:
        raise ValueError(f"inputs_length={inputs_length} must be at least 3: a token, a sentinel and the end token")

    def lengths(raw: int) -> tuple[int, int]:
        hidden, spans = _counts(raw, density, mean_span)
        return raw - hidden + spans + 1, hidden + spans + 1

    raw = inputs_length - 1  # there are no more sentinels than hidden tokens, so this always fits
    while lengths(raw + 1)[0] <= inputs_length:
        raw += 1
    if density == 0.5 and lengths(raw)[1] > inputs_length:
        raw -= 1
    return raw, lengths(raw)[1]


def noise_mask(length: int, density: float, mean_span: float, rng: np.random.Generator) -> np.ndarray:
    """Which tokens are hidden: bool (length,), spans and what is between them in turn, the first token seen, the last hidden.

    The counts of hidden and of seen tokens are each cut into spans by a uniformly random composition. A text of fewer than
    two tokens has nothing to hide.
    """
    if length < 2:
        return np.zeros(length, dtype=bool)
    hidden, spans = _counts(length, density, mean_span)
    lengths = np.empty((spans, 2), dtype=np.int64)
    lengths[:, 0] = random_composition(length - hidden, spans, rng)
    lengths[:, 1] = random_composition(hidden, spans, rng)
    return np.repeat(np.tile([False, True], spans), lengths.ravel())  # (length,)


def corrupt(ids: np.ndarray, mask: np.ndarray, sentinels: Sequence[int], eos_token_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Put a sentinel in the place of each run of True in `mask`, and write the runs behind their sentinels.

    Args:
        ids: the text without end token, (n,); mask: bool (n,).
        sentinels: the id of the first span, the second, ...

    Returns:
        Input (S,) and labels (T,), each with the end token. No token is lost, whatever its id.

    Raises:
        ValueError: for more spans than sentinels.
    """
    first = mask & ~np.concatenate([[False], mask[:-1]])  # the first token of each span, (n,)
    spans = int(first.sum())
    if spans > len(sentinels):
        advice = "Use shorter texts, longer spans, or a tokenizer with more sentinels"
        raise ValueError(
            f"a text of {len(ids)} tokens has {spans} spans, but there are only {len(sentinels)} sentinels. {advice}"
        )
    used = np.asarray(sentinels[:spans], dtype=np.int64)
    inputs = ids.copy()
    inputs[first] = used
    hidden_before = np.flatnonzero(first[mask])  # where each span begins among the hidden tokens
    labels = np.insert(ids[mask], hidden_before, used)
    return np.append(inputs[~mask | first], eos_token_id), np.append(labels, eos_token_id)


def sentinel_ids(tokenizer: Any) -> tuple[int, ...]:
    """The ids of `<extra_id_0>`, `<extra_id_1>`, ... in a tokenizer's vocabulary; empty if it has none."""
    found = {}
    for token, token_id in tokenizer.get_vocab().items():
        if match := re.fullmatch(r"<extra_id_(\d+)>", token):
            found[int(match[1])] = token_id
    return tuple(found[number] for number in sorted(found))


def _counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Hidden tokens and spans of a text of two tokens or more; at least one is hidden and one is seen."""
    hidden = min(max(round(length * density), 1), length - 1)
    return hidden, min(max(round(hidden / mean_span), 1), hidden, length - hidden)


def _check_rates(density: float, mean_span: float) -> None:
    if not 0 < density < 1:
        raise ValueError(f"density={density} must be between 0 and 1: the share of the tokens that is hidden")
    if not 1 <= mean_span < float("inf"):
        raise ValueError(f"mean_span={mean_span} must be at least 1: the mean length of a hidden span in tokens")

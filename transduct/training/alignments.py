"""Word alignments in Pharaoh's form, "0-0 1-2", as pairs of token positions in a batch.

- `token_alignments` maps an alignment of words to one of tokens, for texts and a tokenizer.
- `AlignmentCollator` puts the column `alignments` of a data set into a batch, beside what another collator makes of the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

COLUMNS = ("input_ids", "attention_mask", "labels", "decoder_input_ids")
"""Columns of a data set that a model is trained on; the others are left out of a batch with alignments."""


def parse_alignment(text: str) -> list[tuple[int, int]]:
    """Pairs of source and target words, counted from 0, of a line such as "0-0 1-2 1-3".

    Raises:
        ValueError: for anything else.
    """
    pairs = []
    for pair in text.split():
        source, dash, target = pair.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise ValueError(f"{pair!r} in the alignment {text!r} must read SOURCE-TARGET, two word numbers from 0 on")
        pairs.append((int(source), int(target)))
    return pairs


def token_alignments(tokenizer: Any, source: str, target: str, alignment: str) -> dict[str, list]:
    """A pair of texts as an example for training, with each token of a word aligned with each token of its partner.

    Args:
        tokenizer: a fast one, which knows where in the text its tokens are. Words are apart by white space.
        alignment: see `parse_alignment`.

    Returns:
        `input_ids`, `labels`, and `alignments`: pairs of positions in these two.

    Raises:
        ValueError: for an alignment of words that are not there.
    """
    encoded = tokenizer(source, return_offsets_mapping=True)
    wanted = tokenizer(text_target=target, return_offsets_mapping=True)
    tokens = [words_of_tokens(text, each["offset_mapping"]) for text, each in ((source, encoded), (target, wanted))]
    pairs = []
    for numbers in parse_alignment(alignment):
        for number, text, side in zip(numbers, (source, target), ("source", "target"), strict=True):
            if number >= len(text.split()):
                raise ValueError(f"the alignment {alignment!r} names word {number} of the {side} {text!r}, counted from 0")
        ends = [[position for position, word in enumerate(side) if word == n] for side, n in zip(tokens, numbers, strict=True)]
        pairs += [[one, other] for one in ends[0] for other in ends[1]]
    return {"input_ids": encoded["input_ids"], "labels": wanted["input_ids"], "alignments": pairs}


def words_of_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """The word that each token begins in, given its start and end in the text; None for special tokens and spaces."""
    word_at: list[int | None] = []
    number, inside = -1, False
    for character in text:
        if character.isspace():
            inside = False
        elif not inside:
            number, inside = number + 1, True
        word_at.append(number if inside else None)
    return [next((word for word in word_at[start:end] if word is not None), None) for start, end in offsets]


@dataclass
class AlignmentCollator:
    """Collates with `collator`, and adds `alignments` (B, A, 2), pairs of source and target positions, filled up with -1.

    Args:
        collator: makes a batch of everything else; pads sources on the side of its tokenizer.
        columns: of the data set, that it is given.
    """

    collator: Callable[[list[dict[str, Any]]], dict[str, Any]]
    columns: Sequence[str] = COLUMNS

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Examples with the column `alignments`; where it is missing, as in an evaluation, the batch has none.

        Raises:
            ValueError: for a pair beyond the ends of its texts.
        """
        batch = self.collator([{name: row[name] for name in self.columns if name in row} for row in features])
        if "alignments" not in features[0]:
            return batch
        for row in features:
            for source, target in row["alignments"]:
                if not (0 <= source < len(row["input_ids"]) and 0 <= target < len(row["labels"])):
                    lengths = f"{len(row['input_ids'])} source and {len(row['labels'])} target tokens"
                    raise ValueError(f"the alignment {source}-{target} lies outside of {lengths}: was the pair cut?")
        most = max(len(row["alignments"]) for row in features)
        alignments = torch.full((len(features), most, 2), -1, dtype=torch.int64)
        for place, row in zip(alignments, features, strict=True):
            if row["alignments"]:
                place[: len(row["alignments"])] = torch.as_tensor(row["alignments"])
        if self.collator.tokenizer.padding_side == "left":  # type: ignore[attr-defined]
            padding = batch["input_ids"].shape[1] - torch.tensor([len(row["input_ids"]) for row in features])  # (B)
            alignments[..., 0] += padding[:, None] * (alignments[..., 0] >= 0)
        return {**batch, "alignments": alignments}

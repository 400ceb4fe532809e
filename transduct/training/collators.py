"""From examples to padded batches.

`Seq2SeqCollator` does what transformers' `DataCollatorForSeq2Seq` does, with these differences:
- it never changes its input and never calls the tokenizer: padding needs the pad token and the side only;
- labels are padded on the right whatever the tokenizer's side is, since teacher forcing starts with the first label;
- a list-valued column that it cannot pad is an error, not a tensor of unequal rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_ZERO_PADDED = (
    "attention_mask",
    "decoder_attention_mask",
    "cross_attention_mask",
    "position_ids",
    "decoder_position_ids",
    "segment_ids",
    "decoder_segment_ids",
    "prefix_mask",
)


@dataclass
class Seq2SeqCollator:
    """Pads sources and labels to the longest of the batch, and makes the decoder's input from the labels.

    Args:
        tokenizer: gives `pad_token_id` and `padding_side`.
        model: if given, its `prepare_decoder_input_ids_from_labels` makes `decoder_input_ids`.
        decoder_start_token_id: if given without a model, `decoder_input_ids` are the labels moved one to the right behind it.
        padding: True or "longest", or "max_length" together with `max_length`.
        max_length: length of every row, for `padding="max_length"`.
        pad_to_multiple_of: lengths are rounded up to a multiple of this.
        label_pad_token_id: fills the labels; the loss ignores -100.
        return_tensors: "pt" or "np".
    """

    tokenizer: Any
    model: Any = None
    decoder_start_token_id: int | None = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __post_init__(self):
        if self.padding not in (True, "longest", "max_length"):
            raise ValueError(f'padding={self.padding!r} must be True, "longest" or "max_length"')
        if self.padding == "max_length" and self.max_length is None:
            raise ValueError('padding="max_length" needs max_length')
        if self.return_tensors not in ("pt", "np"):
            raise ValueError(f'return_tensors={self.return_tensors!r} must be "pt" or "np"')
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer.pad_token_id is None: batches of unequal rows need a padding token")

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Examples with `input_ids` and, if they are for training, `labels`; both lists, arrays or tensors of one dimension.

        Returns:
            `input_ids` and `attention_mask` (B, S), `labels` and `decoder_input_ids` (B, T), and every other column as it is.
        """
        if not features:
            raise ValueError("features is empty: a batch needs at least one example")
        columns = {name: [feature[name] for feature in features] for name in features[0]}
        if columns.get("labels") is not None and all(label is None for label in columns["labels"]):
            del columns["labels"]
        columns.setdefault("attention_mask", [[1] * len(ids) for ids in columns["input_ids"]])
        arrays = {name: self._stacked(name, rows) for name, rows in columns.items()}
        as_tensors = self.return_tensors == "pt"
        batch = {name: torch.from_numpy(array) if as_tensors else array for name, array in arrays.items()}
        if "labels" in batch and "decoder_input_ids" not in batch:
            self._add_decoder_input(batch)
        return batch

    def _stacked(self, name: str, rows: list[Any]) -> np.ndarray:
        if np.ndim(rows[0]) == 0:
            return np.asarray(rows)  # (B,)
        if name == "labels":
            return self._padded(name, rows, self.label_pad_token_id, "right")  # (B, T)
        side = "right" if name.startswith("decoder_") else self.tokenizer.padding_side
        if name in ("input_ids", "decoder_input_ids"):
            return self._padded(name, rows, self.tokenizer.pad_token_id, side)  # (B, S) or (B, T)
        if name in _ZERO_PADDED:
            return self._padded(name, rows, 0, side)
        raise ValueError(f"column {name!r} holds lists, and how to pad it is not known: remove it from the data set")

    def _padded(self, name: str, rows: list[Any], fill: int, side: str) -> np.ndarray:
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        if self.padding == "max_length":
            assert self.max_length is not None
            if longest > self.max_length:
                row = lengths.index(longest)
                raise ValueError(f"{name} of row {row} has {longest} tokens, more than max_length={self.max_length}")
            longest = self.max_length
        if self.pad_to_multiple_of:
            longest = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        padded = np.full((len(rows), longest), fill, dtype=np.int64)
        for target, row in zip(padded, rows, strict=True):
            if side == "right":
                target[: len(row)] = row
            else:
                target[longest - len(row) :] = row
        return padded

    def _add_decoder_input(self, batch: dict[str, Any]) -> None:
        if self.model is not None:
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        elif self.decoder_start_token_id is not None:
            moved = batch["labels"].copy() if self.return_tensors == "np" else batch["labels"].clone()  # (B, T)
            moved[:, 1:] = batch["labels"][:, :-1]
            moved[:, 0] = self.decoder_start_token_id
            moved[moved == self.label_pad_token_id] = self.tokenizer.pad_token_id
            batch["decoder_input_ids"] = moved

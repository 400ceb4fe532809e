"""From examples to padded batches.

`Seq2SeqCollator` does what transformers' `DataCollatorForSeq2Seq` does, with these differences:
- it never changes its input and never calls the tokenizer: padding needs the pad token and the side only;
- labels are padded on the right whatever the tokenizer's side is, since teacher forcing starts with the first label;
- a list-valued column that it cannot pad is an error, not a tensor of unequal rows;
- sources may be features: float vectors, a frame each.
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
        feature_layout: of `input_features`, "time_first" or "channels_first"; None: the model's, or "time_first" without one.
    """

    tokenizer: Any
    model: Any = None
    decoder_start_token_id: int | None = None
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"
    feature_layout: str | None = None

    def __post_init__(self):
        if self.padding not in (True, "longest", "max_length"):
            raise ValueError(f'padding={self.padding!r} must be True, "longest" or "max_length"')
        if self.padding == "max_length" and self.max_length is None:
            raise ValueError('padding="max_length" needs max_length')
        if self.return_tensors not in ("pt", "np"):
            raise ValueError(f'return_tensors={self.return_tensors!r} must be "pt" or "np"')
        if self.tokenizer.pad_token_id is None:
            raise ValueError("tokenizer.pad_token_id is None: batches of unequal rows need a padding token")
        if self.feature_layout not in (None, "time_first", "channels_first"):
            raise ValueError(f'feature_layout={self.feature_layout!r} must be "time_first" or "channels_first"')

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Examples with `input_ids` or `input_features` and, if they are for training, `labels`; lists, arrays or tensors.

        Args:
            features: ids and labels of one dimension; `input_features` (S, F), or (F, S) if their layout is "channels_first".

        Returns:
            `input_ids` (B, S) or `input_features` (B, S, F) or (B, F, S), their `attention_mask` (B, S), `labels` and
            `decoder_input_ids` (B, T), and every other column as it is.
        """
        if not features:
            raise ValueError("features is empty: a batch needs at least one example")
        columns = {name: [feature[name] for feature in features] for name in features[0]}
        if columns.get("labels") is not None and all(label is None for label in columns["labels"]):
            del columns["labels"]
        frames = columns.pop("input_features", None)
        lengths = [len(ids) for ids in columns["input_ids"]] if frames is None else self._frame_counts(frames)
        columns.setdefault("attention_mask", [[1] * length for length in lengths])
        if frames is not None and [len(mask) for mask in columns["attention_mask"]] != lengths:
            raise ValueError(f"each attention_mask must cover the frames of its input_features; these are {lengths}")
        arrays = {name: self._stacked(name, rows) for name, rows in columns.items()}
        if frames is not None:
            arrays["input_features"] = self._padded_features(frames, arrays["attention_mask"].shape[1])
        if "labels" in arrays and "decoder_input_ids" not in arrays:
            self._add_decoder_input(arrays)
        return {name: torch.from_numpy(array) for name, array in arrays.items()} if self.return_tensors == "pt" else arrays

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

    @property
    def _layout(self) -> str:
        return self.feature_layout or str(getattr(getattr(self.model, "config", None), "feature_layout", "time_first"))

    def _frame_counts(self, frames: list[Any]) -> list[int]:
        """Frames of each row.

        Raises:
            ValueError: for rows of unequal length that a model would see the padding of.
        """
        axis = 0 if self._layout == "time_first" else 1
        counts = [np.shape(row)[axis] for row in frames]
        if len(set(counts)) > 1 and getattr(getattr(self.model, "config", None), "feature_padding", "hidden") == "seen":
            raise ValueError(
                f'input_features have {min(counts)} to {max(counts)} frames, but the model has feature_padding="seen": padding '
                "is input to it, so pad the sounds themselves to one length before features are made of them"
            )
        return counts

    def _padded_features(self, frames: list[Any], length: int) -> np.ndarray:
        """Rows (S, F) or (F, S) in one float32 array with `length` frames, zeros in the padding."""
        rows = [np.asarray(row, dtype=np.float32) for row in frames]
        sizes = {(row.ndim, row.shape[-1 if self._layout == "time_first" else 0]) for row in rows}
        if len(sizes) > 1 or rows[0].ndim != 2:
            shapes = [row.shape for row in rows]
            raise ValueError(f"input_features must be rows of frames of one size, not of the shapes {shapes}")
        axis = 0 if self._layout == "time_first" else 1
        padded = []
        for row in rows:
            free = length - row.shape[axis]
            ends = (0, free) if self.tokenizer.padding_side == "right" else (free, 0)
            padded.append(np.pad(row, [ends if axis == number else (0, 0) for number in range(2)]))
        return np.stack(padded)  # (B, S, F) or (B, F, S)

    def _add_decoder_input(self, arrays: dict[str, np.ndarray]) -> None:
        labels = arrays["labels"]
        if self.model is not None:
            moved = self.model.prepare_decoder_input_ids_from_labels(labels=torch.from_numpy(labels)).numpy()
        elif self.decoder_start_token_id is not None:
            moved = np.concatenate([np.full_like(labels[:, :1], self.decoder_start_token_id), labels[:, :-1]], axis=1)  # (B, T)
            moved[moved == self.label_pad_token_id] = self.tokenizer.pad_token_id
        else:
            return
        arrays["decoder_input_ids"] = moved

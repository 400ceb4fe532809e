"""Applying an objective while batches are made: each epoch has other noise, and a resumed run has the same again."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from transformers import TrainerCallback

from transduct.training.objectives.denoising import TokenMasking
from transduct.training.objectives.examples import Objective, example_generator, token_ids
from transduct.training.objectives.language_models import CausalLM, PrefixLM

ABOUT_THE_TEXT = ("attention_mask", "token_type_ids", "special_tokens_mask")
"""Columns that tokenizers add. They describe the text as it was and are made anew where they are needed."""


@dataclass
class ObjectiveCollator:
    """A `data_collator` that turns texts into examples by an objective, and examples into a batch.

    An example's random numbers depend on `seed`, the epoch and its index alone. Without `index_column` the index is a hash of
    its token ids: nothing has to be counted, also in streams, and equal texts get equal noise within an epoch.

    Args:
        objective: called with the `input_ids` of each row and its random numbers.
        collate: pads what the objective gives, such as a `Seq2SeqCollator`.
        seed: of the noise.
        index_column: name of a column with a number of its own for each row of the data set. `TrainingArguments` then need
            `remove_unused_columns=False`.
        labelled: what to do with a row that has `labels`: "refuse" it, or "keep" it as an example that is made already, as the
            rows of an evaluation set should be, so that each evaluation sees the same noise.

    Raises:
        ValueError: for options out of range; when called: for rows without `input_ids` or index, with padding, or with labels
            that are not to be kept; and for padding on the left where labels lie on the inputs (decoder or encoder alone).
    """

    objective: Objective
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]
    seed: int = 0
    index_column: str | None = None
    labelled: Literal["refuse", "keep"] = "refuse"
    _epoch: torch.Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative")
        if self.labelled not in ("refuse", "keep"):
            raise ValueError(f'labelled={self.labelled!r} must be "refuse" or "keep"')
        # in shared memory, so that the workers of a data loader that live through all epochs see it change
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        """Which epoch the noise is of, counted from 0."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the noise of an epoch, before its first batch is asked for; `EpochCounter` does it in a `Trainer`."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must not be negative")
        self._epoch.fill_(epoch)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Rows with `input_ids` and perhaps more that `collate` takes; the batch that `collate` makes of the examples."""
        examples = [self.example(feature) for feature in features]
        prefixed = any("prefix_mask" in example for example in examples)
        prefixes = [example.pop("prefix_mask", ()) for example in examples]  # a causal text of a mixture has none
        batch = self.collate(examples)
        if _labels_lie_on_inputs(self.objective) and not batch["attention_mask"][:, 0].all():
            rule = "there each label lies on its token, and padding must be on the right"
            raise ValueError(
                f'the tokenizer pads on the left, but the model of this objective has one stack: {rule}. Set padding_side="right"'
            )
        if prefixed:
            batch["prefix_mask"] = _padded_like(batch["input_ids"], prefixes)
        return batch

    def example(self, feature: Mapping[str, Any]) -> dict[str, Any]:
        """What the objective makes of a row in this epoch."""
        if "input_ids" not in feature:
            raise ValueError(f"a row has the columns {sorted(feature)}: an objective needs input_ids")
        if (mask := feature.get("attention_mask")) is not None and not np.all(mask):
            raise ValueError("a row has padding, which would be taken for text: tokenize without padding")
        other = {name: value for name, value in feature.items() if name not in (*ABOUT_THE_TEXT, self.index_column)}
        if other.pop("labels", None) is not None:
            if self.labelled == "keep":
                return {**other, "labels": feature["labels"]}
            raise ValueError('a row has labels, which an objective makes: remove them, or keep such rows with labelled="keep"')
        ids = token_ids(feature["input_ids"])
        return {**other, **self.objective(ids, example_generator(self.seed, self.epoch, self._index(feature, ids)))}

    def _index(self, feature: Mapping[str, Any], ids: np.ndarray) -> int:
        if self.index_column is None:
            return int.from_bytes(hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=8).digest(), "little")
        if self.index_column not in feature:
            advice = "Add it with dataset.map(..., with_indices=True), and train with remove_unused_columns=False"
            raise ValueError(f"index_column={self.index_column!r} is not among the columns {sorted(feature)}. {advice}")
        return int(feature[self.index_column])


class EpochCounter(TrainerCallback):
    """Tells an `ObjectiveCollator` the epoch: `Trainer(..., data_collator=collator, callbacks=[EpochCounter(collator)])`.

    It counts the passes over the data that begin, from that in which a resumed run was stopped.
    """

    def __init__(self, collator: ObjectiveCollator):
        self.collator = collator
        self.next = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.next = int(state.epoch or 0)

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.set_epoch(self.next)
        self.next += 1


def _labels_lie_on_inputs(objective: Objective) -> bool:
    """Whether a label belongs to the token in its place, as in models that are an encoder or a decoder alone."""
    if isinstance(objective, TokenMasking):
        return objective.predict == "chosen"
    return isinstance(objective, CausalLM) or (isinstance(objective, PrefixLM) and objective.form == "decoder")


def _padded_like(input_ids: torch.Tensor, prefixes: Sequence[Any]) -> torch.Tensor:
    """Prefix masks as bool (B, T), False at the padding on the right."""
    padded = torch.zeros(input_ids.shape, dtype=torch.bool)
    for row, prefix in zip(padded, prefixes, strict=True):
        row[: len(prefix)] = torch.as_tensor(prefix)
    return padded

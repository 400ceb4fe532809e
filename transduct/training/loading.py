"""The loader of a training on pairs: batches by cost or packed, a fair share for each process."""

from typing import Any

import datasets
import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard
from pyarrow.compute import list_element, list_value_length
from torch.utils.data import DataLoader
from transformers.trainer_utils import has_length

from transduct.training.batching import EpochBatchSampler, TokenBudgetBatchSampler
from transduct.training.collators import Seq2SeqCollator
from transduct.training.fitting import fitting_budget
from transduct.training.objectives import ObjectiveCollator
from transduct.training.packing import PackedBatchSampler, PackedCollator, PackedRows


def budgeted_loader(trainer: Any, loader: DataLoader) -> DataLoader:
    """The trainer's `loader`, which see for data and workers, with the batches that `max_tokens_per_batch` and `packing` ask for.

    Raises:
        ValueError: for data without lengths, a pair that is too long, and what cannot be packed.
    """
    args = trainer.args
    layout = getattr(trainer.model.config, "feature_layout", "time_first")
    source, target = pair_lengths(loader.dataset, layout)
    if not trainer.model.config.is_encoder_decoder:
        target = np.zeros_like(target)  # the labels of a single stack lie on its inputs
    lengths = np.stack([source, target])  # (2, pairs)
    budget = fitting_budget(trainer, lengths) if args.max_tokens_per_batch == "auto" else args.max_tokens_per_batch
    seed = args.seed if args.data_seed is None else args.data_seed
    sampler: EpochBatchSampler
    dataset: Any
    collate: Any
    if args.packing:
        dataset, collate = _packing(trainer, loader)
        sampler = PackedBatchSampler(source, target, budget, seed=seed, num_processes=args.world_size)
    else:
        sampler = TokenBudgetBatchSampler(source, target, budget, seed=seed, num_processes=args.world_size)
        dataset, collate = loader.dataset, loader.collate_fn
    budgeted = DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    prepared = trainer.accelerator.prepare(budgeted)
    if isinstance(prepared.batch_sampler, BatchSamplerShard):
        # a run that goes on inside an epoch sets the epoch of what is below its own sampler, and finds this
        prepared.batch_sampler.set_epoch = sampler.set_epoch
    return prepared


def seed_workers_apart(loader: DataLoader, seed: int) -> None:
    """Let persistent workers take their seeds from a generator of their own.

    Others are begun in each epoch, these once, but once more in a run that goes on: it would not draw the same dropout as a run
    that was never stopped.
    """
    if getattr(loader, "base_dataloader", loader).persistent_workers:
        draw_apart(loader, seed)


def draw_apart(loader: DataLoader, seed: int) -> None:
    """Let a loader take the seeds of its workers, which torch draws even without any, from a generator of its own.

    An evaluation then draws nothing: a run that goes on, and one that is evaluated at other steps, have the same dropout.
    """
    getattr(loader, "base_dataloader", loader).generator = torch.Generator().manual_seed(seed)


def packed_collator(trainer: Any) -> PackedCollator:
    """What packs, in place of the trainer's own collator.

    Raises:
        ValueError: for a model that does not keep segments apart, and for a collator of another kind.
    """
    _check_packing(trainer)
    padding = _padding(trainer)
    return PackedCollator(
        padding.tokenizer,
        padding.model,
        padding.decoder_start_token_id,
        pad_to_multiple_of=padding.pad_to_multiple_of or 1,
    )


def _padding(trainer: Any) -> Any:
    """The collator that pads: behind that of an objective, which hands it examples with labels, as all are here, as they are."""
    collator = trainer.data_collator
    return collator.collate if isinstance(collator, ObjectiveCollator) and collator.labelled == "keep" else collator


def _check_packing(trainer: Any) -> None:
    padding, config = _padding(trainer), trainer.model.config
    if getattr(config, "encoder_input", "tokens") == "features":
        raise ValueError("packing=True lays tokens end to end, and the source of this model is features: leave packing out")
    if config.model_type != "transduct" or not config.is_encoder_decoder:
        kind = f"a {config.model_type!r} model with is_encoder_decoder={config.is_encoder_decoder}"
        raise ValueError(
            f"packing=True needs a transduct encoder-decoder, which keeps segments apart, not {kind}: leave packing out"
        )
    if type(padding) is not Seq2SeqCollator or padding.padding == "max_length" or padding.return_tensors != "pt":
        raise ValueError(
            "packing=True lays pairs end to end in place of a Seq2SeqCollator that pads to the longest row, which data_collator="
            f"{type(padding).__name__} is not: give the trainer one, or leave packing out"
        )


def _packing(trainer: Any, loader: DataLoader) -> tuple[PackedRows, PackedCollator]:
    """The loader's data in rows, without the columns that its collator removes, and what packs them."""
    collate = loader.collate_fn
    removes = collate is not trainer.data_collator  # then it is transformers' collator that removes columns
    columns = vars(collate)["signature_columns"] if removes else None
    return PackedRows(loader.dataset, columns), packed_collator(trainer)


def pair_lengths(dataset: Any, layout: str = "time_first") -> tuple[np.ndarray, np.ndarray]:
    """Tokens or frames of each source, and tokens of each target, two arrays of the data set's length.

    Args:
        layout: of frames: `input_features` are (S, F), or (F, S) if "channels_first".

    Raises:
        ValueError: for a data set without a length or a row, or without "labels", which are lists, and one of "input_ids" and
            "input_features".
    """
    if not has_length(dataset):
        raise ValueError("max_tokens_per_batch needs a data set with a length; this one is a stream")
    if not len(dataset):
        raise ValueError("max_tokens_per_batch needs a data set with rows; this one is empty")
    present = dataset.column_names if isinstance(dataset, datasets.Dataset) else sorted(dataset[0])
    source = "input_features" if "input_features" in present else "input_ids"
    if not {source, "labels"} <= set(present):
        raise ValueError(
            f'the data set has the columns {present}; max_tokens_per_batch needs "labels", and "input_ids" or "input_features"'
        )
    if np.ndim(first := dataset[0]["labels"]) == 0:
        raise ValueError(
            f"the labels of the first row are {first!r}, and max_tokens_per_batch counts those of lists: leave it out, and give "
            "per_device_train_batch_size"
        )
    inner = source == "input_features" and layout == "channels_first"
    if isinstance(dataset, datasets.Dataset):
        return _column_lengths(dataset, source, inner), _column_lengths(dataset, "labels")
    rows = map(dataset.__getitem__, range(len(dataset)))
    lengths = np.array([(len(row[source][0] if inner else row[source]), len(row["labels"])) for row in rows])
    return lengths[:, 0], lengths[:, 1]


def _column_lengths(dataset: datasets.Dataset, column: str, inner: bool = False) -> np.ndarray:
    """Lengths of the lists of a column, or of the first list in each; read in pieces, so that it is never whole in memory."""
    rows = 1_000 if column == "input_features" else 100_000
    pieces = dataset.select_columns([column]).with_format("arrow").iter(batch_size=rows)
    lists = (list_element(piece[column], 0) if inner else piece[column] for piece in pieces)
    return np.concatenate([list_value_length(each).to_numpy() for each in lists])

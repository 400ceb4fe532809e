"""M2M100, and NLLB-200 without experts: pre-norm, tensor2tensor's sinusoids, no bias on the logits.

Positions count from the padding token's id + 1, as in fairseq, and padding tokens count for nothing. The language of the source
stands before it, that of the target comes first through `forced_bos_token_id`; the decoder starts from the end of sequence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from transduct.configuration import TransductConfig
from transduct.convert import bart_kin
from transduct.convert.bart_kin import Kin
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.options import Options
from transduct.positions import sinusoid_table

EXTRA_ROWS = 2
"""Of the stored tables, beyond the longest sequence."""


def _table(config: TransductConfig) -> torch.Tensor:
    table = sinusoid_table(config.max_positions + EXTRA_ROWS, config.d_model, "tensor2tensor")
    table[config.pad_token_id] = 0
    return table


def tables(config: TransductConfig) -> dict[str, Callable[[], torch.Tensor]]:
    """The positions of both stacks, which the first versions of transformers to have M2M100 stored."""
    return {f"{stack}.embed_positions.weights": partial(_table, config) for stack in ("encoder", "decoder")}


M2M_100 = Kin(
    name="m2m_100",
    prefix="M2M100",
    fixed={"norm_position": "pre", "positions": "sinusoidal", "sinusoid_layout": "tensor2tensor"},
    has_bias=False,
    generation={},
    tables=tables,
)


def read(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    """As BART's, with the position that the first token has."""
    padding, start = options.take("pad_token_id"), options.take("decoder_start_token_id")
    if padding is None:
        raise ValueError(f"{options.where}: pad_token_id=None, but positions count from the padding token's id; set it")
    if start == padding:
        raise ValueError(
            f"{options.where}: decoder_start_token_id={start} is the padding token, which has no position in M2M100 models"
        )
    return bart_kin.read(M2M_100, options, checkpoint, position_offset=padding + 1)


FAMILIES = [bart_kin.family(M2M_100, read=read)]

"""Marian models as transformers has them (OPUS-MT); Marian's own files are `marian_npz.py`'s.

Vaswani et al. 2017 with halved sinusoids, one vocabulary or one for each side, and a bias on the logits. The decoder starts from
the padding token, which it must never write: `bad_words_ids` of the generation config says so.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from transduct.configuration import TransductConfig
from transduct.convert import bart_kin
from transduct.convert.bart_kin import Kin
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.family import SOURCE, TARGET, Names
from transduct.convert.options import Options


def sinusoids(length: int, width: int) -> torch.Tensor:
    """`positions.sinusoid_table(length, width, "halves")`, rounded as transformers rounds it: (length, width) in float32."""
    divisors = np.array([np.power(10000, 2 * (column // 2) / width) for column in range(width)])
    angles = np.arange(length)[:, None] / divisors
    return torch.from_numpy(np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1)).float()


def tables(config: TransductConfig) -> dict[str, Callable[[], torch.Tensor]]:
    """The positions of both stacks, as tensors of their state dict."""
    compute = partial(sinusoids, config.max_positions, config.d_model)
    return {f"{stack}.embed_positions.weight": compute for stack in ("encoder", "decoder")}


MARIAN = Kin(
    name="marian",
    prefix="Marian",
    fixed={"norm_position": "post", "positions": "sinusoidal", "sinusoid_layout": "halves"},
    classes=("MTModel", "Model"),
    tables=tables,
)


def names(config: TransductConfig) -> Names:
    """Those of BART, but for the matrices of tokens: there is a shared one only where source and target are tied, and two
    vocabularies may be tied on the target's side."""
    shares = config.tie_embeddings in ("all", "source_target")
    apart = config.tie_embeddings in ("source_target", "none")
    return replace(bart_kin.names(MARIAN, config), shared="shared" if shares else "", apart=apart)


def read(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    """As BART's, with `share_encoder_decoder_embeddings` and the target's vocabulary."""
    shares, ties = options.take("share_encoder_decoder_embeddings", True), options.take("tie_word_embeddings", True)
    target_size = options.take("decoder_vocab_size")
    if shares:
        why = "with share_encoder_decoder_embeddings=True both sides have one vocabulary"
        options.require("decoder_vocab_size", options.take("vocab_size"), why)
        source, target = (checkpoint.find(f"{side}.weight") for side in (SOURCE, TARGET))
        if not ties and source in checkpoint and target in checkpoint and not checkpoint.same(source, target):
            raise ValueError(
                f"{options.where}: share_encoder_decoder_embeddings=True, but {source} and {target} differ; say False if both "
                "are right"
            )
    tie = {(True, True): "all", (True, False): "source_target", (False, True): "target_output", (False, False): "none"}
    own = {"tie_embeddings": tie[bool(shares), bool(ties)], "decoder_vocab_size": None if shares else target_size}
    return bart_kin.read(MARIAN, options, checkpoint, **own)


def write(config: TransductConfig) -> dict[str, Any]:
    """As BART's, with the same."""
    return bart_kin.write(MARIAN, config) | {
        "share_encoder_decoder_embeddings": config.tie_embeddings in ("all", "source_target"),
        "tie_word_embeddings": config.tie_embeddings in ("all", "target_output"),
        "decoder_vocab_size": config.resolved_decoder_vocab_size,
    }


FAMILIES = [bart_kin.family(MARIAN, read=read, write=write, names=names)]

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
from transduct.convert.family import Names
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


def _shares(config: TransductConfig) -> bool:
    """`share_encoder_decoder_embeddings`: one vocabulary and a `shared` matrix, which transformers 5 may read for nothing."""
    origin = config.origin or {}
    if config.tie_embeddings != "none" or origin.get("family") != MARIAN.name:
        return config.tie_embeddings in ("all", "source_target")
    return origin["config"].get("share_encoder_decoder_embeddings", True) and config.decoder_vocab_size is None


def names(config: TransductConfig) -> Names:
    """Those of BART, but for the matrices of tokens: there is a shared one only where both sides have one vocabulary, and two
    vocabularies may be tied on the target's side."""
    apart = config.tie_embeddings in ("source_target", "none")
    return replace(bart_kin.names(MARIAN, config), shared="shared" if _shares(config) else "", apart=apart)


def read(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    """As BART's, with `share_encoder_decoder_embeddings` and the target's vocabulary."""
    shares, ties = options.take("share_encoder_decoder_embeddings", True), options.take("tie_word_embeddings", True)
    target_size = options.take("decoder_vocab_size")
    if shares:
        why = "with share_encoder_decoder_embeddings=True both sides have one vocabulary"
        options.require("decoder_vocab_size", options.take("vocab_size"), why)
        own = {"tie_embeddings": bart_kin.read_ties(options, checkpoint), "decoder_vocab_size": None}
    else:
        own = {"tie_embeddings": "target_output" if ties else "none", "decoder_vocab_size": target_size}
    return bart_kin.read(MARIAN, options, checkpoint, **own)


def write(config: TransductConfig) -> dict[str, Any]:
    """As BART's, with the same."""
    return bart_kin.write(MARIAN, config) | {
        "share_encoder_decoder_embeddings": _shares(config),
        "tie_word_embeddings": config.tie_embeddings in ("all", "target_output"),
        "decoder_vocab_size": config.resolved_decoder_vocab_size,
    }


FAMILIES = [bart_kin.family(MARIAN, read=read, write=write, names=names)]

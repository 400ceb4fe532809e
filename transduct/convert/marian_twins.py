"""transformers' `MarianMTModel` with a Marian file's weights, to compare ours with.

It has other sinusoids and another epsilon than Marian; both are set to Marian's here. Only post-norm models with tied outputs
have such a twin.
"""

import copy
import math

import numpy as np
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.fairseq_options import OUTPUT
from transduct.convert.family import SOURCE
from transduct.convert.memory import quiet

LENGTH = 256
"""Positions of the twin; ours have no limit."""


def has_twin(config: TransductConfig) -> bool:
    """Whether `MarianMTModel` can be told of this architecture."""
    plain = config.norm_position == "post" and not config.embedding_norm and not config.resolved_final_norm
    return plain and config.tie_embeddings in ("all", "target_output")


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Marian's positions (length, width): all sines, then all cosines."""
    step = math.log(10000.0) / (width / 2 - 1)
    angles = np.arange(length)[:, None] * np.exp(-step * np.arange(width // 2))
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))


def make_twin(config: TransductConfig, checkpoint: Checkpoint, generation: GenerationConfig) -> MarianMTModel:
    """The model, in evaluation mode.

    Args:
        checkpoint: its tensors, as `marian_npz.renamed` gives them.
    """
    shares = config.tie_embeddings == "all"
    theirs = MarianConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.resolved_decoder_d_ff,
        activation_function=config.activation,
        scale_embedding=True,
        max_position_embeddings=LENGTH,
        share_encoder_decoder_embeddings=shares,
        tie_word_embeddings=True,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        forced_eos_token_id=None,
    )
    state = {f"model.{name}": checkpoint.tensor(name) for name in checkpoint.names if not name.startswith("decoder.output_")}
    bias = OUTPUT.replace("weight", "bias")
    if bias in checkpoint:
        state["final_logits_bias"] = checkpoint.tensor(bias)[None]
    if shares:
        state["model.shared.weight"] = checkpoint.tensor(f"{SOURCE}.weight")
    positions = sinusoids(LENGTH, config.d_model).float()
    state |= {f"model.{stack}.embed_positions.weight": positions for stack in ("encoder", "decoder")}
    with quiet():
        model = MarianMTModel(theirs)
    missing = set(model.load_state_dict(state, strict=False).missing_keys)
    assert missing <= {"lm_head.weight", "final_logits_bias"}, missing  # the first is the target's embedding
    model.tie_weights()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config.norm_eps
    model.generation_config = copy.deepcopy(generation)
    return model.eval()

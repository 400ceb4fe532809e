"""Whisper: log-mel frames through two convolutions, fixed positions of frames, learned ones of tokens, no biases of keys.

Its names of layers are BART's. It was trained on 30 seconds at a time, silence included, and knows no mask of frames: that is
`feature_padding="seen"`. Feature extractor, tokenizer and generation config, with its suppressed tokens and its ids of languages
and tasks, come along as they are. `generate` begins with `decoder_start_token_id`, as with any model; language and task are given
as `decoder_input_ids`: that token, and those of `WhisperProcessor.get_decoder_prompt_ids`.
"""

import re
from collections.abc import Mapping
from typing import Any

from transduct.configuration import TransductConfig
from transduct.convert.bart_kin import ALIASES, DECODER_LAYER, DECODER_NAMES, ENCODER_LAYER
from transduct.convert.bart_kin import NAMES as BART_NAMES
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.family import Family, Names
from transduct.convert.options import Options

NAMES = {ours: theirs for ours, theirs in BART_NAMES.items() if ours not in ("max_positions", "scale_embeddings")} | {
    "feature_size": "num_mel_bins",
    "max_positions": "max_source_positions",
    "decoder_max_positions": "max_target_positions",
}
"""Fields of ours by the options that say the same."""
FIXED: Mapping[str, Any] = {
    "encoder_input": "features",
    "feature_stem": "conv",
    "feature_activation": "gelu",
    "feature_layout": "channels_first",
    "feature_padding": "seen",
    "norm_position": "pre",
    "norm_eps": 1e-5,
    "positions": "learned",
    "freeze_encoder_positions": True,
    "key_bias": False,
    "scale_embeddings": False,
    "initializer": "normal",
}
"""Fields of ours that follow from the class."""
WITHOUT_EFFECT = (
    "classifier_proj_size",  # of audio classification, with the next
    "use_weighted_layer_sum",
    "forced_decoder_ids",  # a prompt, which transformers takes from the generation config
    "mask_feature_length",  # these belong to apply_spec_augment
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "median_filter_width",  # of time stamps of words, which cross-attention gives
    "scale_embedding",  # no class reads it
)
OUTSIDE = {
    "encoder.stem.conv1": "encoder.conv1",
    "encoder.stem.conv2": "encoder.conv2",
    **{f"{stack}.embed_positions": f"{stack}.embed_positions" for stack in ("encoder", "decoder")},
    **{f"{stack}.final_norm": f"{stack}.layer_norm" for stack in ("encoder", "decoder")},
}


def names(config: TransductConfig) -> Names:
    """`encoder.layers.0.self_attn.q_proj` and the like; the output projection is `proj_out`."""
    return Names("{stack}.layers.{index}", ENCODER_LAYER, DECODER_LAYER, OUTSIDE, shared="", output="proj_out")


def read(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    fields = {ours: options.take(theirs) for ours, theirs in NAMES.items()}
    for ours, (theirs, of_encoder) in DECODER_NAMES.items():
        value = options.take(theirs)
        fields[ours] = None if value == fields[of_encoder] else value
    fields |= FIXED
    fields["freeze_padding_embedding"] = fields["pad_token_id"] is not None
    fields["tie_embeddings"] = "target_output" if options.take("tie_word_embeddings", True) else "none"
    why = "no frames are masked at random while training here; set it to false to go on without"
    options.require("apply_spec_augment", False, why)
    for alias, theirs in ALIASES.items():
        options.require(alias, options.take(theirs), f"{theirs} says otherwise")
    options.finish(WITHOUT_EFFECT)
    return fields


def write(config: TransductConfig) -> dict[str, Any]:
    values = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    if config.encoder_input != "features":
        del values["num_mel_bins"]  # a model of text: reading it again says so
    values |= {theirs: getattr(config, f"resolved_{ours}") for ours, (theirs, _) in DECODER_NAMES.items()}
    values["max_target_positions"] = config.resolved_decoder_max_positions
    values["tie_word_embeddings"] = config.tie_embeddings == "target_output"
    # its default suppresses two tokens of GPT-2's vocabulary
    return values if (config.origin or {}).get("family") == "whisper" else values | {"begin_suppress_tokens": None}


FAMILIES = [
    Family(
        name="whisper",
        model_type="whisper",
        classes={
            "WhisperForConditionalGeneration": ("TransductForConditionalGeneration", "model."),
            "WhisperModel": ("TransductModel", ""),
        },
        read=read,
        write=write,
        names=names,
        unused=re.compile(r"(model\.)?(encoder|decoder)\.version"),
    )
]

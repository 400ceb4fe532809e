"""The shapes of the literature, by name: `config_from_preset("t5-small", vocab_size=8000)`; and those of saved models, by folder.

- A preset is the fields that differ from the config's defaults: one call of its family's function, which holds what the
  family shares. The source of each value stands beside it.
- Token ids belong to the vocabulary of the released checkpoints. With a smaller `vocab_size`, set those that lie outside.

Papers: Vaswani et al. 2017 (arXiv 1706.03762), T5 (1910.10683), mT5 (2010.11934), BART (1910.13461), Marian (1804.00344),
Whisper (2212.04356), mBART (2001.08210), mBART-50 (2008.00401), PLBart (2103.06333), BlenderBot (2004.13637), Pegasus
(1912.08777), M2M100 (2010.11125), NLLB-200 (2207.04672).
"""

import difflib
import json
from pathlib import Path
from typing import Any

from .configuration import TransductConfig


def config_from_preset(name: str, **overrides: Any) -> TransductConfig:
    """The config of a published architecture, with some fields changed.

    Args:
        name: One of `preset_names()`.
        overrides: Fields of `TransductConfig`; each replaces the preset's value.

    Raises:
        ValueError: For an unknown preset (with the names that are close), an unknown field or an impossible combination.
    """
    if name not in _PRESETS:
        close = difflib.get_close_matches(str(name).lower(), _PRESETS, n=5, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "preset_names() and `transduct describe --list` list them all"
        raise ValueError(f"name={name!r} is not a preset; {hint}")
    return TransductConfig(**{**_PRESETS[name], **overrides})


def config_from_folder(folder: str | Path, **overrides: Any) -> TransductConfig:
    """The config of a saved model, with some fields changed.

    Args:
        folder: One of `save_pretrained`.
        overrides: Fields of `TransductConfig`.

    Raises:
        ValueError: For a folder that holds no model of this package, an unknown field or an impossible combination.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        hint = f"; its model is in {file.parent / 'model'}" if (file.parent / "model" / "config.json").is_file() else ""
        raise ValueError(f"{str(folder)!r} is not a folder with a saved model: it holds no config.json{hint}")
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is not a JSON object: {error}") from error
    if kind != "transduct":
        raise ValueError(f"{str(file)!r} has model_type={kind!r}, not 'transduct': only transduct's own models are known here")
    return TransductConfig.from_pretrained(folder, **overrides)


def model_without_weights(config: TransductConfig, name: str) -> Any:
    """A model of the class `name` on the meta device: what `describe` takes where a config does not say all."""
    import torch

    from . import modeling

    with torch.device("meta"):
        return getattr(modeling, name)(config)


def preset_names() -> list[str]:
    """The names that `config_from_preset` knows, family by family, in the order of the papers' tables."""
    return list(_PRESETS)


def _vaswani(**changes: Any) -> dict[str, Any]:
    """Vaswani et al. 2017, Table 3, "base", and what a row of that table changes.

    Sections 3.1 to 3.5 are the config's own defaults: post-norm, ReLU, sinusoids, tied and scaled embeddings. The special
    tokens are those of tensor2tensor (pad 0, end 1, the decoder starts from padding). Rows (B) narrow queries and keys only
    and leave the values at 64.
    """
    base = dict(
        vocab_size=37000,  # section 5.1: about 37,000 shared by English and German (32,000 for English-French)
        d_model=512,  # Table 3
        d_ff=2048,  # Table 3
        num_heads=8,  # Table 3; d_k = d_v = 64
        encoder_layers=6,  # Table 3: N
        decoder_layers=6,
        dropout=0.1,  # Table 3: P_drop; section 5.4: on sublayer outputs and on embedding + position
        label_smoothing=0.1,  # section 5.4
    )
    return {**base, **changes}


def _t5(**changes: Any) -> dict[str, Any]:
    """T5 1.0 (arXiv 1910.10683, section 2.1; sizes: section 3.7), with the values of the released checkpoints."""
    base = dict(
        vocab_size=32128,  # 32,000 pieces (section 2.2), 100 sentinels (section 3.1.4), padded to a multiple of 128
        d_kv=64,  # section 3.1.1
        norm="rmsnorm",  # section 2.1: only rescaled, no additive bias
        norm_position="pre",  # section 2.1: outside the residual path, before each sublayer
        norm_eps=1e-6,  # released checkpoints
        positions="relative_bias",  # section 2.1
        relative_buckets=32,  # section 2.1
        relative_max_distance=128,  # section 2.1
        attention_scale="none",  # folded into the initialisation (Mesh TensorFlow)
        attention_bias=False,  # released checkpoints: no bias anywhere
        ffn_bias=False,
        activation="relu",  # section 3.1.1
        scale_embeddings=False,
        tie_embeddings="all",  # section 3.1.1
        scale_logits=True,  # d_model^-0.5 before the tied head (Mesh TensorFlow)
        dropout=0.1,  # section 3.1.1: 0.1 everywhere; section 2.1 lists where
        attention_dropout=0.1,
        activation_dropout=0.1,
        final_dropout=True,
        initializer="t5",
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,  # the padding token
    )
    return {**base, **changes}


def _t5_v1_1(**changes: Any) -> dict[str, Any]:
    """T5 1.1: gated GELU and an untied output head, which takes unscaled states (arXiv 2002.05202; T5's release notes).

    The checkpoints were pre-trained without dropout; the 0.1 of their configs, kept here, is for fine-tuning.
    """
    v1_1 = dict(activation="gelu_new", gated_ffn=True, tie_embeddings="source_target", scale_logits=False)
    return _t5(**{**v1_1, **changes})


def _mt5(**changes: Any) -> dict[str, Any]:
    """mT5 (arXiv 2010.11934, section 3.2): T5 1.1 with 250,000 pieces for 101 languages, 250,112 with sentinels and padding."""
    return _t5_v1_1(**{"vocab_size": 250112, **changes})


def _bart(**changes: Any) -> dict[str, Any]:
    """BART (arXiv 1910.13461, section 2.1), with the values of the released checkpoints."""
    base = dict(
        vocab_size=50265,  # GPT-2's byte-level pieces, special tokens and <mask>
        norm_position="post",
        norm_eps=1e-5,
        embedding_norm=True,
        positions="learned",
        max_positions=1024,
        position_offset=2,  # fairseq counts positions from pad_token_id + 1
        activation="gelu",  # section 2.1
        scale_embeddings=False,
        tie_embeddings="all",
        freeze_padding_embedding=True,
        dropout=0.1,  # these three: config.json of the released base and large checkpoints
        attention_dropout=0.1,
        activation_dropout=0.1,
        initializer="normal",  # section 2.1: N(0, 0.02)
        initializer_std=0.02,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,  # </s>
    )
    return {**base, **changes}


def _mbart(**changes: Any) -> dict[str, Any]:
    """mBART (arXiv 2001.08210, section 2.2), with the values of the released checkpoints.

    BART with one more norm on top of each stack, and pre-norm; a target starts from the token of its language.
    """
    mbart = dict(
        norm_position="pre",
        scale_embeddings=True,
        activation_dropout=0.0,  # these two: config.json of the released checkpoints
        attention_dropout=0.0,
        target_start="last_token",
        decoder_start_token_id=None,  # generation is told the language
    )
    return _bart(**{**mbart, **changes})


def _plbart(**changes: Any) -> dict[str, Any]:
    """PLBart (arXiv 2103.06333, section 2.3): BART-base on code, with the values of the released checkpoint."""
    plbart = dict(
        vocab_size=50005,  # 50,000 pieces (section 2.3) and special tokens
        scale_embeddings=True,
        activation_dropout=0.0,
        target_start="last_token",  # the token of its language
        decoder_start_token_id=None,  # generation is told the language
    )
    return _bart(**{**plbart, **changes})


def _blenderbot(**changes: Any) -> dict[str, Any]:
    """BlenderBot (arXiv 2004.13637, section 2 and Table 1), with the values of the released checkpoints."""
    blenderbot = dict(
        vocab_size=8008,  # section 2.2: 8,000 pieces of byte-level BPE
        norm_position="pre",
        embedding_norm=False,
        max_positions=128,
        position_offset=0,
        scale_embeddings=True,
        encoder_layers=2,
        activation_dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,  # <s>
    )
    return _bart(**{**blenderbot, **changes})


def _pegasus(**changes: Any) -> dict[str, Any]:
    """Pegasus (arXiv 1912.08777, section 6), with the values of the released checkpoints."""
    base = dict(
        vocab_size=96103,  # section 5.1: 96,000 pieces, and the tokens of pre-training
        norm_position="pre",
        norm_eps=1e-5,
        positions="sinusoidal",
        max_positions=1024,
        sinusoid_layout="halves",
        activation="relu",
        scale_embeddings=True,
        tie_embeddings="all",
        freeze_padding_embedding=True,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        initializer="normal",
        initializer_std=0.02,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,  # the padding token
    )
    return {**base, **changes}


def _m2m_100(**changes: Any) -> dict[str, Any]:
    """M2M100 (arXiv 2010.11125), with the values of the released checkpoints: fairseq's sinusoids, pre-norm."""
    base = dict(
        vocab_size=128112,  # 128,000 pieces (section 3), special tokens and 100 languages
        norm_position="pre",
        norm_eps=1e-5,
        positions="sinusoidal",
        max_positions=1024,
        position_offset=2,  # fairseq counts positions from pad_token_id + 1
        sinusoid_layout="tensor2tensor",
        activation="relu",
        scale_embeddings=True,
        tie_embeddings="all",
        freeze_padding_embedding=True,
        dropout=0.1,  # these three: config.json of the released checkpoints
        attention_dropout=0.1,
        layer_drop=0.05,
        initializer="normal",
        initializer_std=0.02,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,  # </s>, then the token of the target's language
    )
    return {**base, **changes}


def _nllb_200(**changes: Any) -> dict[str, Any]:
    """NLLB-200 without experts (arXiv 2207.04672, section 8): M2M100 with 256,000 pieces for 202 languages, and no LayerDrop."""
    return _m2m_100(**{"vocab_size": 256206, "layer_drop": 0.0, **changes})


def _marian(**changes: Any) -> dict[str, Any]:
    """OPUS-MT's "transformer-align" models as transformers releases them (`Helsinki-NLP/opus-mt-en-de`).

    Vaswani base with SiLU, halved sinusoids and a bias on the logits. The vocabulary differs from pair to pair, with it
    the padding token, which comes last.
    """
    base = dict(
        vocab_size=58101,
        d_model=512,
        d_ff=2048,
        num_heads=8,
        encoder_layers=6,
        decoder_layers=6,
        norm_position="post",
        norm_eps=1e-5,
        positions="sinusoidal",
        max_positions=512,
        sinusoid_layout="halves",
        activation="silu",  # named "swish" there
        scale_embeddings=True,
        tie_embeddings="all",
        freeze_padding_embedding=True,
        logits_bias=True,
        dropout=0.1,
        initializer="normal",
        initializer_std=0.02,
        pad_token_id=58100,
        eos_token_id=0,
        decoder_start_token_id=58100,  # the padding token
    )
    return {**base, **changes}


def _whisper(**changes: Any) -> dict[str, Any]:
    """Whisper (arXiv 2212.04356, section 2.2; sizes: Table 1), with the values of the released multilingual checkpoints.

    Log-mel frames of 10 ms, two convolutions, pre-norm. The English-only checkpoints have vocab_size=51864 and all ids of special
    tokens lower by one.
    """
    base = dict(
        encoder_input="features",
        feature_size=80,  # section 2.2: log-magnitude mel channels
        feature_stem="conv",  # section 2.2: width 3, GELU, the second with a stride of two
        feature_activation="gelu",
        feature_layout="channels_first",  # transformers' WhisperFeatureExtractor
        feature_padding="seen",  # section 2.3: 30-second segments without a mask
        vocab_size=51865,  # GPT-2's pieces refitted for many languages, special tokens, 1,501 time stamps
        norm_position="pre",  # section 2.2
        final_norm=True,
        positions="learned",  # section 2.2: of the decoder; the encoder's are sinusoids
        freeze_encoder_positions=True,
        max_positions=1500,  # 30 seconds, after the stride
        decoder_max_positions=448,  # released checkpoints
        activation="gelu",
        key_bias=False,  # released code: none in key projections
        scale_embeddings=False,
        tie_embeddings="target_output",  # section 2.2
        freeze_padding_embedding=True,
        dropout=0.0,  # section 2.4: no regularisation
        initializer="normal",
        initializer_std=0.02,
        bos_token_id=50257,
        pad_token_id=50257,
        eos_token_id=50257,  # <|endoftext|>
        decoder_start_token_id=50258,  # <|startoftranscript|>
    )
    return {**base, **changes}


def _layers(count: int) -> dict[str, int]:
    return {"encoder_layers": count, "decoder_layers": count}


_PRESETS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, Table 3; big on English-French has dropout 0.1 (section 6.1)
    "vaswani-base": _vaswani(),
    "vaswani-big": _vaswani(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3),
    "vaswani-a-heads-1": _vaswani(num_heads=1),  # (A): heads times their width stays 512
    "vaswani-a-heads-4": _vaswani(num_heads=4),
    "vaswani-a-heads-16": _vaswani(num_heads=16),
    "vaswani-a-heads-32": _vaswani(num_heads=32),
    "vaswani-b-dk-16": _vaswani(d_kv=16, d_value=64),  # (B): the width of queries and keys
    "vaswani-b-dk-32": _vaswani(d_kv=32, d_value=64),
    "vaswani-c-layers-2": _vaswani(**_layers(2)),  # (C): the size of the model
    "vaswani-c-layers-4": _vaswani(**_layers(4)),
    "vaswani-c-layers-8": _vaswani(**_layers(8)),
    "vaswani-c-d256": _vaswani(d_model=256, d_kv=32),
    "vaswani-c-d1024": _vaswani(d_model=1024, d_kv=128),
    "vaswani-c-ff-1024": _vaswani(d_ff=1024),
    "vaswani-c-ff-4096": _vaswani(d_ff=4096),
    "vaswani-d-dropout-0": _vaswani(dropout=0.0),  # (D): regularisation
    "vaswani-d-dropout-0.2": _vaswani(dropout=0.2),
    "vaswani-d-smoothing-0": _vaswani(label_smoothing=0.0),
    "vaswani-d-smoothing-0.2": _vaswani(label_smoothing=0.2),
    "vaswani-e-learned": _vaswani(positions="learned"),  # (E); the paper does not say how many, 1,024 here
    # T5, section 3.7 and the released checkpoints
    "t5-small": _t5(d_model=512, d_ff=2048, num_heads=8, **_layers(6)),
    "t5-base": _t5(d_model=768, d_ff=3072, num_heads=12, **_layers(12)),
    "t5-large": _t5(d_model=1024, d_ff=4096, num_heads=16, **_layers(24)),
    "t5-3b": _t5(d_model=1024, d_ff=16384, d_kv=128, num_heads=32, **_layers(24)),
    "t5-11b": _t5(d_model=1024, d_ff=65536, d_kv=128, num_heads=128, **_layers(24)),
    # T5 1.1, released checkpoints
    "t5-v1.1-small": _t5_v1_1(d_model=512, d_ff=1024, num_heads=6, **_layers(8)),
    "t5-v1.1-base": _t5_v1_1(d_model=768, d_ff=2048, num_heads=12, **_layers(12)),
    "t5-v1.1-large": _t5_v1_1(d_model=1024, d_ff=2816, num_heads=16, **_layers(24)),
    "t5-v1.1-xl": _t5_v1_1(d_model=2048, d_ff=5120, num_heads=32, **_layers(24)),
    "t5-v1.1-xxl": _t5_v1_1(d_model=4096, d_ff=10240, num_heads=64, **_layers(24)),
    # mT5: the shapes of T5 1.1
    "mt5-small": _mt5(d_model=512, d_ff=1024, num_heads=6, **_layers(8)),
    "mt5-base": _mt5(d_model=768, d_ff=2048, num_heads=12, **_layers(12)),
    "mt5-large": _mt5(d_model=1024, d_ff=2816, num_heads=16, **_layers(24)),
    "mt5-xl": _mt5(d_model=2048, d_ff=5120, num_heads=32, **_layers(24)),
    "mt5-xxl": _mt5(d_model=4096, d_ff=10240, num_heads=64, **_layers(24)),
    # BART: layers from section 2.1, widths from the released checkpoints
    "bart-base": _bart(d_model=768, d_ff=3072, num_heads=12, **_layers(6)),
    "bart-large": _bart(d_model=1024, d_ff=4096, num_heads=16, **_layers(12)),
    "mbart-large-cc25": _mbart(vocab_size=250027, d_model=1024, d_ff=4096, num_heads=16, **_layers(12)),
    "mbart-large-50": _mbart(
        vocab_size=250054, d_model=1024, d_ff=4096, num_heads=16, decoder_start_token_id=2, **_layers(12)
    ),  # </s>, then the token of the target's language
    "plbart-base": _plbart(d_model=768, d_ff=3072, num_heads=12, **_layers(6)),
    # BlenderBot, Table 1; the smaller one is distilled
    "blenderbot-400m-distill": _blenderbot(d_model=1280, d_ff=5120, num_heads=32, decoder_layers=12),
    "blenderbot-3b": _blenderbot(d_model=2560, d_ff=10240, num_heads=32, decoder_layers=24),
    # OPUS-MT
    "marian-base": _marian(),
    # Pegasus, section 6
    "pegasus-large": _pegasus(d_model=1024, d_ff=4096, num_heads=16, **_layers(16)),
    # M2M100 and NLLB-200, released checkpoints
    "m2m100-418m": _m2m_100(d_model=1024, d_ff=4096, num_heads=16, **_layers(12)),
    "m2m100-1.2b": _m2m_100(d_model=1024, d_ff=8192, num_heads=16, **_layers(24)),
    "nllb-200-distilled-600m": _nllb_200(d_model=1024, d_ff=4096, num_heads=16, **_layers(12)),
    "nllb-200-1.3b": _nllb_200(d_model=1024, d_ff=8192, num_heads=16, **_layers(24)),
    "nllb-200-3.3b": _nllb_200(d_model=2048, d_ff=8192, num_heads=16, **_layers(24)),
    # Whisper, Table 1; heads are 64 wide, feed-forwards four times d_model; large-v3 from its model card
    "whisper-tiny": _whisper(d_model=384, d_ff=1536, num_heads=6, **_layers(4)),
    "whisper-base": _whisper(d_model=512, d_ff=2048, num_heads=8, **_layers(6)),
    "whisper-small": _whisper(d_model=768, d_ff=3072, num_heads=12, **_layers(12)),
    "whisper-medium": _whisper(d_model=1024, d_ff=4096, num_heads=16, **_layers(24)),
    "whisper-large": _whisper(d_model=1280, d_ff=5120, num_heads=20, **_layers(32)),
    "whisper-large-v3": _whisper(d_model=1280, d_ff=5120, num_heads=20, feature_size=128, vocab_size=51866, **_layers(32)),
}

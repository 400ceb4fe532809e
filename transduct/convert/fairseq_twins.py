"""Models of transformers that compute what a checkpoint of fairseq does, to compare ours with.

Four of transformers' families came from fairseq and kept the names of its tensors: FSMT (post-norm, sinusoids), M2M100 (pre-norm,
sinusoids), BART (post-norm, learned positions) and mBART (pre-norm, learned positions). Their weights are taken from the file
directly, not by way of ours. Other combinations have no twin.
"""

import copy
import re
from typing import Any

import transformers
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.fairseq_options import OUTPUT
from transduct.convert.family import SOURCE, TARGET
from transduct.convert.memory import quiet

TWINS = {
    ("post", "sinusoidal", False, False): "FSMT",
    ("pre", "sinusoidal", False, True): "M2M100",
    ("post", "learned", True, False): "Bart",
    ("pre", "learned", True, True): "MBart",
}
"""By `norm_position`, `positions`, `embedding_norm` and `final_norm`."""

COMPUTED = re.compile(r".+\.(version|embed_positions\.(_float_tensor|weights))")


def has_twin(config: TransductConfig, kind: str) -> bool:
    """Whether `make_twin` knows this architecture; kind: "generation" or "classification"."""
    family = _family(config)
    if family is None or (kind == "classification" and family != "Bart"):
        return False
    return family == "FSMT" or (config.tie_embeddings == "all" and config.decoder_max_positions is None)


def make_twin(config: TransductConfig, checkpoint: Checkpoint, kind: str, generation: GenerationConfig | None) -> PreTrainedModel:
    """transformers' model with the tensors of a checkpoint under fairseq's names, in evaluation mode.

    Args:
        kind: as for `has_twin`; generation: how it generates, None for a classifier.
    """
    family = _family(config)
    assert family is not None
    suffix = "ForSequenceClassification" if kind == "classification" else "ForConditionalGeneration"
    state = {_renamed(name, family): checkpoint.tensor(name) for name in checkpoint.names if not COMPUTED.fullmatch(name)}
    for name in (SOURCE, TARGET, "shared"):  # one matrix may stand for several
        state.setdefault(f"model.{name}.weight", checkpoint.tensor(f"{SOURCE}.weight"))
    state.setdefault(_renamed(OUTPUT, family), state[f"model.{TARGET}.weight"])
    with quiet():
        model = getattr(transformers, f"{family}{suffix}")(_config(config, family)).to(state[f"model.{SOURCE}.weight"].dtype)
    missing = model.load_state_dict(state, strict=False).missing_keys
    absent = ("final_logits_bias", "embed_positions.weight", "embed_positions.weights")
    assert all(name.endswith(absent if config.positions == "sinusoidal" else absent[0]) for name in missing), missing
    if generation is not None:
        model.generation_config = copy.deepcopy(generation)
    return model.eval()


def _family(config: TransductConfig) -> str | None:
    return TWINS.get((config.norm_position, config.positions, config.embedding_norm, config.resolved_final_norm))


def _renamed(name: str, family: str) -> str:
    if name == OUTPUT and family != "FSMT":
        return "lm_head.weight"
    return name if name.startswith("classification_head") else f"model.{name}"


def _config(config: TransductConfig, family: str) -> PreTrainedConfig:
    """Its config there. FSMT hides the targets that follow only where no cache is used, which `forward` otherwise does."""
    values: dict[str, Any] = dict(
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.resolved_decoder_num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.resolved_decoder_d_ff,
        activation_function=config.activation,
        scale_embedding=config.scale_embeddings,
        max_position_embeddings=config.max_positions,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        num_labels=config.num_labels,
        use_cache=family != "FSMT",
    )
    if family == "FSMT":
        values |= dict(src_vocab_size=config.vocab_size, tgt_vocab_size=config.resolved_decoder_vocab_size)
    else:
        values |= dict(vocab_size=config.vocab_size)
    return getattr(transformers, f"{family}Config")(**values)

"""What BART and its descendants in transformers share: one config, one set of names.

Their classes differ in a few choices that no option states, such as where norms stand: a `Kin` lists them. Old config files state
some of them all the same (`normalize_before` and others). Such an option is taken if it says what the class does, and refused if
not: transformers would ignore it.

Which matrices of tokens are one follows from `tie_word_embeddings`. Where it is false, transformers 4 left source and target tied
and gave the output projection a matrix of its own; transformers 5 ties nothing, trains each apart even if two are equal, and
keeps a `shared` matrix that nothing reads. Both are read right, from the version that wrote the file and the tensors that are
there, and are written so that both load it right.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from transformers import CONFIG_MAPPING

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.family import SOURCE, TARGET, Family, Names
from transduct.convert.options import Options

BIAS = "final_logits_bias"
"""The bias on the logits: a buffer (1, V), zero in most models. One that is zero is no `logits_bias` here, and written again."""
VERSIONS = re.compile(r"(model\.)?(encoder|decoder)\.version")

ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}
ENCODER_LAYER = {
    **{f"self_attention.{ours}": f"self_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    "self_attention_residual.norm": "self_attn_layer_norm",
    "feed_forward.up_proj": "fc1",
    "feed_forward.down_proj": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    **{f"cross_attention.{ours}": f"encoder_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
}
OUTSIDE = {
    **{
        f"{stack}.{ours}": f"{stack}.{theirs}"
        for stack in ("encoder", "decoder")
        for ours, theirs in (
            ("embed_positions", "embed_positions"),
            ("embedding_norm", "layernorm_embedding"),
            ("final_norm", "layer_norm"),
        )
    },
    **{name: name for name in ("classification_head.dense", "classification_head.out_proj", "qa_outputs")},
}
CLASSES = {
    "ForConditionalGeneration": "TransductForConditionalGeneration",
    "MTModel": "TransductForConditionalGeneration",
    "Model": "TransductModel",
    "ForSequenceClassification": "TransductForSequenceClassification",
    "ForQuestionAnswering": "TransductForQuestionAnswering",
}
"""Our classes by the endings of theirs."""

NAMES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "d_ff": "encoder_ffn_dim",
    "num_heads": "encoder_attention_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "max_positions": "max_position_embeddings",
    "activation": "activation_function",
    "scale_embeddings": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "layer_drop": "encoder_layerdrop",
    "initializer_std": "init_std",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
}
"""Fields of ours by the options that say the same."""
DECODER_NAMES = {
    "decoder_d_ff": ("decoder_ffn_dim", "d_ff"),
    "decoder_num_heads": ("decoder_attention_heads", "num_heads"),
    "decoder_layer_drop": ("decoder_layerdrop", "layer_drop"),
}
"""Fields that are None here where they are as the encoder's."""
ALIASES = {
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_size": "d_model",
    "initializer_range": "init_std",
}
"""Options that older files state twice."""
WITHOUT_EFFECT = (
    "_num_labels",  # as many as id2label has
    "add_bias_logits",  # every class has `final_logits_bias`
    "gradient_checkpointing",
    "output_past",
    "replacing_rate",  # how the checkpoint was distilled, with those below
    "save_step",
    "student_decoder_layers",
    "student_encoder_layers",
)


@dataclass(frozen=True)
class Kin:
    """A family, by what sets it apart from its kin."""

    name: str
    """What `--to` calls it."""
    prefix: str
    """Of its classes' names: "MBart"."""
    fixed: Mapping[str, Any]
    """Fields of ours that follow from the class."""
    classes: tuple[str, ...] = ("ForConditionalGeneration", "Model")
    """Endings of its classes' names."""
    model_type: str | None = None
    """In its config.json; None: the name."""
    has_bias: bool = True
    """Whether it has `final_logits_bias`."""
    has_classifiers: bool = False
    """Whether `classifier_dropout` has an effect."""
    norms: str = "aiayn"
    """ParlAI's name of where norms stand."""
    generation: Mapping[str, Any] = field(default_factory=lambda: {"forced_eos_token_id": None})
    """What its config must say lest its defaults add a rule of generation."""
    tables: Callable[[TransductConfig], Mapping[str, Callable[[], torch.Tensor]]] = lambda config: {}
    """Positions that its files may hold and ours compute, by their names without a prefix."""


def family(kin: Kin, **functions: Callable) -> Family:
    """The family of a kin of BART.

    Args:
        functions: `read`, `write` or `names`, where the kin has its own.
    """
    shared: dict[str, Any] = {"read": partial(read, kin), "write": partial(write, kin), "names": partial(names, kin)}
    return Family(
        name=kin.name,
        model_type=kin.model_type or kin.name,
        classes={f"{kin.prefix}{ending}": (CLASSES[ending], "" if ending == "Model" else "model.") for ending in kin.classes},
        without_row=frozenset({BIAS}),
        computed=partial(computed, kin),
        writes_computed=kin.has_bias,
        unused=VERSIONS,
        **shared | functions,
    )


def names(kin: Kin, config: TransductConfig) -> Names:
    """`encoder.layers.0.self_attn.q_proj` and the like."""
    rest = OUTSIDE | ({"lm_head.bias": BIAS} if kin.has_bias else {})
    return Names("{stack}.layers.{index}", ENCODER_LAYER, DECODER_LAYER, rest, apart=config.tie_embeddings != "all")


def read_ties(options: Options, checkpoint: Checkpoint) -> str:
    """Which matrices of tokens are one. Whether the tensors agree with it is seen when they are read."""
    if options.take("tie_word_embeddings", True):
        return "all"
    source, target = (checkpoint.find(f"{side}.weight") for side in (SOURCE, TARGET))
    if source not in checkpoint or target not in checkpoint:
        return "source_target"
    return "source_target" if not options.by_transformers_5 and checkpoint.same(source, target) else "none"


def read(kin: Kin, options: Options, checkpoint: Checkpoint, **own: Any) -> dict[str, Any]:
    """A config of the kin to our values.

    Args:
        own: values that the family has read itself.
    """
    values = {ours: options.take(theirs) for ours, theirs in NAMES.items()}
    for ours, (theirs, of_encoder) in DECODER_NAMES.items():
        value = options.take(theirs)
        values[ours] = None if value == values[of_encoder] else value
    values |= {
        "norm_eps": 1e-5,
        "initializer": "normal",
        "freeze_padding_embedding": values["pad_token_id"] is not None,
        "logits_bias": kin.has_bias and BIAS in checkpoint and bool(checkpoint.tensor(BIAS).any()),
        "classifier_dropout": _classifier_dropout(options, kin.has_classifiers),
        **kin.fixed,
        **own,
    }
    if "tie_embeddings" not in own:
        values["tie_embeddings"] = read_ties(options, checkpoint)
    for alias, theirs in ALIASES.items():
        options.require(alias, options.take(theirs), f"{theirs} says otherwise")
    _check_restated(kin, options, values)
    options.finish(WITHOUT_EFFECT)
    return values


def _classifier_dropout(options: Options, has_effect: bool) -> float:
    """From the newer name or the older one."""
    older = options.take("classif_dropout", 0.0)
    newer = options.take("classifier_dropout", 0.0)
    if not has_effect:
        return 0.0
    return newer if "classifier_dropout" in options.said or "classif_dropout" not in options.said else older


def _check_restated(kin: Kin, options: Options, fields: Mapping[str, Any]) -> None:
    """Take the options in which old files state what the class does anyway.

    Raises:
        ValueError: for one that states something else.
    """
    config = TransductConfig(norm_position=fields["norm_position"], embedding_norm=fields.get("embedding_norm", False))
    restated: dict[str, Any] = {
        "normalize_before": config.norm_position == "pre",
        "add_final_layer_norm": config.resolved_final_norm,
        "normalize_embedding": config.embedding_norm,
        "static_position_embeddings": fields["positions"] == "sinusoidal",
        "layernorm_variant": kin.norms,
        "variant": kin.norms,
    }
    if fields["positions"] == "learned":
        restated["extra_pos_embeddings"] = fields.get("position_offset", 0)
    if config.embedding_norm:
        restated["do_blenderbot_90_layernorm"] = "decoder_embedding_norm" in fields
    for name, value in restated.items():
        options.require(name, value, f"all {kin.prefix} models of transformers are so, whatever this option says")
    options.take("extra_pos_embeddings")
    options.take("do_blenderbot_90_layernorm")


def write(kin: Kin, config: TransductConfig) -> dict[str, Any]:
    """Our fields to a config of the kin."""
    values = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    values |= {theirs: getattr(config, f"resolved_{ours}") for ours, (theirs, _) in DECODER_NAMES.items()}
    values["tie_word_embeddings"] = config.tie_embeddings == "all"
    if kin.has_classifiers:
        values["classifier_dropout"] = config.classifier_dropout
    declared = {f.name for f in fields(CONFIG_MAPPING[kin.model_type or kin.name])}
    values = {name: value for name, value in values.items() if value is not None or name in declared}
    return values if (config.origin or {}).get("family") == kin.name else values | dict(kin.generation)


def computed(kin: Kin, config: TransductConfig, their_class: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Tables of positions, and a bias on the logits of nothing but zeros."""
    ending = their_class.removeprefix(kin.prefix)
    prefix = "" if ending == "Model" else "model."
    tables = {f"{prefix}{name}": compute for name, compute in kin.tables(config).items()}
    if kin.has_bias and not config.logits_bias and CLASSES[ending] == CLASSES["ForConditionalGeneration"]:
        tables[BIAS] = partial(torch.zeros, 1, config.resolved_decoder_vocab_size)
    return tables

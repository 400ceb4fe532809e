"""fairseq's Transformer and BART, from the files that fairseq writes: a `.pt` and the dictionaries beside it.

- `transformer`, its `_iwslt_de_en`, `_wmt_en_de`, `_vaswani_*`, `_big` and `_t2t` shapes and others under names that begin so:
  post- or pre-norm, sinusoids in tensor2tensor's layout or learned positions. Positions count from the first real token, and
  lie two rows into their table (the padding token's id and one).
- `bart_*` and `mbart_*`: learned positions, a norm on the embeddings; mBART pre-norm with norms at the end.

Options that change what the network computes and that `TransductConfig` has no field for are refused by name. Those of training
(optimizer, criterion, data) change no output and are left behind; a tensor that nothing takes is an error in any case. The
decoder starts with `</s>`. How text becomes ids: `fairseq_dictionary.py`.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.fairseq_dictionary import (
    BOS,
    EOS,
    GPT2_FILES,
    PAD,
    Dictionary,
    gpt2_tokenizer,
    is_gpt2,
    read_dictionary,
    word_tokenizer,
)
from transduct.convert.fairseq_options import OUTPUT, choose_head, read_saved
from transduct.convert.fairseq_twins import has_twin, make_twin
from transduct.convert.family import SOURCE, TARGET, Family, Names
from transduct.convert.foreign import Opened
from transduct.convert.models import Conversion
from transduct.convert.options import Options
from transduct.convert.verifying import verify as compare
from transduct.tokenization import TransductTokenizer

logger = logging.get_logger(__name__)

ARCHITECTURES = re.compile(r"(?!transformer_lm)(transformer|m?bart)(_.+)?")
ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "gelu_fast": "gelu_new", "tanh": "tanh", "swish": "silu",
    "linear": "linear",
}  # fmt: skip
OFFSET = PAD + 1
"""Rows of a table of positions before position 0."""

REFUSED = {
    "adaptive_input": "embeddings by frequency",
    "adaptive_softmax_cutoff": "a softmax of clusters",
    "base_layers": "layers of experts",
    "character_embeddings": "embeddings from characters",
    "cross_self_attention": "attention to source and target in one",
    "decoder_layers_to_keep": "a decoder that LayerDrop prunes while loading: prune the file first",
    "decoder_xformers_att_config": "another attention",
    "encoder_layers_to_keep": "an encoder that LayerDrop prunes while loading: prune the file first",
    "encoder_xformers_att_config": "another attention",
    "moe_freq": "mixtures of experts",
    "no_cross_attention": "a decoder that does not look at the source",
    "quant_noise_pq": "weights meant for product quantisation",
    "quant_noise_scalar": "weights that are quantised while they are used",
    "scale_attn": "NormFormer's norms", "scale_fc": "NormFormer's norms", "scale_heads": "NormFormer's scales",
    "scale_resids": "NormFormer's scales",
    "spectral_norm_classification_head": "a head whose weights are computed",
    "use_stable_embedding": "a norm on the embeddings alone",
}  # fmt: skip
"""Options that must be off, and what they would be."""

PLAIN = (str, int, float, type(None))
"""Values that the record of origin keeps."""
TASKS = ("translation", "denoising", "sentence_prediction", "sentence_ranking")
"""Tasks whose texts have no tokens of languages around them."""
LAYER = {
    "self_attention.q_proj": "self_attn.q_proj", "self_attention.k_proj": "self_attn.k_proj",
    "self_attention.v_proj": "self_attn.v_proj", "self_attention.o_proj": "self_attn.out_proj",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "feed_forward.up_proj": "fc1", "feed_forward.down_proj": "fc2", "feed_forward_residual.norm": "final_layer_norm",
}  # fmt: skip
CROSS = {
    "cross_attention.q_proj": "encoder_attn.q_proj", "cross_attention.k_proj": "encoder_attn.k_proj",
    "cross_attention.v_proj": "encoder_attn.v_proj", "cross_attention.o_proj": "encoder_attn.out_proj",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
}  # fmt: skip


def names(config: TransductConfig) -> Names:
    """`encoder.layers.0.self_attn.q_proj` and the like."""
    rest = {f"classification_head.{part}": f"classification_head.{part}" for part in ("dense", "out_proj")}
    for stack in ("encoder", "decoder"):
        rest[f"{stack}.embed_positions"] = f"{stack}.embed_positions"
        rest[f"{stack}.embedding_norm"] = f"{stack}.layernorm_embedding"
        rest[f"{stack}.final_norm"] = f"{stack}.layer_norm"
    return Names("{stack}.layers.{index}", LAYER, LAYER | CROSS, rest, shared="", output=OUTPUT.removesuffix(".weight"))


def read(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    """fairseq's options as ours. Sizes that the tensors show are read from them."""
    architecture = options.take("arch")
    if not isinstance(architecture, str) or not ARCHITECTURES.fullmatch(architecture):
        raise ValueError(f"{options.where}: arch={architecture!r} is none of fairseq's transformer_*, bart_* and mbart_*")
    _refuse(options, checkpoint)
    width = options.take("encoder_embed_dim", 512)  # what old files leave out is what fairseq takes for it when it loads them
    for name in ("decoder_embed_dim", "decoder_output_dim", "decoder_input_dim"):
        options.require(name, width, f"encoder_embed_dim={width!r} is the width of all layers here")
    activation = options.take("activation_fn") or "relu"
    if activation not in ACTIVATIONS:
        raise ValueError(f"{options.where}: activation_fn={activation!r} is none of {', '.join(ACTIVATIONS)}")
    ffn = options.take("encoder_ffn_embed_dim", 2048)
    pre = _same(options, "encoder_normalize_before", "decoder_normalize_before")
    source_rows, target_rows = rows(checkpoint, f"{SOURCE}.weight"), rows(checkpoint, f"{TARGET}.weight", f"{SOURCE}.weight")
    layer_drop, decoder_drop = options.take("encoder_layerdrop") or 0.0, options.take("decoder_layerdrop") or 0.0
    return dict(
        vocab_size=source_rows,
        decoder_vocab_size=None if target_rows == source_rows else target_rows,
        d_model=width,
        d_ff=ffn,
        decoder_d_ff=options.take("decoder_ffn_embed_dim", ffn),
        num_heads=options.take("encoder_attention_heads", 8),
        decoder_num_heads=options.take("decoder_attention_heads", 8),
        encoder_layers=options.take("encoder_layers", 6),
        decoder_layers=options.take("decoder_layers", 6),
        norm_position="pre" if pre else "post",
        embedding_norm=bool(options.take("layernorm_embedding")),
        final_norm=_final_norm(checkpoint),
        activation=ACTIVATIONS[activation],
        scale_embeddings=not options.take("no_scale_embedding"),
        tie_embeddings=_ties(options, source_rows, target_rows),
        freeze_padding_embedding=True,
        dropout=options.take("dropout", 0.1),
        attention_dropout=options.take("attention_dropout") or 0.0,
        activation_dropout=options.take("activation_dropout") or options.take("relu_dropout") or 0.0,
        classifier_dropout=options.take("pooler_dropout") or 0.0,
        layer_drop=layer_drop,
        decoder_layer_drop=None if decoder_drop == layer_drop else decoder_drop,
        initializer="normal" if "bart" in architecture else "xavier",
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    ) | _positions(options, checkpoint)  # fmt: skip


def _refuse(options: Options, checkpoint: Checkpoint) -> None:
    for name, what in REFUSED.items():
        value = options.take(name)
        if value:
            raise ValueError(f"{options.where}: {name}={value!r} cannot be imported: {what}")
    if "classification_head.dense.weight" in checkpoint:
        options.require("pooler_activation_fn", "tanh", "the head has a hyperbolic tangent")


def _same(options: Options, one: str, other: str) -> bool:
    """An option of the encoder that must be the decoder's too."""
    first, second = bool(options.take(one)), bool(options.take(other))
    if first != second:
        raise ValueError(f"{options.where}: {one}={first} and {other}={second} must be equal: here both stacks are alike")
    return first


def rows(checkpoint: Checkpoint, *names: str) -> int:
    """Rows of the first of some tensors that is there."""
    for name in names:
        if name in checkpoint:
            return checkpoint.tensor(name).shape[0]
    raise ValueError(f"{checkpoint.where} holds no {names[0]}")


def _final_norm(checkpoint: Checkpoint) -> bool:
    """Whether the stacks end in a norm: in pre-norm models since 0.6, and never in others."""
    encoder, decoder = (f"{stack}.layer_norm.weight" in checkpoint for stack in ("encoder", "decoder"))
    if encoder != decoder:
        has, lacks = ("encoder", "decoder") if encoder else ("decoder", "encoder")
        raise ValueError(
            f"{checkpoint.where}: the {has} ends in a norm, the {lacks} does not (no_decoder_final_norm?); here both are alike"
        )
    return encoder


def _ties(options: Options, source_rows: int, target_rows: int) -> str:
    """Which embeddings are one matrix, as the options say; that the tensors agree is checked when they are read."""
    if options.take("share_all_embeddings"):
        if source_rows != target_rows:
            raise ValueError(
                f"{options.where}: share_all_embeddings=True, but embeddings have {source_rows} and {target_rows} rows"
            )
        return "all"
    return "target_output" if options.take("share_decoder_input_output_embed") else "none"


def _positions(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    learned = _same(options, "encoder_learned_pos", "decoder_learned_pos")
    limits = options.take("max_source_positions", 1024), options.take("max_target_positions", 1024)
    if options.take("no_token_positional_embeddings"):
        return dict(positions="none", max_positions=limits[0])
    if learned:
        source, target = (rows(checkpoint, f"{stack}.embed_positions.weight") - OFFSET for stack in ("encoder", "decoder"))
        limits = source, target
    return dict(
        positions="learned" if learned else "sinusoidal",
        sinusoid_layout="interleaved" if learned else "tensor2tensor",
        position_offset=OFFSET,
        max_positions=limits[0],
        decoder_max_positions=None if limits[0] == limits[1] else limits[1],
    )


def _write(config: TransductConfig) -> dict[str, Any]:
    raise ValueError("fairseq's own format is only read: say with `to` which family of transformers the model should become")


FAMILY = Family(
    name="fairseq",
    model_type="fairseq",
    classes={
        "generation": ("TransductForConditionalGeneration", ""),
        "classification": ("TransductForSequenceClassification", ""),
    },
    read=read,
    write=_write,
    names=names,
    unused=re.compile(r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))"),
)


def from_fairseq(path: str | Path, verify: bool = True, **options: Any) -> PreTrainedModel:
    """A checkpoint of fairseq as our model, in evaluation mode; other arguments are `open_checkpoint`'s, as are errors.

    Args:
        verify: compare it with a model of transformers that has the same equations, see `verifying.verify`. Where transformers
            has none, a warning says that nothing was compared.
    """
    opened = open_checkpoint(path, **options)
    model = opened.model()
    if verify and opened.original is not None:
        compare(opened.original(), model, str(path))
    elif verify:
        logger.warning(f"{str(path)!r} was imported without a comparison: transformers has no model of its architecture")
    return model


def open_checkpoint(
    path: str | Path,
    dictionaries: str | Path | None = None,
    classification_head: str | None = None,
    added_tokens: Sequence[str] = (),
    tokenizer: bool = True,
) -> Opened:
    """Open a `.pt` of fairseq.

    Args:
        dictionaries: the folder of dict.*.txt and GPT-2's files; None: that of the checkpoint.
        classification_head: the head of a classifier; None: the model generates.
        added_tokens: what a task of one's own appends to the dictionary.
        tokenizer: False: neither read dictionaries nor check them.

    Raises:
        ValueError: for a file that is no such checkpoint, an option or a tensor that cannot be imported, and dictionaries that
            are missing or belong to another model.
    """
    path = Path(path)
    where = str(path)
    saved = read_saved(path)
    state = choose_head(saved.state, classification_head, where)
    checkpoint = Checkpoint.of_state_dict(state, where)
    options = Options(saved.options, (), where)
    fields = read(options, checkpoint)
    kind, labels = "generation", {}
    if classification_head is not None:
        kind, labels = "classification", {"num_labels": rows(checkpoint, "classification_head.out_proj.weight")}
    known = {name: value for name, value in saved.options.items() if name in options.taken and isinstance(value, PLAIN)}
    config = TransductConfig(**fields, **labels, origin={"family": FAMILY.name, "class": kind, "config": known})
    ours, text = None, "no tokenizer was asked for"
    if tokenizer:
        folder = path.parent if dictionaries is None else Path(dictionaries)
        ours, text = make_tokenizer(saved.options, folder, config, tuple(added_tokens), where)
    generation = generation_config(config, ours) if kind == "generation" else None
    original = partial(make_twin, config, checkpoint, kind, generation) if has_twin(config, kind) else None
    return Opened(Conversion(FAMILY, kind, config, where), checkpoint, generation, ours, text, original)


def generation_config(config: TransductConfig, tokenizer: TransductTokenizer | None) -> GenerationConfig:
    """How `fairseq-generate` decodes: a beam of 5, up to 200 tokens and the end, which is not first, and no padding.

    Where targets begin with `<s>`, that is forced, as fairseq's own BART does.
    """
    longest = 200 if config.positions != "learned" else min(200, config.resolved_decoder_max_positions - 1)
    begins = tokenizer is not None and bool(tokenizer.target_prefix)
    return GenerationConfig(
        num_beams=5,
        early_stopping=True,
        length_penalty=1.0,
        min_new_tokens=1,
        max_new_tokens=longest + 1,
        suppress_tokens=[PAD],
        forced_bos_token_id=BOS if begins else None,
        forced_eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )


def make_tokenizer(
    options: dict[str, Any], folder: Path, config: TransductConfig, added: tuple[str, ...], where: str
) -> tuple[TransductTokenizer, str]:
    """The tokenizer of the dictionaries in `folder`, and what text it takes."""
    task = options.get("task") or "translation"
    if task not in TASKS:
        raise ValueError(
            f"{where}: task={task!r} puts tokens of its own around texts, which are not known here: import without a tokenizer "
            "(tokenizer=False), or say task='translation' in the file if it does not"
        )
    source, target = _dictionaries(options, task, folder, added)
    for dictionary, rows, side in ((source, config.vocab_size, "source"), (target, config.resolved_decoder_vocab_size, "target")):
        if len(dictionary) != rows:
            raise ValueError(
                f"{dictionary.where} has {len(dictionary)} tokens with the special ones, but the {side} embedding {rows} rows: "
                "it belongs to another model, or the task added tokens (added_tokens)"
            )
    if config.tie_embeddings == "all" and source.words != target.words:
        raise ValueError(f"{source.where} and {target.where} differ, but share_all_embeddings needs one dictionary")
    if source.words == target.words and is_gpt2(source):
        lacking = [name for name in GPT2_FILES if not (folder / name).is_file()]
        if lacking:
            raise ValueError(f"{source.where} numbers the pieces of GPT-2's BPE: {' and '.join(lacking)} must lie in {folder}")
        return gpt2_tokenizer(source, folder), "plain text"
    tokenizer = word_tokenizer(source, None if source.words == target.words else target)
    if task == "denoising":
        tokenizer.source_prefix = tokenizer.target_prefix = [tokenizer.bos_token]
    return tokenizer, "text prepared as the model's data was (tokenised, cut into subwords): words separated by blanks"


def _dictionaries(options: dict[str, Any], task: str, folder: Path, added: tuple[str, ...]) -> tuple[Dictionary, Dictionary]:
    languages = [options.get("source_lang"), options.get("target_lang")]
    if task == "translation":
        if not all(isinstance(language, str) for language in languages):
            raise ValueError(f"source_lang={languages[0]!r}, target_lang={languages[1]!r} must name the dictionaries dict.*.txt")
        paths = [folder / f"dict.{language}.txt" for language in languages]
    else:
        within = next((part for part in ("dict.txt", "input0/dict.txt") if (folder / part).is_file()), "dict.txt")
        paths, added = [folder / within] * 2, (*added, "<mask>")
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        advice = "put them beside the checkpoint, or say with dictionaries= in which folder they are"
        raise ValueError(f"dictionaries are missing, {', '.join(missing)}: {advice}")
    source = read_dictionary(paths[0], added)
    return source, source if paths[1] == paths[0] else read_dictionary(paths[1], added)

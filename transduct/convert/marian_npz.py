"""Models of Marian from its own files, `.npz` or `.bin`: transformers, pre- or post-norm, with one vocabulary or two.

What is Marian's and not transformers': `MarianMTModel` computes other sinusoids (10000^(2i/d) where Marian, like tensor2tensor,
has 10000^(2i/(d-2))) and adds 1e-5 to variances where Marian adds 1e-6. Imported from its own file, a model computes what Marian
does.

- Matrices are stored as (in, out) and are transposed; layers count from 1.
- The decoder starts from a zero vector. Marian has no padding token: one is added after the last token, whose embedding is that
  zero vector and whose logit is so low that its probability is 0, so it is never written.
- "gelu" is x * sigmoid(1.702 x) here.

Recurrent and averaging decoders, factored vocabularies, highways, shared layers, trained positions and quantised weights are
refused by name. Text: `marian_vocabulary.py`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from transduct.configuration import TransductConfig
from transduct.convert import fairseq
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.engine_vocabulary import token_strings
from transduct.convert.fairseq_options import OUTPUT
from transduct.convert.family import SOURCE, TARGET, Family, Names
from transduct.convert.foreign import Opened
from transduct.convert.marian_files import MarianFile, read_marian
from transduct.convert.marian_twins import has_twin, make_twin
from transduct.convert.marian_vocabulary import decoder_options, make_tokenizer
from transduct.convert.models import Conversion
from transduct.convert.options import Options

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "quick_gelu"}
NORMS = {("", "dan"): "post", ("", "an"): "post", ("n", "da"): "pre", ("n", "a"): "pre"}
"""`norm_position` by transformer-preprocess and transformer-postprocess."""
NEVER = -1000.0
"""The bias on the logits of ids that stand for no token: e^-1000 is 0 beside any other, and a smoothed loss stays finite."""
BIAS = "decoder_ff_logit_out_b"
BEAM, NORMALIZE = 12, 0.0
"""Defaults of marian-decoder."""

REQUIRED: dict[str, tuple[Any, str]] = {
    "type": ("transformer", "another architecture"),
    "layer-normalization": (False, "norms inside the output layer"),
    "lemma-dim-emb": (0, "factored vocabularies"),
    "right-left": (False, "targets that are written from right to left"),
    "transformer-ffn-depth": (2, "feed-forwards of another depth"),
    "transformer-no-projection": (False, "attention without a projection of its output"),
    "transformer-pool": (False, "pooling in place of attention"),
    "transformer-tied-layers": ([], "layers that share weights"),
    "transformer-train-position-embeddings": (False, "trained positions that both stacks share, beside unscaled embeddings"),
    "ulr": (False, "universal lexical representations"),
}
"""Options that must have one value, and what another would be."""
WITHOUT_EFFECT = frozenset({
    "bert-train-type-embeddings", "bert-type-vocab-size", "dec-cell-base-depth", "dec-cell-high-depth", "dim-rnn", "enc-cell",
    "enc-cell-depth", "enc-type", "factors-combine", "factors-dim-emb", "input-types", "lemma-dependency", "skip",
    "transformer-aan-activation", "transformer-aan-depth", "transformer-aan-nogate", "transformer-depth-scaling",
    "transformer-dim-aan", "transformer-guided-alignment-layer", "transformer-rnn-projection", "ulr-dim-emb",
    "ulr-trainable-transformation", "version", "dec-cell",
})  # fmt: skip
"""Options of recurrent, averaging and factored models, which do not matter here, and of training."""


def names(config: TransductConfig) -> Names:
    """Those of fairseq, to which `renamed` brings Marian's, and a bias on the logits."""
    like = fairseq.names(config)
    return replace(like, rest={**like.rest, "lm_head.bias": f"{like.output}.bias"})


def read(options: Options, checkpoint: Checkpoint) -> dict[str, Any]:
    """Marian's options as ours. `checkpoint` holds its tensors under its own names."""
    for name, (value, what) in REQUIRED.items():
        options.require(name, value, f"it would be {what}")
    activation = options.take("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:
        raise ValueError(f"{options.where}: transformer-ffn-activation={activation!r} is none of {', '.join(ACTIVATIONS)}")
    if options.take("transformer-decoder-ffn-depth", 0) not in (0, 2):
        options.require("transformer-decoder-ffn-depth", 0, "it would be feed-forwards of another depth")
    tie = _ties(options)
    rows = max(_vocabularies(options, checkpoint, tie)) + 1  # the padding token, which Marian's models lack, has one id
    fields = dict(
        vocab_size=rows,
        decoder_vocab_size=rows if tie in ("target_output", "none") else None,
        d_model=options.take("dim-emb"),
        d_ff=options.take("transformer-dim-ffn"),
        decoder_d_ff=options.take("transformer-decoder-dim-ffn") or None,
        num_heads=options.take("transformer-heads"),
        encoder_layers=options.take("enc-depth"),
        decoder_layers=options.take("dec-depth"),
        norm_eps=1e-6,
        positions="sinusoidal",
        sinusoid_layout="tensor2tensor",
        activation=ACTIVATIONS[activation],
        tie_embeddings=tie,
        logits_bias=True,  # also where there is none: it hides the padding token
        freeze_padding_embedding=True,
        pad_token_id=rows - 1,
        bos_token_id=None,
        decoder_start_token_id=rows - 1,
    )
    fields |= _norms(options)
    options.take("output-omit-bias")  # see `output_bias`
    unknown = sorted(set(options.values) - options.taken - WITHOUT_EFFECT)
    if unknown:
        values = ", ".join(f"{name}={options.values[name]!r}" for name in unknown)
        raise ValueError(f"{options.where}: unknown options {values}; what they change is not known here")
    return fields


def refuse_decoder(options: Options) -> None:
    """Raises ValueError for a decoder that does not attend to what came before."""
    decoder = options.take("transformer-decoder-autoreg", "self-attention")
    if decoder != "self-attention":
        cell = f" of dec-cell={options.take('dec-cell')!r}" if decoder == "rnn" else ""
        raise ValueError(
            f"{options.where}: transformer-decoder-autoreg={decoder!r}{cell} cannot be imported, only 'self-attention': such a "
            "decoder is recurrent or averages what came before, and does not attend to it"
        )


def _norms(options: Options) -> dict[str, Any]:
    """Where norms stand, of the strings of "d"ropout, "a"dd and "n"orm."""
    before, after = options.take("transformer-preprocess", ""), options.take("transformer-postprocess", "dan")
    if (before, after) not in NORMS:
        raise ValueError(
            f"{options.where}: transformer-preprocess={before!r} with transformer-postprocess={after!r} cannot be imported, only "
            f"{' and '.join(f'{one!r} with {other!r}' for one, other in NORMS)}"
        )
    embedding, top = options.take("transformer-postprocess-emb", "d"), options.take("transformer-postprocess-top", "")
    for name, value, allowed in (
        ("transformer-postprocess-emb", embedding, ("", "d", "n", "nd")),
        ("transformer-postprocess-top", top, ("", "n")),
    ):
        if value not in allowed:
            raise ValueError(f"{options.where}: {name}={value!r} cannot be imported, only {', '.join(map(repr, allowed))}")
    return dict(norm_position=NORMS[before, after], embedding_norm="n" in embedding, final_norm=top == "n")


def _ties(options: Options) -> str:
    all_one, sides = options.take("tied-embeddings-all", False), options.take("tied-embeddings-src", False)
    output = options.take("tied-embeddings", False)
    if all_one or (sides and output):
        return "all"
    return "source_target" if sides else "target_output" if output else "none"


def _vocabularies(options: Options, checkpoint: Checkpoint, tie: str) -> list[int]:
    """Tokens of source and target, which the embeddings must have rows for."""
    said = options.take("dim-vocabs")
    if not isinstance(said, list) or len(said) != 2:
        raise ValueError(f"{options.where}: dim-vocabs={said!r} must be the sizes of one source and one target vocabulary")
    for stack, size in zip(("encoder", "decoder"), said, strict=True):
        name = embedding_name(stack, tie)
        if name not in checkpoint:
            raise ValueError(f"{options.where} holds no {name}")
        rows = checkpoint.tensor(name).shape[0]
        if rows != size:
            raise ValueError(f"{options.where}: {name} has {rows} rows, but dim-vocabs={said}")
    return said


def embedding_name(stack: str, tie: str) -> str:
    return "Wemb" if tie in ("all", "source_target") else f"{stack}_Wemb"


def places(config: TransductConfig) -> Iterator[tuple[str, str, Any]]:
    """For each tensor: its name here (fairseq's), Marian's, and what makes one of the other."""
    add_rows = partial(with_rows, rows=config.vocab_size)
    for stack, module in (("encoder", SOURCE), ("decoder", TARGET)):
        yield f"{module}.weight", embedding_name(stack, config.tie_embeddings), add_rows
        suffix = "_pre" if config.norm_position == "pre" else ""
        depth = config.encoder_layers if stack == "encoder" else config.decoder_layers
        for number in range(depth):
            yield from _layer(f"{stack}.layers.{number}", f"{stack}_l{number + 1}", stack == "decoder", suffix)
        yield from _norm(f"{stack}.layernorm_embedding", f"{stack}_emb", "_pre")
        yield from _norm(f"{stack}.layer_norm", f"{stack}_top", "")
    output = OUTPUT.removesuffix(".weight")
    if config.tie_embeddings in ("source_target", "none"):
        yield OUTPUT, "decoder_ff_logit_out_Wt", add_rows
        yield OUTPUT, "decoder_ff_logit_out_W", lambda tensor: add_rows(tensor.T)  # of older versions
    yield f"{output}.bias", BIAS, partial(with_bias, rows=config.vocab_size)


def _layer(ours: str, theirs: str, decodes: bool, suffix: str) -> Iterator[tuple[str, str, Any]]:
    for module, part in (("self_attn", "self"), *((("encoder_attn", "context"),) if decodes else ())):
        for letter, projection in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")):
            yield f"{ours}.{module}.{projection}.weight", f"{theirs}_{part}_W{letter}", torch.t
            yield f"{ours}.{module}.{projection}.bias", f"{theirs}_{part}_b{letter}", torch.flatten
        yield from _norm(f"{ours}.{module}_layer_norm", f"{theirs}_{part}_Wo", suffix)
    for number in (1, 2):
        yield f"{ours}.fc{number}.weight", f"{theirs}_ffn_W{number}", torch.t
        yield f"{ours}.fc{number}.bias", f"{theirs}_ffn_b{number}", torch.flatten
    yield from _norm(f"{ours}.final_layer_norm", f"{theirs}_ffn_ffn", suffix)


def _norm(ours: str, theirs: str, suffix: str) -> Iterator[tuple[str, str, Any]]:
    yield f"{ours}.weight", f"{theirs}_ln_scale{suffix}", torch.flatten
    yield f"{ours}.bias", f"{theirs}_ln_bias{suffix}", torch.flatten


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """(V, D) -> (rows, D), zero where Marian has no token."""
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.shape[0], tensor.shape[1])])


def with_bias(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """(1, V) -> (rows), `NEVER` where Marian has no token."""
    return torch.cat([tensor.flatten(), tensor.new_full((rows - tensor.numel(),), NEVER)])


def renamed(config: TransductConfig, checkpoint: Checkpoint) -> Checkpoint:
    """The tensors under fairseq's names, in our shapes; those that have no place keep their name, so that they are refused."""
    readers, used = {}, set()
    for ours, theirs, change in places(config):
        if theirs in checkpoint:
            readers[ours] = partial(_changed, checkpoint, theirs, change)
            used.add(theirs)
    rest = {name: partial(checkpoint.tensor, name) for name in checkpoint.names - used}
    return Checkpoint(readers | rest, checkpoint.where)


def output_bias(options: Options, checkpoint: Checkpoint) -> Checkpoint:
    """The tensors with zeros for the output's bias, where a model was trained without one: the padding token needs its own."""
    if not options.take("output-omit-bias", False):
        return checkpoint
    if BIAS in checkpoint:
        raise ValueError(f"{options.where}: output-omit-bias=True, but it holds {BIAS}")
    some = checkpoint.tensor(embedding_name("decoder", _ties(options)))  # (V, D)
    return Checkpoint(checkpoint.readers | {BIAS: partial(some.new_zeros, 1, some.shape[0])}, checkpoint.where)


def _changed(checkpoint: Checkpoint, name: str, change: Any) -> torch.Tensor:
    return change(checkpoint.tensor(name)).contiguous()


def _write(config: TransductConfig) -> dict[str, Any]:
    raise ValueError("Marian's own format is only read: say with `to` which family of transformers the model should become")


FAMILY = Family(
    name="marian-npz",
    model_type="marian-npz",
    classes={"generation": ("TransductForConditionalGeneration", "")},
    read=read,
    write=_write,
    names=names,
)


def open_checkpoint(path: str | Path, vocabularies: tuple[str | Path, ...] | None = None, tokenizer: bool = True) -> Opened:
    """Open a `.npz` or `.bin` of Marian.

    Args:
        vocabularies: the files of the source's and the target's vocabulary, or of both; None: those that the decoder's options
            beside the model name.
        tokenizer: False: do without them; the end of sequence is then taken to be id 0 and <unk> id 1, as Marian has them.

    Raises:
        ValueError: for a file that is no such model, and for whatever cannot be imported, named.
    """
    path = Path(path)
    where = str(path)
    file = read_marian(path)
    options = Options(file.options, (), where)
    refuse_decoder(options)
    _refuse_quantised(file, where)
    fields = read(options, file.checkpoint)
    said = decoder_options(path)
    text, ours, end, unknown = "no tokenizer was asked for", None, 0, 1
    if tokenizer:
        ours, text = make_tokenizer(path, said, vocabularies, file.options["dim-vocabs"], fields["pad_token_id"])
        end = ours.eos_token_id
        unknown = token_strings(ours, fields["vocab_size"], target=True).index("<unk>")
    origin = {"family": FAMILY.name, "class": "generation", "config": file.options}
    config = TransductConfig(**fields, eos_token_id=end, origin=origin)
    checkpoint = renamed(config, output_bias(options, file.checkpoint))
    generation = generation_config(config, said, unknown)
    original = partial(make_twin, config, checkpoint, generation) if has_twin(config) else None
    return Opened(Conversion(FAMILY, "generation", config, where), checkpoint, generation, ours, text, original)


def _refuse_quantised(file: MarianFile, where: str) -> None:
    if file.unread:
        name, kind = next(iter(sorted(file.unread.items())))
        raise ValueError(
            f"{where} holds {len(file.unread)} tensors that are no floating-point numbers, such as {name} of {kind}: quantised "
            "models are not imported, only those from which they were made"
        )


def generation_config(config: TransductConfig, said: dict[str, Any], unknown: int) -> GenerationConfig:
    """How marian-decoder decodes with the options `said`: a beam, scores divided by length^normalize, no padding.

    Args:
        unknown: the target's id of <unk>, which is not written either without allow-unk.

    Raises:
        ValueError: for a word-penalty, which a generation config cannot say.
    """
    if reward := -float(said.get("word-penalty", 0.0)):
        raise ValueError(
            f"word-penalty={-reward} of the decoder's options has no place in a generation config: leave it out there, and "
            f"search with word_reward={reward}"
        )
    beams = int(said.get("beam-size", BEAM))
    scores = dict(early_stopping=True, length_penalty=float(said.get("normalize", NORMALIZE))) if beams > 1 else {}
    return GenerationConfig(
        num_beams=beams,
        **scores,
        suppress_tokens=[config.pad_token_id] if said.get("allow-unk") else [unknown, config.pad_token_id],
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )

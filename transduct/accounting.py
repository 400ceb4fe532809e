"""Parameters, multiply-adds and memory of a model, before it is built: `print(describe("a config or a model"))`.

- A config is counted by closed formulas: one line a kind of tensor (`_encoder_decoder_tensors`), nothing is built.
- A model's parameters are counted as they are, so adapters, resized vocabularies and the encoder-only and decoder-only
  classes come out right; the same rules then give multiply-adds and memory.
- With d = d_model, d_ff = 4d and one attention width: an encoder layer holds 12 d^2, a decoder layer 16 d^2 in matrices. A
  token multiplies with 14 d^2 of that pair's 28 d^2, source or target alike: cross-attention's keys and values (2 d^2) are
  computed from source tokens, its queries and output (2 d^2) from target tokens (Vaswani et al. 2017, sections 3.1 to 3.3).
- What is left out, being small: multiply-adds of norms, softmax and activations; statistics of norms and softmax in memory.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, NamedTuple

from torch import nn

from .configuration import TransductConfig
from .features import KERNEL, ConvStem
from .loss import CHUNK_TOKENS

PARTS = ("embeddings", "stem", "positions", "encoder", "decoder", "cross_attention", "norms", "biases", "output")
"""Keys of `parameters_by_part`: token tables; what features come in through; learned positions and relative biases; matrices of
the encoder's layers; of the decoder's self-attention and feed-forward; of cross-attention; weights and biases of norms; biases of
the layers' projections; an output projection of its own (not tied to an embedding) with the logits' bias, and other heads."""

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_OPTIMIZERS = ("adamw", "adafactor", "momentum", "sgd")


@dataclass(frozen=True)
class ModelDescription:
    """What `describe` found. Parts are disjoint and add up to `parameters`; one multiply-add is two floating-point operations.

    Attributes:
        parameters: Tied matrices count once.
        parameters_by_part: See `PARTS`.
        multiply_adds_per_source_token, multiply_adds_per_target_token: Of the layers' matrices, in one forward pass. Where the
            source is features, its tokens are the states that the stem makes of them, and the stem is counted too.
        output_multiply_adds_per_target_token: Of the output projection, d_model * vocabulary.
        attention_multiply_adds_per_pair: Of scores and weighted values, for one pair of query and key, over all layers of
            "encoder", "decoder" and "cross_attention". They grow with length: see `attention_multiply_adds`.
        cache_bytes_per_source_token: Cross-attention keys and values of all layers, once a source, shared by its beams.
        cache_bytes_per_target_token: Self-attention keys and values of all decoder layers, for each beam.
        parameter_bytes, gradient_bytes, optimizer_bytes: Held while training; the last two of trainable parameters only.
        activation_bytes: Kept from the forward for the backward pass; what is counted stands in `_activation_bytes`.
        activation_bytes_by_part: The same for "encoder", "decoder" (with cross-attention) and "loss".
        assumptions: The arguments of `describe` that the memory figures hold for.
    """

    parameters: int
    parameters_by_part: dict[str, int]
    multiply_adds_per_source_token: int
    multiply_adds_per_target_token: int
    output_multiply_adds_per_target_token: int
    attention_multiply_adds_per_pair: dict[str, int]
    cache_bytes_per_source_token: int
    cache_bytes_per_target_token: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    activation_bytes_by_part: dict[str, int]
    assumptions: dict[str, Any]

    def attention_multiply_adds(self, source_length: int, target_length: int) -> int:
        """Scores and weighted values of one sequence pair: S^2 pairs in the encoder, T (T + 1) / 2 in the decoder, T S across."""
        pairs = {
            "encoder": source_length**2,
            "decoder": target_length * (target_length + 1) // 2,  # a token sees itself and those before it
            "cross_attention": source_length * target_length,
        }
        return sum(count * self.attention_multiply_adds_per_pair[part] for part, count in pairs.items())

    def multiply_adds(self, source_length: int, target_length: int) -> int:
        """One forward pass of one sequence pair, everything together. A training step takes three times as many."""
        per_target_token = self.multiply_adds_per_target_token + self.output_multiply_adds_per_target_token
        tokens = source_length * self.multiply_adds_per_source_token + target_length * per_target_token
        return tokens + self.attention_multiply_adds(source_length, target_length)

    @property
    def training_bytes(self) -> int:
        """Parameters, gradients, optimizer state and activations together."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and dicts, as for JSON, with the batch's multiply-adds and the sum of the memory."""
        lengths = self.assumptions["source_length"], self.assumptions["target_length"]
        batch = self.assumptions["batch_size"] * self.multiply_adds(*lengths)
        return {**asdict(self), "multiply_adds_per_batch": batch, "training_bytes": self.training_bytes}

    def __str__(self) -> str:
        lengths = self.assumptions["source_length"], self.assumptions["target_length"]
        batch = self.assumptions["batch_size"]
        pairs = self.attention_multiply_adds_per_pair
        rows = [
            ("parameters", f"{self.parameters:,}"),
            *((f"  {part}", f"{count:,}") for part, count in self.parameters_by_part.items() if count),
            ("multiply-adds, one forward pass", ""),
            ("  layers, per source token", f"{self.multiply_adds_per_source_token:,}"),
            ("  layers, per target token", f"{self.multiply_adds_per_target_token:,}"),
            ("  output, per target token", f"{self.output_multiply_adds_per_target_token:,}"),
            *((f"  attention, per pair, {part}", f"{count:,}") for part, count in pairs.items() if count),
            (f"  batch of {batch} x ({lengths[0]} + {lengths[1]}) tokens", f"{batch * self.multiply_adds(*lengths):,}"),
            (f"cache, {self.assumptions['dtype']}", ""),
            ("  per source token", f"{self.cache_bytes_per_source_token:,} bytes"),
            ("  per target token and beam", f"{self.cache_bytes_per_target_token:,} bytes"),
            (f"training that batch, {self.assumptions['dtype']}", _megabytes(self.training_bytes)),
            ("  parameters", _megabytes(self.parameter_bytes)),
            ("  gradients", _megabytes(self.gradient_bytes)),
            (f"  {self.assumptions['optimizer']} state", _megabytes(self.optimizer_bytes)),
            *((f"  activations, {part}", _megabytes(count)) for part, count in self.activation_bytes_by_part.items() if count),
        ]
        left, right = (max(len(row[side]) for row in rows) for side in (0, 1))
        return "\n".join(f"{label:<{left}}  {value:>{right}}".rstrip() for label, value in rows)


def describe(
    config_or_model: Any,
    *,
    batch_size: int = 32,
    source_length: int = 128,
    target_length: int = 128,
    dtype: Any = "float32",
    optimizer: str = "adamw",
    attention: str = "sdpa",
    gradient_checkpointing: bool = False,
) -> ModelDescription:
    """Count the parameters, multiply-adds, cache and training memory of a config or a model.

    Args:
        config_or_model: A `TransductConfig` of an encoder-decoder, or any model of this package.
        batch_size, source_length, target_length: The batch that the memory figures are for, in sequences and tokens.
        dtype: Type of parameters, gradients, optimizer state, activations and caches, by name or as a `torch.dtype`; mixed
            precision lies between the figures of its two types.
        optimizer: "adamw" (two values a parameter), "adafactor" (a value a row and a column of each matrix, one an element
            of each vector), "momentum" (one a parameter) or "sgd" (none).
        attention: "sdpa": a fused kernel that keeps no weights; "eager": both copies of the weights are kept.
        gradient_checkpointing: Only each layer's input is kept, and one layer's activations at a time.

    Raises:
        ValueError: For another kind of config or model, an encoder-only or decoder-only config (pass the model), or an
            argument out of its range.
    """
    assumptions: dict[str, Any] = dict(
        batch_size=batch_size, source_length=source_length, target_length=target_length, dtype=str(dtype).removeprefix("torch."),
        optimizer=optimizer, attention=attention, gradient_checkpointing=gradient_checkpointing,
    )  # fmt: skip
    _check(assumptions)
    config, tensors, output = _inventory(config_or_model)
    has = _Presence.of(tensors)
    size = _BYTES[assumptions["dtype"]]
    source, target = _Stack.of(config, "encoder"), _Stack.of(config, "decoder")
    by_part = dict.fromkeys(PARTS, 0)
    for tensor in tensors:
        by_part[tensor.part] += tensor.size
    activations = _activation_bytes(config, has, size, output, assumptions)
    return ModelDescription(
        parameters=sum(by_part.values()),
        parameters_by_part=by_part,
        multiply_adds_per_source_token=sum(tensor.size * tensor.times for tensor in tensors if tensor.multiplies == "source"),
        multiply_adds_per_target_token=sum(tensor.size for tensor in tensors if tensor.multiplies == "target"),
        output_multiply_adds_per_target_token=output,
        attention_multiply_adds_per_pair={
            "encoder": has.encoder * (source.query_width + source.output_width) * source.layers,
            "decoder": has.decoder * (target.query_width + target.output_width) * target.layers,
            "cross_attention": has.cross_attention * (target.query_width + target.output_width) * target.layers,
        },
        cache_bytes_per_source_token=has.cross_attention * (target.key_width + target.value_width) * target.layers * size,
        cache_bytes_per_target_token=has.decoder * (target.key_width + target.value_width) * target.layers * size,
        parameter_bytes=sum(by_part.values()) * size,
        gradient_bytes=sum(tensor.size for tensor in tensors if tensor.trainable) * size,
        optimizer_bytes=sum(_optimizer_values(tensor, optimizer) for tensor in tensors if tensor.trainable) * size,
        activation_bytes=sum(activations.values()),
        activation_bytes_by_part=activations,
        assumptions=assumptions,
    )


def _check(assumptions: dict[str, Any]) -> None:
    for name in ("batch_size", "source_length", "target_length"):
        value = assumptions[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    for name, known in (("dtype", tuple(_BYTES)), ("optimizer", _OPTIMIZERS), ("attention", ("sdpa", "eager"))):
        if assumptions[name] not in known:
            raise ValueError(f"{name}={assumptions[name]!r} must be one of {', '.join(known)}")


# ---- tensors ----------------------------------------------------------------------------------------------------------


class _Tensor(NamedTuple):
    """`number` parameters of one shape; `multiplies` names the tokens, "source" or "target", whose states pass through them, and
    `times` how often each token does."""

    part: str
    shape: tuple[int, ...]
    number: int = 1
    multiplies: str = ""
    trainable: bool = True
    times: int = 1

    @property
    def size(self) -> int:
        return self.number * prod(self.shape)


class _Presence(NamedTuple):
    """Which layers a model has: each is 1 or 0."""

    encoder: int
    decoder: int
    cross_attention: int
    stem: int

    @classmethod
    def of(cls, tensors: list[_Tensor]) -> "_Presence":
        sizes = dict.fromkeys(cls._fields, 0)
        for tensor in tensors:
            if tensor.part in sizes:
                sizes[tensor.part] += tensor.size
        return cls(**{part: int(size > 0) for part, size in sizes.items()})


class _Stack(NamedTuple):
    """The sizes of the encoder or the decoder."""

    layers: int
    max_positions: int
    d_model: int
    d_ff: int
    heads: int
    query_width: int
    """Width of all query heads together."""
    key_width: int
    """Width of all key heads together."""
    value_width: int
    """Width of all value heads together."""
    output_width: int
    """Width of what all query heads return together: one value head's width each."""

    @classmethod
    def of(cls, config: TransductConfig, side: str) -> "_Stack":
        encoder = side == "encoder"
        heads = config.num_heads if encoder else config.resolved_decoder_num_heads
        groups = config.num_key_value_heads or heads
        width = config.d_kv or config.d_model // heads
        value_width = config.d_value or width
        return cls(
            layers=config.encoder_layers if encoder else config.decoder_layers,
            max_positions=config.max_positions if encoder else config.resolved_decoder_max_positions,
            d_model=config.d_model,
            d_ff=config.d_ff if encoder else config.resolved_decoder_d_ff,
            heads=heads,
            query_width=heads * width,
            key_width=groups * width,
            value_width=groups * value_width,
            output_width=heads * value_width,
        )


def _inventory(config_or_model: Any) -> tuple[TransductConfig, list[_Tensor], int]:
    """The config, all parameters, and the multiply-adds of the output projection."""
    is_model = isinstance(config_or_model, nn.Module)
    config: Any = getattr(config_or_model, "config", None) if is_model else config_or_model
    kind = getattr(config, "model_type", None)
    if kind != "transduct":
        found = f"{type(config_or_model).__name__} with model_type={kind!r}" if kind else repr(config_or_model)[:80]
        raise ValueError(
            f"config_or_model={found} must be a TransductConfig or one of its models; config_from_preset gives a config"
        )
    if is_model:
        head = config_or_model.get_output_embeddings()
        return config, list(_model_tensors(config_or_model)), 0 if head is None else head.weight.numel()
    if not config.is_encoder_decoder:
        raise ValueError("config_or_model is the config of an encoder-only or decoder-only model: pass the model instead")
    return config, list(_encoder_decoder_tensors(config)), config.d_model * config.resolved_decoder_vocab_size


def _encoder_decoder_tensors(config: TransductConfig) -> Iterator[_Tensor]:
    """All parameters of `TransductForConditionalGeneration`."""
    source, target = _Stack.of(config, "encoder"), _Stack.of(config, "decoder")
    yield from _embeddings(config)
    yield from _stem(config)
    yield from _positions(config, source, not config.freeze_encoder_positions)
    yield from _positions(config, target)
    yield from _attention(config, source, "encoder", "source", "source")
    yield from _feed_forward(config, source, "encoder", "source")
    yield from _attention(config, target, "decoder", "target", "target")
    yield from _attention(config, target, "cross_attention", "target", "source")
    yield from _feed_forward(config, target, "decoder", "target")
    yield from _norms(config, _norm_count(config, source, 2) + _norm_count(config, target, 3))


def _embeddings(config: TransductConfig) -> Iterator[_Tensor]:
    source, target = (config.vocab_size, config.d_model), (config.resolved_decoder_vocab_size, config.d_model)
    yield _Tensor("embeddings", source)  # the target's, where the source is features
    if config.tie_embeddings in ("target_output", "none") and config.encoder_input == "tokens":
        yield _Tensor("embeddings", target)
    if config.tie_embeddings in ("source_target", "none"):
        yield _Tensor("output", target)
    if config.logits_bias:
        yield _Tensor("output", target[:1])


def _stem(config: TransductConfig) -> Iterator[_Tensor]:
    if config.feature_size is None:
        return
    shape, conv = (config.d_model, config.feature_size), config.feature_stem == "conv"
    if conv:
        yield _Tensor("stem", (*shape, KERNEL), 1, "source", times=ConvStem.stride)  # at every frame
        shape = config.d_model, config.d_model
    yield _Tensor("stem", (*shape, KERNEL) if conv else shape, 1, "source")
    yield _Tensor("stem", shape[:1], 1 + conv)  # biases


def _positions(config: TransductConfig, stack: _Stack, trainable: bool = True) -> Iterator[_Tensor]:
    if config.positions == "learned":
        yield _Tensor("positions", (stack.max_positions + config.position_offset, stack.d_model), trainable=trainable)
    if config.positions == "relative_bias":
        yield _Tensor("positions", (config.relative_buckets, stack.heads), stack.layers if config.relative_bias_per_layer else 1)


def _attention(config: TransductConfig, stack: _Stack, part: str, queries: str, keys: str) -> Iterator[_Tensor]:
    yield _Tensor(part, (stack.query_width, stack.d_model), stack.layers, queries)  # q_proj
    yield _Tensor(part, (stack.key_width, stack.d_model), stack.layers, keys)  # k_proj
    yield _Tensor(part, (stack.value_width, stack.d_model), stack.layers, keys)  # v_proj
    yield _Tensor(part, (stack.d_model, stack.output_width), stack.layers, queries)  # o_proj
    if config.attention_bias:
        yield _Tensor("biases", (stack.query_width,), stack.layers)
        yield _Tensor("biases", (stack.key_width,), stack.layers if config.key_bias else 0)
        yield _Tensor("biases", (stack.value_width,), stack.layers)
        yield _Tensor("biases", (stack.d_model,), stack.layers)


def _feed_forward(config: TransductConfig, stack: _Stack, part: str, tokens: str) -> Iterator[_Tensor]:
    inward = stack.layers * (2 if config.gated_ffn else 1)
    yield _Tensor(part, (stack.d_ff, stack.d_model), inward, tokens)  # up_proj, gate_proj
    yield _Tensor(part, (stack.d_model, stack.d_ff), stack.layers, tokens)  # down_proj
    if config.ffn_bias:
        yield _Tensor("biases", (stack.d_ff,), inward)
        yield _Tensor("biases", (stack.d_model,), stack.layers)


def _norm_count(config: TransductConfig, stack: _Stack, sublayers: int) -> int:
    return sublayers * stack.layers + config.embedding_norm + config.resolved_final_norm


def _norms(config: TransductConfig, count: int) -> Iterator[_Tensor]:
    with_bias = config.norm == "layernorm" and config.norm_bias
    yield _Tensor("norms", (config.d_model,), count * (2 if with_bias else 1))


def _model_tensors(model: nn.Module) -> Iterator[_Tensor]:
    """All parameters of a built model, sorted by name; tied ones come once."""
    for name, parameter in model.named_parameters():
        part = _part_of(name)
        multiplies = ""
        if part == "stem":
            multiplies = "source" if parameter.ndim > 1 else ""
        elif part in ("encoder", "decoder", "cross_attention"):
            from_source = part == "encoder" or (part == "cross_attention" and ("k_proj" in name or "v_proj" in name))
            multiplies = "source" if from_source else "target"
        times = ConvStem.stride if name.endswith("stem.conv1.weight") else 1
        yield _Tensor(part, tuple(parameter.shape), 1, multiplies, parameter.requires_grad, times)


def _part_of(name: str) -> str:
    if "embed_tokens" in name:
        return "embeddings"
    if ".stem." in f".{name}":
        return "stem"
    if "embed_positions" in name or "position_bias" in name:
        return "positions"
    if "norm." in name:
        return "norms"
    if ".layers." not in name:
        return "output"
    if name.endswith(".bias"):
        return "biases"
    if ".cross_attention." in name:
        return "cross_attention"
    return "encoder" if "encoder.layers." in name else "decoder"


# ---- memory -----------------------------------------------------------------------------------------------------------


def _optimizer_values(tensor: _Tensor, optimizer: str) -> int:
    """How many numbers the optimizer keeps for these parameters."""
    if optimizer == "adafactor":  # rows and columns of squared gradients (arXiv 1804.04235, section 3)
        vector = len(tensor.shape) < 2
        return tensor.size if vector else tensor.number * prod(tensor.shape[:-2]) * sum(tensor.shape[-2:])
    return {"adamw": 2, "momentum": 1, "sgd": 0}[optimizer] * tensor.size


def _activation_bytes(config: TransductConfig, has: _Presence, size: int, output: int, given: dict[str, Any]) -> dict[str, int]:
    """Bytes that the backward pass needs, if every position of the batch is a real token.

    Counted once each: every matrix's input, every norm's input (an RMSNorm keeps the normalised states too), queries, keys,
    values and output of attention, the feed-forward's hidden layer before and after its activation, a byte an element for
    each dropout mask, and with eager attention the weights. A position bias counts (B, H, T, S) a stack: without any padding
    it is B times smaller. The loss keeps the gradients of the states and of the output matrix, and works on one chunk of
    logits. Not counted: what the backward pass allocates on its way, what the allocator reserves, and the ids.

    These are a GPU's kernels. On a CPU, a dropout mask takes as much as what it masks, and attention with dropout, with a
    trainable position bias or with values of another width than keys keeps its weights as eager attention does.
    """
    sources, targets = given["batch_size"] * given["source_length"], given["batch_size"] * given["target_length"]
    bytes_by_part = {"encoder": 0, "decoder": 0, "loss": 0}
    for part, queries, sublayers in (("encoder", sources, 2), ("decoder", targets, 2 + has.cross_attention)):
        if not getattr(has, part):
            continue
        stack = _Stack.of(config, part)
        length = given[f"{'source' if part == 'encoder' else 'target'}_length"]
        layer = _attention_bytes(config, stack, queries, queries, length, size, given["attention"])
        if sublayers == 3:
            layer += _attention_bytes(config, stack, queries, sources, given["source_length"], size, given["attention"])
        layer += queries * _feed_forward_bytes(config, stack, size)
        layer += sublayers * queries * stack.d_model * (size * (1 + _norm_copies(config)) + _mask(config.dropout))
        kept = stack.layers * layer
        if given["gradient_checkpointing"]:
            kept = layer + stack.layers * queries * stack.d_model * size
        bytes_by_part[part] = kept + _ends_bytes(config, stack, queries, length, size)
    if has.stem:
        bytes_by_part["encoder"] += sources * _stem_bytes(config, size)
    if output:
        chunk = min(CHUNK_TOKENS, targets)
        precise = max(size, _BYTES["float32"])
        bytes_by_part["loss"] = targets * config.d_model * size + output * precise + chunk * output // config.d_model * precise
    return bytes_by_part


def _mask(probability: float) -> int:
    """Bytes an element of a dropout mask."""
    return int(probability > 0)


def _norm_copies(config: TransductConfig) -> int:
    """Tensors of the states' size that a norm keeps: its input, and for an RMSNorm the states before they meet the weight."""
    return 2 if config.norm == "rmsnorm" else 1


def _attention_bytes(
    config: TransductConfig, stack: _Stack, queries: int, keys: int, key_length: int, size: int, attention: str
) -> int:
    kept = queries * (stack.query_width + stack.output_width) * size
    if attention == "sdpa":
        kept += keys * (stack.key_width + stack.value_width) * size
    else:
        kept += keys * (stack.query_width + stack.output_width) * size  # keys and values repeated for each query head
        copies = 3 if config.attention_dropout > 0 else 2  # softmax, its rows without keys zeroed, and what dropout leaves
        kept += queries * key_length * stack.heads * (copies * size + _mask(config.attention_dropout))
    return kept


def _feed_forward_bytes(config: TransductConfig, stack: _Stack, size: int) -> int:
    """A token's hidden layer."""
    activated = _activated(config.activation)
    tensors = activated + 2 if config.gated_ffn else activated
    dropped = config.activation_dropout > 0
    if dropped and not config.gated_ffn and config.activation == "relu":
        tensors += 1
    return stack.d_ff * (tensors * size + _mask(config.activation_dropout))


def _activated(activation: str) -> int:
    """Tensors kept around an activation, its output included, which the next product keeps.

    ReLU's output serves its own backward pass, others keep their input. T5's "gelu_new" is written out in transformers, and keeps
    three steps on its way as well.
    """
    return {"relu": 1, "gelu_new": 5}.get(activation, 2)


def _stem_bytes(config: TransductConfig, size: int) -> int:
    """Of one state: the frames it comes from, and around the activations of a convolutional stem."""
    assert config.feature_size is not None
    if config.feature_stem == "linear":
        return config.feature_size * size
    activated = _activated(config.feature_activation)
    hidden = ConvStem.stride * activated + max(activated - 1, 1)  # the last output is kept as a layer's input, if at all
    return (ConvStem.stride * config.feature_size + hidden * config.d_model) * size


def _ends_bytes(config: TransductConfig, stack: _Stack, tokens: int, length: int, size: int) -> int:
    """Outside the layers: the output, the norms at both ends, two dropout masks, the position bias."""
    norms = int(config.embedding_norm) + int(config.resolved_final_norm)
    masks = _mask(config.dropout) * (1 + config.final_dropout)
    states = tokens * stack.d_model * ((1 + norms * _norm_copies(config)) * size + masks)
    biased = config.positions in ("relative_bias", "alibi")
    tables = stack.layers if config.relative_bias_per_layer else 1
    return states + (tokens * length * stack.heads * size * tables if biased else 0)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"

"""The papers' equations in NumPy, written without a look at the modules, so that two independent readings must agree.

- Attention, masks, positions, norms, feed-forward, encoder and decoder, layer and stack: Vaswani et al. 2017 (arXiv 1706.03762),
  T5 (1910.10683), RMSNorm (1910.07467), gated units (2002.05202), rotary positions (2104.09864), ALiBi (2108.12409),
  grouped heads (2305.13245).
- The smoothed loss with z-loss and its gradient by formula; length penalties; exhaustive search over a tiny vocabulary.

Everything is float64 and slow on purpose: loops and scalars where they stand closer to the paper. Weights come as a dict from
the parameter's name to an array; matrices are (out, in). Shapes: B batch, T queries, S keys, D width, H heads, K head width,
F feed-forward width, V vocabulary. Boolean masks are True where attention is allowed.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]


# ---- masks ----------------------------------------------------------------------------------------------------------------
def causal_mask(length: int) -> Array:
    """Query t sees keys 0..t (Vaswani et al., section 3.2.3) -> (T, T)."""
    return np.array([[key <= query for key in range(length)] for query in range(length)], dtype=bool)


def padding_mask(lengths: list[int], total: int, side: Literal["right", "left"] = "right") -> Array:
    """Real tokens of rows that are padded on one side to `total` -> (B, S)."""
    rows = []
    for length in lengths:
        real, pad = [True] * length, [False] * (total - length)
        rows.append(real + pad if side == "right" else pad + real)
    return np.array(rows, dtype=bool)


# ---- attention ------------------------------------------------------------------------------------------------------------
def softmax(scores: Array) -> Array:
    """Over the last axis. A row of nothing but -inf gives zeros: a query that sees no key takes nothing."""
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total > 0, total, 1.0)


def dot_product_attention(query, key, value, mask=None, bias=None, scale: float | None = None) -> tuple[Array, Array]:
    """softmax(scale QK' + bias) V (Vaswani et al., equation 1); `scale` None means 1/sqrt(K), T5 uses 1.

    Args: query (..., T, K); key, value (..., S, K); mask and bias broadcast to (..., T, S).
    Returns: the output (..., T, K) and the weights (..., T, S).
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * (query @ key.swapaxes(-1, -2))  # (..., T, S)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ value, weights


def linear(x: Array, weights: Weights, name: str) -> Array:
    """x W' + b, with b only where there is one."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def multi_head_attention(
    x, memory, weights: Weights, heads: int, key_value_heads: int | None = None, *, mask=None, bias=None, scale=None, rotary=None
) -> tuple[Array, Array]:
    """Concat(head_1 .. head_H) W^O (Vaswani et al., section 3.2.2); self-attention where `memory` is `x`.

    Args: x (B, T, D), memory (B, S, D), weights of q_proj, k_proj, v_proj, o_proj; head h uses key/value head h // (H / G)
        of G = `key_value_heads`; mask (B, T, S) or (T, S); bias (H, T, S); rotary: base, or None for no rotation.
    Returns: the output (B, T, D) and the weights (B, H, T, S).
    """
    group = heads // (key_value_heads or heads)
    queries, keys, values = linear(x, weights, "q_proj"), linear(memory, weights, "k_proj"), linear(memory, weights, "v_proj")
    width, value_width = queries.shape[-1] // heads, weights["o_proj.weight"].shape[1] // heads
    outputs, all_weights = [], []
    for head in range(heads):
        query = queries[..., head * width : (head + 1) * width]  # (B, T, K)
        shared = head // group
        key = keys[..., shared * width : (shared + 1) * width]  # (B, S, K)
        value = values[..., shared * value_width : (shared + 1) * value_width]  # (B, S, V)
        if rotary is not None:
            query, key = rotate(query, np.arange(query.shape[1]), rotary), rotate(key, np.arange(key.shape[1]), rotary)
        output, head_weights = dot_product_attention(query, key, value, mask, None if bias is None else bias[head], scale)
        outputs.append(output)
        all_weights.append(head_weights)
    return linear(np.concatenate(outputs, -1), weights, "o_proj"), np.stack(all_weights, 1)


# ---- positions ------------------------------------------------------------------------------------------------------------
def sinusoids(positions, width: int, layout: Literal["interleaved", "halves"] = "interleaved") -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos (section 3.5); "halves": all sines first -> (T, D)."""
    table = np.zeros((len(positions), width))
    for row, position in enumerate(positions):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, width // 2 + i)
            table[row, sine], table[row, cosine] = math.sin(angle), math.cos(angle)
    return table


def relative_bucket(distance: int, bidirectional: bool, buckets: int = 32, max_distance: int = 128) -> int:
    """The bucket of `distance` = key position - query position (T5, section 2.1).

    Half of a direction's buckets hold one distance each, the other half grow logarithmically up to `max_distance`, and
    everything beyond falls in the last. Bidirectional: the upper half of all buckets is for keys to the right; causal:
    keys to the right (which the mask hides) count as distance 0.
    """
    if bidirectional:
        own = buckets // 2
        first = own if distance > 0 else 0
        distance = abs(distance)
    else:
        own, first = buckets, 0
        distance = max(-distance, 0)
    exact = own // 2
    if distance < exact:
        return first + distance
    growth = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(growth * (own - exact)), own - 1)


def relative_bias(table, query_positions, key_positions, bidirectional: bool, max_distance: int = 128) -> Array:
    """T5's bias (H, T, S) from its table (buckets, H)."""
    bias = np.zeros((table.shape[1], len(query_positions), len(key_positions)))
    for t, query in enumerate(query_positions):
        for s, key in enumerate(key_positions):
            bias[:, t, s] = table[relative_bucket(int(key) - int(query), bidirectional, table.shape[0], max_distance)]
    return bias


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... (Press et al., section 3). Where n is no power of two, the authors' rule: the slopes of the power
    of two below, then every other slope of the power of two above."""
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2 ** (-8 * (i + 1) / (2 * below)) for i in range(0, 2 * below, 2)]
    return (slopes + between)[:heads]


def alibi_bias(heads: int, query_positions, key_positions) -> Array:
    """-slope x |query position - key position| (Press et al., section 3; its symmetric form for encoders) -> (H, T, S)."""
    distances = np.array([[abs(int(query) - int(key)) for key in key_positions] for query in query_positions], dtype=float)
    return np.stack([-slope * distances for slope in alibi_slopes(heads)])


def rotate(x: Array, positions, base: float = 10000.0) -> Array:
    """Rotary positions (Su et al., equation 34), the pairs being (x_i, x_{i+K/2}) as in Llama; x (..., T, K)."""
    half = x.shape[-1] // 2
    result = np.empty_like(x)
    for t, position in enumerate(positions):
        for i in range(half):
            angle = position * base ** (-2 * i / x.shape[-1])
            first, second = x[..., t, i], x[..., t, half + i]
            result[..., t, i] = first * math.cos(angle) - second * math.sin(angle)
            result[..., t, half + i] = second * math.cos(angle) + first * math.sin(angle)
    return result


# ---- norms and feed-forward -----------------------------------------------------------------------------------------------
def layer_norm(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps) * gain + bias (Ba et al., arXiv 1607.06450)."""
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gain
    return normed if bias is None else normed + bias


def rms_norm(x: Array, gain: Array, eps: float = 1e-6) -> Array:
    """x / sqrt(mean of squares + eps) * gain (Zhang and Sennrich, arXiv 1910.07467, equation 4)."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def feed_forward(x: Array, weights: Weights, activation: str = "relu") -> Array:
    """activation(x W1) W2 (Vaswani et al., equation 2), or (activation(x W) * x V) W2 where there is a gate (2002.05202)."""
    hidden = linear(x, weights, "up_proj")
    if "gate_proj.weight" in weights:
        hidden = ACTIVATIONS[activation](linear(x, weights, "gate_proj")) * hidden
    else:
        hidden = ACTIVATIONS[activation](hidden)
    return linear(hidden, weights, "down_proj")


# ---- layers ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LayerKind:
    """What tells the layers of Vaswani et al., T5 and BART apart. `scale` None: 1/sqrt(K); `rotary`: its base, or None."""

    heads: int
    key_value_heads: int | None = None
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_position: Literal["post", "pre"] = "post"
    eps: float = 1e-5
    activation: str = "relu"
    scale: float | None = None
    rotary: float | None = None


def part(weights: Weights, prefix: str) -> dict[str, Array]:
    """The weights below `prefix`, without it."""
    return {name.removeprefix(prefix + "."): array for name, array in weights.items() if name.startswith(prefix + ".")}


def residual(x: Array, sublayer: Callable[[Array], Array], weights: Weights, kind: LayerKind) -> Array:
    """norm(x + f(x)) (Vaswani et al., section 3.1), or x + f(norm(x)) (T5, section 2.1)."""

    def norm(y: Array) -> Array:
        if kind.norm == "rmsnorm":
            return rms_norm(y, weights["norm.weight"], kind.eps)
        return layer_norm(y, weights["norm.weight"], weights.get("norm.bias"), kind.eps)

    return norm(x + sublayer(x)) if kind.norm_position == "post" else x + sublayer(norm(x))


def self_attention(x: Array, weights: Weights, kind: LayerKind, mask, bias) -> Array:
    sizes = (kind.heads, kind.key_value_heads)
    return multi_head_attention(x, x, weights, *sizes, mask=mask, bias=bias, scale=kind.scale, rotary=kind.rotary)[0]


def encoder_layer(x: Array, weights: Weights, kind: LayerKind, mask=None, bias=None) -> Array:
    """Self-attention, feed-forward (Vaswani et al., section 3.1); x (B, S, D), mask (B, S, S) or (S, S), bias (H, S, S)."""

    def attend(y: Array) -> Array:
        return self_attention(y, part(weights, "self_attention"), kind, mask, bias)

    def feed(y: Array) -> Array:
        return feed_forward(y, part(weights, "feed_forward"), kind.activation)

    x = residual(x, attend, part(weights, "self_attention_residual"), kind)
    return residual(x, feed, part(weights, "feed_forward_residual"), kind)


def decoder_layer(x: Array, memory: Array, weights: Weights, kind: LayerKind, mask=None, cross_mask=None, bias=None) -> Array:
    """Masked self-attention, attention over the memory without positions, feed-forward (Vaswani et al., section 3.1).

    x (B, T, D), memory (B, S, D), mask (B, T, T) or (T, T), cross_mask (B, T, S), bias (H, T, T).
    """

    def attend(y: Array) -> Array:
        return self_attention(y, part(weights, "self_attention"), kind, mask, bias)

    def cross_attend(y: Array) -> Array:
        cross = part(weights, "cross_attention")
        return multi_head_attention(y, memory, cross, kind.heads, kind.key_value_heads, mask=cross_mask, scale=kind.scale)[0]

    def feed(y: Array) -> Array:
        return feed_forward(y, part(weights, "feed_forward"), kind.activation)

    x = residual(x, attend, part(weights, "self_attention_residual"), kind)
    x = residual(x, cross_attend, part(weights, "cross_attention_residual"), kind)
    return residual(x, feed, part(weights, "feed_forward_residual"), kind)


# ---- stacks ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class StackKind:
    """Layers and what surrounds them. `embed_scale`: factor on the embeddings; `offset`: first row of learned positions."""

    layer: LayerKind
    positions: Literal["sinusoidal", "learned", "relative_bias", "rotary", "alibi", "none"]
    embed_scale: float = 1.0
    offset: int = 0
    max_distance: int = 128


def stack_input(ids: list[int], weights: Weights, kind: StackKind) -> Array:
    """Scaled embeddings plus positions (Vaswani et al., sections 3.4 and 3.5), normalised where BART does -> (1, T, D)."""
    x = weights["embed_tokens.weight"][ids] * kind.embed_scale
    if kind.positions == "sinusoidal":
        x = x + sinusoids(range(len(ids)), x.shape[-1])
    if kind.positions == "learned":
        x = x + weights["embed_positions.weight"][kind.offset : kind.offset + len(ids)]
    if "embedding_norm.weight" in weights:
        x = layer_norm(x, weights["embedding_norm.weight"], weights.get("embedding_norm.bias"), kind.layer.eps)
    return x[None]


def stack_bias(length: int, weights: Weights, kind: StackKind, bidirectional: bool) -> Array | None:
    """What is added to the scores of self-attention in all layers of a stack (H, T, T)."""
    places = range(length)
    if kind.positions == "relative_bias":
        return relative_bias(weights["position_bias.table.weight"], places, places, bidirectional, kind.max_distance)
    return alibi_bias(kind.layer.heads, places, places) if kind.positions == "alibi" else None


def final_norm(x: Array, weights: Weights, kind: StackKind) -> Array:
    if "final_norm.weight" not in weights:
        return x
    if kind.layer.norm == "rmsnorm":
        return rms_norm(x, weights["final_norm.weight"], kind.layer.eps)
    return layer_norm(x, weights["final_norm.weight"], weights.get("final_norm.bias"), kind.layer.eps)


def encoder(ids: list[int], weights: Weights, kind: StackKind, layers: int) -> Array:
    """States of one source that stands alone, without padding -> (1, S, D)."""
    x, bias = stack_input(ids, weights, kind), stack_bias(len(ids), weights, kind, bidirectional=True)
    for n in range(layers):
        x = encoder_layer(x, part(weights, f"layers.{n}"), kind.layer, bias=bias)
    return final_norm(x, weights, kind)


def decoder(ids: list[int], memory: Array, weights: Weights, kind: StackKind, layers: int) -> Array:
    """States of one target that stands alone, without padding, over a memory (1, S, D) -> (1, T, D)."""
    x, bias = stack_input(ids, weights, kind), stack_bias(len(ids), weights, kind, bidirectional=False)
    for n in range(layers):
        x = decoder_layer(x, memory, part(weights, f"layers.{n}"), kind.layer, causal_mask(len(ids)), bias=bias)
    return final_norm(x, weights, kind)


# ---- loss -----------------------------------------------------------------------------------------------------------------
def smoothed_loss(
    logits: Array, labels: Array, label_smoothing: float = 0.0, z_loss: float = 0.0, count: float | None = None
) -> tuple[float, Array]:
    """The loss and its gradient with respect to the logits (section 5.4 of Vaswani et al.; z-loss as in T5X).

    For a target y the distribution is q = (1 - e) at y plus e/V everywhere; the loss of one target is
    -sum q log p + z (log Z)^2, and its gradient p - q + 2 z (log Z) p. Targets of -100 count for nothing.

    Args: logits (N, V); labels (N,); count: what the sum is divided by, None for the number of targets.
    """
    vocabulary = logits.shape[-1]
    total, gradient = 0.0, np.zeros_like(logits)
    real = [n for n, label in enumerate(labels) if label != -100]
    count = max(len(real), 1) if count is None else count
    for n in real:
        largest = logits[n].max()
        log_z = largest + math.log(np.exp(logits[n] - largest).sum())
        log_p = logits[n] - log_z
        q = np.full(vocabulary, label_smoothing / vocabulary)
        q[labels[n]] += 1 - label_smoothing
        total += float(-(q * log_p).sum() + z_loss * log_z**2)
        gradient[n] = np.exp(log_p) - q + 2 * z_loss * log_z * np.exp(log_p)
    return total / count, gradient / count


# ---- search ---------------------------------------------------------------------------------------------------------------
def power_penalty(length: int, alpha: float) -> float:
    """L^a: transformers, fairseq, Marian."""
    return length**alpha


def gnmt_penalty(length: int, alpha: float) -> float:
    """((5 + L) / 6)^a (Wu et al., arXiv 1609.08144, equation 14): Vaswani et al., T5X, OpenNMT."""
    return ((5 + length) / 6) ** alpha


def brute_force_search(
    log_probabilities: Callable[[tuple[int, ...]], Array],
    eos: int,
    vocabulary: int = 4,
    max_length: int = 4,
    penalty: Callable[[int], float] = lambda length: 1.0,
) -> list[tuple[float, tuple[int, ...]]]:
    """Every possible output with its score, best first: sum of log-probabilities / penalty(length).

    An output ends with `eos`, which counts as a token, or has `max_length` tokens. `log_probabilities(prefix)` gives the
    log-probability of each next token (V,) after the tokens generated so far.
    """
    outputs = []
    for length in range(1, max_length + 1):
        for tokens in itertools.product(range(vocabulary), repeat=length):
            ended = tokens[-1] == eos
            if eos in tokens[:-1] or not (ended or length == max_length):
                continue
            score = sum(float(log_probabilities(tokens[:i])[token]) for i, token in enumerate(tokens))
            outputs.append((score / penalty(length), tokens))
    return sorted(outputs, reverse=True)

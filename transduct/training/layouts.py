"""How much of one device's memory a training run takes, by the way it is spread over the devices.

With P parameters, of which T are trained, on N devices (ZeRO: Rajbhandari et al. 2020, arXiv 1910.02054, sections 3.1 and 5):

| layout | parameters | gradients | optimizer | working memory |
|---|---|---|---|---|
| `ddp` | P | T, in DDP's buckets (its documentation, `gradient_as_bucket_view`) | state | the half-precision copies |
| `zero1` | P | T | state / N | one bucket |
| `zero2` | P | T / N | state / N | one bucket |
| `fsdp` (= ZeRO-3) | P / N | T / N | state / N | what is gathered: everything outside the layers, and two layers |

Bytes: in float32 each is 4. In mixed precision
- `ddp` and `fsdp` keep float32 parameters, gradients and state; autocast makes a half-precision copy of each matrix that it
  uses (2 bytes, kept for the backward pass), `fsdp` gathers in half precision;
- DeepSpeed's layouts keep half-precision parameters and gradients (2 + 2), and float32 master weights beside the state.

Activations are those of `transduct.describe`. Autocast keeps more than pure half precision: the inputs of norms in float32, and
a copy of a matrix product's input for each product that takes it (`autocast_extra_bytes`).

Not counted: the memory of CUDA itself, the allocator's unused pieces, and kernels' workspaces; a plan sets a share aside.
"""

from dataclasses import asdict, dataclass
from typing import Any

from transduct.accounting import describe

BUCKET_VALUES = 500_000_000
"""DeepSpeed's default `reduce_bucket_size`; a smaller model fills less."""
LAYOUTS = ("ddp", "zero1", "zero2", "fsdp")


@dataclass(frozen=True)
class LayoutMemory:
    """Bytes on one device, and whether they fit."""

    layout: str
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    available: int | None = None
    """Bytes that the device offers; None: not asked."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.working

    @property
    def spare(self) -> int | None:
        """Bytes left over; negative: bytes that are missing."""
        return None if self.available is None else self.available - self.total

    @property
    def fits(self) -> bool | None:
        return None if self.spare is None else self.spare >= 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total, "spare": self.spare, "fits": self.fits}


@dataclass(frozen=True)
class Needs:
    """What a run keeps, whatever the layout: numbers of parameters, and bytes."""

    parameters: int
    trained: int
    matrices: int
    """Of the layers and of an untied head: what autocast copies."""
    outside_layers: int
    """Embeddings, positions and head: FSDP's root unit, gathered for the whole step."""
    largest_layer: int
    optimizer: int
    """Bytes of float32 state."""
    activations: int
    """Bytes in the precision that is computed in."""
    autocast_extra: int
    """Bytes; see `autocast_extra_bytes`. 0 without mixed precision."""
    averages: int
    """Bytes of averaged weights (EMA)."""
    half: bool
    """Mixed precision: bfloat16 or float16."""


def needs(
    config_or_model: Any, batch: tuple[int, int, int], optimizer: str, half: str | None, checkpointing: bool, averages: int = 0
) -> Needs:
    """Counts what a model needs for one batch on one device; nothing is built.

    Args:
        config_or_model: as for `transduct.describe`.
        batch: sequence pairs, source tokens and target tokens of each.
        optimizer: as for `transduct.describe`.
        half: "bfloat16" or "float16" for mixed precision; None: float32.
        checkpointing: gradient checkpointing.
        averages: float32 copies of the weights that are kept as their averages.
    """
    rows, source, target = batch
    given: dict[str, Any] = dict(batch_size=rows, source_length=source, target_length=target, optimizer=optimizer)
    single = describe(config_or_model, **given, gradient_checkpointing=checkpointing)
    computed = describe(config_or_model, **given, gradient_checkpointing=checkpointing, dtype=half) if half else single
    config = getattr(config_or_model, "config", config_or_model)
    parts = single.parameters_by_part
    encoder_layer = parts["encoder"] // max(config.encoder_layers, 1)
    decoder_layer = (parts["decoder"] + parts["cross_attention"]) // max(config.decoder_layers, 1)
    return Needs(
        parameters=single.parameters,
        trained=single.gradient_bytes // 4,
        matrices=sum(parts[part] for part in ("stem", "encoder", "decoder", "cross_attention", "output")),
        outside_layers=sum(parts[part] for part in ("embeddings", "stem", "positions", "output")),
        largest_layer=max(encoder_layer, decoder_layer),
        optimizer=single.optimizer_bytes,
        activations=computed.activation_bytes,
        autocast_extra=autocast_extra_bytes(config, _present(parts, rows, source, target), checkpointing) if half else 0,
        averages=averages * 4 * single.parameters,
        half=half is not None,
    )


def layout_memory(layout: str, need: Needs, devices: int, available: int | None = None) -> LayoutMemory:
    """The memory of one device under one of `LAYOUTS`.

    Args:
        devices: how many share the work.
        available: bytes of one device that the run may use, or None.
    """
    width = 2 if need.half else 4
    activations = need.activations
    if layout == "ddp":
        working = (2 * need.matrices if need.half else 0) + need.averages
        sizes = (4 * need.parameters, 4 * need.trained, need.optimizer, activations + need.autocast_extra, working)
    elif layout in ("zero1", "zero2"):
        state = need.optimizer + (4 * need.trained if need.half else 0)
        gradients = width * need.trained
        if layout == "zero2":
            gradients = _share(gradients, devices)
        working = width * min(BUCKET_VALUES, need.trained) + need.averages
        sizes = (width * need.parameters, gradients, _share(state, devices), activations, working)
    elif layout == "fsdp":
        shares = (_share(4 * need.parameters, devices), _share(4 * need.trained, devices), _share(need.optimizer, devices))
        gathered = 2 * width * (need.outside_layers + 2 * need.largest_layer)  # weights, and gradients on their way
        sizes = (*shares, activations + need.autocast_extra, gathered + _share(need.averages, devices))
    else:
        raise ValueError(f"layout={layout!r} must be one of {', '.join(LAYOUTS)}")
    return LayoutMemory(layout, *sizes, available)


def autocast_extra_bytes(config: Any, tokens: tuple[int, int], checkpointing: bool) -> int:
    """Activations that autocast keeps beyond those of pure half precision.

    The states between sublayers stay float32, so a norm keeps 2 bytes more a value. Queries, keys and values are three products
    of one input, each of which keeps a half-precision copy of it; a gated feed-forward's two products likewise. Each decoder
    layer keeps two copies of the encoder's output, for keys and values.

    Args:
        tokens: source and target tokens of a batch; 0 for a side that the model does not have.
    """
    norms = 2 * (2 if config.norm == "rmsnorm" else 1)  # bytes a value
    products = 2 * 2 + (2 if config.gated_ffn else 0)
    ends = norms * (int(config.embedding_norm) + int(config.resolved_final_norm))
    sources, targets = tokens
    sides = (
        (sources, config.encoder_layers, 2, 0),
        (targets, config.decoder_layers, 3 if sources else 2, 4 * sources),
    )
    total = 0
    for count, layers, sublayers, memory in sides:
        if count == 0:
            continue
        layer = count * (sublayers * norms + products) + memory
        kept = layer + layers * 2 * count if checkpointing and layers else layers * layer
        total += kept + ends * count
    return total * config.d_model


def _present(parts: dict[str, int], rows: int, source: int, target: int) -> tuple[int, int]:
    """Tokens of the sides that a model has."""
    return (rows * source if parts["encoder"] else 0, rows * target if parts["decoder"] else 0)


def _share(count: int, devices: int) -> int:
    """The largest share of one of several devices."""
    return -(-count // devices)

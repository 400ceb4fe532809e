"""The decoder's side of a search: what each step asks of a model, for ours and for any other encoder-decoder.

Shapes: `B` sources still searched, `N` candidates a source, `T` tokens so far, `V` vocabulary, `S` source length.

- The candidates of a source lie in consecutive rows. Our own models keep its encoder states and cross-attention once (see
  `cache.py`); others repeat them for each row.
- A source that is done leaves at once: the last one takes its place, so one source's rows are copied and no others.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import ModelOutput

from transduct.cache import PreallocatedLayer, reorder_beams
from transduct.decoding.coverage import Coverage
from transduct.decoding.source_error import SourceError
from transduct.generation import SOURCE_ARGUMENTS, TransductGenerationMixin


class Rows:
    """Candidates (B*N, T) that a model continues step by step.

    Args:
        model: any model with `GenerationMixin`.
        ids: the decoder's inputs (B*N, T).
        candidates: N.
        arguments: what `generate` made for the model: encoder states, masks, a cache.
    """

    def __init__(self, model: Any, ids: torch.Tensor, candidates: int, generation_config: Any, arguments: dict[str, Any]):
        self.model = model
        self.ids = ids
        self.candidates = candidates
        self.generation_config = generation_config
        self.arguments = arguments
        self.shares_sources = isinstance(model, TransductGenerationMixin) and model.config.is_encoder_decoder
        self.outputs: ModelOutput | None = None
        self.coverage: Coverage | None = None

    @property
    def sources(self) -> int:
        """B, those that are still searched."""
        return self.ids.shape[0] // self.candidates

    @property
    def vocabulary(self) -> int:
        """V, the target's tokens."""
        return self.model.get_output_embeddings().weight.shape[0]

    def logits(self) -> torch.Tensor:
        """Float32 logits (B*N, V) of the next token of each row. The rows' last tokens must have been appended.

        Raises:
            ValueError: for first logits that are no numbers.
        """
        if self.outputs is None:
            self.outputs = self.model._prefill(self.ids, self.generation_config, self.arguments)
            self.check_numbers(self.outputs.logits[:, -1])
        else:
            new = 1 if self.arguments.get("use_cache", True) else None
            inputs = self.model.prepare_inputs_for_generation(self.ids, next_sequence_length=new, **self.arguments)
            self.outputs = self.model(**inputs, return_dict=True)
        encoder_decoder = self.model.config.is_encoder_decoder
        self.arguments = self.model._update_model_kwargs_for_generation(self.outputs, self.arguments, encoder_decoder)
        if self.coverage is not None:
            self.coverage.add(self.outputs.cross_attentions)
        return self.outputs.logits[:, -1].float()  # (B*N, V)

    def check_numbers(self, logits: torch.Tensor) -> None:
        """Raises ValueError for a source with logits (B*N, V) that are no numbers, as overflows of float16 leave them."""
        wrong = logits.isnan().any(1).nonzero().flatten().tolist()
        if wrong:
            dtype = str(logits.dtype).removeprefix("torch.")
            raise SourceError(
                wrong[0] // self.candidates,
                f"has logits that are no numbers (NaN) in {dtype}: if that is float16, load the model in float32 or bfloat16; "
                "else look for weights that are not finite",
            )

    def append(self, tokens: torch.Tensor, origins: torch.Tensor | None = None) -> None:
        """Continue each row by its token (B*N); `origins` (B*N) says which old row it continues, None: its own."""
        if origins is not None:
            self.ids = self.ids[origins]
            self._reorder(origins)
            if self.coverage is not None:
                self.coverage.select(origins)
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)  # (B*N, T + 1)

    def _reorder(self, origins: Any) -> None:
        cache = self.arguments.get("cache")
        if cache is None:
            return
        if hasattr(self.model, "_reorder_cache"):
            self.arguments["cache"] = self.model._reorder_cache(cache, origins)
        elif isinstance(cache, EncoderDecoderCache):  # a beam never leaves its source
            reorder_beams(cache.self_attention_cache, origins)
        else:
            cache.reorder_cache(origins)

    @property
    def tells_attention(self) -> bool:
        """Whether each step tells where in the source the model looks."""
        return self.model.config.is_encoder_decoder

    @property
    def can_leave(self) -> bool:
        """Whether rows can be removed from the cache: not from one of a fixed size."""
        cache = self.arguments.get("cache")
        parts = (cache.self_attention_cache, cache.cross_attention_cache) if isinstance(cache, EncoderDecoderCache) else (cache,)
        return all(
            type(layer) in (PreallocatedLayer, DynamicLayer) for part in parts if part is not None for layer in part.layers
        )

    def compact(self, stays: torch.Tensor) -> torch.Tensor:
        """Go on with the sources that `stays` (B) names; the last ones fill the gaps. Returns their new order (B')."""
        count = int(stays.sum())
        order = torch.arange(count, device=stays.device)
        order[~stays[:count]] = stays[count:].nonzero().squeeze(1) + count
        self.keep(order)
        return order

    def keep(self, order: torch.Tensor) -> None:
        """Go on with the sources `order` (B' of B) alone, in that order; those that were among the first B' keep their place."""
        rows = (order[:, None] * self.candidates + torch.arange(self.candidates, device=order.device)).flatten()  # (B'*N)
        before = self.ids.shape[0]
        self.ids = self.ids[rows]
        if self.coverage is not None:
            self.coverage.select(rows)
        for name, value in self.arguments.items():
            if name == "cache":
                keep_in_cache(value, rows, order if self.shares_sources else rows)
            elif self.shares_sources and name in SOURCE_ARGUMENTS:
                self.arguments[name] = _select(value, order, before // self.candidates)
            else:
                self.arguments[name] = _select(value, rows, before)


def _select(value: Any, rows: torch.Tensor, before: int) -> Any:
    """`rows` of every tensor in `value` that has `before` of them."""
    if isinstance(value, torch.Tensor):
        return value[rows.to(value.device)] if value.ndim and value.shape[0] == before else value
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _select(part, rows, before) for name, part in value.items()})
    if isinstance(value, (tuple, list)):
        return type(value)(_select(part, rows, before) for part in value)
    return value


def keep_in_cache(cache: Cache | None, rows: torch.Tensor, cross_rows: torch.Tensor) -> None:
    """Keep `rows` of a self-attention cache, and `cross_rows` of the cross-attention's."""
    if cache is None:
        return
    if isinstance(cache, EncoderDecoderCache):
        keep_in_cache(cache.self_attention_cache, rows, rows)
        keep_in_cache(cache.cross_attention_cache, cross_rows, cross_rows)
        return
    positions = getattr(cache, "key_positions", None)
    if positions is not None:
        cache.key_positions = positions[rows.to(positions.device)]
    for layer in cache.layers:
        keep_in_layer(layer, rows)


def keep_in_layer(layer: Any, rows: torch.Tensor) -> None:
    """Keep `rows` of one layer's keys and values in place, moving only those whose place changes."""
    if layer.get_seq_length() == 0:
        return
    rows = rows.to(layer.keys.device)
    moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
    for view in (layer.keys, layer.values):  # of a preallocated layer, views into its buffers
        view[moved] = view[rows[moved]]
    if isinstance(layer, PreallocatedLayer):
        layer.drop_rows(len(rows))
    else:
        layer.keys, layer.values = layer.keys[: len(rows)], layer.values[: len(rows)]

"""Key/value caches in which the beams of a source share its keys and values.

- Self-attention: `PreallocatedLayer` writes each step in place into a buffer that doubles when full, and re-orders only rows
  whose beam really moved.
- Cross-attention: one row a *source*, written once, never repeated per beam and never re-ordered, since beams move only within
  their source.

Any other cache of transformers (dynamic, static, offloaded) serves as the self-attention part as well.
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one self-attention layer: `keys` and `values` are views (B*N, H, length, K) of larger buffers."""

    is_sliding = False
    is_croppable = True
    first_capacity = 64
    keys: torch.Tensor
    values: torch.Tensor

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self._length = 0
        self._reserve(key_states, value_states, max(self.first_capacity, 2 * key_states.shape[2]))
        self.is_initialized = True

    def _reserve(self, key_states: torch.Tensor, value_states: torch.Tensor, capacity: int) -> None:
        rows, heads, _, width = key_states.shape
        buffers = (
            key_states.new_empty(rows, heads, capacity, width),
            value_states.new_empty(*value_states.shape[:2], capacity, value_states.shape[3]),
        )
        if self._length:
            for new, old in zip(buffers, (self.keys, self.values), strict=True):
                new[:, :, : self._length] = old
        self._key_buffer, self._value_buffer = buffers

    def _show(self, length: int) -> None:
        self._length = length
        self.keys = self._key_buffer[:, :, :length]  # (B*N, H, length, K)
        self.values = self._value_buffer[:, :, :length]  # (B*N, H, length, K)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values (B*N, H, T, K) of T new tokens; return all that are stored."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self._length, self._length + key_states.shape[2]
        if torch.is_grad_enabled():
            self._append_for_autograd(key_states, value_states)
            return self.keys, self.values
        if end > self._key_buffer.shape[2]:
            self._reserve(key_states, value_states, 2 * end)
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self._show(end)
        return self.keys, self.values

    def _append_for_autograd(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """A new buffer each time: writing in place would change what an earlier step saved for its backward pass."""
        past_keys, past_values = self._key_buffer[:, :, : self._length], self._value_buffer[:, :, : self._length]
        self._key_buffer = torch.cat([past_keys, key_states], dim=2)
        self._value_buffer = torch.cat([past_values, value_states], dim=2)
        self._show(self._key_buffer.shape[2])

    def get_seq_length(self) -> int:
        return self._length if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        super().__init__()  # no keys and values, as before the first token

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` tokens (a negative number, as in transformers)."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove={tokens_to_remove} must be negative: the number of tokens to remove")
        if self.is_initialized:
            self._show(max(self._length + tokens_to_remove, 0))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Row i becomes the old row `beam_idx[i]`."""
        self.move_rows(torch.arange(len(beam_idx), device=beam_idx.device), beam_idx)

    def move_rows(self, rows: torch.Tensor, sources: torch.Tensor) -> None:
        """Overwrite `rows` with copies of the old `sources`, in place."""
        if self.get_seq_length() == 0:
            return
        rows, sources = rows.to(self.device), sources.to(self.device)
        for view in (self.keys, self.values):
            view.index_copy_(0, rows, view.index_select(0, sources))

    def drop_rows(self, kept: int) -> None:
        """Forget all rows but the first `kept`, without copying."""
        self._key_buffer, self._value_buffer = self._key_buffer[:kept], self._value_buffer[:kept]
        self._show(self._length)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._replace_rows(lambda states: states.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._replace_rows(lambda states: states[indices])

    def _replace_rows(self, change) -> None:
        if self.get_seq_length() > 0:
            self._key_buffer, self._value_buffer = change(self._key_buffer), change(self._value_buffer)
            self._show(self._length)


class TransductCache(EncoderDecoderCache):
    """Self-attention cache per beam, cross-attention cache per source.

    Args:
        self_attention_cache: any transformers cache; None: preallocated buffers.
        cross_attention_cache: any transformers cache; None: stored as computed.
    """

    def __init__(self, self_attention_cache: Cache | None = None, cross_attention_cache: Cache | None = None):
        super().__init__(
            Cache(layer_class_to_replicate=PreallocatedLayer) if self_attention_cache is None else self_attention_cache,
            Cache(layer_class_to_replicate=DynamicLayer) if cross_attention_cache is None else cross_attention_cache,
        )

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Re-order the self-attention part; a beam's source never changes."""
        reorder_beams(self.self_attention_cache, beam_idx)

    def check_dynamic_cache(self, method: str) -> None:
        """Every part that this class creates can be cropped, repeated and selected from."""


def remember_positions(cache: Cache, positions: torch.Tensor, past: int | torch.Tensor, key_length: int) -> torch.Tensor:
    """Positions (rows, key_length) of all keys, where a caller chose those of the new tokens (rows, T) itself.

    They are kept beside a self-attention cache; keys that came without are counted along the row, and slots of a static cache
    that are still empty count as 0.
    """
    slots = torch.arange(key_length, device=positions.device)
    known = getattr(cache, "key_positions", None)
    if known is None:
        known = slots[:0].expand(positions.shape[0], 0)
    known = torch.cat([known, slots[known.shape[1] :].expand(positions.shape[0], -1)], dim=1)[:, :key_length]
    new = torch.arange(positions.shape[1], device=positions.device) + past  # (T)
    cache.key_positions = known.index_copy(1, new, positions.to(known.dtype).expand(known.shape[0], -1))
    return cache.key_positions


def reorder_beams(cache: Cache, beam_idx: torch.LongTensor) -> None:
    """Re-order a self-attention cache, touching only rows whose beam moved where the layers allow it."""
    positions = getattr(cache, "key_positions", None)
    if positions is not None:
        cache.key_positions = positions.index_select(0, beam_idx.to(positions.device))
    if not all(isinstance(layer, PreallocatedLayer) for layer in cache.layers):
        cache.reorder_cache(beam_idx)
        return
    rows = (beam_idx != torch.arange(len(beam_idx), device=beam_idx.device)).nonzero().squeeze(1)
    if len(rows):
        for layer in cache.layers:
            layer.move_rows(rows, beam_idx[rows])

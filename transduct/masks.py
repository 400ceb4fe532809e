"""Which token may attend to which, where padding is, and how to compute without it.

- Boolean masks are True where attention is allowed. `(B, T)` masks mark real tokens; wider ones say it per query.
- Segment ids (B, T) pack several sequences into a row: 0 is padding, attention stays inside a segment, and positions restart.
- `TokenLayout` drops padding from position-wise layers: the projections, norms and feed-forwards see real tokens only.
"""

import torch
import torch.nn.functional as F


def infer_padding_mask(input_ids: torch.Tensor, pad_token_id: int | None, eos_token_id: int | list[int] | None):
    """The mask of ids that came without one: padding tokens before the first and after the last real token of a row.

    Returns:
        bool (B, T), or None where padding cannot be told from text because `pad_token_id` is None or ends sentences too.
    """
    ends = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
    if pad_token_id is None or pad_token_id in ends or input_ids.ndim != 2 or input_ids.is_floating_point():
        return None  # ids that are none are refused when they are looked up
    real = input_ids != pad_token_id  # (B, T)
    from_first = real.cumsum(1) > 0
    to_last = real.flip(1).cumsum(1).flip(1) > 0
    return from_first & to_last  # (B, T)


def check_mask(name: str, mask: torch.Tensor | None, length: int, *rows: int) -> torch.Tensor | None:
    """A caller's mask as booleans (B, S), (B, T, S) or (B, 1 or H, T, S), for S = `length` and any B of `rows`.

    Raises:
        ValueError: for a wrong number of dimensions or rows, a wrong length, or an additive mask.
    """
    if mask is None:
        return None
    if mask.ndim not in (2, 3, 4):
        raise ValueError(f"{name} must have 2, 3 or 4 dimensions, not shape {tuple(mask.shape)}")
    if mask.ndim > 2 and mask.is_floating_point():
        raise ValueError(
            f"{name} of shape {tuple(mask.shape)} must be boolean, True where attention is allowed; "
            "pass `mask == 0` for an additive one"
        )
    if mask.shape[-1] != length:
        raise ValueError(f"{name} covers {mask.shape[-1]} tokens, but there are {length}")
    if mask.shape[0] not in (1, *rows):
        raise ValueError(f"{name} has {mask.shape[0]} rows, but there are {rows[0]}")
    if mask.is_floating_point() and not torch.compiler.is_compiling() and bool((mask < 0).any()):
        raise ValueError(f"{name} holds negative numbers: it looks additive; pass 1 at real tokens and 0 at padding instead")
    return mask.bool().expand(rows[0], -1) if mask.ndim == 2 else mask.bool()


def check_shape(name: str, tensor: torch.Tensor | None, rows: int, length: int) -> None:
    """Refuse positions, segment ids or labels that are not (rows, length); one row may stand for all positions.

    Raises:
        ValueError: naming the shape.
    """
    if tensor is not None and tuple(tensor.shape) not in ((rows, length), *([(1, length)] if "position" in name else [])):
        raise ValueError(f"{name} of shape {tuple(tensor.shape)} must have one entry for each of ({rows}, {length}) tokens")


def check_segments(name: str, segment_ids: torch.Tensor | None, rows: int, length: int) -> None:
    """Refuse segment ids that are no integers, not (rows, length), or negative; the last is asked on a CPU only.

    Raises:
        ValueError: naming shape, type or value.
    """
    check_shape(name, segment_ids, rows, length)
    if segment_ids is None:
        return
    if segment_ids.is_floating_point() or segment_ids.dtype == torch.bool:
        raise ValueError(f"{name} must hold integers, 0 at padding and another number for each segment, not {segment_ids.dtype}")
    if segment_ids.device.type == "cpu" and not torch.compiler.is_compiling() and int(segment_ids.min()) < 0:
        raise ValueError(f"{name} holds {int(segment_ids.min())}; 0 is padding, and segments count from 1")


def is_trivial(mask: torch.Tensor) -> bool:
    """Whether a mask hides nothing, so that it can be left out. Never asked while compiling."""
    return not torch.compiler.is_compiling() and mask.device.type != "meta" and bool(mask.all())


def is_right_padded(mask: torch.Tensor) -> bool:
    """Whether all padding of a (B, T) mask follows the text: then causal attention never sees it."""
    return not torch.compiler.is_compiling() and mask.device.type != "meta" and bool((mask[:, 1:] <= mask[:, :-1]).all())


def positions_from_mask(mask: torch.Tensor) -> torch.Tensor:
    """Positions (B, T) counted from the first real token of each row; 0 at padding before it."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def positions_from_segments(segment_ids: torch.Tensor) -> torch.Tensor:
    """Positions (B, T) that restart at 0 with every new segment id along a row."""
    slots = torch.arange(segment_ids.shape[1], device=segment_ids.device)
    starts = F.pad(segment_ids[:, 1:] != segment_ids[:, :-1], (1, 0), value=True)  # (B, T)
    return slots - torch.where(starts, slots, 0).cummax(1).values  # (B, T)


def chosen_positions(position_ids: torch.Tensor | None, segment_ids: torch.Tensor | None) -> torch.Tensor | None:
    """Positions (B, T) that the caller set, directly or by packing; None where they are counted along the row."""
    if position_ids is not None or segment_ids is None:
        return position_ids
    return positions_from_segments(segment_ids)


def same_segment(query_segments: torch.Tensor, key_segments: torch.Tensor) -> torch.Tensor:
    """Mask (B, 1, T, S): query and key carry the same segment id, and it is not 0."""
    same = query_segments[:, :, None] == key_segments[:, None, :]  # (B, T, S)
    return (same & (key_segments != 0)[:, None, :])[:, None]  # (B, 1, T, S)


def to_four_dimensions(mask: torch.Tensor) -> torch.Tensor:
    """(B, S) -> (B, 1, 1, S); (B, T, S) -> (B, 1, T, S); four stay."""
    if mask.ndim == 2:
        return mask[:, None, None]  # (B, 1, 1, S)
    return mask[:, None] if mask.ndim == 3 else mask  # (B, 1, T, S)


def causal_mask(query_slots: torch.Tensor, key_length: int) -> torch.Tensor:
    """Mask (1, 1, T, S): a query in slot t sees the keys in slots 0..t (section 3.2.3)."""
    key_slots = torch.arange(key_length, device=query_slots.device)
    return (key_slots <= query_slots[:, None])[None, None]  # (1, 1, T, S)


def combine(mask: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """One mask from a boolean mask and an additive bias: the bias where attention is allowed, -inf elsewhere."""
    if mask is None or bias is None:
        return mask if bias is None else bias
    return torch.where(mask, bias, float("-inf"))  # (B or 1, H, T, S)


def fold_beams(mask: torch.Tensor, sources: int, shape: tuple[int, int]) -> torch.Tensor:
    """A cross-attention mask for queries whose N beams lie in one row: (B or B*N, 1, 1 or T, S) -> (B, 1, 1 or N*T, S)."""
    beams = shape[0] // sources
    if beams == 1 or (mask.shape[0] == sources and mask.shape[2] == 1):
        return mask
    if mask.shape[0] == sources:
        mask = mask.repeat_interleave(beams, dim=0)  # (B*N, 1, T, S)
    if mask.shape[0] != shape[0]:
        raise ValueError(f"a cross-attention mask of {mask.shape[0]} rows fits neither {sources} sources nor {shape[0]} targets")
    mask = mask.expand(-1, -1, shape[1], -1)  # (B*N, 1, T, S)
    return mask.reshape(sources, beams, mask.shape[1], shape[1], -1).transpose(1, 2).flatten(2, 3)  # (B, 1, N*T, S)


def as_bias(mask: torch.Tensor | None, is_causal: bool, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """A boolean or additive mask as additive (B, H, T, S), for queries (B, H, T, K) and keys (B, G, S, K)."""
    shape = *query.shape[:3], key.shape[2]
    if mask is None and is_causal:
        mask = torch.ones(shape[2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    return None if mask is None else mask.expand(shape)  # (B, H, T, S)


class TokenLayout:
    """Where the real tokens of a padded batch are; moves states between (B, T, ...) and (tokens, ...)."""

    def __init__(self, mask: torch.Tensor):
        self.shape = mask.shape
        self.index = mask.flatten().nonzero().squeeze(1)  # (tokens)

    @classmethod
    def from_mask(cls, mask: torch.Tensor | None) -> "TokenLayout | None":
        """None where nothing can be gained: no padding mask, or shapes must not depend on data (compiling, meta)."""
        if mask is None or mask.ndim != 2 or torch.compiler.is_compiling() or mask.device.type == "meta":
            return None
        return cls(mask)

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        return padded.flatten(0, 1).index_select(0, self.index)  # (B, T, ...) -> (tokens, ...)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        rows = packed.new_zeros(self.shape[0] * self.shape[1], *packed.shape[1:])
        return rows.index_copy(0, self.index, packed).view(*self.shape, *packed.shape[1:])  # (tokens, ...) -> (B, T, ...)

    def to(self, device: torch.device, **kwargs) -> "TokenLayout":
        """Move to the device of the next layer, for models that are spread over several."""
        self.index = self.index.to(device, **kwargs)
        return self

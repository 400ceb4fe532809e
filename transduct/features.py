"""How float vectors enter the encoder in place of tokens: speech frames, image patches, time series.

- `LinearStem`: one projection, a state for each frame.
- `ConvStem`: the two convolutions of Whisper (arXiv 2212.04356, section 2.2), a state for every two frames.

Padding changes nothing: frames that a mask hides are zero before each convolution, as what lies beyond the ends of a sequence is,
and rows are moved so that the stride of two starts at their first real frame. Shapes: `B` sources, `S` frames, `S'` states,
`F` feature_size, `D` d_model.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from .layers import Linear
from .masks import check_mask, is_trivial

KERNEL = 3
"""Frames that a convolution sees at a time."""


class FeatureStem(nn.Module):
    """What the stems share: the form of features, and how masks follow.

    Args:
        layout: "time_first", features are (B, S, F), or "channels_first", (B, F, S).
        padding: "hidden", or "seen": frames that a mask excludes are input like any other.
    """

    stride = 1
    bias: torch.Tensor  # gives type and device of what comes in

    def __init__(self, feature_size: int, d_model: int, layout: str, padding: str):
        super().__init__()
        self.feature_size, self.layout, self.padding = feature_size, layout, padding

    def output_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Which states are real: (B, S) -> (B, S')."""
        return mask

    def output_length(self, frames: int) -> int:
        """The number of states S' that so many frames give."""
        return -(-frames // self.stride)

    def states_mask(self, mask: torch.Tensor, length: int) -> torch.Tensor | None:
        """The mask over `length` states: what is left of one over frames (B, S), or one over states as it is."""
        if self.padding == "seen":
            return None
        return mask if mask.ndim > 2 or mask.shape[1] == length else self.output_mask(mask.bool())

    def embed(self, features: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A caller's features and mask over their frames -> states (B, S', D) and the mask over these.

        Raises:
            ValueError: for features of another form or type, NaN or infinite ones at real frames, and a mask that the stem cannot
                follow.
        """
        features = check_features(features, self.layout, self.feature_size)  # (B, S, F)
        mask = check_mask("attention_mask", mask, features.shape[1], features.shape[0])
        if mask is not None and (self.padding == "seen" or is_trivial(mask)):
            mask = None
        if mask is not None and mask.ndim > 2 and self.stride > 1:
            raise ValueError(f"attention_mask of shape {tuple(mask.shape)} must be (rows, frames): the stem merges frames")
        rows = mask if mask is not None and mask.ndim == 2 else None  # (B, S)
        check_finite(features, rows)
        states = self(features.to(self.bias.dtype), rows)  # (B, S', D)
        return states, mask if rows is None else self.output_mask(rows)


class LinearStem(FeatureStem):
    """One projection of each frame."""

    def __init__(self, feature_size: int, d_model: int, layout: str = "time_first", padding: str = "hidden"):
        super().__init__(feature_size, d_model, layout, padding)
        self.proj = Linear(feature_size, d_model)

    @property
    def bias(self) -> torch.Tensor:  # type: ignore[override]
        return self.proj.bias

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, F) and a mask (B, S), True at real frames -> (B, S, D)."""
        return self.proj(without_hidden(features, mask))  # (B, S, D)


class ConvStem(FeatureStem):
    """Kernel 3, then kernel 3 with stride 2, each followed by `activation`: S' = ceil(S / 2)."""

    stride = 2

    def __init__(
        self,
        feature_size: int,
        d_model: int,
        layout: str = "time_first",
        padding: str = "hidden",
        activation: str = "gelu",
    ):
        super().__init__(feature_size, d_model, layout, padding)
        self.conv1 = nn.Conv1d(feature_size, d_model, kernel_size=KERNEL, padding=1)
        self.conv2 = nn.Conv1d(d_model, d_model, kernel_size=KERNEL, stride=self.stride, padding=1)
        self.activation = ACT2FN[activation]

    @property
    def bias(self) -> torch.Tensor:  # type: ignore[override]
        assert self.conv1.bias is not None
        return self.conv1.bias

    def output_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Those states are real of which a frame is."""
        mask = _from_even_slot(mask, mask)
        pairs = F.pad(mask, (0, mask.shape[1] % self.stride)).unflatten(1, (-1, self.stride))  # (B, S', 2)
        return pairs.any(2)  # (B, S')

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, F) and a mask (B, S), True at real frames -> (B, S', D)."""
        if mask is not None:
            features, mask = _from_even_slot(without_hidden(features, mask), mask), _from_even_slot(mask, mask)
        hidden = self.activation(self.conv1(features.transpose(1, 2)))  # (B, D, S)
        if mask is not None:
            hidden = hidden.masked_fill(~mask[:, None], 0)
        return self.activation(self.conv2(hidden)).transpose(1, 2)  # (B, S', D)


def without_hidden(features: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Features (B, S, F) with zeros where the mask (B, S) hides a frame, whatever stood there."""
    return features if mask is None else features.masked_fill(~mask[:, :, None], 0)


def _from_even_slot(rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rows (B, S, ...) moved left by one where the first real frame of the mask (B, S) has an odd slot.

    What a row loses at its start it gets at its end, and both are padding.
    """
    odd = mask.int().argmax(1) % 2  # (B)
    slots = (torch.arange(mask.shape[1], device=mask.device) + odd[:, None]) % mask.shape[1]  # (B, S)
    if rows.ndim == 3:
        return rows.gather(1, slots[:, :, None].expand_as(rows))
    return rows.gather(1, slots)


def check_features(features: torch.Tensor, layout: str, feature_size: int) -> torch.Tensor:
    """Features (B, S, F) of a non-empty batch that came in `layout`, "time_first" (B, S, F) or "channels_first" (B, F, S).

    Raises:
        ValueError: for another type or shape.
    """
    form = f"(rows, frames, {feature_size})" if layout == "time_first" else f"(rows, {feature_size}, frames)"
    if not features.is_floating_point():
        raise ValueError(f"input_features must hold floating-point numbers, not {features.dtype}")
    axis = 2 if layout == "time_first" else 1
    if features.ndim != 3 or 0 in features.shape or features.shape[axis] != feature_size:
        shape = tuple(features.shape)
        hint = ""
        if features.ndim == 3 and features.shape[3 - axis] == feature_size:
            hint = "; transpose it, or set the config's feature_layout"
        raise ValueError(
            f"input_features must be a non-empty batch {form} for feature_layout={layout!r}, not of shape {shape}{hint}"
        )
    return features if layout == "time_first" else features.transpose(1, 2)


def check_finite(features: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Refuse features (B, S, F) that are no numbers at real frames; asked on a CPU only, elsewhere a look would wait.

    Raises:
        ValueError: naming the row.
    """
    if features.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if bool(features.sum().isfinite()):
        return  # all are, and this was the cheaper question
    wrong = ~without_hidden(features, mask).isfinite().flatten(1).all(1)  # (B)
    if wrong.any():
        raise ValueError(f"input_features of row {int(wrong.int().argmax())} holds NaN or infinite numbers at real frames")


def check_source(
    stem: FeatureStem | None,
    input_ids: torch.Tensor | None,
    input_features: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    segment_ids: torch.Tensor | None,
) -> None:
    """Raises ValueError for features where tokens are read, for ids or packed rows where features are, and for two sources."""
    if stem is None and input_features is not None:
        raise ValueError('input_features are for encoder_input="features"; this model reads input_ids')
    if stem is None:
        return
    if input_ids is not None:
        raise ValueError('this model has encoder_input="features": pass input_features, not input_ids')
    if (input_features is None) == (inputs_embeds is None):
        raise ValueError("pass exactly one of input_features and inputs_embeds")
    if segment_ids is not None:
        raise ValueError("features cannot be packed (segment_ids): pass one source a row, with an attention_mask")

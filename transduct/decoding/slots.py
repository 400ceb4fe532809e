"""A decoder that takes several tokens a step and may take some back, different ones in each row.

Rows of a batch keep different numbers of tokens, while a cache is rectangular. So each row's cache may have holes: slots that
its mask hides and that no position counts. Slots that every row took back at the end are cut off, and when holes are the greater
part, the tokens are moved together.

Shapes: `B` rows, `m` new tokens, `T` slots, `V` vocabulary.
"""

from typing import Any

import torch

from transduct.cache import PreallocatedLayer, TransductCache
from transduct.decoding.rows import Rows


class Slots:
    """One of our encoder-decoders, and what its decoder has read.

    Args:
        rows: the model with what `generate` made for it; its ids are not used. One candidate a source.
    """

    def __init__(self, rows: Rows):
        self.model = rows.model
        self.rows = rows
        self.cache = TransductCache()
        device = rows.ids.device
        self.real = torch.zeros(rows.sources, 0, dtype=torch.bool, device=device)  # (B, T), the slots that hold tokens
        self.fixed: dict[str, Any] = {
            name: value for name, value in rows.arguments.items() if name in ("encoder_outputs", "attention_mask")
        }
        config = self.model.config
        self.positions = config.resolved_decoder_max_positions if config.positions == "learned" else None

    def feed(self, tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Read tokens (B, m) where `real` (B, m); the logits (B, m, V) of what follows each.

        Tokens beyond the last learned position are read as if they stood there: what follows them is a guess.

        Raises:
            ValueError: for first logits that are no numbers.
        """
        begins = self.real.shape[1] == 0
        past = self.real.sum(1, keepdim=True)  # (B, 1)
        self.real = torch.cat([self.real, real], dim=1)  # (B, T + m)
        positions = (past + real.cumsum(1) - 1).clamp(0, None if self.positions is None else self.positions - 1)  # (B, m)
        outputs = self.model(
            decoder_input_ids=tokens,
            decoder_attention_mask=self.real,
            decoder_position_ids=positions,
            cache=self.cache,
            use_cache=True,
            **self.fixed,
        )
        if begins:
            self.rows.check_numbers(outputs.logits[:, 0])
        return outputs.logits.float()  # (B, m, V)

    def take_back(self, kept: torch.Tensor) -> None:
        """Of the last m tokens, forget those that are not `kept` (B, m)."""
        self.real[:, -kept.shape[1] :] &= kept
        used = self.real.any(0).nonzero()
        length = int(used.max()) + 1 if len(used) else 0
        surplus = self.real.shape[1] - length
        if surplus:
            self.real = self.real[:, :length]
            self._own_layers(lambda layer: layer.crop(-surplus))
            self._crop_positions(length)
        if length > 2 * int(self.real.sum(1).max()) + 64:
            self._move_together()

    def _own_layers(self, change: Any) -> None:
        for layer in self.cache.self_attention_cache.layers:
            assert isinstance(layer, PreallocatedLayer)
            change(layer)

    def _crop_positions(self, length: int) -> None:
        positions = getattr(self.cache.self_attention_cache, "key_positions", None)
        if positions is not None:
            self.cache.self_attention_cache.key_positions = positions[:, :length]

    def _move_together(self) -> None:
        """Close the holes: each row's tokens come first, in their order."""
        length = int(self.real.sum(1).max())
        order = self.real.int().sort(dim=1, descending=True, stable=True).indices[:, :length]  # (B, length)

        def move(layer: PreallocatedLayer) -> None:
            surplus = layer.get_seq_length() - length
            for view in (layer.keys, layer.values):
                index = order[:, None, :, None].expand(-1, view.shape[1], -1, view.shape[3])
                view[:, :, :length] = view.gather(2, index)
            layer.crop(-surplus)

        self._own_layers(move)
        positions = getattr(self.cache.self_attention_cache, "key_positions", None)
        if positions is not None:
            self.cache.self_attention_cache.key_positions = positions.gather(1, order)
        self.real = self.real.gather(1, order)

    def keep(self, order: torch.Tensor) -> None:
        """Go on with the rows `order` alone."""
        self.rows.arguments = self.fixed | {"cache": self.cache}
        self.rows.keep(order)
        self.fixed = {name: value for name, value in self.rows.arguments.items() if name != "cache"}
        self.real = self.real[order]

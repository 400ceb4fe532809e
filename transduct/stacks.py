"""The encoder and the decoder: layers in a stack (Vaswani et al. 2017, section 3.1), with masks, positions and caches around.

Shapes: `B` sources, `N` targets (beams) per source, `S` source and `T` target length, `D` d_model, `H` heads, `K` head width.
Padding is left out of all position-wise layers (see `masks.TokenLayout`), so the states at padding are zero in what a stack
returns.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from .attention import AttentionContext
from .blocks import DecoderLayer, EncoderLayer, make_position_bias, with_own_bias
from .cache import PreallocatedLayer, TransductCache, remember_positions
from .configuration import TransductConfig
from .features import ConvStem, LinearStem, check_source
from .layers import clamp_to_half, make_norm
from .masks import (
    TokenLayout,
    causal_mask,
    check_mask,
    check_segments,
    check_shape,
    chosen_positions,
    fold_beams,
    is_right_padded,
    is_trivial,
    positions_from_mask,
    same_segment,
    to_four_dimensions,
)
from .positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from .token_runs import TokenRuns, run_ids


def check_ids(name: str, ids: torch.Tensor, vocab_size: int) -> None:
    """Refuse ids that are no integers, or none at all, or lie outside the vocabulary.

    Raises:
        ValueError: at once on CPU; on an accelerator an id outside the vocabulary is an asynchronous device assertion.
    """
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name} must hold integer token ids, not {ids.dtype}")
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"{name} must be a non-empty batch (rows, tokens), not of shape {tuple(ids.shape)}")
    if torch.compiler.is_compiling() or ids.device.type == "meta":
        return
    if ids.device.type != "cpu":
        torch._assert_async(((ids >= 0) & (ids < vocab_size)).all(), f"{name} outside the vocabulary of {vocab_size} tokens")
        return
    low, high = (bound.item() for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{name} holds {wrong}, outside the vocabulary [0, {vocab_size}); do tokenizer and model belong together?"
        )


class Stack(nn.Module):
    """What encoder and decoder share: embeddings, positions, layers, the norm at the end."""

    embed_tokens: nn.Embedding  # unless features come in
    layer_drop_draws: torch.Generator | None = None
    """What LayerDrop draws from, where several processes must leave out the same layers; None: torch's own."""

    def __init__(self, config: TransductConfig, vocab_size: int | None, num_heads: int, max_positions: int, causal: bool):
        super().__init__()
        self.config = config
        padding = config.pad_token_id if config.freeze_padding_embedding else None
        if vocab_size is not None:
            self.embed_tokens = nn.Embedding(vocab_size, config.d_model, padding_idx=padding)
        scales = config.resolved_decoder_scale_embeddings if causal else config.scale_embeddings
        self.embed_scale = config.d_model**0.5 if scales and vocab_size is not None else 1.0
        self.embed_positions: SinusoidalPositions | LearnedPositions | None = None
        if config.positions == "sinusoidal":
            layout, offset = config.sinusoid_layout, config.position_offset
            self.embed_positions = SinusoidalPositions(max_positions, config.d_model, layout, offset)
        elif config.positions == "learned":
            self.embed_positions = LearnedPositions(max_positions, config.d_model, config.position_offset)
        norm = config.norm, config.d_model, config.norm_eps, config.norm_bias
        self.embedding_norm = make_norm(*norm) if config.embedding_norm else None
        self.final_norm = make_norm(*norm) if config.resolved_final_norm else None
        self.position_bias = None if config.relative_bias_per_layer else make_position_bias(config, num_heads, not causal)
        head_size = config.d_kv or config.d_model // num_heads
        self.rotary = RotaryPositions(head_size, config.rotary_base) if config.positions == "rotary" else None
        self.has_bias = config.positions in ("relative_bias", "alibi")
        self.dropout = nn.Dropout(config.dropout)
        self.layer_drop = config.resolved_decoder_layer_drop if causal else config.layer_drop
        self.norm_before_positions = causal and config.decoder_embedding_norm == "before_positions"
        self.layers = nn.ModuleList()
        self.gradient_checkpointing = False

    @property
    def entry(self) -> torch.Tensor:
        """A weight at the stack's entry: gives type and device of what comes in."""
        return self.embed_tokens.weight

    def embed(self, prefix: str, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Embeddings (B, T, D), unscaled, from exactly one of ids (B, T) and embeddings."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"pass exactly one of {prefix}input_ids and {prefix}inputs_embeds")
        if input_ids is not None:
            check_ids(f"{prefix}input_ids", input_ids, self.embed_tokens.weight.shape[0])
            return self.embed_tokens(input_ids.long())  # (B, T, D)
        assert inputs_embeds is not None
        shape, width = tuple(inputs_embeds.shape), self.config.d_model
        if len(shape) != 3 or 0 in shape or shape[2] != width:
            raise ValueError(
                f"{prefix}inputs_embeds must be a non-empty batch (rows, tokens, d_model={width}), not of shape {shape}"
            )
        return inputs_embeds

    def add_positions(self, embeddings: torch.Tensor, positions: torch.Tensor, length: int | None) -> torch.Tensor:
        """Scale, add positions, normalise, drop out (sections 3.4, 3.5, 5.4): (B, T, D) -> (B, T, D)."""
        hidden = embeddings * self.embed_scale if self.embed_scale != 1.0 else embeddings
        if self.embedding_norm is not None and self.norm_before_positions:
            hidden = self.embedding_norm(hidden)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions(positions, length).to(hidden.dtype)  # the sinusoids may have stayed float32
        if self.embedding_norm is not None and not self.norm_before_positions:
            hidden = self.embedding_norm(hidden)
        return self.dropout(clamp_to_half(hidden))

    def reach(self, chosen: torch.Tensor | None, past: int | torch.Tensor, length: int, key_length: int) -> int | None:
        """How many positions must exist for T = `length` tokens after `past` others; None: left to the lookup itself.

        Args:
            chosen: positions (B or 1, T) that the caller set or packing made, or None; key_length: what the cache has room for.

        Raises:
            ValueError: for a negative position.
        """
        looks = not torch.compiler.is_compiling() and self.entry.device.type == "cpu"  # elsewhere a look would wait
        if chosen is not None and looks and self.embed_positions is not None:
            lowest, highest = (int(bound) for bound in chosen.aminmax())
            if lowest < 0:
                raise ValueError(f"position_ids holds {lowest}; positions count from 0")
            return highest + 1
        if not isinstance(self.embed_positions, LearnedPositions):
            return key_length
        known = chosen is None and (looks or isinstance(past, int))
        return int(past) + length if known else None

    def self_context(self, mask: torch.Tensor | None, is_causal: bool, rotated: torch.Tensor, **shared) -> AttentionContext:
        """What the self-attention of all layers shares, the stack's position bias being part of the mask.

        Args:
            mask: boolean (B or 1, 1, T or 1, S), or None; rotated: positions (B or 1, T) for rotary queries and keys.
        """
        context = AttentionContext(mask=mask, is_causal=is_causal, implementation=self.implementation, **shared)
        dtype = self.entry.dtype
        if self.rotary is not None:
            context.rotary = self.rotary(rotated, dtype)
        return with_own_bias(context, self.position_bias, dtype)

    @property
    def implementation(self) -> str:
        """Name of the attention function, which `set_attn_implementation` may change at any time."""
        return self.config._attn_implementation or "sdpa"

    def takes_runs(self, weights: list | None) -> bool:
        """Whether attention is told of runs of tokens in place of masks, as flash attention is.

        Raises:
            ValueError: for a position bias, which flash attention has no place for.
        """
        if "flash" not in self.implementation or weights is not None:  # only `eager` returns weights
            return False
        if self.has_bias:
            raise ValueError(
                f"attn_implementation={self.implementation!r} has no place for the bias of positions={self.config.positions!r}: "
                'use "sdpa" or "flex_attention"'
            )
        return True

    def leaves_out(self) -> bool:
        """Whether the next layer is dropped."""
        return bool(torch.rand((), generator=self.layer_drop_draws) < self.layer_drop)

    def run_layers(self, hidden: torch.Tensor, layout: TokenLayout | None, keep_states: bool, *shared, **options):
        """All layers on (B, T, D), without the padding if there is a layout.

        Returns:
            The stack's output (B, T, D), and if asked a tuple of the first layer's input and each layer's output, the last one
            after the norm at the end.
        """
        if layout is not None:
            hidden = layout.pack(hidden)  # (tokens, D)
        states = [hidden]
        for layer in self.layers:
            if self.training and self.layer_drop > 0 and self.leaves_out():
                continue  # LayerDrop (arXiv 1909.11556)
            hidden = layer(hidden, *shared, **options)
            if keep_states:
                states.append(hidden)
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        if self.config.final_dropout:
            hidden = self.dropout(hidden)
        states[-1] = hidden
        if layout is not None:
            states = [layout.unpack(state) for state in states]  # (B, T, D) each
        return states[-1], tuple(states) if keep_states else None


class Encoder(Stack):
    """Source tokens or features to states."""

    def __init__(self, config: TransductConfig):
        of_features = config.encoder_input == "features"
        super().__init__(config, None if of_features else config.vocab_size, config.num_heads, config.max_positions, causal=False)
        self.stem: LinearStem | ConvStem | None = None
        if config.feature_size is not None:
            form = config.feature_size, config.d_model, config.feature_layout, config.feature_padding
            self.stem = LinearStem(*form) if config.feature_stem == "linear" else ConvStem(*form, config.feature_activation)
        if config.freeze_encoder_positions and self.embed_positions is not None:
            self.embed_positions.requires_grad_(False)
        self.layers.extend(EncoderLayer(config) for _ in range(config.encoder_layers))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        input_features: torch.Tensor | None = None,
    ) -> BaseModelOutput | tuple:
        """Encode a batch.

        Args:
            input_ids: (B, S), or inputs_embeds: (B, S, D), not yet scaled.
            input_features: in place of ids for `encoder_input="features"`, (B, S, feature_size) or as `feature_layout` says; the
                mask is then over their S frames, and positions and states are those that the stem makes of them.
            attention_mask: (B, S), True or 1 at real tokens; or boolean (B, S, S) or (B, 1, S, S), per query; None: all are real.
            position_ids: (B, S); None: counted from each row's first real token, or within segments.
            segment_ids: (B, S), several sequences a row, 0 at padding.

        Returns:
            `last_hidden_state` (B, S, D), zero at padding; a row of nothing but padding is all zero.
        """
        check_source(self.stem, input_ids, input_features, inputs_embeds, segment_ids)
        if self.stem is not None and input_features is not None:
            embeddings, attention_mask = self.stem.embed(input_features, attention_mask)  # (B, S, D)
        else:
            embeddings = self.embed("", input_ids, inputs_embeds)  # (B, S, D)
            attention_mask = self.states_mask(attention_mask, embeddings.shape[1])
        batch, length = embeddings.shape[:2]
        slots = torch.arange(length, device=embeddings.device)[None]  # (1, S)
        check_shape("position_ids", position_ids, batch, length)
        check_segments("segment_ids", segment_ids, batch, length)
        mask = check_mask("attention_mask", attention_mask, length, batch)
        if mask is not None and is_trivial(mask):
            mask = None
        padding = mask if mask is not None and mask.ndim == 2 else None if segment_ids is None else segment_ids != 0  # (B, S)
        positions = chosen_positions(position_ids, segment_ids)
        rows = positions if positions is not None else slots if padding is None else positions_from_mask(padding)
        hidden = self.add_positions(embeddings, rows, self.reach(positions, 0, length, length))
        layout = TokenLayout.from_mask(padding)
        weights: list | None = [] if output_attentions else None
        runs = None
        if self.takes_runs(weights):
            ids = run_ids(segment_ids, mask)
            runs, mask = None if ids is None else TokenRuns(ids, ids), None
        else:
            mask = self.mask_within(segment_ids, mask)  # (B, 1, 1 or S, S)
        distances = slots if positions is None else positions  # padding shifts both ends of a distance alike
        shared = {"positions": (distances, distances), "query_layout": layout, "weights": weights, "runs": runs}
        context = self.self_context(mask, False, rows, **shared)
        hidden, states = self.run_layers(hidden, layout, bool(output_hidden_states), context, context.mask)
        output = BaseModelOutput(hidden, states, None if weights is None else tuple(weights))
        return output.to_tuple() if return_dict is False else output

    @property
    def entry(self) -> torch.Tensor:
        return self.embed_tokens.weight if self.stem is None else self.stem.bias

    def states_mask(self, mask: torch.Tensor | None, length: int) -> torch.Tensor | None:
        """The mask of a source as it is over the `length` states that became of it: after a stem it may have fewer columns."""
        return mask if mask is None or self.stem is None else self.stem.states_mask(mask, length)

    @staticmethod
    def mask_within(segment_ids: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor | None:
        """The caller's mask with four dimensions, and no look across segments."""
        mask = None if mask is None else to_four_dimensions(mask)
        if segment_ids is None:
            return mask
        own = same_segment(segment_ids, segment_ids)  # (B, 1, S, S)
        return own if mask is None else own & mask


class Decoder(Stack):
    """Target tokens and source states to target states; without cross-attention, a language model's stack."""

    def __init__(self, config: TransductConfig, cross_attention: bool = True):
        vocab_size, num_heads = config.resolved_decoder_vocab_size, config.resolved_decoder_num_heads
        super().__init__(config, vocab_size, num_heads, config.resolved_decoder_max_positions, causal=True)
        self.prefix = "decoder_" if cross_attention else ""  # of argument names in errors
        self.layers.extend(DecoderLayer(config, index, cross_attention) for index in range(config.decoder_layers))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        encoder_segment_ids: torch.Tensor | None = None,
        prefix_mask: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions | tuple:
        """Decode T tokens that follow those in the cache.

        Args:
            input_ids: (B*N, T), or inputs_embeds: (B*N, T, D), not yet scaled; N consecutive rows belong to one source.
            attention_mask: (B*N, past + T), True or 1 at real tokens; or boolean per query, (B*N, T, past + T). It only ever
                removes from what causality allows.
            encoder_hidden_states: (B, S, D). encoder_attention_mask: (B, S), or boolean per query.
            position_ids: (B*N, T); None: counted from each row's first real token, or within segments.
            segment_ids, encoder_segment_ids: (B*N, T), (B, S), several sequences a row, 0 at padding.
            prefix_mask: (B*N, up to past + T), True at tokens that every token may see, before or after it (prefix-LM, T5
                section 3.2.1).

        Returns:
            `last_hidden_state` (B*N, T, D), and `cache` unless it is not wanted.
        """
        embeddings = self.embed(self.prefix, input_ids, inputs_embeds)  # (B*N, T, D)
        batch, length = embeddings.shape[:2]
        check_shape(f"{self.prefix}position_ids", position_ids, batch, length)
        check_segments(f"{self.prefix}segment_ids", segment_ids, batch, length)
        cache = self.prepare_cache(cache, use_cache, segment_ids)
        past = 0 if cache is None else cache.get_seq_length()  # a tensor for static caches
        key_length = length if cache is None else cache.get_mask_sizes(length, 0)[0]
        slots = torch.arange(length, device=embeddings.device) + past  # (T)
        end = past + length if isinstance(past, int) else None
        is_first = key_length == end and past == 0
        mask = self.check_mask(attention_mask, batch, length, past, key_length)
        padding = mask if mask is not None and mask.ndim == 2 else None if segment_ids is None else segment_ids != 0
        layout = TokenLayout.from_mask(padding) if is_first else None
        if layout is not None and mask is not None and mask is padding and prefix_mask is None and is_right_padded(mask):
            mask = None  # no real token comes after padding, so none would see it
        positions = chosen_positions(position_ids, segment_ids)
        rows = positions  # (B*N or 1, T)
        if rows is None:
            rows = slots[None] if padding is None else positions_from_mask(padding).index_select(1, slots)
        hidden = self.add_positions(embeddings, rows, self.reach(positions, past, length, key_length))

        weights: list | None = [] if output_attentions else None
        distances = self.distances(positions, slots, past, key_length, cache)
        shared = {"positions": distances, "query_layout": layout, "weights": weights}
        if self.takes_runs(weights):
            shared["runs"] = self.self_runs(mask, length, key_length == end, segment_ids, prefix_mask)
            context = self.self_context(None, length > 1, rows, **shared)
        else:
            allowed, is_causal = self.self_mask(mask, slots, key_length, end, segment_ids, prefix_mask)
            context = self.self_context(allowed, is_causal, rows, **shared)
        memory, cross = None, None
        if encoder_hidden_states is not None:
            stored = isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(0, False)
            segments = segment_ids, encoder_segment_ids
            memory, cross = self.cross_context(
                encoder_hidden_states, encoder_attention_mask, segments, hidden.shape[:2], stored, self.takes_runs(weights)
            )
            cross.query_layout, cross.weights = layout, None if weights is None else []
        hidden, states = self.run_layers(
            hidden, layout, bool(output_hidden_states), memory, context, cross, context.mask, cache=cache
        )
        output = BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden,
            cache=cache,
            hidden_states=states,
            attentions=None if weights is None else tuple(weights),
            cross_attentions=None if cross is None or cross.weights is None else tuple(cross.weights),
        )
        return output.to_tuple() if return_dict is False else output

    def prepare_cache(self, cache: Cache | None, use_cache: bool | None, segment_ids: torch.Tensor | None) -> Cache | None:
        """The caller's cache, a new one if one is wanted, or None."""
        wanted = self.config.use_cache if use_cache is None else use_cache
        if segment_ids is not None:
            if cache is not None:
                raise ValueError("packed targets (decoder_segment_ids) cannot continue a cache; decode one sequence a row")
            return None
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            if cache is not None and cache.get_seq_length():
                raise ValueError("gradient checkpointing cannot continue a cache while it trains: disable it, or call eval()")
            return None  # a layer that runs twice must not write twice
        if not self.layers:
            if cache is not None:
                raise ValueError("decoder_layers=0: no layer's cache would count the tokens so far; pass use_cache=False")
            return None
        if cache is not None or not wanted:
            return cache
        return TransductCache() if self.prefix else Cache(layer_class_to_replicate=PreallocatedLayer)

    def distances(self, positions, slots: torch.Tensor, past, key_length: int, cache: Cache | None):
        """Positions of queries and keys as a position bias measures them: slots, unless the caller chose others."""
        if positions is None or not self.has_bias:
            return slots[None], torch.arange(key_length, device=slots.device)[None]  # padding shifts both ends alike
        if cache is None:
            return positions, positions
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        return positions, remember_positions(own, positions, past, key_length)

    def check_mask(
        self, mask: torch.Tensor | None, batch: int, length: int, past: int | torch.Tensor, key_length: int
    ) -> torch.Tensor | None:
        """A caller's mask over all `key_length` keys; one that hides nothing is dropped before the first token.

        Raises:
            ValueError: for a wrong form, or if it does not cover the tokens in the cache as well as the new ones.
        """
        known = isinstance(past, int) or (past.device.type == "cpu" and not torch.compiler.is_compiling())
        if mask is not None and known and mask.shape[-1] < int(past) + length:
            covered = f"{mask.shape[-1]} tokens, but there are {int(past) + length}"
            raise ValueError(f"{self.prefix}attention_mask covers {covered}, {int(past)} of them in the cache")
        if mask is not None and mask.shape[-1] < key_length:
            mask = F.pad(mask, (0, key_length - mask.shape[-1]))  # a static cache has room for tokens to come
        mask = check_mask(f"{self.prefix}attention_mask", mask, key_length, batch)
        is_first = isinstance(past, int) and past == 0 and key_length == length
        return None if mask is not None and is_first and is_trivial(mask) else mask

    def self_mask(self, mask, slots: torch.Tensor, key_length: int, end: int | None, segment_ids, prefix_mask):
        """The mask (B*N or 1, 1, T, past + T) of self-attention, or None; and whether plain causality does without."""
        if mask is None and segment_ids is None and prefix_mask is None and key_length == end:
            if slots.shape[0] == 1:
                return None, False  # one new token sees all there are
            if slots.shape[0] == key_length and not self.has_bias:
                return None, True
        allowed = causal_mask(slots, key_length)  # (1, 1, T, past + T)
        if prefix_mask is not None:
            prefix_mask = F.pad(prefix_mask, (0, key_length - prefix_mask.shape[1]))  # later tokens are no prefix
            prefix = check_mask("prefix_mask", prefix_mask, key_length, prefix_mask.shape[0])
            assert prefix is not None
            allowed = allowed | to_four_dimensions(prefix)
        if segment_ids is not None:
            allowed = allowed & same_segment(segment_ids, segment_ids)
        return allowed if mask is None else allowed & to_four_dimensions(mask), False

    def self_runs(self, mask, length: int, all_filled: bool, segment_ids, prefix_mask) -> TokenRuns | None:
        """What `self_mask` says, for flash attention, which sees causality itself: the new tokens are the last ones.

        Raises:
            ValueError: for a prefix mask, and for a static cache that has room for tokens to come.
        """
        for given, what in ((prefix_mask is not None, "prefix_mask"), (not all_filled, "a static cache")):
            if given:
                raise ValueError(f'flash attention cannot see {what}: use attn_implementation="sdpa"')
        ids = run_ids(segment_ids, mask)  # (B*N, past + T)
        if ids is None:
            return None
        return TokenRuns(ids if ids.shape[1] == length else ids[:, -length:], ids)

    def cross_context(self, memory, mask, segments, shape, stored: bool, runs: bool):
        """The memory as cross-attention takes it, and the context of all layers.

        Args:
            memory: (B, S, D); mask: (B, S), or boolean (B or B*N, T, S); segments: ids of targets and sources, or None each;
            shape: (B*N, T); stored: keys and values are cached; runs: no masks are made, see `takes_runs`.
        """
        segment_ids, memory_segments = segments
        sources, source_length = memory.shape[:2]
        if shape[0] % sources:
            raise ValueError(f"{shape[0]} target rows cannot be shared out evenly among {sources} sources")
        rows = (sources,) if mask is None or mask.ndim == 2 else (sources, shape[0])
        mask = check_mask("the source's attention mask", mask, source_length, *rows)
        if mask is not None and not stored and is_trivial(mask):
            mask = None
        padding = mask if mask is not None and mask.ndim == 2 else None
        if memory_segments is not None:
            if segment_ids is None:
                raise ValueError("segment_ids of packed sources need decoder_segment_ids of the targets")
            padding = memory_segments != 0
        layout = None if stored else TokenLayout.from_mask(padding)
        context = AttentionContext(key_layout=layout, implementation=self.implementation)
        if runs:
            ids = run_ids(memory_segments, mask)  # (B, S)
            if ids is not None:
                one_run = ids.new_ones(sources, shape.numel() // sources)  # (B, N*T)
                context.runs = TokenRuns(one_run if memory_segments is None else segment_ids, ids)
            return memory if layout is None else layout.pack(memory), context
        if memory_segments is not None:
            own = same_segment(segment_ids, memory_segments)  # (B, 1, T, S)
            mask = own if mask is None else own & to_four_dimensions(mask)
        if mask is not None:
            context.mask = fold_beams(to_four_dimensions(mask), sources, shape)  # (B, 1, 1 or N*T, S)
        return memory if layout is None else layout.pack(memory), context

"""What `GenerationMixin` needs to decode with shared sources, and without its surprises.

- The beams and samples of a source share its encoder states, masks and cross-attention cache (see `cache.py`): only the decoder's
  inputs are repeated.
- A default `generate` may produce as many tokens as a row's own source has, or states of its features, plus 50 (Vaswani et al.
  2017, section 6.1), never the library's 20; learned positions end it earlier. A limit that positions cannot reach is an error
  before decoding starts.
- Padding that no mask announces is inferred from the padding token, as in `forward`.
"""

from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.utils import logging

from .cache import PreallocatedLayer, TransductCache, reorder_beams
from .masks import infer_padding_mask, is_trivial

logger = logging.get_logger(__name__)

EXTRA_TOKENS = 50
NOT_PASSED_ON = ("streamer", "assistant_model")
"""Arguments that `generate` takes and no function of a caller's own ever sees."""
SOURCE_ARGUMENTS = ("attention_mask", "cross_attention_mask", "encoder_outputs", "inputs_embeds", "position_ids")


def forget_defaults(config: GenerationConfig) -> None:
    """Unset what the library wrote into `config` in place of None, where it did so for every option that has a default.

    `Seq2SeqTrainer` does after its first generated batch. Its 20 tokens would then count as chosen: they would cut all later
    batches, and be saved with the model. The other options mean the same unset. A `max_length` of 20 of one's own survives
    unless it goes through such a trainer; `max_new_tokens` always does.
    """
    defaults = {name: value for name, value in GenerationConfig._get_default_generation_params().items() if value is not None}
    if all(getattr(config, name, None) is not None for name in defaults):
        for name, value in defaults.items():
            if getattr(config, name) == value:
                setattr(config, name, None)


class SourceLengthCriteria(StoppingCriteria):
    """Ends each row at a length of its own, so that the padding of a batch has no say in it.

    Args:
        limits: tokens (B) in all, prompt included, for the targets of each source.
    """

    def __init__(self, limits: torch.Tensor):
        self.limits = limits

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        candidates = input_ids.shape[0] // self.limits.shape[0]
        return input_ids.shape[1] >= self.limits.to(input_ids.device).repeat_interleave(candidates)  # (rows)


class TransductGenerationMixin(GenerationMixin):
    """`generate` for models whose decoder rows are N consecutive ones per source."""

    @wraps(GenerationMixin.generate)
    def generate(self, *args: Any, **kwargs: Any):
        if callable(kwargs.get("custom_generate")):
            for name in NOT_PASSED_ON:
                if kwargs.get(name) is not None:
                    raise ValueError(f"{name} cannot be had with custom_generate, which is not told of it: leave one of them out")
        forget_defaults(self.generation_config)
        return super().generate(*args, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As of any model, with a `generation_config.json` that holds what was chosen."""
        forget_defaults(self.generation_config)
        super().save_pretrained(*args, **kwargs)

    def _maybe_prepare_encoder_kwargs_for_generation(self, inputs_tensor, model_kwargs, model_input_name, generation_config):
        """Settle the source's mask before anything is encoded; one that hides nothing is dropped here, once."""
        if self.config.is_encoder_decoder:
            mask = model_kwargs.pop("attention_mask", None)
            if mask is None and model_input_name == "input_ids":
                mask = infer_padding_mask(inputs_tensor, self.config.pad_token_id, self.config.eos_token_id)
            if mask is not None and not (is_trivial(mask) and mask.shape[-1] == self._mask_length(inputs_tensor)):
                model_kwargs["attention_mask"] = mask
        model_kwargs = super()._maybe_prepare_encoder_kwargs_for_generation(
            inputs_tensor, model_kwargs, model_input_name, generation_config
        )
        mask = model_kwargs.get("attention_mask")
        if self.config.is_encoder_decoder and mask is not None:
            states = model_kwargs["encoder_outputs"][0]  # (B, S, D)
            mask = model_kwargs["attention_mask"] = self.get_encoder().states_mask(mask, states.shape[1])
            generation_config._source_lengths = None if mask is None else mask.sum(1)  # (B)
        return model_kwargs

    def _prepare_attention_mask_for_generation(self, inputs_tensor, generation_config, model_kwargs) -> torch.Tensor:
        """As in transformers, where the second axis of any input is its length."""
        if self._reads_features(inputs_tensor):
            return inputs_tensor.new_ones(inputs_tensor.shape[0], self._mask_length(inputs_tensor), dtype=torch.long)
        return super()._prepare_attention_mask_for_generation(inputs_tensor, generation_config, model_kwargs)

    def _reads_features(self, inputs_tensor: torch.Tensor) -> bool:
        """Whether the source is features, and neither ids nor embeddings."""
        return self.main_input_name == "input_features" and inputs_tensor.is_floating_point()

    def _mask_length(self, inputs_tensor: torch.Tensor) -> int:
        """What a mask of this source covers: tokens or frames."""
        channels_first = self._reads_features(inputs_tensor) and self.config.feature_layout == "channels_first"
        return inputs_tensor.shape[2 if channels_first else 1]

    def _source_length(self, inputs_tensor: torch.Tensor) -> int:
        """How many encoder states this source has."""
        length = self._mask_length(inputs_tensor)
        return self.get_encoder().stem.output_length(length) if self._reads_features(inputs_tensor) else length

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: torch.LongTensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[torch.LongTensor, dict[str, Any]]:
        """Repeat what belongs to a target (B -> B*N rows) and leave what belongs to a source."""
        if not is_encoder_decoder:
            return super()._expand_inputs_for_generation(expand_size, is_encoder_decoder, input_ids, **model_kwargs)
        shared = {name: model_kwargs.pop(name) for name in SOURCE_ARGUMENTS if name in model_kwargs}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **model_kwargs)
        return input_ids, model_kwargs | shared

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in transformers, with the cache by its older name, by which peft's prefix tuning looks for it and puts a prefix.

        The tokenizer of `stop_strings` goes no further, which is no input of the model.
        """
        kwargs.pop("tokenizer", None)
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        inputs["past_key_values"] = inputs.pop("cache", None)
        return inputs

    def _prepare_generated_length(
        self, generation_config, has_default_max_length, has_default_min_length, model_input_name, input_ids_length, inputs_tensor
    ):
        most = self.config.resolved_decoder_max_positions
        limit = most + 1 if self.config.positions == "learned" else None  # the last token is never read
        if limit is not None and input_ids_length >= limit:
            raise ValueError(f"a prompt of {input_ids_length} tokens leaves none to generate within max_positions={most}")
        if has_default_max_length and generation_config.max_new_tokens is None:
            generation_config.max_new_tokens = self._source_length(inputs_tensor) + EXTRA_TOKENS
            lengths = getattr(generation_config, "_source_lengths", None)
            if lengths is not None:
                generation_config._row_limits = lengths + EXTRA_TOKENS + input_ids_length  # (B)
            if limit is not None:
                generation_config.max_new_tokens = min(generation_config.max_new_tokens, limit - input_ids_length)
        generation_config = super()._prepare_generated_length(
            generation_config, has_default_max_length, has_default_min_length, model_input_name, input_ids_length, inputs_tensor
        )
        if limit is not None and generation_config.max_length > limit:
            raise ValueError(
                f"max_length={generation_config.max_length} (prompt and new tokens) exceeds what max_positions="
                f"{most} learned positions can decode; ask for at most {limit - input_ids_length} new tokens"
            )
        return generation_config

    def _get_stopping_criteria(self, generation_config, stopping_criteria, tokenizer=None) -> StoppingCriteriaList:
        """With each row's own end, and no reminder of `max_positions`: where they end, longer outputs are refused above."""
        criteria = super()._get_stopping_criteria(generation_config, stopping_criteria, tokenizer)
        for criterion in criteria:
            if isinstance(criterion, MaxLengthCriteria):
                criterion.max_position_embeddings = None
        limits = getattr(generation_config, "_row_limits", None)
        if limits is not None:
            criteria.append(SourceLengthCriteria(limits))
        return criteria

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict, generation_mode, batch_size: int, max_cache_length: int
    ):
        """Preallocated, source-sharing caches unless the caller chose others."""
        chosen = generation_config.cache_implementation not in (None, "dynamic") or generation_config.use_cache is False
        if chosen or model_kwargs.get("cache") is not None:
            return super()._prepare_cache_for_generation(
                generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
            )
        encoder_decoder = self.config.is_encoder_decoder
        model_kwargs["cache"] = TransductCache() if encoder_decoder else Cache(layer_class_to_replicate=PreallocatedLayer)
        return None

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As in transformers, where flat indices are counted in the source's vocabulary, but in the target's."""
        target = SimpleNamespace(config=self.config.get_text_config(decoder=True))
        return GenerationMixin.compute_transition_scores(target, *args, **kwargs)

    def _reorder_cache(self, cache: Cache, beam_idx: torch.LongTensor) -> Cache:
        """Beams move within their source, so of any kind of cache only the self-attention part is re-ordered."""
        reorder_beams(cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache, beam_idx)
        return cache

    @staticmethod
    def create_masks_for_generate(config, inputs_embeds, attention_mask, cache, **kwargs) -> torch.Tensor | None:
        """The (B*N, past + T) mask as it is: `forward` builds those of static caches itself. One shape for all steps."""
        if attention_mask is None:
            return None
        return torch.nn.functional.pad(attention_mask, (0, cache.get_max_length() - attention_mask.shape[1]))

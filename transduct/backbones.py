"""The models without a head: encoder and decoder, or the encoder alone."""

import copy

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput

from .configuration import TransductConfig
from .masks import infer_padding_mask
from .pretrained import TransductPreTrainedModel, one_cache
from .stacks import Decoder, Encoder


class ResizableVocabularies(TransductPreTrainedModel):
    """Resizing, for the models with an encoder and a decoder."""

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize every matrix of the vocabulary; of the source's only, if the target has a vocabulary of its own."""
        if self.config.tie_embeddings in ("all", "source_target") or self.config.encoder_input == "features":
            resized = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
            if self.config.decoder_vocab_size is not None:
                self.config.decoder_vocab_size = resized.num_embeddings
            return resized
        resized = self._get_resized_embeddings(self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.set_input_embeddings(resized)
        self.config.vocab_size = resized.num_embeddings
        if self.config.decoder_vocab_size is None:
            self._resize_target(new_num_tokens, pad_to_multiple_of, mean_resizing)
        return resized

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the matrices of the target's own vocabulary.

        Raises:
            ValueError: if source and target share a vocabulary or its matrix.
        """
        if self.config.decoder_vocab_size is None or self.config.tie_embeddings in ("all", "source_target"):
            raise ValueError(
                f"source and target share a vocabulary (decoder_vocab_size={self.config.decoder_vocab_size}, "
                f"tie_embeddings={self.config.tie_embeddings!r}); use resize_token_embeddings"
            )
        resized = self._resize_target(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.decoder_vocab_size = resized.num_embeddings
        return resized

    def _resize_target(self, new_num_tokens: int | None, pad_to_multiple_of: int | None, mean_resizing: bool) -> nn.Embedding:
        decoder, head = self.base_model.decoder, self.get_output_embeddings()
        resized = self._get_resized_embeddings(decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder.embed_tokens = resized
        if head is not None:
            self.set_output_embeddings(self._get_resized_lm_head(head, resized.num_embeddings, mean_resizing=mean_resizing))
        self.tie_weights()
        return resized


class TransductModel(ResizableVocabularies):
    """Encoder and decoder without a head."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]

    def __init__(self, config: TransductConfig):
        super().__init__(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        if config.tie_embeddings in ("all", "source_target"):
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The source's table; the target's where the source is features."""
        return self.decoder.embed_tokens if self.config.encoder_input == "features" else self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if self.config.encoder_input == "features":
            self.decoder.embed_tokens = value
            return
        self.encoder.embed_tokens = value
        if self.config.tie_embeddings in ("all", "source_target"):
            self.decoder.embed_tokens.weight = value.weight
            self.decoder.embed_tokens.num_embeddings = value.num_embeddings

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        cross_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        decoder_segment_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        input_features: torch.Tensor | None = None,
    ) -> Seq2SeqModelOutput | tuple:
        """Source (B, S) and target inputs (B*N, T) to decoder states (B*N, T, D); N consecutive target rows share a source.

        Args:
            attention_mask: (B, S), True or 1 at real tokens; None: inferred from padding tokens at either end of a row. Or
                boolean per query, (B, S, S), for the encoder's self-attention.
            cross_attention_mask: (B, S), or boolean per query, (B*N, T, S); None: the tokens that `attention_mask` shows.
            decoder_attention_mask: (B*N, past + T), or boolean per query.
            segment_ids, decoder_segment_ids: several pairs a row, numbered from 1, 0 at padding.
            encoder_outputs: of an earlier call, instead of the source.
            input_features: (B, S, feature_size), or (B, feature_size, S) as `config.feature_layout` says, in place of `input_ids`
                for `config.encoder_input="features"`; `attention_mask` is then (B, S), True or 1 at real frames.

        Raises:
            ValueError: for missing or contradictory inputs, ids outside the vocabulary, empty batches, too long sequences.
        """
        cache = one_cache(cache, past_key_values)
        attentions, states, return_dict = self.return_options(output_attentions, output_hidden_states, return_dict)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("there are no targets: pass labels, decoder_input_ids or decoder_inputs_embeds")
        options = {"output_attentions": attentions, "output_hidden_states": states}
        if attention_mask is None and cross_attention_mask is None and segment_ids is None and input_ids is not None:
            attention_mask = infer_padding_mask(input_ids, self.config.pad_token_id, self.config.eos_token_id)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds, position_ids=position_ids, segment_ids=segment_ids,
                input_features=input_features, **options,
            )  # fmt: skip
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        assert not isinstance(encoder_outputs, tuple)
        if cross_attention_mask is None and attention_mask is not None:
            cross_attention_mask = self.encoder.states_mask(attention_mask, encoder_outputs.last_hidden_state.shape[1])
            while cross_attention_mask is not None and cross_attention_mask.ndim > 2:
                cross_attention_mask = cross_attention_mask.any(1)  # (B, S): what some query of the encoder sees
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs.last_hidden_state,
            cross_attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            position_ids=decoder_position_ids,
            segment_ids=decoder_segment_ids,
            encoder_segment_ids=segment_ids,
            use_cache=use_cache,
            **options,
        )
        assert not isinstance(decoder_outputs, tuple)
        output = Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )
        return output if return_dict else output.to_tuple()


class TransductEncoderModel(TransductPreTrainedModel):
    """The encoder alone, as an encoder of text or of features."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^(model\.)?decoder\."]

    def __init__(self, config: TransductConfig):
        config = copy.deepcopy(config)
        config.is_encoder_decoder = False
        super().__init__(config)
        self.encoder = Encoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token table, or the stem that features come through."""
        return self.encoder.embed_tokens if self.encoder.stem is None else self.encoder.stem

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if self.encoder.stem is not None:
            raise ValueError('there is no token table to set: the source of encoder_input="features" has none')
        self.encoder.embed_tokens = value

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        input_features: torch.Tensor | None = None,
    ) -> BaseModelOutput | tuple:
        """Source (B, S) to states (B, S, D), zero at padding; arguments as those of `TransductModel`."""
        attentions, states, return_dict = self.return_options(output_attentions, output_hidden_states, return_dict)
        if attention_mask is None and segment_ids is None and input_ids is not None:
            attention_mask = infer_padding_mask(input_ids, self.config.pad_token_id, self.config.eos_token_id)
        return self.encoder(
            input_ids,
            attention_mask,
            inputs_embeds,
            position_ids=position_ids,
            segment_ids=segment_ids,
            output_attentions=attentions,
            output_hidden_states=states,
            return_dict=return_dict,
            input_features=input_features,
        )

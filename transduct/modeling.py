"""The models with an output projection, and the one module through which every class is reached.

- `TransductForConditionalGeneration`: encoder, decoder and output projection; the main one.
- `TransductForCausalLM`: the decoder alone, also as a prefix-LM. `TransductForMaskedLM`: the encoder alone.
- Without a head: `backbones.py`. Classification heads: `classification.py`. Stacks and layers: `stacks.py`, `blocks.py`.

`forward` follows transformers 5.24 (`cache` in, `.cache` out; `past_key_values` is accepted) and takes no option that it does not
know.
"""

import copy

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput, Seq2SeqLMOutput

from .backbones import ResizableVocabularies, TransductEncoderModel, TransductModel
from .classification import (
    TransductForQuestionAnswering,
    TransductForSequenceClassification,
    TransductForTokenClassification,
    shift_right,
    without,
)
from .configuration import TransductConfig
from .generation import TransductGenerationMixin
from .layers import Linear
from .loss import IGNORE_INDEX, cross_entropy, cross_entropy_of_chunks, cross_entropy_of_logits
from .masks import check_shape
from .pretrained import TransductPreTrainedModel, one_cache, refuse_features
from .stacks import Decoder, check_ids

__all__ = [
    "TransductEncoderModel",
    "TransductForCausalLM",
    "TransductForConditionalGeneration",
    "TransductForMaskedLM",
    "TransductForQuestionAnswering",
    "TransductForSequenceClassification",
    "TransductForTokenClassification",
    "TransductModel",
]


def check_labels(labels: torch.Tensor, vocab_size: int) -> None:
    """Labels are token ids, or -100 where there is no target.

    Raises:
        ValueError: for anything else.
    """
    check_ids("labels (other than -100)", labels.masked_fill(labels == IGNORE_INDEX, 0), vocab_size)


class OutputProjection(TransductPreTrainedModel):
    """Logits and loss of states, for the classes with a vocabulary-sized head `lm_head`."""

    lm_head: nn.Linear

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of states (..., D)."""
        return self.lm_head(self.scale_states(hidden))

    def scale_states(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.config.d_model**-0.5 if self.config.scale_logits else hidden

    def loss(
        self, hidden: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None, logits: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Summed over targets and divided by `num_items`, or by their number here; from the logits where they exist anyway."""
        check_shape("labels", labels, *hidden.shape[:2])
        labels = labels.to(hidden.device, torch.long)
        smoothing, z_loss = self.config.label_smoothing, self.config.z_loss
        if logits is not None:
            return cross_entropy_of_logits(logits, labels, smoothing, z_loss, num_items)
        states, head = self.scale_states(hidden), self.lm_head
        if type(head) not in (nn.Linear, Linear) or "forward" in vars(head):  # an adapter, a quantised or an offloaded matrix
            return cross_entropy_of_chunks(head, states, labels, smoothing, z_loss, num_items)
        return cross_entropy(states, head.weight, labels, head.bias, smoothing, z_loss, num_items)


class TransductForConditionalGeneration(TransductGenerationMixin, ResizableVocabularies, OutputProjection):
    """Encoder, decoder and output projection: the model of the papers."""

    def __init__(self, config: TransductConfig):
        super().__init__(config)
        self.model = TransductModel(config)
        self.lm_head = Linear(config.d_model, config.resolved_decoder_vocab_size, bias=config.logits_bias)
        if config.tie_embeddings == "all":
            self._tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
        elif config.tie_embeddings == "target_output":
            self._tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels (B, T) to decoder inputs (B, T): shifted right, ignored targets as padding."""
        return shift_right(labels, self.config)

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
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        input_features: torch.Tensor | None = None,
    ) -> Seq2SeqLMOutput | tuple:
        """Loss and logits. Arguments that are not listed are those of `TransductModel.forward`.

        Args:
            labels: (B*N, T), -100 where there is no target. Without decoder inputs they are shifted right to make them.
            logits_to_keep: compute the logits of the last so many positions only; 0: of all.
            num_items_in_batch: what the summed loss is divided by; None: the number of targets of this batch.
            return_logits: whether logits are wanted beside a loss; None: not while training, where they would never be needed
                whole.

        Returns:
            `loss`, `logits` (B*N, T or logits_to_keep, V), `cache`, and what else was asked for.

        Raises:
            ValueError: for missing or contradictory inputs, ids outside the vocabulary, empty batches, too long sequences.
        """
        return_dict = self.return_options(None, None, return_dict)[2]
        if labels is not None:
            check_labels(labels, self.config.resolved_decoder_vocab_size)
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = shift_right(labels, self.config)
        with_logits = (labels is None or not self.training) if return_logits is None else return_logits
        masked = decoder_attention_mask is not None or decoder_segment_ids is not None
        if labels is not None and not with_logits and not masked and cache is None and past_key_values is None:
            decoder_attention_mask = up_to_last_target(labels)  # what comes after it trains nothing
        outputs = self.model(
            input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, cross_attention_mask, position_ids,
            decoder_position_ids, segment_ids, decoder_segment_ids, encoder_outputs, cache, past_key_values, inputs_embeds,
            decoder_inputs_embeds, use_cache, output_attentions, output_hidden_states, return_dict=True,
            input_features=input_features,
        )  # fmt: skip
        hidden = outputs.last_hidden_state  # (B*N, T, D)
        logits = self.project(hidden[:, -logits_to_keep:] if logits_to_keep else hidden) if with_logits else None
        loss = None
        if labels is not None:
            loss = self.loss(hidden, labels, num_items_in_batch, None if logits_to_keep else logits)
        output = Seq2SeqLMOutput(loss=loss, logits=logits, **without(outputs, "last_hidden_state"))
        return output if return_dict else output.to_tuple()


class TransductForMaskedLM(OutputProjection):
    """The encoder with an output projection, for masked language modelling."""

    _keys_to_ignore_on_load_unexpected = [r"^model\.decoder\."]

    def __init__(self, config: TransductConfig):
        refuse_features(type(self), config)
        config = copy.deepcopy(config)
        config.is_encoder_decoder = False
        super().__init__(config)
        self.model = TransductEncoderModel(config)
        self.lm_head = Linear(config.d_model, config.vocab_size, bias=config.logits_bias)
        if config.tie_embeddings in ("all", "target_output"):
            self._tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
    ) -> MaskedLMOutput | tuple:
        """Logits (B, S, V) and the loss of `labels` (B, S), -100 at tokens that were not masked."""
        return_dict = self.return_options(None, None, return_dict)[2]
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
        outputs = self.model(
            input_ids, attention_mask, position_ids, segment_ids, inputs_embeds, output_attentions, output_hidden_states,
            return_dict=True,
        )  # fmt: skip
        hidden = outputs.last_hidden_state  # (B, S, D)
        with_logits = (labels is None or not self.training) if return_logits is None else return_logits
        logits = self.project(hidden) if with_logits else None
        loss = None if labels is None else self.loss(hidden, labels, num_items_in_batch, logits)
        output = MaskedLMOutput(loss=loss, logits=logits, **without(outputs, "last_hidden_state"))
        return output if return_dict else output.to_tuple()


class TransductForCausalLM(TransductGenerationMixin, OutputProjection):
    """The decoder without cross-attention: a language model, or with `prefix_mask` a prefix-LM."""

    reads_source = False

    def __init__(self, config: TransductConfig):
        config = copy.deepcopy(config)
        config.is_encoder_decoder = False
        super().__init__(config)
        self.decoder = Decoder(config, cross_attention=False)
        self.lm_head = Linear(config.d_model, config.resolved_decoder_vocab_size, bias=config.logits_bias)
        if config.tie_embeddings in ("all", "target_output"):
            self._tied_weights_keys = {"lm_head.weight": "decoder.embed_tokens.weight"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embed_tokens = value

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        """Resize the decoder's vocabulary, which is the target's where there are two."""
        of_source = self.config.vocab_size
        resized = super().resize_token_embeddings(*args, **kwargs)
        if self.config.decoder_vocab_size is not None:
            self.config.vocab_size, self.config.decoder_vocab_size = of_source, resized.num_embeddings
        return resized

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        prefix_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits (B, T, V); `labels` (B, T) are the inputs themselves, each predicted from what comes before it.

        The first token of a row, of a segment and after padding on the left is no target.

        Args:
            attention_mask: (B, past + T); prefix_mask: (B, up to past + T), True at tokens that all may see.
            segment_ids: (B, T), several texts a row, 0 at padding.
        """
        cache = one_cache(cache, past_key_values)
        attentions, states, return_dict = self.return_options(output_attentions, output_hidden_states, return_dict)
        if labels is not None:
            check_labels(labels, self.config.resolved_decoder_vocab_size)
            use_cache = False
        outputs = self.decoder(
            input_ids, attention_mask, cache=cache, inputs_embeds=inputs_embeds, position_ids=position_ids,
            segment_ids=segment_ids, prefix_mask=prefix_mask, use_cache=use_cache, output_attentions=attentions,
            output_hidden_states=states,
        )  # fmt: skip
        hidden = outputs.last_hidden_state  # (B, T, D)
        with_logits = (labels is None or not self.training) if return_logits is None else return_logits
        logits = self.project(hidden[:, -logits_to_keep:] if logits_to_keep else hidden) if with_logits else None
        loss = None
        if labels is not None:
            targets = labels[:, 1:]
            if segment_ids is not None:
                targets = targets.masked_fill(segment_ids[:, 1:] != segment_ids[:, :-1], IGNORE_INDEX)
            if attention_mask is not None and attention_mask.ndim == 2:  # nothing is predicted from padding on the left
                targets = targets.masked_fill(attention_mask[:, :-1] == 0, IGNORE_INDEX)
            loss = self.loss(hidden[:, :-1], targets, num_items_in_batch)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits, cache=outputs.cache, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
        return output if return_dict else output.to_tuple()


def up_to_last_target(labels: torch.Tensor) -> torch.Tensor:
    """Mask (B, T): True up to the last target of each row."""
    return (labels != IGNORE_INDEX).flip(1).cumsum(1).flip(1) > 0

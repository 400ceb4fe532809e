"""Classification heads on the models without a head, as T5 and BART have them."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import (
    Seq2SeqQuestionAnsweringModelOutput,
    Seq2SeqSequenceClassifierOutput,
    TokenClassifierOutput,
)

from .backbones import ResizableVocabularies, TransductEncoderModel, TransductModel
from .configuration import TransductConfig
from .loss import IGNORE_INDEX
from .masks import infer_padding_mask
from .pretrained import TransductPreTrainedModel, refuse_features


def start_token(config: TransductConfig) -> int:
    """Raises ValueError if the config has none."""
    if config.decoder_start_token_id is None:
        raise ValueError("config.decoder_start_token_id is None; set it, since the decoder's first input must be known")
    return config.decoder_start_token_id


def first_inputs(ids: torch.Tensor, config: TransductConfig) -> torch.Tensor:
    """First decoder inputs (B, 1) for targets (B, T): the start token, or as `config.target_start` says each row's last token."""
    if config.target_start == "start_token":
        return torch.full_like(ids[:, :1], start_token(config))
    real = (ids != IGNORE_INDEX) & (ids != config.pad_token_id)  # (B, T)
    slots = torch.arange(ids.shape[1], device=ids.device)
    return ids.gather(1, torch.where(real, slots, 0).amax(1, keepdim=True))  # (B, 1)


def shift_right(ids: torch.Tensor, config: TransductConfig) -> torch.Tensor:
    """Decoder inputs (B, T): the first one as the config says, then all but the last id, -100 becoming padding.

    Raises:
        ValueError: if the config has no `decoder_start_token_id`, or no `pad_token_id` although it is needed.
    """
    if config.pad_token_id is None:
        raise ValueError("config.pad_token_id is None; set it, since ignored targets (-100) become padding of decoder inputs")
    shifted = torch.cat([first_inputs(ids, config), ids[:, :-1]], dim=1)  # (B, T)
    return shifted.masked_fill(shifted == IGNORE_INDEX, config.pad_token_id)


def shift_text(ids: torch.Tensor, mask: torch.Tensor | None, config: TransductConfig) -> torch.Tensor:
    """Decoder inputs (B, T) that are the source itself: shifted right, the first input at the first real token of each row."""
    shifted = shift_right(ids, config)
    if mask is None:
        return shifted
    return torch.where((mask != 0) & (mask.cumsum(1) == 1), shifted[:, :1], shifted)


class TextClassifier(ResizableVocabularies):
    """What the classifiers share whose source and target are one text."""

    def text_mask(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """Where the text is (B, T), given or inferred from its padding; None where that is not known."""
        if attention_mask is None:
            return infer_padding_mask(input_ids, self.config.pad_token_id, self.config.eos_token_id)
        return attention_mask if attention_mask.ndim == 2 and attention_mask.shape == input_ids.shape else None


class ClassificationHead(nn.Module):
    """Two projections with tanh between (BART, section 3.1; RoBERTa)."""

    def __init__(self, d_model: int, num_labels: int, dropout: float):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_model, num_labels)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.dense(self.dropout(hidden)))  # (B, D)
        return self.out_proj(self.dropout(hidden))  # (B, labels)


class TransductForSequenceClassification(TextClassifier):
    """A label of the whole source, from the decoder's state at its last end token: source and target inputs are one text.

    Features have no text to repeat: the decoder then reads its start token alone, whose state is classified.
    """

    new_head = "classification_head."
    accepts_loss_kwargs = False
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]

    def __init__(self, config: TransductConfig):
        super().__init__(config)
        self.model = TransductModel(config)
        self.classification_head = ClassificationHead(config.d_model, config.num_labels, config.classifier_dropout)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        input_features: torch.Tensor | None = None,
        **inputs,
    ) -> Seq2SeqSequenceClassifierOutput | tuple:
        """Logits (B, labels). `decoder_input_ids` default to the source, shifted right (T5, BART).

        Args:
            labels: (B) class ids, or floats (B, labels) for regression and several labels at once (`config.problem_type`).
            input_features: (B, S, feature_size) in place of `input_ids`, for `config.encoder_input="features"`.
            inputs: further arguments of `TransductModel`.

        Raises:
            ValueError: if a row has no end token, or for decoder inputs beside features.
        """
        return_dict = self.return_options(None, None, return_dict)[2]
        text_mask = None if input_ids is None else self.text_mask(input_ids, attention_mask)
        if self.config.encoder_input == "features":
            decoder_input_ids = self.start_tokens(input_features, decoder_input_ids)
        elif input_ids is None:
            raise ValueError("sequence classification needs input_ids: the state at their last end token is classified")
        elif decoder_input_ids is None:
            decoder_input_ids = shift_text(input_ids, text_mask, self.config)
            inputs.setdefault("decoder_attention_mask", text_mask)
        inputs.setdefault("use_cache", False)
        outputs = self.model(
            input_ids, attention_mask, decoder_input_ids, return_dict=True, input_features=input_features,
            output_attentions=output_attentions, output_hidden_states=output_hidden_states, **inputs,
        )  # fmt: skip
        hidden = outputs.last_hidden_state  # (B, T, D)
        state = hidden[:, 0] if input_ids is None else self.last_end_state(hidden, input_ids, text_mask)  # (B, D)
        logits = self.classification_head(state)  # (B, labels)
        output = Seq2SeqSequenceClassifierOutput(logits=logits, **without(outputs, "last_hidden_state"))
        if labels is not None:
            output = Seq2SeqSequenceClassifierOutput(loss=self.loss(logits, labels.to(logits.device)), **output)
        return output if return_dict else output.to_tuple()

    def start_tokens(self, features: torch.Tensor | None, decoder_input_ids: torch.Tensor | None) -> torch.Tensor:
        """Decoder inputs (B, 1) for a source of features."""
        if features is None or decoder_input_ids is not None:
            raise ValueError("sequence classification of features needs input_features, and makes decoder_input_ids itself")
        return torch.full((len(features), 1), start_token(self.config), device=features.device)

    def last_end_state(self, hidden: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The state (B, D) at the last end token of each row."""
        if self.config.eos_token_id is None:
            raise ValueError("config.eos_token_id is None; set it, since the state at the last end token of a row is classified")
        ends = torch.isin(input_ids, torch.tensor(self.config.eos_token_id, device=input_ids.device))  # (B, T)
        if mask is not None:
            ends = ends & (mask != 0)
        if not torch.compiler.is_compiling() and not ends.any(1).all():
            raise ValueError(f"every row of input_ids must contain eos_token_id={self.config.eos_token_id}")
        slots = torch.arange(input_ids.shape[1], device=input_ids.device)
        last = torch.where(ends, slots, -1).amax(1)  # (B)
        return hidden[torch.arange(len(last), device=last.device), last]  # (B, D)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Squared error, cross-entropy or binary cross-entropy, by `config.problem_type` or else by the labels' form."""
        problem = self.config.problem_type
        if problem is None and self.config.num_labels == 1:
            problem = "regression"
        elif problem is None:
            problem = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        if problem == "regression":
            return F.mse_loss(logits.squeeze(-1) if labels.ndim == 1 else logits, labels.to(logits.dtype))
        if problem == "single_label_classification":
            return F.cross_entropy(logits, labels.view(-1))
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


class TransductForQuestionAnswering(TextClassifier):
    """Start and end of the answer in the source, from the decoder's states on the same text."""

    new_head = "qa_outputs."
    accepts_loss_kwargs = False
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]

    def __init__(self, config: TransductConfig):
        refuse_features(type(self), config)
        super().__init__(config)
        self.model = TransductModel(config)
        self.qa_outputs = nn.Linear(config.d_model, 2)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **inputs,
    ) -> Seq2SeqQuestionAnsweringModelOutput | tuple:
        """Start and end logits (B, T). Answers outside the text (below 0, from T on, in padding) are left out of the loss."""
        return_dict = self.return_options(None, None, return_dict)[2]
        text_mask = None if input_ids is None else self.text_mask(input_ids, attention_mask)
        if decoder_input_ids is None and input_ids is not None:
            decoder_input_ids = shift_text(input_ids, text_mask, self.config)
            inputs.setdefault("decoder_attention_mask", text_mask)
        inputs.setdefault("use_cache", False)
        outputs = self.model(
            input_ids, attention_mask, decoder_input_ids, return_dict=True,
            output_attentions=output_attentions, output_hidden_states=output_hidden_states, **inputs,
        )  # fmt: skip
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)  # (B, T) each
        loss = None
        if start_positions is not None and end_positions is not None:
            starts = span_loss(start_logits, start_positions, text_mask)
            loss = (starts + span_loss(end_logits, end_positions, text_mask)) / 2
        rest = without(outputs, "last_hidden_state")
        output = Seq2SeqQuestionAnsweringModelOutput(loss=loss, start_logits=start_logits, end_logits=end_logits, **rest)
        return output if return_dict else output.to_tuple()


def span_loss(logits: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Mean cross-entropy over the rows of `logits` (B, T) whose position (B) lies in the text; 0 where there are none.

    Args:
        mask: (B, T), where the text is: padding is no candidate, so that it changes no loss.
    """
    positions = positions.view(-1).to(logits.device)
    inside = (positions >= 0) & (positions < logits.shape[1])  # (B)
    if mask is not None:
        text = mask.to(logits.device) != 0  # (B, T)
        inside = inside & text.gather(1, positions.clamp(0, logits.shape[1] - 1)[:, None]).squeeze(1)
        logits = logits.masked_fill(~text & text.any(1, keepdim=True), float("-inf"))
    losses = F.cross_entropy(logits, positions.where(inside, IGNORE_INDEX), ignore_index=IGNORE_INDEX, reduction="sum")
    return losses / inside.sum().clamp(min=1)


class TransductForTokenClassification(TransductPreTrainedModel):
    """A label for every source token, from the encoder's states."""

    new_head = "classifier."
    accepts_loss_kwargs = False
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^model\.decoder\."]

    def __init__(self, config: TransductConfig):
        super().__init__(config)
        self.model = TransductEncoderModel(config)
        self.config = self.model.config
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **inputs,
    ) -> TokenClassifierOutput | tuple:
        """Logits (B, S, labels); `labels` (B, S) with -100 ignored, the loss being the mean over the others.

        With features, one for each state that the stem makes.
        """
        return_dict = self.return_options(None, None, return_dict)[2]
        outputs = self.model(
            input_ids, attention_mask, return_dict=True,
            output_attentions=output_attentions, output_hidden_states=output_hidden_states, **inputs,
        )  # fmt: skip
        logits = self.classifier(self.dropout(outputs.last_hidden_state))  # (B, S, labels)
        loss = None
        if labels is not None:
            labels = labels.to(logits.device).view(-1)
            total = F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORE_INDEX, reduction="sum")
            loss = total / (labels != IGNORE_INDEX).sum().clamp(min=1)
        output = TokenClassifierOutput(loss=loss, logits=logits, **without(outputs, "last_hidden_state"))
        return output if return_dict else output.to_tuple()


def without(output, name: str) -> dict:
    """The fields of a model output except one."""
    return {key: value for key, value in output.items() if key != name}

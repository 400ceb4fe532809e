"""The architecture as data: one config that is Vaswani et al. 2017, T5 or BART, by its values alone.

- Every architectural choice is one field with a `Literal` type, documented below it with its unit and its paper section.
- Defaults are the base model of "Attention Is All You Need" (arXiv 1706.03762).
- Rules that span fields live in `validate_architecture`; each error names the field, the value and the rule.
- A mistyped field name raises. A config *file* with keys of a newer version loads, with a warning that names them.

References: Vaswani et al. 2017 (arXiv 1706.03762), T5 (arXiv 1910.10683), BART (arXiv 1910.13461), RMSNorm (arXiv
1910.07467), gated feed-forwards (arXiv 2002.05202), rotary positions (arXiv 2104.09864), ALiBi (arXiv 2108.12409).
"""

import copy
from collections.abc import Iterable
from dataclasses import fields
from math import inf
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

logger = logging.get_logger(__name__)

AUTO_MAP = {
    "AutoConfig": "configuration.TransductConfig",
    "AutoModel": "modeling.TransductModel",
    "AutoModelForSeq2SeqLM": "modeling.TransductForConditionalGeneration",
    "AutoModelForSpeechSeq2Seq": "modeling.TransductForConditionalGeneration",
    "AutoModelForTextEncoding": "modeling.TransductEncoderModel",
    "AutoModelForCausalLM": "modeling.TransductForCausalLM",
    "AutoModelForMaskedLM": "modeling.TransductForMaskedLM",
    "AutoModelForSequenceClassification": "modeling.TransductForSequenceClassification",
    "AutoModelForQuestionAnswering": "modeling.TransductForQuestionAnswering",
    "AutoModelForTokenClassification": "modeling.TransductForTokenClassification",
}
"""Written into every config.json, so that each class loads with `trust_remote_code=True` where the package is absent."""

FORMAT_VERSION = 1
"""Written into every config.json too. It rises when an older version of this package would read a checkpoint wrongly; a file
without it is of version 1. Every version reads all that came before."""


class ConfigurationError(ValueError, StrictDataclassError):
    """A field of `TransductConfig` has an unknown name, a wrong type, or a value that another field forbids."""


@strict
class TransductConfig(PreTrainedConfig):
    """Every choice that makes an encoder-decoder Transformer. Keyword-only; see the text below each field.

    Raises:
        ConfigurationError: (a `ValueError`) for an unknown field, a wrong type or an impossible combination.
    """

    model_type = "transduct"
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "encoder_layers",
        "max_position_embeddings": "max_positions",
    }
    keys_to_ignore_at_inference = ["cache", "past_key_values"]

    # ---- sizes ----------------------------------------------------------------------------------------------------
    vocab_size: int = 37000
    """Tokens of the source vocabulary, and of the target's too unless `decoder_vocab_size` is set (section 5.1: 37,000). Of the
    target's where the source is features."""
    decoder_vocab_size: int | None = None
    """Tokens of the target vocabulary; None: one vocabulary for both sides."""
    d_model: int = 512
    """Width of every layer's input and output (section 3.1)."""
    d_ff: int = 2048
    """Width of the feed-forward's hidden layer (section 3.3)."""
    d_kv: int | None = None
    """Width of one head's queries, keys and values (section 3.2.2); None: `d_model / num_heads`. T5 chooses it freely."""
    d_value: int | None = None
    """Width of one head's values (d_v of section 3.2.2), where Table 3 (B) narrows queries and keys alone; None: `d_kv`."""
    num_heads: int = 8
    """Attention heads (section 3.2.2)."""
    encoder_layers: int = 6
    """Layers of the encoder (section 3.1)."""
    decoder_layers: int = 6
    """Layers of the decoder (section 3.1)."""
    decoder_d_ff: int | None = None
    """Feed-forward width of the decoder; None: `d_ff`."""
    decoder_num_heads: int | None = None
    """Attention heads of the decoder; None: `num_heads`."""
    num_key_value_heads: int | None = None
    """Key and value heads, each shared by a group of query heads (arXiv 2305.13245); None: one a query head."""

    # ---- norms ----------------------------------------------------------------------------------------------------
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Layer normalisation, or T5's root-mean-square norm without mean and bias (arXiv 1910.07467)."""
    norm_position: Literal["post", "pre"] = "post"
    """Norm after the residual sum (section 3.1, BART) or before the sublayer (T5, section 2.1)."""
    norm_eps: float | int = 1e-5
    """Added to the variance. T5: 1e-6."""
    norm_bias: bool = True
    """Whether layer norms have a bias. RMSNorm never has one."""
    embedding_norm: bool = False
    """A layer norm on embedding + position (BART)."""
    decoder_embedding_norm: Literal["after_positions", "before_positions"] = "after_positions"
    """Whether the decoder's `embedding_norm` sees the positions too, or they are added to its output (BlenderBot small)."""
    final_norm: bool | None = None
    """A norm at the end of each stack; None: exactly when `norm_position` is "pre"."""

    # ---- positions ------------------------------------------------------------------------------------------------
    positions: Literal["sinusoidal", "learned", "relative_bias", "rotary", "alibi", "none"] = "sinusoidal"
    """How order enters: added (section 3.5; Table 3 E), T5's bias by distance bucket, rotated queries and keys, ALiBi, or not."""
    max_positions: int = 1024
    """Longest source or target in tokens: a hard limit for "learned" only; the first table size for "sinusoidal"."""
    decoder_max_positions: int | None = None
    """The same of the target, where it differs (Whisper: 1,500 frames, 448 tokens); None: `max_positions`."""
    position_offset: int = 0
    """Rows of the table before position 0, learned (BART: 2) or sinusoidal (fairseq, M2M100: 2)."""
    freeze_encoder_positions: bool = False
    """The encoder's table of positions is constant: tensor2tensor's sinusoids, or what a checkpoint brings (Whisper)."""
    sinusoid_layout: Literal["interleaved", "halves", "tensor2tensor"] = "interleaved"
    """sin and cos in alternating columns (section 3.5), or all sines first (Marian, Pegasus), or that with wavelengths which
    reach 10,000 * 2 pi itself (tensor2tensor, fairseq, M2M100); see `positions.sinusoid_table`."""
    relative_buckets: int = 32
    """Distance buckets of the relative bias (T5, section 2.1)."""
    relative_max_distance: int = 128
    """Distance in tokens from which on all share the last bucket (T5, section 2.1)."""
    relative_bias_per_layer: bool = False
    """A bias table in every layer (UMT5) instead of one that the whole stack shares (T5)."""
    rotary_base: float | int = 10000.0
    """Base of the rotary wavelengths (arXiv 2104.09864, section 3.2.2)."""

    # ---- attention ------------------------------------------------------------------------------------------------
    attention_scale: Literal["sqrt", "none"] = "sqrt"
    """Scores divided by sqrt(d_kv) (section 3.2.1), or not (T5 folds it into the initialisation)."""
    attention_bias: bool = True
    """Biases in the four attention projections. T5: none."""
    key_bias: bool = True
    """Whether, given `attention_bias`, the key projection has one too. Whisper: no."""

    # ---- feed-forward ---------------------------------------------------------------------------------------------
    activation: str = "relu"
    """Any name of transformers' `ACT2FN`: "relu" (section 3.3), "gelu" (BART), "gelu_new" (T5 1.1), "silu" (Marian)."""
    gated_ffn: bool = False
    """Multiply the activated projection by a second, linear one (arXiv 2002.05202; T5 1.1)."""
    ffn_bias: bool = True
    """Biases in the feed-forward. T5: none."""

    # ---- embeddings -----------------------------------------------------------------------------------------------
    scale_embeddings: bool = True
    """Multiply embeddings of tokens by sqrt(d_model) before positions are added (section 3.4). What a stem makes of features is
    not multiplied."""
    decoder_scale_embeddings: bool | None = None
    """The same of the target's; None: `scale_embeddings` (BlenderBot small scales the source's alone)."""
    tie_embeddings: Literal["all", "source_target", "target_output", "none"] = "all"
    """Which of source embedding, target embedding and output projection are one matrix (section 3.4: all). A source of features
    has no embedding: "target_output" or "none"."""
    freeze_padding_embedding: bool = False
    """The embedding of `pad_token_id` starts at zero and looking it up trains nothing (BART, Marian)."""
    logits_bias: bool = False
    """A trainable bias on the logits (Marian)."""
    scale_logits: bool = False
    """Multiply the decoder's output by d_model^-0.5 before the output projection (T5 1.0)."""

    # ---- source ---------------------------------------------------------------------------------------------------
    encoder_input: Literal["tokens", "features"] = "tokens"
    """Token ids, or float vectors of `feature_size` (speech frames, image patches, time series), a frame each."""
    feature_size: int | None = None
    """Width of one input vector, for `encoder_input="features"`."""
    feature_stem: Literal["linear", "conv"] = "linear"
    """How features enter the encoder: one projection, or two convolutions of kernel 3, the second of which makes one state of two
    frames (Whisper, arXiv 2212.04356, section 2.2). `max_positions` counts states."""
    feature_activation: str = "gelu"
    """After each convolution of the stem: any name of `ACT2FN` (Whisper: "gelu")."""
    feature_layout: Literal["time_first", "channels_first"] = "time_first"
    """`input_features` are (rows, frames, feature_size), or (rows, feature_size, frames) as from `WhisperFeatureExtractor`."""
    feature_padding: Literal["hidden", "seen"] = "hidden"
    """Whether frames that `attention_mask` excludes are hidden, or input like any other. Whisper was trained without a mask and
    sees the silence up to the end of its 30 seconds."""

    # ---- regularisation -------------------------------------------------------------------------------------------
    dropout: float | int = 0.1
    """Probability on each sublayer's output and on embedding + position (section 5.4)."""
    attention_dropout: float | int = 0.0
    """Probability on attention weights."""
    activation_dropout: float | int = 0.0
    """Probability on the feed-forward's hidden layer."""
    final_dropout: bool = False
    """Apply `dropout` once more to the output of each stack (T5)."""
    classifier_dropout: float | int = 0.0
    """Probability inside the classification heads."""
    layer_drop: float | int = 0.0
    """Probability of skipping a whole layer while training (arXiv 1909.11556)."""
    decoder_layer_drop: float | int | None = None
    """The same in the decoder; None: `layer_drop`."""

    # ---- loss -----------------------------------------------------------------------------------------------------
    label_smoothing: float | int = 0.0
    """Share of the target probability spread over the vocabulary (section 5.4: 0.1); part of `loss` in evaluation too."""
    z_loss: float | int = 0.0
    """Weight of log(Z)^2, which keeps logits near zero (T5X: 1e-4); part of `loss` in evaluation too."""

    # ---- initialisation -------------------------------------------------------------------------------------------
    initializer: Literal["xavier", "t5", "normal"] = "xavier"
    """Xavier-uniform matrices with N(0, 1/d_model) embeddings, T5's table, or N(0, initializer_std^2) (BART)."""
    initializer_std: float | int = 0.02
    """Standard deviation for `initializer="normal"` (BART: 0.02)."""

    # ---- tokens ---------------------------------------------------------------------------------------------------
    pad_token_id: int | None = 0
    """Padding on both sides."""
    bos_token_id: int | None = None
    """Begin of sequence, where the tokenizer has one."""
    eos_token_id: int | list[int] | None = 1
    """End of sequence; a list: any of them ends it."""
    decoder_start_token_id: int | None = 0
    """First input of the decoder. Marian and T5 use the padding token, BART uses `</s>`."""
    target_start: Literal["start_token", "last_token"] = "start_token"
    """First input of the decoder where that is made from labels: `decoder_start_token_id`, or each row's own last token, which
    names its language (mBART, arXiv 2001.08210, section 2.2)."""

    # ---- origin ---------------------------------------------------------------------------------------------------
    origin: dict[str, Any] | None = None
    """Of an imported checkpoint: what `transduct.convert` must know to write it back; see there."""

    # ---- runtime --------------------------------------------------------------------------------------------------
    use_cache: bool = True
    """Return key/value caches from `forward` where nothing is being trained."""
    is_encoder_decoder: bool = True
    """False in the configs of the encoder-only and decoder-only classes."""

    def __post_init__(self, **kwargs: Any):
        for name in set(kwargs) & set(self.attribute_map):
            setattr(self, self.attribute_map[name], kwargs.pop(name))  # by its own name, so that its type is checked
        unknown = sorted(set(kwargs) - _INHERITED_KEYS)
        if unknown:
            raise ValueError(f"TransductConfig has no field {', '.join(map(repr, unknown))}; see its documentation for the names")
        kwargs.pop("auto_map", None)  # always written anew, for the code that travels with the checkpoint
        _check_format(kwargs.pop("format_version", FORMAT_VERSION))
        super().__post_init__(**kwargs)
        self.auto_map = dict(AUTO_MAP)
        self.format_version = FORMAT_VERSION

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any):
        """As `PreTrainedConfig.from_dict`, but keys that this version does not know are dropped with a warning.

        Raises:
            ValueError: for the config of another type of model or of a newer format, or overrides that do not fit.
        """
        kind = config_dict.get("model_type", cls.model_type)
        rule = f"is another type of model than {cls.model_type!r}; load it with the Auto classes, or with those of its own"
        _require(kind == cls.model_type, "model_type", kind, rule)
        _check_format(config_dict.get("format_version", 1))
        newer = cls.unknown_keys(config_dict)
        if newer:
            logger.warning(
                f"This config has keys that this version of transduct does not know: {newer}. They are ignored; "
                "install the version that wrote it if the model should behave as it did there."
            )
        result = super().from_dict({k: v for k, v in config_dict.items() if k not in newer}, **kwargs)
        (result[0] if isinstance(result, tuple) else result).validate_architecture()  # overrides were set after the file's values
        return result

    @classmethod
    def unknown_keys(cls, values: Iterable[str]) -> list[str]:
        """Those of a config file's keys that this version does not know."""
        return sorted(set(values) - {f.name for f in fields(cls)} - _INHERITED_KEYS)

    def to_dict(self) -> dict[str, Any]:
        """As `PreTrainedConfig.to_dict`, but without a `num_key_value_heads` of None: peft counts with what it finds there."""
        values = super().to_dict()
        if values.get("num_key_value_heads") is None:
            values.pop("num_key_value_heads", None)
        return values

    def to_diff_dict(self) -> dict[str, Any]:
        """What a file holds: all that makes the model."""
        return {**super().to_diff_dict(), "num_key_value_heads": self.num_key_value_heads}

    def validate_architecture(self):
        """Rules that span fields. Each error names the field, its value and the rule."""
        for name in ("vocab_size", "d_model", "d_ff", "num_heads", "max_positions", "relative_buckets", "relative_max_distance"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in (
            "decoder_vocab_size", "d_kv", "d_value", "decoder_d_ff", "decoder_num_heads", "num_key_value_heads", "feature_size",
            "decoder_max_positions",
        ):  # fmt: skip
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "must be None or at least 1")
        for name in ("encoder_layers", "decoder_layers", "position_offset"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        for name in ("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "layer_drop", "label_smoothing"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must lie in [0, 1)")
        drop = self.decoder_layer_drop
        _require(drop is None or 0 <= drop < 1, "decoder_layer_drop", drop, "must be None or lie in [0, 1)")
        before = self.decoder_embedding_norm == "before_positions"
        _require(self.embedding_norm or not before, "decoder_embedding_norm", "before_positions", "needs embedding_norm=True")
        for name in ("norm_eps", "initializer_std", "rotary_base"):
            _require(0 < getattr(self, name) < inf, name, getattr(self, name), "must be positive and finite")
        _require(0 <= self.z_loss < inf, "z_loss", self.z_loss, "must be finite and not negative")
        _require(self.activation in ACT2FN, "activation", self.activation, f"must be one of {sorted(ACT2FN)}")
        self._validate_heads()
        self._validate_positions()
        self._validate_vocabularies()
        self._validate_tokens()
        frozen = self.freeze_padding_embedding
        _require(not frozen or self.pad_token_id is not None, "freeze_padding_embedding", frozen, "needs a pad_token_id")
        self._validate_features()

    def _validate_heads(self):
        for name, heads in (("num_heads", self.num_heads), ("decoder_num_heads", self.resolved_decoder_num_heads)):
            if self.d_kv is None:
                rule = f"must divide d_model={self.d_model}, or set d_kv"
                _require(self.d_model % heads == 0, name, heads, rule)
            if self.num_key_value_heads is not None:
                rule = f"must divide {name}={heads}"
                _require(heads % self.num_key_value_heads == 0, "num_key_value_heads", self.num_key_value_heads, rule)

    def _validate_positions(self):
        if self.positions == "sinusoidal":
            _require(self.d_model % 2 == 0, "d_model", self.d_model, 'must be even for positions="sinusoidal"')
            rule = 'must be at least 4 for sinusoid_layout="tensor2tensor"'
            _require(self.sinusoid_layout != "tensor2tensor" or self.d_model >= 4, "d_model", self.d_model, rule)
        if self.positions == "rotary":
            for heads in (self.num_heads, self.resolved_decoder_num_heads):
                width = self.d_kv or self.d_model // heads
                _require(width % 2 == 0, "d_kv", width, 'must be even for positions="rotary"')
        if self.positions == "relative_bias":
            buckets, distance = self.relative_buckets, self.relative_max_distance
            rule = "must be even and at least 4: half for each direction, and half of those for exact distances"
            _require(buckets % 2 == 0 and buckets >= 4, "relative_buckets", buckets, rule)
            rule = f"must exceed the exact distances, relative_buckets / 2 = {buckets // 2}"
            _require(distance > buckets // 2, "relative_max_distance", distance, rule)
        rule = 'belongs to positions="relative_bias"'
        _require(self.positions == "relative_bias" or not self.relative_bias_per_layer, "relative_bias_per_layer", True, rule)
        rule = 'belongs to positions="learned" or "sinusoidal"'
        has_table = self.positions in ("learned", "sinusoidal")
        _require(has_table or self.position_offset == 0, "position_offset", self.position_offset, rule)
        rule = 'belongs to positions="learned"'
        _require(self.positions == "learned" or not self.freeze_encoder_positions, "freeze_encoder_positions", True, rule)
        rule = "must be even and at least 4 for freeze_encoder_positions, whose table starts as sinusoids"
        even = self.d_model % 2 == 0 and self.d_model >= 4
        _require(even or not self.freeze_encoder_positions, "d_model", self.d_model, rule)

    def _validate_vocabularies(self):
        if self.decoder_vocab_size not in (None, self.vocab_size):
            sizes = f"decoder_vocab_size={self.decoder_vocab_size} and vocab_size={self.vocab_size}"
            rule = f"needs two vocabularies of one size, but {sizes}"
            _require(self.tie_embeddings in ("target_output", "none"), "tie_embeddings", self.tie_embeddings, rule)

    def _validate_features(self):
        rule = f"must be one of {sorted(ACT2FN)}"
        _require(self.feature_activation in ACT2FN, "feature_activation", self.feature_activation, rule)
        if self.encoder_input == "tokens":
            _require(self.feature_size is None, "feature_size", self.feature_size, 'belongs to encoder_input="features"')
            return
        _require(self.feature_size is not None, "feature_size", None, 'is needed for encoder_input="features"')
        rule = 'must be "target_output" or "none": a source of features has no embedding to tie'
        _require(self.tie_embeddings in ("target_output", "none"), "tie_embeddings", self.tie_embeddings, rule)
        rule = "must be None: a source of features has no vocabulary, and vocab_size is the target's"
        _require(self.decoder_vocab_size is None, "decoder_vocab_size", self.decoder_vocab_size, rule)

    def _validate_tokens(self):
        smallest = min(self.vocab_size, self.resolved_decoder_vocab_size)
        _require_token("pad_token_id", self.pad_token_id, smallest)
        for name in ("bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            for token in value if isinstance(value, list) else [value]:
                _require_token(name, token, self.resolved_decoder_vocab_size)

    def validate_token_ids(self):
        """Replaces the inherited warning: `validate_architecture` refuses token ids outside the vocabulary."""

    # ---- values behind a None -------------------------------------------------------------------------------------
    @property
    def resolved_decoder_vocab_size(self) -> int:
        return self.decoder_vocab_size or self.vocab_size

    @property
    def resolved_decoder_d_ff(self) -> int:
        return self.decoder_d_ff or self.d_ff

    @property
    def resolved_decoder_num_heads(self) -> int:
        return self.decoder_num_heads or self.num_heads

    @property
    def resolved_decoder_max_positions(self) -> int:
        return self.decoder_max_positions or self.max_positions

    @property
    def resolved_decoder_scale_embeddings(self) -> bool:
        return self.scale_embeddings if self.decoder_scale_embeddings is None else self.decoder_scale_embeddings

    @property
    def resolved_decoder_layer_drop(self) -> float:
        return self.layer_drop if self.decoder_layer_drop is None else self.decoder_layer_drop

    @property
    def resolved_final_norm(self) -> bool:
        return self.norm_position == "pre" if self.final_norm is None else self.final_norm

    @property
    def head_dim(self) -> int:
        """Width of one head of the encoder."""
        return self.d_kv or self.d_model // self.num_heads

    @property
    def tie_word_embeddings(self) -> bool:
        """The name under which transformers and PEFT ask whether any embeddings are tied."""
        return self.tie_embeddings != "none"

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None):
        """The decoder's own sizes under the general names, for transformers' caches and masks; also of a decoder alone."""
        if not decoder or encoder:
            return self
        view = copy.copy(self)
        view.__dict__.update(  # past the validation: a view for reading, not a config of its own
            vocab_size=self.resolved_decoder_vocab_size,
            d_ff=self.resolved_decoder_d_ff,
            num_heads=self.resolved_decoder_num_heads,
            encoder_layers=self.decoder_layers,
            max_positions=self.resolved_decoder_max_positions,
        )
        return view


def _require(holds: bool, field: str, value: Any, rule: str) -> None:
    if not holds:
        raise ValueError(f"{field}={value!r} {rule}")


def _check_format(version: Any) -> None:
    number = isinstance(version, int) and not isinstance(version, bool) and version >= 1
    _require(
        number, "format_version", version, "must be a whole number from 1 on, as save_pretrained writes it: correct the file"
    )
    rule = f"is of a newer transduct than this one, which reads formats up to {FORMAT_VERSION}: pip install --upgrade transduct"
    _require(version <= FORMAT_VERSION, "format_version", version, rule)


def _require_token(field: str, token: int | None, vocab_size: int) -> None:
    _require(token is None or 0 <= token < vocab_size, field, token, f"must be None or lie in the vocabulary, [0, {vocab_size})")


_INHERITED_KEYS = frozenset(f.name for f in fields(PreTrainedConfig)) | {
    "_name_or_path", "attn_implementation", "auto_map", "dtype", "experts_implementation", "format_version", "model_type",
    "name_or_path", "num_labels", "output_attentions", "quantization_config", "torch_dtype", "transformers_weights",
    "_commit_hash", "_attn_implementation_internal", "_experts_implementation_internal", "tie_last_hidden_states",
    "_attn_implementation",
}  # fmt: skip
"""Keys that transformers itself puts into config files or passes to a config's constructor, and our `format_version`."""


def _raise_value_errors(cls: Any) -> None:
    """Turn the errors of `@strict`, which are no `ValueError`s, into `ConfigurationError`s."""
    strict_init, strict_setattr = cls.__init__, cls.__setattr__

    def __init__(self, **kwargs: Any):
        try:
            strict_init(self, **kwargs)
        except StrictDataclassError as error:
            raise ConfigurationError(str(error)) from error

    def __setattr__(self, name: str, value: Any):
        try:
            strict_setattr(self, name, value)
        except StrictDataclassError as error:
            raise ConfigurationError(str(error)) from error

    cls.__init__, cls.__setattr__ = __init__, __setattr__


_raise_value_errors(TransductConfig)

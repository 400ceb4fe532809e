"""T5 and its kin: T5 1.0 and 1.1, mT5, UMT5."""

from typing import Any

import pytest
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

from conversions import Case, ConversionTests, GenerationTests, LeftPaddingTests

SIZES = {
    "vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip


def case(name: str, model: Any, config: Any, untie: tuple[str, ...] = (), generate: dict | None = None, **values: Any) -> Case:
    return Case(name, model, config(**SIZES | values), untie, generate=generate or {})


GENERATE = [
    case("t5", T5ForConditionalGeneration, T5Config),
    case("gated", T5ForConditionalGeneration, T5Config, ("lm_head",), tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
    case("gated-tied", T5ForConditionalGeneration, T5Config, feed_forward_proj="gated-silu"),
    case("tied-unscaled", T5ForConditionalGeneration, T5Config, tie_word_embeddings=False),
    case("deep", T5ForConditionalGeneration, T5Config, num_layers=3, num_decoder_layers=1, generate={"use_cache": False}),
    case("mt5", MT5ForConditionalGeneration, MT5Config, ("lm_head",)),
    case("umt5", UMT5ForConditionalGeneration, UMT5Config, ("lm_head",)),
]
OTHERS = [
    case("model", T5Model, T5Config),
    case("encoder", T5EncoderModel, T5Config),
    case("sequence-classification", T5ForSequenceClassification, T5Config),
    case("token-classification", T5ForTokenClassification, T5Config),
    case("question-answering", T5ForQuestionAnswering, T5Config),
]


@pytest.mark.parametrize("case", GENERATE, ids=str)
class TestGenerating(GenerationTests, LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("case", OTHERS, ids=str)
class TestOthers(LeftPaddingTests, ConversionTests):
    pass

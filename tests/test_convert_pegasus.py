"""Pegasus."""

from typing import Any

import pytest
import torch
from transformers import PegasusConfig, PegasusForConditionalGeneration, PegasusModel, PreTrainedModel

import transduct
from configs import sharpen
from conversions import Case, ConversionTests, GenerationTests, LeftPaddingTests, imported, pair
from transduct.convert import from_transformers, to_transformers

SIZES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
    "activation_function": "relu", "scale_embedding": True,
}  # fmt: skip


def zero_bias(model: PreTrainedModel) -> None:
    model.final_logits_bias.zero_()


def case(name: str, model: Any = PegasusForConditionalGeneration, prepare: Any = None, **values: Any) -> Case:
    return Case(name, model, PegasusConfig(**SIZES | values), prepare=prepare)


GENERATE = [
    case("pegasus", prepare=zero_bias),
    case("unequal", encoder_layers=1, decoder_layers=3, decoder_attention_heads=2, decoder_ffn_dim=20),
    case("unscaled", scale_embedding=False, activation_function="gelu"),
    case("untied", tie_word_embeddings=False),
]


@pytest.mark.parametrize("case", GENERATE, ids=str)
class TestGenerating(GenerationTests, LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("case", [case("model", PegasusModel)], ids=str)
class TestModel(LeftPaddingTests, ConversionTests):
    pass


def test_positions_that_are_not_the_sinusoids():
    theirs, _ = pair(GENERATE[0])
    name = "model.encoder.embed_positions.weight"
    with pytest.raises(ValueError, match=f"{name} holds other values than are computed here"):
        imported(theirs, theirs.state_dict() | {name: torch.randn(32, 16)})


OLD = {
    "add_bias_logits": False, "add_final_layer_norm": True, "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0,
    "do_blenderbot_90_layernorm": False, "extra_pos_embeddings": 1, "force_bos_token_to_be_generated": False,
    "gradient_checkpointing": False, "length_penalty": 0.8, "max_length": 256, "normalize_before": True,
    "normalize_embedding": False, "num_beams": 8, "num_hidden_layers": 2, "static_position_embeddings": True,
}  # fmt: skip


def test_options_of_older_files():
    theirs, ours = pair(GENERATE[0])
    config, _ = imported(theirs, theirs.state_dict(), **OLD)
    want = ours.config.to_dict() | {"origin": None, "dtype": None, "bos_token_id": 0}
    assert config.to_dict() | {"origin": None} == want
    for option, value in (("normalize_before", False), ("add_final_layer_norm", False), ("static_position_embeddings", False)):
        with pytest.raises(ValueError, match=f"{option}={value} cannot be imported, only {not value}"):
            imported(theirs, theirs.state_dict(), **{option: value})


def test_a_model_of_ours_becomes_pegasus():
    config = transduct.TransductConfig(
        vocab_size=40, d_model=16, d_ff=24, num_heads=4, encoder_layers=1, decoder_layers=2, max_positions=32,
        norm_position="pre", sinusoid_layout="halves", bos_token_id=3,
    )  # fmt: skip
    ours = sharpen(transduct.TransductForConditionalGeneration(config)).eval()
    again = from_transformers(to_transformers(ours, "pegasus"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())
    assert again.config.bos_token_id == 3

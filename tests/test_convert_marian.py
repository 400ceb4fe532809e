"""Marian, as transformers has it."""

from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianModel, MarianMTModel, PreTrainedModel
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

import transduct
from configs import sharpen
from conversions import Case, ConversionTests, GenerationTests, LeftPaddingTests, build, imported, pair, source
from transduct.convert import from_transformers, to_transformers
from transduct.convert.marian import sinusoids
from transduct.convert.models import export_plan
from transduct.positions import sinusoid_table

PAD = 39
SIZES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
    "activation_function": "swish", "scale_embedding": True, "pad_token_id": PAD, "decoder_start_token_id": PAD,
    "eos_token_id": 0, "forced_eos_token_id": 0,
}  # fmt: skip
TWO = {"share_encoder_decoder_embeddings": False}


def never_pad(model: PreTrainedModel) -> None:
    """As the released checkpoints have it, where it matters: the bias alone would make padding the best token by far."""
    model.final_logits_bias[0, PAD] = 50.0
    model.generation_config.bad_words_ids = [[PAD]]


def zero_bias(model: PreTrainedModel) -> None:
    model.final_logits_bias.zero_()


def equal_sides(model: PreTrainedModel) -> None:
    """What transformers 4 tied, and transformers 5 does not."""
    for name in ("encoder", "decoder"):
        model.model.get_submodule(name).embed_tokens.weight.copy_(model.model.shared.weight)


def case(name: str, model: Any = MarianMTModel, prepare: Any = None, **values: Any) -> Case:
    return Case(name, model, MarianConfig(**SIZES | values), prepare=prepare)


GENERATE = [
    case("marian", prepare=never_pad),
    case("unequal", prepare=zero_bias, encoder_layers=3, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=20),
    case("plain", activation_function="relu", scale_embedding=False),
    case("two-vocabularies", vocab_size=44, decoder_vocab_size=40, **TWO),
    case("two-vocabularies-untied", vocab_size=40, decoder_vocab_size=46, tie_word_embeddings=False, **TWO),
    case("two-vocabularies-of-one-size", **TWO),
    case("untied", tie_word_embeddings=False),
    case("untied-equal", prepare=equal_sides, tie_word_embeddings=False),
]
MODELS = [case("model", MarianModel), case("model-of-two-vocabularies", MarianModel, decoder_vocab_size=46, **TWO)]


@pytest.mark.parametrize("case", GENERATE, ids=str)
class TestGenerating(GenerationTests, LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("case", MODELS, ids=str)
class TestModels(LeftPaddingTests, ConversionTests):
    pass


def test_padding_is_never_written():
    ours = pair(GENERATE[0])[1]
    assert ours.generation_config.bad_words_ids == [[PAD]]
    options = source(GENERATE[0]) | {"num_beams": 4, "max_new_tokens": 8}
    assert (ours.generate(**options, bad_words_ids=[[1]])[:, 1] == PAD).all()
    written = ours.generate(**options, num_return_sequences=4)[:, 1:]
    ended = (written == 0).cumsum(1) > 0
    assert not (written == PAD)[~ended].any()


@pytest.mark.parametrize(
    ("name", "tie", "target_size"),
    [
        ("marian", "all", None),
        ("untied", "none", None),
        ("untied-equal", "none", None),
        ("two-vocabularies", "target_output", 40),
        ("two-vocabularies-untied", "none", 46),
    ],
)
def test_vocabularies(name, tie, target_size):
    config = pair(next(case for case in GENERATE if case.name == name))[1].config
    assert (config.tie_embeddings, config.decoder_vocab_size) == (tie, target_size)


def test_an_output_projection_of_its_own_as_transformers_4_wrote_it():
    theirs = build(case("own-output", prepare=equal_sides, tie_word_embeddings=False))
    apart = theirs.state_dict()
    without = {name: tensor for name, tensor in apart.items() if "embed_tokens" not in name}
    for held, values in ((without, {}), (apart, {"transformers_version": "4.20.1"})):
        config, tensors = imported(theirs, held, **values)
        assert config.tie_embeddings == "source_target"
        back = dict(export_plan(config, "TransductForConditionalGeneration", None, "back")[0].to_theirs(tensors))
        assert all(torch.equal(back[name], tensor) for name, tensor in apart.items() if "positions" not in name)


def test_vocabularies_that_contradict_the_config():
    theirs, _ = pair(GENERATE[0])
    with pytest.raises(ValueError, match="decoder_vocab_size=46 cannot be imported, only 40"):
        imported(theirs, theirs.state_dict(), decoder_vocab_size=46)
    state = theirs.state_dict()
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with pytest.raises(ValueError, match=r"shared.weight and lm_head.weight should be one matrix"):
        imported(theirs, state)


# ---- positions ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(64, 32), (200, 14), (33, 6)])
def test_the_table_is_theirs_bit_by_bit_and_ours_but_for_rounding(shape):
    theirs = MarianSinusoidalPositionalEmbedding(*shape).create_weight()
    assert torch.equal(sinusoids(*shape), theirs)
    torch.testing.assert_close(sinusoid_table(*shape, "halves"), theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_stored_positions(stack):
    """Old files hold them, new ones do not; others are not what would be computed."""
    theirs, ours = pair(GENERATE[0])
    name = f"model.{stack}.embed_positions.weight"
    state = theirs.state_dict()
    without = {key: tensor for key, tensor in state.items() if key != name}
    half = state | {name: state[name].half()}
    for given in (without, half):
        assert all(torch.equal(tensor, ours.state_dict()[key]) for key, tensor in imported(theirs, given)[1].items())
    other = state | {name: state[name].flip(1)}
    with pytest.raises(ValueError, match=f"{name} holds other values than are computed here"):
        imported(theirs, other)
    with pytest.raises(ValueError, match=f"{name} holds other values"):
        imported(theirs, state | {name: state[name][:30]})


# ---- options of older files -----------------------------------------------------------------------------------------------
OLD = {
    "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "bad_words_ids": [[PAD]], "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "extra_pos_embeddings": PAD + 1, "gradient_checkpointing": False, "max_length": 512,
    "normalize_before": False, "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 2,
    "static_position_embeddings": True,
}  # fmt: skip


def test_options_of_older_files():
    theirs, ours = pair(GENERATE[0])
    config, _ = imported(theirs, theirs.state_dict(), **OLD)
    assert config.to_dict() | {"origin": None} == ours.config.to_dict() | {"origin": None, "dtype": None}
    for option, value in (("normalize_embedding", True), ("static_position_embeddings", False), ("normalize_before", True)):
        with pytest.raises(ValueError, match=f"{option}={value} cannot be imported, only {not value}"):
            imported(theirs, theirs.state_dict(), **{option: value})


# ---- models of ours -------------------------------------------------------------------------------------------------------
TINY = {
    "vocab_size": 40, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 2, "max_positions": 32,
    "pad_token_id": PAD, "decoder_start_token_id": PAD,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_embeddings": "source_target"},
        {"tie_embeddings": "target_output", "decoder_vocab_size": 50},
        {"tie_embeddings": "target_output"},
        {"tie_embeddings": "none", "logits_bias": False},
    ],
    ids=str,
)
def test_a_model_of_ours_becomes_a_marian_model(fields):
    ours = sharpen(transduct.TransductForConditionalGeneration(transduct.config_from_preset("marian-base", **TINY | fields)))
    theirs = to_transformers(ours.eval(), "marian")
    assert (theirs.config.forced_eos_token_id, theirs.config.decoder_start_token_id) == (None, PAD)
    again = from_transformers(theirs)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sinusoid_layout": "interleaved"}, "sinusoid_layout='interleaved'"),
        ({"position_offset": 2}, "position_offset=2"),
        ({"embedding_norm": True}, "embedding_norm=True"),
        ({"final_norm": True}, "final_norm=True"),
        ({"scale_logits": True}, "scale_logits=True"),
    ],
    ids=str,
)
def test_what_marian_cannot_say(fields, named):
    config = transduct.config_from_preset("marian-base", **TINY | fields)
    with pytest.raises(ValueError, match=f"cannot be written as marian, which has no way to say .*{named}"):
        export_plan(config, "TransductForConditionalGeneration", "marian", "it")

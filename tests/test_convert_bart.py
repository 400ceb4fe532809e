"""BART, mBART, PLBart, BlenderBot and BlenderBot small."""

import copy
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    BlenderbotModel,
    BlenderbotSmallConfig,
    BlenderbotSmallForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartForQuestionAnswering,
    MBartForSequenceClassification,
    MBartModel,
    PLBartConfig,
    PLBartForConditionalGeneration,
    PLBartForSequenceClassification,
    PreTrainedModel,
)

import transduct
from configs import sharpen
from conversions import Case, ConversionTests, GenerationTests, LeftPaddingTests, build, imported, pair, source
from transduct.convert import from_transformers, to_transformers
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.models import export_plan, import_plan

SIZES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
}  # fmt: skip
UNEQUAL = {"encoder_layers": 3, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 20}
UNTIED = {"tie_word_embeddings": False}


def case(name: str, model: Any, config: Any, prepare: Any = None, **values: Any) -> Case:
    return Case(name, model, config(**SIZES | values), prepare=prepare)


def zero_bias(model: PreTrainedModel) -> None:
    model.final_logits_bias.zero_()


def equal_sides(model: PreTrainedModel) -> None:
    """Equal for now, as transformers 5 loads what transformers 4 tied, but trained apart."""
    base = model.base_model
    for module in (base.shared, base.decoder.embed_tokens):
        module.weight.copy_(base.encoder.embed_tokens.weight)


BART = (BartForConditionalGeneration, BartConfig)
SMALL = (BlenderbotSmallForConditionalGeneration, BlenderbotSmallConfig)
GENERATE = [
    case("bart", *BART),
    case("bart-unequal", *BART, zero_bias, **UNEQUAL),
    case("bart-scaled", *BART, scale_embedding=True, activation_function="swish"),
    case("bart-untied", *BART, **UNTIED),
    case("bart-untied-equal", *BART, equal_sides, **UNTIED),
    case("mbart", MBartForConditionalGeneration, MBartConfig, scale_embedding=True, decoder_start_token_id=38, **UNEQUAL),
    case("mbart-untied", MBartForConditionalGeneration, MBartConfig, decoder_start_token_id=2, **UNTIED),
    case("plbart", PLBartForConditionalGeneration, PLBartConfig, decoder_start_token_id=38),
    case("blenderbot", BlenderbotForConditionalGeneration, BlenderbotConfig, encoder_layers=1, decoder_layers=3),
    case("blenderbot-scaled", BlenderbotForConditionalGeneration, BlenderbotConfig, scale_embedding=True),
    case("blenderbot-small", *SMALL),
    case("blenderbot-small-scaled", *SMALL, zero_bias, scale_embedding=True, **UNEQUAL),
]
OTHERS = [
    case("bart-model", BartModel, BartConfig, **UNEQUAL),
    case("bart-model-untied", BartModel, BartConfig, **UNTIED),
    case("mbart-model", MBartModel, MBartConfig, decoder_start_token_id=2),
    case("blenderbot-model", BlenderbotModel, BlenderbotConfig),
    case("bart-labels", BartForSequenceClassification, BartConfig, num_labels=4),
    case("mbart-labels", MBartForSequenceClassification, MBartConfig, num_labels=2),
    case("plbart-labels", PLBartForSequenceClassification, PLBartConfig, num_labels=2),
    case("bart-spans", BartForQuestionAnswering, BartConfig),
    case("mbart-spans", MBartForQuestionAnswering, MBartConfig),
]


@pytest.mark.parametrize("case", GENERATE, ids=str)
class TestGenerating(GenerationTests, LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("case", OTHERS, ids=str)
class TestOthers(LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("name", ["bart", "mbart", "plbart"])
def test_decoder_inputs_made_from_labels(name):
    """mBART's and PLBart's begin with each row's own last token; so does the loss."""
    theirs, ours = pair(next(case for case in GENERATE if case.name == name))
    labels = torch.tensor([[7, 5, 2, 37, -100], [6, 2, 36, -100, -100], [9, 8, 7, 2, 35]])
    want = theirs.prepare_decoder_input_ids_from_labels(labels)
    assert torch.equal(ours.prepare_decoder_input_ids_from_labels(labels), want)
    assert want[:, 0].tolist() == ([2, 2, 2] if name == "bart" else [37, 36, 35])
    batch = source(GENERATE[0])
    with torch.no_grad():
        losses = [model(**batch, labels=labels).loss for model in (theirs, ours)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)


def test_mbart_without_a_start_token():
    """It comes with the language, for generation."""
    theirs = build(case("mbart", MBartForConditionalGeneration, MBartConfig))
    ours = from_transformers(theirs, verify=False)
    assert (ours.config.decoder_start_token_id, ours.config.target_start) == (None, "last_token")
    options = source(GENERATE[0]) | {"decoder_start_token_id": 38, "num_beams": 3, "max_new_tokens": 8}
    assert ours.generate(**options).tolist() == theirs.generate(**options).tolist()


def test_a_bias_of_zeros_is_none():
    unequal, biased = (pair(case)[1] for case in (GENERATE[1], GENERATE[0]))
    assert (unequal.config.logits_bias, biased.config.logits_bias) == (False, True)
    assert not to_transformers(unequal, verify=False).final_logits_bias.any()
    theirs = pair(GENERATE[1])[0]
    state = theirs.state_dict()
    del state["final_logits_bias"]
    assert imported(theirs, state)[0].logits_bias is False


# ---- which matrices are one -----------------------------------------------------------------------------------------------
EMBEDDINGS = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize("kept", EMBEDDINGS)
def test_one_name_of_a_tied_matrix_is_enough(kept):
    theirs, ours = pair(GENERATE[0])
    state = {name: tensor for name, tensor in theirs.state_dict().items() if name == kept or name not in EMBEDDINGS}
    config, tensors = imported(theirs, state)
    assert config.tie_embeddings == "all"
    assert torch.equal(tensors["model.encoder.embed_tokens.weight"], ours.lm_head.weight)


@pytest.mark.parametrize("other", EMBEDDINGS[1:])
def test_two_values_of_a_tied_matrix(other):
    theirs, _ = pair(GENERATE[0])
    state = theirs.state_dict()
    state[other] = state[other] + 1
    with pytest.raises(ValueError, match=f"shared.weight and {other} should be one matrix"):
        imported(theirs, state)


def test_an_output_projection_of_its_own_as_transformers_4_wrote_it():
    theirs = build(case("own-output", *BART, equal_sides, **UNTIED))
    apart = theirs.state_dict()
    state = {name: tensor for name, tensor in apart.items() if name not in EMBEDDINGS[1:3]}
    for held, values in ((state, {}), (apart, {"transformers_version": "4.20.1"}), (apart, {"transformers_version": None})):
        config, tensors = imported(theirs, held, **values)
        assert config.tie_embeddings == "source_target"
        plan = export_plan(config, "TransductForConditionalGeneration", None, "back")[0]
        back = dict(plan.to_theirs(tensors))
        assert back.keys() == apart.keys()
        assert all(torch.equal(back[name], tensor) for name, tensor in apart.items())
    assert imported(theirs, apart)[0].tie_embeddings == "none"
    del state["lm_head.weight"]
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        imported(theirs, state)


def test_a_shared_matrix_that_nothing_reads_comes_back_through_copies_and_types():
    theirs = build(case("untied", *BART, **UNTIED))
    ours = copy.deepcopy(from_transformers(theirs))
    assert "model.shared.weight" not in ours.state_dict()
    back = to_transformers(ours).model.shared.weight
    assert torch.equal(back, theirs.model.shared.weight)
    back.data.add_(1)  # a copy again
    assert torch.equal(to_transformers(ours.to(torch.bfloat16)).model.shared.weight, theirs.model.shared.weight.bfloat16())


def test_a_shared_matrix_that_is_out_of_date_is_a_copy_of_the_source():
    ours = from_transformers(build(case("untied", *BART, **UNTIED)))
    ours.resize_token_embeddings(44)
    back = to_transformers(ours)
    assert back.model.shared.weight.shape == (44, 16)
    assert torch.equal(back.model.shared.weight, ours.model.encoder.embed_tokens.weight)


# ---- options of older files -----------------------------------------------------------------------------------------------
OLD = {
    "activation_dropout": 0.0, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.1,
    "classifier_dropout": 0.0, "do_blenderbot_90_layernorm": False, "extra_pos_embeddings": 2, "_num_labels": 3,
    "force_bos_token_to_be_generated": False, "gradient_checkpointing": False, "normalize_before": False,
    "normalize_embedding": True, "num_hidden_layers": 2, "output_past": True, "static_position_embeddings": False,
    "early_stopping": True, "num_beams": 4, "task_specific_params": {"summarization": {"length_penalty": 1.0}},
}  # fmt: skip


def test_options_of_older_files_that_say_what_the_class_does():
    theirs, ours = pair(GENERATE[0])
    config, _ = imported(theirs, theirs.state_dict(), **OLD)
    assert config.to_dict() | {"origin": None} == ours.config.to_dict() | {"origin": None, "dtype": None}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bart", {"normalize_before": True}),
        ("bart", {"add_final_layer_norm": True}),
        ("bart", {"normalize_embedding": False}),
        ("bart", {"static_position_embeddings": True}),
        ("bart", {"extra_pos_embeddings": 0}),
        ("bart", {"do_blenderbot_90_layernorm": True}),
        ("bart", {"num_hidden_layers": 5}),
        ("mbart", {"normalize_before": False}),
        ("mbart", {"add_final_layer_norm": False}),
        ("blenderbot", {"extra_pos_embeddings": 2}),
        ("blenderbot", {"layernorm_variant": "xlm"}),
        ("blenderbot-small", {"do_blenderbot_90_layernorm": False}),
        ("plbart", {"initializer_range": 0.5}),
    ],
    ids=str,
)
def test_options_of_older_files_that_say_something_else(name, values):
    theirs, _ = pair(next(case for case in GENERATE if case.name == name))
    (option,) = values
    with pytest.raises(ValueError, match=f"{option}=.* cannot be imported"):
        imported(theirs, theirs.state_dict(), **values)


def test_several_ends_of_sequence():
    theirs = build(case("ends", *BART))
    theirs.config.eos_token_id = theirs.generation_config.eos_token_id = [2, 7, 11]
    ours = from_transformers(theirs)
    assert ours.config.eos_token_id == [2, 7, 11]
    assert to_transformers(ours).config.eos_token_id == [2, 7, 11]


def test_an_option_that_nobody_knows():
    theirs, _ = pair(GENERATE[0])
    with pytest.raises(ValueError, match="unknown options mixture=3"):
        imported(theirs, theirs.state_dict(), mixture=3)
    with pytest.raises(ValueError, match="activation='wavelet' must be one of"):
        imported(theirs, theirs.state_dict(), activation_function="wavelet")


def test_the_older_name_of_the_classifiers_dropout():
    theirs = build(next(case for case in OTHERS if case.name == "bart-labels"))
    values = theirs.config.to_dict()
    del values["classifier_dropout"]
    checkpoint = Checkpoint.of_state_dict(theirs.state_dict(), "checkpoint")
    plan = import_plan(values | {"classif_dropout": 0.3}, type(theirs).__name__, checkpoint, "checkpoint")
    assert plan.config.classifier_dropout == 0.3
    assert export_plan(plan.config, plan.our_class.__name__, None, "")[1].classifier_dropout == 0.3


# ---- models of ours -------------------------------------------------------------------------------------------------------
TINY = {
    "vocab_size": 40,
    "d_model": 16,
    "d_ff": 24,
    "num_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_positions": 32,
}


@pytest.mark.parametrize(
    ("to", "fields"),
    [
        ("bart", {}),
        ("bart", {"tie_embeddings": "source_target", "decoder_d_ff": 20, "logits_bias": True}),
        ("bart", {"tie_embeddings": "none", "logits_bias": True}),
        ("mbart", {"norm_position": "pre", "target_start": "last_token"}),
        ("plbart", {"scale_embeddings": True, "target_start": "last_token"}),
        ("blenderbot", {"norm_position": "pre", "embedding_norm": False, "position_offset": 0}),
        ("blenderbot-small", {"decoder_embedding_norm": "before_positions", "position_offset": 0}),
    ],
    ids=str,
)
def test_a_model_of_ours_becomes_one_of_the_family(to, fields):
    config = transduct.config_from_preset("bart-base", **TINY | fields)
    ours = sharpen(transduct.TransductForConditionalGeneration(config)).eval()
    theirs = to_transformers(ours, to)
    assert theirs.config.forced_eos_token_id is None
    again = from_transformers(theirs)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize(
    ("to", "fields", "named"),
    [
        ("bart", {"norm_position": "pre"}, "norm_position='pre'"),
        ("bart", {"norm": "rmsnorm"}, "norm='rmsnorm'"),
        ("bart", {"gated_ffn": True}, "gated_ffn=True"),
        ("bart", {"positions": "sinusoidal"}, "positions='sinusoidal'"),
        ("bart", {"target_start": "last_token"}, "target_start='last_token'"),
        ("bart", {"decoder_vocab_size": 50, "tie_embeddings": "none"}, "decoder_vocab_size=50"),
        ("bart", {"tie_embeddings": "target_output"}, "tie_embeddings='target_output'"),
        ("bart", {"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ("bart", {"d_kv": 6}, "d_kv=6"),
        ("blenderbot-small", {"scale_embeddings": True, "decoder_embedding_norm": "before_positions", "position_offset": 0},
         "decoder_scale_embeddings=True"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_family_cannot_say(to, fields, named):
    ours = transduct.TransductForConditionalGeneration(transduct.config_from_preset("bart-base", **TINY | fields))
    with pytest.raises(ValueError, match=f"cannot be written as {to}, which has no way to say .*{named}"):
        to_transformers(ours, to)

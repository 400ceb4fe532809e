"""T5 and its kin: T5 1.0, 1.1, mT5, UMT5 and their encoders; and their files as transformers 4 and 5 write them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    MT5Config,
    MT5EncoderModel,
    MT5ForConditionalGeneration,
    MT5ForSequenceClassification,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
    UMT5Config,
    UMT5EncoderModel,
    UMT5ForConditionalGeneration,
    UMT5ForTokenClassification,
)

from conversions import Case, ConversionTests, GenerationTests, LeftPaddingTests, build
from transduct.convert import from_transformers, to_transformers
from transduct.convert.folders import export_folder, import_folder

SIZES = {
    "vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip


def case(name: str, model: Any, config: Any, untie: tuple[str, ...] = (), generate: dict | None = None, **values: Any) -> Case:
    return Case(name, model, config(**SIZES | values), untie, generate=generate or {})


T5_11 = {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
APART = {"use_cache": False}
"""The cache of transformers' T5 has a layer for each of the encoder's, and fails where the decoder has another number."""

GENERATE = [
    case("t5-1.0", T5ForConditionalGeneration, T5Config),
    case("t5-1.1", T5ForConditionalGeneration, T5Config, ("lm_head",), **T5_11),
    case("byt5", T5ForConditionalGeneration, T5Config, ("lm_head",), APART, num_layers=3, num_decoder_layers=1, **T5_11),
    case("deep-decoder", T5ForConditionalGeneration, T5Config, (), APART, num_layers=1, num_decoder_layers=2),
    case("gated-tied-scaled", T5ForConditionalGeneration, T5Config, feed_forward_proj="gated-silu", d_kv=3, num_heads=5),
    case("codet5", T5ForConditionalGeneration, T5Config, bos_token_id=1, eos_token_id=2, num_heads=2),
    case("tied-unscaled", T5ForConditionalGeneration, T5Config, tie_word_embeddings=False, feed_forward_proj="gelu"),
    case("untied-scaled", T5ForConditionalGeneration, T5Config, ("lm_head",), layer_norm_epsilon=1e-3, vocab_size=48),
    case("mt5", MT5ForConditionalGeneration, MT5Config, ("lm_head",)),
    case("mt5-tied", MT5ForConditionalGeneration, MT5Config, feed_forward_proj="relu"),
    case("umt5", UMT5ForConditionalGeneration, UMT5Config, ("lm_head",), tie_word_embeddings=False),
    case("umt5-scaled", UMT5ForConditionalGeneration, UMT5Config, (), APART, num_layers=1, num_decoder_layers=2),
]
OTHERS = [
    case("model", T5Model, T5Config),
    case("encoder", T5EncoderModel, T5Config),
    case("sequence-classification", T5ForSequenceClassification, T5Config),
    case("token-classification", T5ForTokenClassification, T5Config),
    case("question-answering", T5ForQuestionAnswering, T5Config),
    case("mt5-encoder", MT5EncoderModel, MT5Config),
    case("umt5-encoder", UMT5EncoderModel, UMT5Config),
    case("mt5-sequence-classification", MT5ForSequenceClassification, MT5Config),
    case("umt5-token-classification", UMT5ForTokenClassification, UMT5Config),
]


@pytest.mark.parametrize("case", GENERATE, ids=str)
class TestGenerating(GenerationTests, LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("case", OTHERS, ids=str)
class TestOthers(LeftPaddingTests, ConversionTests):
    pass


# ---- files ----------------------------------------------------------------------------------------------------------
VERSION_4 = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24,
    "num_layers": 2, "num_heads": 4, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20, "feed_forward_proj": "relu", "initializer_factor": 1.0, "n_positions": 512,
    "output_past": True, "gradient_checkpointing": False, "is_encoder_decoder": True, "use_cache": True, "pad_token_id": 0,
    "eos_token_id": 1, "decoder_start_token_id": 0, "torch_dtype": "float32", "transformers_version": "4.20.1",
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
}  # fmt: skip
"""config.json of T5 1.0 as transformers 4 wrote it."""
UNTIED_4 = VERSION_4 | {"tie_word_embeddings": False}
UNTIED_5 = VERSION_4 | {"tie_word_embeddings": True, "scale_decoder_outputs": False, "transformers_version": "5.24.0"}
TIED = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


@cache
def model(untied: bool = False, scaled: bool = True) -> PreTrainedModel:
    values = {name: value for name, value in VERSION_4.items() if name in SIZES} | {"tie_word_embeddings": scaled}
    return build(Case("", T5ForConditionalGeneration, T5Config(**values), ("lm_head",) if untied else ()))


def write(folder: Path, values: dict[str, Any], state: dict[str, torch.Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    save_file({name: tensor.clone() for name, tensor in state.items()}, folder / "model.safetensors")
    return folder


def kept(state: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    """Without the other names of the matrices of tokens."""
    return {name: tensor for name, tensor in state.items() if name not in TIED or name in names}


def logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.arange(2, 22).view(2, 10)
    with torch.no_grad():
        return model(input_ids=ids, decoder_input_ids=ids[:, :5]).logits


@pytest.mark.parametrize("names", [TIED, *[(name,) for name in TIED], TIED[1:3]], ids=lambda names: "+".join(names))
def test_tied_files_of_version_4_may_hold_any_name_of_the_one_matrix(tmp_path, names):
    folder = write(tmp_path, VERSION_4, kept(model().state_dict(), *names))
    ours = from_transformers(folder)
    assert ours.config.tie_embeddings == "all"
    assert ours.config.scale_logits
    assert torch.allclose(logits(ours), logits(model()), atol=1e-6)


@pytest.mark.parametrize("values", [UNTIED_4, UNTIED_5], ids=["version 4", "version 5"])
@pytest.mark.parametrize("name", TIED[:3])
def test_untied_files_keep_their_output_projection_unscaled(tmp_path, values, name):
    """With decoder.embed_tokens alone the embeddings are found too: MADLAD's encoder was taken from the output projection."""
    original = model(untied=True, scaled=False)
    ours = from_transformers(write(tmp_path, values, kept(original.state_dict(), name, "lm_head.weight")), verify=False)
    assert ours.config.tie_embeddings == "source_target"
    assert not ours.config.scale_logits
    assert torch.equal(ours.get_input_embeddings().weight, original.shared.weight)
    assert torch.allclose(logits(ours), logits(original), atol=1e-6)


def test_untied_and_scaled_is_what_version_5_says(tmp_path):
    values = UNTIED_5 | {"scale_decoder_outputs": True}
    ours = from_transformers(write(tmp_path, values, model(untied=True).state_dict()))
    assert ours.config.scale_logits
    assert torch.allclose(logits(ours), logits(model(untied=True)), atol=1e-6)


def test_mt5_of_version_4_is_unscaled_and_its_output_projection_apart(tmp_path):
    values = UNTIED_4 | {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
    original = model(untied=True, scaled=False)
    ours = from_transformers(write(tmp_path, values, original.state_dict()))
    assert torch.allclose(logits(ours), logits(original), atol=1e-6)


@pytest.mark.parametrize("kind", ["T5", "UMT5"])
def test_encoders_alone_as_generators_of_images_and_video_use_them(tmp_path, kind):
    values = UNTIED_4 | {"architectures": [f"{kind}EncoderModel"], "model_type": kind.lower(), "num_decoder_layers": None}
    values |= {"feed_forward_proj": "gated-gelu"} | ({"scalable_attention": True} if kind == "UMT5" else {})
    encoder = T5EncoderModel if kind == "T5" else UMT5EncoderModel
    config = encoder.config_class(**{name: value for name, value in values.items() if name in SIZES | T5_11})
    original = build(Case("", encoder, config))
    ours = from_transformers(write(tmp_path, values, original.state_dict()))
    ids = torch.arange(2, 22).view(2, 10)
    with torch.no_grad():
        assert torch.allclose(ours(ids).last_hidden_state, original(ids).last_hidden_state, atol=1e-5)


def test_exact_gelu_is_told_from_the_approximation(tmp_path):
    """BLIP-2's Flan-T5 says both, and the function's own name counts."""
    values = UNTIED_4 | {"feed_forward_proj": "gated-gelu", "is_gated_act": True}
    state = build(Case("", T5ForConditionalGeneration, T5Config(**SIZES | T5_11), ("lm_head",))).state_dict()
    for name, activation in (("gelu", "gelu"), ("gelu_new", "gelu_new"), (None, "gelu_new")):
        ours = from_transformers(write(tmp_path, values | ({"dense_act_fn": name} if name else {}), state))
        assert ours.config.activation == activation
        assert to_transformers(ours).config.dense_act_fn == activation


def test_what_the_file_is_called_comes_back(tmp_path):
    """Names and values of its config.json that no architecture depends on are kept for the way back."""
    ours = from_transformers(write(tmp_path, VERSION_4, model().state_dict()), verify=False)
    assert ours.config.origin["config"] == VERSION_4
    assert ours.config.origin["class"] == "T5ForConditionalGeneration"


def refusal(folder: Path, values: dict[str, Any], state: dict[str, torch.Tensor]) -> str:
    with pytest.raises(ValueError) as error:
        from_transformers(write(folder, values, state))
    return str(error.value)


@pytest.mark.parametrize(
    ("values", "names", "words"),
    [
        (VERSION_4, TIED, ("tie_word_embeddings", "lm_head.weight", "differ")),
        (UNTIED_4, TIED[:3], ("tie_word_embeddings=False", "no lm_head.weight")),
        (UNTIED_4, TIED[3:], ("tie_word_embeddings=False", "no shared.weight")),
        (UNTIED_4 | {"scale_decoder_outputs": True}, TIED, ("tie_word_embeddings=False", "scale_decoder_outputs=True")),
        (VERSION_4, (), ("no embeddings",)),
    ],
    ids=["tied but different", "untied without output", "untied without embeddings", "both versions", "nothing"],
)
def test_what_transformers_4_and_5_read_differently_is_refused(tmp_path, values, names, words):
    message = refusal(tmp_path, values, kept(model(untied=True).state_dict(), *names))
    assert all(word in message for word in words)


def test_mt5_that_version_4_scaled_is_refused(tmp_path):
    values = VERSION_4 | {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"], "tie_word_embeddings": True}
    message = refusal(tmp_path, values, model().state_dict())
    assert "tie_word_embeddings=True is ambiguous" in message
    assert from_transformers(write(tmp_path, values | {"transformers_version": "5.24.0"}, model().state_dict())) is not None


@pytest.mark.parametrize("name", TIED[1:3])
@pytest.mark.parametrize("values", [VERSION_4, UNTIED_4, UNTIED_5], ids=["tied", "untied 4", "untied 5"])
def test_embeddings_of_a_side_that_differ_from_the_shared_are_refused(tmp_path, values, name):
    state = dict(model(untied=values is not VERSION_4).state_dict())
    state[name] = state[name].flip(0)
    message = refusal(tmp_path, values, state)
    assert name in message
    assert "shared.weight" in message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"feed_forward_proj": "gated-wibble"}, ("activation='wibble'",)),
        ({"feed_forward_proj": "wibble-relu"}, ("feed_forward_proj", "wibble-relu")),
        ({"wibble": 3}, ("wibble=3",)),
        ({"is_gated_act": True}, ("is_gated_act=True", "feed_forward_proj")),
        ({"d_kv": "six"}, ("d_kv",)),
        ({"model_type": "umt5", "architectures": ["UMT5Model"], "scalable_attention": False}, ("scalable_attention=False",)),
        ({"model_type": "longt5"}, ("longt5", "not supported yet", "local and transient-global attention")),
        ({"model_type": "wibble"}, ("model_type='wibble'", "t5")),
        ({"architectures": ["T5ForWibble"]}, ("T5ForWibble", "T5ForConditionalGeneration")),
    ],
    ids=str,
)
def test_what_a_config_says_that_is_not_known_is_refused(tmp_path, changed, words):
    message = refusal(tmp_path, VERSION_4 | changed, model().state_dict())
    assert all(word in message for word in words)


def test_tensors_that_nothing_uses_are_refused_and_missing_ones_too(tmp_path):
    state = dict(model().state_dict())
    moved = state.pop("encoder.block.1.layer.0.SelfAttention.q.weight")
    message = refusal(tmp_path, VERSION_4, state | {"encoder.block.1.layer.0.SelfAttention.lora.weight": moved})
    assert "missing: ['encoder.block.1.layer.0.SelfAttention.q.weight']" in message
    assert "nothing here uses: ['encoder.block.1.layer.0.SelfAttention.lora.weight']" in message


def test_a_bias_of_cross_attention_that_old_files_hold_is_left_out_as_in_transformers(tmp_path):
    unused = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(8, 4)}
    ours = from_transformers(write(tmp_path, VERSION_4, model().state_dict() | unused))
    assert torch.allclose(logits(ours), logits(model()), atol=1e-6)


def test_exported_files_say_to_older_programs_what_is_untied(tmp_path):
    """transformers 4 reads `tie_word_embeddings` alone; version 5 itself would write that it is true."""
    theirs = T5ForConditionalGeneration(T5Config(**SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    theirs.save_pretrained(tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    export_folder(tmp_path / "ours", tmp_path / "again")
    values = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (values["tie_word_embeddings"], values["scale_decoder_outputs"]) == (False, False)
    again = T5ForConditionalGeneration.from_pretrained(tmp_path / "again")
    assert torch.equal(again.lm_head.weight, theirs.lm_head.weight)
    assert not again.config.scale_decoder_outputs
    from_transformers(tmp_path / "again")

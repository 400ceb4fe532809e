"""Accounting: closed formulas equal to published counts, to the built model, and to what PyTorch really computes and keeps."""

import json

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from transduct.accounting import PARTS, describe
from transduct.configuration import TransductConfig
from transduct.modeling import (
    TransductEncoderModel,
    TransductForCausalLM,
    TransductForConditionalGeneration,
    TransductForMaskedLM,
)
from transduct.presets import config_from_preset, preset_names

# Exact, from the released checkpoints (shared figures of the project: T5, T5 1.1, mT5, BART) and by hand (Vaswani base)
EXACT = {
    "vaswani-base": 63_082_496,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mt5-large": 1_229_581_312,
    "mt5-xl": 3_742_619_648,
    "mt5-xxl": 12_921_057_280,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
}
# Vaswani et al. 2017, Table 3, last column, in millions; rows without a figure have base's shape
TABLE_3 = {
    "vaswani-base": 65,
    "vaswani-b-dk-16": 58,
    "vaswani-b-dk-32": 60,
    "vaswani-c-layers-2": 36,
    "vaswani-c-layers-4": 50,
    "vaswani-c-layers-8": 80,
    "vaswani-c-d256": 28,
    "vaswani-c-d1024": 168,
    "vaswani-c-ff-1024": 53,
    "vaswani-c-ff-4096": 90,
    "vaswani-big": 213,
}
TINY = dict(vocab_size=23, d_model=24, d_ff=40, num_heads=4, encoder_layers=2, decoder_layers=3, max_positions=17)
ODD = {
    "tiny": {},
    "other decoder": dict(decoder_d_ff=28, decoder_num_heads=6),
    "no encoder layers": dict(encoder_layers=0),
    "no decoder layers": dict(decoder_layers=0),
    "free head width": dict(d_kv=7),
    "wide values": dict(d_kv=3, d_value=8),
    "narrow values": dict(d_value=5),
    "grouped wide values": dict(num_key_value_heads=2, decoder_num_heads=6, d_kv=5, d_value=7),
    "wide values, no key bias": dict(d_value=9, key_bias=False),
    "grouped heads": dict(num_key_value_heads=2),
    "grouped heads, other decoder": dict(num_key_value_heads=2, decoder_num_heads=6, d_kv=5),
    "two vocabularies": dict(decoder_vocab_size=31, tie_embeddings="none"),
    "two vocabularies, tied output": dict(decoder_vocab_size=31, tie_embeddings="target_output"),
    "tied inputs": dict(tie_embeddings="source_target"),
    "untied": dict(tie_embeddings="none"),
    "tied output": dict(tie_embeddings="target_output"),
    "logits bias": dict(logits_bias=True),
    "logits bias of the other vocabulary": dict(decoder_vocab_size=31, tie_embeddings="none", logits_bias=True),
    "gated": dict(gated_ffn=True, activation="gelu"),
    "gated without biases": dict(gated_ffn=True, ffn_bias=False),
    "no attention biases": dict(attention_bias=False),
    "no key bias": dict(key_bias=False),
    "no norm biases": dict(norm_bias=False),
    "pre": dict(norm_position="pre"),
    "pre without a final norm": dict(norm_position="pre", final_norm=False),
    "post with a final norm": dict(final_norm=True),
    "rmsnorm": dict(norm="rmsnorm", norm_position="pre"),
    "embedding norm": dict(embedding_norm=True),
    "learned": dict(positions="learned", position_offset=2),
    "relative bias": dict(positions="relative_bias", relative_buckets=12),
    "relative bias per layer": dict(positions="relative_bias", relative_bias_per_layer=True, decoder_num_heads=6),
    "rotary": dict(positions="rotary"),
    "alibi": dict(positions="alibi"),
    "no positions": dict(positions="none"),
    "linear stem": dict(encoder_input="features", feature_size=6, tie_embeddings="none"),
    "convolutional stem": dict(encoder_input="features", feature_size=6, feature_stem="conv", tie_embeddings="target_output"),
    "frozen positions": dict(positions="learned", freeze_encoder_positions=True, decoder_max_positions=9),
}
WHISPER = {  # millions of parameters, arXiv 2212.04356, Table 1; large-v3 from its model card
    "tiny": 39, "base": 74, "small": 244, "medium": 769, "large": 1550, "large-v3": 1550,
}  # fmt: skip


def tiny(**changes) -> TransductConfig:
    return TransductConfig(**{**TINY, **changes})


def on_meta(config: TransductConfig, model_class=TransductForConditionalGeneration) -> torch.nn.Module:
    with torch.device("meta"):
        return model_class(config)


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# ---- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_published_counts_are_exact(name):
    assert describe(config_from_preset(name)).parameters == EXACT[name]


def test_base_by_part():
    description = describe(config_from_preset("vaswani-base"))
    parts = description.parameters_by_part
    assert parts["encoder"] == 18_874_368
    assert parts["decoder"] + parts["cross_attention"] == 25_165_824
    assert parts["encoder"] + parts["decoder"] + parts["cross_attention"] == 44_040_192
    assert parts["norms"] + parts["biases"] == 98_304
    assert parts["embeddings"] == 37_000 * 512
    assert (parts["positions"], parts["output"]) == (0, 0)
    assert tuple(parts) == PARTS


@pytest.mark.parametrize("d_model", [64, 512, 768])
def test_a_layer_pair_holds_28_d_squared_and_a_token_touches_14(d_model):
    description = describe(TransductConfig(d_model=d_model, d_ff=4 * d_model, encoder_layers=1, decoder_layers=1))
    parts = description.parameters_by_part
    assert parts["encoder"] == 12 * d_model**2
    assert parts["decoder"] + parts["cross_attention"] == 16 * d_model**2
    assert description.multiply_adds_per_source_token == 14 * d_model**2
    assert description.multiply_adds_per_target_token == 14 * d_model**2


@pytest.mark.parametrize("name", TABLE_3)
def test_the_papers_counts_hold_within_7_percent(name):
    assert describe(config_from_preset(name)).parameters == pytest.approx(TABLE_3[name] * 1e6, rel=0.07)


@pytest.mark.parametrize(
    ("name", "reference", "extra"),
    [
        ("t5-small", transformers.T5Config(), 0),
        ("bart-base", transformers.BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072,
                                              decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12), 0),
        # there the sinusoids of both stacks count as parameters, and the logits' bias as a buffer
        ("marian-base", transformers.MarianConfig(d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048,
                                                  decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8,
                                                  max_position_embeddings=512), 2 * 512 * 512 - 58_101),
    ],
)  # fmt: skip
def test_transformers_own_models_have_as_many(name, reference, extra):
    with torch.device("meta"):
        model = transformers.AutoModelForSeq2SeqLM.from_config(reference)
    assert count(model) - extra == describe(config_from_preset(name)).parameters


@pytest.mark.parametrize("size", WHISPER)
def test_whisper_has_as_many_as_transformers_and_the_paper_say(size):
    config = config_from_preset(f"whisper-{size}")
    reference = transformers.WhisperConfig(
        vocab_size=config.vocab_size, num_mel_bins=config.feature_size, d_model=config.d_model,
        encoder_layers=config.encoder_layers, decoder_layers=config.decoder_layers, encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff, encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(reference)
    description = describe(config)
    assert description.parameters == count(model)
    assert description.parameters == pytest.approx(WHISPER[size] * 1e6, rel=0.04)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert description.gradient_bytes == 4 * trained


def assert_formulas_equal_the_model(config: TransductConfig) -> None:
    model = on_meta(config)
    by_formula, by_counting = describe(config), describe(model)
    assert by_formula.parameters == count(model)
    assert by_formula == by_counting
    assert sum(by_formula.parameters_by_part.values()) == by_formula.parameters


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_equals_its_model(name):
    assert_formulas_equal_the_model(config_from_preset(name))


@pytest.mark.parametrize("name", ODD)
def test_every_choice_equals_its_model(name):
    assert_formulas_equal_the_model(tiny(**ODD[name]))


# ---- models that are no encoder-decoder -------------------------------------------------------------------------------


def test_an_encoder_alone_has_no_target_side():
    model = on_meta(tiny(is_encoder_decoder=False), TransductEncoderModel)
    description = describe(model)
    assert description.parameters == count(model)
    assert description.multiply_adds_per_source_token == description.parameters_by_part["encoder"]
    assert description.multiply_adds_per_target_token == 0
    assert description.cache_bytes_per_source_token == description.cache_bytes_per_target_token == 0
    assert description.attention_multiply_adds(5, 7) == 2 * 25 * 2 * 24
    assert description.output_multiply_adds_per_target_token == 0
    assert (description.activation_bytes_by_part["decoder"], description.activation_bytes_by_part["loss"]) == (0, 0)


def test_a_decoder_alone_has_no_source_side():
    model = on_meta(tiny(is_encoder_decoder=False), TransductForCausalLM)
    description = describe(model)
    assert description.parameters == count(model)
    assert description.multiply_adds_per_source_token == 0
    assert description.multiply_adds_per_target_token == description.parameters_by_part["decoder"]
    assert description.parameters_by_part["cross_attention"] == 0
    assert description.cache_bytes_per_source_token == 0
    assert description.cache_bytes_per_target_token == 3 * 2 * 24 * 4
    assert description.activation_bytes_by_part["encoder"] == 0


def test_a_masked_language_model_counts_its_head():
    model = on_meta(tiny(is_encoder_decoder=False), TransductForMaskedLM)
    assert describe(model).parameters == count(model)
    assert describe(model).output_multiply_adds_per_target_token == 23 * 24


def test_frozen_parameters_have_no_gradient_and_no_optimizer_state():
    model = on_meta(tiny())
    model.model.encoder.requires_grad_(False)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    description = describe(model)
    assert 0 < trainable < description.parameters
    assert (description.gradient_bytes, description.optimizer_bytes) == (4 * trainable, 8 * trainable)
    assert description.parameter_bytes == 4 * description.parameters


# ---- multiply-adds, cache, memory: against what PyTorch does --------------------------------------------------------------

COMPUTED = [
    "tiny", "other decoder", "free head width", "wide values", "narrow values", "grouped wide values", "grouped heads",
    "two vocabularies", "gated", "rmsnorm", "relative bias", "linear stem", "convolutional stem",
]  # fmt: skip


def sources(config: TransductConfig, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Ids, or frames enough for so many states."""
    if config.feature_size is None:
        return {"input_ids": torch.full((batch, length), 3)}
    return {"input_features": torch.ones(batch, length * (2 if config.feature_stem == "conv" else 1), config.feature_size)}


@pytest.mark.parametrize("name", COMPUTED)
def test_multiply_adds_equal_those_that_pytorch_counts(name):
    config = tiny(**ODD[name])
    config._attn_implementation = "eager"
    batch, source, target = 3, 11, 5
    model = TransductForConditionalGeneration(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**sources(config, batch, source), decoder_input_ids=torch.full((batch, target), 3))
    description = describe(config)
    pairs = description.attention_multiply_adds_per_pair
    beyond_causality = target * (target - 1) // 2 * pairs["decoder"]  # eager attention computes the future, then hides it
    assert counter.get_total_flops() == 2 * batch * (description.multiply_adds(source, target) + beyond_causality)


@pytest.mark.parametrize("name", COMPUTED)
def test_cache_bytes_equal_those_of_a_cache(name):
    config = tiny(**ODD[name])
    model = TransductForConditionalGeneration(config).eval()
    with torch.no_grad():
        cache = model(**sources(config, 3, 11), decoder_input_ids=torch.full((3, 5), 3), use_cache=True).cache

    def stored(part) -> int:
        return sum(states.numel() * states.element_size() for layer in part.layers for states in (layer.keys, layer.values))

    description = describe(config)
    assert stored(cache.cross_attention_cache) == 3 * 11 * description.cache_bytes_per_source_token
    assert stored(cache.self_attention_cache) == 3 * 5 * description.cache_bytes_per_target_token
    assert describe(config, dtype=torch.bfloat16).cache_bytes_per_target_token * 2 == description.cache_bytes_per_target_token


def kept_for_backward(model, source: dict[str, torch.Tensor], target: torch.Tensor) -> int:
    """Bytes of all tensors that autograd keeps, parameters and ids apart, each storage once."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.is_floating_point():
            kept[storage.data_ptr()] = tensor  # holding it keeps its address from being used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**source, decoder_input_ids=target)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


SAVED = {
    "post": {},
    "pre": dict(norm_position="pre"),
    "rmsnorm": dict(norm_position="pre", norm="rmsnorm"),
    "BART": dict(embedding_norm=True, activation="gelu"),
    "gated": dict(gated_ffn=True, activation="gelu"),
    "gated ReLU": dict(gated_ffn=True),
    "gated, T5's GELU": dict(gated_ffn=True, activation="gelu_new"),
    "T5's GELU": dict(activation="gelu_new"),
    "narrow heads": dict(d_kv=8),
    "wide values": dict(d_kv=8, d_value=32, attention="eager"),  # on a CPU, sdpa would keep its weights as well
    "grouped wide values": dict(num_key_value_heads=2, d_kv=8, d_value=24, attention="eager"),
    "grouped heads": dict(num_key_value_heads=2),
    "rotary": dict(positions="rotary"),
    "alibi": dict(positions="alibi"),
    "eager": dict(attention="eager"),
    "two sizes": dict(decoder_d_ff=96, decoder_num_heads=2),
    "linear stem": dict(encoder_input="features", feature_size=200, tie_embeddings="none"),
    "convolutional stem": dict(encoder_input="features", feature_size=80, feature_stem="conv", tie_embeddings="none"),
    "ReLU in the stem": ODD["convolutional stem"] | dict(feature_activation="relu", feature_size=400),
}


@pytest.mark.parametrize("name", SAVED)
def test_activations_are_those_that_autograd_keeps(name):
    changes = dict(SAVED[name])
    attention = changes.pop("attention", "sdpa")
    config = tiny(**{**dict(d_model=64, d_ff=256, dropout=0.0), **changes})
    config._attn_implementation = attention
    model = TransductForConditionalGeneration(config).train()
    batch, source, target = 4, 32, 24
    found = kept_for_backward(model, sources(config, batch, source), torch.full((batch, target), 3))
    parts = describe(
        config, batch_size=batch, source_length=source, target_length=target, attention=attention
    ).activation_bytes_by_part
    assert parts["encoder"] + parts["decoder"] == pytest.approx(found, rel=0.05)


def test_dropout_masks_take_a_byte_an_element():
    sizes = dict(batch_size=2, source_length=3, target_length=5)
    without = describe(tiny(dropout=0.0), **sizes).activation_bytes
    with_masks = describe(tiny(dropout=0.1), **sizes).activation_bytes
    # two or three sublayers a layer and the embedding, d_model elements a token
    assert with_masks - without == 2 * 3 * 24 * (2 * 2 + 1) + 2 * 5 * 24 * (3 * 3 + 1)


def test_activations_grow_with_the_batch_and_shrink_with_checkpoints_and_dtype():
    config = config_from_preset("t5-base")
    base = describe(config).activation_bytes_by_part
    double = describe(config, batch_size=64).activation_bytes_by_part
    assert (double["encoder"], double["decoder"]) == (2 * base["encoder"], 2 * base["decoder"])
    assert describe(config, gradient_checkpointing=True).activation_bytes < describe(config).activation_bytes / 3
    half = describe(config, dtype=torch.bfloat16).activation_bytes_by_part
    assert base["encoder"] / 2 <= half["encoder"] < 0.6 * base["encoder"]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", lambda parameters: torch.optim.AdamW(parameters)),
        ("momentum", lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        ("sgd", lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        ("adafactor", lambda parameters: transformers.Adafactor(parameters)),
    ],
)
def test_optimizer_bytes_equal_the_state_of_the_optimizer(name, make):
    model = TransductForConditionalGeneration(tiny(positions="learned"))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = make(model.parameters())
    optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values()]
    found = sum(value.nbytes for value in values if torch.is_tensor(value) and value.ndim > 0)
    assert describe(model.config, optimizer=name).optimizer_bytes == found


# ---- the object -------------------------------------------------------------------------------------------------------


def test_values_of_their_own_width_count_as_such():
    """By hand: 8 heads with keys 16 and values 64 wide in 6 encoder, 6 decoder and 6 cross-attentions."""
    base, narrow = (describe(config_from_preset(name)) for name in ("vaswani-base", "vaswani-b-dk-16"))
    assert base.parameters - narrow.parameters == 18 * 2 * 8 * (64 - 16) * (512 + 1)  # q_proj and k_proj with their biases
    assert narrow.attention_multiply_adds_per_pair == dict.fromkeys(base.attention_multiply_adds_per_pair, 6 * 8 * (16 + 64))
    assert narrow.cache_bytes_per_target_token == narrow.cache_bytes_per_source_token == 6 * 8 * (16 + 64) * 4


def test_lengths_enter_as_they_should():
    description = describe(config_from_preset("vaswani-base"))
    assert description.attention_multiply_adds_per_pair == dict.fromkeys(("encoder", "decoder", "cross_attention"), 6 * 2 * 512)
    assert description.attention_multiply_adds(10, 4) == (100 + 10 + 40) * 6 * 2 * 512
    assert description.multiply_adds(10, 4) == 10 * 22_020_096 + 4 * (22_020_096 + 37_000 * 512) + 150 * 6_144


def test_the_table_and_the_dict_hold_the_same_figures():
    description = describe(config_from_preset("bart-base"), batch_size=2, source_length=30, target_length=20)
    table = str(description)
    for figure in (139_420_416, description.multiply_adds_per_source_token, 2 * description.multiply_adds(30, 20)):
        assert f"{figure:,}" in table
    assert "cross_attention" in table
    assert "output, per target token" in table
    plain = json.loads(json.dumps(description.to_dict()))
    assert plain["parameters"] == 139_420_416
    assert plain["multiply_adds_per_batch"] == 2 * description.multiply_adds(30, 20)
    assert plain["assumptions"]["batch_size"] == 2
    memory = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
    assert plain["training_bytes"] == sum(plain[key] for key in memory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(batch_size=0), "batch_size=0"),
        (dict(source_length=2.5), "source_length=2.5"),
        (dict(target_length=True), "target_length=True"),
        (dict(dtype="int3"), "dtype='int3' must be one of float64"),
        (dict(optimizer="magic"), "optimizer='magic' must be one of adamw"),
        (dict(attention="flash"), "attention='flash' must be one of sdpa, eager"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        describe(tiny(), **arguments)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("t5-small", "config_or_model='t5-small' must be a TransductConfig"),
        (transformers.T5Config(), "T5Config with model_type='t5'"),
        (TransductConfig(is_encoder_decoder=False), "pass the model instead"),
    ],
)
def test_what_cannot_be_counted_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        describe(wrong)

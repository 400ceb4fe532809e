"""Presets: every published shape by name, each equal to its source; mistyped names and fields raise."""

import pytest
import torch
import transformers
from transformers import BlenderbotConfig, M2M100Config, MBartConfig, PegasusConfig, PLBartConfig, PreTrainedConfig

from transduct.accounting import describe
from transduct.configuration import TransductConfig
from transduct.convert.models import export_plan
from transduct.presets import config_from_folder, config_from_preset, preset_names

# name: (layers, d_model, d_ff, width of a head, heads), as the papers' tables have them
VASWANI_TABLE_3 = {
    "vaswani-base": (6, 512, 2048, 64, 8),
    "vaswani-big": (6, 1024, 4096, 64, 16),
    "vaswani-a-heads-1": (6, 512, 2048, 512, 1),
    "vaswani-a-heads-4": (6, 512, 2048, 128, 4),
    "vaswani-a-heads-16": (6, 512, 2048, 32, 16),
    "vaswani-a-heads-32": (6, 512, 2048, 16, 32),
    "vaswani-b-dk-16": (6, 512, 2048, 16, 8),
    "vaswani-b-dk-32": (6, 512, 2048, 32, 8),
    "vaswani-c-layers-2": (2, 512, 2048, 64, 8),
    "vaswani-c-layers-4": (4, 512, 2048, 64, 8),
    "vaswani-c-layers-8": (8, 512, 2048, 64, 8),
    "vaswani-c-d256": (6, 256, 2048, 32, 8),
    "vaswani-c-d1024": (6, 1024, 2048, 128, 8),
    "vaswani-c-ff-1024": (6, 512, 1024, 64, 8),
    "vaswani-c-ff-4096": (6, 512, 4096, 64, 8),
    "vaswani-d-dropout-0": (6, 512, 2048, 64, 8),
    "vaswani-d-dropout-0.2": (6, 512, 2048, 64, 8),
    "vaswani-d-smoothing-0": (6, 512, 2048, 64, 8),
    "vaswani-d-smoothing-0.2": (6, 512, 2048, 64, 8),
    "vaswani-e-learned": (6, 512, 2048, 64, 8),
}
T5 = {
    "t5-small": (6, 512, 2048, 64, 8),
    "t5-base": (12, 768, 3072, 64, 12),
    "t5-large": (24, 1024, 4096, 64, 16),
    "t5-3b": (24, 1024, 16384, 128, 32),
    "t5-11b": (24, 1024, 65536, 128, 128),
}
T5_V1_1 = {
    "t5-v1.1-small": (8, 512, 1024, 64, 6),
    "t5-v1.1-base": (12, 768, 2048, 64, 12),
    "t5-v1.1-large": (24, 1024, 2816, 64, 16),
    "t5-v1.1-xl": (24, 2048, 5120, 64, 32),
    "t5-v1.1-xxl": (24, 4096, 10240, 64, 64),
}
MT5 = {name.replace("t5-v1.1", "mt5"): shape for name, shape in T5_V1_1.items()}
BART_AND_MARIAN = {
    "bart-base": (6, 768, 3072, 64, 12),
    "bart-large": (12, 1024, 4096, 64, 16),
    "marian-base": (6, 512, 2048, 64, 8),
}
WHISPER = {  # arXiv 2212.04356, Table 1
    "whisper-tiny": (4, 384, 1536, 64, 6),
    "whisper-base": (6, 512, 2048, 64, 8),
    "whisper-small": (12, 768, 3072, 64, 12),
    "whisper-medium": (24, 1024, 4096, 64, 16),
    "whisper-large": (32, 1280, 5120, 64, 20),
    "whisper-large-v3": (32, 1280, 5120, 64, 20),
}
DESCENDANTS = {
    "mbart-large-cc25": (12, 1024, 4096, 64, 16),
    "mbart-large-50": (12, 1024, 4096, 64, 16),
    "plbart-base": (6, 768, 3072, 64, 12),
    "blenderbot-400m-distill": (2, 1280, 5120, 40, 32),
    "blenderbot-3b": (2, 2560, 10240, 80, 32),
    "pegasus-large": (16, 1024, 4096, 64, 16),
    "m2m100-418m": (12, 1024, 4096, 64, 16),
    "m2m100-1.2b": (24, 1024, 8192, 64, 16),
    "nllb-200-distilled-600m": (12, 1024, 4096, 64, 16),
    "nllb-200-1.3b": (24, 1024, 8192, 64, 16),
    "nllb-200-3.3b": (24, 2048, 8192, 128, 16),
}
DECODER_LAYERS = {"blenderbot-400m-distill": 12, "blenderbot-3b": 24}
SHAPES = {**VASWANI_TABLE_3, **T5, **T5_V1_1, **MT5, **BART_AND_MARIAN, **WHISPER, **DESCENDANTS}


def test_there_are_these_presets_and_no_others():
    assert sorted(preset_names()) == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_preset_has_its_published_shape(name):
    config = config_from_preset(name)
    shape = (config.encoder_layers, config.d_model, config.d_ff, config.head_dim, config.num_heads)
    assert shape == SHAPES[name]
    assert config.decoder_layers == DECODER_LAYERS.get(name, config.encoder_layers)
    assert (config.resolved_decoder_d_ff, config.resolved_decoder_num_heads) == (config.d_ff, config.num_heads)


def test_vaswani_base_is_the_default_config_with_label_smoothing():
    assert config_from_preset("vaswani-base").to_dict() == TransductConfig(label_smoothing=0.1).to_dict()


def test_the_rows_of_table_3_differ_from_base_in_nothing_else():
    base = config_from_preset("vaswani-base").to_dict()
    differences = {}
    for name in VASWANI_TABLE_3:
        config = config_from_preset(name).to_dict()
        differences[name] = {key: value for key, value in config.items() if base[key] != value}
    assert differences["vaswani-big"] == {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
    assert differences["vaswani-a-heads-32"] == {"num_heads": 32}
    assert differences["vaswani-b-dk-16"] == {"d_kv": 16, "d_value": 64}
    assert differences["vaswani-b-dk-32"] == {"d_kv": 32, "d_value": 64}
    assert differences["vaswani-c-layers-8"] == {"encoder_layers": 8, "decoder_layers": 8}
    assert differences["vaswani-c-d1024"] == {"d_model": 1024, "d_kv": 128}
    assert differences["vaswani-c-ff-4096"] == {"d_ff": 4096}
    assert differences["vaswani-d-dropout-0"] == {"dropout": 0.0}
    assert differences["vaswani-d-dropout-0.2"] == {"dropout": 0.2}
    assert differences["vaswani-d-smoothing-0"] == {"label_smoothing": 0.0}
    assert differences["vaswani-d-smoothing-0.2"] == {"label_smoothing": 0.2}
    assert differences["vaswani-e-learned"] == {"positions": "learned"}


@pytest.mark.parametrize("name", [*T5, *T5_V1_1, *MT5])
def test_the_t5_family_shares_its_choices(name):
    config = config_from_preset(name)
    assert (config.norm, config.norm_position, config.norm_eps) == ("rmsnorm", "pre", 1e-6)
    assert (config.positions, config.relative_buckets, config.relative_max_distance) == ("relative_bias", 32, 128)
    assert (config.attention_scale, config.attention_bias, config.ffn_bias, config.scale_embeddings) == (
        "none",
        False,
        False,
        False,
    )
    assert (config.dropout, config.attention_dropout, config.activation_dropout, config.final_dropout) == (0.1, 0.1, 0.1, True)
    assert (config.initializer, config.label_smoothing, config.logits_bias) == ("t5", 0.0, False)
    assert config.freeze_padding_embedding is False
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 0)


def test_t5_1_1_and_mt5_differ_from_t5_in_activation_head_and_vocabulary():
    for names, activation, gated, tie, scaled, vocabulary in (
        (T5, "relu", False, "all", True, 32128),
        (T5_V1_1, "gelu_new", True, "source_target", False, 32128),
        (MT5, "gelu_new", True, "source_target", False, 250112),
    ):
        for name in names:
            config = config_from_preset(name)
            found = (config.activation, config.gated_ffn, config.tie_embeddings, config.scale_logits, config.vocab_size)
            assert found == (activation, gated, tie, scaled, vocabulary), name


@pytest.mark.parametrize("name", ["bart-base", "bart-large"])
def test_bart_has_its_choices(name):
    config = config_from_preset(name)
    assert (config.norm, config.norm_position, config.embedding_norm, config.resolved_final_norm) == (
        "layernorm",
        "post",
        True,
        False,
    )
    assert (config.positions, config.max_positions, config.position_offset) == ("learned", 1024, 2)
    assert (config.activation, config.scale_embeddings, config.tie_embeddings) == ("gelu", False, "all")
    assert (config.initializer, config.initializer_std, config.vocab_size) == ("normal", 0.02, 50265)
    assert config.freeze_padding_embedding is True
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 2, 2)


def test_marian_has_its_choices():
    config = config_from_preset("marian-base")
    assert (config.norm, config.norm_position, config.embedding_norm) == ("layernorm", "post", False)
    assert (config.positions, config.max_positions, config.sinusoid_layout) == ("sinusoidal", 512, "halves")
    assert (config.activation, config.scale_embeddings, config.tie_embeddings, config.logits_bias) == ("silu", True, "all", True)
    assert (config.initializer, config.initializer_std, config.norm_eps) == ("normal", 0.02, 1e-5)
    assert (config.vocab_size, config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (
        58101,
        58100,
        0,
        58100,
    )


def theirs(config_class: type[PreTrainedConfig], layers: int = 12, width: int = 1024, ffn: int = 4096, **values):
    """A config of transformers, whose defaults are those of one published checkpoint each."""
    sizes = {"d_model": width}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_ffn_dim": ffn, f"{side}_attention_heads": 16}
    return config_class(**sizes | values)


NLLB = {"vocab_size": 256206, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
BLENDERBOT = {"scale_embedding": True}
REFERENCES = {
    "mbart-large-cc25": theirs(MBartConfig, vocab_size=250027, scale_embedding=True),
    "mbart-large-50": theirs(MBartConfig, vocab_size=250054, scale_embedding=True, decoder_start_token_id=2),
    "plbart-base": PLBartConfig(),
    "blenderbot-400m-distill": BlenderbotConfig(
        d_model=1280, decoder_layers=12, encoder_ffn_dim=5120, decoder_ffn_dim=5120, **BLENDERBOT
    ),
    "blenderbot-3b": BlenderbotConfig(**BLENDERBOT),
    "pegasus-large": theirs(
        PegasusConfig, 16, vocab_size=96103, scale_embedding=True, activation_function="relu", attention_dropout=0.1,
        activation_dropout=0.1,
    ),
    "m2m100-418m": M2M100Config(),
    "m2m100-1.2b": theirs(M2M100Config, 24, ffn=8192),
    "nllb-200-distilled-600m": theirs(M2M100Config, **NLLB),
    "nllb-200-1.3b": theirs(M2M100Config, 24, ffn=8192, **NLLB),
    "nllb-200-3.3b": theirs(M2M100Config, 24, 2048, 8192, **NLLB),
}  # fmt: skip
OF_GENERATION = {"forced_eos_token_id", "encoder_no_repeat_ngram_size", "architectures"}


@pytest.mark.parametrize("name", REFERENCES)
def test_barts_descendants_are_what_transformers_has(name):
    """The same config there, and as many parameters, sinusoids aside."""
    reference = REFERENCES[name]
    config = config_from_preset(name)
    plan, exported = export_plan(config, "TransductForConditionalGeneration", reference.model_type, name)
    differing = {key for key, value in reference.to_dict().items() if exported.to_dict()[key] != value}
    assert differing <= OF_GENERATION
    with torch.device("meta"):
        model = getattr(transformers, plan.their_class)(reference)
    assert describe(config).parameters == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def test_an_override_replaces_one_field_and_leaves_the_preset_alone():
    changed = config_from_preset("t5-small", vocab_size=8000, dropout=0.0)
    assert (changed.vocab_size, changed.dropout, changed.d_kv) == (8000, 0.0, 64)
    changed.d_ff = 99
    again = config_from_preset("t5-small")
    assert (again.vocab_size, again.dropout, again.d_ff) == (32128, 0.1, 2048)


def test_an_unknown_preset_lists_close_names():
    with pytest.raises(ValueError, match=r"'T5-smal' is not a preset; did you mean .*t5-small"):
        config_from_preset("T5-smal")
    with pytest.raises(ValueError, match=r"'gpt' is not a preset; preset_names\(\)"):
        config_from_preset("gpt")


def test_an_unknown_override_raises_with_its_name():
    with pytest.raises(ValueError, match="no field 'd_modle'"):
        config_from_preset("t5-small", d_modle=3)


def test_an_impossible_override_raises_with_field_and_value():
    with pytest.raises(ValueError, match="pad_token_id=58100"):
        config_from_preset("marian-base", vocab_size=100)


def test_the_config_of_a_saved_model(tmp_path):
    config_from_preset("t5-small", vocab_size=40).save_pretrained(tmp_path)
    assert (
        config_from_folder(tmp_path, dropout=0.3).to_diff_dict()
        == config_from_preset("t5-small", vocab_size=40, dropout=0.3).to_diff_dict()
    )
    with pytest.raises(ValueError, match="is not a folder with a saved model"):
        config_from_folder(tmp_path / "missing")
    tmp_path.rename(tmp_path.with_name("model"))  # as in the output folder of a run
    with pytest.raises(ValueError, match=r"no config\.json; its model is in .*model"):
        config_from_folder(tmp_path.parent)

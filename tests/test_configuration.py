"""The config refuses what makes no sense, says why, and survives every way of being written and read."""

import copy
import json
import logging
import pickle
from dataclasses import fields

import pytest
from transformers import AutoConfig, PreTrainedConfig

from configs import MATRIX, name, tiny
from transduct import TransductConfig
from transduct.configuration import AUTO_MAP, ConfigurationError


def refused(match: str):
    return pytest.raises(ValueError, match=match)


@pytest.fixture
def messages():
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("transformers", "transduct")]
    for logger in loggers:
        logger.addHandler(handler)
    yield found
    for logger in loggers:
        logger.removeHandler(handler)


# ---- values -------------------------------------------------------------------------------------------------------
def test_defaults_are_the_base_model_of_the_paper():
    config = TransductConfig()
    assert (config.d_model, config.d_ff, config.num_heads, config.head_dim) == (512, 2048, 8, 64)
    assert (config.encoder_layers, config.decoder_layers, config.dropout) == (6, 6, 0.1)
    assert (config.norm, config.norm_position, config.positions) == ("layernorm", "post", "sinusoidal")
    assert config.tie_embeddings == "all"
    assert config.resolved_final_norm is False
    assert config.is_encoder_decoder


@pytest.mark.parametrize("wrong", ["vocabsize", "d_modell", "dropuot", "num_layers", "relative_attention_num_buckets"])
def test_mistyped_names(wrong):
    with refused(f"no field '{wrong}'"):
        TransductConfig(**{wrong: 3})


WRONG_TYPES = {
    "vocab_size": "100", "d_model": 64.0, "num_heads": None, "norm": "batchnorm", "norm_position": "before",
    "positions": "sinusoid",
    "tie_embeddings": True, "dropout": "0.1", "activation": 3, "gated_ffn": "yes", "norm_eps": "1e-5", "encoder_input": "audio",
    "pad_token_id": "0", "eos_token_id": 1.5, "initializer": "kaiming", "sinusoid_layout": "sincos", "decoder_layers": "six",
    "attention_scale": 0.5, "feature_stem": "patch", "scale_embeddings": None,
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG_TYPES)
def test_wrong_types(field):
    with refused(field):
        TransductConfig(**{field: WRONG_TYPES[field]})
    config = TransductConfig()
    with refused(field):
        setattr(config, field, WRONG_TYPES[field])


WRONG_VALUES = [
    ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
    ({"d_model": -8}, "d_model=-8 must be at least 1"),
    ({"d_model": 100}, "num_heads=8 must divide d_model=100"),
    ({"decoder_num_heads": 7}, "decoder_num_heads=7 must divide d_model=512"),
    ({"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_heads=8"),
    ({"decoder_num_heads": 4, "num_key_value_heads": 8}, "num_key_value_heads=8 must divide decoder_num_heads=4"),
    ({"d_kv": 0}, "d_kv=0 must be None or at least 1"),
    ({"encoder_layers": -1}, "encoder_layers=-1 must not be negative"),
    ({"dropout": 1.0}, r"dropout=1.0 must lie in \[0, 1\)"),
    ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
    ({"label_smoothing": 1}, "label_smoothing=1 "),
    ({"layer_drop": 2}, "layer_drop=2 "),
    ({"z_loss": -1}, "z_loss=-1 must be finite and not negative"),
    ({"z_loss": float("inf")}, "z_loss=inf must be finite"),
    ({"norm_eps": 0.0}, "norm_eps=0.0 must be positive"),
    ({"norm_eps": float("inf")}, "norm_eps=inf must be positive and finite"),
    ({"initializer_std": -0.02}, "initializer_std=-0.02 must be positive"),
    ({"activation": "relo"}, "activation='relo' must be one of"),
    ({"d_model": 9, "num_heads": 3}, 'd_model=9 must be even for positions="sinusoidal"'),
    ({"positions": "rotary", "d_kv": 3}, 'd_kv=3 must be even for positions="rotary"'),
    ({"positions": "relative_bias", "relative_buckets": 7}, "relative_buckets=7 must be even"),
    ({"positions": "relative_bias", "relative_buckets": 2}, "relative_buckets=2 must be even and at least 4"),
    ({"positions": "relative_bias", "relative_max_distance": 16}, "relative_max_distance=16 must exceed"),
    ({"relative_bias_per_layer": True}, 'relative_bias_per_layer=True belongs to positions="relative_bias"'),
    ({"positions": "rotary", "position_offset": 2}, 'position_offset=2 belongs to positions="learned" or "sinusoidal"'),
    ({"freeze_encoder_positions": True}, 'freeze_encoder_positions=True belongs to positions="learned"'),
    ({"decoder_embedding_norm": "before_positions"}, "decoder_embedding_norm='before_positions' needs embedding_norm=True"),
    ({"decoder_max_positions": 0}, "decoder_max_positions=0 must be None or at least 1"),
    ({"decoder_layer_drop": 1.0}, r"decoder_layer_drop=1.0 must be None or lie in \[0, 1\)"),
    ({"d_model": 2, "num_heads": 1, "sinusoid_layout": "tensor2tensor"}, "d_model=2 must be at least 4"),
    ({"decoder_vocab_size": 100}, "tie_embeddings='all' needs two vocabularies of one size"),
    ({"decoder_vocab_size": 100, "tie_embeddings": "source_target"}, "tie_embeddings='source_target' needs"),
    ({"pad_token_id": 37000}, r"pad_token_id=37000 must be None or lie in the vocabulary, \[0, 37000\)"),
    ({"eos_token_id": -1}, "eos_token_id=-1"),
    ({"eos_token_id": [1, 40000]}, "eos_token_id=40000"),
    ({"decoder_start_token_id": 99999}, "decoder_start_token_id=99999"),
    ({"bos_token_id": 37001}, "bos_token_id=37001"),
    ({"decoder_vocab_size": 50, "tie_embeddings": "none", "pad_token_id": 50}, "pad_token_id=50"),
    ({"encoder_input": "features"}, "feature_size=None is needed"),
    ({"freeze_padding_embedding": True, "pad_token_id": None}, "freeze_padding_embedding=True needs a pad_token_id"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG_VALUES, ids=lambda value: str(value)[:40])
def test_impossible_values_and_combinations(fields, message):
    with refused(message):
        TransductConfig(**fields)
    with pytest.raises(ConfigurationError):
        TransductConfig(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"decoder_vocab_size": 37000}, {"decoder_vocab_size": 100, "tie_embeddings": "target_output"}, {"d_kv": 7, "num_heads": 5},
     {"pad_token_id": None}, {"eos_token_id": [1, 2]}, {"eos_token_id": None}, {"dropout": 0}, {"label_smoothing": 0},
     {"rotary_base": 10000}, {"norm_eps": 1}, {"initializer_std": 1}, {"encoder_layers": 0},
     {"decoder_scale_embeddings": False}, {"target_start": "last_token", "decoder_start_token_id": None},
     {"num_key_value_heads": 1}, {"positions": "learned", "position_offset": 2}, {"num_labels": 7}],
    ids=str,
)  # fmt: skip
def test_possible_combinations(fields):
    config = TransductConfig(**fields)
    assert all(getattr(config, key) == value for key, value in fields.items())


def test_resolved_values():
    config = tiny(norm_position="pre", decoder_vocab_size=40, decoder_d_ff=7, decoder_num_heads=2, tie_embeddings="none")
    assert config.resolved_final_norm is True
    assert (config.resolved_decoder_vocab_size, config.resolved_decoder_d_ff, config.resolved_decoder_num_heads) == (40, 7, 2)
    assert tiny(norm_position="pre", final_norm=False).resolved_final_norm is False
    assert tiny(final_norm=True).resolved_final_norm is True
    assert (tiny().resolved_decoder_vocab_size, tiny().resolved_decoder_d_ff, tiny().resolved_decoder_num_heads) == (23, 24, 4)
    assert tiny(d_kv=6).head_dim == 6
    scales = [tiny(scale_embeddings=scale).resolved_decoder_scale_embeddings for scale in (False, True)]
    assert scales == [False, True]
    assert tiny(decoder_scale_embeddings=False).resolved_decoder_scale_embeddings is False
    assert [tiny(tie_embeddings=tie).tie_word_embeddings for tie in ("all", "none")] == [True, False]


def test_names_that_other_tools_expect():
    config = tiny(d_model=32, num_heads=8, encoder_layers=3, max_positions=77)
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (32, 8, 3)
    assert config.max_position_embeddings == 77
    config.hidden_size = 48
    assert config.d_model == 48


def test_the_decoders_sizes_under_general_names():
    config = tiny(decoder_vocab_size=40, decoder_d_ff=7, decoder_num_heads=2, decoder_layers=5, tie_embeddings="none")
    view = config.get_text_config(decoder=True)
    assert (view.vocab_size, view.d_ff, view.num_attention_heads, view.num_hidden_layers, view.head_dim) == (40, 7, 2, 5, 8)
    assert (config.vocab_size, config.num_hidden_layers) == (23, 2)  # a view changes nothing
    assert config.get_text_config() is config.get_text_config(encoder=True) is config
    assert view.get_text_config(decoder=True).vocab_size == 40


# ---- written and read ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", MATRIX[::3], ids=name)
def test_every_way_of_copying(choice, tmp_path):
    config = tiny(**choice, eos_token_id=[1, 2], num_labels=4, decoder_d_ff=30)
    config.save_pretrained(tmp_path)
    copies = [
        TransductConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        TransductConfig.from_dict(config.to_dict()),
        TransductConfig.from_dict(json.loads(config.to_json_string(use_diff=False))),
        TransductConfig.from_json_file(tmp_path / "config.json"),
        TransductConfig(**config.to_dict()),
        copy.deepcopy(config),
        copy.copy(config),
        pickle.loads(pickle.dumps(config)),
    ]
    for one in copies:
        assert type(one) is TransductConfig
        ours, theirs = one.to_dict(), config.to_dict()
        assert ours | {"_name_or_path": None} == theirs | {"_name_or_path": None}
        assert one.auto_map == AUTO_MAP


def test_a_deep_copy_is_independent():
    config = tiny(eos_token_id=[1, 2])
    other = copy.deepcopy(config)
    other.eos_token_id.append(3)
    other.d_ff = 99
    assert config.eos_token_id == [1, 2]
    assert config.d_ff == 24


def test_keys_of_a_newer_version_in_a_file_warn(tmp_path, messages):
    tiny().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert TransductConfig.from_pretrained(tmp_path).d_ff == 24
    assert messages == []  # what this version writes it knows
    (tmp_path / "config.json").write_text(json.dumps(content | {"mixture_experts": 8, "router": "top2"}))
    config = TransductConfig.from_pretrained(tmp_path)
    assert any("mixture_experts" in message and "router" in message for message in messages)
    assert not hasattr(config, "mixture_experts")
    ours, theirs = config.to_dict(), TransductConfig.from_dict(content).to_dict()
    assert ours | {"_name_or_path": None} == theirs | {"_name_or_path": None}


def test_wrong_values_in_a_file_raise(tmp_path):
    tiny().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for field, value in (("norm", "batchnorm"), ("d_model", "16"), ("num_heads", 3), ("dropout", 7)):
        (tmp_path / "config.json").write_text(json.dumps(content | {field: value}))
        with refused(field):
            TransductConfig.from_pretrained(tmp_path)


def test_overrides_when_loading(tmp_path):
    tiny().save_pretrained(tmp_path)
    assert TransductConfig.from_pretrained(tmp_path, dropout=0.3, num_labels=9).dropout == 0.3
    with refused("dropout=3"):
        TransductConfig.from_pretrained(tmp_path, dropout=3)
    config, unused = TransductConfig.from_pretrained(tmp_path, droput=0.3, return_unused_kwargs=True)
    assert unused == {"droput": 0.3}
    assert config.dropout == 0.0


def test_everything_is_written(tmp_path):
    """A file says all that makes the model, so that later defaults change no old checkpoint."""
    tiny().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    ours = {field.name for field in fields(TransductConfig)} - {field.name for field in fields(PreTrainedConfig)}
    assert len(ours) > 50
    assert ours - set(content) == set()


def test_the_names_that_other_tools_use_are_taken():
    config = TransductConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    assert (config.d_model, config.num_heads, config.encoder_layers) == (64, 4, 2)
    with pytest.raises(ValueError, match="d_model"):
        TransductConfig(hidden_size="wide")

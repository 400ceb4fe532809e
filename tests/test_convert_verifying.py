"""The comparison of two models finds each kind of fault, and names where it is."""

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
)

from conversions import Case, build
from transduct import TransductConfig, TransductForConditionalGeneration
from transduct.convert import from_transformers, to_transformers, verifying
from transduct.convert.memory import import_model
from transduct.convert.verifying import verify

T5 = T5Config(
    vocab_size=40, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=4, dropout_rate=0.1, decoder_start_token_id=0,
    relative_attention_num_buckets=8, relative_attention_max_distance=20,
)  # fmt: skip
SIZES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
}  # fmt: skip
BART = BartConfig(**SIZES)


@cache
def original(model_class: type[PreTrainedModel]) -> PreTrainedModel:
    return build(Case("", model_class, copy.deepcopy(BART if "Bart" in model_class.__name__ else T5)))


def with_fault(model_class: type[PreTrainedModel], spoil: Callable[[PreTrainedModel], None]) -> PreTrainedModel:
    ours = import_model(original(model_class))
    with torch.no_grad():
        spoil(ours)
    return ours


def swap_projections(model):
    attention = model.model.encoder.layers[1].self_attention
    attention.q_proj, attention.k_proj = attention.k_proj, attention.q_proj


def swap_in_decoder(model):
    attention = model.model.decoder.layers[0].cross_attention
    attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj


def wrong_eps(model):
    model.model.encoder.final_norm.eps = 1e-2


def scaled_logits(model):
    model.config.scale_logits = False


def untied(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.flip(0))


def moved_bias(model):
    table = model.model.decoder.position_bias.table.weight
    table.copy_(table.roll(1, 0))


def no_number(model):
    model.model.decoder.layers[1].feed_forward.down_proj.weight[0, 0] = float("nan")


def moved_positions(model):
    table = model.model.encoder.embed_positions
    table.weight.copy_(table.weight.roll(1, 0))


def without_bias(model):
    model.lm_head.bias.zero_()


FAULTS = [
    (T5ForConditionalGeneration, swap_projections, "encoder's layer 1"),
    (T5ForConditionalGeneration, swap_in_decoder, "decoder's layer 0"),
    (T5ForConditionalGeneration, wrong_eps, "encoder's layer 1 (the last, with the norm"),
    (T5ForConditionalGeneration, scaled_logits, "logits"),
    (T5ForConditionalGeneration, untied, "logits"),
    (T5ForConditionalGeneration, moved_bias, "decoder's layer 0"),
    (T5ForConditionalGeneration, no_number, "decoder's layer 1"),
    (BartForConditionalGeneration, moved_positions, "encoder's embeddings"),
    (BartForConditionalGeneration, without_bias, "logits"),
]


@pytest.mark.parametrize(("model_class", "spoil", "place"), FAULTS, ids=[spoil.__name__ for _, spoil, _ in FAULTS])
def test_a_fault_is_named_by_the_first_layer_that_differs(model_class, spoil, place):
    with pytest.raises(ValueError, match="first in the") as error:
        verify(original(model_class), with_fault(model_class, spoil))
    assert f"first in the {place}" in str(error.value)


@pytest.mark.parametrize(
    ("model_class", "layers"),
    [
        (BartForConditionalGeneration, 4),
        (T5ForConditionalGeneration, 4),
        (T5Model, 4),
        (T5EncoderModel, 2),
        (T5ForSequenceClassification, 4),
        (T5ForTokenClassification, 2),
        (T5ForQuestionAnswering, 4),
    ],
)
def test_models_that_agree_say_in_what(model_class, layers):
    theirs = original(model_class)
    result = verify(theirs, import_model(theirs))
    assert all(difference <= 1e-5 for difference in result.differences.values())
    assert len([name for name in result.differences if "layer" in name]) == layers
    outputs = set(result.differences) & set(verifying.OUTPUTS)
    assert outputs
    assert all(name in str(result) for name in outputs)
    assert ("greedy generation: identical ids" in str(result)) == theirs.can_generate()


def test_one_encoder_layer_too_many_is_named():
    theirs = original(T5EncoderModel)
    ours = import_model(theirs)
    ours.encoder.layers.append(ours.encoder.layers[0])
    with pytest.raises(ValueError, match="encoder's layer 2"):
        verify(theirs, ours)


def test_what_generation_config_says_is_compared():
    """The ids differ although all states and logits agree."""
    theirs = original(T5ForConditionalGeneration)
    ours = import_model(theirs)
    ours.generation_config.forced_bos_token_id = 17
    with pytest.raises(ValueError, match=r"differ in greedy generation, row 0: .* there, .* here"):
        verify(theirs, ours)


def test_settings_of_published_checkpoints_do_not_stand_in_the_way():
    theirs = copy.deepcopy(original(BartForConditionalGeneration))
    theirs.generation_config.update(
        num_beams=4, length_penalty=2.0, max_length=142, min_length=56, no_repeat_ngram_size=3, early_stopping=True,
        forced_bos_token_id=0, do_sample=True, top_k=7, temperature=0.5, num_return_sequences=3, return_dict_in_generate=True,
        bad_words_ids=[[3], [4, 5]], suppress_tokens=[6],
    )  # fmt: skip
    ours = import_model(theirs)
    assert len(verify(theirs, ours).generated) == 3
    ours.generation_config.suppress_tokens = None
    ours.generation_config.bad_words_ids = None
    ours.generation_config.no_repeat_ngram_size = None
    with pytest.raises(ValueError, match="generation"):
        verify(theirs, ours)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "low"},
        {"force_words_ids": [[4]]},
        {"prompt_lookup_num_tokens": 2},
        {"guidance_scale": 1.5},
        {"low_memory": True},
        {"stop_strings": ["."]},
    ],
    ids=lambda settings: next(reversed(settings)),
)
def test_settings_of_other_searches_are_left_aside(settings):
    theirs = copy.deepcopy(original(T5ForConditionalGeneration))
    for name, value in settings.items():  # those of config.json are not checked when they are read
        setattr(theirs.generation_config, name, value)
    assert len(verify(theirs, import_model(theirs)).generated) == 3


def test_a_stack_without_layers_has_no_states_to_compare():
    config = BartConfig(**SIZES | {"encoder_layers": 0})
    theirs = build(Case("", BartForConditionalGeneration, config))
    result = verify(theirs, import_model(theirs))
    assert "decoder's embeddings" in result.differences
    assert "encoder's embeddings" not in result.differences


def test_tokens_that_a_bias_forbids_are_equal():
    theirs = copy.deepcopy(original(BartForConditionalGeneration))
    theirs.final_logits_bias[0, 5] = float("-inf")
    ours = import_model(theirs)
    assert verify(theirs, ours).differences["logits"] <= 1e-5
    with torch.no_grad():
        ours.lm_head.bias[5] = 0
    with pytest.raises(ValueError, match="first in the logits: by inf"):
        verify(theirs, ours)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sinusoids_of_half_precision_are_compared_unrounded(dtype):
    config = MarianConfig(**SIZES, pad_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    theirs = build(Case("", MarianMTModel, config)).to(dtype)
    assert max(verify(theirs, import_model(theirs)).differences.values()) <= 1e-5
    loaded = copy.deepcopy(theirs).float()
    ours = import_model(loaded)
    table = loaded.model.encoder.embed_positions.weight
    stored = table.clone()
    assert max(verify(loaded, ours).differences.values()) <= 1e-5
    assert torch.equal(table, stored)
    with torch.no_grad():
        table[2] += 0.01
    with pytest.raises(ValueError, match="first in the encoder's embeddings"):
        verify(loaded, ours)


@pytest.mark.parametrize(
    ("ids", "pad", "ends", "kept"),
    [
        ([0, 5, 1, 0, 0], 0, 1, [0, 5, 1]),
        ([2, 5, 3, 3, 3], 3, 3, [2, 5, 3]),
        ([2, 5, 3, 4, 4], 4, [3, 4], [2, 5, 3, 4]),
        ([2, 5, 6], 3, 3, [2, 5, 6]),
        ([0, 0, 0], 0, 1, [0]),
    ],
)
def test_padding_after_an_answer_is_no_part_of_it(ids, pad, ends, kept):
    assert verifying._stripped(ids, TransductConfig(pad_token_id=pad, eos_token_id=ends)) == kept


def test_half_precision_is_compared_in_copies_of_float32():
    theirs = copy.deepcopy(original(T5ForConditionalGeneration)).to(torch.bfloat16)
    ours = import_model(theirs)
    assert ours.dtype == torch.bfloat16
    result = verify(theirs, ours)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert max(result.differences.values()) <= 1e-5


def test_comparing_leaves_no_trace():
    theirs = copy.deepcopy(original(T5ForConditionalGeneration)).train()
    ours = import_model(theirs)
    ours.model.encoder.eval()
    before = torch.get_rng_state()
    verify(theirs, ours)
    assert all(module.training for module in theirs.modules())
    assert [ours.training, ours.model.encoder.training, ours.model.decoder.training] == [True, False, True]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_tie_is_reported_and_no_failure():
    """Two models in which tokens 20 and 21 are equally good but for rounding, and which choose differently between them."""
    config = copy.deepcopy(T5)
    theirs = build(Case("", T5ForConditionalGeneration, config, untie=("lm_head",)))
    with torch.no_grad():
        theirs.lm_head.weight[20] *= 3
        theirs.lm_head.weight[21] = theirs.lm_head.weight[20]
    ours = import_model(theirs)
    with torch.no_grad():
        for model, better in ((theirs, 20), (ours, 21)):
            model.lm_head.weight[better] *= 1 + 1e-6
    result = verify(theirs, ours)
    assert any("equally good" in tie for tie in result.ties)
    assert "equally good" in str(result)


def test_both_directions_are_compared_unless_told_otherwise(monkeypatch):
    compared = []
    monkeypatch.setattr(verifying, "verify", lambda theirs, ours: compared.append((theirs, ours)))
    theirs = original(T5ForConditionalGeneration)
    ours = from_transformers(theirs)
    back = to_transformers(ours)
    assert compared == [(theirs, ours), (back, ours)]
    to_transformers(from_transformers(theirs, verify=False), verify=False)
    assert len(compared) == 2


def test_models_trained_from_scratch_here_are_compared_too():
    config = TransductConfig(
        vocab_size=40, d_model=16, d_ff=24, num_heads=4, encoder_layers=1, decoder_layers=2, norm="rmsnorm", norm_position="pre",
        positions="relative_bias", attention_scale="none", attention_bias=False, ffn_bias=False, scale_embeddings=False,
        scale_logits=True, final_dropout=True,
    )  # fmt: skip
    assert isinstance(to_transformers(TransductForConditionalGeneration(config), to="t5"), T5ForConditionalGeneration)

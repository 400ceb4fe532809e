"""M2M100, and NLLB-200 without experts."""

from typing import Any

import pytest
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Model

import transduct
from configs import sharpen
from conversions import Case, ConversionTests, GenerationTests, LeftPaddingTests, build, imported, pair, source
from transduct.convert import from_transformers, to_transformers
from transduct.convert.models import export_plan

SIZES = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
}  # fmt: skip
ENGLISH, GERMAN = 37, 38


def case(name: str, model: Any = M2M100ForConditionalGeneration, prepare: Any = None, **values: Any) -> Case:
    return Case(name, model, M2M100Config(**SIZES | values), prepare=prepare, forced={"forced_bos_token_id": GERMAN})


GENERATE = [
    case("m2m_100"),
    case("unequal", encoder_layers=3, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=20, encoder_layerdrop=0.0),
    case("unscaled", scale_embedding=False, activation_function="gelu"),
    case("untied", tie_word_embeddings=False),
    case("padding-elsewhere", pad_token_id=5, decoder_start_token_id=1),
    case("short-table", max_position_embeddings=4),
]


@pytest.mark.parametrize("case", GENERATE, ids=str)
class TestGenerating(GenerationTests, LeftPaddingTests, ConversionTests):
    pass


@pytest.mark.parametrize("case", [case("model", M2M100Model)], ids=str)
class TestModel(LeftPaddingTests, ConversionTests):
    pass


def test_languages_on_both_sides():
    """The language of the source first, that of the target forced: the one chosen is the first token written."""
    theirs, ours = pair(GENERATE[0])
    batch = source(GENERATE[0])
    batch["input_ids"][:, 0] = ENGLISH
    options = batch | {"forced_bos_token_id": GERMAN, "num_beams": 4, "max_new_tokens": 10}
    got = ours.generate(**options)
    assert got[:, :2].tolist() == [[2, GERMAN]] * 3
    assert got.tolist() == theirs.generate(**options).tolist()


def test_positions_and_layer_drop():
    config = pair(GENERATE[0])[1].config
    assert (config.position_offset, config.sinusoid_layout) == (2, "tensor2tensor")
    assert (config.layer_drop, config.decoder_layer_drop) == (0.05, None)
    config = pair(GENERATE[1])[1].config
    assert (config.layer_drop, config.decoder_layer_drop) == (0.0, 0.05)
    assert pair(GENERATE[4])[1].config.position_offset == 6


def test_stored_positions():
    """The first files had them; no later ones do, nor are they written."""
    theirs, ours = pair(GENERATE[0])
    assert not any("embed_positions" in name for name in to_transformers(ours, verify=False).state_dict())
    tables = {
        f"model.{stack}.embed_positions.weights": theirs.model.encoder.embed_positions.weights for stack in ("encoder", "decoder")
    }
    state = theirs.state_dict() | tables
    assert all(torch.equal(tensor, ours.state_dict()[key]) for key, tensor in imported(theirs, state)[1].items())
    for name in tables:
        with pytest.raises(ValueError, match=f"{name} holds other values than are computed here"):
            imported(theirs, state | {name: state[name].flip(1)})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pad_token_id": None}, "pad_token_id=None, but positions count from the padding token's id"),
        ({"decoder_start_token_id": 1}, "decoder_start_token_id=1 is the padding token, which has no position"),
        ({"model_type": "nllb-moe"}, "nllb-moe.* not supported yet.*mixtures of experts"),
        ({"normalize_before": False}, "normalize_before=False cannot be imported, only True"),
    ],
    ids=str,
)
def test_refusals(values, message):
    theirs, _ = pair(GENERATE[0])
    with pytest.raises(ValueError, match=message):
        imported(theirs, theirs.state_dict(), **values)


TINY = {
    "vocab_size": 40, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 2, "max_positions": 32,
    "norm_position": "pre", "sinusoid_layout": "tensor2tensor", "position_offset": 2, "pad_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip


def test_a_model_of_ours_becomes_m2m_100():
    ours = sharpen(transduct.TransductForConditionalGeneration(transduct.TransductConfig(**TINY))).eval()
    again = from_transformers(to_transformers(ours, "m2m_100"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"position_offset": 0}, "position_offset=0"), ({"logits_bias": True}, "logits_bias=True"),
     ({"norm_position": "post"}, "norm_position='post'")],
    ids=str,
)  # fmt: skip
def test_what_m2m_100_cannot_say(fields, named):
    with pytest.raises(ValueError, match=f"cannot be written as m2m_100, which has no way to say .*{named}"):
        export_plan(transduct.TransductConfig(**TINY | fields), "TransductForConditionalGeneration", "m2m_100", "it")


def test_a_model_that_would_write_padding_is_compared_without_it():
    """With a cache, transformers places what follows a padding token elsewhere than without: nothing could agree with both."""
    theirs = build(GENERATE[0])
    pad = theirs.config.pad_token_id
    with torch.no_grad():
        theirs.lm_head.weight[pad] = theirs.lm_head.weight[4] * 1.5
    assert (theirs.generate(**source(GENERATE[0]), max_new_tokens=6)[:, 1:3] == pad).any()
    from_transformers(theirs)  # compares both

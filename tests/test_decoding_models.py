"""What decoding knows of a model: how targets begin and how much it takes; what its generation config says wrongly is named."""

from types import SimpleNamespace

import pytest
from transformers import GenerationConfig

from configs import tiny
from tiny_translation import theirs, tiny_translation
from transduct import TransductTokenizer, score, translate
from transduct.decoding.models import decoder_start, first_tokens, source_limit, target_limit, target_vocabulary


def test_limits():
    model, tokenizer = tiny_translation()
    assert source_limit(model, tokenizer, None) is None
    assert target_limit(model) is None
    learned = tiny_translation(positions="learned", max_positions=32)[0]
    assert (source_limit(learned, tokenizer, None), target_limit(learned)) == (32, 32)
    with pytest.raises(ValueError, match="max_source_length=33 exceeds the 32 positions of the model"):
        source_limit(learned, tokenizer, 33)
    assert source_limit(theirs("bart", tokenizer), tokenizer, None) == 64
    short = TransductTokenizer.train(iter(["abc"]), kind="chars", model_max_length=20)
    assert source_limit(learned, short, None) == 20
    assert source_limit(learned, short, 30) == 30


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_the_target_vocabulary(family):
    model, tokenizer = tiny_translation()
    assert target_vocabulary(model) == target_vocabulary(theirs(family, tokenizer)) == len(tokenizer)
    assert target_vocabulary(SimpleNamespace(config=tiny(decoder_vocab_size=9, tie_embeddings="none"))) == 9


def test_what_is_said_comes_before_the_generation_config():
    model, _ = tiny_translation()
    assert first_tokens(model, {}) == (2, None)
    assert first_tokens(model, {"decoder_start_token_id": 5, "forced_bos_token_id": 7}) == (5, 7)
    assert first_tokens(model, {"decoder_start_token_id": None}) == (2, None)
    model.generation_config = GenerationConfig(forced_bos_token_id=4)
    model.config.bos_token_id = 3
    assert first_tokens(model, {}) == (2, 4)
    assert first_tokens(model, {"forced_bos_token_id": None}) == (2, None)
    model.config.decoder_start_token_id = None
    assert decoder_start(model) == 3
    model.config.bos_token_id = None
    with pytest.raises(ValueError, match="neither the generation config nor the config has a decoder_start_token_id"):
        decoder_start(model)


def test_what_is_no_model_and_no_tokenizer_is_named():
    model, tokenizer = tiny_translation()
    for call in (lambda *pair: translate(*pair, ["a"]), lambda *pair: score(*pair, ["a"], ["b"])):
        with pytest.raises(ValueError, match="model is a NoneType, which is no encoder-decoder"):
            call(None, tokenizer)
        with pytest.raises(ValueError, match="tokenizer is a NoneType, which is none"):
            call(model, None)
        with pytest.raises(ValueError, match=r"tokenizer is a Transduct\w+, which is none"):
            call(model, model)


@pytest.mark.parametrize("family", ["transduct", "t5"])
@pytest.mark.parametrize("token", [999, -5, [2, 3], "x", True, 2.0])
@pytest.mark.parametrize("name", ["decoder_start_token_id", "forced_bos_token_id"])
def test_tokens_that_are_not_there_are_named(family, token, name):
    model, tokenizer = tiny_translation()
    model = model if family == "transduct" else theirs(family, tokenizer)
    setattr(model.generation_config, name, token)
    message = rf"{name}=.* must be the id of one of the {len(tokenizer)} tokens of the target vocabulary"
    with pytest.raises(ValueError, match=message):
        translate(model, tokenizer, ["abc"])
    with pytest.raises(ValueError, match=message):
        score(model, tokenizer, ["abc"], ["ab"])

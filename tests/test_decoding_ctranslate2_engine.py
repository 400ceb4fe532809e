"""CTranslate2 behind `translate` gives what our search does, and refuses what it cannot."""

import pytest
from transformers import GenerationConfig

import transduct
from configs import PAD, words
from ctranslate2_exports import exported_translator, model_of
from tiny_translation import TEXTS, tiny_translation
from transduct.convert import to_ctranslate2
from transduct.decoding import beam_search
from transduct.decoding.engines import load_engine


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exported_translator(tmp_path_factory.mktemp("ctranslate2"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(num_beams=1),
        dict(num_beams=3, num_return_sequences=3),
        dict(length_penalty=0.2),
        dict(length_normalization="none"),
        dict(max_new_tokens=7),
        dict(max_new_tokens=20, length_penalty=0.5),
        dict(max_new_tokens=20, length_normalization="none"),
        dict(max_new_tokens=20, num_beams=3, num_return_sequences=2),
        dict(max_length_by_source=(0.5, 3)),
    ],
    ids=str,
)
def test_translates_as_we_do(exported, options):
    model, tokenizer, folder, _ = exported
    greedy = options.get("num_beams") == 1
    ours = transduct.translate(
        model, tokenizer, TEXTS, return_scores=True, **options, **({} if greedy else {"early_stopping": True})
    )
    theirs = transduct.translate(folder, tokenizer, TEXTS, return_scores=True, **options)
    for want, got in zip(ours, theirs, strict=True):
        for one, other in zip(*([each] if not isinstance(each, list) else each for each in (want, got)), strict=True):
            assert (one.text, one.token_ids) == (other.text, other.token_ids)
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)


def test_forced_first_token(tmp_path):
    model, tokenizer = tiny_translation()
    to_ctranslate2(model, tokenizer, tmp_path / "out")
    options = dict(forced_bos_token_id=9, return_scores=True, length_penalty=0.5)
    ours = transduct.translate(model, tokenizer, TEXTS, early_stopping=True, **options)
    theirs = transduct.translate(tmp_path / "out", tokenizer, TEXTS, **options)
    assert {each.token_ids[:1] for each in ours} == {(), (9,)}
    for want, got in zip(ours, theirs, strict=True):
        assert want.token_ids == got.token_ids
        assert got.score == pytest.approx(want.score, abs=1e-4)


def test_forbidden_tokens_stay_away(exported):
    _, tokenizer, folder, _ = exported
    banned = {each.token_ids[0] for each in transduct.translate(folder, tokenizer, TEXTS, return_scores=True) if each.token_ids}
    banned.discard(tokenizer.eos_token_id)
    assert banned
    for each in transduct.translate(folder, tokenizer, TEXTS, return_scores=True, bad_words_ids=[[token] for token in banned]):
        assert not banned & set(each.token_ids)
    for text, each in zip(
        TEXTS, transduct.translate(folder, tokenizer, TEXTS, return_scores=True, min_new_tokens=9), strict=True
    ):
        assert not text.strip() or len(each.token_ids) >= 9
    for each in transduct.translate(folder, tokenizer, TEXTS, return_scores=True, no_repeat_ngram_size=1):
        assert len(set(each.token_ids)) == len(each.token_ids)


def test_generation_config_is_asked_too(exported, tmp_path):
    model, tokenizer, _, _ = exported
    own = model.generation_config
    try:
        model.generation_config = GenerationConfig(**{**own.to_diff_dict(), "num_beams": 2, "max_new_tokens": 5, "top_k": 50})
        to_ctranslate2(model, tokenizer, tmp_path / "out")
        want = transduct.translate(model, tokenizer, TEXTS, early_stopping=True)
    finally:
        model.generation_config = own
    assert transduct.translate(tmp_path / "out", tokenizer, TEXTS) == want


def test_left_padding_and_every_start(tmp_path):
    model = model_of(target_start="last_token")
    to_ctranslate2(model, None, tmp_path / "out")
    engine = load_engine(tmp_path / "out")
    ids = words(2, 6)
    ids[1, :3] = PAD
    mask = (ids != PAD).long()
    for start in (4, 5):
        options = dict(num_beams=4, max_new_tokens=9, decoder_start_token_id=start, custom_generate=beam_search)
        want = model.generate(ids, attention_mask=mask, early_stopping=True, **options)
        assert engine.generate(ids, mask, **options)[:, : want.shape[1]].tolist() == want.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(length_normalization="gnmt"), "length_normalization='gnmt' cannot be had with engine='ctranslate2'"),
        (dict(early_stopping="never"), "early_stopping='never' cannot be had"),
        (dict(coverage_penalty=0.2), "coverage_penalty=0.2 cannot be had"),
        (dict(word_reward=0.5), "word_reward=0.5 cannot be had"),
        (dict(repetition_penalty=1.2), "repetition_penalty=1.2 cannot be had"),
        (dict(drafts=True), "greedy_with_drafts cannot be had with engine='ctranslate2'"),
        (dict(decoder_start_token_id=7), "decoder_start_token_id=7 cannot be had"),
        (dict(return_alignments=True), "engine='ctranslate2' tells no attention"),
        (dict(engine="onnx"), "was written for ctranslate2"),
        (dict(engine="marian"), "engine='marian' must be one of ctranslate2, onnx, int8"),
    ],
    ids=str,
)
def test_translate_refuses(exported, options, message):
    _, tokenizer, folder, _ = exported
    with pytest.raises(ValueError, match=message):
        transduct.translate(folder, tokenizer, ["abc"], **options)


def test_sources_longer_than_the_table(exported):
    engine = exported[3]
    with pytest.raises(ValueError, match="a source of 4097 tokens exceeds the 4096 positions of the folder"):
        engine.generate(words(1, 4097, high=9))

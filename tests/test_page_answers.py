"""The model behind the page: the answers are those of `translate`, for several visitors at once, and end in time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration

from configs import build, tiny
from tiny_tokenizers import write_tokenizer
from tiny_translation import theirs, tiny_translation
from transduct import TransductForConditionalGeneration, score, translate
from transduct.decoding.attention_maps import attention_map
from transduct.page.answers import Demonstration
from transduct.page.settings import Settings

BEAMS = Settings(beams=3, hypotheses=2, tokens=8)
SAMPLES = Settings(search="sampling", hypotheses=5, tokens=8, top_k=5, seed=3)


@pytest.mark.parametrize("family", ["ours", "t5", "bart"])
def test_beams_are_those_of_translate(family):
    model, tokenizer = tiny_translation(end=2.0)
    model = model if family == "ours" else theirs(family, tokenizer)
    answer = Demonstration(model, tokenizer).answer("cab ab", BEAMS)
    options = dict(num_beams=3, num_return_sequences=2, length_penalty=1.0, max_new_tokens=8, return_scores=True)
    assert list(answer.hypotheses) == translate(model, tokenizer, ["cab ab"], **options)[0]
    for each in answer.hypotheses:
        assert len(answer.tree.places(each.token_ids)) == len(each.token_ids)


def test_samples_are_those_of_translate_and_of_score():
    model, tokenizer = tiny_translation(end=2.0)
    answer = Demonstration(model, tokenizer).answer("cab ab", SAMPLES)
    options = dict(do_sample=True, seed=3, num_return_sequences=5, max_new_tokens=8, top_k=5, top_p=1.0, return_scores=True)
    (wanted,) = translate(model, tokenizer, ["cab ab"], length_penalty=1.0, temperature=1.0, **options)
    assert sorted(answer.hypotheses, key=str) == sorted(wanted, key=str)
    assert [each.score for each in answer.hypotheses] == sorted((each.score for each in wanted), reverse=True)
    targets = [each.token_ids for each in answer.hypotheses]
    sums = score(model, tokenizer, ["cab ab"] * 5, targets)
    for tokens, total in zip(targets, sums, strict=True):
        places = answer.tree.places(tokens)
        assert answer.tree.steps[len(tokens) - 1].nodes[places[-1]].log_prob == pytest.approx(total, abs=1e-5)


def test_where_it_looked():
    model, tokenizer = tiny_translation(end=2.0)
    page = Demonstration(model, tokenizer)
    settings = Settings(beams=2, hypotheses=2, tokens=8, prefix="do ")
    answer = page.answer("cab", settings)
    for rank, each in enumerate(answer.hypotheses):
        found = page.look(answer, rank)
        wanted = attention_map(model, tokenizer, "cab", each.token_ids, prefix="do ")
        assert found.source == wanted.source == ("d", "o", "␣", "c", "a", "b", "</s>")
        assert torch.equal(found.mean(), wanted.mean())
    with pytest.raises(ValueError, match="there are 2 hypotheses"):
        page.look(answer, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no text yet"),
        (" \n ", "there is no text yet"),
        (None, "there is no text yet"),
        ("x" * 2**20, "the text has more than the 20,000 characters"),
        ("x" * 2000, "the text has 2,001 tokens; the model takes at most 1,024 here"),
        ("a\0b", "NUL"),
        ("a\ud800", "no valid Unicode"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_texts_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Demonstration(*tiny_translation()).answer(text, BEAMS)


def test_the_models_own_limit_counts():
    with pytest.raises(ValueError, match="has 101 tokens; the model takes at most 64 here"):
        Demonstration(*tiny_translation(positions="learned")).answer("x" * 100, BEAMS)


def test_what_does_not_fit_the_model_is_refused():
    page = Demonstration(*tiny_translation())
    with pytest.raises(ValueError, match="tgt_lang='de'"):
        page.answer("a", Settings(tgt_lang="de"))
    with pytest.raises(ValueError, match="task='sing'"):
        page.answer("a", Settings(task="sing"))


def test_models_without_a_text_as_the_source_are_refused():
    config = tiny(encoder_input="features", feature_size=5, tie_embeddings="target_output")
    speech = build(TransductForConditionalGeneration, config, torch.float32)
    with pytest.raises(ValueError, match="input_features, not text"):
        Demonstration(speech, tiny_translation()[1])
    with pytest.raises(ValueError, match="seconds=0 must be positive"):
        Demonstration(*tiny_translation(), seconds=0)


@pytest.mark.parametrize("settings", [BEAMS, SAMPLES], ids=lambda settings: settings.search)
def test_two_visitors_at_once_get_their_own_answers(settings):
    """Texts, languages and searches of one are not seen by the other."""
    page = Demonstration(*tiny_translation(end=2.0))
    texts = ["cab", "xyz ab", "hello", "a"] * 3
    alone = [page.answer(text, settings) for text in texts]
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(page.answer, text, settings) for text in texts]
        seen = [threads.submit(page.look, answer, 0) for answer in alone]
        together = [each.result() for each in asked]
        maps = [each.result() for each in seen]
    assert together == alone
    for answer, found in zip(alone, maps, strict=True):
        assert torch.equal(found.mean(), page.look(answer, 0).mean())


@pytest.mark.parametrize("search", ["beam search", "sampling"])
def test_a_search_that_takes_too_long_is_stopped(search):
    model, tokenizer = tiny_translation(end=-1e4)
    page = Demonstration(model, tokenizer, seconds=0.2)
    settings = Settings(search=search, beams=2, hypotheses=2, tokens=512)
    with pytest.raises(ValueError, match=r"took longer than 0\.2 seconds"):
        page.answer("a", settings)
    answer = Demonstration(model, tokenizer).answer("a", Settings(beams=1, hypotheses=1, tokens=2))
    assert len(answer.hypotheses[0].token_ids) == 2


def test_closing_stops_the_search():
    model, tokenizer = tiny_translation(end=-1e4)
    page = Demonstration(model, tokenizer, seconds=600)
    timer = threading.Timer(0.3, page.close)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(ValueError, match="being closed"):
        page.answer("a", Settings(beams=16, hypotheses=1, tokens=512))
    assert time.monotonic() - begin < 30
    with pytest.raises(ValueError, match="being closed"):
        page.answer("a", BEAMS)


def test_languages_that_a_visitor_chooses(tmp_path):
    """Of a multilingual checkpoint: the output begins as the target language says, and so does what is drawn."""
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer("nllb", tmp_path))
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = M2M100Config(
        vocab_size=len(tokenizer),
        decoder_start_token_id=tokenizer.eos_token_id,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        **sizes,
        **ids,
    )
    model = M2M100ForConditionalGeneration(config).eval()
    page = Demonstration(model, tokenizer)
    for code in ("deu_Latn", "ron_Latn"):
        answer = page.answer("The field is valid", Settings(beams=2, hypotheses=2, tokens=6, tgt_lang=code, src_lang="eng_Latn"))
        first = tokenizer.convert_tokens_to_ids(code)
        assert {each.token_ids[0] for each in answer.hypotheses} == {first}
        assert answer.tree.steps[0].running[0].label == code
        seen = page.look(answer, 1)
        assert (seen.source[0], seen.target[0]) == ("eng_Latn", code)

"""What a visitor may choose: what a model offers, and no value that is not possible."""

import pytest
from transformers import AutoTokenizer

from tiny_tokenizers import write_tokenizer
from tiny_translation import theirs, tiny_translation
from transduct import TransductTokenizer
from transduct.page.settings import Settings, default_penalty, offer


def test_the_options_of_a_beam_search():
    settings = Settings(beams=3, hypotheses=2, normalization="gnmt", length_penalty=0.6, tokens=9, prefix="do: ", task="")
    options = settings.options(observer=print)
    assert (options.num_beams, options.num_return_sequences, options.length_penalty) == (3, 2, 0.6)
    assert (options.length_normalization, options.prefix, options.task) == ("gnmt", "do: ", None)
    assert options.generation == {"max_new_tokens": 9, "observer": print}
    assert options.strategy.has_beams


def test_the_options_of_samples():
    settings = Settings(search="sampling", beams=1, hypotheses=7, temperature=0.5, top_k=0, top_p=0.9, seed=3)
    options = settings.options()
    assert (options.num_beams, options.num_return_sequences) == (None, 7)
    assert options.generation == {"temperature": 0.5, "top_k": 0, "top_p": 0.9}
    assert (options.strategy.do_sample, options.strategy.seed) == (True, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"search": "magic"}, "search must be one of beam search, sampling"),
        ({"normalization": "<script>"}, "normalization must be one of hf, gnmt, sockeye, none"),
        ({"beams": 0}, "beams must be a whole number from 1 to 16"),
        ({"beams": 10**9}, "beams must be"),
        ({"beams": 2.5}, "beams must be"),
        ({"beams": True}, "beams must be"),
        ({"beams": None}, "beams must be"),
        ({"hypotheses": "4"}, "hypotheses must be"),
        ({"hypotheses": 5}, "hypotheses=5 must not exceed beams=4"),
        ({"tokens": 513}, "tokens must be a whole number from 0 to 512"),
        ({"length_penalty": float("nan")}, "length_penalty must be a number from -10 to 10"),
        ({"temperature": 0}, "temperature must be"),
        ({"top_p": float("inf")}, "top_p must be"),
        ({"top_k": -1}, "top_k must be"),
        ({"seed": 2**31}, "seed must be"),
        ({"prefix": "x" * 201}, "prefix must be a text of at most 200 characters"),
        ({"tgt_lang": ["de"]}, "tgt_lang must be a text"),
    ],
    ids=str,
)
def test_impossible_values_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Settings(**fields)


def test_what_a_model_offers():
    model, tokenizer = tiny_translation(decoder_layers=3, decoder_num_heads=2)
    found = offer(model, tokenizer)
    assert (found.source_languages, found.target_languages, found.tasks) == ((), (), ())
    assert (found.layers, found.heads) == (3, 2)
    assert found.defaults == Settings()
    model.generation_config.num_beams, model.generation_config.length_penalty = 6, 2.0
    assert offer(model, tokenizer).defaults == Settings(beams=6, hypotheses=6, length_penalty=2.0)
    for family in ("t5", "bart", "marian"):
        other = theirs(family, tokenizer)
        assert (offer(other, tokenizer).layers, offer(other, tokenizer).heads) == (2, 4)


def test_languages_and_tasks_that_can_be_chosen(tmp_path):
    model, _ = tiny_translation()
    tokenizer = TransductTokenizer.train(iter(["abc"]), kind="chars", languages=["de", "fr"])
    assert offer(model, tokenizer).target_languages == ("de", "fr")
    assert offer(model, tokenizer).source_languages == ()
    nllb = AutoTokenizer.from_pretrained(write_tokenizer("nllb", tmp_path))
    assert {"eng_Latn", "deu_Latn"} <= set(offer(model, nllb).source_languages) == set(offer(model, nllb).target_languages)
    t5 = theirs("t5", tokenizer)
    t5.config.task_specific_params = {"summarization": {"prefix": "summarize: "}}
    assert offer(t5, tokenizer).tasks == ("summarization",)


def test_penalties_where_nobody_names_one():
    assert [default_penalty(name, 2.0) for name in ("hf", "gnmt", "sockeye", "none")] == [2.0, 0.6, 1.0, 0.0]

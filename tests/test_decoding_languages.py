"""Languages, tasks and prefixes in the form that each tokenizer and config has for them."""

from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer, GenerationConfig

from tiny_tokenizers import write_tokenizer
from transduct import TransductTokenizer
from transduct.decoding.languages import Direction, direction, known, setting, target_codes

TASKS = {
    "summarization": {"prefix": "summarize: ", "min_length": 30, "num_beams": 4},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 300},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
}


def model(generation=None, **config):
    fields = dict(bos_token_id=0, eos_token_id=2, pad_token_id=1)
    return SimpleNamespace(config=SimpleNamespace(**fields | config), generation_config=GenerationConfig(**generation or {}))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    names = ("mbart", "mbart50", "nllb", "m2m_100", "plbart", "t5")
    return {name: AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path_factory.mktemp(name))) for name in names}


def encoded(tokenizer, found: Direction, text: str = "The field") -> list[str]:
    with found.applied(tokenizer):
        return tokenizer.convert_ids_to_tokens(tokenizer(found.prefix + text)["input_ids"])


@pytest.mark.parametrize(
    ("name", "source", "target", "first", "last", "token"),
    [
        ("mbart50", "de_DE", "fr_XX", "de_DE", "</s>", "fr_XX"),
        ("nllb", "deu_Latn", "hin_Deva", "deu_Latn", "</s>", "hin_Deva"),
        ("m2m_100", "de", "fr", "__de__", "</s>", "__fr__"),
    ],
)
def test_the_target_language_begins_the_output(tokenizers, name, source, target, first, last, token):
    tokenizer = tokenizers[name]
    before = tokenizer.src_lang, tokenizer.tgt_lang
    found = direction(model(), tokenizer, source, target)
    assert found.generation == {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)}
    tokens = encoded(tokenizer, found)
    assert (tokens[0], tokens[-1]) == (first, last)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == before  # the caller's tokenizer is as it was
    usual = direction(model(), tokenizer)  # the tokenizer's own
    assert usual.generation != found.generation


@pytest.mark.parametrize(("name", "source", "target"), [("mbart", "de_DE", "fr_XX"), ("plbart", "__java__", "__en_XX__")])
def test_the_target_language_starts_the_decoder(tokenizers, name, source, target):
    tokenizer = tokenizers[name]
    found = direction(model(), tokenizer, source, target)
    want = tokenizer.convert_tokens_to_ids(target)
    assert found.generation == {"decoder_start_token_id": want, "forced_bos_token_id": None}
    assert encoded(tokenizer, found)[-1] == source


def test_a_generation_config_that_says_the_language_is_enough(tokenizers):
    assert direction(model({"forced_bos_token_id": 77}), tokenizers["nllb"]).generation == {}
    assert direction(model({"decoder_start_token_id": 77}), tokenizers["mbart"]).generation == {}
    assert direction(model({"decoder_start_token_id": 77}), tokenizers["mbart"], tgt_lang="fr_XX").generation != {}
    assert direction(model({"decoder_start_token_id": 2}), tokenizers["mbart"]).generation != {}  # </s> is no language


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("mbart50", {"tgt_lang": "de_FR"}, r"tgt_lang='de_FR' is unknown; of the \d+ that are known, the closest are .*de_DE"),
        ("nllb", {"src_lang": "eng"}, r"src_lang='eng' is unknown; .* eng_Latn"),
        ("m2m_100", {"tgt_lang": "DE2"}, r"closest are .*de"),
        ("t5", {"tgt_lang": "de"}, r"tgt_lang='de': neither the tokenizer nor the config of this model knows languages"),
        ("t5", {"task": "chat"}, r"task='chat': this model and its tokenizer know none"),
    ],
)
def test_what_is_unknown_is_refused(tokenizers, name, arguments, message):
    with pytest.raises(ValueError, match=message):
        direction(model(), tokenizers[name], **arguments)


def test_a_multilingual_tokenizer_that_does_not_say_what_to_write(tokenizers):
    tokenizer = SimpleNamespace(src_lang="en", tgt_lang=None, lang_code_to_id={"en": 5, "de": 6})
    with pytest.raises(ValueError, match="tgt_lang is needed"):
        direction(model(), tokenizer)


def test_our_tokenizer_names_the_target_language_in_the_source():
    tokenizer = TransductTokenizer.train(
        iter(["abc"]), kind="chars", languages=["de", "fr"], special_tokens=["[S2S]"], source_prefix=["<2fr>", "[S2S]"]
    )
    found = direction(model(), tokenizer, tgt_lang="de")
    assert encoded(tokenizer, found, "ab") == ["<2de>", "[S2S]", "a", "b", "</s>"]
    assert encoded(tokenizer, direction(model(), tokenizer), "ab") == ["<2fr>", "[S2S]", "a", "b", "</s>"]
    with pytest.raises(ValueError, match=r"tgt_lang='dee' is unknown; of the 2 that are known, the closest are de"):
        direction(model(), tokenizer, tgt_lang="dee")
    with pytest.raises(ValueError, match="src_lang='en' has no use"):
        direction(model(), tokenizer, "en", "de")


def test_marians_token_of_the_target_language():
    tokenizer = SimpleNamespace(supported_language_codes=[">>deu<<", ">>fra<<"])
    assert direction(model(), tokenizer, tgt_lang="fra").prefix == ">>fra<< "
    assert direction(model(), tokenizer, tgt_lang=">>fra<<").prefix == ">>fra<< "
    assert direction(model(), tokenizer).prefix == ""
    with pytest.raises(ValueError, match=r"tgt_lang='fr' is unknown; .* fra"):
        direction(model(), tokenizer, tgt_lang="fr")


@pytest.mark.parametrize(
    "config",
    [{"task_specific_params": TASKS}, {"origin": {"config": {"task_specific_params": TASKS}}}],
    ids=["their config", "what ours was converted from"],
)
def test_tasks_of_the_config(tokenizers, config):
    t5 = tokenizers["t5"]
    found = direction(model(**config), t5, task="summarization")
    assert found.prefix == "summarize: "
    assert found.task == {"min_length": 30, "num_beams": 4}
    assert direction(model(**config), t5, "en", "de").prefix == "translate English to German: "
    assert direction(model(**config), t5, tgt_lang="fr").prefix == "translate English to French: "
    assert direction(model(**config), t5, tgt_lang="fr", prefix=">> ").prefix == ">> "
    assert direction(model(**config), t5).prefix == ""
    with pytest.raises(ValueError, match=r"src_lang='en', tgt_lang=None fit 2 of the model's tasks"):
        direction(model(**config), t5, src_lang="en")
    with pytest.raises(ValueError, match=r"tgt_lang='dr' is unknown; .* the closest are .*de"):
        direction(model(**config), t5, "en", "dr")
    with pytest.raises(ValueError, match=r"task='summarisation' is unknown; .* the closest are summarization"):
        direction(model(**config), t5, task="summarisation")


def test_a_prefix_of_the_config(tokenizers):
    assert direction(model(prefix="fix: "), tokenizers["t5"]).prefix == "fix: "
    assert (
        direction(model(prefix="fix: ", task_specific_params=TASKS), tokenizers["t5"], task="summarization").prefix
        == "summarize: "
    )
    assert direction(model(prefix="fix: "), tokenizers["t5"], prefix="").prefix == ""
    assert setting(SimpleNamespace(), "prefix") is None


def test_a_tokenizer_is_as_it_was_after_an_error(tokenizers):
    tokenizer = tokenizers["nllb"]
    with pytest.raises(RuntimeError), Direction(languages={"src_lang": "hin_Deva"}).applied(tokenizer):
        raise RuntimeError
    assert tokenizer.src_lang == "eng_Latn"


def test_the_closest_names():
    assert known("x", "b", ["a", "b"]) == "b"
    with pytest.raises(ValueError, match="x='zz' is unknown; of the 3 that are known, the closest are a, b, c"):
        known("x", "zz", ["c", "b", "a"])


def test_target_languages_that_a_token_in_the_source_names(tokenizers):
    ours = TransductTokenizer.train(iter(["abc"]), kind="chars", languages=("de", "fr"))
    assert target_codes(ours) == ["de", "fr"]
    assert target_codes(SimpleNamespace(supported_language_codes=[">>deu<<", ">>fra<<"])) == ["deu", "fra"]
    assert target_codes(tokenizers["nllb"]) == target_codes(tokenizers["t5"]) == []

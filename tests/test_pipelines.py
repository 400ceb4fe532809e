"""The pipelines of version 4: every model with its tokenizer, compared with `generate`; calls, results, languages, errors."""

import copy
import logging
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
import transformers
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

from configs import build, sharpen, tiny
from tiny_tokenizers import write_tokenizer
from tiny_translation import tiny_translation
from transduct import TransductForConditionalGeneration, TransductTokenizer
from transduct.decoding import ForcedPrefixes
from transduct.pipelines import SummarizationPipeline, Text2TextGenerationPipeline, TranslationPipeline

TEXTS = ["The field has a size.", "All values", "a longer text of several words, and then some"]
SIZES = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
SIZES |= dict(encoder_ffn_dim=24, decoder_ffn_dim=24, dropout=0.0)
TASKS = {
    "summarization": {"prefix": "summarize: ", "min_length": 4, "max_length": 11, "num_beams": 3, "no_repeat_ngram_size": 2},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 9},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "max_length": 7},
}


def _t5(vocab_size, **fields):
    sizes = dict(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, dropout_rate=0.0)
    return T5ForConditionalGeneration(T5Config(vocab_size=vocab_size, **sizes, decoder_start_token_id=0, **fields))


def _ids(tokenizer, **fields):
    start = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id)
    return dict(vocab_size=1 + max(tokenizer.get_vocab().values())) | start | SIZES | dict(max_position_embeddings=64) | fields


def _build(name, tokenizer):
    if name == "t5":
        return _t5(1 + max(tokenizer.get_vocab().values()), task_specific_params=TASKS)
    if name == "bart":
        return BartForConditionalGeneration(BartConfig(**_ids(tokenizer, decoder_start_token_id=tokenizer.eos_token_id)))
    if name == "marian":
        return MarianMTModel(MarianConfig(**_ids(tokenizer, decoder_start_token_id=tokenizer.pad_token_id)))
    if name == "mbart":
        return MBartForConditionalGeneration(MBartConfig(**_ids(tokenizer, forced_bos_token_id=None)))
    return M2M100ForConditionalGeneration(M2M100Config(**_ids(tokenizer, decoder_start_token_id=tokenizer.eos_token_id)))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of models with tokenizers; of ours, of transformers, and of T5 as it was imported."""
    import transduct.convert

    folders = {}
    for name in ("t5", "bart", "marian", "mbart", "m2m_100"):
        folder = write_tokenizer(name, tmp_path_factory.mktemp(name))
        torch.manual_seed(0)
        sharpen(_build(name, AutoTokenizer.from_pretrained(folder)), std=0.5).save_pretrained(folder)
        folders[name] = str(folder)
    folders["transduct"] = str(tmp_path_factory.mktemp("transduct"))
    for part in tiny_translation():
        part.save_pretrained(folders["transduct"])
    imported = tmp_path_factory.mktemp("imported")
    transduct.convert.from_transformers(folders["t5"]).save_pretrained(imported)
    AutoTokenizer.from_pretrained(folders["t5"]).save_pretrained(imported)
    folders["imported t5"] = str(imported)
    return folders


def direct(pipe, text, languages=(), **options):
    """What `generate` writes for one text."""
    for name, code in dict(languages).items():
        setattr(pipe.tokenizer, name, code)
    ids = pipe.tokenizer(text, return_tensors="pt").to(pipe.model.device)
    ids.pop("token_type_ids", None)
    found = pipe.model.generate(**ids, **options)
    return pipe.tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@contextmanager
def warnings_of(caplog):
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    caplog.clear()
    yield caplog
    logger.removeHandler(caplog.handler)


# ---- registration ---------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_importing_registers_without_loading_the_classes():
    code = (
        "import sys, transduct\n"
        "from transformers import pipeline\n"
        "from transformers.pipelines import check_task\n"
        "print(check_task('translation_en_to_de')[::2], check_task('summarization')[0], 'transduct.pipelines' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert printed == "('translation', ('en', 'de')) summarization False\n"


def test_registering_again_changes_nothing(checkpoints):
    from transformers.pipelines import PIPELINE_REGISTRY

    import transduct

    before = dict(PIPELINE_REGISTRY.supported_tasks)
    transduct.register()
    assert before == PIPELINE_REGISTRY.supported_tasks
    with pytest.raises(KeyError, match="question-answering"):  # what nobody brought back is still refused
        pipeline("question-answering", model=checkpoints["t5"])
    with pytest.raises(KeyError, match="Unknown task translation_en"):
        pipeline("translation_en", model=checkpoints["t5"])


def test_the_models_of_version_4_are_the_defaults():
    from transformers.pipelines import check_task
    from transformers.pipelines.base import get_default_model_and_revision

    for task in ("summarization", "text2text-generation", "translation_en_to_fr"):
        _, entry, options = check_task(task)
        assert len(get_default_model_and_revision(entry, options)) == 2
    for task in ("translation", "translation_en_to_xx"):  # as ever, no model translates between unnamed languages
        _, entry, options = check_task(task)
        with pytest.raises(ValueError, match="default"):
            get_default_model_and_revision(entry, options)


# ---- against generate -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["transduct", "t5", "imported t5", "bart", "marian"])
def test_texts_are_what_generate_writes(checkpoints, name):
    pipe = pipeline("text2text-generation", model=checkpoints[name])
    assert type(pipe) is Text2TextGenerationPipeline
    texts = ["abc", "hello there.", "a"] if name == "transduct" else TEXTS
    for options in (
        {"max_new_tokens": 7},
        {"num_beams": 1, "max_length": 5},
        {"num_beams": 3, "min_new_tokens": 4, "max_length": 9},
    ):
        expected = [direct(pipe, text, **{"num_beams": 4, **options})[0] for text in texts]
        assert all(expected)
        assert pipe(texts, **options) == [{"generated_text": text} for text in expected]
        assert pipe(texts, batch_size=2, **options) == [{"generated_text": text} for text in expected]
        assert pipe(texts[0], **options) == [{"generated_text": expected[0]}]


def test_several_outputs_are_nested(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["transduct"], max_new_tokens=6)
    expected = [direct(pipe, text, num_beams=4, num_return_sequences=3, max_new_tokens=6) for text in ("abc", "no!")]
    found = pipe(["abc", "no!"], num_return_sequences=3, batch_size=2)
    assert [[record["generated_text"] for record in records] for records in found] == expected
    assert pipe("no!", num_return_sequences=3) == found[1]


def test_ids_texts_or_both(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["transduct"], max_new_tokens=6)
    (ids,) = pipe("abc", return_tensors=True)
    (text,) = pipe("abc")
    assert list(ids) == ["generated_token_ids"]
    assert pipe.tokenizer.decode(ids["generated_token_ids"], skip_special_tokens=True) == text["generated_text"]
    (both,) = pipe("abc", return_tensors=True, return_text=True)
    assert both["generated_text"] == text["generated_text"]
    assert both["generated_token_ids"].equal(ids["generated_token_ids"])
    assert list(pipe("abc", return_tensors=True, return_text=False)[0]) == ["generated_token_ids"]
    with pytest.raises(ValueError, match="return_text=False leaves nothing"):
        pipe("abc", return_text=False)


def test_every_container_of_texts(checkpoints):
    pipe = pipeline("translation", model=checkpoints["transduct"], max_new_tokens=6)
    texts = ["abc", "hello there.", "a", "no!"]
    expected = pipe(texts)
    data = Dataset.from_dict({"text": texts})
    assert pipe(data["text"], batch_size=3) == expected
    assert pipe(tuple(texts)) == expected
    assert pipe([]) == []
    assert len(pipe(KeyDataset(data, "text"))) == 4  # what a bar needs to know
    assert [record for (record,) in pipe(KeyDataset(data, "text"), batch_size=3)] == expected
    seen = []

    def endless():
        while True:
            seen.append(texts[len(seen) % 4])
            yield seen[-1]

    lines = iter(pipe(endless(), batch_size=2))
    assert [next(lines)[0] for _ in range(4)] == expected
    assert len(seen) < 10  # no further than it must


def test_models_and_tokenizers_as_objects_on_a_device_in_a_dtype(checkpoints):
    model, tokenizer = tiny_translation()
    pipe = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=6)
    assert pipe("abc") == pipeline("translation", model=checkpoints["transduct"], max_new_tokens=6)("abc")
    half = pipeline("translation", model=checkpoints["transduct"], dtype=torch.bfloat16, device=-1)
    assert half.model.dtype == torch.bfloat16
    assert isinstance(half("abc", max_new_tokens=3)[0]["translation_text"], str)


def test_a_saved_pipeline_loads_without_trust(checkpoints, tmp_path):
    pipe = pipeline("translation", model=checkpoints["transduct"], max_new_tokens=6)
    pipe.save_pretrained(tmp_path)
    assert pipeline("translation", model=str(tmp_path), max_new_tokens=6)("abc") == pipe("abc")


# ---- settings --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["t5", "imported t5"])
def test_the_task_has_a_prefix_and_settings(checkpoints, name):
    pipe = pipeline("summarization", model=checkpoints[name])
    assert type(pipe) is SummarizationPipeline
    of_task = {key: value for key, value in TASKS["summarization"].items() if key != "prefix"}
    expected = direct(pipe, f"summarize: {TEXTS[0]}", **of_task)[0]
    assert pipe(TEXTS[0]) == [{"summary_text": expected}]
    longer = direct(pipe, f"summarize: {TEXTS[0]}", **{**of_task, "max_length": None}, max_new_tokens=14)[0]
    assert longer != expected
    assert pipe(TEXTS[0], max_new_tokens=14) == [{"summary_text": longer}]  # the call comes before the task
    assert pipe(TEXTS[0], prefix="") == [{"summary_text": direct(pipe, TEXTS[0], **of_task)[0]}]
    config = GenerationConfig(num_beams=2, max_new_tokens=5)
    whole = direct(pipe, f"summarize: {TEXTS[0]}", num_beams=2, max_new_tokens=5)[0]
    assert pipe(TEXTS[0], generation_config=config) == [{"summary_text": whole}]


def test_a_prefix_of_the_config(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["bart"], max_new_tokens=6)
    pipe.model.config.prefix = "say: "
    assert pipe("words")[0]["generated_text"] == direct(pipe, "say: words", num_beams=4, max_new_tokens=6)[0]


def test_the_generation_config_comes_before_the_defaults(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["transduct"])
    pipe.model.generation_config.update(num_beams=1, max_length=4)
    assert pipe("hello there.")[0]["generated_text"] == direct(pipe, "hello there.", num_beams=1, max_length=4)[0]
    ids = pipe("hello there.", return_tensors=True, num_beams=2, min_new_tokens=9, max_new_tokens=9)[0]["generated_token_ids"]
    assert len(ids) == 10  # with the one that starts the decoder


def test_sampling_is_generates_own(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["t5"], max_new_tokens=8)
    torch.manual_seed(3)
    expected = direct(pipe, TEXTS[0], num_beams=1, do_sample=True, top_k=5, max_new_tokens=8)[0]
    torch.manual_seed(3)
    assert pipe(TEXTS[0], num_beams=1, do_sample=True, top_k=5)[0]["generated_text"] == expected


@pytest.mark.parametrize("name", ["transduct", "t5", "imported t5", "bart"])
def test_an_assistant_changes_nothing(checkpoints, name):
    """Whether all of its guesses are right or hardly one."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(checkpoints[name]), AutoTokenizer.from_pretrained(checkpoints[name])
    other = sharpen(copy.deepcopy(model), seed=7).eval()
    text, calls = "hello there." if name == "transduct" else TEXTS[2], []
    for assistant in (checkpoints[name], other):
        options = dict(num_beams=1, max_new_tokens=12)
        pipe = pipeline("text2text-generation", model=model, tokenizer=tokenizer, assistant_model=assistant, **options)
        hook = pipe.assistant_model.register_forward_hook(lambda *call: calls.append(1))
        assert pipe(text) == [{"generated_text": direct(pipe, text, **options)[0]}]
        hook.remove()
        assert calls
        calls.clear()


def test_spaces_are_cleaned_up_where_it_is_asked(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["t5"])
    ids = _ids_of(pipe.tokenizer, "a field .")
    options = dict(num_beams=1, max_new_tokens=len(ids), logits_processor=[ForcedPrefixes([ids])])
    for more, text in (
        ({}, "a field ."),
        ({"clean_up_tokenization_spaces": False}, "a field ."),
        ({"clean_up_tokenization_spaces": True}, "a field."),
    ):
        assert pipe(TEXTS[0], **options, **more) == [{"generated_text": text}]
        bound = pipeline("text2text-generation", model=checkpoints["t5"], **more)
        assert bound(TEXTS[0], **options) == [{"generated_text": text}]


@pytest.mark.parametrize("beams", [1, 4])
def test_our_models_stop_at_the_stop_sequence(beams):
    """Also where the target has a vocabulary of its own, in which that is looked up."""
    tokenizer = TransductTokenizer.train(iter(["abc"]), kind="chars", target=iter(["abcdefxyz"]))
    sizes = dict(vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.decoder_vocab_size, tie_embeddings="none")
    pair = build(TransductForConditionalGeneration, tiny(**sizes), dtype=torch.float32), tokenizer
    for model, own in (pair, tiny_translation()):
        pipe = pipeline("translation", model=model, tokenizer=own, num_beams=beams, max_new_tokens=9, min_new_tokens=9)
        for letter in "xyz":
            bias = {tuple(_ids_of(own, letter)): 99.0}
            assert pipe("abc", sequence_bias=bias)[0]["translation_text"] == 9 * letter
            assert pipe("abc", sequence_bias=bias, stop_sequence=list("xyz"))[0]["translation_text"] == letter


def _ids_of(tokenizer, text):
    return tokenizer(text_target=text, add_special_tokens=False)["input_ids"]


def test_an_output_ends_behind_the_stop_sequence(checkpoints):
    pipe = pipeline("text2text-generation", model=checkpoints["t5"], num_beams=1, max_new_tokens=12)
    whole = pipe(TEXTS[2])[0]["generated_text"]
    words = whole.split()
    assert len(words) > 2
    stopped = pipe(TEXTS[2], stop_sequence=words[1])[0]["generated_text"]
    assert stopped != whole
    assert whole.startswith(stopped)
    assert words[1] in stopped
    bound = pipeline("text2text-generation", model=checkpoints["t5"], num_beams=1, max_new_tokens=12, stop_strings=[words[1]])
    assert bound(TEXTS[2])[0]["generated_text"] == stopped


# ---- languages -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["t5", "imported t5"])
def test_languages_of_tasks(checkpoints, name):
    german = pipeline("translation_en_to_de", model=checkpoints[name])
    assert type(german) is TranslationPipeline
    expected = direct(german, f"translate English to German: {TEXTS[0]}", num_beams=4, max_length=9)[0]
    assert german(TEXTS[0]) == [{"translation_text": expected}]
    either = pipeline("translation", model=checkpoints[name], src_lang="en")
    assert either(TEXTS[0], tgt_lang="de") == [{"translation_text": expected}]
    french = direct(german, f"translate English to French: {TEXTS[0]}", num_beams=4, max_length=7)[0]
    assert german(TEXTS[0], tgt_lang="fr") == [{"translation_text": french}]
    plain = pipeline("translation", model=checkpoints[name], max_new_tokens=5)
    assert plain(TEXTS[0])[0]["translation_text"] == direct(plain, TEXTS[0], num_beams=4, max_new_tokens=5)[0]
    with pytest.raises(ValueError, match="tgt_lang='xx' is unknown"):
        plain(TEXTS[0], tgt_lang="xx")


def test_languages_of_m2m_100(checkpoints):
    pipe = pipeline("translation", model=checkpoints["m2m_100"], src_lang="de", max_new_tokens=8)
    before = pipe.tokenizer.src_lang, pipe.tokenizer.tgt_lang
    found = pipe(TEXTS, tgt_lang="fr", batch_size=2)
    assert (pipe.tokenizer.src_lang, pipe.tokenizer.tgt_lang) == before
    named = pipeline("translation_de_to_fr", model=checkpoints["m2m_100"], max_new_tokens=8)
    assert named(TEXTS) == found
    first = pipe.tokenizer.get_lang_id("fr")
    options = dict(num_beams=4, max_new_tokens=8, forced_bos_token_id=first)
    assert found == [{"translation_text": direct(pipe, text, {"src_lang": "de"}, **options)[0]} for text in TEXTS]
    ids = named(TEXTS[0], return_tensors=True)[0]["translation_token_ids"]
    assert ids[1] == first
    with pytest.raises(ValueError, match="tgt_lang='klingon' is unknown; of the 100"):
        pipe(TEXTS, tgt_lang="klingon")


def test_languages_of_mbart_start_the_decoder(checkpoints):
    pipe = pipeline("translation", model=checkpoints["mbart"], src_lang="de_DE", tgt_lang="fr_XX", max_new_tokens=8)
    start = pipe.tokenizer.convert_tokens_to_ids("fr_XX")
    options = dict(num_beams=4, max_new_tokens=8, decoder_start_token_id=start)
    expected = direct(pipe, TEXTS[0], {"src_lang": "de_DE"}, **options)[0]
    assert pipe(TEXTS[0]) == [{"translation_text": expected}]
    assert pipe(TEXTS[0], return_tensors=True)[0]["translation_token_ids"][0] == start


def test_a_whole_generation_config_leaves_the_language(checkpoints):
    pipe = pipeline("translation_de_to_fr", model=checkpoints["m2m_100"])
    config = GenerationConfig(num_beams=2, max_new_tokens=5)
    ids = pipe(TEXTS[0], return_tensors=True, generation_config=config)[0]["translation_token_ids"]
    assert ids[1] == pipe.tokenizer.get_lang_id("fr")
    assert config.forced_bos_token_id is None  # the caller's


def test_models_of_one_pair_of_languages_say_that_codes_do_nothing(checkpoints, caplog):
    named = pipeline("translation_en_to_de", model=checkpoints["bart"], max_new_tokens=6)
    plain = pipeline("translation", model=checkpoints["bart"], max_new_tokens=6)
    with warnings_of(caplog):
        assert named(TEXTS[0]) == plain(TEXTS[0])
        assert "do nothing" not in caplog.text
        assert plain(TEXTS[0], src_lang="en", tgt_lang="de") == plain(TEXTS[0])
        assert "src_lang='en', tgt_lang='de' do nothing" in caplog.text


def test_marian_names_the_target_in_the_source(checkpoints):
    pipe = pipeline("translation", model=checkpoints["marian"], max_new_tokens=6)
    expected = direct(pipe, f">>deu<< {TEXTS[0]}", num_beams=4, max_new_tokens=6)[0]
    assert pipe(TEXTS[0], tgt_lang="deu") == [{"translation_text": expected}]
    assert pipe.tokenizer.decode(pipe.preprocess(TEXTS[0], tgt_lang="deu")["input_ids"][0, 0]) == ">>deu<<"
    assert pipeline("translation_en_to_de", model=checkpoints["marian"], max_new_tokens=6)(TEXTS[0]) == pipe(TEXTS[0])


def test_tokenizers_of_ours_name_the_target_in_the_source():
    tokenizer = TransductTokenizer.train(iter(["abc hello"]), kind="chars", languages=("de", "fr"))
    model = sharpen(TransductForConditionalGeneration(tiny(vocab_size=len(tokenizer))), std=0.5)
    pipe = pipeline("translation_en_to_de", model=model, tokenizer=tokenizer, max_new_tokens=6)
    assert tokenizer.decode(pipe.preprocess("abc")["input_ids"][0, 0]) == "<2de>"
    expected = direct(pipe, "<2fr>abc", num_beams=4, max_new_tokens=6)[0]
    assert tokenizer.decode(pipe.preprocess("abc", tgt_lang="fr")["input_ids"][0]) == tokenizer.decode(
        tokenizer("<2fr>abc").input_ids
    )
    assert pipe(["abc", "hello"], tgt_lang="fr", batch_size=2)[0] == {"translation_text": expected}
    assert tokenizer.source_prefix == []  # as it was
    with pytest.raises(ValueError, match="tgt_lang='xx' is unknown"):  # the name of the task is no hint here, but a wish
        pipeline("translation_en_to_xx", model=model, tokenizer=tokenizer)("abc")


# ---- lengths and errors ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("summarization", {"max_new_tokens": 40}, "max_length=40 lets a summary be longer than its input of 13 tokens"),
        ("summarization", {"max_length": 6, "min_length": 8}, "min_length=8 should not exceed max_length=6"),
        ("summarization", {}, None),
        ("summarization", {"max_new_tokens": 12}, None),
        ("translation", {"max_length": 14}, "an input of 13 tokens may need a translation of more than max_length=14"),
        ("translation", {"max_length": 15}, None),
        ("text2text-generation", {"max_length": 6}, None),
    ],
)
def test_lengths_that_do_not_suit_the_input_are_told(checkpoints, caplog, task, options, message):
    pipe = pipeline(task, model=checkpoints["transduct"], num_beams=1)
    with warnings_of(caplog):
        pipe("hello there.", **options)
    told = [record.getMessage() for record in caplog.records if record.name == "transformers.transduct.pipelines"]
    told += [record.getMessage() for record in caplog.records if record.name == "transduct.pipelines"]
    assert [message in text for text in told] == ([] if message is None else [True])


def test_what_is_no_text_is_refused(checkpoints):
    pipe = pipeline("translation", model=checkpoints["transduct"])
    for inputs in (3, [["abc", "a"]], ["abc", None], [b"abc"]):
        with pytest.raises(ValueError, match=r"an input of the pipeline is a \w+, not a string"):
            pipe(inputs)
    for options, message in (
        ({"num_beams": 0}, "num_beams=0 must be a whole number of at least 1"),
        ({"num_return_sequences": 0}, "num_return_sequences=0 must be a whole number of at least 1"),
        ({"prefix": 5}, "prefix=5 is a int, not a string"),
    ):
        with pytest.raises(ValueError, match=message):
            pipe("abc", **options)
    with pytest.raises(ValueError, match=r"the text 'a\\x00b' holds a NUL character"):
        pipe(["a", "a\0b"])
    with pytest.raises(ValueError, match=r"the text 'a\\udc80' is no valid Unicode"):
        pipe("a\udc80")
    with pytest.raises(ValueError, match="nonsense"):
        pipe("abc", nonsense=1)


def test_texts_beyond_the_positions(checkpoints):
    pipe = pipeline("summarization", model=checkpoints["bart"], max_new_tokens=3)
    with pytest.raises(ValueError, match=r"has \d+ tokens, more than the 64 positions of the model: truncation=True cuts"):
        pipe("many words " * 40)
    pipe.tokenizer.model_max_length = 64
    assert (
        pipe("many words " * 40, truncation=True)[0]["summary_text"]
        == pipe("many words " * 60, truncation=True)[0]["summary_text"]
    )


def test_models_that_do_not_write_texts_of_texts_are_refused():
    tokenizer = tiny_translation()[1]
    model = BertModel(BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    with pytest.raises(ValueError, match="BertModel, which is no encoder-decoder"):
        transformers.pipeline("translation", model=model, tokenizer=tokenizer)

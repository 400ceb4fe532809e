"""Texts in, texts out: as `generate` says, in order, within bounds, and what cannot be translated is named."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    StoppingCriteriaList,
    StopStringCriteria,
    TokenizersBackend,
)

from configs import build, tiny
from published import randomise
from tiny_tokenizers import write_tokenizer
from tiny_translation import TEXTS, theirs, tiny_translation
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductTokenizer, score, translate
from transduct.decoding.models import target_limit
from transduct.decoding.translate import translate_stream
from transduct.decoding.translator import TranslationOptions

SHORT = {"max_length_by_source": (1, 3)}


@pytest.fixture(scope="module")
def ours():
    return tiny_translation()


@pytest.fixture
def own(ours):
    """The same with a generation config that a test may change."""
    model, tokenizer = ours
    before = model.generation_config
    model.generation_config = GenerationConfig(**before.to_dict())
    yield model, tokenizer
    model.generation_config = before


def by_generate(model, tokenizer, text: str, **options) -> list[str]:
    """What plain `generate` gives for one text."""
    inputs = tokenizer([text], return_tensors="pt")
    most = inputs["input_ids"].shape[1] + 50
    limit = target_limit(model)
    most = most if limit is None else min(most, limit)
    rows = model.generate(**inputs, **{"num_beams": 4, "do_sample": False, "max_new_tokens": most, **options})
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


# ---- as generate --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["transduct", "t5", "bart", "marian"])
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 2, "length_penalty": 0.3, "num_return_sequences": 2, "no_repeat_ngram_size": 3}], ids=str
)
def test_as_generate_says(ours, family, options):
    model, tokenizer = ours
    model = model if family == "transduct" else theirs(family, tokenizer)
    found = translate(model, tokenizer, TEXTS, **options)
    wanted = options.get("num_return_sequences", 1)
    for text, got in zip(TEXTS, found, strict=True):
        want = by_generate(model, tokenizer, text, **options) if text.strip() else [""] * wanted
        assert got == (want if wanted > 1 else want[0])
    assert any(found)


def test_batches_and_windows_change_nothing(ours):
    texts = [*TEXTS, *reversed(TEXTS), "abc " * 9]
    options = dict(num_beams=2, return_scores=True, **SHORT)
    want = translate(*ours, texts, **options)
    for more in ({"max_tokens_per_batch": 1}, {"max_tokens_per_batch": 70}, {"window": 1}, {"window": 4}):
        got = translate(*ours, iter(texts), **options, **more)
        assert [each.text for each in got] == [each.text for each in want]
        assert [each.score for each in got] == pytest.approx([each.score for each in want], abs=1e-5)


def test_batches_keep_to_the_budget(ours, monkeypatch):
    model, tokenizer = ours
    shapes = []
    generate = model.generate

    def watched(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return generate(**inputs)

    monkeypatch.setattr(model, "generate", watched)
    texts = ["ab" * (1 + number % 17) for number in range(40)]
    translate(model, tokenizer, texts, num_beams=1, max_tokens_per_batch=150, max_length_by_source=(0, 1))
    assert sum(rows for rows, _ in shapes) == 40
    assert all(rows * max(length, 16) <= 150 for rows, length in shapes)
    assert len(shapes) <= 10
    shapes.clear()
    translate(model, tokenizer, ["", "  ", "\n\t"])
    assert shapes == []  # nothing costs nothing


def test_no_more_than_a_window_is_read(ours):
    read = []

    def texts():
        for number in range(10):
            read.append(number)
            yield "abc"

    options = TranslationOptions(num_beams=1, max_length_by_source=(0, 1))
    found = translate_stream(*ours, texts(), options, window=3)
    next(found)
    assert len(read) == 3
    assert len(list(found)) == 9
    assert len(read) == 10


def test_hypotheses_and_their_scores(ours):
    model, tokenizer = ours
    found = translate(model, tokenizer, ["abc", ""], num_return_sequences=3, return_scores=True, **SHORT)
    assert [len(row) for row in found] == [3, 3]
    best = found[0]
    assert [each.score for each in best] == sorted((each.score for each in best), reverse=True)
    for each in best:
        assert each.score == pytest.approx(each.log_prob / len(each.token_ids))
        assert each.text == tokenizer.decode(each.token_ids, skip_special_tokens=True)
        assert each.alignment is None
    assert {(each.text, each.score, each.token_ids) for each in found[1]} == {("", 0.0, ())}
    assert translate(model, tokenizer, ["abc", ""], num_return_sequences=3, **SHORT) == [
        [each.text for each in row] for row in found
    ]


@pytest.mark.parametrize("normalization", ["hf", "gnmt", "sockeye", "none"])
@pytest.mark.parametrize("family", ["transduct", "bart"])
def test_scores_are_those_of_score(ours, normalization, family):
    model, tokenizer = ours
    model = model if family == "transduct" else theirs(family, tokenizer)
    options = dict(length_normalization=normalization, length_penalty=0.7, word_reward=0.2)
    found = translate(model, tokenizer, TEXTS, num_return_sequences=2, return_scores=True, **options, **SHORT)
    pairs = [(text, each) for text, row in zip(TEXTS, found, strict=True) for each in row]
    sources, hypotheses = zip(*pairs, strict=True)
    scores = score(model, tokenizer, sources, [each.token_ids for each in hypotheses], **options)
    assert [each.score for each in hypotheses] == pytest.approx(scores, abs=1e-5)


# ---- long texts ---------------------------------------------------------------------------------------------------
def test_sentences_are_translated_by_themselves(ours):
    text = "  abc. Bc ab!\n\n xyz  \t"
    parts = translate(*ours, ["abc.", "Bc ab!", "xyz"], return_scores=True, **SHORT)
    (whole,) = translate(*ours, [text], split_sentences=True, return_scores=True, **SHORT)
    assert whole.text == f"  {parts[0].text} {parts[1].text}\n\n {parts[2].text}  \t"
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-5)
    assert whole.token_ids == sum((part.token_ids for part in parts), ())
    several = translate(*ours, [text, ""], split_sentences=True, num_return_sequences=2, **SHORT)
    own = translate(*ours, ["abc.", "Bc ab!", "xyz"], num_return_sequences=2, **SHORT)
    assert several[0][1] == f"  {own[0][1]} {own[1][1]}\n\n {own[2][1]}  \t"


def test_alignments_of_sentences_count_on(ours):
    options = dict(return_alignments=True, **SHORT)
    parts = translate(*ours, ["ab ab.", "Cab."], **options)
    (whole,) = translate(*ours, ["ab ab. Cab."], split_sentences=True, **options)
    shift = len(parts[0].text.split())
    assert whole.alignment == tuple(sorted([*parts[0].alignment, *((i + 2, j + shift) for i, j in parts[1].alignment)]))
    options["return_alignments"] = "tokens"
    parts = translate(*ours, ["ab ab.", "Cab."], **options)
    (whole,) = translate(*ours, ["ab ab. Cab."], split_sentences=True, **options)
    shift = len([token for token in parts[0].token_ids if token > 2])
    assert whole.alignment == tuple(sorted([*parts[0].alignment, *((i + 6, j + shift) for i, j in parts[1].alignment)]))


def test_what_is_too_long_is_refused_or_split(ours):
    model, tokenizer = ours
    text = "abc ab. Cab!"
    with pytest.raises(ValueError, match=r"line 2 has 13 tokens, more than the 9 that the model takes: .* long='split'"):
        translate(model, tokenizer, ["ab", text], max_source_length=9)
    (found,) = translate(model, tokenizer, [text], max_source_length=9, long="split", **SHORT)
    one, other = translate(model, tokenizer, ["abc ab.", "Cab!"], **SHORT)
    assert found == f"{one} {other}"
    with pytest.raises(ValueError, match="max_source_length=1 leaves no room for a text"):
        translate(model, tokenizer, [text], max_source_length=1, long="split")


def test_ten_thousand_letters_without_a_space():
    model, tokenizer = tiny_translation(positions="learned", max_positions=64)
    text = "abcdefghij" * 1000
    with pytest.raises(ValueError, match="line 1 has 10001 tokens, more than the 64"):
        translate(model, tokenizer, [text])
    (found,) = translate(model, tokenizer, [text], long="split", num_beams=1, return_scores=True, max_length_by_source=(0, 2))
    assert len(found.token_ids) <= 2 * -(-10_000 // 63)
    parts = [text[start : start + 63] for start in range(0, 10_000, 63)]
    assert found.text == "".join(translate(model, tokenizer, parts, num_beams=1, max_length_by_source=(0, 2)))


def test_a_limit_of_length_goes_as_far_as_positions_reach():
    model, tokenizer = tiny_translation(positions="learned", max_positions=32)
    assert translate(model, tokenizer, ["abc"], max_length_by_source=(1, 90))


# ---- what nobody said ---------------------------------------------------------------------------------------------
def test_the_generation_config_speaks_where_the_caller_does_not(own):
    model, tokenizer = own
    texts = ["abc de", "xyz xyz xyz"]
    greedy, two = (translate(model, tokenizer, texts, num_beams=beams) for beams in (1, 2))
    assert translate(model, tokenizer, texts) == translate(model, tokenizer, texts, num_beams=4)
    model.generation_config.num_beams = 1
    assert translate(model, tokenizer, texts) == greedy
    assert translate(model, tokenizer, texts, num_beams=2) == two
    model.generation_config.num_beams = 2
    model.generation_config.length_penalty = -3.0
    penalised = translate(model, tokenizer, texts, return_scores=True)
    assert penalised == translate(model, tokenizer, texts, length_penalty=-3.0, return_scores=True)
    assert penalised[0].score == pytest.approx(penalised[0].log_prob * len(penalised[0].token_ids) ** 3, rel=1e-5)
    gnmt = translate(model, tokenizer, texts, length_normalization="gnmt", return_scores=True)[0]  # another normalisation's
    assert gnmt.score == pytest.approx(gnmt.log_prob / ((5 + len(gnmt.token_ids)) / 6) ** 0.6, rel=1e-5)


def test_lengths_of_the_generation_config(own):
    model, tokenizer = own
    assert len(translate(model, tokenizer, ["abc"], eos_token_id=None, num_beams=1)[0]) == 4 + 50
    model.generation_config.max_new_tokens = 7
    assert len(translate(model, tokenizer, ["abc"], eos_token_id=None, num_beams=1)[0]) == 7
    assert len(translate(model, tokenizer, ["abc"], eos_token_id=None, num_beams=1, max_length_by_source=(1, 1))[0]) == 5
    assert len(translate(model, tokenizer, ["abc"], eos_token_id=None, num_beams=1, max_new_tokens=9)[0]) == 9
    for limit in (5, 20):  # with the token that the decoder starts with
        assert len(translate(model, tokenizer, ["abc"], eos_token_id=None, num_beams=1, max_length=limit)[0]) == limit - 1
    model.generation_config.min_new_tokens = 7
    found = translate(model, tokenizer, ["abc"], num_beams=1, min_length=3, max_length=5, return_scores=True)
    assert 3 <= len(found[0].token_ids) <= 4
    model.generation_config.min_new_tokens = None
    model.generation_config.max_new_tokens = None
    model.generation_config.min_length = 80
    assert len(translate(model, tokenizer, ["abc"], num_beams=1)[0]) >= 79  # the default of the most leaves room for it


def test_other_settings_of_the_generation_config(own):
    model, tokenizer = own
    forced = tokenizer.convert_tokens_to_ids("q")
    model.generation_config.forced_bos_token_id = forced
    model.generation_config.bad_words_ids = [tokenizer("o", add_special_tokens=False)["input_ids"]]
    model.generation_config.do_sample = True  # translate searches
    found = translate(model, tokenizer, ["abc", "hello you"], **SHORT)
    assert all(text.startswith("q") and "o" not in text for text in found)
    assert found == translate(model, tokenizer, ["abc", "hello you"], **SHORT)


def test_tasks_bring_a_prefix_and_settings(own):
    model, tokenizer = own
    model.config.task_specific_params = {"summarization": {"prefix": "hi: ".replace(":", "."), "num_beams": 2, "max_length": 8}}
    try:
        found = translate(model, tokenizer, ["abc"], task="summarization", return_scores=True)
        want = translate(model, tokenizer, ["hi. abc"], num_beams=2, max_new_tokens=7, return_scores=True)
        assert found == want
        other = translate(model, tokenizer, ["abc"], task="summarization", num_beams=3, prefix="", max_length=6)
        assert other == translate(model, tokenizer, ["abc"], num_beams=3, max_length=6)
    finally:
        del model.config.task_specific_params


def test_further_options_reach_the_search(ours):
    plain = translate(*ours, TEXTS, return_scores=True, **SHORT)
    covered = translate(*ours, TEXTS, coverage_penalty=5.0, return_scores=True, **SHORT)
    assert [each.score for each in covered if each.text] < [each.score for each in plain if each.text]
    few = translate(*ours, ["xyz " * 6], no_repeat_ngram_size=1, **SHORT)[0]
    assert len(set(few)) == len(few)


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"num_return_sequences": 2}], ids=str)
def test_criteria_of_the_caller_end_outputs(ours, options):
    model, tokenizer = ours
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, ["yy", "11"])])
    found = translate(model, tokenizer, TEXTS, stopping_criteria=criteria, **options)
    for text, got in zip(TEXTS, found, strict=True):
        if text.strip():
            want = by_generate(model, tokenizer, text, stopping_criteria=criteria, **options)
            assert (got if isinstance(got, list) else [got]) == want
    assert found != translate(model, tokenizer, TEXTS, **options)


def test_criteria_of_the_caller_end_samples_and_are_refused_for_drafts(ours):
    model, tokenizer = ours
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, ["o"])])
    options = dict(do_sample=True, top_k=0, num_return_sequences=4)
    drawn = [text for row in translate(model, tokenizer, TEXTS, **options) for text in row]
    ended = [text for row in translate(model, tokenizer, TEXTS, stopping_criteria=criteria, **options) for text in row]
    assert ended == [text[: text.index("o") + 1] if "o" in text else text for text in drawn]
    assert ended != drawn
    with pytest.raises(ValueError, match=r"stopping_criteria \['StopStringCriteria'\] cannot be had with greedy_with_drafts"):
        translate(model, tokenizer, TEXTS, stopping_criteria=criteria, drafts=True)


def test_unknown_words_are_replaced():
    tokenizer = TransductTokenizer.train(iter(["red green blue"]), kind="words")
    model = build(TransductForConditionalGeneration, tiny(vocab_size=len(tokenizer), logits_bias=True), dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.unk_token_id] = 1e4  # it knows no word at all
    options = dict(max_length_by_source=(0, 2), return_alignments=True, num_beams=1)
    (plain,) = translate(model, tokenizer, ["red mauve"], **options)
    (found,) = translate(model, tokenizer, ["red mauve"], replace_unknown=True, **options)
    assert found.token_ids == plain.token_ids == (tokenizer.unk_token_id,) * 2
    words = found.text.split()
    assert len(words) == 2
    assert found.alignment == tuple(sorted((["red", "mauve"].index(word), place) for place, word in enumerate(words)))


@pytest.mark.parametrize(("name", "source", "target"), [("nllb", "deu_Latn", "hin_Deva"), ("mbart", "de_DE", "fr_XX")])
def test_languages(tmp_path, name, source, target):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path))
    special = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    sizes |= dict(encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=len(tokenizer), max_position_embeddings=64)
    kinds = {"nllb": (M2M100Config, M2M100ForConditionalGeneration), "mbart": (MBartConfig, MBartForConditionalGeneration)}
    config, kind = kinds[name]
    model = kind(config(**special, **sizes)).eval()
    randomise(model, 0)
    code = tokenizer.convert_tokens_to_ids(target)
    texts = ["The field", "An array of values"]
    options = dict(src_lang=source, tgt_lang=target)
    found = translate(model, tokenizer, texts, return_scores=True, max_length_by_source=(1, 2), **options)
    tokenizer.src_lang = source
    begin = {"forced_bos_token_id": code} if name == "nllb" else {"decoder_start_token_id": code}
    for text, each in zip(texts, found, strict=True):
        inputs = tokenizer([text], return_tensors="pt")
        want = model.generate(**inputs, num_beams=4, max_new_tokens=inputs["input_ids"].shape[1] + 2, **begin)
        assert each.text == tokenizer.batch_decode(want, skip_special_tokens=True)[0]
        assert (each.token_ids[0] == code) == (name == "nllb")
    ids = [each.token_ids for each in found]
    assert score(model, tokenizer, texts, ids, "hf", **options) == pytest.approx([each.score for each in found], abs=1e-5)
    written = score(model, tokenizer, texts, ["Das Feld", "x"], per_token=True, **options)  # a text's ids are as generation's
    assert all((each.token_ids[0] == code) == (name == "nllb") for each in written)
    assert all(each.token_ids[-1] == tokenizer.eos_token_id for each in written)


# ---- the model and the tokenizer stay as they are -----------------------------------------------------------------
def test_nothing_is_left_changed(ours):
    model, tokenizer = ours
    model.train()
    before = model.generation_config.to_dict(), model.config._attn_implementation, tokenizer.source_prefix
    translate(model, tokenizer, ["abc"], return_alignments=True, coverage_penalty=1.0, **SHORT)
    assert model.training
    assert (model.generation_config.to_dict(), model.config._attn_implementation, tokenizer.source_prefix) == before
    model.eval()
    with pytest.raises(ValueError):
        translate(model, tokenizer, ["a\0b"])
    assert not model.training


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(ours, side):
    model, tokenizer = ours
    tokenizer.padding_side = side
    try:
        found = translate(model, tokenizer, TEXTS, num_beams=2)
    finally:
        tokenizer.padding_side = "right"
    assert found == translate(model, tokenizer, TEXTS, num_beams=2)


# ---- refusals -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("abc", {}, r"texts is one string: pass a list"),
        (["ab", "a\0b"], {}, r"line 2 holds a NUL character"),
        (["ab", "a\udc80"], {}, r"line 2 is no valid Unicode at character 1"),
        (["ab", None], {}, r"line 2 is a NoneType, not a string"),
        (5, {}, r"texts is a int: pass a list of texts"),
        (["ab"], {"num_beams": 0}, r"num_beams=0 must be a whole number of at least 1"),
        (["ab"], {"num_beams": 2.5}, r"num_beams=2.5 must be a whole number"),
        (["ab"], {"num_beams": True}, r"num_beams=True must be a whole number"),
        (["ab"], {"num_return_sequences": 0}, r"num_return_sequences=0 must be a whole number of at least 1"),
        (["ab"], {"length_penalty": float("nan")}, r"length_penalty=nan must be a number"),
        (["ab"], {"length_penalty": "x"}, r"length_penalty='x' must be a number"),
        (["ab"], {"word_reward": float("inf")}, r"word_reward=inf must be a number"),
        (["ab"], {"coverage_penalty": float("nan")}, r"coverage_penalty=nan must be a number"),
        (["ab"], {"beam_groups": 2, "diversity_penalty": float("nan")}, r"diversity_penalty=nan must be a number"),
        (["ab"], {"max_length_by_source": 3}, r"max_length_by_source=3 must be two numbers \(a, b\)"),
        (["ab"], {"max_length_by_source": (float("inf"), 1)}, r"max_length_by_source=inf must be a number"),
        (["ab"], {"max_length_by_source": (-1, 9)}, r"a of a \* source length \+ b tokens must be at least 0"),
        (["ab"], {"min_length_by_source": (float("nan"), 1)}, r"min_length_by_source=nan must be a number"),
        (["ab"], {"num_beams": 2, "num_return_sequences": 3}, r"num_return_sequences=3 must not exceed num_beams=2"),
        (["ab"], {"long": "cut"}, r"long='cut' must be 'refuse' or 'split'"),
        (["ab"], {"return_alignments": "lines"}, r"alignments='lines' must be 'words' or 'tokens'"),
        (["ab"], {"alignment_layer": 0}, r"alignment_layer, alignment_heads=\(0, None\) belong to alignments"),
        (["ab"], {"return_alignments": True, "alignment_layer": 9}, r"attention layer 9 is not there"),
        (["ab"], {"length_normalization": "wu"}, r"length_normalization='wu' must be one of"),
        (["ab"], {"max_length_by_source": (0, 2), "min_new_tokens": 5}, r"at most 2 tokens, but 5 are asked for at least"),
        (["ab"], {"tgt_lang": "de"}, r"tgt_lang='de': this model and its tokenizer know none"),
        (["ab"], {"window": 0}, r"window=0 must be a whole number of at least 1"),
        (["ab"], {"window": 2.5}, r"window=2.5 must be a whole number"),
        (["ab"], {"max_tokens_per_batch": 0}, r"max_tokens_per_batch=0 must be a whole number of at least 1"),
        (["ab"], {"no_such_option": 1}, r"no_such_option"),
        (["ab"], {"prefix": 5}, r"prefix is a int, not a string"),
        (["ab"], {"prefix": "a\0"}, r"prefix holds a NUL character"),
        (["ab"], {"return_alignments": True, "alignment_layer": 0.5}, r"alignment_layer=0.5 must be a whole number"),
        (["ab"], {"return_alignments": True, "alignment_heads": 3}, r"alignment_heads=3 must be a list of whole numbers or None"),
        (["ab"], {"beam_groups": "2"}, r"beam_groups='2' must be a whole number"),
        (["ab"], {"ensemble": 5}, r"ensemble is a int: pass a list of models"),
        (["ab"], {"ensemble": ["x"]}, r"ensemble holds a str, which is no model: load it first"),
        (["ab"], {"drafts": "x"}, r"draft_model is a str, which is no model: load it first"),
        (["ab"], {"streamer": object()}, r"streamer cannot be had where texts are translated"),
        (["ab"], {"stop_strings": ["a"], "generation_config": None}, r"generation_config, stop_strings cannot be had"),
    ],
)
def test_refuses(ours, texts, options, message):
    with pytest.raises(ValueError, match=message):
        translate(*ours, texts, **options)


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"do_sample": True}, {"drafts": True}], ids=str)
def test_logits_that_are_no_numbers_are_named(options):
    model, tokenizer = tiny_translation()
    with torch.no_grad():
        model.lm_head.weight[7] = float("nan")
    with pytest.raises(ValueError, match=r"line 2 has logits that are no numbers \(NaN\) in float32"):
        translate(model, tokenizer, ["", "abc"], **options)


def test_a_text_without_tokens_is_refused_in_any_batch():
    vocabulary = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3}, "<unk>"))
    vocabulary.normalizer, vocabulary.pre_tokenizer = normalizers.Replace("\u200b", ""), pre_tokenizers.WhitespaceSplit()
    tokenizer = TokenizersBackend(tokenizer_object=vocabulary, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    model, _ = tiny_translation()
    for texts in (["a", "\u200b"], ["", "\u200b"]):
        with pytest.raises(ValueError, match="line 2 has text without tokens"):
            translate(model, tokenizer, texts)


def test_refuses_models_that_read_no_text(ours):
    _, tokenizer = ours
    with pytest.raises(ValueError, match="TransductForCausalLM, which is no encoder-decoder"):
        translate(build(TransductForCausalLM, tiny()), tokenizer, ["ab"])
    features = tiny(encoder_input="features", feature_size=4, feature_stem="linear", tie_embeddings="none")
    with pytest.raises(ValueError, match="model reads input_features, not text"):
        translate(build(TransductForConditionalGeneration, features), tokenizer, ["ab"])

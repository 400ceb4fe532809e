"""Exports to CTranslate2 compute what our models do, for every architecture that it has a place for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

import transduct
from configs import END, PAD, START, build, tiny, words
from tiny_tokenizers import write_tokenizer
from tiny_translation import TEXTS, tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.cli.main import run
from transduct.convert import to_ctranslate2
from transduct.convert.ctranslate2 import ACTIVATIONS
from transduct.convert.engine_folders import TOLERANCE, Comparison, compare, token_log_probs
from transduct.decoding import beam_search
from transduct.decoding.engines import load_engine

T5 = dict(positions="relative_bias", norm="rmsnorm", norm_position="pre", norm_eps=1e-6, attention_scale="none")
T5 |= dict(attention_bias=False, ffn_bias=False, scale_embeddings=False)
ARCHITECTURES = {
    "vaswani": {},
    "t5": dict(**T5, scale_logits=True),
    "t5 1.1": dict(**T5, tie_embeddings="none", gated_ffn=True, activation="gelu_new", d_kv=6),
    "umt5": dict(**T5, relative_bias_per_layer=True, gated_ffn=True, activation="gelu_new"),
    "bart": dict(positions="learned", position_offset=2, embedding_norm=True, scale_embeddings=False, activation="gelu"),
    "mbart": dict(
        positions="learned", position_offset=2, embedding_norm=True, norm_position="pre", activation="gelu",
        target_start="last_token",
    ),
    "blenderbot small": dict(
        positions="learned", embedding_norm=True, decoder_embedding_norm="before_positions", activation="gelu",
        decoder_scale_embeddings=False,
    ),
    "marian": dict(sinusoid_layout="halves", activation="silu", logits_bias=True),
    "m2m_100": dict(sinusoid_layout="tensor2tensor", position_offset=2, norm_position="pre"),
    "two vocabularies": dict(decoder_vocab_size=19, tie_embeddings="target_output"),
    "unequal stacks": dict(encoder_layers=1, decoder_layers=3, decoder_num_heads=2, decoder_d_ff=20, d_kv=4),
    "rotary, grouped heads": dict(positions="rotary", num_key_value_heads=2, norm_position="pre"),
    "rotary, wide heads": dict(positions="rotary", d_kv=6),
    "one key head": dict(num_key_value_heads=1),
    "no positions": dict(positions="none"),
    "no key bias, no norm bias": dict(key_bias=False, norm_bias=False),
    "post-norm with a norm at the end": dict(final_norm=True),
    "pre-norm without": dict(norm_position="pre", final_norm=False),
    "post-norm RMSNorm": dict(norm="rmsnorm"),
}  # fmt: skip


def model_of(dtype=torch.float32, seed=0, **fields) -> TransductForConditionalGeneration:
    return build(TransductForConditionalGeneration, tiny(**fields), dtype=dtype, seed=seed)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model, its tokenizer, its folder and the engine's model."""
    model, tokenizer = tiny_translation(end=2.0)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    to_ctranslate2(model, tokenizer, folder)
    return model, tokenizer, folder, load_engine(folder)


@pytest.mark.parametrize("fields", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_log_probabilities_and_answers(fields, tmp_path):
    model = model_of(**fields)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = to_ctranslate2(model, None, tmp_path / "out")
    assert result.checked.same == result.checked.pairs == 8
    assert result.checked.largest <= 2e-5 * result.checked.scale
    engine, high = load_engine(tmp_path / "out"), model.config.resolved_decoder_vocab_size
    sources, targets = [words(1, 60)[0].tolist()], [[*words(1, 50, high=high)[0].tolist(), END]]  # buckets of far distances
    want, got = (
        torch.tensor(score[0]) for score in (token_log_probs(model, sources, targets), engine.token_log_probs(sources, targets))
    )
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "quick_gelu", "silu", "sigmoid", "tanh"])
def test_activations(activation, tmp_path):
    assert activation in ACTIVATIONS
    assert to_ctranslate2(model_of(activation=activation), None, tmp_path / "out").checked.agrees


@pytest.mark.parametrize("scale_logits", [False, True])
def test_scale_of_logits_is_the_configs(scale_logits, tmp_path):
    """CTranslate2's own converter takes tied embeddings for it, and fails for T5 1.1."""
    for tie in ("all", "none"):
        model = model_of(**T5, scale_logits=scale_logits, tie_embeddings=tie)
        to_ctranslate2(model, None, tmp_path / tie)
        engine = load_engine(tmp_path / tie)
        sources, targets = [words(1, 9)[0].tolist()], [[*words(1, 7, seed=1)[0].tolist(), END]]
        with torch.no_grad():
            logits = model(torch.tensor(sources), decoder_input_ids=torch.tensor([[START, *targets[0][:-1]]])).logits
        want = logits.log_softmax(-1)[0].gather(1, torch.tensor(targets).T)[:, 0]
        torch.testing.assert_close(torch.tensor(engine.token_log_probs(sources, targets)[0]), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16", "bfloat16"])
def test_rounded_weights_are_reported(quantization, tmp_path):
    model = model_of(positions="learned")
    result = to_ctranslate2(model, None, tmp_path / "out", quantization)
    assert result.stored == quantization
    assert TOLERANCE < result.checked.largest < 1.0
    assert (tmp_path / "out" / "model.bin").stat().st_size < 0.8 * size_in_float32(model, tmp_path)
    card = (tmp_path / "out" / "README.md").read_text()
    assert quantization in card
    assert str(result.checked).splitlines()[0] in card


def size_in_float32(model, tmp_path: Path) -> int:
    to_ctranslate2(model, None, tmp_path / "exact")
    return (tmp_path / "exact" / "model.bin").stat().st_size


def test_half_precision_is_kept(tmp_path):
    result = to_ctranslate2(model_of(dtype=torch.bfloat16), None, tmp_path / "out")
    assert result.stored == "bfloat16"
    assert result.checked.largest < 1e-2  # in float32, of the same rounded weights


@pytest.mark.parametrize(
    "fields",
    [
        dict(positions="alibi"),
        dict(d_value=6),
        dict(encoder_layers=0),
        dict(decoder_layers=0),
        dict(activation="mish"),
        dict(eos_token_id=[1, 3]),
        dict(encoder_input="features", feature_size=4, tie_embeddings="target_output"),
    ],
    ids=str,
)
def test_refuses_by_field(fields, tmp_path):
    name = next(iter(fields))
    with pytest.raises(ValueError, match=f"no place for this model: {name}={fields[name]!r}".replace("[", r"\[")):
        to_ctranslate2(model_of(**fields), None, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_refuses_other_classes_and_quantizations(tmp_path):
    with pytest.raises(ValueError, match="it is a TransductModel, and only"):
        to_ctranslate2(transduct.TransductModel(tiny()), None, tmp_path / "out")
    with pytest.raises(ValueError, match="quantization='int4' must be None or one of int8, "):
        to_ctranslate2(model_of(), None, tmp_path / "out", "int4")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with pytest.raises(ValueError, match="is there already"):
        to_ctranslate2(model_of(), None, tmp_path / "out")


def test_an_engine_that_disagrees_is_an_error(exported, tmp_path, monkeypatch):
    _, tokenizer, _, engine = exported
    other = model_of(seed=1, vocab_size=len(tokenizer), logits_bias=True, tie_embeddings="none")
    found = compare(other, engine)
    assert not found.agrees
    assert found.largest > 0.1
    assert found.same + found.ties < found.pairs
    assert "scores of two answers that differ" in str(found)
    monkeypatch.setattr("transduct.decoding.engines.load_engine", lambda *_: engine)
    with pytest.raises(ValueError, match="ctranslate2 does not compute what our model does, so nothing was written"):
        to_ctranslate2(other, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_comparison_agrees_within_tolerance_alone():
    close = dict(pairs=2, tokens=9, mean=0.0, scale=3.0, apart=0.0)
    assert Comparison(largest=2e-4, same=1, ties=1, **close).agrees
    assert not Comparison(largest=4e-4, same=2, ties=0, **close).agrees
    assert not Comparison(largest=0.0, same=1, ties=0, **close).agrees
    assert not Comparison(largest=float("inf"), same=2, ties=0, **close).agrees


def test_the_package_itself_runs_the_folder(exported):
    """Without any of our code: tokens of the tokenizer in, tokens out."""
    model, tokenizer, folder, _ = exported
    script = (
        "import sys, ctranslate2; from tokenizers import Tokenizer\n"
        "t = Tokenizer.from_file(sys.argv[1] + '/tokenizer.json')\n"
        "c = ctranslate2.Translator(sys.argv[1], intra_threads=1)\n"
        "r = c.translate_batch([t.encode('hello there.').tokens], beam_size=4, max_decoding_length=20, min_decoding_length=0)\n"
        "print(*[t.token_to_id(token) for token in r[0].hypotheses[0]]); print('transduct' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    ids, imported = done.stdout.splitlines()
    source = tokenizer("hello there.", return_tensors="pt")
    want = model.generate(**source, num_beams=4, early_stopping=True, max_new_tokens=20)[0, 1:].tolist()
    assert list(map(int, ids.split())) == [
        token for token in want if token not in (tokenizer.eos_token_id, tokenizer.pad_token_id)
    ]
    assert imported == "False"


def test_files(exported):
    _, tokenizer, folder, engine = exported
    assert type(AutoTokenizer.from_pretrained(folder)) is type(tokenizer)
    settings = json.loads((folder / "config.json").read_text())
    assert settings["eos_token"] == tokenizer.eos_token
    assert settings["decoder_start_token"] == tokenizer.convert_ids_to_tokens(engine.config.decoder_start_token_id)
    assert (settings["add_source_bos"], settings["add_source_eos"]) == (False, False)
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())
    assert vocabulary == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))


@pytest.mark.parametrize("name", ["t5", "byt5", "bart", "marian", "marian of two vocabularies", "m2m_100", "nllb", "mbart"])
def test_tokenizers_of_other_families(name, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path / "tokenizer"))
    size = 3 + max([*tokenizer.get_vocab().values(), *getattr(tokenizer, "lang_token_to_id", {}).values()])
    size_of_target = len(tokenizer.target_encoder) if "two" in name else 0
    two = dict(decoder_vocab_size=size_of_target + 2, tie_embeddings="none") if size_of_target else {}
    model = model_of(vocab_size=size, **two, pad_token_id=None, eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=3)
    to_ctranslate2(model, tokenizer, tmp_path / "out")
    engine = load_engine(tmp_path / "out")
    ids = tokenizer("a word")["input_ids"]
    if "two" in name:  # whose convert_ids_to_tokens reads SentencePiece's ids
        assert [tokenizer.encoder[engine.source_tokens[token]] for token in ids] == ids
        assert [tokenizer.target_encoder[token] for token in engine.target_tokens[:-2]] == list(range(size_of_target))
    else:
        assert [engine.source_tokens[token] for token in ids] == tokenizer.convert_ids_to_tokens(ids)
    assert engine.source_tokens[-1] == f"<unused_{size - 1}>"
    assert len(engine.target_tokens) == model.config.resolved_decoder_vocab_size


def test_a_tokenizer_that_does_not_fit(tmp_path):
    _, tokenizer = tiny_translation()
    with pytest.raises(ValueError, match=f"ids up to {len(tokenizer) - 1} for the target, but the model only 23 embeddings"):
        to_ctranslate2(model_of(), tokenizer, tmp_path / "out")


# ---- the engine behind translate -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(num_beams=1),
        dict(num_beams=3, num_return_sequences=3),
        dict(length_penalty=0.2),
        dict(length_normalization="none"),
        dict(max_new_tokens=7),
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
        (dict(decoder_start_token_id=7), "decoder_start_token_id=7 cannot be had"),
        (dict(return_alignments=True), "engine='ctranslate2' tells no attention"),
        (dict(engine="onnx"), "was written for ctranslate2"),
        (dict(engine="marian"), "engine='marian' must be one of ctranslate2, onnx"),
    ],
    ids=str,
)
def test_translate_refuses(exported, options, message):
    _, tokenizer, folder, _ = exported
    with pytest.raises(ValueError, match=message):
        transduct.translate(folder, tokenizer, ["abc"], **options)


def test_translate_refuses_what_is_no_export(exported, tmp_path):
    model, tokenizer, _, _ = exported
    with pytest.raises(
        ValueError, match=r"was written for no engine: write one with transduct export MODEL OUT --to ctranslate2\|onnx"
    ):
        transduct.translate(str(tmp_path), tokenizer, ["abc"])
    with pytest.raises(ValueError, match="engine='ctranslate2' needs the folder of an exported model"):
        transduct.translate(model, tokenizer, ["abc"], engine="ctranslate2")
    with pytest.raises(ValueError, match="do_sample=True cannot be had"):
        exported[3].generate(words(1, 3), do_sample=True)
    with pytest.raises(ValueError, match="engine='ctranslate2' tells no logits"):
        transduct.score(exported[3], tokenizer, ["abc"], ["abc"])


def test_sources_longer_than_the_table(exported):
    engine = exported[3]
    with pytest.raises(ValueError, match="a source of 4097 tokens exceeds the 4096 positions of the folder"):
        engine.generate(words(1, 4097, high=9))


def test_command_line(exported, tmp_path, capsys):
    model, tokenizer, _, _ = exported
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    (tmp_path / "ours" / "LICENSE").write_text("terms")
    output, lines = tmp_path / "out", tmp_path / "lines"
    assert run(["export", str(tmp_path / "ours"), str(output), "--to", "ctranslate2", "--quantization", "float32"]) == 0
    printed = capsys.readouterr().out
    assert f"exported    {tmp_path / 'ours'}" in printed
    assert "engine      ctranslate2, weights stored as float32" in printed
    assert "checked     log-probabilities of " in printed
    assert "beam-4 ids: identical for 8 of 8 sources" in printed
    assert (output / "LICENSE").read_text() == "terms"
    lines.write_text("hello there.\n\nabc\n")
    want = "\n".join(transduct.translate(model, tokenizer, ["hello there.", "", "abc"], early_stopping=True)) + "\n"
    for engine in ([], ["--engine", "ctranslate2"]):
        assert run(["translate", str(output), "--input", str(lines), *engine]) == 0
        assert capsys.readouterr().out == want


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "ours", "out", "--to", "t5", "--quantization", "int8"], "--quantization int8 belongs to --to ctranslate2"),
        (["export", "ours", "out", "--to", "ctranslate2", "--dtype", "float16"], "--dtype has no use with --to ctranslate2"),
        (["export", "ours", "out", "--to", "ctranslate2", "--no-verify"], "--no-verify has no use with --to ctranslate2"),
        (["translate", ".", "--engine", "ctranslate2"], "was written for no engine"),
    ],
    ids=str,
)
def test_command_line_refuses(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    if arguments[0] == "translate":
        arguments = [*arguments, "--input", "empty"]
    assert run(arguments) == 2
    assert message in capsys.readouterr().err


def test_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("transduct.packages.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"to_ctranslate2 needs the package ctranslate2: pip install 'transduct\[ctranslate2\]'"
    ):
        to_ctranslate2(model_of(), None, tmp_path / "out")

"""Exports to CTranslate2 compute what our models do, for every architecture that it has a place for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import transduct
from configs import END, START, tiny, words
from ctranslate2_exports import exported_translator, model_of
from transduct.cli.main import run
from transduct.convert import to_ctranslate2
from transduct.convert.ctranslate2 import ACTIVATIONS
from transduct.convert.engine_folders import TOLERANCE, token_log_probs
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exported_translator(tmp_path_factory.mktemp("ctranslate2"))


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

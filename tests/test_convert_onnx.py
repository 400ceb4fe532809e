"""Exports to ONNX compute what our models do, and run behind `generate`, `translate` and `score`.

An export takes seconds, so that one model serves most tests, and the architectures are slow ones.
"""

import pytest
import torch

import transduct
from configs import build, tiny, words
from tiny_translation import TEXTS, tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.cli.main import run
from transduct.convert import to_onnx
from transduct.convert.engine_folders import compare
from transduct.convert.onnx import DecoderStep, EncoderGraph
from transduct.decoding.engines import load_engine

T5 = dict(positions="relative_bias", norm="rmsnorm", norm_position="pre", attention_scale="none", scale_embeddings=False)
BART = dict(positions="learned", position_offset=2, embedding_norm=True, scale_embeddings=False, activation="gelu")
ARCHITECTURES = {
    "t5": dict(**T5, scale_logits=True, attention_bias=False, ffn_bias=False),
    "umt5": dict(**T5, relative_bias_per_layer=True, gated_ffn=True, activation="gelu_new"),
    "bart": BART,
    "blenderbot small": dict(**BART, decoder_embedding_norm="before_positions", decoder_vocab_size=19, tie_embeddings="none"),
    "m2m_100": dict(sinusoid_layout="tensor2tensor", position_offset=2, norm_position="pre", logits_bias=True),
    "rotary, grouped heads, wide values": dict(positions="rotary", num_key_value_heads=2, d_kv=6, d_value=10),
    "alibi": dict(positions="alibi"),
    "no positions": dict(positions="none", encoder_layers=1, decoder_layers=3, decoder_num_heads=2, d_kv=4),
}

EXPORTED = ("umt5", "blenderbot small", "rotary, grouped heads, wide values")
"""Those whose graphs are made; of all, what is traced is compared in torch."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model, its tokenizer and the result of its export by the command."""
    model, tokenizer = tiny_translation(end=2.0, encoder_layers=1)
    folder = tmp_path_factory.mktemp("onnx")
    model.save_pretrained(folder / "ours")
    tokenizer.save_pretrained(folder / "ours")
    assert run(["export", str(folder / "ours"), str(folder / "out"), "--to", "onnx"]) == 0
    return model, tokenizer, folder / "out"


@pytest.mark.slow
def test_the_command_and_its_files(exported, capsys, tmp_path):
    model, tokenizer, folder = exported
    names = {path.name for path in folder.iterdir()}
    assert {"encoder.onnx", "decoder.onnx", "config.json", "generation_config.json", "tokenizer.json", "README.md"} <= names
    card = (folder / "README.md").read_text()
    assert "weights are stored as float32" in card
    assert "beam-4 ids: identical for 8 of 8 sources" in card
    lines = tmp_path / "lines"
    lines.write_text("hello there.\n\nabc\n")
    capsys.readouterr()
    for engine in ([], ["--engine", "onnx"]):
        assert run(["translate", str(folder), "--input", str(lines), *engine]) == 0
        assert capsys.readouterr().out.split("\n") == [*transduct.translate(model, tokenizer, ["hello there.", "", "abc"]), ""]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(num_beams=1),
        dict(num_return_sequences=3),
        dict(length_normalization="gnmt", early_stopping="never"),
        dict(forced_bos_token_id=9, no_repeat_ngram_size=2),
        dict(max_length_by_source=(0.5, 3)),
    ],
    ids=str,
)
def test_translates_as_we_do(exported, options):
    model, tokenizer, folder = exported
    ours, theirs = (transduct.translate(each, tokenizer, TEXTS, return_scores=True, **options) for each in (model, folder))
    for want, got in zip(ours, theirs, strict=True):
        for one, other in zip(*([each] if not isinstance(each, list) else each for each in (want, got)), strict=True):
            assert one.token_ids == other.token_ids
            assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.slow
def test_generate_and_score(exported):
    model, tokenizer, folder = exported
    engine = load_engine(folder)
    for texts in (["abc", "hello there.", "a"], ["abc"]):
        source = tokenizer(texts, return_tensors="pt", padding=True)
        for options in (dict(num_beams=4, num_return_sequences=2), dict(num_beams=1)):
            assert engine.generate(**source, **options).tolist() == model.generate(**source, **options).tolist()
    scores = [transduct.score(each, tokenizer, TEXTS[:3], ["cab", "b", "xyz xyz"]) for each in (model, engine)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    with pytest.raises(ValueError, match="there are no targets"):
        engine(**source)
    with pytest.raises(ValueError, match="engine='onnx' tells no attention"):
        transduct.translate(engine, tokenizer, ["abc"], return_alignments=True)
    with pytest.raises(ValueError, match="the model is a OnnxModel, which reads one token a step: drafts need a model of torch"):
        transduct.translate(engine, tokenizer, ["abc"], drafts=True)


@pytest.mark.slow
def test_a_device_without_a_provider(exported):
    with pytest.raises(ValueError, match="device='xpu': this build of onnxruntime has no XPUExecutionProvider"):
        load_engine(exported[2], "onnx", "xpu")


@pytest.mark.slow
@pytest.mark.parametrize("fields", [ARCHITECTURES[name] for name in EXPORTED], ids=EXPORTED)
def test_log_probabilities_and_answers(fields, tmp_path):
    model = build(TransductForConditionalGeneration, tiny(**fields), dtype=torch.float32)
    result = to_onnx(model, None, tmp_path / "out")
    assert result.checked.same == result.checked.pairs == 8
    assert result.checked.largest <= 2e-5 * result.checked.scale
    found = compare(
        build(TransductForConditionalGeneration, tiny(**fields), dtype=torch.float32, seed=1), load_engine(tmp_path / "out")
    )
    assert not found.agrees


@pytest.mark.parametrize("fields", [{}, *ARCHITECTURES.values()], ids=["vaswani", *ARCHITECTURES])
def test_what_is_traced_is_the_model(fields):
    """The two modules, step by step in torch, against one pass of the model, with two targets a source."""
    model = build(TransductForConditionalGeneration, tiny(**fields))
    ids, mask = words(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    targets = words(4, 6, seed=1, high=model.config.resolved_decoder_vocab_size)
    encoder, step = EncoderGraph(model).eval(), DecoderStep(model).eval()
    attention = model.model.decoder.layers[0].self_attention
    groups = attention.num_key_value_heads
    widths = [linear.out_features // groups for linear in (attention.k_proj, attention.v_proj)]
    layers = len(model.model.decoder.layers)
    keys, values = ([torch.zeros(2, 2, groups, 0, width, dtype=torch.float64)] * layers for width in widths)
    with torch.no_grad():
        want = model(ids, mask, decoder_input_ids=targets).logits  # (4, T, V)
        source = encoder(ids, mask)
        for place in range(targets.shape[1]):
            found = step(targets[:, place].view(2, 2), mask, keys, values, **source)
            torch.testing.assert_close(found["logits"].flatten(0, 1), want[:, place], rtol=1e-10, atol=1e-10)
            keys = [torch.cat(pair, dim=3) for pair in zip(keys, found["new_keys"], strict=True)]
            values = [torch.cat(pair, dim=3) for pair in zip(values, found["new_values"], strict=True)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(decoder_layers=0), "decoder_layers=0 is not written as ONNX"),
        (
            dict(encoder_input="features", feature_size=4, tie_embeddings="target_output"),
            "encoder_input='features' is not written",
        ),
    ],
    ids=str,
)
def test_refuses_by_field(fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        to_onnx(TransductForConditionalGeneration(tiny(**fields)), None, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_refuses_other_classes_options_and_missing_packages(tmp_path, capsys, monkeypatch):
    with pytest.raises(ValueError, match="model is a TransductModel, and only"):
        to_onnx(transduct.TransductModel(tiny()), None, tmp_path / "out")
    assert run(["export", "ours", str(tmp_path / "out"), "--to", "onnx", "--quantization", "int8"]) == 2
    assert "--quantization int8 belongs to --to ctranslate2" in capsys.readouterr().err
    monkeypatch.setattr("transduct.packages.find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ImportError, match=r"to_onnx needs the package onnxscript: pip install 'transduct\[onnx\]'"):
        to_onnx(TransductForConditionalGeneration(tiny()), None, tmp_path / "out")

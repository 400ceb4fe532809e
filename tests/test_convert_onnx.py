"""Exports to ONNX compute what our models do, and run behind `generate`, `translate` and `score`.

An export takes seconds, so that one model serves most tests, and the architectures are slow ones.
"""

from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

import transduct
from configs import build, tiny, words
from tiny_translation import TEXTS, tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.cli.main import run
from transduct.convert import to_onnx
from transduct.convert.engine_folders import compare, sample, token_log_probs
from transduct.convert.onnx import DecoderStep, EncoderGraph
from transduct.decoding import beam_search
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
    """A model, its tokenizer, the folder of its export by the command, and what that printed."""
    model, tokenizer = tiny_translation(end=2.0, encoder_layers=1)
    folder = tmp_path_factory.mktemp("onnx")
    model.save_pretrained(folder / "ours")
    tokenizer.save_pretrained(folder / "ours")
    with redirect_stdout(StringIO()) as printed:
        assert run(["export", str(folder / "ours"), str(folder / "out"), "--to", "onnx"]) == 0
    return model, tokenizer, folder / "out", printed.getvalue()


@pytest.mark.slow
def test_the_command_and_its_files(exported, capsys, tmp_path):
    model, tokenizer, folder, printed = exported
    names = {path.name for path in folder.iterdir()}
    assert {"encoder.onnx", "decoder.onnx", "config.json", "generation_config.json", "tokenizer.json", "README.md"} <= names
    sources, targets = sample(model, 0)
    each = (token_log_probs(one, sources, targets) for one in (model, load_engine(folder)))
    gaps = [abs(one - other) for rows in zip(*each, strict=True) for one, other in zip(*rows, strict=True)]
    card = (folder / "README.md").read_text()
    assert "weights are stored as float32" in card
    for line in (
        f"log-probabilities of {len(gaps)} tokens of 8 random pairs: they differ by {max(gaps):.1e} at most, "
        f"{sum(gaps) / len(gaps):.1e} on average",
        "beam-4 ids: identical for 8 of 8 sources",
    ):
        assert line in printed
        assert line in card
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
    model, tokenizer, folder, _ = exported
    ours, theirs = (transduct.translate(each, tokenizer, TEXTS, return_scores=True, **options) for each in (model, folder))
    for want, got in zip(ours, theirs, strict=True):
        for one, other in zip(*([each] if not isinstance(each, list) else each for each in (want, got)), strict=True):
            assert one.token_ids == other.token_ids
            assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.slow
def test_generate_and_score(exported):
    model, tokenizer, folder, _ = exported
    engine = load_engine(folder)
    for texts in (["abc", "hello there.", "a"], ["abc"]):
        source = tokenizer(texts, return_tensors="pt", padding=True)
        for options in (dict(num_beams=4, num_return_sequences=2), dict(num_beams=1)):
            assert engine.generate(**source, **options).tolist() == model.generate(**source, **options).tolist()
    scores = [transduct.score(each, tokenizer, TEXTS[:3], ["cab", "b", "xyz xyz"]) for each in (model, engine)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    with pytest.raises(ValueError, match="there are no targets"):
        engine(**source)


@pytest.mark.slow
def test_ensembles(exported, tmp_path, capsys):
    """Whoever is first, the vote is the same; of an export with itself nothing comes but what it says alone."""
    model, tokenizer, folder, _ = exported
    engine, (another, _) = load_engine(folder), tiny_translation(seed=9, end=2.0)

    def found(first, *others, **options):
        return transduct.translate(first, tokenizer, TEXTS, ensemble=list(others), return_scores=True, **options)

    for options in (dict(ensemble_mean="log", num_beams=2), dict(num_beams=1), dict(do_sample=True, seed=3, top_k=0)):
        want = found(model, another, **options)
        assert [each.text for each in want] != [each.text for each in found(model, model, **options)]
        for got in (found(engine, another, **options), found(another, engine, **options)):
            assert [each.token_ids for each in got] == [each.token_ids for each in want]
            assert [each.score for each in got] == pytest.approx([each.score for each in want], abs=1e-4)
    alone = transduct.translate(engine, tokenizer, TEXTS, return_scores=True)
    itself = found(engine, engine)
    assert [each.token_ids for each in itself] == [each.token_ids for each in alone]
    assert [each.score for each in itself] == pytest.approx([each.score for each in alone], abs=1e-5)
    for part in (another, tokenizer):
        part.save_pretrained(tmp_path / "another")
    (tmp_path / "lines").write_text("".join(f"{text}\n" for text in TEXTS))
    files = ["--input", str(tmp_path / "lines"), "--output", str(tmp_path / "out")]
    want = [each.text for each in found(model, another, num_beams=2)]
    for first, second in ((folder, tmp_path / "another"), (tmp_path / "another", folder)):
        assert run(["translate", str(first), *files, "--ensemble", str(second), "--beams", "2"]) == 0
        assert (tmp_path / "out").read_text().splitlines() == want
    assert run(["translate", str(tmp_path / "another"), *files, "--draft", str(folder)]) == 2
    assert "draft_model is a OnnxModel, which reads one token a step" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("options", [dict(cache_implementation="static"), dict(use_cache=False)], ids=str)
def test_caches(exported, options):
    model, tokenizer, folder, _ = exported
    engine, source = load_engine(folder), tokenizer(["abc", "hello there.", "a"], return_tensors="pt", padding=True)
    for more in ({}, dict(custom_generate=beam_search), dict(num_beams=3), dict(num_beams=3, custom_generate=beam_search)):
        want = model.generate(**source, max_new_tokens=12, **more)
        assert engine.generate(**source, max_new_tokens=12, **more, **options).tolist() == want.tolist()


@pytest.mark.slow
def test_refuses_what_the_graphs_do_not_tell(exported):
    model, tokenizer, folder, _ = exported
    engine, source = load_engine(folder), dict(tokenizer(["abc"], return_tensors="pt"))
    told = "engine='onnx' tells no attention: alignments, coverage and replace_unknown need the model itself"
    for options in (dict(return_alignments=True), dict(replace_unknown=True), dict(coverage_penalty=0.1)):
        with pytest.raises(ValueError, match=told):
            transduct.translate(engine, tokenizer, ["abc"], **options)
    for who, drafts, first in (("the model", True, engine), ("draft_model", engine, model)):
        with pytest.raises(ValueError, match=f"{who} is a OnnxModel, which reads one token a step: drafts need a model of torch"):
            transduct.translate(first, tokenizer, ["abc"], drafts=drafts)
    for options, message in (
        (dict(output_attentions=True), "engine='onnx' cannot be had with output_attentions: its graphs tell logits alone"),
        (dict(output_hidden_states=True), "cannot be had with output_hidden_states"),
        (dict(decoder_attention_mask=torch.ones(1, 1, dtype=torch.long)), "decoder_attention_mask"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.generate(**source, max_new_tokens=3, return_dict_in_generate=True, **options)
    with pytest.raises(ValueError, match="engine='onnx' cannot be had with labels"):
        engine(**source, labels=source["input_ids"])
    with pytest.raises(ValueError, match=r"not used by the model: \['inputs_embeds'\]"):
        engine.generate(inputs_embeds=torch.zeros(1, 3, 16), max_new_tokens=3)
    with pytest.raises(ValueError, match="models with source vocabularies 40 and 41 cannot go together"):
        transduct.translate(engine, tokenizer, ["abc"], ensemble=[build(TransductForConditionalGeneration, tiny(vocab_size=41))])


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

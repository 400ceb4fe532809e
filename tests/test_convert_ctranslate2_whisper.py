"""Models of Whisper's shape in CTranslate2's format hear what ours do; others are refused by field."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

import speech
import transduct
from conversions import Case, build
from test_convert_whisper import SIZES
from transduct.cli.main import run
from transduct.convert import from_transformers, to_ctranslate2
from transduct.convert.ctranslate2_whisper import LONGEST, compare_whisper
from transduct.convert.engine_folders import TOLERANCE


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return speech.processor(tmp_path_factory.mktemp("processor"))


def whisper(processor, spare: int = 0, **values: Any):
    """Our tiny model, with so many embeddings more than tokens."""
    ids = processor.tokenizer.convert_tokens_to_ids
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), ids("<|endoftext|>"))
    sizes = dict(vocab_size=len(processor.tokenizer) + spare, num_mel_bins=8, max_source_positions=100, max_target_positions=40)
    config = WhisperConfig(**SIZES | sizes | special | dict(decoder_start_token_id=ids("<|startoftranscript|>")) | values)
    theirs = build(Case("tiny", WhisperForConditionalGeneration, config))
    theirs.generation_config.suppress_tokens = [3, 4]
    theirs.generation_config.begin_suppress_tokens = [ids("Ġ")]
    theirs.generation_config.lang_to_id = {token: ids(token) for token in ("<|de|>", "<|en|>")}
    return from_transformers(theirs, verify=False).float()


@pytest.mark.parametrize(
    "values",
    [{}, dict(tie_word_embeddings=False), dict(encoder_layers=1, decoder_layers=3, decoder_ffn_dim=40)],
    ids=["tied", "untied", "unequal"],
)
def test_log_probabilities_and_answers(processor, values, tmp_path):
    model = whisper(processor, **values)
    checked = to_ctranslate2(model, processor, tmp_path / "out").checked
    assert checked.pairs < checked.tokens <= checked.pairs * LONGEST
    assert f" of {checked.tokens} tokens of 2 random pairs" in (tmp_path / "out" / "README.md").read_text()
    assert checked.largest < TOLERANCE
    assert checked.scale > 1
    assert checked.same == checked.pairs == 2


def test_the_comparison_would_tell(processor, tmp_path):
    model = whisper(processor)
    to_ctranslate2(model, processor, tmp_path / "out")
    with torch.no_grad():
        model.model.encoder.stem.conv2.weight.mul_(1.5)
    checked = compare_whisper(model, tmp_path / "out")
    assert checked.largest > 100 * TOLERANCE
    assert not checked.agrees


@pytest.mark.parametrize("ends", [6.0, 11.0])
def test_answers_that_end(processor, tmp_path, ends):
    model = whisper(processor)
    with torch.no_grad():  # raises the logit of the end by so much
        direction = model.lm_head.weight[model.config.eos_token_id]
        model.model.decoder.final_norm.bias.add_(direction / direction.norm() ** 2 * ends)
    assert to_ctranslate2(model, processor, tmp_path / "out").checked.agrees


def test_a_sound_by_the_package_itself(processor, tmp_path):
    """With Whisper's own settings: a prompt of language and task, and tokens that are never written."""
    import ctranslate2

    model, ids = whisper(processor), processor.tokenizer.convert_tokens_to_ids
    to_ctranslate2(model, processor, tmp_path / "out")
    inputs = processor([speech.tone(1.2), speech.tone(0.4, 880)], sampling_rate=speech.RATE, return_tensors="pt")
    prompt = [ids(token) for token in ("<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>")]
    engine = ctranslate2.models.Whisper(str(tmp_path / "out"))
    assert engine.n_mels == 8
    features = ctranslate2.StorageView.from_array(np.ascontiguousarray(inputs["input_features"].numpy()))
    found = [result.sequences_ids[0] for result in engine.generate(features, [prompt] * 2, beam_size=1, max_length=20)]
    wanted = model.generate(**inputs, decoder_input_ids=torch.tensor([prompt] * 2), num_beams=1, max_new_tokens=10)
    assert found == wanted[:, len(prompt) :].tolist()
    assert not {3, 4} & set(wanted.flatten().tolist())


def test_what_is_written(processor, tmp_path):
    model = whisper(processor, spare=3)
    written = to_ctranslate2(model, processor, tmp_path / "out", "int8")
    read = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("config", "vocabulary")}
    ids = processor.tokenizer.convert_tokens_to_ids
    assert read["vocabulary"][-4:] == ["<|notimestamps|>", "<|0.00|>", "<|0.02|>", "<|0.04|>"]
    assert read["config"]["suppress_ids"] == [3, 4]
    assert read["config"]["suppress_ids_begin"] == [ids("Ġ")]
    assert read["config"]["lang_ids"] == sorted(map(ids, ("<|de|>", "<|en|>")))
    assert read["config"]["alignment_heads"] == [[1, head] for head in range(4)]
    assert {"preprocessor_config.json", "tokenizer.json", "model.bin"} <= set(written.files)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "ctranslate2.models.Whisper" in card
    assert "transduct translate" not in card
    assert 0 < written.checked.largest < 1


def test_by_the_command(processor, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    whisper(processor).save_pretrained("ours")
    processor.save_pretrained("ours")
    assert run(["export", "ours", "out", "--to", "ctranslate2"]) == 0
    assert "beam-4 ids: identical for 2 of 2 sources" in capsys.readouterr().out
    Path("in.txt").write_text("text\n")
    assert run(["translate", "out", "--input", "in.txt"]) == 2
    assert "'out' reads features, not text: use ctranslate2.models.Whisper" in capsys.readouterr().err


def test_refuses_by_field(processor, tmp_path):
    refused = {
        "activation='relu': its Whisper has gelu": whisper(processor, activation_function="relu"),
        "eos_token_id=5: its Whisper ends with <|endoftext|>": whisper(processor, eos_token_id=5),
        "feature_stem='linear'": transduct.TransductForConditionalGeneration(
            transduct.TransductConfig(**whisper(processor).config.to_diff_dict() | {"feature_stem": "linear", "origin": None})
        ),
    }
    for message, model in refused.items():
        with pytest.raises(ValueError, match="CTranslate2 has no place for this model") as error:
            to_ctranslate2(model, processor, tmp_path / "out")
        assert message in str(error.value)
    with pytest.raises(ValueError, match="tokenizer=None: its Whisper looks up the tokens of prompts"):
        to_ctranslate2(whisper(processor), None, tmp_path / "out")
    plain = transduct.TransductTokenizer.train(iter(["abc"]), kind="chars")
    with pytest.raises(ValueError, match=r"a tokenizer without <\|startoftranscript\|>"):
        to_ctranslate2(whisper(processor), plain, tmp_path / "out")
    assert not (tmp_path / "out").exists()

"""Whisper: the same states, gradients and ids as transformers', from sounds on, and everything back again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperModel,
    pipeline,
)

import speech
from conversions import NEW_TOKENS, Case, ConversionTests, GenerationTests, assert_close, build, pair, source
from transduct import TransductForConditionalGeneration, config_from_preset
from transduct.convert import from_transformers, to_transformers
from transduct.convert.folders import export_folder, import_folder
from transduct.convert.models import export_plan

SIZES: dict[str, Any] = dict(
    vocab_size=40, num_mel_bins=6, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=7, max_target_positions=20,
    pad_token_id=1, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2, begin_suppress_tokens=[5, 1],
)  # fmt: skip
POSITIONS = ("model.encoder.embed_positions.weight",)


def sounds(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Noise, as long as it must be."""
    generator = torch.Generator().manual_seed(5)
    return {"input_features": torch.randn(3, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)}


def case(name: str, model_class: Any = WhisperForConditionalGeneration, draw: tuple[str, ...] = (), **values: Any) -> Case:
    return Case(name, model_class, WhisperConfig(**SIZES | values), draw=draw, inputs=sounds)


CASES = [
    case("tied"),
    case("untied", tie_word_embeddings=False),
    case("drawn-positions", draw=POSITIONS, suppress_tokens=[7, 8]),
    case("deep-encoder", encoder_layers=3, decoder_layers=1, encoder_ffn_dim=40, num_mel_bins=9),
    case("deep-decoder", encoder_layers=1, decoder_layers=3, decoder_attention_heads=2, decoder_ffn_dim=40),
    case("relu", activation_function="relu", encoder_layerdrop=0.1, decoder_layerdrop=0.2, attention_dropout=0.1, init_std=0.1),
]


class SameIds(GenerationTests):
    @staticmethod
    def assert_same(case: Case, **options: Any) -> list[list[int]]:
        """Whisper's own `generate` adds prompts and cuts them off again; what it is built on does not."""
        theirs, ours = pair(case)
        options = source(case) | options | {"max_new_tokens": NEW_TOKENS}
        want = GenerationMixin.generate(theirs, **options).tolist()
        got = ours.generate(**options).tolist()
        assert got == want
        return got


@pytest.mark.parametrize("case", CASES, ids=str)
class TestWhisper(SameIds, ConversionTests):
    pass


@pytest.mark.parametrize("case", [case("model", WhisperModel, ("encoder.embed_positions.weight",))], ids=str)
class TestWithoutHead(ConversionTests):
    pass


# ---- from sounds on -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def heard(tmp_path_factory) -> dict[str, Any]:
    """A processor, a tiny Whisper of its size with Whisper's own settings of generation, ours, and two sounds as inputs."""
    made = speech.processor(tmp_path_factory.mktemp("processor"))
    ids = made.tokenizer.convert_tokens_to_ids
    end, start = ids("<|endoftext|>"), ids("<|startoftranscript|>")
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), end) | {"decoder_start_token_id": start}
    config = WhisperConfig(
        **SIZES | dict(vocab_size=len(made.tokenizer), num_mel_bins=8, max_source_positions=100, max_target_positions=40)
        | special
    )  # fmt: skip
    theirs = build(Case("heard", WhisperForConditionalGeneration, config))
    settings = dict(
        lang_to_id={token: ids(token) for token in ("<|en|>", "<|zh|>", "<|de|>")}, is_multilingual=True, suppress_tokens=[3, 4],
        task_to_id={task: ids(f"<|{task}|>") for task in ("transcribe", "translate")}, begin_suppress_tokens=[ids("Ġ"), end],
        no_timestamps_token_id=ids("<|notimestamps|>"), prev_sot_token_id=ids("<|startofprev|>"), alignment_heads=[[1, 0]],
    )  # fmt: skip
    theirs.generation_config = GenerationConfig(**special, **settings)
    sounds = [speech.tone(1.2), speech.spoken("Hello world.")]
    inputs = made(sounds, sampling_rate=speech.RATE, return_tensors="pt", return_attention_mask=True)
    assert inputs["attention_mask"].sum(1).max() < inputs["input_features"].shape[2]  # both end in silence
    prompt = [start, *(token for _, token in made.get_decoder_prompt_ids(language="de", task="translate"))]
    ours = from_transformers(theirs, verify=False)
    return dict(
        processor=made, theirs=theirs, ours=ours, inputs=dict(inputs), sounds=sounds, settings=settings,
        prompt=torch.tensor([prompt] * 2),
    )  # fmt: skip


def test_a_tone_and_a_spoken_clip_give_the_same_logits(heard):
    with torch.no_grad():
        want = heard["theirs"](**heard["inputs"], decoder_input_ids=heard["prompt"]).logits
        got = heard["ours"](**heard["inputs"], decoder_input_ids=heard["prompt"]).logits
    assert_close(got, want, 1e-5, "logits")
    assert (want[0] - want[1]).abs().max() > 0.1  # it does hear a difference


@pytest.mark.parametrize("beams", [1, 4])
def test_a_tone_and_a_spoken_clip_give_the_same_ids(heard, beams):
    """Beside the plain search, Whisper's own, which makes the prompt of language and task and cuts it off again."""
    ours, theirs, prompt = heard["ours"], heard["theirs"], heard["prompt"]
    options = dict(num_beams=beams, max_new_tokens=14)
    got = ours.generate(**heard["inputs"], decoder_input_ids=prompt, **options)
    assert got.tolist() == GenerationMixin.generate(theirs, **heard["inputs"], decoder_input_ids=prompt, **options).tolist()
    own = theirs.generate(**heard["inputs"], language="de", task="translate", **options)
    end = ours.config.eos_token_id
    assert without(end, got[:, prompt.shape[1] :]) == without(end, own)
    assert len({tuple(row) for row in got.tolist()}) == 2
    assert not {3, 4} & set(got.flatten().tolist())


def without(end: int, ids: torch.Tensor) -> list[list[int]]:
    return [row[: row.index(end)] if end in row else row for row in ids.tolist()]


def test_a_folder_comes_along_with_all_that_belongs_to_it(heard, tmp_path):
    source, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    heard["theirs"].save_pretrained(source)
    heard["processor"].save_pretrained(source)
    imported = import_folder(source, ours)
    assert imported.checked.generated
    export_folder(ours, back)
    for name in ("processor_config.json", "tokenizer.json"):
        assert (ours / name).read_bytes() == (back / name).read_bytes() == (source / name).read_bytes()
    loaded, info = WhisperForConditionalGeneration.from_pretrained(back, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    want = heard["theirs"].state_dict()
    assert all(torch.equal(tensor, want[name]) for name, tensor in loaded.state_dict().items())
    model = AutoModelForSpeechSeq2Seq.from_pretrained(ours)
    for generation in (loaded.generation_config, model.generation_config):
        for name, value in heard["settings"].items():
            assert getattr(generation, name) == value
    again = AutoProcessor.from_pretrained(ours)
    assert type(again) is type(heard["processor"])
    inputs = again(heard["sounds"], sampling_rate=speech.RATE, return_tensors="pt")
    assert torch.equal(inputs["input_features"], heard["inputs"]["input_features"])


def test_the_pipeline_of_speech_recognition(heard, tmp_path):
    heard["ours"].save_pretrained(tmp_path)
    heard["processor"].save_pretrained(tmp_path)
    recognise = pipeline("automatic-speech-recognition", model=str(tmp_path))
    assert type(recognise.model) is TransductForConditionalGeneration
    ids = heard["ours"].generate(heard["inputs"]["input_features"][1:], decoder_input_ids=heard["prompt"][1:], max_new_tokens=14)
    want = heard["processor"].decode(ids[0], skip_special_tokens=True)
    assert want.strip()
    options = dict(decoder_input_ids=heard["prompt"][1:], max_new_tokens=14, num_beams=1)
    assert recognise(heard["sounds"][1], generate_kwargs=options)["text"] == want


# ---- what cannot be -----------------------------------------------------------------------------------------------
def test_masked_frames_while_training_are_refused():
    model = WhisperForConditionalGeneration(WhisperConfig(**SIZES, apply_spec_augment=True))
    with pytest.raises(ValueError, match="apply_spec_augment=True cannot be imported, only False"):
        from_transformers(model)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"feature_padding": "hidden"}, "feature_padding='hidden'"), ({"feature_stem": "linear"}, "feature_stem='linear'"),
     ({"key_bias": True}, "key_bias=True"), ({"feature_layout": "time_first"}, "feature_layout='time_first'"),
     ({"scale_embeddings": True}, "scale_embeddings=True")],
)  # fmt: skip
def test_what_whisper_cannot_say_is_refused(changes, field):
    with pytest.raises(ValueError, match=f"cannot be written as whisper, which has no way to say .*{field}"):
        to_transformers(TransductForConditionalGeneration(tiny(**changes)), "whisper")


def test_a_model_of_text_is_no_whisper():
    text = config_from_preset("bart-base", d_model=8, d_ff=8, num_heads=2, encoder_layers=1, decoder_layers=1, vocab_size=20)
    with pytest.raises(ValueError, match=r"has no way to say .*encoder_input='tokens' \(there 'features'\)"):
        to_transformers(TransductForConditionalGeneration(text), "whisper")


def tiny(**changes: Any):
    sizes = dict(d_model=16, d_ff=24, num_heads=2, encoder_layers=1, decoder_layers=1, vocab_size=40, feature_size=6)
    sizes |= dict(bos_token_id=1, pad_token_id=1, eos_token_id=1, decoder_start_token_id=2)
    return config_from_preset("whisper-tiny", **sizes | dict(max_positions=7, decoder_max_positions=20) | changes)


def test_a_model_of_ours_becomes_a_whisper():
    """With the sinusoids that a new one starts from, and no tokens suppressed that its vocabulary may not have."""
    ours = TransductForConditionalGeneration(tiny())
    theirs = to_transformers(ours, "whisper")
    fresh = WhisperForConditionalGeneration(theirs.config).model.encoder.embed_positions
    assert torch.equal(theirs.model.encoder.embed_positions.weight, fresh.weight)
    assert not theirs.model.encoder.embed_positions.weight.requires_grad
    assert theirs.config.begin_suppress_tokens is None


def test_presets_are_what_transformers_has():
    """Sizes and choices of whisper-tiny, which are the defaults of WhisperConfig but for the tokens of the vocabulary."""
    with torch.device("meta"):
        ours = TransductForConditionalGeneration(config_from_preset("whisper-tiny"))
    conversion, config = export_plan(ours.config, type(ours).__name__, "whisper", "the preset")
    assert conversion.their_class == "WhisperForConditionalGeneration"
    default = WhisperConfig().to_dict()
    changed = {name for name, value in config.to_dict().items() if default.get(name) != value}
    assert changed == {"architectures", "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "eos_token_id",
                       "pad_token_id"}  # fmt: skip


# ---- files of transformers 4 --------------------------------------------------------------------------------------
def old_folder(heard: dict[str, Any], folder: Path) -> None:
    """As the checkpoints of 2022: tied names once, in `pytorch_model.bin`, and what generation needs inside config.json."""
    theirs = heard["theirs"]
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items() if name != "proj_out.weight"}
    torch.save(state, folder / "pytorch_model.bin")
    config = theirs.config
    values = {name: getattr(config, name) for name in SIZES} | dict(
        architectures=["WhisperForConditionalGeneration"], model_type="whisper", transformers_version="4.23.0.dev0",
        torch_dtype="float32", activation_dropout=0.0, activation_function="gelu", attention_dropout=0.0, dropout=0.0,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0, init_std=0.02, scale_embedding=False, use_cache=True,
        is_encoder_decoder=True, num_hidden_layers=config.encoder_layers, max_length=40,
        forced_decoder_ids=[[1, 38], [2, 39], [3, 44]], begin_suppress_tokens=heard["settings"]["begin_suppress_tokens"],
        suppress_tokens=[3, 4],
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    heard["processor"].tokenizer.save_pretrained(folder)
    heard["processor"].feature_extractor.save_pretrained(folder)
    (folder / "normalizer.json").write_text('{"colour": "color"}', encoding="utf-8")


def test_files_of_transformers_4(heard, tmp_path):
    source, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    source.mkdir()
    old_folder(heard, source)
    assert import_folder(source, ours).checked.generated
    model = TransductForConditionalGeneration.from_pretrained(ours)
    with torch.no_grad():
        want = heard["theirs"](**heard["inputs"], decoder_input_ids=heard["prompt"]).logits
        assert_close(model(**heard["inputs"], decoder_input_ids=heard["prompt"]).logits, want, 1e-5, "logits")
    generation = model.generation_config
    assert generation.suppress_tokens == [3, 4]
    assert generation.begin_suppress_tokens == heard["settings"]["begin_suppress_tokens"]
    for name in ("preprocessor_config.json", "normalizer.json"):
        assert json.loads((source / name).read_text()).items() <= json.loads((ours / name).read_text()).items()
    again = AutoProcessor.from_pretrained(ours)
    inputs = again(heard["sounds"], sampling_rate=speech.RATE, return_tensors="pt")
    assert torch.equal(inputs["input_features"], heard["inputs"]["input_features"])
    export_folder(ours, back)
    said = json.loads((source / "config.json").read_text())
    kept = json.loads((back / "config.json").read_text())
    differing = {name for name, value in said.items() if kept.get(name) != value}
    assert differing == {"transformers_version", "torch_dtype", "max_length", "num_hidden_layers"}  # the last was said twice
    loaded = WhisperForConditionalGeneration.from_pretrained(back)
    assert all(torch.equal(tensor, heard["theirs"].state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_two_values_for_one_matrix_are_refused(heard, tmp_path):
    old_folder(heard, tmp_path)
    state = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"] + 1
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"decoder.embed_tokens.weight and proj_out.weight should be one matrix"):
        from_transformers(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"activation_function": "gelo"}, "activation='gelo'"), ({"num_hidden_layers": 7}, "num_hidden_layers=7"),
     ({"vocab_size": 30}, "30"), ({"some_option": 3}, "some_option=3"), ({"max_source_positions": 99}, r"\(99, 16\)")],
)  # fmt: skip
def test_configs_that_do_not_fit_are_refused(heard, tmp_path, changes, message):
    source = tmp_path / "theirs"
    source.mkdir()
    old_folder(heard, source)
    values = json.loads((source / "config.json").read_text()) | changes
    (source / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        import_folder(source, tmp_path / "ours")

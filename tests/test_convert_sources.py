"""Where a checkpoint comes from: folders as older versions of transformers wrote them, and ids of the Hub."""

import json
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig, T5Config, T5ForConditionalGeneration

from conversions import Case, build
from transduct import convert
from transduct.convert.families import NOT_YET
from transduct.convert.folders import export_folder, import_folder
from transduct.convert.sources import generation_config, locate, named_class, open_source

T5_OF_2019 = {
    "architectures": ["T5WithLMHeadModel"], "model_type": "t5", "vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24,
    "num_layers": 2, "num_heads": 4, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-06, "relative_attention_num_buckets": 32,
    "initializer_factor": 1.0, "n_positions": 512, "output_past": True, "is_encoder_decoder": True, "pad_token_id": 0,
    "eos_token_id": 1, "decoder_start_token_id": 0, "torch_dtype": "float32", "early_stopping": True, "num_beams": 4,
    "max_length": 15, "no_repeat_ngram_size": 3, "prefix": "summarize: ", "bad_words_ids": [[7], [8, 9]],
    "task_specific_params": {"summarization": {"length_penalty": 2.0, "prefix": "summarize: "}},
}  # fmt: skip
BART_OF_2020 = {
    "architectures": ["BartForMaskedLM"], "model_type": "bart", "vocab_size": 40, "d_model": 16, "encoder_layers": 2,
    "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20,
    "max_position_embeddings": 32, "activation_function": "gelu", "normalize_before": False, "normalize_embedding": True,
    "add_final_layer_norm": False, "static_position_embeddings": False, "extra_pos_embeddings": 2, "add_bias_logits": False,
    "classif_dropout": 0.0, "gradient_checkpointing": False, "output_past": False, "scale_embedding": False, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "is_encoder_decoder": True,
    "force_bos_token_to_be_generated": True, "min_length": 4, "max_length": 14, "num_beams": 4, "length_penalty": 2.0,
}  # fmt: skip
"""config.json as early versions wrote it, settings of generation included."""
OLD = {"t5": (T5_OF_2019, T5ForConditionalGeneration, T5Config), "bart": (BART_OF_2020, BartForConditionalGeneration, BartConfig)}
FILES = ["zip", "legacy", "sharded"]


def write_old(folder: Path, name: str, files: str = "zip", kept: str | None = None) -> dict[str, torch.Tensor]:
    """A checkpoint as older versions wrote it, with every name of tied tensors, or the one kept; returns its tensors."""
    values, model_class, config_class = OLD[name]
    state = build(Case("", model_class, config_class.from_dict(dict(values)))).state_dict()
    tied = {key for key, tensor in state.items() if tensor.data_ptr() == state["lm_head.weight"].data_ptr()}
    assert len(tied) == 4
    state = {key: tensor for key, tensor in state.items() if kept is None or key == kept or key not in tied}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    if files == "sharded":
        names = list(state)
        parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
        for file, part in parts.items():
            torch.save({key: state[key].clone() for key in part}, folder / file)
        places = {key: file for file, part in parts.items() for key in part}
        index = {"metadata": {"total_size": 0}, "weight_map": places}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=files == "zip")
    return state


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("files", FILES)
def test_files_of_older_versions(name, files, tmp_path):
    state = write_old(tmp_path / "old", name, files)
    result = import_folder(tmp_path / "old", tmp_path / "ours")
    _, model_class, _ = OLD[name]
    assert result.from_class == model_class.__name__
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    exported = load_file(tmp_path / "back" / "model.safetensors")
    assert set(exported) <= set(state)
    assert all(torch.equal(tensor, state[key]) for key, tensor in exported.items())
    want, got = (model_class.from_pretrained(tmp_path / folder) for folder in ("old", "back"))
    assert all(torch.equal(got.state_dict()[key], tensor) for key, tensor in want.state_dict().items())
    ignored = {"_name_or_path", "architectures", "transformers_version"}
    want, got = ({key: value for key, value in model.config.to_dict().items() if key not in ignored} for model in (want, got))
    assert got == want | {"dtype": "float32"}


@pytest.mark.parametrize("name", OLD)
def test_settings_of_generation_become_what_transformers_makes_of_them(name, tmp_path):
    write_old(tmp_path / "old", name)
    import_folder(tmp_path / "old", tmp_path / "ours", verify=False)
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    values, model_class, _ = OLD[name]
    theirs = model_class.from_pretrained(tmp_path / "old")
    want = theirs.generation_config
    assert want.num_beams == 4
    for folder in ("ours", "back"):
        assert GenerationConfig.from_pretrained(tmp_path / folder) == want
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert not {"num_beams", "max_length", "no_repeat_ngram_size"} & set(config)
    ours = convert.from_transformers(tmp_path / "old", verify=False)
    ids = torch.tensor([[5, 6, 7, 11, 12, values["eos_token_id"]]])
    assert ours.generate(ids).tolist() == theirs.eval().generate(ids).tolist()


def test_the_older_way_to_force_the_first_token(tmp_path):
    write_old(tmp_path / "old", "bart")
    import_folder(tmp_path / "old", tmp_path / "ours", verify=False)
    assert GenerationConfig.from_pretrained(tmp_path / "ours").forced_bos_token_id == BART_OF_2020["bos_token_id"]
    path = tmp_path / "old" / "generation_config.json"  # beside which transformers does not look into config.json
    path.write_text('{"eos_token_id": 2}')
    with pytest.raises(ValueError, match="write forced_bos_token_id=0 into that, or remove the option"):
        import_folder(tmp_path / "old", tmp_path / "again")
    path.write_text('{"eos_token_id": 2, "forced_bos_token_id": 5}')
    import_folder(tmp_path / "old", tmp_path / "again", verify=False)


def test_what_older_programs_did_with_texts_is_told(tmp_path):
    write_old(tmp_path / "old", "t5")
    notes = import_folder(tmp_path / "old", tmp_path / "ours", verify=False).notes
    assert any(note.startswith("prefix='summarize: ' is kept in config.origin") for note in notes)
    assert any("settings of tasks (summarization)" in note for note in notes)
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    exported = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: exported[key] for key in ("prefix", "task_specific_params")} == {
        key: T5_OF_2019[key] for key in ("prefix", "task_specific_params")
    }


@pytest.mark.parametrize(
    "kept", ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
)
def test_any_one_of_the_tied_names(kept, tmp_path):
    state = write_old(tmp_path / "old", "t5", kept=kept)
    import_folder(tmp_path / "old", tmp_path / "ours", verify=False)
    assert torch.equal(load_file(tmp_path / "ours" / "model.safetensors")["model.encoder.embed_tokens.weight"], state[kept])
    export_folder(tmp_path / "ours", tmp_path / "back")
    assert torch.equal(load_file(tmp_path / "back" / "model.safetensors")["shared.weight"], state[kept])


def test_tied_names_that_differ(tmp_path):
    state = write_old(tmp_path / "old", "t5")
    state["decoder.embed_tokens.weight"] = state["shared.weight"] + 1
    torch.save(state, tmp_path / "old" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"decoder\.embed_tokens\.weight and shared\.weight should be one matrix"):
        import_folder(tmp_path / "old", tmp_path / "ours")


def test_a_file_of_generation_goes_before_config_json_and_is_copied(tmp_path):
    write_old(tmp_path / "old", "t5")
    text = '{"num_beams": 2,\n "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}'
    (tmp_path / "old" / "generation_config.json").write_text(text)
    import_folder(tmp_path / "old", tmp_path / "ours")
    assert (tmp_path / "ours" / "generation_config.json").read_text() == text
    assert generation_config(tmp_path / "old").num_beams == 2


def test_unknown_options_and_families(tmp_path):
    write_old(tmp_path / "old", "t5")
    path = tmp_path / "old" / "config.json"
    for values, message in [
        ({"sparse_attention": True}, "unknown options sparse_attention=True"),
        ({"model_type": "longt5"}, "not supported yet: it has local and transient-global attention"),
        ({"model_type": "bert"}, "model_type='bert' is none of t5"),
        ({"model_type": "transduct"}, "is a checkpoint of transduct already: it needs no import"),
        ({"architectures": ["T5ForAudio"]}, "T5ForAudio has no counterpart in transduct"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False, but T5ForConditionalGeneration has a decoder"),
        ({"dtype": "wibble"}, "is no config of t5: .*wibble"),
    ]:
        path.write_text(json.dumps(T5_OF_2019 | values))
        with pytest.raises(ValueError, match=message):
            open_source(locate(tmp_path / "old"))
    path.write_text(json.dumps(T5_OF_2019))
    (tmp_path / "old" / "generation_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"generation_config\.json must hold a JSON object"):
        open_source(locate(tmp_path / "old"))
    path.write_text(json.dumps({key: value for key, value in T5_OF_2019.items() if key != "model_type"}))
    with pytest.raises(ValueError, match="has no model_type: write into it which of t5, mt5"):
        open_source(locate(tmp_path / "old"))


@pytest.mark.parametrize("architectures", [None, [], ["T5Model", "T5EncoderModel"]])
def test_a_class_must_be_chosen_where_the_file_does_not_say_it(architectures, tmp_path):
    with pytest.raises(ValueError, match="choose one class, such as T5ForConditionalGeneration, with --class"):
        named_class(architectures, tmp_path)
    write_old(tmp_path / "old", "t5")
    (tmp_path / "old" / "config.json").write_text(json.dumps(T5_OF_2019 | {"architectures": architectures}))
    result = import_folder(tmp_path / "old", tmp_path / "ours", verify=False, their_class="T5ForConditionalGeneration")
    assert result.to_class == "TransductForConditionalGeneration"
    ours = convert.from_transformers(tmp_path / "old", their_class="T5ForConditionalGeneration")
    assert type(ours).__name__ == result.to_class


# ---- the Hub -------------------------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the Hub that holds one repository, and no network."""
    cache = tmp_path / "cache"
    repository = cache / "models--someone--t5-tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    write_old(repository / "snapshots" / COMMIT, "t5")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return repository / "snapshots" / COMMIT


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_an_id_of_the_hub(hub, tmp_path, revision):
    result = import_folder("someone/t5-tiny", tmp_path / "ours", revision=revision, verify=False)
    assert result.source == f"someone/t5-tiny@{COMMIT}"
    record = json.loads((tmp_path / "ours" / "import.json").read_text())
    assert (record["source"], record["commit"]) == ("someone/t5-tiny", COMMIT)


def test_what_the_hub_does_not_give(hub):
    with pytest.raises(ValueError, match="'someone/else' is no folder here, and the Hub does not give it"):
        locate("someone/else")
    with pytest.raises(ValueError, match="the Hub does not give it"):
        locate("someone/t5-tiny", revision="v2")
    for name in ("./someone/t5-tiny", "/none", "a/b/c", "no such folder", "", "model.npz", "run/best.pt"):
        with pytest.raises(ValueError, match="there is no file or folder"):
            locate(name)
    with pytest.raises(ValueError, match="revision and token belong to an id of the Hub"):
        locate(hub, revision="main")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "both", "shards"])
def test_safetensors_are_downloaded_rather_than_files_of_torch(weights, tmp_path, monkeypatch):
    """A download of what the patterns allow, as `snapshot_download` does it."""
    repository, snapshot = tmp_path / "repository", tmp_path / "snapshots" / COMMIT
    repository.mkdir()
    names = {
        "both": ["model.safetensors", "pytorch_model.bin"],
        "shards": ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    }.get(weights, [weights])
    others = ["tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "modeling_evil.py", "rust_model.ot", "training_args.bin"]
    for name in ["config.json", "spiece.model", "tokenizer.json", "LICENSE", *names, *others]:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("")
    (repository / "config.json").write_text('{"model_type": "t5"}')

    def download(repo_id, revision, token, allow_patterns):
        snapshot.mkdir(parents=True, exist_ok=True)
        files = [str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()]
        for name in huggingface_hub.utils.filter_repo_objects(files, allow_patterns=allow_patterns):
            shutil.copyfile(repository / name, snapshot / name)
        return str(snapshot)

    monkeypatch.setattr("transduct.convert.sources.snapshot_download", download)
    assert locate("someone/t5-tiny", token="secret").path == snapshot
    expected = ["model.safetensors"] if weights == "both" else names
    assert {path.name for path in snapshot.iterdir()} == {"config.json", "spiece.model", "tokenizer.json", "LICENSE", *expected}


def test_no_weights_are_downloaded_of_a_family_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "switch_transformers"}')
    asked = []

    def download(repo_id, allow_patterns, **_):
        asked.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("transduct.convert.sources.snapshot_download", download)
    with pytest.raises(ValueError, match="'switch_transformers' is not supported yet: it has mixtures of experts"):
        locate("google/switch-c-2048")
    assert "config.json" in asked
    assert not any("safetensors" in name or "pytorch_model" in name for name in asked)


@pytest.mark.parametrize("model_type", sorted(NOT_YET))
def test_a_folder_of_a_family_that_cannot_be_imported_says_so_first(tmp_path, model_type):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))  # no class, no weights
    with pytest.raises(ValueError, match=re.escape(NOT_YET[model_type])):
        import_folder(tmp_path, tmp_path / "ours")

"""Rule 6 of the design: save and load is bit-exact, and tied weights are stored once, for every class and tying."""

import copy
import json

import pytest
import torch
from safetensors import safe_open

import transduct
from configs import MATRIX, POSITIONS, TIES, VOCABULARY, build, difference, name, tiny, words
from transduct import modeling

CLASSES = [getattr(modeling, name) for name in modeling.__all__]
every_class = pytest.mark.parametrize("model_class", CLASSES, ids=lambda model_class: model_class.__name__)
every_tie = pytest.mark.parametrize("tie", TIES)


def outputs(model) -> list[torch.Tensor]:
    """All tensors that a model returns for a fixed input."""
    ids = words(2, 6)
    ids[:, -1] = model.config.eos_token_id
    inputs = {"input_ids": ids}
    if isinstance(model, (modeling.TransductModel, modeling.TransductForConditionalGeneration)):
        inputs |= {"decoder_input_ids": words(2, 5, seed=1), "use_cache": False}
    if isinstance(model, modeling.TransductForCausalLM):
        inputs |= {"use_cache": False}
    with torch.no_grad():
        return [value for value in model(**inputs).to_tuple() if isinstance(value, torch.Tensor)]


def stored(folder) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in a folder's safetensors files."""
    shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (no dictionary)
                assert key not in shapes
                shapes[key] = tuple(tensors.get_slice(key).get_shape())
    return shapes


def same_model(loaded, model) -> None:
    assert type(loaded) is type(model)
    assert not loaded.training
    want = model.state_dict()
    assert loaded.state_dict().keys() == want.keys()
    for key, tensor in loaded.state_dict().items():
        assert tensor.dtype == want[key].dtype
        assert torch.equal(tensor, want[key]), key
    # a file's tensors lie at other addresses, for which kernels may add up in another order: compare copies
    for one, other in zip(outputs(copy.deepcopy(loaded)), outputs(copy.deepcopy(model)), strict=True):
        assert torch.equal(one, other)
    assert loaded.config.to_dict() == model.config.to_dict() | {"_name_or_path": loaded.config.to_dict().get("_name_or_path")}


def test_a_model_spread_over_memory_and_disk(tmp_path):
    """As accelerate spreads it: each module's inputs are moved, so no module may be one."""
    model = build(transduct.TransductForConditionalGeneration, tiny(tie_embeddings="none"), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    places = {"model.encoder": "cpu", "model.decoder": "disk", "lm_head": "disk"}
    loaded = type(model).from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "disk")
    for one, other in zip(outputs(loaded), outputs(model), strict=True):
        assert difference(one, other) < 1e-5
    labels = words(2, 5, seed=1)
    assert torch.allclose(loaded.train()(words(2, 6), labels=labels).loss, model(words(2, 6), labels=labels).loss, atol=1e-5)


def number_of_matrices(tie: str) -> int:
    return {"all": 1, "source_target": 2, "target_output": 2, "none": 3}[tie]


@pytest.mark.parametrize("choice", MATRIX[::5], ids=name)
def test_every_kind_of_architecture(choice, tmp_path):
    model = build(transduct.TransductForConditionalGeneration, tiny(**choice), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    same_model(type(model).from_pretrained(tmp_path), model)


@every_class
@every_tie
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("shards", [None, "2KB"])
def test_every_class(model_class, tie, bias, shards, tmp_path):
    config = tiny(tie_embeddings=tie, logits_bias=bias, num_labels=5)
    model = build(model_class, config, dtype=torch.float32)
    model.save_pretrained(tmp_path, **{} if shards is None else {"max_shard_size": shards})
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 if shards else (tmp_path / "model.safetensors").exists()
    assert stored(tmp_path).keys() == {key for key, _ in model.named_parameters()}  # each tied weight under one name
    same_model(model_class.from_pretrained(tmp_path), model)


@every_tie
def test_tied_weights_are_stored_once(tie, tmp_path):
    model = build(transduct.TransductForConditionalGeneration, tiny(tie_embeddings=tie, logits_bias=True), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    shapes = stored(tmp_path)
    matrices = {key for key, shape in shapes.items() if shape == (VOCABULARY, 16)}
    assert len(matrices) == number_of_matrices(tie)
    assert "model.encoder.embed_tokens.weight" in matrices
    assert ("model.decoder.embed_tokens.weight" in matrices) == (tie in ("target_output", "none"))
    assert ("lm_head.weight" in matrices) == (tie in ("source_target", "none"))
    assert shapes["lm_head.bias"] == (VOCABULARY,)


@every_tie
def test_what_is_tied_stays_tied_after_loading(tie, tmp_path):
    build(transduct.TransductForConditionalGeneration, tiny(tie_embeddings=tie)).save_pretrained(tmp_path)
    model = transduct.TransductForConditionalGeneration.from_pretrained(tmp_path)
    source, target, output = (
        model.model.encoder.embed_tokens.weight,
        model.model.decoder.embed_tokens.weight,
        model.lm_head.weight,
    )
    assert (source is target) == (tie in ("all", "source_target"))
    assert (target is output) == (tie in ("all", "target_output"))
    with torch.no_grad():
        output.add_(1)
    assert (output - source).abs().max() == 0 if tie == "all" else (output - source).abs().max() > 0


def test_two_vocabularies(tmp_path):
    for tie in ("target_output", "none"):
        config = tiny(tie_embeddings=tie, decoder_vocab_size=31, logits_bias=True)
        model = build(transduct.TransductForConditionalGeneration, config, dtype=torch.float32)
        model.save_pretrained(tmp_path / tie)
        loaded = transduct.TransductForConditionalGeneration.from_pretrained(tmp_path / tie)
        same_model(loaded, model)
        assert outputs(loaded)[0].shape == (2, 5, 31)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("positions", POSITIONS)
def test_every_precision(dtype, positions, tmp_path):
    model = build(transduct.TransductForConditionalGeneration, tiny(positions=positions), dtype=dtype)
    model.save_pretrained(tmp_path)
    same_model(type(model).from_pretrained(tmp_path), model)
    same_model(type(model).from_pretrained(tmp_path, dtype=dtype), model)
    single = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    assert all(tensor.dtype == torch.float32 for tensor in single.state_dict().values())
    assert all(value.isfinite().all() for value in outputs(single))


@pytest.mark.parametrize("positions", POSITIONS)
def test_frozen_padding_rows_and_per_layer_bias(positions, tmp_path):
    per_layer = positions == "relative_bias"
    model = transduct.TransductForConditionalGeneration(
        tiny(positions=positions, freeze_padding_embedding=True, relative_bias_per_layer=per_layer, embedding_norm=True)
    ).eval()
    assert (model.model.encoder.embed_tokens.weight[0] == 0).all()
    model.save_pretrained(tmp_path)
    same_model(type(model).from_pretrained(tmp_path), model)


def test_parts_of_a_model_load_from_the_whole(tmp_path):
    whole = build(transduct.TransductForConditionalGeneration, tiny(), dtype=torch.float32)
    whole.save_pretrained(tmp_path)
    ids, targets = words(2, 6), words(2, 5, seed=1)
    with torch.no_grad():
        want = whole(ids, decoder_input_ids=targets, output_hidden_states=True)
        model = transduct.TransductModel.from_pretrained(tmp_path)
        assert difference(model(ids, decoder_input_ids=targets).last_hidden_state, want.decoder_hidden_states[-1]) < 1e-6
        encoder = transduct.TransductEncoderModel.from_pretrained(tmp_path)
        assert difference(encoder(ids).last_hidden_state, want.encoder_last_hidden_state) < 1e-6
        labels = transduct.TransductForTokenClassification.from_pretrained(tmp_path)
        assert difference(labels.model(ids).last_hidden_state, want.encoder_last_hidden_state) < 1e-6
        classes = transduct.TransductForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
        states = classes.model(ids, decoder_input_ids=targets).last_hidden_state
        assert difference(states, want.decoder_hidden_states[-1]) < 1e-6


def test_a_whole_model_loads_from_its_parts_where_nothing_is_missing(tmp_path):
    headless = build(transduct.TransductModel, tiny(tie_embeddings="all"), dtype=torch.float32)
    headless.save_pretrained(tmp_path)
    model = transduct.TransductForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(model.lm_head.weight, headless.encoder.embed_tokens.weight)


@every_class
def test_auto_classes_find_the_class(model_class, tmp_path):
    import transformers

    build(model_class, tiny(), dtype=torch.float32).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [model_class.__name__]
    for auto_name, reference in config["auto_map"].items():
        if reference == f"modeling.{model_class.__name__}":
            assert type(getattr(transformers, auto_name).from_pretrained(tmp_path)) is model_class
            break
    else:
        pytest.fail("no Auto class for it")

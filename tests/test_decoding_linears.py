"""Copies of models with other linear layers leave the models as they are, and refuse what they cannot compute with."""

import copy

import pytest
import torch
from torch import nn

from configs import PAIRWISE, build, tiny, words
from tiny_translation import theirs, tiny_translation
from transduct import TransductForConditionalGeneration
from transduct.decoding import int8, packed
from transduct.decoding.int8 import int8_copy
from transduct.decoding.linears import CopiedLinear, with_linears
from transduct.decoding.packed import packed_copy

COPIES = (int8_copy, packed_copy)


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    """Even the matrices of tiny models are replaced."""
    monkeypatch.setattr(int8, "SMALLEST", 1)
    monkeypatch.setattr(packed, "SMALL_MATRIX", 1)


def model_of(**fields) -> TransductForConditionalGeneration:
    return build(TransductForConditionalGeneration, tiny(**fields), dtype=torch.float32)


@pytest.mark.parametrize("make", COPIES)
def test_the_model_stays_as_it_is(make):
    model = model_of(tie_embeddings="all").train()
    before = copy.deepcopy(model.state_dict())
    modules = {name: (id(module), type(module)) for name, module in model.named_modules()}
    copied = make(model)
    assert not copied.training
    assert model.training
    assert all(module.training for module in model.modules())
    assert {name: (id(module), type(module)) for name, module in model.named_modules()} == modules
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, weight in before.items():
        assert torch.equal(weight, after[name])
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("make", COPIES)
@pytest.mark.parametrize(
    "change",
    [lambda copied: copied.to(torch.bfloat16), lambda copied: copied.requires_grad_(False), lambda copied: copied.to("meta")],
    ids=["cast", "frozen", "moved"],
)
def test_what_becomes_of_a_copy_does_not_touch_the_model(make, change):
    model = model_of(tie_embeddings="all")
    before = copy.deepcopy(model.state_dict())
    change(make(model))
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, weight in model.state_dict().items():
        assert weight.dtype == before[name].dtype
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize("make", COPIES)
@pytest.mark.parametrize("family", ["t5", "bart", "marian", "ours"])
def test_every_linear_layer_is_another_and_the_rest_is_shared(make, family):
    model, tokenizer = tiny_translation(tie_embeddings="all")
    model = model if family == "ours" else theirs(family, tokenizer)
    copied = make(model)
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert "lm_head" in linears
    assert {name for name, module in copied.named_modules() if isinstance(module, CopiedLinear)} == linears
    assert not any(isinstance(module, nn.Linear) for module in copied.modules())
    embeddings = [each.get_input_embeddings().weight for each in (model, copied)]
    assert embeddings[0] is not embeddings[1]
    assert embeddings[0].data_ptr() == embeddings[1].data_ptr()
    assert copied.get_output_embeddings().weight.shape == model.get_output_embeddings().weight.shape


@pytest.mark.parametrize("make", COPIES)
def test_of_half_precision_a_copy_in_float32(make):
    model = model_of().bfloat16()
    copied = make(model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert copied.dtype == torch.float32
    with torch.no_grad():
        logits = copied(input_ids=words(2, 5), decoder_input_ids=words(2, 4, seed=1)).logits
        wanted = make(copy.deepcopy(model).float())(input_ids=words(2, 5), decoder_input_ids=words(2, 4, seed=1)).logits
    assert torch.equal(logits, wanted)


def test_a_layer_that_is_used_twice_is_one_layer():
    model = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.ReLU()})
    model["again"] = model["one"]
    copied = with_linears("test", model, CopiedLinear, 1)
    assert copied["one"] is copied["again"]
    assert isinstance(copied["one"], CopiedLinear)


@pytest.mark.parametrize(("module", "name"), [(int8, "SMALLEST"), (packed, "SMALL_MATRIX")])
def test_small_matrices_stay(module, name, monkeypatch):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 9), nn.Linear(9, 8))
    make = int8_copy if module is int8 else packed_copy
    monkeypatch.setattr(module, name, 72)
    assert [isinstance(layer, CopiedLinear) for layer in make(model)] == [False, True, True]
    monkeypatch.setattr(module, name, 73)
    assert all(isinstance(layer, CopiedLinear) for layer in make(model, smallest=64))
    with pytest.raises(ValueError, match="this Sequential has no matrix of 73 weights, and smaller ones gain nothing"):
        make(model)


@pytest.mark.parametrize("make", COPIES)
def test_what_cannot_be_copied(make):
    with pytest.raises(ValueError, match=r"computes on a CPU, not on meta: move the model with .to\('cpu'\)"):
        make(model_of().to("meta"))
    copied = make(model_of())
    with pytest.raises(ValueError, match="has no matrix of floating point"):
        make(copied)
    with pytest.raises(ValueError, match="matrix computes on a CPU, not on meta"):
        copied.lm_head(torch.zeros(1, 16, device="meta"))


@pytest.mark.parametrize("make", COPIES)
@pytest.mark.parametrize("shape", [(40,), (0, 40), (1, 40), (2, 0, 40), (2, 3, 4, 40)], ids=str)
def test_inputs_of_any_shape(make, shape):
    linear, states = nn.Linear(40, 24), torch.randn(shape)
    with torch.no_grad():
        found, wanted = make(nn.Sequential(linear))(states), linear(states)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 if make is packed_copy else 0.05)  # 7 bits an input, 8 a weight


@pytest.mark.parametrize("make", COPIES)
def test_a_copy_takes_float32_alone(make):
    model = model_of()
    inputs = dict(input_ids=words(2, 5), decoder_input_ids=words(2, 4, seed=1))
    with torch.no_grad(), pytest.raises(ValueError, match="matrix takes float32, not bfloat16: leave the copy in float32"):
        make(model).to(torch.bfloat16)(**inputs)


@pytest.mark.parametrize("make", COPIES)
def test_a_copy_is_not_trained(make):
    model = model_of()
    copied = make(model)
    inputs = dict(input_ids=words(2, 5), decoder_input_ids=words(2, 4, seed=1))
    with pytest.raises(ValueError, match=r"matrix has no gradients: call the copy inside torch\.no_grad\(\)"):
        copied(**inputs)
    with torch.no_grad():
        wanted = copied(**inputs).logits
    with torch.inference_mode():
        assert torch.equal(copied(**inputs).logits, wanted)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("make", COPIES)
def test_a_copy_can_be_copied(make):
    copied = make(model_of())
    inputs = dict(input_ids=words(2, 5), decoder_input_ids=words(2, 4, seed=1))
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(copied)(**inputs).logits, copied(**inputs).logits)


@pytest.mark.parametrize("make", COPIES)
def test_a_copy_is_not_saved(make, tmp_path):
    with pytest.raises(ValueError, match="save the model that it was made of"):
        make(model_of()).save_pretrained(tmp_path)


@pytest.mark.parametrize("make", COPIES)
def test_without_onednn(make, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ValueError, match="oneDNN, which this build of torch has not"):
        make(model_of())


@pytest.mark.parametrize("choice", PAIRWISE[::4], ids=str)
def test_every_position_scheme(choice):
    model = model_of(**choice)
    with torch.no_grad():
        wanted, got = (each(input_ids=words(2, 6), decoder_input_ids=words(2, 4)).logits for each in (model, packed_copy(model)))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)

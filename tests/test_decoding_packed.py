"""Packed matrices compute the same products, and searches find the same."""

import weakref

import pytest
import torch
from torch import nn

from tiny_translation import TEXTS, theirs, tiny_translation
from transduct import translate
from transduct.decoding import packed
from transduct.decoding.commands import load_for
from transduct.decoding.packed import PackedLinear, pack_where_it_pays, packed_copy


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    """Even the matrices of tiny models are replaced."""
    monkeypatch.setattr(packed, "SMALL_MATRIX", 1)


@pytest.mark.parametrize("rows", [1, 3, 8, 32, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_same_product_for_any_number_of_rows(rows, bias):
    linear = nn.Linear(48, 130, bias=bias)
    states = torch.randn(rows, 48)
    with torch.no_grad():
        for shape in ((rows, 48), (rows, 1, 48)):
            torch.testing.assert_close(PackedLinear(linear)(states.view(shape)), linear(states.view(shape)), rtol=0, atol=1e-5)


def test_slices_of_states_and_of_weights():
    linear = nn.Linear(16, 12)
    linear.weight = nn.Parameter(torch.randn(16, 12).T)  # not in the order of its rows
    states = torch.randn(4, 6, 16)[:, -1:]
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(linear)(states), linear(states), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["ours", "marian", "t5"])
def test_search_finds_the_same(family):
    model, tokenizer = tiny_translation(end=2.0)
    model = model if family == "ours" else theirs(family, tokenizer)
    options = dict(max_new_tokens=12, return_scores=True, num_beams=3)
    wanted, got = (translate(each, tokenizer, TEXTS, **options) for each in (model, packed_copy(model)))
    assert [each.token_ids for each in got] == [each.token_ids for each in wanted]
    assert [each.score for each in got] == pytest.approx([each.score for each in wanted], abs=1e-5)


def test_packed_where_it_pays(monkeypatch):
    for change in (lambda model: model.bfloat16(), lambda model: model.to("meta")):
        model = change(tiny_translation()[0])
        assert pack_where_it_pays(model) is model
        assert not any(isinstance(module, PackedLinear) for module in model.modules())
    model, tokenizer = tiny_translation()
    wanted = translate(model, tokenizer, TEXTS, max_new_tokens=9)
    weights = [weakref.ref(module.weight) for module in model.modules() if isinstance(module, nn.Linear)]
    assert pack_where_it_pays(model) is model
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    assert not any(weight() is not None for weight in weights)  # nothing is there twice
    assert translate(model, tokenizer, TEXTS, max_new_tokens=9) == wanted
    monkeypatch.setattr(packed, "SMALL_MATRIX", 10**6)
    model, _ = tiny_translation()
    assert pack_where_it_pays(model) is model
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_packed_where_torch_can(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model, _ = tiny_translation()
    assert pack_where_it_pays(model) is model
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_commands_search_with_packed_matrices(tmp_path):
    model, tokenizer = tiny_translation()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for dtype, packs in (("float32", True), ("bfloat16", False)):
        loaded, _ = load_for(None, str(tmp_path), dtype, "cpu")
        assert any(isinstance(module, PackedLinear) for module in loaded.modules()) is packs

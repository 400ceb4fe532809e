"""int8 matrices: how close they are to float32, that no row depends on another, and translate with them."""

import copy
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from configs import build, tiny, words
from tiny_translation import TEXTS, theirs, tiny_translation
from transduct import TransductForConditionalGeneration, score, translate
from transduct.decoding import beam_search, int8
from transduct.decoding.int8 import Int8Linear, input_levels, int8_copy


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    """Even the matrices of tiny models are replaced."""
    monkeypatch.setattr(int8, "SMALLEST", 1)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_close_to_the_product(rows, bias):
    linear = nn.Linear(64, 100, bias=bias)
    states = torch.randn(rows, 2, 64)
    with torch.no_grad():
        found, wanted = Int8Linear(linear)(states), linear(states)
    assert found.shape == wanted.shape
    assert found.dtype == torch.float32
    assert 0 < relative_error(found, wanted) < (0.02 if input_levels() == 127 else 0.03)


@pytest.mark.parametrize("levels", [127, 63])
def test_exactly_what_rounding_gives(levels, monkeypatch):
    monkeypatch.setattr(int8, "input_levels", lambda: levels)
    linear, states = nn.Linear(40, 24), torch.randn(7, 40, dtype=torch.float32)
    with torch.no_grad():
        found = Int8Linear(linear)(states)
        rounded = []
        for values, steps in ((states.double(), levels), (linear.weight.double(), 127)):
            step = values.abs().amax(1, keepdim=True) / steps
            rounded.append((values / step).round() * step)
        wanted = rounded[0] @ rounded[1].T + linear.bias
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-5)


def test_no_row_depends_on_another():
    layer, states = Int8Linear(nn.Linear(64, 50)), torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    together = layer(states)
    for row, state in zip(together, states, strict=True):
        assert torch.equal(layer(state[None])[0], row)


def test_zeros_and_what_is_no_number():
    linear = nn.Linear(8, 4)
    with torch.no_grad():
        linear.weight[1] = 0
    layer = Int8Linear(linear)
    states = torch.zeros(3, 8)
    states[1, 2], states[2, 5] = float("nan"), float("inf")
    with torch.no_grad():
        found = layer(states)
    assert torch.equal(found[0], linear.bias)
    assert not found[1:].isfinite().any()


def test_sums_that_overflow_take_smaller_numbers(monkeypatch):
    input_levels.cache_clear()
    monkeypatch.setattr(int8, "product", lambda codes, *rest: torch.full((len(codes), 64), 32767.0 * 32))
    assert input_levels() == 63
    input_levels.cache_clear()


ON_AN_OLD_PROCESSOR = """
import torch
from transduct.decoding.int8 import Int8Linear, input_levels

linear, states = torch.nn.Linear(512, 64), torch.ones(5, 512)
with torch.no_grad():
    linear.weight.fill_(0.1)  # the largest sums that there are
    torch.testing.assert_close(Int8Linear(linear)(states), linear(states), rtol=1e-4, atol=1e-4)
print(input_levels())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the limit is one of x86 processors")
def test_no_sum_overflows_on_an_old_processor():
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # as if it had no VNNI
    result = subprocess.run([sys.executable, "-c", ON_AN_OLD_PROCESSOR], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split()[-1] == "63"


@pytest.mark.parametrize("family", ["ours", "t5", "bart", "marian"])
def test_log_probabilities_are_close(family):
    model, tokenizer = tiny_translation()
    model = model if family == "ours" else theirs(family, tokenizer)
    ids, targets = words(6, 9, high=len(tokenizer)), words(6, 8, seed=1, high=len(tokenizer))
    with torch.no_grad():
        wanted, found = (
            each(input_ids=ids, decoder_input_ids=targets).logits.log_softmax(-1) for each in (model, int8_copy(model))
        )
    assert 0 < relative_error(found, wanted) < 0.05


@pytest.mark.parametrize(
    "options",
    [
        dict(num_beams=1),
        dict(num_beams=3, num_return_sequences=2),
        dict(do_sample=True, seed=3),
        dict(return_alignments=True),
        dict(drafts=True),
    ],
    ids=str,
)
def test_translate_gives_results_of_the_same_kind(options):
    model, tokenizer = tiny_translation(end=2.0)
    before = copy.deepcopy(model.state_dict())
    options = options | dict(max_new_tokens=12, return_scores=True)
    wanted, found = (translate(model, tokenizer, TEXTS, **options, engine=engine) for engine in (None, "int8"))
    assert len(found) == len(wanted)
    for one, other in zip(wanted, found, strict=True):
        assert type(one) is type(other)
        assert not isinstance(one, list) or len(one) == len(other)
    again = translate(int8_copy(model), tokenizer, TEXTS, **options)
    assert again == found
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_scores_are_those_of_its_own_searches():
    model, tokenizer = tiny_translation(end=2.0)
    fast = int8_copy(model)
    found = translate(fast, tokenizer, TEXTS, num_beams=3, return_scores=True, length_normalization="none")
    scores, targets = [each.score for each in found], [each.token_ids for each in found]
    # a last digit may round an input to the next of its steps, so not to 1e-5 as in float32
    assert score(fast, tokenizer, TEXTS, targets) == pytest.approx(scores, rel=1e-3)
    exact = score(model, tokenizer, TEXTS, targets)
    assert exact == pytest.approx(scores, rel=0.05)
    assert exact != pytest.approx(scores, rel=1e-3)


def test_a_batch_is_its_rows_one_by_one():
    model = int8_copy(build(TransductForConditionalGeneration, tiny(), dtype=torch.float32))
    ids = words(5, 7)
    options = dict(num_beams=3, max_new_tokens=9, min_new_tokens=9, custom_generate=beam_search)
    together = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    for row, wanted in zip(ids, together, strict=True):
        alone = model.generate(row[None], attention_mask=torch.ones_like(row[None]), **options)
        assert torch.equal(alone[0], wanted)

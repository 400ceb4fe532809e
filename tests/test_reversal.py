"""examples/reversal.py: a small model learns to reverse sequences, and without positions it cannot."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "examples" / "reversal.py"
specification = importlib.util.spec_from_file_location("reversal", SCRIPT)
reversal = importlib.util.module_from_spec(specification)
specification.loader.exec_module(reversal)


def test_examples_are_reversed_and_end():
    source, target = reversal.examples(5, torch.Generator().manual_seed(0))
    assert source.shape == target.shape == (5, 11)
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        assert one[-1] == other[-1] == reversal.END
        assert one[:10] == other[9::-1]
        assert all(2 <= symbol < 18 for symbol in one[:10])


def test_accuracy_counts_whole_sequences_and_symbols(monkeypatch):
    model = reversal.small_model("sinusoidal")
    source, target = reversal.examples(100, torch.Generator().manual_seed(3))
    answers = torch.cat([torch.zeros(100, 1, dtype=torch.long), target], dim=1)
    answers[:30, 4] = reversal.PAD  # one symbol of 10 is wrong in 30 of 100
    monkeypatch.setattr(model, "generate", lambda given, **_: answers if torch.equal(given, source) else None)
    assert reversal.accuracy(model, torch.Generator().manual_seed(3), count=100) == pytest.approx((0.7, 0.97))


@pytest.mark.slow
def test_it_learns_to_reverse():
    exact, symbols = reversal.learn("sinusoidal", steps=400, warmup=100)
    assert exact > 0.99
    assert symbols > 0.999


@pytest.mark.slow
def test_without_positions_it_learns_which_symbols_but_not_their_order():
    """It writes the source's symbols in some order: (10 + 90 / 16) / 100 of them are right by chance, and no sequence."""
    exact, symbols = reversal.learn("none", steps=250, warmup=100)
    assert exact < 0.01
    assert symbols == pytest.approx((10 + 90 / 16) / 100, abs=0.03)


@pytest.mark.parametrize("positions", reversal.POSITIONS)
def test_only_positions_tell_a_source_from_its_permutation(positions):
    model = reversal.small_model(positions).double().eval()
    source, target = reversal.examples(4, torch.Generator().manual_seed(0))
    shuffled = torch.cat([source[:, torch.randperm(10)], source[:, 10:]], dim=1)
    with torch.no_grad():
        one, other = (model(input_ids=ids, labels=target).logits for ids in (source, shuffled))
    if positions == "none":
        assert (one - other).abs().max() < 1e-12
    else:
        assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize("positions", reversal.POSITIONS)
def test_the_decoder_is_causal_and_so_ordered_even_without_positions(positions):
    model = reversal.small_model(positions).double().eval()
    source, target = reversal.examples(4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        one, other = (
            model(input_ids=source, decoder_input_ids=ids).logits[:, -2:] for ids in (target, target.flip(1).roll(-1, 1))
        )
    assert torch.equal(target.sort(1).values, target.flip(1).roll(-1, 1).sort(1).values)
    assert (one - other).abs().max() > 1e-3


@pytest.mark.slow
def test_the_table_of_the_script():
    command = [sys.executable, str(SCRIPT), "--all", "--steps", "2", "--batch", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.strip().splitlines()
    assert heading.split() == ["positions", "exact", "match", "symbols", "right"]
    assert [row.split()[0] for row in rows] == list(reversal.POSITIONS)
    assert all(row.split()[1].endswith("%") for row in rows)

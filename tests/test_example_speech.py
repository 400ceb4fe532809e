"""examples/speech/dial_tones.py: sounds of the right frequencies, a training that runs to its end, an error that counts edits."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "speech" / "dial_tones.py"
specification = importlib.util.spec_from_file_location("dial_tones", SCRIPT)
dial_tones = importlib.util.module_from_spec(specification)
specification.loader.exec_module(dial_tones)


@pytest.mark.parametrize(("digit", "hertz"), [("1", {697, 1209}), ("6", {770, 1477}), ("0", {941, 1336})])
def test_a_digit_is_two_sines(digit, hertz):
    samples = dial_tones.clip(digit, 0.0, np.random.default_rng(0))
    spectrum = np.abs(np.fft.rfft(samples, n=dial_tones.RATE))  # a bin for each hertz
    found = {first for first in range(1, len(spectrum) - 1) if spectrum[first] > 0.6 * spectrum.max()}
    for tone in hertz:
        assert min(abs(tone - near) for near in found) < 12
    assert all(min(abs(tone - near) for tone in hertz) < 25 for near in found)


def test_numbers_have_3_to_7_digits():
    lengths = {len(number) for number in dial_tones.numbers(200, np.random.default_rng(0))}
    assert lengths == {3, 4, 5, 6, 7}


def test_the_error_counts_edits():
    texts = ["123", "4567"]
    tokenizer = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: ["1 2 3", "467"])
    trainer = SimpleNamespace(predict=lambda rows, max_new_tokens: SimpleNamespace(predictions=None))
    assert dial_tones.digit_error(trainer, None, texts, tokenizer) == pytest.approx(1 / 7)


@pytest.mark.parametrize("stem", ["conv", "linear"])
def test_it_runs_at_toy_size(stem, tmp_path, capsys):
    small = [
        "--stem",
        stem,
        "--clips",
        "24",
        "--test-clips",
        "12",
        "--steps",
        "3",
        "--channels",
        "16",
        "--cpu",
        "--output",
        str(tmp_path / "model"),
    ]
    dial_tones.main(small)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("edits for each digit: ")
    assert 0.5 < float(printed[-1].split()[-1].rstrip("%")) / 100 < 4  # nothing is learnt in three steps
    assert {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }

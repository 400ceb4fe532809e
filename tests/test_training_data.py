"""Arrow files of a run: made once, made anew when anything has changed, and what is said about skipped rows."""

import os
import pickle
from pathlib import Path

import pytest
from datasets import Dataset

from transduct.tokenization import TransductTokenizer
from transduct.training import data, reading
from transduct.training.data import Skipped, load, origin_of
from transduct.training.encoding import KeepTexts, PairEncoder
from transduct.training.reading import BadRow
from transduct.training.recipe import SplitSource


@pytest.fixture(scope="module")
def tokenizer():
    return TransductTokenizer.train(iter(["abcd"]), "chars")


def stored(folder: Path) -> dict[str, int]:
    """The Arrow files of a run, each with the time at which it was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*.arrow")}


def write(folder: Path, lines: list[str], name: str = "x.jsonl") -> None:
    (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


GOOD = ['{"source": "ab", "target": ["a", "b"]}', '{"source": "cd", "target": "c"}']
SPLIT = SplitSource(json="x.jsonl")


def start(folder, encoder, name="train", split=SPLIT, **options):
    return load(split, folder, encoder, folder / "out", name, **options)


def test_the_data_are_mapped_into_memory_and_used_again(tmp_path, tokenizer):
    write(tmp_path, GOOD)
    loaded = start(tmp_path, PairEncoder(tokenizer, SPLIT))
    assert (loaded.rows, len(loaded.dataset), bool(loaded.skipped)) == (2, 3, False)
    (file,) = (tmp_path / "out").glob("*.arrow")
    assert loaded.dataset.cache_files == [{"filename": str(file)}]
    before = stored(tmp_path)
    again = start(tmp_path, PairEncoder(tokenizer, SPLIT))
    assert stored(tmp_path) == before
    assert again.dataset[:] == loaded.dataset[:]
    assert again.rows == 2


def test_a_change_of_anything_makes_them_anew(tmp_path, tokenizer):
    write(tmp_path, GOOD)
    assert not start(tmp_path, PairEncoder(tokenizer, SPLIT)).changed
    files = [stored(tmp_path)]
    write(tmp_path, GOOD[:1])
    anew = start(tmp_path, PairEncoder(tokenizer, SPLIT))
    assert (anew.rows, anew.changed) == (1, True)
    files.append(stored(tmp_path))
    assert not start(tmp_path, PairEncoder(tokenizer, SPLIT)).changed
    assert stored(tmp_path) == files[-1]
    os.utime(tmp_path / "x.jsonl", (1, 1))
    other, first = TransductTokenizer.train(iter(["abcde"]), "chars"), SplitSource(json="x.jsonl", limit=1)
    for encoder, options in (
        (PairEncoder(tokenizer, SPLIT), {}),
        (PairEncoder(tokenizer, SPLIT, max_source_tokens=10), {}),
        (PairEncoder(tokenizer, SPLIT, max_source_tokens=10), {"bad_rows": "skip"}),
        (PairEncoder(other, SPLIT, max_source_tokens=10), {"bad_rows": "skip"}),
        (PairEncoder(other, SPLIT), {"bad_rows": "skip", "split": first}),
    ):
        assert start(tmp_path, encoder, **options).changed
        files.append(stored(tmp_path))
    assert all(len(names) == 1 for names in files)  # what is not used again is deleted
    assert len({name for names in files for name in names}) == 7
    start(tmp_path, KeepTexts(), "test")
    assert len(stored(tmp_path)) == 2


def test_a_change_of_the_alignments_makes_them_anew(tmp_path, tokenizer):
    split = SplitSource(source="s.txt", target="t.txt", alignment="a.txt")
    for name, line in (("s.txt", "ab"), ("t.txt", "ba"), ("a.txt", "0-0")):
        write(tmp_path, [line], name)
    assert start(tmp_path, PairEncoder(tokenizer, split), split=split).dataset["alignments"][0] != []
    write(tmp_path, [""], "a.txt")
    anew = start(tmp_path, PairEncoder(tokenizer, split), split=split)
    assert anew.changed
    assert anew.dataset["alignments"][:] == [[]]


def test_a_file_that_was_cut_is_made_anew(tmp_path, tokenizer):
    write(tmp_path, GOOD)
    start(tmp_path, PairEncoder(tokenizer, SPLIT))
    (file,) = (tmp_path / "out").glob("*.arrow")
    note, whole = file.with_suffix(".json"), file.read_bytes()
    for damage in (lambda: file.write_bytes(whole[:-8]), note.unlink, lambda: note.write_text("")):
        damage()
        before = stored(tmp_path)
        assert start(tmp_path, PairEncoder(tokenizer, SPLIT)).rows == 2
        assert file.read_bytes() == whole
        assert stored(tmp_path) != before
        assert note.stat().st_size > 0


def test_what_was_begun_and_never_finished_is_deleted(tmp_path, tokenizer):
    write(tmp_path, GOOD)
    start(tmp_path, PairEncoder(tokenizer, SPLIT))
    (file,) = (tmp_path / "out").glob("*.arrow")
    mine, others = (tmp_path / "out" / f"train-0123456789abcdef.arrow.{process}.part" for process in (0, 1))
    mine.touch(), others.touch()  # another process may still be writing
    file.unlink()
    start(tmp_path, PairEncoder(tokenizer, SPLIT))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {file.name, file.with_suffix(".json").name, others.name}


def test_what_a_function_yields_is_asked_for_each_time(tmp_path, tokenizer):
    (tmp_path / "f.py").write_text("from pathlib import Path\ndef f(file):\n    yield Path(file).read_text(), 'a'\n")
    split = SplitSource(function="f.py:f", arguments={"file": str(tmp_path / "hidden")})
    for text in ("a", "b"):
        (tmp_path / "hidden").write_text(text)
        assert start(tmp_path, KeepTexts(), split=split).dataset["source"][:] == [text]


def test_a_data_set_that_has_changed_is_read_again(tmp_path):
    files = []
    for source in ("a", "a", "b"):
        Dataset.from_dict({"source": [source], "target": ["x"]}).save_to_disk(tmp_path / "saved")
        assert start(tmp_path, KeepTexts(), split=SplitSource(dataset="saved")).dataset["source"][:] == [source]
        files.append(stored(tmp_path))
    assert files[0] == files[1]
    assert set(files[1]) != set(files[2])


def test_bad_rows_are_refused_or_counted_by_reason(tmp_path, tokenizer):
    write(tmp_path, [*GOOD, "{", '{"source": "", "target": "b"}', "[]", '{"source": "abcd", "target": "b"}'])
    encoder = PairEncoder(tokenizer, SPLIT, max_source_tokens=4)
    with pytest.raises(BadRow, match=r"x\.jsonl:3: not JSON"):
        start(tmp_path, encoder)
    assert not list((tmp_path / "out").iterdir())
    skipped = start(tmp_path, encoder, bad_rows="skip").skipped
    assert skipped.counts == {"malformed": 2, "empty source": 1, "long source": 1}
    assert str(skipped).startswith(f"4 rows skipped: 2 malformed (the first: {tmp_path}/x.jsonl:3: not JSON")
    assert f"1 empty source (the first: {tmp_path}/x.jsonl:4: the source is empty)" in str(skipped)
    before = stored(tmp_path)
    again = start(tmp_path, encoder, bad_rows="skip").skipped
    assert (again.counts, again.first) == (skipped.counts, skipped.first)
    assert stored(tmp_path) == before
    write(tmp_path, ["{"])
    with pytest.raises(ValueError, match=r"no usable row in x\.jsonl: 1 rows skipped: 1 malformed"):
        start(tmp_path, encoder, bad_rows="skip")
    write(tmp_path, [])
    with pytest.raises(ValueError, match=r"no usable row in x\.jsonl$"):
        start(tmp_path, encoder)


def test_a_pair_is_found_again_in_its_file(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("transduct.training.data.ROWS_AT_ONCE", 2)
    write(tmp_path, [*GOOD, "{", '{"source": "abcd", "target": "b"}', *GOOD])  # the first and the fifth have two targets
    encoder = PairEncoder(tokenizer, SPLIT, max_source_tokens=4)
    found = [origin_of(number, SPLIT, tmp_path, encoder, "skip") for number in range(6)]
    assert found == [f"{tmp_path}/x.jsonl:{line}" for line in (1, 1, 2, 5, 5, 6)]


def test_counts_of_several_parts():
    first, second = Skipped(), Skipped()
    first.add(BadRow("a:1", "is empty", "empty source"))
    second.add(BadRow("b:1", "is empty", "empty source"))
    second.add(pickle.loads(pickle.dumps(BadRow("b:2", "is bad"))))
    first.update(second)
    assert str(first) == ("3 rows skipped: 2 empty source (the first: a:1: is empty), 1 malformed (the first: b:2: is bad)")


def test_reading_is_never_far_ahead_of_writing(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("transduct.training.encoding.ROWS_AT_ONCE", 2)
    write(tmp_path, GOOD * 10)
    read, ahead = [], []
    monkeypatch.setattr(data, "read", lambda *of: (read.append(row) or row for row in reading.read(*of)))

    class Watching(data.ArrowWriter):
        def write(self, example):
            ahead.append(len(read) - len(ahead) * 2 / 3)  # two rows are three pairs
            super().write(example)

    monkeypatch.setattr(data, "ArrowWriter", Watching)
    assert len(start(tmp_path, PairEncoder(tokenizer, SPLIT)).dataset) == len(ahead) == 30
    assert max(ahead) <= 2

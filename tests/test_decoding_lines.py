"""Lines in and out: what is no text is named, and a file that was cut off anywhere goes on without a gap or a double."""

import io
import json
from pathlib import Path

import pytest

from transduct.decoding.lines import Digest, OutputFile, read_lines, skip_done

LINES = [f"line {number}" for number in range(10)]
SETTINGS = {"beams": 4, "pair": (1, 2)}


def test_lines_of_any_ending():
    data = "one\ntwo\r\n\nvier\u2028fünf\x85\x0c\nlast".encode()
    assert list(read_lines(io.BytesIO(data), "x")) == ["one", "two", "", "vier\u2028fünf\x85\x0c", "last"]
    assert list(read_lines(io.BytesIO(b""), "x")) == []
    assert list(read_lines(io.BytesIO("\ufeffone\n\ufefftwo".encode()), "x")) == ["one", "\ufefftwo"]


def test_bytes_that_are_no_text_are_named():
    lines = read_lines(io.BytesIO(b"good\nba\xffd\n"), "in.txt")
    assert next(lines) == "good"
    with pytest.raises(ValueError, match=r"line 2 of in.txt is not UTF-8: byte 0xff at its byte 3"):
        next(lines)


def upper(path, resume: bool, stop_after: int | None = None, settings=SETTINGS, lines=LINES) -> None:
    """A run that writes each line twice, in capitals, three lines at a time, and stops in the middle."""
    file = OutputFile(path, settings, resume)
    reading = iter(lines)
    digest = skip_done(reading, file.done, file.digest, "in.txt")
    done = file.done
    while window := [line for _, line in zip(range(3), reading, strict=False)]:
        if stop_after is not None and done >= stop_after:
            file.close()
            return
        seen = digest.add(window)
        done += len(window)
        file.write([text for line in window for text in (line.upper(), line)], done, seen)
    file.finish()


WHOLE = "".join(f"{line.upper()}\n{line}\n" for line in LINES)


def test_a_run_that_is_not_stopped(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old")
    upper(path, resume=False)
    assert path.read_text() == WHOLE
    assert [each.name for each in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("stop_after", [0, 3, 9])
def test_goes_on_after_a_stop(tmp_path, stop_after):
    path = tmp_path / "out.txt"
    upper(path, resume=True, stop_after=stop_after)
    assert not path.exists()
    upper(path, resume=True)
    assert path.read_text() == WHOLE


def test_goes_on_wherever_the_files_were_cut_off(tmp_path):
    """Of the output and of the journal, any number of bytes may have reached the disk, the output's first."""
    path = tmp_path / "out.txt"
    part, journal = tmp_path / "out.txt.part", tmp_path / "out.txt.part.journal"
    upper(path, resume=False, stop_after=9)
    written, noted = part.read_bytes(), journal.read_bytes()
    entries = [json.loads(line) for line in noted.decode().splitlines()[1:]]
    for cut in range(0, len(noted) + 1, 7):
        kept = noted[:cut]
        whole = kept[: kept.rfind(b"\n") + 1].decode().splitlines()[1:]
        needed = json.loads(whole[-1])["bytes"] if whole else 0
        for more in (0, 1, 5, len(written)):
            for each in (path, part, journal):
                each.unlink(missing_ok=True)
            part.write_bytes(written[: needed + more])
            journal.write_bytes(kept)
            upper(path, resume=True)
            assert path.read_text() == WHOLE
    assert [entry["lines"] for entry in entries] == [3, 6, 9]


@pytest.mark.parametrize("step", ["replace", "unlink"])
def test_goes_on_where_it_was_killed_when_all_was_written(tmp_path, monkeypatch, step):
    """Before the file got its name, or behind that and before the journal was removed."""
    path = tmp_path / "out.txt"
    path.write_text("old")

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(path), step, killed)
        with pytest.raises(KeyboardInterrupt):
            upper(path, resume=False)
    assert (tmp_path / "out.txt.part.journal").exists()
    with pytest.raises(ValueError, match="go on with --resume"):
        upper(path, resume=False)
    assert OutputFile.is_whole(path)
    assert path.read_text() == WHOLE
    assert [each.name for each in tmp_path.iterdir()] == ["out.txt"]
    assert OutputFile.is_whole(path)


def test_an_output_that_was_changed_meanwhile_is_not_gone_on_with(tmp_path):
    path, part = tmp_path / "out.txt", tmp_path / "out.txt.part"
    upper(path, resume=False, stop_after=6)
    before = part.read_bytes()
    for change in (lambda: part.write_bytes(before[:-1]), part.unlink):
        change()
        with pytest.raises(ValueError, match=r"but .*out.txt.part.journal says that 84 were written: delete both to begin anew"):
            upper(path, resume=True)
    part.write_bytes(before)
    upper(path, resume=True)
    assert path.read_text() == WHOLE


def test_only_files_are_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in (tmp_path / "folder", Path("/dev/null"), Path("")):
        with pytest.raises(ValueError, match="is no file that could be replaced"):
            OutputFile(name, SETTINGS, False)
    with pytest.raises(FileNotFoundError):
        OutputFile(tmp_path / "nowhere" / "out.txt", SETTINGS, False)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_what_was_stopped_is_not_overwritten_unasked(tmp_path):
    path = tmp_path / "out.txt"
    upper(path, resume=False, stop_after=3)
    with pytest.raises(ValueError, match=r"out.txt.part is what a run that was stopped has written: go on with --resume"):
        upper(path, resume=False)
    with pytest.raises(ValueError, match=r"was written with beams=4, now it is 5: say the same"):
        upper(path, resume=True, settings=SETTINGS | {"beams": 5})
    with pytest.raises(ValueError, match=r"the first 3 lines of in.txt are not those that were translated before"):
        upper(path, resume=True, lines=["other", *LINES[1:]])
    with pytest.raises(ValueError, match=r"in.txt has 2 lines, but 3 were translated before"):
        upper(path, resume=True, lines=LINES[:2])
    upper(path, resume=True)
    assert path.read_text() == WHOLE


@pytest.mark.parametrize("resume", [False, True])
def test_two_do_not_write_one_file(tmp_path, resume):
    path = tmp_path / "out.txt"
    first = OutputFile(path, SETTINGS, resume=False)
    first.write(["ONE"], 1, "digest")
    with pytest.raises(ValueError, match=r"out.txt.part is being written by another process: wait for it"):
        OutputFile(path, SETTINGS, resume=resume)
    first.write(["TWO"], 2, "digest")
    first.finish()
    assert path.read_text() == "ONE\nTWO\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out.txt"]


def test_what_cannot_be_begun_leaves_nothing(tmp_path):
    (tmp_path / "out.txt.part").mkdir()
    with pytest.raises(OSError, match=r"out\.txt\.part"):
        OutputFile(tmp_path / "out.txt", SETTINGS, resume=False)
    assert [each.name for each in tmp_path.iterdir()] == ["out.txt.part"]


def test_whether_it_is_whole(tmp_path):
    path = tmp_path / "out.txt"
    assert not OutputFile.is_whole(path)
    upper(path, resume=False, stop_after=3)
    assert not OutputFile.is_whole(path)
    upper(path, resume=True)
    assert OutputFile.is_whole(path)


def test_digests_tell_lines_and_their_limits_apart():
    assert Digest().add(["a", "b"]) != Digest().add(["ab", ""])
    assert Digest().add([("a", "b")]) == Digest().add(["a", "b"])
    one = Digest()
    one.add(["a"])
    assert one.add(["b"]) == Digest().add(["a", "b"])

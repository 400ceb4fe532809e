"""Files and folders that are written whole or not at all."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from transduct.files import keep_others_out, reserved, save_whole, write_whole


def writes(text):
    return lambda folder: (Path(folder) / "file").write_text(text)


def fails(*_):
    raise OSError(28, "No space left on device")


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "runs" / "model"
    save_whole(folder, writes("first"))
    with pytest.raises(OSError, match="No space"):
        save_whole(folder, writes("second"), fails)
    assert (folder / "file").read_text() == "first"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    save_whole(folder, writes("third"))
    assert (folder / "file").read_text() == "third"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_what_does_not_reach_the_disk_replaces_nothing(tmp_path, monkeypatch):
    write_whole(tmp_path / "note.json", "first")
    save_whole(tmp_path / "model", writes("first"))
    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "note.json", "second")
    with pytest.raises(OSError, match="No space"):
        save_whole(tmp_path / "model", writes("second"))
    assert (tmp_path / "note.json").read_text() == (tmp_path / "model" / "file").read_text() == "first"
    monkeypatch.undo()
    write_whole(tmp_path / "note.json", "third")
    assert (tmp_path / "note.json").read_text() == "third"
    assert not (tmp_path / "note.json.part").exists()


def test_others_are_kept_out_until_a_file_is_closed(tmp_path):
    path = tmp_path / "file"
    with path.open("a") as first, path.open("a") as second:
        assert keep_others_out(first)
        assert not keep_others_out(second)
        first.close()
        assert keep_others_out(second)


def test_nothing_is_locked_where_that_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", fails)
    with (tmp_path / "file").open("a") as first, (tmp_path / "file").open("a") as second:
        assert keep_others_out(first)
        assert keep_others_out(second)


def test_a_file_that_was_removed_is_not_to_be_had(tmp_path):
    with (tmp_path / "file").open("a") as file:
        (tmp_path / "file").unlink()
        assert not keep_others_out(file)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_reserved_until_it_is_given_back(tmp_path, there):
    folder = tmp_path / "a" / "b"
    if there:
        folder.mkdir(parents=True)
    with reserved(folder):
        with pytest.raises(ValueError, match="b is being written by another process: wait for it"), reserved(folder, seconds=0):
            raise AssertionError("both have it")
        (folder / "file").touch()
    with reserved(folder, seconds=0):
        assert (folder / "file").exists()


def test_a_folder_that_was_made_for_nothing_goes(tmp_path):
    with pytest.raises(OSError, match="No space"), reserved(tmp_path / "folder"):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_waits_for_one_that_is_about_to_be_gone(tmp_path):
    first, done = ExitStack(), []
    first.enter_context(reserved(tmp_path))
    first.callback(done.append, "closed")  # before the folder is given back
    threading.Timer(0.3, first.close).start()
    with reserved(tmp_path):
        assert done == ["closed"]

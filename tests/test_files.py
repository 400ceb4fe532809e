"""Files and folders that are written whole or not at all."""

from pathlib import Path

import pytest

from transduct.files import save_whole, write_whole


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

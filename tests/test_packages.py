"""Missing packages are named, with the extra that has them; and our own is found wherever a program is."""

import subprocess
import sys

import pytest

from ctranslate2_exports import model_of
from transduct.convert import to_ctranslate2


def test_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("transduct.packages.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"to_ctranslate2 needs the package ctranslate2: pip install 'transduct\[ctranslate2\]'"
    ):
        to_ctranslate2(model_of(), None, tmp_path / "out")


def test_a_program_beside_a_clone_finds_the_package(tmp_path):
    """A clone is a folder of the package's name, which Python takes for a package where nothing better is found later."""
    (tmp_path / "transduct").mkdir()
    program = "import importlib.util as util; print(util.find_spec('transduct').origin)"
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("__init__.py"), found.stdout

"""Missing packages are named, with the extra that has them."""

import pytest

from ctranslate2_exports import model_of
from transduct.convert import to_ctranslate2


def test_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("transduct.packages.find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"to_ctranslate2 needs the package ctranslate2: pip install 'transduct\[ctranslate2\]'"
    ):
        to_ctranslate2(model_of(), None, tmp_path / "out")

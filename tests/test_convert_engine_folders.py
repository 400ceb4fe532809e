"""What is written for an engine is there only if the engine agrees."""

import pytest

from ctranslate2_exports import exported_translator, model_of
from transduct.convert import to_ctranslate2
from transduct.convert.engine_folders import Comparison, compare


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exported_translator(tmp_path_factory.mktemp("ctranslate2"))


def test_an_engine_that_disagrees_is_an_error(exported, tmp_path, monkeypatch):
    _, tokenizer, _, engine = exported
    other = model_of(seed=1, vocab_size=len(tokenizer), logits_bias=True, tie_embeddings="none")
    found = compare(other, engine)
    assert not found.agrees
    assert found.largest > 0.1
    assert found.same + found.ties < found.pairs
    assert "scores of two answers that differ" in str(found)
    monkeypatch.setattr("transduct.decoding.engines.load_engine", lambda *_: engine)
    with pytest.raises(ValueError, match="ctranslate2 does not compute what our model does, so nothing was written"):
        to_ctranslate2(other, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_comparison_agrees_within_tolerance_alone():
    close = dict(pairs=2, tokens=9, mean=0.0, scale=3.0, apart=0.0)
    assert Comparison(largest=2e-4, same=1, ties=1, **close).agrees
    assert not Comparison(largest=4e-4, same=2, ties=0, **close).agrees
    assert not Comparison(largest=0.0, same=1, ties=0, **close).agrees
    assert not Comparison(largest=float("inf"), same=2, ties=0, **close).agrees

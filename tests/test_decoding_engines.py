"""Which folders are exports, and of which engine."""

import pytest

import transduct
from configs import words
from ctranslate2_exports import exported_translator


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exported_translator(tmp_path_factory.mktemp("ctranslate2"))


def test_translate_refuses_what_is_no_export(exported, tmp_path):
    model, tokenizer, _, _ = exported
    with pytest.raises(
        ValueError, match=r"was written for no engine: write one with transduct export MODEL OUT --to ctranslate2\|onnx"
    ):
        transduct.translate(str(tmp_path), tokenizer, ["abc"])
    with pytest.raises(ValueError, match="engine='ctranslate2' needs the folder of an exported model"):
        transduct.translate(model, tokenizer, ["abc"], engine="ctranslate2")
    with pytest.raises(ValueError, match="do_sample=True cannot be had"):
        exported[3].generate(words(1, 3), do_sample=True)
    with pytest.raises(ValueError, match="engine='ctranslate2' tells no logits"):
        transduct.score(exported[3], tokenizer, ["abc"], ["abc"])

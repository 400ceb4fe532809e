"""Which folders are exports, and of which engine."""

import pytest
import torch

import transduct
from configs import words
from ctranslate2_exports import exported_translator
from tiny_translation import TEXTS, theirs
from transduct.decoding import int8
from transduct.decoding.engines import load_engine
from transduct.decoding.int8 import Int8Linear


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


def test_an_engine_without_logits_votes_for_nothing_and_guesses_nothing(exported):
    model, tokenizer, _, engine = exported
    with pytest.raises(ValueError, match="ensemble holds a CTranslate2Model, which tells no logits: use a model of torch"):
        transduct.translate(model, tokenizer, ["abc"], ensemble=[engine])
    with pytest.raises(ValueError, match=r"^ensemble cannot be had with engine='ctranslate2'"):
        transduct.translate(engine, tokenizer, ["abc"], ensemble=[model])
    with pytest.raises(
        ValueError, match="draft_model is a CTranslate2Model, which tells no logits: drafts need a model of torch"
    ):
        transduct.translate(model, tokenizer, ["abc"], drafts=engine)


@pytest.fixture
def small_matrices(monkeypatch):
    """Even the matrices of tiny models are replaced."""
    monkeypatch.setattr(int8, "SMALLEST", 1)


@pytest.mark.usefixtures("small_matrices")
def test_int8_of_a_model_and_of_its_folder(exported, tmp_path):
    model, tokenizer, _, _ = exported
    model.save_pretrained(tmp_path)
    loaded = load_engine(tmp_path, "int8")
    assert isinstance(loaded.lm_head, Int8Linear)
    assert loaded.generation_config.pad_token_id == tokenizer.pad_token_id
    options = dict(engine="int8", return_scores=True, max_new_tokens=9)
    wanted = transduct.translate(model, tokenizer, TEXTS, **options)
    assert transduct.translate(str(tmp_path), tokenizer, TEXTS, **options) == wanted
    assert [each.score for each in wanted] != [
        each.score for each in transduct.translate(model, tokenizer, TEXTS, return_scores=True, max_new_tokens=9)
    ]


@pytest.mark.usefixtures("small_matrices")
def test_int8_of_other_models_than_ours(exported, tmp_path):
    model = theirs("marian", exported[1])
    model.save_pretrained(tmp_path)
    texts = [transduct.translate(each, exported[1], TEXTS, engine="int8", max_new_tokens=9) for each in (model, tmp_path)]
    assert texts[0] == texts[1]
    assert type(model.lm_head) is torch.nn.Linear


def test_int8_refuses(exported, tmp_path):
    _, tokenizer, folder, engine = exported
    with pytest.raises(ValueError, match="was written for ctranslate2, whose weights stay as they were exported: leave int8 out"):
        transduct.translate(folder, tokenizer, ["abc"], engine="int8")
    with pytest.raises(ValueError, match="engine='int8' computes on a CPU, not on cuda:0"):
        load_engine(tmp_path, "int8", torch.device("cuda:0"))
    with pytest.raises(ValueError, match="int8 computes on a CPU, not on meta"):
        transduct.translate(theirs("t5", tokenizer).to("meta"), tokenizer, ["abc"], engine="int8")
    with pytest.raises(ValueError, match=r"there is no folder '\./nowhere'"):
        load_engine("./nowhere", "int8")
    with pytest.raises(ValueError, match=r"checkpoint's folder, not a CTranslate2Model"):
        transduct.translate(engine, tokenizer, ["abc"], engine="int8")

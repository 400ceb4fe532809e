"""The program in a model card runs, for every kind of model."""

import contextlib
import io

import pytest

from configs import build, tiny
from tiny_translation import tiny_translation
from transduct import TransductTokenizer, modeling
from transduct.configuration import AUTO_MAP
from transduct.hub import facts_of
from transduct.hub.snippets import AUTO_CLASSES, example, snippet


def printed(code: str) -> str:
    """What a program prints, with the code in its own names."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
    return out.getvalue().strip()


def test_every_class_is_loaded_by_an_auto_class():
    assert set(AUTO_CLASSES) == {reference.split(".")[1] for reference in AUTO_MAP.values()}


@pytest.mark.parametrize("model_class", modeling.__all__)
def test_text(model_class, tmp_path):
    """As without the package: the class is that of the code in the folder."""
    tokenizer = TransductTokenizer.train(iter(["abc def H!elo"]), kind="chars")
    tokenizer.save_pretrained(tmp_path)
    build(getattr(modeling, model_class), tiny(vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    code = snippet(facts_of(tmp_path), str(tmp_path))
    assert "trust_remote_code=True" in code
    assert printed(code) or model_class in ("TransductForConditionalGeneration", "TransductForCausalLM")


def test_a_source_of_the_recipe_behind_its_prefix(tmp_path):
    model, tokenizer = tiny_translation()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(
        "data: {test: {source_prefix: 'abc: '}}\nevaluation: {inputs: ['what''s \"here\"?', b]}\n"
    )
    facts = facts_of(tmp_path / "model")
    assert example(facts) == 'abc: what\'s "here"?'
    code = snippet(facts, str(tmp_path / "model"))
    assert repr(example(facts)) in code
    ids = model.generate(**tokenizer([example(facts)], return_tensors="pt"), max_new_tokens=64)
    assert printed(code) == tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip()


def test_languages(tmp_path):
    """Their tokens are this package's business, so that it translates."""
    tokenizer = TransductTokenizer.train(iter(["abc def H!elo"]), kind="chars", languages=("de", "en"))
    model = build(modeling.TransductForConditionalGeneration, tiny(vocab_size=len(tokenizer)))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text("data: {test: {target_language: de}}\n")
    code = snippet(facts_of(tmp_path / "model"), str(tmp_path / "model"))
    assert code.startswith("import transduct")
    assert "tgt_lang='de'" in code
    printed(code)


@pytest.mark.parametrize("model_class", ["TransductForConditionalGeneration", "TransductEncoderModel"])
def test_ids_where_there_is_no_tokenizer(model_class, tmp_path):
    build(getattr(modeling, model_class), tiny()).save_pretrained(tmp_path)
    assert printed(snippet(facts_of(tmp_path), str(tmp_path)))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"feature_layout": "channels_first", "feature_stem": "conv"},
        {"feature_layout": "channels_first", "feature_stem": "conv", "feature_padding": "seen", "positions": "learned"},
    ],
    ids=str,
)
@pytest.mark.parametrize("model_class", ["TransductForConditionalGeneration", "TransductModel", "TransductEncoderModel"])
def test_features(fields, model_class, tmp_path):
    config = tiny(encoder_input="features", feature_size=5, tie_embeddings="target_output", **fields)
    build(getattr(modeling, model_class), config).save_pretrained(tmp_path)
    assert printed(snippet(facts_of(tmp_path), str(tmp_path)))

"""Each id has a string of its own, whatever the tokenizer."""

import pytest
from transformers import AutoTokenizer

from ctranslate2_exports import model_of
from tiny_tokenizers import write_tokenizer
from tiny_translation import tiny_translation
from transduct.convert import to_ctranslate2
from transduct.decoding.engines import load_engine


@pytest.mark.parametrize("name", ["t5", "byt5", "bart", "marian", "marian of two vocabularies", "m2m_100", "nllb", "mbart"])
def test_tokenizers_of_other_families(name, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path / "tokenizer"))
    size = 3 + max([*tokenizer.get_vocab().values(), *getattr(tokenizer, "lang_token_to_id", {}).values()])
    size_of_target = len(tokenizer.target_encoder) if "two" in name else 0
    two = dict(decoder_vocab_size=size_of_target + 2, tie_embeddings="none") if size_of_target else {}
    model = model_of(vocab_size=size, **two, pad_token_id=None, eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=3)
    to_ctranslate2(model, tokenizer, tmp_path / "out")
    engine = load_engine(tmp_path / "out")
    ids = tokenizer("a word")["input_ids"]
    if "two" in name:  # whose convert_ids_to_tokens reads SentencePiece's ids
        assert [tokenizer.encoder[engine.source_tokens[token]] for token in ids] == ids
        assert [tokenizer.target_encoder[token] for token in engine.target_tokens[:-2]] == list(range(size_of_target))
    else:
        assert [engine.source_tokens[token] for token in ids] == tokenizer.convert_ids_to_tokens(ids)
    assert engine.source_tokens[-1] == f"<unused_{size - 1}>"
    assert len(engine.target_tokens) == model.config.resolved_decoder_vocab_size


def test_a_tokenizer_that_does_not_fit(tmp_path):
    _, tokenizer = tiny_translation()
    with pytest.raises(ValueError, match=f"ids up to {len(tokenizer) - 1} for the target, but the model only 23 embeddings"):
        to_ctranslate2(model_of(), tokenizer, tmp_path / "out")

"""Alignments from cross-attention: words and tokens of every kind of tokenizer, and a reversing model's anti-diagonal."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from tiny_tokenizers import write_tokenizer
from tiny_translation import tiny_translation
from transduct import TransductTokenizer, translate
from transduct.decoding.alignments import (
    AlignmentOptions,
    attended,
    pairs,
    pharaoh,
    source_units,
    target_units,
    with_unknown_replaced,
)
from transduct.decoding.cross_attention import mean_attention

TEXT = "The field, of course; is  valid"


def test_pairs_are_sorted_and_said_once():
    found = pairs([0, 0, 1, None, 2], [0, 1, 1, 1, None, 2], [4, 0, 1, 2, 2, 3])
    assert found == ((0, 1), (1, 1), (2, 0))
    assert pharaoh(found) == "0-1 1-1 2-0"
    assert pharaoh(()) == ""


@pytest.mark.parametrize("name", ["t5", "bart", "marian", "m2m_100", "nllb", "mbart50", "byt5"])
def test_words_of_every_tokenizer(name, tmp_path):
    """All tokens of a text together are its words in order, and a prefix belongs to none of them."""
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(name, tmp_path))
    ids = tokenizer(TEXT)["input_ids"]
    words = [word for word in source_units(tokenizer, TEXT, 0, ids, "words") if word is not None]
    assert sorted(set(words)) == list(range(len(TEXT.split())))
    assert words == sorted(words)
    prefix = "do it: "
    own = tokenizer(prefix + TEXT)["input_ids"]
    of_text = [word for word in source_units(tokenizer, prefix + TEXT, len(prefix), own, "words") if word is not None]
    assert sorted(set(of_text)) == list(range(len(TEXT.split())))
    tokens = [number for number in source_units(tokenizer, TEXT, 0, ids, "tokens") if number is not None]
    assert tokens == list(range(len(tokens)))
    assert len(tokens) == len(ids) - sum(token in tokenizer.all_special_ids for token in ids)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "chars", "words"])
def test_words_of_a_target(kind):
    size = None if kind in ("chars", "words") else 320
    tokenizer = TransductTokenizer.train(iter([TEXT, "The field is valid", "ärger über Öl"]), kind=kind, vocab_size=size)
    for text in ("The field is  valid", "ärger über Öl"):
        ids = tokenizer(text_target=text)["input_ids"]
        words = target_units(tokenizer, ids, "words")
        assert words[-1] is None  # the end
        found = [word for word in words if word is not None]
        assert sorted(set(found)) == list(range(len(text.split())))
        assert found == sorted(found)
        assert target_units(tokenizer, ids, "tokens") == [*range(len(ids) - 1), None]


def test_unknown_tokens_are_words_where_something_stands_for_them():
    tokenizer = TransductTokenizer.train(iter(["the field is valid"]), kind="words")
    ids = tokenizer(text_target="the Xyz is")["input_ids"]
    assert target_units(tokenizer, ids, "words") == [0, None, 1, None]
    assert target_units(tokenizer, ids, "words", with_unknown=True) == [0, 1, 2, None]


def test_unknown_tokens_are_replaced_by_the_aligned_word():
    tokenizer = TransductTokenizer.train(iter(["the field is valid"]), kind="words")
    ids = tokenizer(text_target="the Xyz is Qq")["input_ids"]
    assert ids.count(tokenizer.unk_token_id) == 2
    text = with_unknown_replaced(tokenizer, "das Feld ist gültig", ids, [0, 1, 2, 3, None], [0, 1, 2, 3, 4])
    assert text == "the Feld is gültig"
    kept = with_unknown_replaced(tokenizer, "das Feld ist gültig", ids, [0, 1, 2, 3, None], [0, 4, 2, 3, 4])
    assert kept == "the <unk> is gültig"


def test_layers_and_heads():
    layers = [torch.rand(2, 3, 4, 5) for _ in range(2)]
    assert torch.equal(mean_attention(layers, -1), layers[1].mean(1))
    assert torch.equal(mean_attention(layers, 0, [2]), layers[0][:, 2])
    assert torch.allclose(mean_attention(layers, 1, [0, 2]), (layers[1][:, 0] + layers[1][:, 2]) / 2)
    for layer, heads, message in (
        (2, None, "attention layer 2 is not there: the decoder has 2"),
        (-3, None, "attention layer -3"),
        (0, [3], "attention head 3 is not there: a layer has 3"),
        (0, [], "an empty list"),
    ):
        with pytest.raises(ValueError, match=message):
            mean_attention(layers, layer, heads)
    with pytest.raises(ValueError, match="alignments='lines' must be 'words' or 'tokens'"):
        AlignmentOptions("lines")


def test_only_usable_tokens_are_chosen_and_the_attention_is_the_models():
    model, _ = tiny_translation()
    source = torch.tensor([[5, 6, 7, 8, 1], [9, 10, 11, 1, 0]])
    mask = (source != 0).long()
    usable = torch.tensor([[False, True, True, True, False], [True, False, True, False, False]])
    targets = [[5, 6, 1], [7, 1]]
    inputs = {"input_ids": source, "attention_mask": mask}
    chosen = attended(model, inputs, usable, targets, 2, AlignmentOptions("tokens", layer=0, heads=[1]))
    assert [len(row) for row in chosen] == [3, 2]
    begun = torch.tensor([[2, 5, 6], [2, 7, 0]])
    with torch.no_grad():
        weights = model(**inputs, decoder_input_ids=begun, output_attentions=True).cross_attentions[0][:, 1]
    for row, target in enumerate(targets):
        for step in range(len(target)):
            own = {place: weights[row, step, place].item() for place in usable[row].nonzero().flatten().tolist()}
            assert chosen[row][step] == max(own, key=own.get)
    assert model.config._attn_implementation == "sdpa"  # as it was


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_move_alignments(side):
    model, tokenizer = tiny_translation()
    tokenizer.padding_side = side
    texts = ["abc de", "hello there you all.", "x y z"]
    options = dict(return_alignments="tokens", max_length_by_source=(1, 0), num_beams=2, num_return_sequences=2)
    together = translate(model, tokenizer, texts, **options)
    for text, found in zip(texts, together, strict=True):
        (alone,) = translate(model, tokenizer, [text], **options)
        assert [each.alignment for each in found] == [each.alignment for each in alone]
        letters = len(text)  # of source tokens, none is the end
        assert all(source < letters for each in found for source, _ in each.alignment)
        assert any(each.alignment for each in found)


@pytest.mark.slow
def test_a_model_that_reverses_aligns_along_the_anti_diagonal():
    specification = importlib.util.spec_from_file_location("reversal", Path(__file__).parents[1] / "examples" / "reversal.py")
    reversal = importlib.util.module_from_spec(specification)
    sys.modules["reversal"] = reversal
    specification.loader.exec_module(reversal)
    torch.manual_seed(0)
    model = reversal.small_model("sinusoidal")
    reversal.train(model, 400, 64, 100, torch.Generator().manual_seed(0))
    model.eval()
    sources, targets = reversal.examples(100, torch.Generator().manual_seed(1))
    options = AlignmentOptions("tokens")
    chosen = attended(model, {"input_ids": sources}, sources != reversal.END, targets.tolist(), reversal.PAD, options)
    right = torch.tensor(chosen)[:, :-1] == torch.arange(9, -1, -1)
    assert right.float().mean() > 0.99

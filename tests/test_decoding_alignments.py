"""Alignments from cross-attention: words and tokens of every kind of tokenizer, and a reversing model's anti-diagonal."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from configs import build, tiny
from tiny_tokenizers import write_tokenizer
from tiny_translation import tiny_translation
from transduct import TransductForConditionalGeneration, TransductTokenizer, translate
from transduct.cli.main import run
from transduct.decoding import beam_search
from transduct.decoding.alignments import (
    AlignmentOptions,
    attended,
    pairs,
    pharaoh,
    source_units,
    target_units,
    with_unknown_replaced,
)
from transduct.decoding.attention_maps import attention_map
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


CHOICES = [(None, None), (0, None), (0, [1]), (1, [2]), (-2, [0, 3])]
"""Layers and heads; the model has two layers of four heads."""


def test_translate_reads_the_layer_and_the_heads_that_it_is_told():
    model, tokenizer = tiny_translation()
    text = "hello there you"
    found = {}
    for layer, heads in CHOICES:
        options = dict(return_alignments="tokens", alignment_layer=layer, alignment_heads=heads, max_length_by_source=(1, 0))
        (each,) = translate(model, tokenizer, [text], **options)
        weights = attention_map(model, tokenizer, text, each.token_ids).mean(-1 if layer is None else layer, heads)  # (T, S)
        chosen = weights[:, : len(text)].argmax(-1).tolist()  # no letter is aligned with the end of the source
        letters = [place for place, token in enumerate(each.token_ids) if token != tokenizer.eos_token_id]
        assert each.alignment == tuple(sorted((chosen[place], place) for place in letters))
        found[str((layer, heads))] = each.alignment
    assert len(set(found.values())) == len(CHOICES)  # no two of them are alike here


def test_unknown_words_are_those_that_the_chosen_heads_look_at():
    """The model writes nothing but unknown words."""
    tokenizer = TransductTokenizer.train(iter(["red green blue"]), kind="words")
    model = build(TransductForConditionalGeneration, tiny(vocab_size=len(tokenizer), logits_bias=True), dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.unk_token_id] = 1e4
    source = "red mauve green pink blue"
    texts = set()
    for layer, heads in CHOICES:
        options = dict(replace_unknown=True, return_scores=True, alignment_layer=layer, alignment_heads=heads)
        (found,) = translate(model, tokenizer, [source], num_beams=1, max_length_by_source=(0, 4), **options)
        weights = attention_map(model, tokenizer, source, found.token_ids).mean(-1 if layer is None else layer, heads)  # (4, 6)
        assert found.text.split() == [source.split()[place] for place in weights[:, :5].argmax(-1).tolist()]
        assert found.alignment is None
        texts.add(found.text)
    assert len(texts) > 1


# ---- what a search looked at --------------------------------------------------------------------------------------
def recorded(model, inputs, layer: int, **options):
    """Hypotheses of each source, tokens -> weights (T, S) of a layer's cross-attention as each token was chosen.

    They are taken from the passes of the search itself, and followed along the beams that an observer is shown.
    """
    told: list[torch.Tensor] = []
    steps: list[Any] = []
    hook = model.register_forward_hook(
        lambda module, args, output: told.append(output.cross_attentions[layer][:, :, -1].mean(1))  # (B*N, S)
    )
    options |= dict(observer=steps.append, coverage_penalty=1e-12)  # coverage lets each step tell its attention
    model.generate(**inputs, custom_generate=beam_search, **options)
    hook.remove()
    sources, beams = len(inputs["input_ids"]), options["num_beams"]
    assert len(told) == len(steps) > 1
    running = {source: [((), ())] * beams for source in range(sources)}
    found: dict[int, dict[tuple[int, ...], torch.Tensor]] = {source: {} for source in range(sources)}
    for weights, step in zip(told, steps, strict=True):
        for row, source in enumerate(step.sources.tolist()):
            every = []
            for origin, token in zip(step.origins[row].tolist(), step.tokens[row].tolist(), strict=True):
                ids, seen = running[source][origin] if origin < len(running[source]) else ((), ())  # of no beam that is there
                every.append(((*ids, token), (*seen, weights[row * beams + origin])))
            found[source] |= {ids: torch.stack(seen) for (ids, seen), end in zip(every, step.ended[row], strict=True) if end}
            running[source] = [every[place] for place in step.kept[row].tolist() if place >= 0]
    return found


@pytest.mark.parametrize("layer", [0, 1])
def test_alignments_are_what_the_search_looked_at(layer):
    """A pass over a hypothesis that is given sees the attention that the search paid along its surviving beam."""
    model, tokenizer = tiny_translation(end=1.0)
    texts = ["abc de", "hello there you all.", "x y z"]
    options = dict(num_beams=3, num_return_sequences=3, max_new_tokens=9)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    paid = recorded(model, dict(inputs), layer, **options)
    together = translate(model, tokenizer, texts, return_alignments="tokens", alignment_layer=layer, **options)
    for source, (text, hypotheses) in enumerate(zip(texts, together, strict=True)):
        for each in hypotheses:
            weights = paid[source][each.token_ids][:, : len(text) + 1]  # (T, S), without padding
            torch.testing.assert_close(weights, attention_map(model, tokenizer, text, each.token_ids).mean(layer))
            chosen = weights[:, : len(text)].argmax(-1).tolist()
            letters = [place for place, token in enumerate(each.token_ids) if token != tokenizer.eos_token_id]
            assert each.alignment == tuple(sorted((chosen[place], place) for place in letters))
    assert any(len(each.token_ids) > 3 for hypotheses in together for each in hypotheses)


# ---- a model that reverses ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def reversal(tmp_path_factory):
    """The example, its model when it has learnt to reverse, a tokenizer whose words are its symbols, and a folder of both."""
    specification = importlib.util.spec_from_file_location("reversal", Path(__file__).parents[1] / "examples" / "reversal.py")
    example = importlib.util.module_from_spec(specification)
    sys.modules["reversal"] = example
    specification.loader.exec_module(example)
    tokenizer = TransductTokenizer.train(iter([" ".join("abcdefghijklmnop"[: example.SYMBOLS])]), kind="words")
    example.FIRST_SYMBOL = tokenizer.unk_token_id + 1  # behind the tokenizer's own
    assert len(tokenizer) == example.FIRST_SYMBOL + example.SYMBOLS
    torch.manual_seed(0)
    model = example.small_model("sinusoidal")
    example.train(model, 400, 64, 100, torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("reversal")
    for part in (model.eval(), tokenizer):
        part.save_pretrained(folder)
    return example, model, tokenizer, folder


@pytest.mark.slow
def test_a_model_that_reverses_aligns_along_the_anti_diagonal(reversal):
    example, model, _, _ = reversal
    sources, targets = example.examples(100, torch.Generator().manual_seed(1))
    options = AlignmentOptions("tokens")
    chosen = attended(model, {"input_ids": sources}, sources != example.END, targets.tolist(), example.PAD, options)
    right = torch.tensor(chosen)[:, :-1] == torch.arange(9, -1, -1)
    assert right.float().mean() > 0.99


@pytest.mark.slow
def test_alignments_of_its_translations_are_the_anti_diagonal(reversal, tmp_path):
    """By `translate` and by the command, in Pharaoh's form."""
    example, model, tokenizer, folder = reversal
    sources, targets = example.examples(100, torch.Generator().manual_seed(2))
    texts, wanted = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (sources, targets))
    found = translate(model, tokenizer, texts, return_alignments=True)
    right = [each for each, text in zip(found, wanted, strict=True) if each.text == text]
    assert len(right) >= 99
    pairs_of = [pair for each in right for pair in each.alignment]
    assert sum(source == 9 - target for source, target in pairs_of) > 0.99 * len(pairs_of)
    assert {target for _, target in pairs_of} == set(range(10))
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    arguments = ["translate", str(folder), "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    assert run([*arguments, "--alignments", "words"]) == 0
    lines = [line.split("\t") for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert [text for text, _ in lines] == [each.text for each in found]
    assert sum(written == "0-9 1-8 2-7 3-6 4-5 5-4 6-3 7-2 8-1 9-0" for _, written in lines) > 90

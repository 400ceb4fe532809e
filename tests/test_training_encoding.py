"""From rows to ids: limits, what stands around a text, and documents cut to length."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from tiny_tokenizers import write_tokenizer
from transduct.tokenization import TransductTokenizer
from transduct.training.encoding import DocumentEncoder, KeepTexts, PairEncoder, in_pieces, tokenizer_key, tokens_around
from transduct.training.reading import BadRow, Row
from transduct.training.recipe import SplitSource

ROWS = [
    Row("ab", ("A B",), "s:1", "t:1"),
    Row("ba, c", ("B A", "B"), "s:2", "t:2"),
    Row("c", ("C",), "s:3", "t:3"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return TransductTokenizer.train(
        iter("abc ,"), "chars", target=iter(["A B C"]), target_kind="words", special_tokens=["<BT>"], languages=["de", "__en__"]
    )


@pytest.fixture(scope="module")
def shared():
    return TransductTokenizer.train(iter(["abcdefghij"]), "chars")


def ids(tokenizer, *tokens: str) -> list[int]:
    return tokenizer.convert_tokens_to_ids(list(tokens))


def test_training_uses_every_target(tokenizer):
    examples = list(PairEncoder(tokenizer, SplitSource())(ROWS))
    assert [tokenizer.decode(e["labels"], skip_special_tokens=True) for e in examples] == ["A B", "B A", "B", "C"]
    assert examples[1]["input_ids"] == examples[2]["input_ids"] == tokenizer("ba, c")["input_ids"]
    assert set(examples[0]) == set(PairEncoder(tokenizer, SplitSource()).features) == {"input_ids", "labels"}


def test_texts_are_kept_where_they_are_needed(tokenizer):
    encoder = PairEncoder(tokenizer, SplitSource(), keep_texts="all")
    examples = list(encoder(ROWS))
    assert [(e["source"], e["targets"]) for e in examples] == [(row.source, list(row.targets)) for row in ROWS]
    assert [tokenizer.decode(e["labels"], skip_special_tokens=True) for e in examples] == ["A B", "B A", "C"]
    assert set(encoder.features) == set(examples[0])
    encoder = PairEncoder(tokenizer, SplitSource(), keep_texts="pair")
    assert [(e["source"], e["target"]) for e in encoder(ROWS)] == [("ab", "A B"), ("ba, c", "B A"), ("ba, c", "B"), ("c", "C")]
    assert set(encoder.features) == {"input_ids", "labels", "source", "target"}
    assert list(KeepTexts()(ROWS[1:2])) == [{"source": "ba, c", "targets": ["B A", "B"]}]


def test_rows_that_are_too_long_are_named_by_their_side(tokenizer):
    found = list(PairEncoder(tokenizer, SplitSource(), max_source_tokens=5, max_target_tokens=2)(ROWS))
    assert [str(row) for row in found if isinstance(row, BadRow)] == [
        "t:1: the target has 3 tokens, more than data.max_target_tokens=2",
        "s:2: the source has 6 tokens, more than data.max_source_tokens=5",
        "s:2: the source has 6 tokens, more than data.max_source_tokens=5",
    ]
    assert [row.reason for row in found if isinstance(row, BadRow)] == ["long target", "long source", "long source"]
    assert found[3]["input_ids"] == tokenizer("c")["input_ids"]


def test_longer_texts_are_cut_before_what_ends_them(tokenizer):
    split = SplitSource(source_prefix="a", tag="<BT>", target_language="de", target_language_in="target")
    limits = dict(max_source_tokens=4, max_target_tokens=3)
    whole = list(PairEncoder(tokenizer, split)(ROWS))
    cut = list(PairEncoder(tokenizer, split, **limits, truncate="both")(ROWS))
    for before, after in zip(whole, cut, strict=True):
        for side, limit in (("input_ids", 4), ("labels", 3)):
            ids = before[side]
            assert after[side] == (ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]])
    assert any(len(example["input_ids"]) == 4 for example in cut)
    targets_too_long = list(PairEncoder(tokenizer, split, **limits, truncate="source")(ROWS))
    assert [isinstance(row, BadRow) for row in targets_too_long] == [len(example["labels"]) > 3 for example in whole]
    assert PairEncoder(tokenizer, split, **limits, truncate="source").encode_sources(["ba, c"]) == [cut[1]["input_ids"]]


def test_cutting_is_part_of_the_key_and_leaves_no_trace(tokenizer):
    plain, cutting = (PairEncoder(tokenizer, SplitSource(), max_source_tokens=4, truncate=cut) for cut in (None, "source"))
    before = plain.key()
    assert cutting.key() != before
    list(cutting(ROWS))
    assert plain.key() == before


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    """Tokenizers that put languages themselves: NLLB's and M2M100's before a text, mBART's behind it."""
    root = tmp_path_factory.mktemp("translators")
    return {name: AutoTokenizer.from_pretrained(write_tokenizer(name, root / name)) for name in ("nllb", "m2m_100", "mbart")}


@pytest.mark.parametrize(
    ("name", "source", "target", "tokens"),
    [("nllb", "hin_Deva", "zho_Hans", ["hin_Deva", "zho_Hans"]), ("m2m_100", "fr", "zh", ["__fr__", "__zh__"])],
)
def test_a_tokenizer_that_puts_languages_itself_is_told_them(translators, name, source, target, tokens):
    tokenizer = translators[name]
    there = SplitSource(source_language=source, target_language=target, target_language_in="target")
    back = SplitSource(source_language=target, target_language=source, target_language_in="target")
    encoders = [PairEncoder(tokenizer, split) for split in (there, back)]  # which share it
    for encoder, (first, second) in zip(encoders, (tokens, tokens[::-1]), strict=True):
        (example,) = encoder(ROWS[:1])
        bare, end = tokenizer("ab", add_special_tokens=False)["input_ids"], [tokenizer.eos_token_id]
        assert example["input_ids"] == encoder.encode_sources(["ab"])[0] == ids(tokenizer, first) + bare + end
        assert example["labels"][:1] == ids(tokenizer, second) == [encoder.first_target_token]
        assert example["labels"].count(encoder.first_target_token) == 1
    assert encoders[0].key() != encoders[1].key()
    assert PairEncoder(tokenizer, SplitSource()).first_target_token is None


def test_languages_that_such_a_tokenizer_cannot_put(translators):
    with pytest.raises(ValueError, match="source_language='klingon': the tokenizer has no token <2klingon> or klingon"):
        PairEncoder(translators["nllb"], SplitSource(source_language="klingon"))
    with pytest.raises(ValueError, match=r"target_language_in='source': NllbTokenizer puts .* write target_language_in: target"):
        PairEncoder(translators["nllb"], SplitSource(target_language="deu_Latn"))


def test_a_language_behind_the_target_is_what_the_decoder_starts_from(translators):
    tokenizer = translators["mbart"]
    encoder = PairEncoder(tokenizer, SplitSource(target_language="de_DE", target_language_in="target"))
    (example,) = encoder(ROWS[:1])
    assert example["labels"][-2:] == ids(tokenizer, "</s>", "de_DE")
    assert [encoder.start_token] == ids(tokenizer, "de_DE")
    assert encoder.first_target_token is None
    assert PairEncoder(tokenizer, SplitSource()).start_token is None
    nllb = PairEncoder(translators["nllb"], SplitSource(target_language="deu_Latn", target_language_in="target"))
    assert nllb.start_token is None


def test_the_key_of_a_tokenizer_without_a_backend(translators, tmp_path):
    tokenizer = translators["m2m_100"]
    key = tokenizer_key(tokenizer)
    assert tokenizer_key(AutoTokenizer.from_pretrained(write_tokenizer("m2m_100", tmp_path), src_lang=tokenizer.src_lang,
                                                       tgt_lang=tokenizer.tgt_lang)) == key  # fmt: skip
    tokenizer.add_tokens(["<BT>"])
    assert tokenizer_key(tokenizer) != key


def test_what_stands_before_a_text(tokenizer):
    split = SplitSource(source_prefix="b: ", tag="<BT>", source_language="en", target_language="de")
    encoder = PairEncoder(tokenizer, split)
    (example,) = encoder(ROWS[:1])
    expected = ids(tokenizer, "<BT>", "<2de>", "__en__") + tokenizer("b: ab")["input_ids"]
    assert example["input_ids"] == encoder.encode_sources(["ab"])[0] == expected
    assert example["labels"] == tokenizer(text_target="A B")["input_ids"]
    assert PairEncoder(tokenizer, split).first_target_token is None
    split.target_language_in = "target"
    (example,) = PairEncoder(tokenizer, split)(ROWS[:1])
    assert example["input_ids"] == ids(tokenizer, "<BT>", "__en__") + tokenizer("b: ab")["input_ids"]
    with tokenizer.as_target():
        language = ids(tokenizer, "<2de>")
    assert example["labels"] == language + tokenizer(text_target="A B")["input_ids"]
    assert [PairEncoder(tokenizer, split).first_target_token] == language
    too_long = list(PairEncoder(tokenizer, split, max_source_tokens=7)(ROWS[:1]))  # all of it counts
    assert "the source has 8 tokens" in str(too_long[0])


def test_aligned_words_as_positions_of_tokens(tokenizer):
    split = SplitSource(json="x", alignment_field="al", tag="<BT>", target_language="de", target_language_in="target")
    encoder = PairEncoder(tokenizer, split)
    rows = [
        Row("ab c", ("A B",), "s:1", "t:1", "0-1 1-0"),
        Row("ab", ("A",), "s:2", "t:2", "1-0"),
        Row("a", ("A",), "s:3", "t:3", ""),
    ]
    example, bad, without = encoder(rows)
    assert set(example) == set(encoder.features)
    source = tokenizer.convert_ids_to_tokens(example["input_ids"])
    with tokenizer.as_target():
        target = tokenizer.convert_ids_to_tokens(example["labels"])
    assert [(source[i], target[j]) for i, j in example["alignments"]] == [("a", "B"), ("b", "B"), ("c", "A")]
    assert str(bad).startswith("s:2: the alignment '1-0' names word 1 of the source 'ab'")
    assert bad.reason == "alignment"
    assert without["alignments"] == []


def test_tokens_that_the_tokenizer_lacks(tokenizer):
    with pytest.raises(ValueError, match=r"tag='<XT>': the tokenizer has no token <XT>. Train it with tokenizer.special_tokens"):
        PairEncoder(tokenizer, SplitSource(tag="<XT>"))
    with pytest.raises(
        ValueError, match=r"source_language='fr': the tokenizer has no token <2fr> or fr or __fr__. Train it with"
    ):
        PairEncoder(tokenizer, SplitSource(source_language="fr"))


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("text_tokens", [2, 3, 4, 100])
def test_documents_are_cut_and_nothing_is_lost(shared, join, text_tokens, monkeypatch):
    monkeypatch.setattr("transduct.training.encoding.ROWS_AT_ONCE", 2)  # a text may go on beyond what is tokenised at once
    documents = ["abcdefg", "hi", "j", "abc", "defghij"]
    texts = [e["input_ids"] for e in DocumentEncoder(shared, text_tokens, join)([Row(d, (), "", "") for d in documents])]
    assert all(text[-1] == shared.eos_token_id for text in texts)
    bodies = [shared.decode(text[:-1]) for text in texts]
    if join:
        whole = "".join(documents)
        assert bodies == [whole[i : i + text_tokens] for i in range(0, len(whole), text_tokens)]
    else:
        assert bodies == [d[i : i + text_tokens] for d in documents for i in range(0, len(d), text_tokens)]


def test_tokens_around_a_text(shared):
    assert tokens_around(shared) == ([], [shared.eos_token_id])
    with_start = TransductTokenizer.train(iter(["ab"]), "chars", bos_token="<s>", source_prefix=["<s>"])
    assert tokens_around(with_start) == ([with_start.bos_token_id], [with_start.eos_token_id])
    (example,) = DocumentEncoder(with_start, 5, join=True)([Row("ab", (), "", "")])
    assert example["input_ids"] == with_start("ab")["input_ids"]


def test_the_key_knows_all_that_changes_the_ids(tokenizer):
    first = tokenizer_key(tokenizer)
    assert tokenizer_key(tokenizer) == first
    tokenizer.target_prefix = ["<2de>"]
    assert tokenizer_key(tokenizer) != first
    tokenizer.target_prefix = []
    assert tokenizer_key(tokenizer) == first
    keys = [
        PairEncoder(tokenizer, SplitSource(**split), *limits).key()
        for split, limits in (({}, ()), ({}, (3,)), ({}, (None, 3)), ({"tag": "<BT>"}, ()), ({"source_prefix": "a"}, ()))
    ]
    assert len({repr(key) for key in keys}) == 5


def test_pieces():
    assert list(in_pieces(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_pieces([], 2)) == []
    assert np.array(list(in_pieces(range(4), 2))).shape == (2, 2)

"""Learning vocabularies: what goes in, what is refused, and that the same text gives the same ids."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from transduct.tokenization import TransductTokenizer

TEXTS = ["the cat sat on the mat", "a dog ran far away", "and then the dog sat", "café straße . , ! ?"]
KINDS = {"bpe": 90, "byte_bpe": 300, "unigram": 90, "chars": None, "words": None}
train = TransductTokenizer.train


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_special_tokens_then_pieces_then_sentinels(kind):
    tokenizer = train(iter(TEXTS), kind, KINDS[kind], extra_ids=3, languages=("de", "__fr__"), special_tokens=("[NLU]",))
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert tokens[:6] == ["<pad>", "</s>", "<unk>", "<2de>", "__fr__", "[NLU]"]
    assert tokens[-3:] == ["<extra_id_2>", "<extra_id_1>", "<extra_id_0>"]
    assert len(set(tokens)) == len(tokens) == tokenizer.vocab_size
    assert KINDS[kind] is None or len(tokens) <= KINDS[kind]


def test_begin_and_mask_tokens_come_right_after_unk():
    tokenizer = train(iter(TEXTS), "chars", bos_token="<s>", mask_token="<mask>", languages=["de"])
    assert (tokenizer.bos_token_id, tokenizer.mask_token_id, tokenizer.convert_tokens_to_ids("<2de>")) == (3, 4, 5)
    assert train(iter(TEXTS), "chars").bos_token is None


def test_the_same_text_gives_the_same_files_in_any_process(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfrom transduct.tokenization import TransductTokenizer as T\n"
        "words = [a + b + c for a in 'abé' for b in 'cde' for c in 'fgh']  # nothing but ties\n"
        f"for kind, size in {KINDS}.items():\n"
        "    T.train(iter([' '.join(words)]), kind, size and size - 20).save_pretrained(sys.argv[1] + kind)\n"
    )
    for run, threads in enumerate(("1", "2")):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": str(run)}
        environment |= {"RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        subprocess.run([sys.executable, script, tmp_path / f"{run}-"], check=True, env=environment)
    for kind in KINDS:
        first, second = ((tmp_path / f"{run}-{kind}" / "tokenizer.json").read_text() for run in range(2))
        assert first == second, kind


def test_characters_and_words_go_by_frequency_and_ties_by_code_point():
    tokens = train(iter(["bbb aa é c"]), "chars").convert_ids_to_tokens(range(3, 8))
    assert tokens == [" ", "b", "a", "c", "é"]
    assert train(iter(["T AE", "K T"]), "words").convert_ids_to_tokens(range(3, 6)) == ["T", "AE", "K"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "chars", "words", "byte_bpe"])
def test_a_vocabulary_that_is_too_small_names_the_least_size(kind):
    counted = {"words": Counter(" ".join(TEXTS).split()), "byte_bpe": range(256), "chars": set("".join(TEXTS))}
    needed = 3 + 2 + 1 + len(counted.get(kind, set("".join(TEXTS)) - {" "} | {"▁"}))
    with pytest.raises(ValueError, match=f"vocab_size={needed - 1} must be at least {needed}"):
        train(iter(TEXTS), kind, needed - 1, extra_ids=2, languages=["de"])
    assert len(train(iter(TEXTS), kind, needed, extra_ids=2, languages=["de"])) == needed


def test_rare_symbols_are_left_out_by_min_frequency():
    texts = ["aab aab", "aab ab ζ"]
    for kind, size in (("bpe", 12), ("unigram", 12), ("chars", None), ("words", None)):
        vocabulary = train(iter(texts), kind, size, min_frequency=2).get_vocab()
        assert not any("ζ" in token for token in vocabulary)
        assert ("ab" in vocabulary) == (kind in ("bpe", "unigram"))


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram", "words"])
def test_special_tokens_written_in_the_training_text_get_no_second_id(kind):
    tokenizer = train(iter(["</s> <unk> a </s>x"] * 9), kind, 340, extra_ids=1)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.eos_token_id == 1
    assert 1 not in tokenizer("x </s> a", split_special_tokens=True).input_ids[:-1] or kind == "words"


def test_files_and_iterators_give_the_same(tmp_path):
    one, two = tmp_path / "one.en", tmp_path / "two.en"
    one.write_text("\ufeff" + "\r\n".join(TEXTS[:2]) + "\n", encoding="utf-8", newline="")
    two.write_text("\n".join(TEXTS[2:]), encoding="utf-8")
    want = train(iter(TEXTS), "chars").get_vocab()
    assert train([one, str(two)], "chars").get_vocab() == want
    assert train([str(one), str(two)], "chars").get_vocab() == want
    assert train(TEXTS, "chars").get_vocab() == want
    assert "\n" not in want
    assert train(str(one), "chars").get_vocab() == train(TEXTS[:2], "chars").get_vocab() == train(one, "chars").get_vocab()


@pytest.mark.parametrize("corpus", ["gone.txt", Path("gone.txt"), ["gone.txt"], [Path("gone.txt")], ["here.en", "gone.txt"]])
def test_a_missing_file_is_named(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here.en").write_text("text")
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        train(corpus, "chars")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8"):
        train(tmp_path / "latin.txt", "chars")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("corpus", [[], iter([]), ["", " \n"]])
def test_an_empty_corpus_is_refused(kind, corpus):
    with pytest.raises(ValueError, match="no text to train on"):
        train(corpus, kind, 300)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "wordpiece"}, "kind='wordpiece' must be one of"),
        ({"kind": "bpe", "vocab_size": None}, "vocab_size=None: kind='bpe' needs a size"),
        ({"extra_ids": -1}, "extra_ids=-1 must be at least 0"),
        ({"min_frequency": 0}, "min_frequency=0 must be at least 1"),
        ({"min_frequency": 99}, "min_frequency=99: no character"),
        ({"languages": ["de", "de"]}, "'<2de>'.* must be distinct"),
        ({"normalization": "nfd"}, "normalization='nfd'"),
        ({"kind": "words", "byte_fallback": True}, "byte_fallback=True belongs"),
        ({"target_kind": "words"}, "belong to a vocabulary of the target"),
        ({"source_prefix": ["<2xx>"]}, "source_prefix=.*'<2xx>' is no token"),
        ({"source_prefix": "<2xx>"}, "must be a list of tokens"),
        ({"files_or_iterator": [["a", "b"]]}, "text 0 is .*, a list"),
    ],
)
def test_bad_arguments_say_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"files_or_iterator": iter(TEXTS), "kind": "chars", **arguments})


def test_a_mistyped_argument_is_not_ignored():
    with pytest.raises(TypeError, match="no argument 'source_prefx'"):
        train(iter(TEXTS), "chars", source_prefx=["<unk>"])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "chars"])
def test_byte_fallback_writes_what_the_vocabulary_lacks(kind):
    tokenizer = train(iter(TEXTS), kind, 360, byte_fallback=True)
    ids = tokenizer("the Ж漢😀 cat").input_ids
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the Ж漢😀 cat"
    assert "<0xD0>" in tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.decode(tokenizer("Ж").input_ids, skip_special_tokens=True) == "Ж"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "chars", "words"])
def test_without_byte_fallback_it_is_unk(kind):
    tokenizer = train(iter(TEXTS), kind, KINDS[kind])
    assert tokenizer.unk_token_id in tokenizer("the Ж cat").input_ids


def test_normalization_is_part_of_the_saved_tokenizer(tmp_path):
    tokenizer = train(iter(["e\u0301 ﬁ"]), "chars", normalization="nfkc")
    assert {"é", "f", "i"} <= set(tokenizer.get_vocab())
    tokenizer.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["normalizer"] == {"type": "NFKC"}
    assert TransductTokenizer.from_pretrained(tmp_path)("e\u0301").input_ids == tokenizer("é").input_ids
    untouched = train(iter(["e\u0301 é"]), "chars")
    assert untouched("e\u0301").input_ids != untouched("é").input_ids

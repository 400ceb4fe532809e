"""The tokenizer: both sides, prefixes, truncation, round trips, saving, and loading where the package is absent."""

import copy
import json
import pickle
import shutil
import subprocess
import sys

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerFast

import transduct  # noqa: F401  (registers the Auto classes)
from transduct.configuration import TransductConfig
from transduct.tokenization import TransductTokenizer, language_token

TEXTS = ["the cat sat on the mat", "a dog ran far away", "and then the dog sat", "café straße . , ! ?"]
KINDS = {"bpe": 120, "byte_bpe": 320, "unigram": 120, "chars": None, "words": None}
HARD_TEXTS = [
    "def f(x):\n\treturn {'a': x**2}  # two spaces\n\n\n",
    "   leading and trailing   ",
    "tabs\t\there\r\nand there",
    "emoji 👩‍👩‍👧‍👦🏳️‍🌈, العربية, 中文字符, हिन्दी, e\u0301, \u00a0\u200b\ufeff",
    "0123456789 !@#$%^&*() \x00\x07\x1b",
    "▁metaspace Ġbyte",
]


def trained(kind: str, **options) -> TransductTokenizer:
    return TransductTokenizer.train(iter(TEXTS * 9), kind, KINDS[kind], **options)


@pytest.fixture(scope="module", params=KINDS)
def shared(request) -> TransductTokenizer:
    return trained(request.param, extra_ids=10, languages=("de", "fr"))


@pytest.fixture
def pair() -> TransductTokenizer:
    """Letters to phones."""
    letters, phones = ["cat", "back"], ["K AE T", "B AE K"]
    return TransductTokenizer.train(iter(letters), "chars", target=iter(phones), target_kind="words", extra_ids=2)


# ---- one sequence -----------------------------------------------------------------------------------------------------
def test_every_sequence_ends_in_one_eos_also_when_cut(shared):
    for text in [*TEXTS, "", " "]:
        for ids in (shared(text).input_ids, shared(text_target=text).input_ids):
            assert ids[-1] == 1
            assert ids.count(1) == 1
    assert shared("").input_ids == [1]
    for length in (1, 2, 5):
        assert shared(" ".join(TEXTS), truncation=True, max_length=length).input_ids[-1] == 1
        assert len(shared(" ".join(TEXTS), truncation=True, max_length=length).input_ids) == length
    assert (shared.num_special_tokens_to_add(), shared.num_special_tokens_to_add(pair=True)) == (1, 2)
    assert [i for i in shared("the", "cat").input_ids if i == 1] == [1, 1]


def test_text_comes_back(shared):
    for text in TEXTS:
        assert shared.decode(shared(text).input_ids, skip_special_tokens=True) == text
        assert shared.decode(shared(text).input_ids).rstrip().removesuffix("</s>").rstrip() == text


@pytest.mark.parametrize("text", [*HARD_TEXTS, "".join(HARD_TEXTS)])
def test_byte_level_round_trip_is_lossless(text):
    tokenizer = trained("byte_bpe", extra_ids=3)
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_special_tokens_in_a_text_can_be_taken_literally():
    tokenizer = trained("byte_bpe")
    html = "<s>old</s> <pad>"
    ids = tokenizer(html, split_special_tokens=True).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == html
    assert tokenizer(html).input_ids.count(1) == 2


def test_white_space_is_kept_by_chars_and_reduced_by_words():
    text = " the  cat"
    chars, bpe = trained("chars"), trained("bpe")
    assert chars.decode(chars(text).input_ids, skip_special_tokens=True) == text
    assert bpe("\tthe \n cat ").input_ids == bpe("the cat").input_ids


def test_sentinels_count_down_from_the_last_id_and_stand_alone_in_a_text(shared):
    last = len(shared) - 1
    assert shared.get_sentinel_tokens() == [f"<extra_id_{i}>" for i in range(10)]
    assert shared.get_sentinel_token_ids() == [last - i for i in range(10)]
    assert shared.convert_tokens_to_ids("<extra_id_10>") == shared.unk_token_id
    ids = shared("the <extra_id_0> sat on <extra_id_1> mat").input_ids
    assert [i for i in ids if i > last - 10] == [last, last - 1]
    assert set(shared.get_sentinel_token_ids()) <= set(shared.all_special_ids)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_around_sentinels_keep_their_pieces(kind):
    tokenizer = trained(kind, extra_ids=2)
    tokens = tokenizer.tokenize("the <extra_id_0> sat on <extra_id_1> mat")
    assert tokens == ["▁the", "<extra_id_0>", "▁sat", "▁on", "<extra_id_1>", "▁mat"]


def test_a_long_text(shared):
    text = " ".join(["the cat sat on the mat"] * 3000)
    assert len(shared(text).input_ids) > 3000
    assert len(shared(text, truncation=True, max_length=64).input_ids) == 64


def test_padding_and_mask_agree(shared):
    for side in ("right", "left"):
        batch = shared([*TEXTS, ""], padding=True, padding_side=side, return_tensors="pt")
        assert ((batch.input_ids == 0) == (batch.attention_mask == 0)).all()
        for row, mask, text in zip(batch.input_ids, batch.attention_mask, [*TEXTS, ""], strict=True):
            assert row[mask.bool()].tolist() == shared(text).input_ids
    assert shared.padding_side == "right"


# ---- two sides --------------------------------------------------------------------------------------------------------
def test_separate_vocabularies(pair):
    assert pair.separate_vocabularies
    assert (len(pair), pair.decoder_vocab_size) == (3 + 5 + 2, 3 + 4 + 2)
    both = pair("cab", text_target="K AE B")
    source, labels = both["input_ids"], both["labels"]
    assert (source, labels) == (pair("cab").input_ids, pair(text_target="K AE B").input_ids)
    assert (len(source), len(labels)) == (4, 4)
    assert pair.decode(labels, skip_special_tokens=True) == "K AE B"
    assert pair.batch_decode([labels], skip_special_tokens=True) == ["K AE B"]
    assert pair.decode(source, skip_special_tokens=True, use_source_tokenizer=True) == "cab"
    assert pair.convert_ids_to_tokens(source) == ["c", "a", "b", "</s>"]


def test_as_target_turns_everything_to_the_target_and_back(pair):
    with pair.as_target():
        assert pair.tokenize("K AE") == ["K", "AE"]
        assert pair("K AE").input_ids == pair.encode("K AE") == pair(text_target="K AE").input_ids
        assert pair("K AE").input_ids[-1] == 1  # still the target after text_target
        assert pair.get_sentinel_token_ids() == [8, 7]
        assert len(pair) == 9
    assert pair.tokenize("ca") == ["c", "a"]
    assert pair.get_sentinel_token_ids() == [9, 8]


def test_an_error_does_not_leave_the_target_side_switched_on(pair):
    before = pair("cab").input_ids
    with pytest.raises((TypeError, ValueError)):
        pair(text_target=[1, 2])
    assert pair.encode("cab") == before
    with pytest.raises(RuntimeError), pair.as_target():
        raise RuntimeError
    assert pair.encode("cab") == before


def test_prefixes_and_suffixes_of_each_side(tmp_path):
    tokenizer = trained("words", languages=("de", "fr"), bos_token="<s>", source_prefix=["<2de>"], target_prefix=["<s>"])
    de, fr, bos = tokenizer.convert_tokens_to_ids(["<2de>", "<2fr>", "<s>"])
    the = tokenizer.convert_tokens_to_ids("the")
    both = tokenizer("the", text_target="the")
    assert (both["input_ids"], both["labels"]) == ([de, the, 1], [bos, the, 1])
    assert tokenizer("the cat sat", truncation=True, max_length=3).input_ids == [de, the, 1]
    tokenizer.source_prefix, tokenizer.target_suffix = [fr_token := language_token("fr")], ["<2de>"]
    assert fr_token == "<2fr>"
    tokenizer.save_pretrained(tmp_path)
    for same in (tokenizer, TransductTokenizer.from_pretrained(tmp_path), copy.deepcopy(tokenizer)):
        both = same("the", text_target="the")
        assert (both["input_ids"], both["labels"]) == ([fr, the, 1], [bos, the, de, 1])
        assert same.decode(both["labels"], skip_special_tokens=True) == "the"
    other = TransductTokenizer.from_pretrained(tmp_path, source_prefix=["<2de>"])
    assert other("the").input_ids == [de, the, 1]


def test_a_prefix_must_be_a_token_of_its_own_side(pair):
    pair.target_prefix = ["K"]
    assert pair(text_target="T").input_ids[0] == pair(text_target="K").input_ids[0]
    with pytest.raises(ValueError, match=r"source_prefix=.*'K' is no token"):
        pair.source_prefix = ["K"]
    with pytest.raises(ValueError, match="must be a list of tokens"):
        pair.target_prefix = "K"
    assert pair.source_prefix == []
    with pair.as_target(), pytest.raises(ValueError, match="'c' is no token"):
        pair.target_prefix = ["c"]


def test_tokens_are_added_to_both_sides(pair, tmp_path):
    assert pair.add_tokens(["<new1>", "<new2>"], special_tokens=True) == 2
    assert pair.convert_tokens_to_ids("<new1>") == 10
    with pair.as_target():
        assert pair.convert_tokens_to_ids("<new1>") == 9
    pair.save_pretrained(tmp_path)
    again = TransductTokenizer.from_pretrained(tmp_path, mask_token="<mask>")
    assert again("a<new2>", text_target="<new1> K")["labels"][0] == 9
    assert (len(again), again.decoder_vocab_size) == (len(pair) + 1, pair.decoder_vocab_size + 1)


# ---- saving and loading -----------------------------------------------------------------------------------------------
def same_ids(a, b) -> bool:
    texts = [*TEXTS, "the <new1> cat <extra_id_0>", "", "Ж"]
    return all(a(t).input_ids == b(t).input_ids and a(text_target=t).input_ids == b(text_target=t).input_ids for t in texts)


def test_saved_moved_and_loaded_it_is_the_same(shared, tmp_path):
    tokenizer = copy.deepcopy(shared)
    tokenizer.add_tokens(["<new1>"], special_tokens=True)
    tokenizer.add_tokens(["plain"])
    tokenizer.save_pretrained(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    again = TransductTokenizer.from_pretrained(tmp_path / "b")
    assert same_ids(tokenizer, again)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.special_tokens_map == tokenizer.special_tokens_map
    assert again.get_sentinel_tokens() == tokenizer.get_sentinel_tokens()
    again.save_pretrained(tmp_path / "c")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        first, second = (json.loads((tmp_path / folder / name).read_text()) for folder in "bc")
        assert {k: v for k, v in second.items() if k not in ("is_local", "local_files_only")} == first


def test_auto_tokenizer_with_the_package(shared, pair, tmp_path):
    for number, tokenizer in enumerate((shared, pair)):
        folder = tmp_path / str(number)
        TransductConfig(vocab_size=len(tokenizer)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        again = AutoTokenizer.from_pretrained(folder)
        assert type(again) is TransductTokenizer
        assert same_ids(tokenizer, again)
        assert again.separate_vocabularies == tokenizer.separate_vocabularies


WITHOUT_PACKAGE = """
import json, sys
sys.modules["transduct"] = None
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], **json.loads(sys.argv[2]))
texts = json.loads(sys.argv[3])
ids = [tokenizer(text).input_ids for text in texts]
decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
print()
print(json.dumps([type(tokenizer).__name__, tokenizer.pad_token_id, tokenizer.eos_token_id, ids, decoded]))
"""


def without_package(folder, texts, **options):
    """What AutoTokenizer makes of a folder in a process that cannot import transduct: class, pad, eos, ids, decoded."""
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(folder), json.dumps(options), json.dumps(texts)]
    return json.loads(
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1]
    )


def test_auto_tokenizer_without_the_package(shared, tmp_path):
    tokenizer = copy.deepcopy(shared)
    tokenizer.source_prefix = ["<2de>"]
    tokenizer.add_tokens(["<new1>"], special_tokens=True)
    TransductConfig(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [*TEXTS, "the <new1> cat <extra_id_0>", ""]
    name, pad, eos, ids, decoded = without_package(tmp_path, texts, trust_remote_code=False)
    assert (name, pad, eos) == ("TokenizersBackend", 0, 1)
    assert ids == [tokenizer(text).input_ids for text in texts]
    assert decoded[:4] == TEXTS


def test_two_vocabularies_without_the_package_need_trust_and_are_then_whole(pair, tmp_path, monkeypatch):
    """No stock class has two vocabularies: without trust there is an error, never the source side alone."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    TransductConfig(vocab_size=len(pair)).save_pretrained(folder)
    pair.save_pretrained(folder)
    for trust in ({}, {"trust_remote_code": False}):
        with pytest.raises(subprocess.CalledProcessError):
            without_package(folder, ["cab"], **trust)
    name, _, _, ids, decoded = without_package(folder, ["cab"], trust_remote_code=True)
    assert (name, ids) == ("TransductTokenizer", [pair("cab").input_ids])
    assert decoded == [pair.decode(pair("cab").input_ids, skip_special_tokens=True)]


def test_each_of_two_vocabularies_is_a_stock_tokenizer(pair, tmp_path):
    pair.save_pretrained(tmp_path)
    _, _, _, ids, decoded = without_package(tmp_path / "target", ["K AE T"])
    assert (ids, decoded) == ([pair(text_target="K AE T").input_ids], ["K AE T"])
    source = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert source("cab").input_ids == pair("cab").input_ids
    stock = PreTrainedTokenizerFast.from_pretrained(tmp_path, subfolder="target")
    assert stock("K").input_ids == pair(text_target="K").input_ids
    assert len(stock) == pair.decoder_vocab_size


def test_the_last_call_leaves_nothing_in_the_file(shared, pair, tmp_path):
    for tokenizer in (shared, pair):
        tokenizer("cab", text_target="K AE", truncation=True, max_length=2, padding="max_length")
        tokenizer.save_pretrained(tmp_path)
        saved = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert saved.truncation is None
        assert saved.padding is None


def test_a_shared_vocabulary_saved_over_a_pair_stays_shared(shared, pair, tmp_path):
    pair.save_pretrained(tmp_path)
    shared.save_pretrained(tmp_path)
    again = TransductTokenizer.from_pretrained(tmp_path)
    assert not again.separate_vocabularies
    assert same_ids(shared, again)


def test_files_that_are_missing_or_not_ours_raise(shared, pair, tmp_path):
    pair.save_pretrained(tmp_path / "pair")
    shutil.rmtree(tmp_path / "pair" / "target")
    with pytest.raises(ValueError, match="the file of the target's vocabulary is missing"):
        TransductTokenizer.from_pretrained(tmp_path / "pair")
    PreTrainedTokenizerFast(tokenizer_object=shared.backend_tokenizer).save_pretrained(tmp_path / "stock")
    with pytest.raises(ValueError, match="was not saved by TransductTokenizer"):
        TransductTokenizer.from_pretrained(tmp_path / "stock")
    (tmp_path / "nothing").mkdir()
    with pytest.raises((OSError, ValueError), match=r"tokenizer_file=None"):
        TransductTokenizer.from_pretrained(tmp_path / "nothing")


# ---- the tools around -------------------------------------------------------------------------------------------------
def test_pickle_and_copy(shared, pair):
    for tokenizer in (shared, pair):
        for again in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
            assert same_ids(tokenizer, again)
            assert again.decoder_vocab_size == tokenizer.decoder_vocab_size


def test_a_dataset_map_in_two_processes_and_the_collator(pair):
    words, phones = ["cat", "back"] * 4, ["K AE T", "B AE K"] * 4
    data = Dataset.from_dict({"word": words, "phones": phones})
    mapped = data.map(
        lambda row: dict(pair(row["word"], text_target=row["phones"])), num_proc=2, remove_columns=["word", "phones"]
    )
    assert mapped["labels"][0] == pair(text_target="K AE T").input_ids
    batch = DataCollatorForSeq2Seq(pair)([mapped[0], mapped[1]])
    assert batch["input_ids"].tolist() == [[*pair("cat").input_ids, 0], pair("back").input_ids]
    assert batch["labels"].shape == (2, 4)


def test_language_tokens():
    assert [language_token(code) for code in ("de", "pt-BR", "eng_Latn")] == ["<2de>", "<2pt-BR>", "<2eng_Latn>"]
    assert [language_token(code) for code in ("__de__", ">>de<<", "<2de>")] == ["__de__", ">>de<<", "<2de>"]

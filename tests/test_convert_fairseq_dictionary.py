"""fairseq's dictionaries and the tokenizers made of them."""

import json

import pytest
from transformers import AutoTokenizer, GPT2Tokenizer

from transduct import TransductTokenizer
from transduct.convert.fairseq_dictionary import Dictionary, gpt2_tokenizer, is_gpt2, read_dictionary, word_tokenizer


def fairseq_ids(dictionary: Dictionary, text: str) -> list[int]:
    """What `Dictionary.encode_line` gives: words between white space, the last of those that share a name, and the end."""
    found = []
    for word in text.split():
        matching = [number for number, known in enumerate(dictionary.words) if known == word]
        found.append(matching[-1] if matching else 3)
    return [*found, 2]


@pytest.fixture
def dictionary(tmp_path):
    def make(text: str, added=()) -> Dictionary:
        (tmp_path / "dict.txt").write_text(text, encoding="utf-8")
        return read_dictionary(tmp_path / "dict.txt", added)

    return make


def test_ids_in_the_order_of_the_lines(dictionary):
    words = dictionary("the 10\nc@@ 5\nat 5\nmadeupword0000 0\n").words
    assert words == ("<s>", "<pad>", "</s>", "<unk>", "the", "c@@", "at", "madeupword0000")


def test_tokens_of_the_task_follow_unless_the_file_has_them(dictionary):
    assert dictionary("a 1\n", ("<mask>", "<mask>")).words[4:] == ("a", "<mask>")
    assert dictionary("<mask> 1\na 1\n", ("<mask>",)).words[4:] == ("<mask>", "a")


def test_a_word_may_hold_blanks_and_a_count_a_sign(dictionary):
    assert dictionary("a b 3\nc -1\n").words[4:] == ("a b", "c")


@pytest.mark.parametrize("text", ["", "a b c\n", "word\n", "a 1\n\nb 1\n", "a 1.5\n", " 5\n"])
def test_lines_that_are_none_are_refused(dictionary, text):
    if not text:
        assert len(dictionary(text)) == 4
        return
    with pytest.raises(ValueError, match=r"line \d: .* is not a word and its count"):
        dictionary(text)


def test_a_word_that_occurs_twice(dictionary):
    with pytest.raises(ValueError, match="line 2: 'a' occurs twice"):
        dictionary("a 1\na 2\n")
    with pytest.raises(ValueError, match="line 1: '<s>' occurs twice"):
        dictionary("<s> 1\n")
    twice = dictionary("<s> 0 #fairseq:overwrite\na 1\na 2 #fairseq:overwrite\nb 1\n")
    assert len(twice) == 8
    tokenizer = word_tokenizer(twice)
    assert tokenizer("a b <s>").input_ids == fairseq_ids(twice, "a b <s>") == [6, 7, 4, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 2)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "dict.txt").write_bytes(b"\xff\xfe 1\n")
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_dictionary(tmp_path / "dict.txt")


HARD = [
    "", "the c@@ at", "  the\tc@@\n at ", "the\u00a0at", "the\u2028at\x1cthe", "THE", "the</s>", "</s> the <s>",
    "<unk> <pad> the", "c @@at", "\U0001f600 the e\u0301 é", "אב the",
]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_words_get_the_ids_that_fairseq_gives_them(dictionary, text):
    known = dictionary("the 10\nc@@ 5\nat 5\ne\u0301 1\nאב 1\n")
    assert word_tokenizer(known)(text).input_ids == fairseq_ids(known, text)


def test_it_comes_back_from_disk_with_two_sides(dictionary, tmp_path):
    source, target = dictionary("der 3\nHund 1\n"), dictionary("the 3\ndog 1\n")
    word_tokenizer(source, target).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is TransductTokenizer
    batch = again("der Hund the", text_target="the dog der")
    assert (batch["input_ids"], batch["labels"]) == ([4, 5, 3, 2], [4, 5, 3, 2])
    assert again.decode(batch["labels"], skip_special_tokens=True) == "the dog"
    assert again("</s> der</s>").input_ids == [2, 3, 2]  # words as fairseq cuts them, from disk too


def test_two_sides_with_other_special_tokens_are_refused(dictionary):
    with pytest.raises(ValueError, match="overwrites other special tokens than"):
        word_tokenizer(dictionary("a 1\n"), dictionary("<s> 0 #fairseq:overwrite\n"))


class TestGPT2:
    @pytest.fixture
    def files(self, tmp_path):
        """A byte-level BPE as GPT-2's files hold it, and the dictionary of its ids in another order."""
        letters = TransductTokenizer.train(iter(["hello low lower newest"]), kind="byte_bpe", vocab_size=275)
        pieces = json.loads(letters.backend_tokenizer.to_str())["model"]
        vocabulary = [piece for piece in pieces["vocab"] if not piece.startswith("<")]
        (tmp_path / "encoder.json").write_text(json.dumps({piece: number for number, piece in enumerate(vocabulary)}))
        merges = "\n".join(" ".join(pair) for pair in pieces["merges"])
        (tmp_path / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
        lines = [f"{number} 1" for number in reversed(range(len(vocabulary)))] + ["madeupword0000 0"]
        (tmp_path / "dict.txt").write_text("\n".join(lines) + "\n")
        return tmp_path

    def test_it_is_known_by_its_words(self, files):
        assert is_gpt2(read_dictionary(files / "dict.txt", ("<mask>",)))
        assert not is_gpt2(Dictionary(("<s>", "<pad>", "</s>", "<unk>", "12", "a"), "x"))
        assert not is_gpt2(Dictionary(("<s>", "<pad>", "</s>", "<unk>"), "x"))

    @pytest.mark.parametrize("text", ["hello lower", " low  newest\n", "é \U0001f600", "don't", ""])
    def test_text_gets_the_ids_of_its_pieces(self, files, text):
        dictionary = read_dictionary(files / "dict.txt", ("<mask>",))
        gpt2 = GPT2Tokenizer.from_pretrained(self.as_gpt2(files))
        want = [dictionary.words.index(str(number)) for number in gpt2(text).input_ids]
        tokenizer = gpt2_tokenizer(dictionary, files)
        ids = tokenizer(text).input_ids
        assert ids == [0, *want, 2]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert tokenizer(text_target=text).input_ids == ids

    def as_gpt2(self, files):
        folder = files / "gpt2"
        folder.mkdir()
        (folder / "vocab.json").write_text((files / "encoder.json").read_text())
        (folder / "merges.txt").write_text((files / "vocab.bpe").read_text())
        return folder

    def test_a_mask_takes_the_blank_before_it(self, files):
        dictionary = read_dictionary(files / "dict.txt", ("<mask>",))
        tokenizer = gpt2_tokenizer(dictionary, files)
        assert tokenizer.mask_token_id == len(dictionary) - 1
        assert tokenizer("low <mask>").input_ids == [*tokenizer("low").input_ids[:-1], tokenizer.mask_token_id, 2]

    def test_pieces_that_the_dictionary_lacks(self, files):
        (files / "dict.txt").write_text("0 1\n1 1\n")
        with pytest.raises(ValueError, match=r"lacks \d+ ids of .*encoder\.json"):
            gpt2_tokenizer(read_dictionary(files / "dict.txt"), files)

    def test_files_that_are_damaged(self, files):
        dictionary = read_dictionary(files / "dict.txt")
        for content, message in (
            ("{", "is not JSON"),
            ("[1]", "must map pieces to ids"),
            ('{"a": "b"}', "must map pieces to ids"),
        ):
            (files / "encoder.json").write_text(content)
            with pytest.raises(ValueError, match=message):
                gpt2_tokenizer(dictionary, files)

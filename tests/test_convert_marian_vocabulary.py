"""Marian's vocabularies and tokenizers: files by name, ids as in the file, SentencePiece where it belongs to the model."""

import io
import json

import pytest
import sentencepiece
import yaml
from transformers import AutoTokenizer, MarianTokenizer

from transduct.convert.marian_vocabulary import decoder_options, make_tokenizer, read_vocabulary, vocabulary_files

TEXT = ["the quick brown fox jumps over the lazy dog", "a model of translation reads one sentence", "and writes another one"] * 20

PIECES = 40


@pytest.fixture(scope="module")
def spm() -> bytes:
    """A SentencePiece model whose ids are as Marian's: the end 0, the unknown token 1."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=PIECES, model_type="unigram", eos_id=0, unk_id=1, bos_id=-1,
        pad_id=-1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(spm: bytes, text: str) -> list[str]:
    return sentencepiece.SentencePieceProcessor(model_proto=spm).encode(text, out_type=str)


class TestFiles:
    def test_the_options_beside_a_model_in_the_order_of_their_names(self, tmp_path):
        model = tmp_path / "model.npz"
        assert decoder_options(model) == {}
        for name in ("config.yml", "decoder.yml", "model.npz.yml", "model.npz.decoder.yml"):
            (tmp_path / name).write_text(f"beam-size: {len(name)}\n")
            assert decoder_options(model) == {"beam-size": len(name)}

    @pytest.mark.parametrize(("text", "message"), [("- a\n", "must hold options by name"), ("a: [", "is not YAML")])
    def test_options_that_are_none(self, text, message, tmp_path):
        (tmp_path / "decoder.yml").write_text(text)
        with pytest.raises(ValueError, match=message):
            decoder_options(tmp_path / "model.npz")

    def test_vocabularies_that_were_moved_lie_beside_the_model(self, tmp_path):
        for name in ("a.yml", "b.yml"):
            (tmp_path / name).write_text("")
        model = tmp_path / "model.npz"
        both = tmp_path / "a.yml", tmp_path / "b.yml"
        assert vocabulary_files(model, {"vocabs": ["/elsewhere/a.yml", "b.yml"]}, None) == both
        assert vocabulary_files(model, {"vocabs": ["/elsewhere/a.yml"]}, ("b.yml",)) == (both[1], both[1])

    def test_without_a_name_there_is_no_guess(self, tmp_path):
        (tmp_path / "vocab.yml").write_text("")
        for said in ({}, {"vocabs": ["a", "b", "c"]}, {"vocabs": "vocab.yml"}):
            with pytest.raises(ValueError, match="name them with vocabularies="):
                vocabulary_files(tmp_path / "model.npz", said, None)
        with pytest.raises(ValueError, match=r"the vocabulary 'x\.yml' of .* is missing"):
            vocabulary_files(tmp_path / "model.npz", {"vocabs": ["x.yml"]}, None)


class TestVocabularies:
    def test_every_key_is_text(self, tmp_path):
        (tmp_path / "v.yml").write_text("</s>: 0\n<unk>: 1\nno: 2\n12: 3\nnull: 4\n1e3: 5\n'': 6\n\"\\u00e9\": 7\n")
        assert list(read_vocabulary(tmp_path / "v.yml", 8)) == ["</s>", "<unk>", "no", "12", "null", "1e3", "", "é"]

    def test_json_and_lists_of_words(self, tmp_path):
        (tmp_path / "v.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "a": 2}))
        (tmp_path / "v.txt").write_text("</s>\n<unk>\na\x85b\n", encoding="utf-8")
        assert read_vocabulary(tmp_path / "v.json", 3) == {"</s>": 0, "<unk>": 1, "a": 2}
        assert read_vocabulary(tmp_path / "v.txt", 3) == {"</s>": 0, "<unk>": 1, "a\x85b": 2}

    def test_sentencepiece(self, spm, tmp_path):
        (tmp_path / "v.spm").write_bytes(spm)
        ids = read_vocabulary(tmp_path / "v.spm", PIECES)
        assert (ids["</s>"], ids["<unk>"], len(ids)) == (0, 1, PIECES)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("v.yml", "</s>: 0\n<unk>: 1\n", "has 2 tokens, but the model 3"),
            ("v.yml", "</s>: 0\n<unk>: 1\na: 3\n", "or ids are missing"),
            ("v.yml", "</s>: 0\na: 1\nb: 2\n", r"must have </s> and <unk>, .*\['<unk>'\]"),
            ("v.yml", "</s>: 0\n<unk>: 1\n<pad>: 2\n", "and no <pad>"),
            ("v.yml", "- a\n", "must map tokens to ids"),
            ("v.yml", "a: b\n", "must map tokens to ids"),
            ("v.fsv", "a\n", "of a kind that is not imported"),
        ],
    )
    def test_what_does_not_belong_to_the_model_is_refused(self, name, text, message, tmp_path):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            read_vocabulary(tmp_path / name, 3)


class TestTokenizers:
    def test_sentencepiece_beside_a_table_as_opus_has_it(self, spm, tmp_path):
        ids = {"</s>": 0, "<unk>": 1}
        for text in TEXT[:3]:
            for piece in pieces_of(spm, text):
                ids.setdefault(piece, len(ids))
        (tmp_path / "opus.vocab.yml").write_text(yaml.safe_dump(ids, allow_unicode=True), encoding="utf-8")
        for side in ("source", "target"):
            (tmp_path / f"{side}.spm").write_bytes(spm)
        said = {"vocabs": ["opus.vocab.yml"] * 2}
        tokenizer, text = make_tokenizer(tmp_path / "model.npz", said, None, [len(ids)] * 2, len(ids))
        assert type(tokenizer) is MarianTokenizer
        assert text.startswith("plain text")
        sentence = "the lazy model reads another fox"
        want = [ids.get(piece, 1) for piece in pieces_of(spm, sentence)]
        tokenizer.save_pretrained(tmp_path / "saved")
        for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "saved")):
            assert one(sentence).input_ids == [*want, 0]
            assert one.decode([*want, 0, len(ids)], skip_special_tokens=True) == sentence
            assert one.pad_token_id == len(ids)
        assert {"vocab.json", "source.spm", "target.spm"} <= {path.name for path in (tmp_path / "saved").iterdir()}

    def test_sentencepiece_as_the_vocabulary_itself(self, spm, tmp_path):
        (tmp_path / "vocab.spm").write_bytes(spm)
        said = {"vocabs": ["vocab.spm", "vocab.spm"]}
        tokenizer, _ = make_tokenizer(tmp_path / "model.bin", said, None, [PIECES, PIECES], PIECES)
        want = sentencepiece.SentencePieceProcessor(model_proto=spm).encode("the brown dog")
        assert tokenizer("the brown dog").input_ids == [*want, 0]
        assert tokenizer.pad_token_id == PIECES

    def test_words_where_nothing_cuts_text(self, tmp_path):
        (tmp_path / "v.yml").write_text("</s>: 0\n<unk>: 1\nthe: 2\nc@@: 3\n'at': 4\n")
        tokenizer, text = make_tokenizer(tmp_path / "m.npz", {"vocabs": ["v.yml"]}, None, [5, 5], 5)
        assert "words separated by blanks" in text
        assert tokenizer(" the c@@ at  dog</s>").input_ids == [2, 3, 4, 1, 0]
        assert tokenizer.decode([2, 3, 4, 0], skip_special_tokens=True) == "the c@@ at"

    def test_two_ends_of_sequence_are_refused(self, tmp_path):
        (tmp_path / "a.yml").write_text("</s>: 0\n<unk>: 1\n")
        (tmp_path / "b.yml").write_text("</s>: 1\n<unk>: 0\n")
        with pytest.raises(ValueError, match="have </s> at different ids"):
            make_tokenizer(tmp_path / "m.npz", {"vocabs": ["a.yml", "b.yml"]}, None, [2, 2], 2)

"""A tiny tokenizer of each family, of transformers' own class, in a folder as that family's checkpoints come.

The vocabularies are learnt from text that is at hand. `write_tokenizer(name, folder)` writes the tokenizer's files beside a
config.json of the family; the names are in `TOKENIZERS`.
"""

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    BlenderbotSmallTokenizer,
    BlenderbotTokenizer,
    ByT5Tokenizer,
    M2M100Tokenizer,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    PegasusTokenizer,
    PLBartTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    T5Tokenizer,
    WhisperTokenizer,
)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from english import paragraphs

T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
GERMAN = ("Das Feld hat eine Größe. Alle Werte müssen gültig sein.", "Über die Länge des Feldes entscheidet das erste Maß.")


@cache
def sentencepiece_model(kind: str = "unigram", vocab_size: int = 300, german: bool = False, **ids: int) -> bytes:
    """A model file of SentencePiece; `ids` as its trainer names them."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(GERMAN if german else paragraphs()),
        model_writer=model,
        vocab_size=vocab_size,
        model_type=kind,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **ids,
    )
    return model.getvalue()


@cache
def byte_bpe(special: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE, as GPT-2's: special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(paragraphs(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def pieces(model: bytes, first: tuple[str, ...]) -> dict[str, int]:
    """An id for each piece of a SentencePiece model, the special tokens at first, as fairseq's dictionaries have it."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    learnt = [processor.id_to_piece(i) for i in range(processor.get_piece_size()) if not processor.is_control(i)]
    return {piece: index for index, piece in enumerate(dict.fromkeys([*first, *learnt]))}


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _json(path: Path, value: object) -> None:
    _text(path, json.dumps(value, ensure_ascii=False))


def _t5(folder: Path) -> None:
    (folder / "spiece.model").write_bytes(sentencepiece_model(**T5_IDS))
    T5Tokenizer.from_pretrained(folder, extra_ids=20, model_max_length=512).save_pretrained(folder)
    (folder / "spiece.model").unlink()


def _t5_of_version_4(folder: Path) -> None:
    """Without a class: that followed from the model type."""
    (folder / "spiece.model").write_bytes(sentencepiece_model(**T5_IDS))
    _json(folder / "tokenizer_config.json", {"model_max_length": 512, "extra_ids": 20})
    sentinels = [f"<extra_id_{i}>" for i in range(20)]
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    _json(folder / "special_tokens_map.json", named | {"additional_special_tokens": sentinels})


def _mt5(folder: Path) -> None:
    """The class stands in config.json alone."""
    (folder / "spiece.model").write_bytes(sentencepiece_model(**T5_IDS))
    _json(folder / "tokenizer_config.json", {"extra_ids": 0, "additional_special_tokens": []})


def _umt5(folder: Path) -> None:
    """Its tokenizer.json counts each blank, which T5Tokenizer does not; AutoTokenizer does not use the class that it names."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(**T5_IDS))
    scores = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    named = dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    values = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    _json(folder / "tokenizer_config.json", values | {"tokenizer_class": "T5Tokenizer"})


def _bart(folder: Path) -> None:
    """As BART was published: two files, and no class."""
    vocabulary, merges = byte_bpe(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    _json(folder / "vocab.json", vocabulary)
    _text(folder / "merges.txt", "#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n")
    _json(folder / "tokenizer_config.json", {"model_max_length": 1024})


def _codet5(folder: Path) -> None:
    _bart(folder)
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(20))]
    RobertaTokenizer.from_pretrained(folder, extra_special_tokens=sentinels, model_max_length=512).save_pretrained(folder)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()


def _blenderbot(folder: Path) -> None:
    _bart(folder)
    BlenderbotTokenizer.from_pretrained(folder, model_max_length=128).save_pretrained(folder)


def _blenderbot_small(folder: Path) -> None:
    special = ["__null__", "__start__", "__end__", "__unk__"]
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator([text.lower() for text in paragraphs()], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    joined = {piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@": i for piece, i in model["vocab"].items()}
    joined = {piece.removesuffix("@@") if piece.removesuffix("@@") in special else piece: i for piece, i in joined.items()}
    _json(folder / "vocab.json", joined)
    _text(folder / "merges.txt", "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n")
    BlenderbotSmallTokenizer.from_pretrained(folder, model_max_length=128).save_pretrained(folder)


def _fairseq(folder: Path, tokenizer_class: type, kind: str = "unigram", **options: object) -> None:
    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece_model(kind))
    tokenizer_class.from_pretrained(folder, **options).save_pretrained(folder)


def _nllb(folder: Path) -> None:
    """With six of its 202 languages."""
    languages = ["arb_Arab", "deu_Latn", "eng_Latn", "hin_Deva", "ron_Latn", "zho_Hans"]
    _fairseq(folder, NllbTokenizer, "bpe", src_lang="eng_Latn", tgt_lang="deu_Latn", extra_special_tokens=languages)


def _m2m_100(folder: Path) -> None:
    model = sentencepiece_model()
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    _json(folder / "vocab.json", pieces(model, ("<s>", "<pad>", "</s>", "<unk>")))
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    options = dict(src_lang="en", tgt_lang="de", extra_special_tokens=languages)
    M2M100Tokenizer.from_pretrained(folder, **options).save_pretrained(folder)


def _marian(folder: Path) -> None:
    source, target = sentencepiece_model(), sentencepiece_model(vocab_size=60, german=True)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    together = [">>deu<<", *pieces(target, ()), "<pad>"]
    _json(folder / "vocab.json", pieces(source, ("</s>", "<unk>")) | {})
    known = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    _json(folder / "vocab.json", {piece: i for i, piece in enumerate(dict.fromkeys([*known, *together]))})
    MarianTokenizer.from_pretrained(folder, source_lang="eng", target_lang="deu").save_pretrained(folder)


def _marian_two_vocabularies(folder: Path) -> None:
    source, target = sentencepiece_model(), sentencepiece_model(vocab_size=60, german=True)
    for side, model, vocabulary in (("source", source, "vocab.json"), ("target", target, "target_vocab.json")):
        (folder / f"{side}.spm").write_bytes(model)
        known = [*pieces(model, ("</s>", "<unk>")), "<pad>"]
        _json(folder / vocabulary, {piece: i for i, piece in enumerate(known)})
    MarianTokenizer.from_pretrained(folder, separate_vocabs=True).save_pretrained(folder)


def _pegasus(folder: Path) -> None:
    (folder / "spiece.model").write_bytes(sentencepiece_model(**T5_IDS))
    PegasusTokenizer.from_pretrained(folder, offset=12, model_max_length=1024).save_pretrained(folder)
    (folder / "spiece.model").unlink()


def _whisper(folder: Path) -> None:
    vocabulary, merges = byte_bpe(())
    marks = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
             "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
    times = [f"<|{step * 0.02:.2f}|>" for step in range(20)]
    _json(folder / "normalizer.json", {"colour": "color"})
    tokenizer = WhisperTokenizer(
        vocab=vocabulary,
        merges=merges,
        normalizer_file=str(folder / "normalizer.json"),
        extra_special_tokens=[*marks[1:], *times],
    )
    tokenizer.save_pretrained(folder)


TOKENIZERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "t5": ("t5", _t5),
    "t5 of version 4": ("t5", _t5_of_version_4),
    "byt5": ("t5", lambda folder: ByT5Tokenizer(extra_ids=20).save_pretrained(folder)),
    "mt5": ("mt5", _mt5),
    "umt5": ("umt5", _umt5),
    "codet5": ("t5", _codet5),
    "bart": ("bart", _bart),
    "mbart": ("mbart", lambda folder: _fairseq(folder, MBartTokenizer, src_lang="en_XX", tgt_lang="ro_RO")),
    "mbart50": ("mbart", lambda folder: _fairseq(folder, MBart50Tokenizer, src_lang="en_XX", tgt_lang="ro_RO")),
    "plbart": ("plbart", lambda folder: _fairseq(folder, PLBartTokenizer, src_lang="python", tgt_lang="en_XX")),
    "blenderbot": ("blenderbot", _blenderbot),
    "blenderbot-small": ("blenderbot-small", _blenderbot_small),
    "marian": ("marian", _marian),
    "marian of two vocabularies": ("marian", _marian_two_vocabularies),
    "pegasus": ("pegasus", _pegasus),
    "m2m_100": ("m2m_100", _m2m_100),
    "nllb": ("m2m_100", _nllb),
    "whisper": ("whisper", _whisper),
}
"""For each name the family's `model_type` and what writes its files."""


def write_tokenizer(name: str, folder: Path) -> Path:
    """Write the tokenizer `name` and a config.json of its family into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model_type, write = TOKENIZERS[name]
    config = CONFIG_MAPPING[model_type]().to_dict()
    if name == "mt5":
        config["tokenizer_class"] = "T5Tokenizer"
    _json(folder / "config.json", config)
    write(folder)
    return folder

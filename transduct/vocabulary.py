"""Learning one vocabulary from text: BPE, byte-level BPE, unigram, characters or words, as a `tokenizers.Tokenizer`.

- Ids: special tokens, the 256 bytes where there is a byte fallback, pieces, sentinels.
- "bpe" and "unigram" cut words at white space and mark each word's beginning with "▁"; "words" cuts there too.
- The same text always gives the same ids: ties go by code point. All characters get an id, or the vocabulary is refused;
  `min_frequency` says which are too rare.

References: BPE (arXiv 1508.07909), byte-level BPE (GPT-2), unigram (arXiv 1804.10959).
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from .unigram import train_unigram

Kind = Literal["bpe", "byte_bpe", "unigram", "chars", "words"]
Corpus = str | os.PathLike | Iterable[str]

SPACE = "▁"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")
    return value


class VocabularyTrainer:
    """Trains the vocabularies of one tokenizer, which have their special tokens and their treatment of rare text in common.

    Args:
        first, last: special tokens before and after the pieces; `<unk>` is one of the first.
        byte_fallback, normalization, min_frequency: as in `TransductTokenizer.train`.
    """

    def __init__(self, first: list[str], last: list[str], byte_fallback: bool, normalization: str | None, min_frequency: int):
        repeated = [token for token, count in Counter(first + last).items() if count > 1]
        if repeated or "" in first:
            raise ValueError(f"special tokens {repeated or ['']!r} must be distinct and not empty; see languages, special_tokens")
        forms = {"nfc": normalizers.NFC(), "nfkc": normalizers.NFKC(), None: None}
        if normalization not in forms:
            raise ValueError(f"normalization={normalization!r} must be None, 'nfc' or 'nfkc'")
        self.first, self.last, self.min_frequency = first, last, at_least("min_frequency", min_frequency, 1)
        self.bytes, self.normalizer = BYTES if byte_fallback else [], forms[normalization]
        self.reserved = {*first, *self.bytes, *last}  # a text may hold them too: they are no pieces

    def train(self, corpus: Corpus, kind: Kind, vocab_size: int | None) -> Tokenizer:
        learn: dict[str, Callable[..., Tokenizer]] = {"bpe": self._bpe, "byte_bpe": self._byte_bpe, "unigram": self._unigram}
        learn |= {"chars": self._chars, "words": self._words}
        if kind not in learn:
            raise ValueError(f"kind={kind!r} must be one of {list(learn)}")
        if vocab_size is None and kind in ("bpe", "byte_bpe", "unigram"):
            raise ValueError(f"vocab_size=None: kind={kind!r} needs a size")
        if self.bytes and kind in ("byte_bpe", "words"):
            raise ValueError(f"byte_fallback=True belongs to the kinds 'bpe', 'unigram' and 'chars', not to {kind!r}")
        texts = (text for text in _texts(corpus, keep_line_ends=kind == "byte_bpe") if text.strip())
        first = next(texts, None)
        if first is None:
            raise ValueError("there is no text to train on: every file or string is empty")
        everything = chain([first], texts)
        normalized = everything if self.normalizer is None else map(self.normalizer.normalize_str, everything)
        tokenizer = learn[kind](normalized, vocab_size)
        if self.normalizer is not None:
            tokenizer.normalizer = self.normalizer
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in self.first + self.last])
        return tokenizer

    def _ids(self, pieces: Iterable[str]) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(chain(self.first, self.bytes, pieces, self.last))}

    def _room(self, vocab_size: int, needed: int, what: str) -> int:
        """How many pieces fit beside the special tokens, which must be `needed` at least."""
        fixed = len(self.first) + len(self.bytes) + len(self.last)
        if vocab_size - fixed < needed:
            parts = f"{len(self.first)} special tokens, {len(self.last)} sentinels, {len(self.bytes)} bytes and {needed} {what}"
            advice = "Raise it" if what == "byte values" else "Raise it, or leave the rare ones out with min_frequency"
            raise ValueError(f"vocab_size={vocab_size} must be at least {fixed + needed}: {parts}. {advice}")
        return vocab_size - fixed

    def _frequent(self, counts: Counter) -> list[str]:
        """Symbols in order of falling frequency, ties in the order of their code points."""
        kept = [(-n, s) for s, n in counts.items() if n >= self.min_frequency and s not in self.reserved]
        if not kept:
            raise ValueError(f"min_frequency={self.min_frequency}: no character or word of the text is seen so often")
        return [symbol for _, symbol in sorted(kept)]

    def _count_words(self, texts: Iterable[str], vocab_size: int) -> tuple[Counter, list[str], int]:
        """Words (with the mark of their beginning) that have no rare character, their alphabet, and the room for pieces."""
        words: Counter = Counter()
        for text in texts:
            words.update(text.split())
        marked: Counter = Counter()
        characters: Counter = Counter()
        for word, count in words.items():
            marked[word if word.startswith(SPACE) else SPACE + word] += count
        for word, count in marked.items():
            characters.update({c: n * count for c, n in Counter(word).items()})
        alphabet = self._frequent(characters)
        room = self._room(vocab_size, len(alphabet), "characters of the text")
        known = set(alphabet)
        return Counter({word: n for word, n in marked.items() if known.issuperset(word)}), alphabet, room

    def _bpe(self, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        words, alphabet, room = self._count_words(texts, vocab_size)
        pieces, merges = self._merges(_repeat(words), _metaspace(), alphabet, room)
        return _assemble(models.BPE(self._ids(pieces), merges, **self._unknown()), _metaspace(), _unmark(self.bytes))

    def _byte_bpe(self, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        room = self._room(vocab_size, len(alphabet), "byte values")
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        pieces, merges = self._merges(texts, split, alphabet, room)
        return _assemble(models.BPE(self._ids(pieces), merges), split, decoders.ByteLevel())

    def _merges(self, texts: Iterable[str], split, alphabet: list[str], room: int) -> tuple[list[str], list[tuple[str, str]]]:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = split
        trainer = trainers.BpeTrainer(
            vocab_size=room, initial_alphabet=alphabet, min_frequency=self.min_frequency, special_tokens=[], show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        pieces, merges = dict.fromkeys(alphabet), []
        for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
            if left in pieces and right in pieces and left + right not in self.reserved:
                pieces[left + right] = None
                merges.append((left, right))
        return list(pieces), merges

    def _unigram(self, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        words, _, room = self._count_words(texts, vocab_size)
        scores = {piece: score for piece, score in train_unigram(words, room) if piece not in self.reserved}
        ids = self._ids(scores)
        never = -1e4  # no text is ever segmented into the names of special tokens
        model = models.Unigram([(piece, scores.get(piece, never)) for piece in ids], ids["<unk>"], bool(self.bytes))
        return _assemble(model, _metaspace(), _unmark(self.bytes))

    def _chars(self, texts: Iterable[str], vocab_size: int | None) -> Tokenizer:
        counts: Counter = Counter()
        for text in texts:
            counts.update(text)
        ids = self._symbol_ids(counts, vocab_size, "characters of the text")
        bytes_then_join = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return _assemble(models.BPE(ids, [], **self._unknown()), None, bytes_then_join)

    def _words(self, texts: Iterable[str], vocab_size: int | None) -> Tokenizer:
        counts: Counter = Counter()
        for text in texts:
            counts.update(text.split())
        ids = self._symbol_ids(counts, vocab_size, "words of the text")
        return _assemble(models.WordLevel(ids, "<unk>"), pre_tokenizers.WhitespaceSplit(), None)

    def _symbol_ids(self, counts: Counter, vocab_size: int | None, what: str) -> dict[str, int]:
        symbols = self._frequent(counts)
        if vocab_size is not None:
            self._room(vocab_size, len(symbols), what)
        return self._ids(symbols)

    def _unknown(self) -> dict[str, Any]:
        return {"unk_token": "<unk>", "byte_fallback": bool(self.bytes)}


def _metaspace() -> pre_tokenizers.PreTokenizer:
    """Words at white space, each with the mark of its beginning."""
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")])


def _unmark(byte_pieces: list[str]) -> decoders.Decoder:
    unmark = decoders.Metaspace(SPACE, prepend_scheme="always")
    return decoders.Sequence([decoders.ByteFallback(), unmark]) if byte_pieces else unmark


def _assemble(model: models.Model, split, join) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if split is not None:
        tokenizer.pre_tokenizer = split
    if join is not None:
        tokenizer.decoder = join
    return tokenizer


def _repeat(words: Counter) -> Iterator[str]:
    """The words as often as they were counted, for a trainer that counts itself."""
    for word, count in sorted(words.items()):
        for done in range(0, count, 10_000):
            yield " ".join([word] * min(10_000, count - done))


def _texts(corpus: Corpus, keep_line_ends: bool) -> Iterator[str]:
    """The lines of the files, or the texts of the iterable."""
    paths = _paths(corpus)
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such text file. To train on the strings of a list, pass iter(list)")
    if paths:
        yield from chain.from_iterable(_lines(path, keep_line_ends) for path in paths)
        return
    for number, text in enumerate(corpus):  # type: ignore[arg-type]
        if not isinstance(text, str):
            raise ValueError(f"text {number} is {text!r}, a {type(text).__name__}; training takes an iterable of strings")
        yield text


def _paths(corpus: Corpus) -> list[Path]:
    if isinstance(corpus, (str, os.PathLike)):
        return [Path(corpus)]
    if not isinstance(corpus, (list, tuple)) or not all(isinstance(item, (str, os.PathLike)) for item in corpus):
        return []
    named = any(not isinstance(item, str) or os.path.isfile(item) for item in corpus)
    if named or (corpus and all(item.endswith(".txt") for item in corpus)):
        return [Path(item) for item in corpus]
    return []


def _lines(path: Path, keep_line_ends: bool) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from file if keep_line_ends else (line.rstrip("\r\n") for line in file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error

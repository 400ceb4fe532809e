"""The text behind token ids: where words and sentences begin, so that noise can be counted in words and move sentences.

- A word begins at the white space before it, or at its first character where the text begins; punctuation belongs to the
  word before it. Scripts without spaces (Chinese, Japanese, Thai, ...) have a word at each letter that begins a token.
- A sentence ends after a sentence mark of any script and the quotes and brackets that close behind it. `.`, `!`, `?` and
  `…` must stand before white space or the end: "3.14" goes on. An abbreviation before a space ends one, as in BART.
- Both are found in the text itself, whose bytes each token is known by: byte-level pieces may be parts of a character.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from transduct.tokenization import TransductTokenizer

SPACE, GLUE, UNSPACED, MARK, FULL_STOP, CLOSING, QUOTE = 1, 2, 4, 8, 16, 32, 64
"""Classes of characters, as bits: white space; space that breaks no line; letters of scripts without spaces; marks that end a
sentence before white space; marks that always do; what closes behind a mark; quotes that close only before white space."""

_SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_GLUE = "\xa0\u202f"
_MARKS = ".!?…‥‼‽⁇⁈⁉．"
_FULL_STOPS = "。｡！？؟۔।॥։።፧။។៕᠃᠉\u0f0d\u0f0e᙮꓿꘎꘏"
_QUOTES = "“‘«‹"  # they close in German and Danish, and open in Chinese
_CLOSING = "\"')]}”’»›）］｝」』】》〉〕｣＂＇" + _GLUE
_UNSPACED_LETTERS = (
    *((0x0E01, 0x0E30), (0x0E32, 0x0E33), (0x0E40, 0x0E46)),  # Thai, without the marks above and below
    *((0x0E81, 0x0EB0), (0x0EB2, 0x0EB3), (0x0EC0, 0x0EC6), (0x0F40, 0x0F6C)),  # Lao, Tibetan
    *((0x1000, 0x102A), (0x1780, 0x17B3), (0xA000, 0xA48C)),  # Burmese, Khmer, Yi
    *((0x3041, 0x3096), (0x30A1, 0x30FA), (0xFF66, 0xFF9D), (0x3105, 0x312F)),  # kana, bopomofo
    *((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),  # Han
)
_LONE_BYTES = (0xDC80, 0xDCFF)
"""How Python shows bytes that are no whole character, one each."""


@dataclass(frozen=True, eq=False)
class TokenText:
    """What the objectives need to know of a vocabulary of V ids.

    Args:
        pieces: the UTF-8 bytes that each id stands for, with the white space that it holds.
        fixed: bool (V,): special tokens, which no noise touches. The mask and the unknown token are not among them.
        mask_token_id: stands for what was hidden; None where there is none.

    Raises:
        ValueError: if `fixed` has not one entry a piece, or nothing but special tokens.
    """

    pieces: tuple[bytes, ...]
    fixed: np.ndarray
    mask_token_id: int | None = None

    def __post_init__(self):
        if self.fixed.shape != (len(self.pieces),) or self.fixed.dtype != bool:
            raise ValueError(f"fixed of shape {self.fixed.shape}, {self.fixed.dtype}, must be bool ({len(self.pieces)},)")
        if self.fixed.all():
            raise ValueError("fixed is True everywhere: there is no token that stands for text")

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> "TokenText":
        """Of any fast tokenizer of transformers: byte-level, SentencePiece-like, WordPiece, words or characters.

        Raises:
            ValueError: for a tokenizer that is not a fast one, and for separate vocabularies.
        """
        if not tokenizer.is_fast:
            raise ValueError(f"{type(tokenizer).__name__} is not a fast tokenizer: give TokenText its pieces yourself")
        if isinstance(tokenizer, TransductTokenizer) and tokenizer.separate_vocabularies:
            raise ValueError("the tokenizer has a vocabulary for each side: what is denoised is source and target in one")
        size = len(tokenizer)
        added = tokenizer.added_tokens_decoder
        fixed = np.zeros(size, dtype=bool)
        fixed[[i for i, token in added.items() if token.special] + list(tokenizer.all_special_ids)] = True
        text_like = [i for i in (tokenizer.unk_token_id, tokenizer.mask_token_id) if i is not None]
        fixed[text_like] = False
        to_bytes = _piece_reader(tokenizer)
        tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
        pieces = [b"\n" if special or token is None else to_bytes(token) for token, special in zip(tokens, fixed, strict=True)]
        for i, token in added.items():
            if not fixed[i]:
                pieces[i] = token.content.encode()
        for i in text_like:
            pieces[i] = to_bytes("\ufffd") if i == tokenizer.unk_token_id else " \ufffd".encode()
        return cls(tuple(pieces), fixed, tokenizer.mask_token_id)

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """The ids that stand for text, without the mask."""
        return np.flatnonzero(~self.fixed & (np.arange(len(self.pieces)) != self.mask_token_id))

    def is_fixed(self, ids: np.ndarray) -> np.ndarray:
        """Special tokens, which stay: bool (n,).

        Raises:
            ValueError: for an id outside the vocabulary.
        """
        if ids.size and ids.max() >= len(self.pieces):
            raise ValueError(f"ids holds {ids.max()}, but the vocabulary has {len(self.pieces)} ids: use the tokenizer's own")
        return self.fixed[ids]

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """The first token of each word: bool (n,), False at special tokens."""
        fixed = self.is_fixed(ids)
        after_fixed = np.concatenate([[True], fixed[:-1]])[: len(ids)]
        codes, _, char_of_token, _ = self._characters(ids)
        space = _has(codes, SPACE)
        after_space = np.concatenate([[True], space[:-1]])[: len(codes)]
        begins = ~space & (after_space | _has(codes, UNSPACED))  # at the first character behind the white space
        word = np.cumsum(begins) - 1 + space  # white space counts to the word that follows
        inside = ~space & ~begins
        word = np.append(np.where(inside | (word >= begins.sum()), -1, word), -1)[char_of_token]  # (n,); -1: begins no word
        return ((word >= 0) & (word != np.concatenate([[-1], word[:-1]])[: len(ids)]) | after_fixed) & ~fixed

    def sentence_ends(self, ids: np.ndarray) -> np.ndarray:
        """The last token of each sentence that has a mark: bool (n,), False at special tokens."""
        codes, last_byte, _, token_of_byte = self._characters(ids)
        ends = np.zeros(len(ids), dtype=bool)
        if not codes.size:
            return ends
        breaks = _has(codes, SPACE) & ~_has(codes, GLUE)
        before_break = np.append(breaks[1:], True)
        closing = _has(codes, CLOSING) | (_has(codes, QUOTE) & before_break)
        mark = np.maximum.accumulate(np.where(closing, 0, np.arange(len(codes))))  # the last character that closes nothing
        tail = _has(codes, MARK | FULL_STOP)[mark]  # a mark, or what closes behind it
        last_of_tail = tail & ~np.append(tail[1:], False) & (before_break | _has(codes, FULL_STOP)[mark])
        ends[token_of_byte[last_byte[last_of_tail]]] = True
        return ends & ~self.is_fixed(ids)

    def _characters(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Code points of the text (C,) and their last bytes (C,); the character that each token begins with (n,), C where it
        begins inside one; the token of each byte."""
        self.is_fixed(ids)
        parts = [self.pieces[i] for i in ids.tolist()]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        text = b"".join(parts)
        points = text.decode("utf-8", "surrogateescape").encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(points, "<u4")
        widths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
        widths[(codes >= _LONE_BYTES[0]) & (codes <= _LONE_BYTES[1])] = 1
        after = np.cumsum(widths)
        char_at = np.full(len(text) + 1, len(codes))
        char_at[after - widths] = np.arange(len(codes))
        return codes, after - 1, char_at[np.cumsum(sizes) - sizes], np.repeat(np.arange(len(ids)), sizes)


@cache
def _classes() -> np.ndarray:
    """The classes of each code point, uint8 (0x110000,)."""
    table = np.zeros(0x110000, dtype=np.uint8)
    members = {SPACE: _SPACES, GLUE: _GLUE, MARK: _MARKS, FULL_STOP: _FULL_STOPS, CLOSING: _CLOSING, QUOTE: _QUOTES}
    for bit, characters in members.items():
        table[[ord(character) for character in characters]] |= bit
    for first, last in _UNSPACED_LETTERS:
        table[first : last + 1] |= UNSPACED
    return table


def _has(codes: np.ndarray, bits: int) -> np.ndarray:
    return (_classes()[codes] & bits) != 0


def _piece_reader(tokenizer: Any) -> Callable[[str], bytes]:
    """The function from a token as the vocabulary spells it to its bytes."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = set(_types(backend["pre_tokenizer"])) | set(_types(backend["decoder"]))
    if "ByteLevel" in parts:
        byte_of = _byte_level_alphabet()
        return lambda token: b"".join(byte_of.get(character, character.encode()) for character in token)
    if "WordPiece" in parts:
        return lambda token: (token[2:] if token.startswith("##") else " " + token).encode()
    if backend["model"]["type"] == "WordLevel":
        return lambda token: b" " + token.encode()
    suffix = "</w>" if "BPEDecoder" in parts else ""
    marks = json.dumps([backend["normalizer"], backend["pre_tokenizer"], backend["decoder"]], ensure_ascii=False)
    space = "▁" if "▁" in marks else " "

    def read(token: str) -> bytes:
        if backend["model"].get("byte_fallback") and (match := re.fullmatch(r"<0x([0-9A-F]{2})>", token)):
            return bytes([int(match[1], 16)])
        if suffix and token.endswith(suffix):
            token = token.removesuffix(suffix) + " "
        return token.replace(space, " ").encode()

    return read


def _types(part: Any) -> Iterator[str]:
    """The types of a pre-tokenizer or decoder and of those that it is made of."""
    if isinstance(part, dict):
        yield from [part["type"]] if isinstance(part.get("type"), str) else []
        for value in part.values():
            yield from _types(value)
    elif isinstance(part, list):
        for value in part:
            yield from _types(value)


def _byte_level_alphabet() -> dict[str, bytes]:
    """The byte that each character of byte-level pieces stands for: printable ones themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)}

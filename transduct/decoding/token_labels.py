"""Tokens as a reader sees them: a name for each id that can be drawn, whatever the text holds.

A byte-level vocabulary writes " ä" as "ĠÃ¤"; here it is what it stands for. What has no shape of its own is written out: a space
as ␣, other controls and formatting characters (those that turn the direction of text among them) by their code, U+202E.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any

WORD_START = "▁"
"""How SentencePiece writes the space before a word; it stays."""
NAMES = {" ": "␣", "\n": "↵", "\t": "⇥"}
BLANKS = ("\u115f", "\u1160", "\u2800", "\u3164", "\uffa0")
"""Letters and a sign that are drawn as nothing: Hangul's fillers and Braille without dots."""
JOINERS = ("\u200c", "\u200d")
"""Zero-width characters that shape the letters or signs beside them, as in Persian and in emoji."""


def source_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """A label for each token of a source."""
    if getattr(tokenizer, "separate_vocabs", False):  # Marian's reads ids as those of the target
        names = {number: token for token, number in tokenizer.get_vocab().items()}
        return [_label(tokenizer, names[number]) for number in ids]
    return [_label(tokenizer, token) for token in tokenizer.convert_ids_to_tokens(list(ids))]


def target_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """A label for each token of a target."""
    if not hasattr(tokenizer, "as_target"):
        return [_label(tokenizer, token) for token in tokenizer.convert_ids_to_tokens(list(ids))]
    with tokenizer.as_target():
        return [_label(tokenizer, token) for token in tokenizer.convert_ids_to_tokens(list(ids))]


def _label(tokenizer: Any, token: str | None) -> str:
    if token is None:  # an id that the model has and the tokenizer has not
        return "?"
    if token in tokenizer.all_special_tokens or token.startswith(WORD_START):
        return visible(token)
    text = tokenizer.convert_tokens_to_string([token])
    return visible(token if not text or "\ufffd" in text else text)


def visible(text: str) -> str:
    """A text with a shape for each of its characters, in one line."""
    shown = "".join(NAMES.get(each) or (_code(each) if _is_shapeless(each) else each) for each in text)
    if text and all(each in JOINERS for each in text):
        return "".join(map(_code, text))
    if text and unicodedata.category(text[0])[0] == "M":
        return f"◌{shown}"
    return shown


def _is_shapeless(character: str) -> bool:
    """Whether it is a control, a blank other than the usual one, no character at all, or turns the direction of text."""
    category = unicodedata.category(character)
    return character in BLANKS or (character not in JOINERS and category in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"


def clipped(label: str, most: int) -> str:
    """A label of at most so many characters, the last of them … where it was longer."""
    return label if len(label) <= most else f"{label[: most - 1]}…"

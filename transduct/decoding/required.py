"""What a target must contain or begin with, as texts: the token ids that a search is told.

A phrase may stand at the beginning, in the middle of a text or of a word, and many tokenizers cut it differently there. So each
text has several forms: as it is, behind a space, and without a token for that space alone. One of them suffices.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from transduct.decoding.texts import check_text, target_ids


class Required(NamedTuple):
    """What the targets of one text must have.

    Args:
        phrases: each a text, or several texts, such as inflections, one of which suffices. prefix: what targets begin with.
    """

    phrases: tuple[str | tuple[str, ...], ...] = ()
    prefix: str = ""


NOTHING = Required()


def required_of(
    texts: Iterable[str], phrases: Iterable[Sequence[str | Sequence[str]]] | None, prefixes: Iterable[str] | None
) -> Iterator[tuple[str, Required]]:
    """Each text, and what its targets must have.

    Raises:
        ValueError: for more or fewer phrases or prefixes than texts, and for what is not of their form.
    """
    missing = object()
    of_phrases, of_prefixes = iter(phrases or ()), iter(prefixes or ())
    for number, text in enumerate(texts, start=1):
        own: Any = () if phrases is None else next(of_phrases, missing)
        prefix: Any = "" if prefixes is None else next(of_prefixes, missing)
        for name, value in (("phrases", own), ("target_prefixes", prefix)):
            if value is missing:
                raise ValueError(f"{name} has {number - 1} entries, but there are more texts: each needs one, which may be empty")
        if not isinstance(own, Sequence) or isinstance(own, str) or not isinstance(prefix, str):
            raise ValueError(f"line {number}: phrases must be a list of texts, and the prefix a text, not {own!r} and {prefix!r}")
        for phrase in own:
            if not isinstance(phrase, Sequence):
                raise ValueError(f"line {number}: phrase {phrase!r} must be a text, or several texts, of more than white space")
        yield text, Required(tuple(phrase if isinstance(phrase, str) else tuple(phrase) for phrase in own), prefix)
    for name, rest in (("phrases", of_phrases), ("target_prefixes", of_prefixes)):
        if next(rest, missing) is not missing:
            raise ValueError(f"{name} has more entries than there are texts: each text needs one")


def phrase_ids(tokenizer: Any, phrase: str | Sequence[str], number: int) -> list[list[int]]:
    """The forms of a phrase, shortest first; `number` is that of its line, for messages.

    Raises:
        ValueError: for a phrase without text, or that no output can show.
    """
    found: list[list[int]] = []
    for text in [phrase] if isinstance(phrase, str) else phrase:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"line {number}: phrase {phrase!r} must be a text, or several texts, of more than white space")
        check_text(text, f"a phrase of line {number}")
        for form in (text, f" {text.lstrip()}"):
            ids = list(tokenizer(text_target=form, add_special_tokens=False, verbose=False)["input_ids"])
            found.append(ids)
            if len(ids) > 1 and not tokenizer.decode(ids[:1]).strip():
                found.append(ids[1:])
    for ids in found:
        _check_ids(tokenizer, ids, f"line {number}: phrase {phrase!r}")
    forms: list[list[int]] = []
    for ids in sorted(found, key=len):
        if not any(_ends_with(ids, form) for form in forms):  # else met as soon as the shorter one is
            forms.append(ids)
    return forms


def _check_ids(tokenizer: Any, ids: Sequence[int], name: str) -> None:
    """Raises ValueError for tokens that no output shows as the text that they were made of."""
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"{name} has characters that the vocabulary does not have")
    if hidden := set(tokenizer.all_special_ids).intersection(ids):
        raise ValueError(f"{name} holds the special token {tokenizer.convert_ids_to_tokens(min(hidden))}, which no output shows")


def _ends_with(ids: list[int], form: list[int]) -> bool:
    return ids[len(ids) - len(form) :] == form


def prefix_ids(tokenizer: Any, prefix: str, first: int | None, number: int) -> list[int]:
    """The first tokens of a target that begins so, with what the tokenizer puts before any target.

    Args:
        first: the token that generation forces at the beginning, None: none; number: that of the line, for messages.

    Raises:
        ValueError: for a prefix that is no text, or that no output can show.
    """
    if not prefix:
        return []
    check_text(prefix, f"the prefix of line {number}")
    own = tokenizer(text_target=prefix, add_special_tokens=False, verbose=False)["input_ids"]
    _check_ids(tokenizer, own, f"line {number}: the prefix {prefix!r}")
    ids = target_ids(tokenizer, prefix, first, f"the prefix of line {number}")
    return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids

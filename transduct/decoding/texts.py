"""Texts on their way to a model: what is none is refused, and a target has the ids that generation would write for it."""

from typing import Any


def check_text(text: Any, name: str) -> None:
    """Raises ValueError for what no tokenizer can encode; `name` is what the message calls it, such as "line 3"."""
    if not isinstance(text, str):
        raise ValueError(f"{name} is a {type(text).__name__}, not a string")
    if "\0" in text:
        raise ValueError(f"{name} holds a NUL character, which is no text: remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is no valid Unicode at character {error.start}: it was decoded wrongly") from None


def check_texts(name: str, texts: Any) -> None:
    """Raises ValueError for one text in the place of several, and for what holds none."""
    if isinstance(texts, str):
        raise ValueError(f"{name} is one string: pass a list of them, such as [text]")
    try:
        iter(texts)
    except TypeError:
        raise ValueError(f"{name} is a {type(texts).__name__}: pass a list of texts, or anything else that yields them") from None


def target_ids(tokenizer: Any, text: str, first: int | None, name: str) -> list[int]:
    """The ids that generation would write for a target, up to the end token.

    Args:
        first: the token that generation forces at the beginning, None: none; name: what a message calls the target.

    Raises:
        ValueError: for a target in which the end token is written out, so that a part of it would be lost.
    """
    ids = list(tokenizer(text_target=text, verbose=False)["input_ids"])
    end = tokenizer.eos_token_id
    if str(tokenizer.eos_token) in text and end in tokenizer(text_target=text, add_special_tokens=False)["input_ids"]:
        raise ValueError(f"{name} holds the end token {tokenizer.eos_token}, behind which nothing is written: remove it")
    ids = ids[: ids.index(end) + 1] if end in ids else ids
    return ids if first is None or ids[:1] == [first] else [first, *ids]

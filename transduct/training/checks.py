"""Checks of what users write into recipes and arguments. Their errors name the key's path, the value and the rule."""

import difflib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from enum import Enum
from math import isfinite
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from transduct.configuration import ConfigurationError

NAMES_OF_TYPES: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    dict: ("a mapping", "mappings"),
    list: ("a list", "lists"),
    NoneType: ("None", "None"),
}
"""What messages call one value of a type, and several."""


def keys_of(section: type) -> dict[str, bool]:
    """Names of a section's keys, each with whether it must be given."""
    return {
        f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(section) if not f.metadata.get("internal")
    }


def checked(raw: Any, section: type, path: str) -> dict[str, Any]:
    """A copy of `raw`, if it is a mapping with all of the section's needed keys and no others."""
    keys = keys_of(section)
    if not isinstance(raw, Mapping):
        raise ValueError(f"{path or 'the recipe'} must be a mapping with keys of {', '.join(keys)}, not {raw!r}")
    for key in raw:
        if key not in keys:
            raise unknown_key(f"{path}.{key}".lstrip("."), str(key), keys)
    for key, needed in keys.items():
        if needed and raw.get(key) is None:
            raise ValueError(f"{path}.{key}".lstrip(".") + " is missing from the recipe")
    return dict(raw)


def unknown_key(path: str, key: str, known: Iterable[str]) -> ValueError:
    """The error for a key that is not one of `known`, with those that it may have meant."""
    known = sorted(known)
    close = difflib.get_close_matches(key, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    return ValueError(f"{path} is no key of a recipe: {hint}")


def check_names(raw: Any, path: str, known: Iterable[str]) -> None:
    """Refuses a mapping with a key that is not one of `known`."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{path} must be a mapping, not {raw!r}")
    for key in raw:
        if key not in known:
            raise unknown_key(f"{path}.{key}", str(key), known)


def check_count(value: Any, path: str, least: int | None = None) -> None:
    """Refuses all but whole numbers of at least `least`, which may be any if that is None."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise ValueError(f"{path}={value!r} must be a whole number" + ("" if least is None else f" of at least {least}"))


def check_number(value: Any, path: str, above: float | None = None) -> None:
    """Refuses all but finite numbers, and those that are not above `above`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{path}={value!r} must be a number")
    if above is not None and value <= above:
        raise ValueError(f"{path}={value!r} must be more than {above}")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that a hint is. Where a name stands for an `Enum`'s member, the `Enum` alone."""
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    found = tuple(part for outer in get_args(hint) for part in alternatives(outer))
    return tuple(part for part in found if part is not str) if any(map(is_enum, found)) else found


def check_type(value: Any, hint: Any, path: str) -> None:
    """Refuses a value that is not of the type of a hint: a plain type, a list of one, `Literal`, `Enum`, or a union of these."""
    kinds = alternatives(hint)
    if not any(_fits(value, kind) for kind in kinds):
        told = sorted((kind for kind in kinds if not (kind is int and float in kinds)), key=lambda kind: kind is NoneType)
        *others, last = (name for kind in told for name in _names(kind))
        raise ValueError(f"{path}={value!r} must be {', '.join(others)}{' or ' if others else ''}{last}")


def is_enum(kind: Any) -> bool:
    """Whether a type is an enumeration."""
    return isinstance(kind, type) and issubclass(kind, Enum)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if is_enum(kind):
        return isinstance(value, kind) or value in [member.value for member in kind]
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if get_origin(kind) is list:
        return isinstance(value, (list, tuple)) and all(_fits(item, get_args(kind)[0]) for item in value)
    return isinstance(value, (str, PathLike) if kind is str else get_origin(kind) or kind)


def _names(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if is_enum(kind):
        return [repr(member.value) for member in kind]
    if get_origin(kind) is list:
        return [f"a list of {NAMES_OF_TYPES[get_args(kind)[0]][1]}"]
    return [NAMES_OF_TYPES[get_origin(kind) or kind][0]]


@contextmanager
def in_section(section: str, keys: Container[str], **renamed: str) -> Iterator[None]:
    """Errors inside that begin with a key, "key=value" or "key.part", get its path in a recipe, and lose the words around them.

    Args:
        section: of the recipe, such as "model".
        keys: of the section.
        renamed: keys that errors know by another name: that name -> the key.
    """
    try:
        yield
    except ValueError as error:
        cause: BaseException = error
        while isinstance(error, ConfigurationError) and cause.__cause__ is not None:
            cause = cause.__cause__
        named = re.match(r"(\w+)(?=[=.:])", str(cause))
        key = None if named is None else renamed.get(named[1], named[1])
        if named is None or key not in keys:
            raise
        raise ValueError(f"{section}.{key}{str(cause)[named.end(1) :]}") from error

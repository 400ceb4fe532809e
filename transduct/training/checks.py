"""Checks of what users write into recipes and arguments. Their errors name the key's path, the value and the rule."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from math import isfinite
from typing import Any


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

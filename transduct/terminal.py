"""What commands print: texts of others, of which a terminal would act on some characters, and JSON that every program reads."""

import json
import math
import re
from typing import Any

_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str, lines: bool = False) -> str:
    """The same text with what is no character to see, such as an escape, told by its number.

    Args:
        lines: whether it may have several; if not, a line break is told too, so that no text looks like a line of its own.
    """
    return "".join(char if char.isprintable() or (lines and char == "\n") else repr(char)[1:-1] for char in text)


def harmless(text: str) -> str:
    """The same text with control characters told by their numbers. Marks that texts of a language need, such as joiners, stay."""
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def json_text(value: Any) -> str:
    """JSON that every reader takes, whatever the output's encoding and the names of files are; numbers that are none are null."""
    return json.dumps(_of_json(value), indent=2, allow_nan=False)


def _of_json(value: Any) -> Any:
    """The same value with None for NaN and infinities, which JSON has no words for."""
    if isinstance(value, dict):
        return {key: _of_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_of_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What must not be published: tokens, addresses with passwords, and paths of the computer that a model was made on."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

SECRET_KEYS = re.compile(r"(?i)(hub|api|access|auth).?token|password|secret|api.?key|credential")
TOKENS = re.compile(r"\b(?:hf|api_org|gh[pousr])_[A-Za-z0-9]{16,}")
"""Of the Hub, and of the place that code usually comes from."""
HIDDEN = "..."
SHORTEST = 12
"""Characters of a token."""

_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_PATHS = re.compile(r"(?<![\w.:/\\~-])(?:~[\w.-]*|[A-Za-z]:)?[/\\](?:[^\s/\\'\",;:()<>|]+[/\\])+([^\s/\\'\",;:()<>|]*)")
"""An absolute path of at least two parts, with its last part; addresses such as https://host/name are none."""


def without_secrets(value: Any) -> Any:
    """A value as of YAML, such as a recipe, without tokens and passwords; of absolute paths the names are left."""
    if isinstance(value, Mapping):
        return {
            without_secrets(key): HIDDEN if SECRET_KEYS.search(str(key)) else without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secrets(inner) for inner in value]
    return public_text(value) if isinstance(value, str) else value


def public_text(text: str) -> str:
    """A text without tokens, passwords of addresses, and folders of absolute paths."""
    if "://" not in text and (PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~")):
        return PureWindowsPath(text).name
    return _PATHS.sub(r"\1", _USERINFO.sub("", TOKENS.sub(HIDDEN, text)))


def holds_token(text: str, token: str | None = None) -> bool:
    """Whether a text holds this token, unless that is so short that it may be a word, or one of which the form is known."""
    return bool((token and len(token) >= SHORTEST and token in text) or TOKENS.search(text))

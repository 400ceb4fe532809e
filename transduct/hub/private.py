"""What must not be published: tokens, addresses with passwords, and paths of the computer that a model was made on."""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

SECRET_KEYS = re.compile(
    r"(?i)^token$|(hub|hf|api|access|auth|bearer|refresh|session|git\w*).?token|passw(or)?d|passphrase|secret|credential|authorization"
    r"|(api|access|private).?key"
)
TOKENS = re.compile(
    r"\b(?:(?:hf|api_org|gh[pousr]|github_pat)_[A-Za-z0-9]{16,}\w*|glpat-[\w-]{16,}|sk-(?:(?:proj|ant|svcacct)-[\w-]{16,}|[A-Za-z0-9]{20,}))"
)
"""Of the Hub, of places that code comes from, and of services that computing is asked of."""
HIDDEN = "..."
SHORTEST = 12
"""Characters of a token."""

CHUNK, LONGEST = 1 << 20, 4096
"""Bytes of a file that are looked at together, and those of them that are looked at again with the next ones."""

_USERINFO = re.compile(r"(?<=://)[^/\s]+@")
_QUERY = re.compile(r"(://[^\s?#'\"<>]*)[?#][^\s'\"<>]*")
_FILE = re.compile(r"(?i)\bfile:(?://[^/\\\s]*)?(?:/(?=[a-z]:[/\\])|(?=/))")
"""What makes an address of a path."""
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
    """A text without tokens, passwords and queries of addresses, and folders of absolute paths."""
    text = _FILE.sub("", text)
    if "://" not in text and (PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~")):
        return PureWindowsPath(text).name
    return _PATHS.sub(r"\1", _QUERY.sub(r"\1", _USERINFO.sub("", TOKENS.sub(HIDDEN, text))))


def holds_token(text: str, token: str | None = None) -> bool:
    """Whether a text holds this token, unless that is so short that it may be a word, or one of which the form is known."""
    return bool((token and len(token) >= SHORTEST and token in text) or TOKENS.search(text))


def found_in(path: Path, token: str | None = None) -> tuple[bool, bool]:
    """Whether a file of whatever kind and size holds a token, and whether it names a folder of whoever runs this.

    Its zero bytes are passed over, so that UTF-16 is read too.
    """
    home, before, names_home = os.fsencode(f"{Path.home()}{os.sep}"), b"", False
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            seen = before + chunk.replace(b"\0", b"")
            if holds_token(seen.decode("ascii", errors="replace"), token):
                return True, names_home
            names_home = names_home or home in seen
            before = seen[-LONGEST:]
    return False, names_home

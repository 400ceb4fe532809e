"""Real parallel text, for its distribution of lengths: English and German strings of Home Assistant's user interface.

They lie in the wheel of PyPI's `homeassistant==2024.3.3` (Apache-2.0), which is downloaded into `.cache/` and read as an archive,
never installed. Another text is another entry of `TEXTS`: where it comes from, and a function that reads its pairs.

    python benchmarks/translation_text.py    # downloads once, checks the pairs, prints their lengths
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache"
Pair = tuple[str, str]


@dataclass(frozen=True)
class Text:
    """A corpus: how to read its (source, target) pairs, how many there are, and 16 digits of their SHA-256."""

    read: Callable[[], list[Pair]]
    count: int
    digest: str


def translation_pairs(name: str = "homeassistant") -> list[Pair]:
    """All pairs of a text of `TEXTS`, in a fixed order.

    Raises:
        RuntimeError: where the text cannot be fetched, naming the command that does.
        ValueError: where what was read is not the text that this benchmark was written for.
    """
    if name not in TEXTS:
        raise ValueError(f"name={name!r} is not one of {', '.join(TEXTS)}")
    text = TEXTS[name]
    pairs = text.read()
    digest = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]
    if (len(pairs), digest) != (text.count, text.digest):
        found = f"{len(pairs)} pairs with digest {digest}"
        raise ValueError(f"name={name!r}: {found}, expected {text.count} with {text.digest}; delete {CACHE / name} and try again")
    return pairs


def fetch_wheel(package: str, version: str) -> Path:
    """The wheel of a package, downloaded into the cache unless it is there."""
    folder = CACHE / package
    found = sorted(folder.glob(f"{package}-{version}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), f"{package}=={version}"]
        result = subprocess.run(command, capture_output=True, text=True)
        found = sorted(folder.glob(f"{package}-{version}-*.whl"))
        if result.returncode or not found:
            reason = (result.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
            raise RuntimeError(
                f"{package}=={version} cannot be fetched ({reason}). Where PyPI can be reached, run:\n  {' '.join(command)}"
            )
    return found[0]


def strings(tree: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The strings of nested dicts, each with the keys that lead to it."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from strings(value, (*path, key))
        elif isinstance(value, str):
            yield (*path, key), value


def interface_strings(wheel: Path) -> list[Pair]:
    """Strings with the same keys in `translations/en.json` and `de.json`; each pair once, and none that was left in English."""
    pairs: dict[Pair, None] = {}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in sorted(names):
            german_name = name.removesuffix("en.json") + "de.json"
            if not name.endswith("/translations/en.json") or german_name not in names:
                continue
            german = dict(strings(json.loads(archive.read(german_name))))
            for path, english in strings(json.loads(archive.read(name))):
                if path in german and german[path] != english:
                    pairs[english, german[path]] = None
    return list(pairs)


def _example() -> list[Pair]:
    """Pairs of very unequal length, written for `--quick`, which must not need a download."""
    short = [("Open", "Öffnen"), ("Close the window", "Das Fenster schließen"), ("Name", "Bezeichnung"), ("Yes", "Ja")]
    long = (
        "The device did not answer in time; check that it is switched on and try again.",
        "Das Gerät hat nicht rechtzeitig geantwortet; prüfe, ob es eingeschaltet ist, und versuche es erneut.",
    )
    return [*short, long, ("Enter the password of your account", "Gib das Passwort deines Kontos ein")]


TEXTS = {
    "homeassistant": Text(lambda: interface_strings(fetch_wheel("homeassistant", "2024.3.3")), 13115, "8eb57ee839a4e393"),
    "example": Text(_example, 6, "7813658901303db3"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Downloads and checks the text, and prints how long its pairs are.")
    parser.add_argument("--text", choices=list(TEXTS), default="homeassistant")
    parser.add_argument("--quick", action="store_const", dest="text", const="example", help="a text that needs no download")
    name = parser.parse_args().text
    pairs = translation_pairs(name)
    print(f"{name}: {len(pairs):,} pairs")
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        words = sorted(len(text.split()) for text in texts)
        tenths = ", ".join(str(words[int(share * (len(words) - 1))]) for share in (0.5, 0.9, 0.99, 1))
        print(f"words of a {side}: mean {statistics.mean(words):.1f}; median, 90 %, 99 %, longest: {tenths}")


if __name__ == "__main__":
    main()

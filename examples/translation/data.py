"""English and German sentences for translation: the help pages of LibreOffice, and the interface of Home Assistant.

- `libreoffice`: the pages of Debian's `libreoffice-help-en-us` and `libreoffice-help-de` (MPL-2.0) carry the same paragraph ids.
  Pairs are joined by (page, id); those that were left in English and repeated ones are dropped. A page belongs to one split: the
  first 8 hexadecimal digits of its name's SHA-256, modulo 20: 0 test, 1 validation, the rest training; sources that training has
  seen are taken out of the other two. Version 7.4.7 has 32,104 / 1,319 / 1,719 pairs; another version of the packages has others.
  They are fetched with `apt-get download` and read as archives, never installed.
- `homeassistant`: 13,115 strings of PyPI's `homeassistant==2024.3.3` (Apache-2.0), read by `benchmarks/translation_text.py`. They
  are split in the same way, by the SHA-256 of the English string.

Both are software prose: figures on them say nothing about news or literature.

    python examples/translation/data.py libreoffice    # fetches, counts, and checks
"""

import argparse
import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "libreoffice"
SPLITS = ("train", "validation", "test")
HELP = "usr/share/libreoffice/help"
Triple = tuple[str, str, str]
"""Page, source, target."""


def libreoffice(split: str) -> Iterator[tuple[str, str]]:
    """Pairs of a split of the help pages, in the order of the pages."""
    return _pairs_of(split, _libreoffice_splits())


def homeassistant(split: str) -> Iterator[tuple[str, str]]:
    """Pairs of a split of the interface's strings."""
    return _pairs_of(split, _homeassistant_splits())


def _pairs_of(split: str, splits: dict[str, list[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    if split not in splits:
        raise ValueError(f"split={split!r} must be one of {', '.join(SPLITS)}")
    return iter(splits[split])


def split_of(key: str) -> str:
    """The split of a page or a text."""
    return {0: "test", 1: "validation"}.get(int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % 20, "train")


def split_triples(triples: list[Triple]) -> dict[str, list[tuple[str, str]]]:
    """Pairs by split; none of the sources of training is in the other two."""
    splits: dict[str, list[tuple[str, str]]] = {name: [] for name in SPLITS}
    for key, source, target in triples:
        splits[split_of(key)].append((source, target))
    seen = {source for source, _ in splits["train"]}
    for name in SPLITS[1:]:
        splits[name] = [pair for pair in splits[name] if pair[0] not in seen]
    return splits


@cache
def _homeassistant_splits() -> dict[str, list[tuple[str, str]]]:
    pairs = _benchmark_text().translation_pairs("homeassistant")
    return split_triples([(source, source, target) for source, target in pairs])


@cache
def _libreoffice_splits() -> dict[str, list[tuple[str, str]]]:
    english, german = (help_pages(fetch(f"libreoffice-help-{name}"), code) for name, code in (("en-us", "en-US"), ("de", "de")))
    return split_triples(aligned(english, german))


def aligned(english: dict[str, dict[str, str]], german: dict[str, dict[str, str]]) -> list[Triple]:
    """Paragraphs with the same id on the same page, each pair once, and none that was left in English."""
    found: dict[tuple[str, str], str] = {}
    for page in sorted(english.keys() & german.keys()):
        for identifier, source in english[page].items():
            target = german[page].get(identifier)
            if target and source != target:
                found.setdefault((source, target), page)
    return [(page, source, target) for (source, target), page in found.items()]


class Paragraphs(HTMLParser):
    """Texts of the paragraphs and headings of one help page by their ids, white space made single."""

    def __init__(self, page: str):
        super().__init__()
        self.texts: dict[str, str] = {}
        self._id, self._tag, self._words = "", "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        identifier = dict(attributes).get("id") or ""
        if identifier.startswith(("par_id", "hd_id")):
            self._id, self._tag, self._words = identifier, tag, []

    def handle_endtag(self, tag: str) -> None:
        if self._id and tag == self._tag:
            text = " ".join("".join(self._words).split())
            if text:
                self.texts.setdefault(self._id, text)
            self._id = ""

    def handle_data(self, data: str) -> None:
        if self._id:
            self._words.append(data)


def help_pages(package: Path, language: str) -> dict[str, dict[str, str]]:
    """Page -> id -> text of a Debian package of help pages."""
    pages = {}
    for name, content in files_of(package):
        start, _, page = name.partition(f"{HELP}/{language}/")
        if page.startswith("text/") and page.endswith(".html") and start in ("", "./"):
            pages[page] = Paragraphs(content.decode("utf-8")).texts
    return pages


def files_of(package: Path) -> Iterator[tuple[str, bytes]]:
    """Files of a Debian package: an `ar` archive, in which `data.tar` with its compression holds them."""
    content = package.read_bytes()
    if not content.startswith(b"!<arch>\n"):
        raise ValueError(f"{package} is no Debian package")
    place = 8
    while place < len(content):
        name, size = content[place : place + 16].decode().strip().rstrip("/"), int(content[place + 48 : place + 58])
        place += 60
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content[place : place + size])) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file is not None:
                        yield member.name, file.read()
        place += size + size % 2


def fetch(package: str) -> Path:
    """The package file, downloaded into the cache unless it is there.

    Raises:
        RuntimeError: where it cannot be fetched, naming the command that does.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    found = sorted(CACHE.glob(f"{package}_*.deb"))
    if not found:
        command = ["apt-get", "download", package]
        try:
            result = subprocess.run(command, cwd=CACHE, capture_output=True, text=True)
            reason = (result.stderr.strip().splitlines() or ["nothing arrived"])[-1]
        except FileNotFoundError:
            reason = "there is no apt-get"
        found = sorted(CACHE.glob(f"{package}_*.deb"))
        if not found:
            raise RuntimeError(
                f"{package} cannot be fetched ({reason}). On a Debian with network, run in {CACHE}: {' '.join(command)}"
            )
    return found[-1]


def _benchmark_text() -> ModuleType:
    path = ROOT / "benchmarks" / "translation_text.py"
    spec = importlib.util.spec_from_file_location("_translation_text", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetches a text and prints how many pairs each split has.")
    parser.add_argument("text", choices=["libreoffice", "homeassistant"])
    text = parser.parse_args().text
    read = {"libreoffice": libreoffice, "homeassistant": homeassistant}[text]
    for split in SPLITS:
        pairs = list(read(split))
        words = sum(len(source.split()) for source, _ in pairs)
        print(f"{text}, {split}: {len(pairs):,} pairs, {words:,} source words")


if __name__ == "__main__":
    main()

"""English at hand everywhere: the docstrings of installed packages, as documents, and as three tasks.

- `documents`: docstrings without their examples and tables, one a document, for a pre-training objective.
- `corrections`: a sentence in small letters without marks -> the sentence.
- `gaps`: a sentence with a mark in place of each of its articles, prepositions, conjunctions and forms of "be" -> those words.
- `summaries`: what a docstring says, cut after some words -> its first sentence.

Files are parsed, never imported. A file belongs to one split by the first 8 hexadecimal digits of the SHA-256 of its name, modulo
20: 0 test, 1 validation, the rest training.
"""

import ast
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

PACKAGES = ("numpy", "torch", "transformers")
WORDS = 50
"""Of a text that is to be summarised."""
GAP = "_"
SMALL_WORDS = frozenset([
    "a", "an", "the", "this", "that", "of", "in", "on", "at", "to", "for", "from", "by", "with", "as", "into", "over", "between",
    "and", "or", "if", "when", "while", "than", "but", "not", "is", "are", "be", "was", "were",
])  # fmt: skip


def documents(split: str, most: int | None = None, packages: Sequence[str] = PACKAGES) -> Iterator[str]:
    """Docstrings of a split, each once, at most `most`."""
    for number, text in enumerate(_texts(split, tuple(packages))):
        if number == most:
            return
        yield text


def corrections(split: str, most: int | None = None, packages: Sequence[str] = PACKAGES) -> Iterator[tuple[str, str]]:
    """(a sentence's letters and digits, the sentence), at most `most`, each once, and none that training texts hold, too."""
    for sentence in _new_sentences(split, tuple(packages))[:most]:
        yield " ".join(re.findall(r"[^\W_]+", sentence.lower())), sentence


def gaps(split: str, most: int | None = None, packages: Sequence[str] = PACKAGES) -> Iterator[tuple[str, str]]:
    """(a sentence without its small words, those words), at most `most`, of sentences with three gaps or more."""
    found = (with_gaps(sentence) for sentence in _new_sentences(split, tuple(packages)))
    yield from islice((pair for pair in found if pair[0].split().count(GAP) >= 3), most)


def with_gaps(sentence: str) -> tuple[str, str]:
    """ "The sum of a row." -> ("_ sum _ _ row.", "the of a")."""
    words = sentence.split()
    small = [word.lower() in SMALL_WORDS for word in words]
    source = " ".join(GAP if gap else word for word, gap in zip(words, small, strict=True))
    return source, " ".join(word.lower() for word, gap in zip(words, small, strict=True) if gap)


def summaries(split: str, most: int | None = None, packages: Sequence[str] = PACKAGES) -> Iterator[tuple[str, str]]:
    """(the rest of a docstring, its first sentence), at most `most`, of those with a short first sentence and a longer rest."""
    found = 0
    for text in _texts(split, tuple(packages)):
        first, _, rest = text.partition(". ")
        words = rest.split()
        if 3 <= len(first.split()) <= 20 and len(words) >= 15:
            yield " ".join(words[:WORDS]), f"{first}."
            found += 1
            if found == most:
                return


def split_of(name: str) -> str:
    """The split of a file."""
    return {0: "test", 1: "validation"}.get(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 20, "train")


@cache
def _texts(split: str, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Docstrings in an order that mixes the packages, the same on each machine with the same packages."""
    found: dict[str, str] = {}
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"the package {package} is not installed: pip install {package}")
        root = Path(spec.submodule_search_locations[0])
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root.parent).as_posix()
            if "tests" not in path.parts and split_of(name) == split:
                for text in _docstrings(path):
                    found.setdefault(text, hashlib.sha256(text.encode()).hexdigest())
    return tuple(sorted(found, key=lambda text: found[text]))


def _new_sentences(split: str, packages: tuple[str, ...]) -> list[str]:
    """The sentences of a split that training texts do not hold, too."""
    known = set() if split == "train" else set(_sentences("train", packages))
    return [sentence for sentence in _sentences(split, packages) if sentence not in known]


def _sentences(split: str, packages: tuple[str, ...]) -> list[str]:
    """Those of 5 to 25 words in the texts of a split, each once."""
    parts = (part for text in _texts(split, packages) for part in re.split(r"(?<=[.!?]) ", text))
    whole = (part for part in parts if 5 <= len(part.split()) <= 25 and part[-1] in ".!?" and re.search(r"[^\W_]", part))
    return list(dict.fromkeys(whole))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return  # templates of other languages that end in .py
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Module):
            text = prose(ast.get_docstring(node) or "")
            if len(text.split()) >= 12:
                yield text


def prose(docstring: str) -> str:
    """Its paragraphs of prose, up to the first heading of a section: white space made single."""
    kept = []
    for block in re.split(r"\n\s*\n", docstring):
        lines = block.splitlines()
        headed = len(lines) > 1 and re.fullmatch(r"\s*[-=~]{3,}\s*", lines[1])
        if headed or re.match(r"(Args|Arguments|Parameters|Returns)\b|\w+ \(`", block):  # or the first of a list of arguments
            break
        if not re.match(r"\s*(>>>|\.\. |```|<)", block):
            kept.append(" ".join(block.split()))
    return " ".join(kept)

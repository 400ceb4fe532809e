"""Runs the fenced blocks of a Markdown document and tells what does not come out as written.

- `python` runs in a fresh process. What it prints is compared with the `text` block that comes next, or else with the comments
  at the end of its `print` lines. `python continued` first runs the `python` blocks above it, their output left out.
- `bash`: each line is a command. What all print is compared with the `text` block that comes next.
- `console`: each `$ command` is followed by what it prints; without a line of output it is not compared.
- `yaml`, `toml`, `json`, `diff` and blocks without a language are not run. Another language is an error.
- A block of any of these with `title="NAME"` behind its language is the file NAME, which later blocks find; it is not run itself.

`...` stands for any text, as in doctest: for times, speeds and folders. Only standard output is compared. All blocks of a
document run one after the other in one folder, in which the repository's files are links, so that a block may use what an
earlier one has saved.
"""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from textwrap import dedent, indent

RUN = ("python", "bash", "console")
NOT_RUN = ("", "yaml", "toml", "json", "diff")
MARKER = "---- the block itself ----"
LONGEST = 300
"""Seconds that a block may take."""


@dataclass
class Block:
    """A fenced block: the line of its first fence, its language, the words after that, and its text."""

    line: int
    language: str
    words: list[str]
    text: str
    output: str | None = None
    """The `text` block that follows it."""

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        titles = [word.removeprefix("title=").strip('"') for word in self.words if word.startswith("title=")]
        return titles[0] if titles else None


def blocks(document: str) -> list[Block]:
    """All fenced blocks of a Markdown text; `text` blocks are the `output` of the one before them.

    Raises:
        ValueError: for an unknown language, a block without an end, and a `text` block with nothing to be the output of.
    """
    found: list[Block] = []
    lines = iter(enumerate(document.splitlines(), start=1))
    for number, line in lines:
        fence = re.fullmatch(r"( *)(```+)(.*)", line)
        if not fence:
            continue
        body = []
        for _, inner in lines:
            if inner.strip() == fence[2]:
                break
            body.append(inner)
        else:
            raise ValueError(f"line {number}: the block has no end")
        language, *words = fence[3].split() or [""]
        block = Block(number, language, words, dedent("\n".join(body)) + "\n")
        if language == "text":
            if not found or found[-1].language not in RUN or found[-1].output is not None:
                raise ValueError(
                    f"line {number}: text is the output of the block before it; leave the language out for other text"
                )
            found[-1].output = block.text
        elif language not in (*RUN, *NOT_RUN):
            raise ValueError(f"line {number}: the language {language!r} is none of {(*RUN, 'text', *NOT_RUN)}")
        else:
            found.append(block)
    return found


def commands(block: Block) -> list[tuple[str, str | None]]:
    """Commands of a `bash` or `console` block, each with what it prints, None if that is not compared."""
    text = block.text.replace("\\\n", "")
    if block.language == "bash":
        lines = [re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines()]
        return [(line, None) for line in lines if line and not line.startswith("#")]
    first, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first.strip():
        raise ValueError(f"line {block.line}: a console block starts with '$ ', not {first.splitlines()[0]!r}")
    pairs = (part.partition("\n") for part in parts)
    return [(re.sub(r"\s+#.*", "", command).strip(), output if output.strip() else None) for command, _, output in pairs]


def printed_comments(code: str) -> str | None:
    """What the comments at the end of `print` lines say that is printed, None without any; `...` for prints without one."""
    prints = [line for line in code.splitlines() if re.match(r"\s*print\(", line)]
    comments = [re.search(r"\)\s+#\s*(.*)$", line) for line in prints]
    if not any(comments):
        return None
    return "".join(f"{comment[1] if comment else '...'}\n" for comment in comments)


def difference(expected: str | None, got: str) -> str | None:
    """None if `got` is as expected, or a text that shows both."""
    if expected is None or doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS):
        return None
    return f"expected\n{indent(expected, '    ')}got\n{indent(got, '    ') or '    nothing'}"


class Runner:
    """Runs the blocks of one document in `folder`.

    Args:
        excluded: patterns of commands, or of first lines of python blocks, that are not run, each with the reason.
    """

    def __init__(self, root: Path, folder: Path, excluded: Mapping[str, str]):
        self.folder, self.excluded, self.used = folder, excluded, set[str]()
        for entry in root.iterdir():
            if entry.name not in (".git", "runs"):
                (folder / entry.name).symlink_to(entry)
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120", "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "cache")}
        self.environment = {**os.environ, **plain, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(root)}

    def faults(self, document: str) -> list[str]:
        """What went wrong, block by block; every block is tried."""
        found: list[str] = []
        python: list[str] = []
        for block in blocks(document):
            if block.file is not None:
                (self.folder / block.file).write_text(block.text)
                continue
            if block.language == "python":
                problems = self._python(block, python)
                python.append(block.text)
            else:
                problems = self._shell(block) if block.language in RUN else []
            found += [f"line {block.line}, {block.language} block: {problem}" for problem in problems]
        return found

    def _python(self, block: Block, before: list[str]) -> list[str]:
        if self._is_excluded(block.text.splitlines()[0]):
            return []
        code = "".join([*before, f"\nprint({MARKER!r})\n", block.text]) if "continued" in block.words else block.text
        got, problem = self._run([sys.executable, "-c", code])
        if problem:
            return [problem]
        expected = block.output if block.output is not None else printed_comments(block.text)
        different = difference(expected, got.rpartition(f"{MARKER}\n")[2])
        return [different] if different else []

    def _shell(self, block: Block) -> list[str]:
        problems, printed, complete = [], "", True
        for command, expected in commands(block):
            if self._is_excluded(command):
                complete = False
                continue
            got, problem = self._run(["bash", "-c", command])
            printed += got
            problem = problem or difference(expected, got)
            if problem:
                complete = False
                problems.append(f"$ {command}\n{problem}")
        if complete and (different := difference(block.output, printed)):
            problems.append(different)
        return problems

    def _is_excluded(self, line: str) -> bool:
        matching = {pattern for pattern in self.excluded if fnmatch(line, pattern)}
        self.used |= matching
        return bool(matching)

    def _run(self, command: list[str]) -> tuple[str, str | None]:
        """Standard output, and what went wrong or None."""
        try:
            done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return "", f"not finished after {LONGEST} seconds"
        if done.returncode:
            return done.stdout, f"exit status {done.returncode}\n{indent((done.stdout + done.stderr)[-3000:], '    ')}"
        return done.stdout, None

"""What the site has beside the text of its pages: files of the repository, the help of each command, the training arguments.

- A link such as `[recipe.py](../transduct/training/recipe.py)` leads to that file where the repository is read. In the site it
  leads to a page that shows the file.
- A comment such as `<!-- the help of each command -->` becomes what the code itself says; see `FILLED`.
- Words behind the language of a block, which are for the tests that run it (tests/documents.py), are left out.
"""

import importlib
import re
from dataclasses import MISSING, fields
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

BLOCK_WORDS = re.compile(r"^( *```python) continued$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]+)\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".md": "markdown"}


def outside(link: str, page: str) -> str | None:
    """The path in the repository of what a page links to outside docs/, or None: `page` is below docs/."""
    path = normpath(PurePosixPath("docs", page).parent / link)
    return None if path.startswith(("docs/", "..")) or path == "docs" else path


def source_page(path: str) -> str:
    """Where the page about a file of the repository is, below docs/."""
    return f"source/{path}.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that a page links to."""
    root = Path(config.config_file_path).parent
    paths = set()
    for file in files.documentation_pages():
        links = (outside(link, file.src_uri) for link in LINK.findall(file.content_string))
        paths |= {path for path in links if path is not None and (root / path).is_file()}
    for path in sorted(paths):
        text = (root / path).read_text(encoding="utf-8")
        language = LANGUAGES.get(Path(path).suffix, "")
        content = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n~~~~~~~~{language}\n{text}\n~~~~~~~~\n"
        files.append(File.generated(config, source_page(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages; what is no such file is left for mkdocs to complain of."""

    def of_site(link: re.Match) -> str:
        path = outside(link[1], page.file.src_uri)
        target = None if path is None else source_page(path)
        if target is None or files.get_file_from_path(target) is None:
            return link[0]
        return f"]({relpath(target, PurePosixPath(page.file.src_uri).parent)})"

    if page.file.src_uri.startswith("source/"):
        return markdown
    for comment, write in FILLED.items():
        if comment in markdown:
            markdown = markdown.replace(comment, write())
    return LINK.sub(of_site, BLOCK_WORDS.sub(r"\1", markdown))


def help_of_commands() -> str:
    """The help of `transduct` and of its commands, a heading each."""
    from typer.main import get_command

    program = get_command(importlib.import_module("transduct.cli.main").app)
    parts = [help_of(program, "transduct")]
    for name, command in program.commands.items():
        parts += [f"## transduct {name}\n", help_of(command, f"transduct {name}")]
    return "\n".join(parts)


def help_of(command, name: str) -> str:
    """What `NAME --help` says."""
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=100, max_content_width=100)
    return f"~~~~\n{command.get_help(context)}\n~~~~\n"


def training_arguments() -> str:
    """A table of the fields that `TransductTrainingArguments` has and transformers' arguments lack, or that it changes."""
    from transformers import Seq2SeqTrainingArguments

    from transduct.training import TransductTrainingArguments

    theirs = {field.name: field for field in fields(Seq2SeqTrainingArguments)}
    rows = ["| argument | default | |", "|---|---|---|"]
    for field in fields(TransductTrainingArguments):
        if field.init and field is not theirs.get(field.name) and "help" in field.metadata:
            default = field.default_factory() if field.default is MISSING else field.default
            text = " ".join(field.metadata["help"].split()).replace("|", "\\|")
            rows.append(f"| `{field.name}` | `{default!r}` | {text} |")
    return "\n".join(rows)


FILLED = {
    "<!-- the help of each command -->": help_of_commands,
    "<!-- the training arguments -->": training_arguments,
}
"""Comments in pages, and what writes the text that takes their place."""

"""The site that mkdocs.yml builds: whole, with links that lead somewhere, nothing from other hosts; and what its tables say."""

import re
import subprocess
import sys
import threading
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import transduct
from test_page_layout import browser  # noqa: F401  (a fixture)
from transduct import config_from_preset

pytestmark = pytest.mark.xdist_group("site")  # it is built once

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LOADS = {
    "audio": ("src",), "embed": ("src",), "iframe": ("src",), "img": ("src", "srcset"), "input": ("src",), "link": ("href",),
    "object": ("data",), "script": ("src",), "source": ("src", "srcset"), "track": ("src",), "video": ("src", "poster"),
}  # fmt: skip
"""What a browser loads by itself, by tag."""


class PageReader(HTMLParser):
    """Collects a page's `links`, what it `loads`, and the `ids` that an anchor may name."""

    def __init__(self):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href") is not None:
            self.links.append(values["href"])
        self.loads += [values[name] for name in LOADS.get(tag, ()) if values.get(name)]


def read(text: str) -> PageReader:
    page = PageReader()
    page.feed(text)
    return page


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def dead_links(pages: dict[str, PageReader], files: set[str]) -> list[str]:
    """Links and loads within the site, `page -> link`, whose file or anchor does not exist."""
    dead = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = normpath(PurePosixPath(path).parent / unquote(parts.path)) if parts.path else path
            target = f"{target}/index.html".removeprefix("./") if target in (".", *folders(files)) else target
            anchor = unquote(parts.fragment)
            known = target in files and (not anchor or target not in pages or anchor in pages[target].ids)
            if not known:
                dead.append(f"{path} -> {link}")
    return dead


def folders(files: set[str]) -> set[str]:
    return {str(parent) for file in files for parent in PurePosixPath(file).parents}


def loaded_from_elsewhere(text: str) -> list[str]:
    """Addresses of other hosts that a page or a style sheet has loaded."""
    styles = re.findall(r"(?:url\(|@import\s+)\s*['\"]?([^'\")\s;]+)", text)
    return [address for address in [*read(text).loads, *styles] if is_elsewhere(address)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[str, PageReader]:
    """Each page by its path; but for the one that a server shows in place of a page that does not exist."""
    found = {str(path.relative_to(site)): read(path.read_text(encoding="utf-8")) for path in site.glob("**/*.html")}
    del found["404.html"]
    return found


@pytest.mark.slow
def test_links_and_anchors_lead_somewhere(site, pages):
    files = {str(path.relative_to(site)) for path in site.glob("**/*") if path.is_file()}
    assert len(pages) > 20
    assert dead_links(pages, files) == []


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(site):
    texts = [*site.glob("**/*.html"), *site.glob("**/*.css")]
    assert {path.suffix for path in texts} == {".html", ".css"}
    found = {str(path.relative_to(site)): loaded_from_elsewhere(path.read_text(encoding="utf-8")) for path in texts}
    assert {path: addresses for path, addresses in found.items() if addresses} == {}


@pytest.mark.slow
def test_a_browser_shows_and_searches_it_without_any_other_host(site, browser):  # noqa: F811
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        tab, asked = browser.new_page(), []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{here}families.html")
        tab.locator("input[name=query]").click()
        tab.keyboard.type("exposure bias")
        found = tab.locator(".md-search-result__link").first
        found.wait_for()
        assert "teacher_forcing" in found.get_attribute("href")
        tab.close()
        server.shutdown()
    assert len(asked) > 3
    assert [address for address in asked if not address.startswith((here, "data:", "blob:"))] == []


@pytest.mark.slow
def test_every_public_name_has_its_place_in_the_reference(pages):
    ids = {anchor for path, page in pages.items() if path.startswith("reference/") for anchor in page.ids}
    names = set(transduct.__all__) - {"__version__", "register"}
    assert {name for name in names if not any(anchor.endswith(f".{name}") for anchor in ids)} == set()


@pytest.mark.slow
def test_the_help_of_every_command_is_a_page(site):
    text = (site / "reference" / "command_line.html").read_text(encoding="utf-8")
    for command in ("train", "translate", "import", "export", "evaluate", "plan"):
        assert f"Usage: transduct {command} " in text


@pytest.mark.slow
def test_the_training_arguments_of_ours_are_a_table(site):
    text = (site / "reference" / "training.html").read_text(encoding="utf-8")
    for argument in ("max_tokens_per_batch", "ema_decay", "lora"):
        assert f"<td><code>{argument}</code></td>" in text
    assert "<td><code>weight_decay</code></td>" not in text  # transformers' own


@pytest.mark.slow
def test_links_to_files_of_the_repository_lead_to_pages_that_show_them(site):
    text = (site / "source" / "transduct" / "training" / "recipe.py.html").read_text(encoding="utf-8")
    assert "dataclass" in text


def navigation(entry) -> list[str]:
    """The pages of mkdocs.yml's `nav`, from an entry of it."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in navigation(part)]


@cache
def settings() -> dict:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_every_page_is_in_the_navigation_once():
    written = [str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md")]
    assert sorted(navigation(settings()["nav"])) == sorted(written)


def test_the_site_is_strict():
    assert settings()["strict"] is True
    assert settings()["theme"]["font"] is False


# ---- what a table of the documentation says ----------------------------------------------------------------------------------


def tables(path: Path) -> list[list[list[str]]]:
    """Each table of a page: its rows of cells, the heading first, without the line below it."""
    found: list[list[list[str]]] = []
    before = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            if not re.fullmatch(r"[|\-: ]+", line):
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        before = line
    return found


def test_the_families_differ_as_their_page_says():
    compared = [table for table in tables(DOCS / "families.md") if table[0][0] == "field"]
    assert len(compared) == 2
    for (_, *presets), *rows in compared:
        configs = [config_from_preset(name) for name in presets]
        assert len(rows) > 10
        for field, *cells in rows:
            for config, preset, cell in zip(configs, presets, cells, strict=True):
                assert cell in ("–", str(getattr(config, field.strip("`")))), f"{preset}: {field}"


def test_every_recipe_of_the_examples_is_in_the_table_of_recipes():
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    recipes = [path.relative_to(ROOT) for path in (ROOT / "examples").glob("*/config.yaml")]
    assert len(recipes) > 8
    assert [recipe for recipe in recipes if f"](../{recipe})" not in text] == []


def test_the_table_of_recipes_has_their_steps():
    rows = [row for table in tables(DOCS / "recipes.md") if table[0][0] == "recipe" for row in table[1:]]
    for recipe, _, _, steps, *_ in rows:
        path = DOCS / re.search(r"\((.+)\)", recipe)[1]
        training = yaml.safe_load(path.read_text(encoding="utf-8"))["training"]
        expected = f"{training['max_minutes']:g} minutes" if "max_minutes" in training else f"{training['max_steps']:,}"
        assert steps == expected, recipe


# ---- the checks themselves: that they would tell -----------------------------------------------------------------------------


def test_dead_links_are_told():
    texts = {
        "index.html": '<a id="top"></a><a href="a/b.html#there">x</a><a href="#top">x</a><a href="https://example.org/none">x</a>',
        "a/b.html": '<h2 id="there"></h2><a href="../index.html#nowhere">x</a><a href="gone.html">x</a><a href="..">x</a>'
        '<img src="no.png">',
    }
    found = dead_links({path: read(text) for path, text in texts.items()}, set(texts))
    assert found == ["a/b.html -> ../index.html#nowhere", "a/b.html -> gone.html", "a/b.html -> no.png"]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/css">', ["//fonts.example/css"]),
        ("@import 'https://fonts.example/css';", ["https://fonts.example/css"]),
        ("a { background: url(https://example.org/x.png) }", ["https://example.org/x.png"]),
        ('<a href="https://example.org">only a link</a><img src="x.png"> b { src: url("data:font/woff2;base64,AA") }', []),
    ],
)
def test_what_comes_from_another_host_is_told(text, addresses):
    assert loaded_from_elsewhere(text) == addresses

"""The page in a real browser: it types and clicks, the pictures change, and no request leaves this computer.

Chromium is driven by playwright. Where there is none, these tests are skipped and say so; with TRANSDUCT_BROWSER=required in the
environment, as in CI, they fail instead.
"""

import os
import shutil
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from page_server import NAME, served

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000.0
"""Milliseconds for an answer, on a computer that has other things to do."""
HOSTILE = "<b id=got>${got=1}{{got}}<script>got=1</script>\u202e"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of gradio's own threads


def no_browser(reason: str) -> None:
    if os.environ.get("TRANSDUCT_BROWSER") == "required":
        pytest.fail(f"TRANSDUCT_BROWSER=required, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def server():
    with served() as (url, page):
        yield url, page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        no_browser("there is no chromium in the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        no_browser("playwright is not installed")
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("browser"),
            executable_path=executable,
            args=ARGUMENTS,
            viewport={"width": 1200, "height": 900},
        )
        context.set_default_timeout(PATIENCE)
        yield context
        context.close()


def test_where_a_browser_is_required_its_absence_fails(monkeypatch):
    monkeypatch.setenv("TRANSDUCT_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="TRANSDUCT_BROWSER=required, but there is none"):
        no_browser("there is none")
    monkeypatch.delenv("TRANSDUCT_BROWSER")
    with pytest.raises(pytest.skip.Exception, match="there is none"):
        no_browser("there is none")


class Visitor:
    """A tab on the page, and everything it asked for or complained of."""

    def __init__(self, browser, url: str):
        self.tab = browser.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.tab.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.tab.goto(url)
        self.tab.wait_for_selector("#source textarea")

    def type(self, text: str) -> None:
        self.tab.fill("#source textarea", text)

    def run(self, text: str) -> None:
        """Search, and wait until what is shown belongs to it."""
        before = self.markup("#attention")
        self.type(text)
        self.tab.click("#run")
        self.changed("#attention", before)

    def markup(self, place: str) -> str:
        """The picture or table that stands there, without what gradio puts around it."""
        found = self.tab.query_selector(f"{place} .picture, {place} table")
        return found.evaluate("element => element.outerHTML") if found else ""

    def changed(self, place: str, before: str) -> str:
        """What stands there once it is something else."""
        self.tab.wait_for_function(
            "([place, before]) => { const found = document.querySelector(`${place} .picture, ${place} table`); "
            "return found && found.outerHTML !== before; }",
            arg=[place, before],
        )
        return self.markup(place)

    def labels(self, place: str) -> list[str]:
        return self.tab.eval_on_selector_all(f"{place} svg text:not(.small)", "all => all.map(each => each.textContent)")

    def table(self) -> list[list[str]]:
        rows = self.tab.query_selector_all("#table tbody tr")
        return [[cell.inner_text() for cell in row.query_selector_all("td")] for row in rows]

    def choose(self, dropdown: str, option: str) -> None:
        self.tab.click(f"{dropdown} input")
        self.tab.get_by_role("option", name=option).click()

    def stayed_at_home(self) -> None:
        """Every request went to the page's own server, and nothing was complained of."""
        assert len(self.requests) > 10
        hosts = {urlsplit(url).hostname for url in self.requests if urlsplit(url).scheme not in ("data", "blob")}
        assert hosts == {"127.0.0.1"}
        assert self.complaints == []


@pytest.fixture
def visitor(browser, server):
    visitor = Visitor(browser, server[0])
    yield visitor
    visitor.tab.close()


def test_a_visitor_types_and_clicks_and_the_pictures_change(visitor, server):
    page = server[1]
    assert visitor.tab.title() == f"transduct: {NAME}"
    assert visitor.tab.inner_text("#head h1") == NAME
    assert not visitor.tab.is_visible("#table")
    visitor.run("cab")
    first = visitor.markup("#attention")
    assert visitor.labels("#attention")[:4] == ["c", "a", "b", "</s>"]
    visitor.run("hello")
    assert visitor.markup("#attention") != first
    assert visitor.labels("#attention")[:6] == ["h", "e", "l", "l", "o", "</s>"]

    answer = page.answer("hello", page.offer.defaults)  # what is shown is what the model says
    texts = [each.text.strip().replace("\u202e", "U+202E") for each in answer.hypotheses]
    assert [row[1].strip() for row in visitor.table()] == texts
    assert [row[2] for row in visitor.table()] == [f"{each.score:.4f}" for each in answer.hypotheses]

    before = visitor.markup("#attention")
    visitor.tab.get_by_label("2", exact=True).check()
    second = visitor.changed("#attention", before)
    assert visitor.tab.inner_text("#table tr.chosen td") == "2"
    visitor.choose("#layer", "0")
    other_layer = visitor.changed("#attention", second)
    visitor.choose("#head-choice", "3")
    assert visitor.changed("#attention", other_layer) != second

    visitor.tab.get_by_role("tab", name="Alignment").click()
    visitor.tab.wait_for_selector("#alignment svg", state="visible")
    assert visitor.labels("#alignment")[:6] == ["h", "e", "l", "l", "o", "</s>"]
    visitor.stayed_at_home()


def test_a_visitor_walks_through_the_search(visitor, server):
    page = server[1]
    nodes = [len(step.nodes) for step in page.answer("cab ab", replace(page.offer.defaults, tokens=6)).tree.steps]
    visitor.tab.fill("#tokens input[type=number]", "6")
    visitor.run("cab ab")
    visitor.tab.get_by_role("tab", name="Search").click()
    visitor.tab.wait_for_selector("#tree svg", state="visible")
    whole = visitor.markup("#tree")
    steps = len(nodes)
    assert f"Step {steps} of {steps}" in visitor.tab.inner_text("#kept")
    assert whole.count("<g>") == sum(nodes)
    visitor.tab.click("#back")
    shorter = visitor.changed("#tree", whole)
    assert f"Step {steps - 1} of {steps}" in visitor.tab.inner_text("#kept")
    assert shorter.count("<g>") == sum(nodes[:-1])
    visitor.tab.fill("#step input[type=number]", "1")
    visitor.tab.press("#step input[type=number]", "Enter")
    first = visitor.changed("#tree", shorter)
    assert f"Step 1 of {steps}" in visitor.tab.inner_text("#kept")
    assert first.count("<g>") == nodes[0]
    visitor.tab.click("#forth")
    visitor.changed("#tree", first)
    assert f"Step 2 of {steps}" in visitor.tab.inner_text("#kept")
    visitor.stayed_at_home()


def test_a_visitor_draws_samples(visitor):
    for changed, value, follows in (("#beams", "2", "#hypotheses"), ("#hypotheses", "4", "#beams")):
        visitor.tab.fill(f"{changed} input[type=number]", value)  # a beam search finds no more outputs than it has beams
        visitor.tab.press(f"{changed} input[type=number]", "Enter")
        visitor.tab.wait_for_function(f"document.querySelector('{follows} input[type=number]').value === '{value}'")
    visitor.run("cab")
    assert not visitor.tab.is_visible("#temperature")
    visitor.tab.get_by_label("sampling").check()
    visitor.tab.wait_for_selector("#temperature", state="visible")
    assert not visitor.tab.is_visible("#beams")
    visitor.run("cab ")
    assert "4 samples, drawn with seed 0" in visitor.tab.inner_text("#table")
    visitor.tab.fill("#hypotheses input[type=number]", "10")  # of samples, so that beams stay as they are
    visitor.tab.press("#hypotheses input[type=number]", "Enter")
    visitor.run("hello")
    visitor.tab.get_by_label("beam search").check()
    visitor.tab.wait_for_function("document.querySelector('#beams input[type=number]')?.value === '10'")
    visitor.run("cab")
    assert len(visitor.table()) == 10
    visitor.stayed_at_home()


def test_any_text_is_safe(visitor):
    """A text that would be markup, script or a template is shown as itself, and too much of it is refused."""
    visitor.run(HOSTILE)
    assert visitor.tab.evaluate("document.getElementById('got') === null && window.got === undefined")
    assert visitor.tab.title() == f"transduct: {NAME}"
    assert {"<", "{", "$", "U+202E"} <= set(visitor.labels("#attention"))
    for text, message in (("x" * 2**20, "more than the 20,000 characters"), ("   ", "there is no text yet")):
        visitor.type(text)
        visitor.tab.click("#run")
        visitor.tab.wait_for_selector(f"#message >> text={message}")
        assert not visitor.tab.is_visible("#table")
    visitor.run("cab")
    assert not visitor.tab.is_visible("#message .alert")
    visitor.stayed_at_home()


def test_two_visitors_at_once_and_one_who_leaves(browser, server):
    one, two, gone = (Visitor(browser, server[0]) for _ in range(3))
    for visitor, text in ((gone, "xyz"), (one, "cab"), (two, "hello")):
        visitor.type(text)
        visitor.tab.click("#run")
    gone.tab.close()
    for visitor, letters in ((one, list("cab")), (two, list("hello"))):
        visitor.tab.wait_for_selector("#attention svg", state="visible")
        assert visitor.labels("#attention")[: len(letters)] == letters
    one.tab.get_by_label("3", exact=True).check()
    one.tab.wait_for_selector("#table tr.chosen td >> text=3")
    assert two.tab.inner_text("#table tr.chosen td") == "1"
    for visitor in (one, two):
        visitor.stayed_at_home()
        visitor.tab.close()

"""Pictures and tables of the page, read back as a browser would."""

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"

ODD = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&amp;&lt;",
    "]]>",
    "${alert(1)}",
    "{{constructor}}",
    "שלום",
    "\u202ereversed",
    "a\0b\x07",
    "\ud800",
    "\ufffe",
    "x" * 5000,
    "e\u0301",
    "👩\u200d💻",
    "語",
    "'",
    "",
    " ",
]
"""Texts of which none may end an element, begin one, or break the page."""
ALLOWED = {"div", "svg", "rect", "text", "title", "path", "g", "p", "table", "thead", "tbody", "tr", "th", "td"}


def parsed(markup: str) -> ElementTree.Element:
    """The markup as a tree: it must be well-formed, of harmless elements alone, and reach nothing outside."""
    root = ElementTree.fromstring(f"<root>{markup}</root>")
    for element in root.iter():
        name = element.tag.removeprefix(SVG)
        assert name in ALLOWED | {"root"}, name
        for key, value in element.attrib.items():
            assert not key.startswith("on"), key
            assert key not in ("href", "src", "style"), key
            assert "url(" not in value, value
    markup.encode()  # a lone half of a character would not reach the browser
    return root


def svg(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return root.findall(f".//{SVG}{name}")


def titles(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """What a pointer is told -> the element around it."""
    return {title.text or "": element for element in root.iter() for title in element.findall(f"{SVG}title")}

"""SVG and HTML of any text: every attribute and every text is escaped here, so that no picture can hold more than it draws.

Colours are CSS variables of the page (see `STYLE`), so that one picture serves light and dark pages.
"""

import unicodedata
from collections.abc import Iterable
from html import escape
from typing import Any

from transduct.decoding.token_labels import JOINERS, clipped, visible

CHARACTER = 7.4
"""Width of a letter of `FONT_SIZE`, in pixels, a little more than it takes."""
FONT_SIZE = 13
LONGEST_LABEL = 18
"""Characters of a token that are drawn; the rest is told by its title."""

STYLE = """
:root { --map: #1d4ed8; --best: #b45309; --ended: #15803d; --faint: #9ca3af; --ink: #1f2937; --rule: #e5e7eb; --paper: #ffffff;
  --warn: #b91c1c; }
.dark { --map: #93c5fd; --best: #fbbf24; --ended: #86efac; --faint: #6b7280; --ink: #e5e7eb; --rule: #374151; --paper: #111827;
  --warn: #fca5a5; }
.picture { overflow-x: auto; padding: .25rem 0; }
.picture svg { display: block; max-width: none; }
.latest { direction: rtl; } .latest svg { direction: ltr; margin-right: auto; }
.picture text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: var(--ink); }
.picture text.small { font-size: 10.5px; fill: var(--faint); }
.picture text.ended { fill: var(--ended); } .picture text.best { fill: var(--best); font-weight: 700; }
.picture text.faint { fill: var(--faint); }
.note { color: var(--faint); font-size: .85rem; margin: .3rem 0; }
.alert { color: var(--warn); border-left: 3px solid var(--warn); padding: .2rem .7rem; margin: .2rem 0; overflow-wrap: anywhere; }
.found, .found tr, .found thead, .found tbody { border-collapse: collapse; width: 100%; border: 0 !important; }
.found th { text-align: left; font-weight: 500; color: var(--faint); font-size: .85rem; }
.found th, .found td { padding: .3rem .5rem; border: 0 !important; border-bottom: 1px solid var(--rule) !important;
  vertical-align: top; }
.found .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.found .text { overflow-wrap: anywhere; unicode-bidi: plaintext; width: 100%; white-space: pre-wrap; }
.found tr.chosen td { font-weight: 600; } .found tr.chosen td:first-child { color: var(--best); }
"""


def element(name: str, *content: str, **attributes: Any) -> str:
    """An element around content that is markup already; `_` in the name of an attribute stands for `-`, `class_` for `class`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{words(_value(value))}"' for key, value in attributes.items() if value is not None
    )
    return f"<{name}{written}>{''.join(content)}</{name}>"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def words(text: str) -> str:
    """A text as markup; characters without a shape, but for spaces and line breaks, are told by their code."""
    return escape("".join(each if _is_text(each) else visible(each) for each in text))


def _is_text(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or character in JOINERS or unicodedata.category(character) == "Zs"


def label(text: str, x: float, y: float, **attributes: Any) -> str:
    """The label of a token, cut where it is long. Its place is that of its middle, whichever way it is read."""
    shown = escape(clipped(visible(text), LONGEST_LABEL))
    return element("text", shown, **{"x": x, "y": y, "text_anchor": "middle", "direction": "ltr", **attributes})


def title(text: str) -> str:
    """What a pointer is told that rests on the element around it."""
    return element("title", words(text))


def width_of(text: str) -> float:
    """Pixels that a label takes, about; wide characters (East Asian ones, emoji) count twice."""
    shown = clipped(visible(text), LONGEST_LABEL)
    cells = sum(0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in shown)
    return cells * CHARACTER


def picture(width: float, height: float, content: Iterable[str], description: str, latest: bool = False) -> str:
    """An image of so many pixels, which scrolls where there is no room for it; `latest`: from its right end."""
    size = dict(width=f"{width:.0f}", height=f"{height:.0f}", viewBox=f"0 0 {width:.0f} {height:.0f}")
    image = element("svg", *content, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=description, **size)
    return element("div", image, class_="picture latest" if latest else "picture")


def small(text: str, x: float, y: float) -> str:
    """A figure beside a label, in smaller type."""
    return element("text", words(text), x=x, y=y, text_anchor="middle", class_="small")


def note(text: str) -> str:
    return element("p", words(text), class_="note")


def alert(text: str) -> str:
    """A message about what went wrong, which may quote a visitor."""
    return element("p", words(clipped(text, 500)), class_="alert", role="alert")

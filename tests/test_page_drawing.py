"""Elements of any text: nothing that a text holds becomes markup."""

import pytest

from markup import ODD, SVG, parsed
from transduct.page.drawing import alert, element, label, note, picture, title, width_of, words


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_any_text_is_only_text(text):
    markup = picture(10, 10, [label(text, 1, 2), element("g", title(text), class_=text or None)], text) + note(text) + alert(text)
    root = parsed(markup)
    assert [child.tag for child in root] == ["div", "p", "p"]
    assert [child.tag for child in root[0][0]] == [f"{SVG}text", f"{SVG}g"]


def test_texts_are_told_as_they_are():
    assert parsed(words("a <b> & 'c'\n\u00a0d 👩\u200d💻")).text == "a <b> & 'c'\n\u00a0d 👩\u200d💻"
    assert words("\u202ex\0") == "U+202ExU+0000"
    (shown,) = parsed(picture(1, 1, [label("a b", 1.0, 2.5, class_="small")], "")).iter(f"{SVG}text")
    assert shown.text == "a␣b"
    assert shown.attrib == {"x": "1", "y": "2.5", "text-anchor": "middle", "direction": "ltr", "class": "small"}
    assert parsed(alert("y" * 1000))[0].text == "y" * 499 + "…"


def test_attributes():
    assert element("rect", fill_opacity=1 / 3, class_="a", rx=None) == '<rect fill-opacity="0.333333" class="a"></rect>'


def test_widths():
    assert width_of("ab") == 2 * width_of("a") == width_of("語")
    assert width_of("e\u0301") == width_of("e")
    assert width_of("x" * 50) == width_of("x" * 18)

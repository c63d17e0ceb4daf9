"""Text can never become markup, and what is built is well formed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.view.markup import Html, element, escape, join, table
from tests.view.reading import read

TEXT = st.text(alphabet=st.characters(), max_size=40)


@given(TEXT)
def test_any_text_survives_as_text(text):
    tree = read(element("p", text, title=text))
    (paragraph,) = tree.find("p")
    shown = "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else visible(c) for c in text)
    assert paragraph.text == shown
    assert paragraph.attributes["title"] == shown


def visible(character: str) -> str:
    code = ord(character)
    if code == 0x7F:
        return "\u2421"
    return chr(0x2400 + code) if code < 32 and character not in "\t\n" else character


@pytest.mark.parametrize("attack", ["<script>alert(1)</script>", "</pre><img src=x onerror=y>", '"><b>', "&lt;b&gt;"])
def test_known_attacks_stay_text(attack):
    tree = read(element("td", attack, data_label=attack))
    assert [e.tag for e in tree.walk()] == ["#document", "td"]
    assert tree.find("td")[0].text == attack
    assert tree.find("td")[0].attributes["data-label"] == attack


def test_markup_is_not_escaped_twice():
    inner = element("b", "x & y")
    assert element("p", inner) == "<p><b>x &amp; y</b></p>"
    assert escape(inner) is inner
    assert isinstance(join([inner, "<"]), Html) and join([inner, "<"]) == inner + "&lt;"


def test_attributes():
    assert element("input", disabled=True, value=0, name=None, hidden=False) == '<input disabled value="0">'
    assert element("label", for_="x", aria_label="y") == '<label for="x" aria-label="y"></label>'


def test_a_table_is_semantic():
    tree = read(table("caption", ["name", "size"], [["a", 12345], ["b", True]]))
    assert tree.find("caption")[0].text == "caption"
    assert [e.attributes.get("scope") for e in tree.find("th")] == ["col", "col", "row", "row"]
    assert [e.text for e in tree.find("td")] == ["12,345", "True"]
    assert tree.find("td", class_="sx-num")[0].text == "12,345"

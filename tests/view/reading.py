"""Reading HTML the way a test needs it: is it well formed, what does it say, what does it refer to?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from staxlab import view
from staxlab.view.document import SIZE_CAP

VOID = frozenset("area br col hr img input link meta source wbr".split())


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element | str] = field(default_factory=list)

    def walk(self):
        """This element and everything below it, in document order."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def find(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """Elements below with this tag and these attributes (``class_`` asks for one class among several)."""
        return [
            e for e in self.walk() if (tag is None or e.tag == tag) and all(e.has(k, v) for k, v in attributes.items())
        ]

    def has(self, name: str, value: str) -> bool:
        if name == "class_":
            return value in self.attributes.get("class", "").split()
        return self.attributes.get(name.replace("_", "-")) == value

    @property
    def text(self) -> str:
        """What is written below this element, scripts and styles left out."""
        if self.tag in ("script", "style"):
            return ""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("#document", {}, None)
        self.open = self.root

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute: {names}"
        element = Element(tag, {name: value or "" for name, value in attributes}, self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_endtag(self, tag):
        assert tag == self.open.tag, f"</{tag}> closes <{self.open.tag}>"
        self.open = self.open.parent

    def handle_data(self, data):
        self.open.children.append(data)


def read(html: str) -> Element:
    """The tree of a fragment or page. AssertionError where an element is not closed in order."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open is reader.root, f"<{reader.open.tag}> is never closed"
    return reader.root


def references(html: str) -> list[str]:
    """Everything that would make a browser fetch something: URLs in attributes, in styles, and imports."""
    found = []
    for element in read(html).walk():
        for name in ("src", "href", "action", "data", "poster", "xlink:href"):
            if name in element.attributes and not element.attributes[name].startswith("#"):
                found.append(element.attributes[name])
        found += re.findall(r"url\(([^)]*)\)|@import\s+(\S+)", element.attributes.get("style", ""))
        if element.tag in ("style", "script"):
            found += re.findall(r"url\([^)]*\)|@import[^;]*|https?://[^\s\"']*", "".join(map(str, element.children)))
    return found


def stripped(html: str) -> str:
    """What a host that allows neither styles nor scripts leaves of it."""
    html = re.sub(r"<(style|script)\b[^>]*>.*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r'\s(style|class|on\w+)="[^"]*"', "", html)


def check_page(record: Any) -> None:
    """A record draws itself as a page that fetches nothing, hides nothing from a host without styles and scripts, says
    in words what its pictures show, and prints as text."""
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and view.html(record) == html
    assert bundle["text/plain"] == str(record) and len(str(record).splitlines()) >= 3
    assert references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    for picture in read(html).find("svg", class_="sx-diagram"):
        assert picture.attributes["role"] == "img" and picture.attributes["tabindex"] == "0"
        assert len(picture.attributes["aria-label"]) > 20 and picture.find("title") and picture.find("desc")

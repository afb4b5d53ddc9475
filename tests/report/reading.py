"""Reads a report page the way a browser would: elements by what they are, and their text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br", "img", "input", "link", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces) + "".join(c.text for c in self.children)

    def all(self, tag: str, of_class: str = "", **attributes: str) -> list[Element]:
        found = []
        for c in self.children:
            same = all(c.attributes.get(k.replace("_", "-")) == v for k, v in attributes.items())
            classes = c.attributes.get("class", "").split()
            if c.tag == tag and same and (not of_class or of_class in classes):
                found.append(c)
            found += c.all(tag, of_class, **attributes)
        return found

    def one(self, tag: str, of_class: str = "", **attributes: str) -> Element:
        (found,) = self.all(tag, of_class, **attributes)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {k: v or "" for k, v in attrs})
        self.open[-1].children.append(made)
        if tag not in _VOID:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].pieces.append(data)


def read(html: str) -> Element:
    """The page as a tree; fails when an element is not closed in its place."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root

"""Reads a report page the way a browser would: elements by what they are, their text, and the data
that page.js shows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

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
        elements = []
        for c in self.children:
            has_attributes = all(
                c.attributes.get(k.replace("_", "-")) == v for k, v in attributes.items()
            )
            classes = c.attributes.get("class", "").split()
            if c.tag == tag and has_attributes and (not of_class or of_class in classes):
                elements.append(c)
            elements += c.all(tag, of_class, **attributes)
        return elements

    def one(self, tag: str, of_class: str = "", **attributes: str) -> Element:
        (element,) = self.all(tag, of_class, **attributes)
        return element


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {k: v or "" for k, v in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

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


@dataclass
class Row:
    """A row of a table: the texts of its cells by column, and what is shown when it is opened."""

    cells: dict[str, str]
    keys: dict[str, Any]
    blocks: list[dict[str, str]]

    def texts(self, place: str) -> dict[str, str]:
        """The texts at a place, by title."""
        return {b["title"]: b["text"] for b in self.blocks if b["place"] == place}


def json_of(root: Element, name: str) -> Any:
    """The data of an element."""
    return json.loads(root.one("script", type="application/json", id=name).text)


def rows(root: Element, table: str) -> list[Row]:
    """The rows of a table, in the order of the data."""
    data = json_of(root, "data")
    data_table = data["tables"][table]
    table_rows = []
    for i, cells in enumerate(data_table["rows"]):
        texts, keys = {}, {}
        for (title, kind), cell in zip(data_table["columns"], cells, strict=True):
            if kind == "kernel":
                texts[title] = keys[title] = "" if cell is None else data["kernels"][cell][0]
            else:
                texts[title], keys[title] = cell[:2] if kind == "number" else (cell, cell)
        opens = data_table["opens"][i] if data_table["opens"] else False
        blocks = json_of(root, f"text-{data_table['row']}-{i}") if opens else []
        table_rows.append(Row(texts, keys, blocks))
    return table_rows

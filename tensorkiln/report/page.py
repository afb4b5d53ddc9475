"""One static page: everything inline, nothing fetched, and every name escaped.

The page has three parts. What is short is HTML: facts, the picture of memory. Rows of tables and
the places of the graph are JSON, of which page.js shows what is asked for. Long texts are JSON of
their own, one element for each row that can be opened, and read when it is.

Names in a model are untrusted. In HTML each goes through `escape`; page.js makes elements of JSON
and never sets `innerHTML`; and the page's policy permits one script and one style, by their hashes,
so there are no `style` attributes and no handlers in HTML. Colours are variables of page.css, with
a light and a dark value.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from operator import attrgetter
from typing import Any

from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.report.numbers import bytes_text, rate_text, time_text
from tensorkiln.report.story import KernelRow, PassRow, Story
from tensorkiln.report.svg import COLOURS, colours_css, memory_svg

# Lines of one text that are shown; of the rest the number is given, to limit the page's size.
MOST_LINES = 8000
_LONGEST = 2000  # characters of a line

_SECTIONS = ("graph", "passes", "kernels", "memory")


def page(story: Story) -> str:
    """The HTML text of a report's page. It depends only on the story."""
    name = escape(story.name.encode("utf-8", "replace").decode())
    folder = files(__package__)
    css, js = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    css, js = f"\n{css}{colours_css()}", f"\n{js}"
    policy = (
        f"default-src 'none'; script-src {_hash(js)}; style-src {_hash(css)}; "
        "base-uri 'none'; form-action 'none'"
    )
    tables = _tables(story)
    parts = (
        _facts(story),
        _section("graph", "Graph", _graph(story)),
        _section("passes", "Passes", _table("passes")),
        _section("kernels", "Kernels", _table("kernels")),
        _section("memory", "Memory over time", _memory(story)),
    )
    links = "".join(f'<a href="#{n}">{n.capitalize()}</a>' for n in _SECTIONS)
    rows = {
        "kernels": _kernel_names(story),
        "tables": {n: t.to_json() for n, t in tables.items()},
        "graph": _places(story),
    }
    texts = (
        _json(f"text-{t.row}-{i}", blocks)
        for t in tables.values()
        for i, blocks in enumerate(t.texts)
        if blocks
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name} · kiln '
        f'explain</title><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><style>{css}</style></head><body>'
        f"<header><h1>{name}</h1><p>{escape(story.machine)}</p>"
        f"<details><summary>target</summary><code>{escape(story.target)}</code></details>"
        f'<button id="theme" hidden></button></header><nav>{links}</nav><main>'
        "<noscript><p>Tables and the graph need JavaScript, which is off here.</p></noscript>"
        f"{''.join(parts)}</main>{_json('data', rows)}<script>{js}</script>"
        f"{''.join(texts)}</body></html>\n"
    )


def _hash(text: str) -> str:
    """The source of a Content Security Policy that permits this inline text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(name: str, value: object) -> str:
    """An HTML element with JSON, escaped so that nothing in it is read as markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'\n<script type="application/json" id="{name}">{text}</script>'


def _section(name: str, title: str, inside: str) -> str:
    return f'\n<section id="{name}"><h2>{title}</h2>{inside}</section>'


def _table(name: str) -> str:
    return f'<div class="card" data-table="{name}"></div>'


def _folded_table(name: str, title: str) -> str:
    """A table that page.js fills when it is opened."""
    return (
        f'<details class="card"><summary>{title}</summary><div data-table="{name}"></div></details>'
    )


def _facts(story: Story) -> str:
    total = sum(k.total for k in story.kernels if not math.isnan(k.total))
    timed = any(not math.isnan(k.total) for k in story.kernels)
    rows = [
        (f"{sum(n.kind == 'op' for n in story.graph.nodes):,}", "operators imported"),
        (f"{len(story.kernels):,}", "kernels"),
        (f"{sum(k.calls for k in story.kernels):,}", "kernel calls"),
        (time_text(total / 1e6 if timed else math.nan), "in kernels, one thread"),
        (bytes_text(sum(k.size for k in story.kernels)), "kernel objects"),
        (bytes_text(story.weights), "weights"),
        *((bytes_text(m.total), f"workspace of {m.function}") for m in story.memory),
        (time_text(sum(p.seconds for p in story.passes)), "in passes"),
    ]
    cells = "".join(f"<div><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in rows)
    sizes = ", ".join(f"{n} = {v}" for n, v in story.sizes.items())
    notes = [*story.notes, *([f"Symbolic dimensions are taken as {sizes}."] if sizes else [])]
    paragraphs = "".join(f'<p class="note">{escape(n)}</p>' for n in notes)
    return f'<div class="facts">{cells}</div>{paragraphs}'


_TOOLS = (
    ("in", "+", "closer (+)"),
    ("out", "−", "wider (-)"),
    ("top", "top", "from the top (Home)"),
    ("whole", "whole", "all of the graph, or as much as can be told apart (0)"),
)


def _graph(story: Story) -> str:
    count = f"{len(story.graph.nodes):,}"
    table = _folded_table("nodes", f"All {count} nodes as a table")
    placed = story.graph.placed
    if placed is None:
        return f'<p class="note">{count} nodes are too many for a picture.</p>{table}'
    tools = "".join(f'<button name="{n}" title="{t}">{s}</button>' for n, s, t in _TOOLS)
    return (
        '<p class="note">As imported. A colour is a kernel, which a click leads to; what has none '
        "was folded into others. Drag or use arrow keys to move; zoom by Ctrl and wheel, or + and "
        f'−.</p><div class="card view" tabindex="0" role="group" aria-label="graph of {count} '
        f'nodes"><svg aria-hidden="true"></svg><div class="tools">{tools}</div>'
        f'<input class="where" type="range" min="0" max="{placed.height:g}" '
        f'aria-label="how far down"></div>{table}'
    )


def _memory(story: Story) -> str:
    numbers = _colours(story)
    pictures = []
    for m in story.memory:
        values = sum(len(b.values) for b in m.blocks)
        pictures.append(
            f'<p class="note">{escape(m.function)}: {values:,} values in {bytes_text(m.total)} of '
            "workspace. A colour is the kernel that wrote the value.</p>"
            f'<div class="card memory">{memory_svg(m, numbers)}</div>'
        )
    if not pictures:
        return '<p class="note">No graph function has a memory plan.</p>'
    count = sum(len(m.blocks) for m in story.memory)
    return "".join(pictures) + _folded_table("memory", f"All {count:,} blocks as a table")


# -- data ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table(JsonRecord):
    """Rows for page.js. `columns`: pairs of a title and a kind of cells:

    text    a text; `names` is one that may be long
    number  [text, value to sort by], with None for what is not known; with a third entry, the share
            of the largest, a bar is drawn
    kernel  the number of a row of `kernels`, or None
    place   a text that leads to the node of this row in the graph

    A row's id is `row` and its number. `texts`, for each row: what is shown when it is opened, by
    the button in column `opener`.
    """

    row: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[object]]
    texts: Sequence[Sequence[Mapping[str, str]]] = field(default=(), metadata=json_key(hidden=True))
    opener: int = -1

    def to_json(self) -> dict[str, Any]:
        return JsonRecord.to_json(self) | {"opens": [bool(t) for t in self.texts]}


def _tables(story: Story) -> dict[str, _Table]:
    return {
        "nodes": _nodes_table(story),
        "passes": _passes_table(story.passes),
        "kernels": _kernels_table(story.kernels),
        "memory": _memory_table(story),
    }


def _colours(story: Story) -> dict[str, int]:
    """The number of each kernel's colour: neighbours in the order of names differ."""
    ordered = sorted(story.kernels, key=attrgetter("name"))
    return {k.name: i % COLOURS for i, k in enumerate(ordered)}


def _kernel_names(story: Story) -> list[tuple[str, int]]:
    numbers = _colours(story)
    return [(k.name, numbers[k.name]) for k in story.kernels]


def _places(story: Story) -> dict[str, object] | None:
    """The layout of the graph; nodes are those of the table, which has their texts."""
    picture, placed = story.graph, story.graph.placed
    if placed is None:
        return None
    return {
        "width": placed.width,
        "height": placed.height,
        "kinds": [n.kind for n in picture.nodes],
        "centres": placed.centre,
        "widths": picture.widths,
        "edges": [points for _, points in sorted(placed.ways.items())],
    }


def _nodes_table(story: Story) -> _Table:
    numbers = {k.name: i for i, k in enumerate(story.kernels)}
    columns = [("node", "place"), ("operator", "text"), ("shape", "text"), ("kernel", "kernel")]
    rows = [
        [
            *((n.span, n.label) if n.kind == "op" else (n.label, n.kind)),
            n.note,
            numbers.get(n.kernel),
        ]
        for n in story.graph.nodes
    ]
    return _Table("node", columns, rows)


def _number(text: str, value: float) -> list[object]:
    return [text, None if math.isnan(value) else value]


def _barred(text: str, value: float, maximum: float) -> list[object]:
    share = 0.0 if math.isnan(value) or not maximum else round(value / maximum, 4)
    return [*_number(text, value), share]


def _count(n: int) -> list[object]:
    return [f"{n:,}", n]


def _maximum(values: Iterator[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=0.0)


def _passes_table(passes: Sequence[PassRow]) -> _Table:
    maximum = _maximum(p.seconds for p in passes)
    columns = [
        ("#", "number"),
        ("pass", "text"),
        ("pipeline", "text"),
        ("time", "number"),
        ("functions", "number"),
        ("lines after", "number"),
        ("change", "number"),
    ]
    rows = [
        [
            _count(p.number),
            p.name,
            p.pipeline,
            _barred(time_text(p.seconds), p.seconds, maximum),
            _count(p.functions),
            _count(p.lines) if p.changed else ["", None],
            _change(p),
        ]
        for p in passes
    ]
    texts = [
        [{"place": "diff", "title": "", "text": _text("\n".join(p.diff))}] if p.changed else []
        for p in passes
    ]
    return _Table("pass", columns, rows, texts, opener=1)


def _change(p: PassRow) -> list[object]:
    if not p.changed:
        return ["unchanged", None]
    additions = sum(x.startswith("+") and not x.startswith("+++") for x in p.diff)
    removals = sum(x.startswith("-") and not x.startswith("---") for x in p.diff)
    return [f"+{additions:,} −{removals:,} lines", additions + removals]


def _kernels_table(kernels: Sequence[KernelRow]) -> _Table:
    maximum = _maximum(k.total for k in kernels)
    columns = [
        ("kernel", "kernel"),
        ("schedule", "text"),
        ("calls", "number"),
        ("time of one", "number"),
        ("of all", "number"),
        ("GFLOP/s", "number"),
        ("object", "number"),
        ("nodes of the model", "names"),
    ]
    rows = [
        [
            i,
            k.op_class,
            _count(k.calls),
            _number(time_text(k.micros / 1e6), k.micros),
            _barred(time_text(k.total / 1e6), k.total, maximum),
            _number(rate_text(k.flops, k.micros / 1e6), _rate(k)),
            _number(bytes_text(k.size), k.size),
            ", ".join(k.nodes),
        ]
        for i, k in enumerate(kernels)
    ]
    return _Table("kernel", columns, rows, [list(_kernel_texts(k)) for k in kernels], opener=0)


def _rate(k: KernelRow) -> float:
    return k.flops / k.micros if k.flops and k.micros else math.nan


def _kernel_texts(k: KernelRow) -> Iterator[dict[str, str]]:
    """What an opened kernel shows, in order: `side` texts stand side by side, `folded` ones open
    when asked to."""

    def block(place: str, title: str, text: str) -> dict[str, str]:
        return {"place": place, "title": title, "text": _text(text)}

    yield block("about", "nodes of the model", ", ".join(k.nodes) or "none")
    if k.trace:
        yield block("folded", "schedule", k.trace)
    if k.metrics:
        yield block("open", "metrics", k.metrics)
    code = (
        ("LLVM IR", k.llvm or "made by another code generator"),
        ("assembly", k.assembly or "made by another code generator"),
    )
    sources = ((k.language, k.source),) if k.source else code
    for title, text in (("tensor program, as scheduled", k.scheduled), *sources):
        yield block("side", title, text)
    if k.tir != k.scheduled:
        yield block("folded", f"the tensor program that the {sources[0][0]} was made from", k.tir)


def _memory_table(story: Story) -> _Table:
    numbers = {k.name: i for i, k in enumerate(story.kernels)}
    columns = [
        ("function", "text"),
        ("values", "names"),
        ("last written by", "kernel"),
        ("size", "number"),
        ("offset", "number"),
        ("first call", "number"),
        ("last call", "number"),
    ]
    rows = [
        [
            m.function,
            ", ".join(b.values),
            numbers.get(b.kernels[-1]),
            _number(bytes_text(b.size), b.size),
            _count(b.offset),
            _count(b.start + 1),
            _count(b.end + 1),
        ]
        for m in story.memory
        for b in m.blocks
    ]
    return _Table("value", columns, rows)


def _text(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    tail = f"\n… {len(lines) - MOST_LINES} more lines" if len(lines) > MOST_LINES else ""
    return "\n".join(map(_cut, lines[:MOST_LINES])) + tail


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} … {len(line) - _LONGEST} more"

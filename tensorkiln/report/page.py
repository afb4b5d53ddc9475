"""One static page: everything inline, nothing fetched, and every name escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from operator import attrgetter

from tensorkiln.report.numbers import bytes_text, rate_text, time_text
from tensorkiln.report.story import KernelRow, PassRow, Story
from tensorkiln.report.svg import colour, graph_svg, memory_svg

# Lines of one text that are shown; of the rest the number is given, to limit the page's size.
MOST_LINES = 8000
_LONGEST = 400  # characters of a line


def page(story: Story) -> str:
    """The page of a story as HTML text, which depends on the story alone."""
    colours = {
        k.name: colour(i) for i, k in enumerate(sorted(story.kernels, key=attrgetter("name")))
    }
    anchors = {k.name: f"kernel-{i}" for i, k in enumerate(story.kernels)}
    parts = (
        _facts(story),
        _section("graph", "Graph", _graph(story, colours, anchors)),
        _section("passes", "Passes", _passes(story.passes)),
        _section("kernels", "Kernels", _kernels(story, colours, anchors)),
        _section("memory", "Memory over time", _memory(story, colours)),
    )
    name, folder = escape(story.name), files(__package__)
    css, js = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    links = "".join(
        f'<a href="#{n}">{n.capitalize()}</a>' for n in ("graph", "passes", "kernels", "memory")
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width"><style>\n{css}</style></head><body>'
        f"<header><h1>{name}</h1><p>{escape(story.target)}</p></header><nav>{links}</nav><main>"
        f"{''.join(parts)}</main><script>\n{js}</script></body></html>\n"
    )


def _section(name: str, title: str, inside: str) -> str:
    return f'\n<section id="{name}"><h2>{title}</h2>{inside}</section>'


def _facts(story: Story) -> str:
    total = sum(k.total for k in story.kernels if not math.isnan(k.total))
    timed = any(not math.isnan(k.total) for k in story.kernels)
    rows = [
        (str(sum(n.kind == "op" for n in story.graph.nodes)), "operators imported"),
        (str(len(story.kernels)), "kernels"),
        (str(sum(k.calls for k in story.kernels)), "kernel calls"),
        (time_text(total / 1e6 if timed else math.nan), "in kernels, one thread"),
        (bytes_text(sum(k.size for k in story.kernels)), "kernel objects"),
        (bytes_text(story.weights), "weights"),
        *((bytes_text(m.total), f"workspace of {m.function}") for m in story.memory),
        (time_text(sum(p.seconds for p in story.passes)), "in passes"),
    ]
    cells = "".join(f"<div><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in rows)
    sizes = ", ".join(f"{n} = {v}" for n, v in story.sizes.items())
    notes = [*story.notes, *([f"Symbolic dimensions are taken as {sizes}."] if sizes else [])]
    told = "".join(f'<p class="note">{escape(n)}</p>' for n in notes)
    return f'<div class="facts">{cells}</div>{told}'


_TOOLS = (
    ("in", "+", "closer"),
    ("out", "−", "wider"),
    ("top", "top", "from the top"),
    ("whole", "whole", "the whole graph"),
)


def _graph(story: Story, colours: Mapping[str, str], anchors: Mapping[str, str]) -> str:
    picture = story.graph
    if picture.placed is None:
        rows = "".join(
            f"<tr><td>{escape(n.span)}</td><td>{escape(n.label)}</td><td>{escape(n.note)}</td>"
            f"<td>{escape(n.kernel)}</td></tr>"
            for n in picture.nodes
        )
        return (
            f'<p class="note">{len(picture.nodes)} operators are too many for a picture.</p>'
            "<details><summary>all of them</summary><table><tr><th>node</th><th>operator</th>"
            f"<th>shape</th><th>kernel</th></tr>{rows}</table></details>"
        )
    tools = "".join(f'<button name="{n}" title="{t}">{s}</button>' for n, s, t in _TOOLS)
    return (
        '<p class="note">As imported. A colour is a kernel, which a click leads to; grey was '
        "folded into others. Wheel to zoom, drag to move.</p>"
        f'<div class="card view">{graph_svg(picture, colours, anchors)}'
        f'<div class="tools">{tools}</div></div>'
    )


def _passes(rows: tuple[PassRow, ...]) -> str:
    most = max((p.seconds for p in rows if not math.isnan(p.seconds)), default=0.0) or 1.0
    return (
        '<div class="card"><table class="passes"><tr><th class="n">#</th><th>pass</th>'
        '<th class="n">time</th>'
        '<th></th><th class="n">functions</th><th class="n">lines after</th>'
        "<th>change</th></tr>"
        f"{''.join(_pass(p, most) for p in rows)}</table></div>"
    )


def _pass(p: PassRow, most: float) -> str:
    share = 0.0 if math.isnan(p.seconds) else p.seconds / most
    lines = str(p.lines) if p.changed else ""
    change = "unchanged"
    if p.changed:
        added = sum(x.startswith("+") and not x.startswith("+++") for x in p.diff)
        gone = sum(x.startswith("-") and not x.startswith("---") for x in p.diff)
        change = (
            f"<details><summary>+{added} −{gone} lines</summary>"
            f'<pre class="diff">{_diff(p.diff)}</pre></details>'
        )
    return (
        f'<tr class="pass {"changed" if p.changed else "same"}" data-pass="{escape(p.name)}">'
        f'<td class="n">{p.number}</td><td>{escape(p.name)} <span class="note">{escape(p.pipeline)}'
        f'</span></td><td class="n">{time_text(p.seconds)}</td><td>{_bar(share, 110)}</td>'
        f'<td class="n">{p.functions}</td><td class="n">{lines}</td><td>{change}</td></tr>'
    )


def _bar(share: float, width: int) -> str:
    return f'<span class="bar" style="width:{share * width:.0f}px"></span>'


_KINDS = {"+++": "f", "---": "f", "===": "f", "@@ ": "h"}


def _diff(lines: Iterable[str]) -> str:
    shown = list(lines)
    out = []
    for line in shown[:MOST_LINES]:
        kind = _KINDS.get(line[:3]) or {"+": "a", "-": "d"}.get(line[:1], "")
        mark = f' class="{kind}"' if kind else ""
        out.append(f"<i{mark}>{escape(_cut(line)) or ' '}</i>")
    return "".join(out) + _rest(len(shown))


def _text(text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    return escape("\n".join(map(_cut, lines[:MOST_LINES]))) + _rest(len(lines))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} … {len(line) - _LONGEST} more"


def _rest(count: int) -> str:
    return f"\n… {count - MOST_LINES} more lines" if count > MOST_LINES else ""


def _kernels(story: Story, colours: Mapping[str, str], anchors: Mapping[str, str]) -> str:
    most = max((k.total for k in story.kernels if not math.isnan(k.total)), default=0.0) or 1.0
    rows = "".join(
        f'<tr class="row"><td><span class="dot" style="background:{colours[k.name]}"></span>'
        f'<a href="#{anchors[k.name]}">{escape(k.name)}</a></td><td>{escape(k.op_class)}</td>'
        f'<td class="n">{k.calls}</td><td class="n">{time_text(k.micros / 1e6)}</td>'
        f'<td class="n">{time_text(k.total / 1e6)}</td>'
        f"<td>{_bar(0.0 if math.isnan(k.total) else k.total / most, 110)}</td>"
        f'<td class="n">{rate_text(k.flops, k.micros / 1e6)}</td>'
        f'<td class="n">{bytes_text(k.size)}</td>'
        f'<td class="names">{escape(", ".join(k.nodes))}</td></tr>'
        for k in story.kernels
    )
    return (
        '<div class="card"><table><tr><th>kernel</th><th>schedule</th><th class="n">calls</th>'
        '<th class="n">time of one</th><th class="n">of all</th><th></th>'
        '<th class="n">GFLOP/s</th><th class="n">object</th><th>nodes of the model</th></tr>'
        f"{rows}</table></div><p></p>"
        f'<div class="card">{"".join(_kernel(k, colours, anchors) for k in story.kernels)}</div>'
    )


def _kernel(k: KernelRow, colours: Mapping[str, str], anchors: Mapping[str, str]) -> str:
    code = (
        ("LLVM IR", k.llvm or "made by another code generator"),
        ("assembly", k.assembly or "made by another code generator"),
    )
    made = ((k.language, k.source),) if k.source else code
    sides = (("tensor program, as scheduled", k.scheduled), *made)
    texts = "".join(f"<div><h3>{name}</h3><pre>{_text(text)}</pre></div>" for name, text in sides)
    steps = final = ""
    if k.trace:
        steps = (
            f"<details><summary class=about>schedule</summary><pre>{_text(k.trace)}</pre></details>"
        )
    if k.tir != k.scheduled:
        final = (
            f"<details><summary class=about>the tensor program that the {made[0][0]} was made from"
            f"</summary><pre>{_text(k.tir)}</pre></details>"
        )
    if k.metrics:
        steps += f'<h3>metrics</h3><pre class="metrics">{_text(k.metrics)}</pre>'
    calls = "1 call" if k.calls == 1 else f"{k.calls} calls"
    nodes = escape(", ".join(k.nodes)) or "none"
    return (
        f'<details class="kernel" id="{anchors[k.name]}" data-kernel="{escape(k.name)}"><summary>'
        f'<span class="dot" style="background:{colours[k.name]}"></span><b>{escape(k.name)}</b> '
        f'<span class="note">{escape(k.op_class)}, {calls}, {time_text(k.micros / 1e6)}, '
        f'{bytes_text(k.size)}</span></summary><div class="about">nodes of the model: {nodes}</div>'
        f'{steps}<div class="sides">{texts}</div>{final}</details>'
    )


def _memory(story: Story, colours: Mapping[str, str]) -> str:
    pictures = []
    for m in story.memory:
        values = sum(len(b.values) for b in m.blocks)
        pictures.append(
            f'<p class="note">{escape(m.function)}: {values} values in {bytes_text(m.total)} of '
            "workspace. A colour is the kernel that wrote the value.</p>"
            f'<div class="card memory">{memory_svg(m, colours)}</div>'
        )
    return "".join(pictures) or '<p class="note">No graph function has a memory plan.</p>'

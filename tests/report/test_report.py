"""The page of a report: its parts, its numbers, its escaping."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from tensorkiln.cli.entry import main
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.report import Report, graph
from tensorkiln.report.memory import memory_pictures
from tensorkiln.script import R, print_function
from tests.report.reading import Element, read
from tests.transform.graphs import graph as make
from tests.transform.graphs import rand

CONV = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}


def network(g: Any, x: Any) -> Any:
    h = g.relu(g.conv2d(x, rand(16, 3, 3, 3), **CONV))
    r = g.conv2d(h, rand(16, 16, 5, 5, seed=1), **{**CONV, "padding": (2, 2, 2, 2)})
    h = g.relu(g.add(r, h))
    h = g.mean(g.max_pool2d(h, kernel=(2, 2), strides=(2, 2)), axes=(2, 3), keepdims=False)
    return g.softmax(g.matmul(h, rand(16, 5)), axis=-1)


MODULE = make(network, x=(1, 3, 8, 8))


@pytest.fixture(scope="module")
def report() -> Report:
    return tk.explain(MODULE, seconds=0.001)


@pytest.fixture(scope="module")
def root(report: Report) -> Element:
    return read(report.html())


def test_the_sections(root: Element) -> None:
    ids = [s.attributes["id"] for s in root.all("section")]
    assert ids == ["graph", "passes", "kernels", "memory"]
    links = [a.attributes["href"] for a in root.one("nav").all("a")]
    assert links == [f"#{i}" for i in ids]


def test_nothing_is_fetched(report: Report, root: Element) -> None:
    for tag in ("link", "img", "iframe", "object", "embed"):
        assert root.all(tag) == []
    (script,) = root.all("script")
    assert "src" not in script.attributes
    refs = [a.attributes["href"] for a in root.all("a")]
    assert refs and all(r.startswith("#") for r in refs)
    assert "@import" not in report.html() and "url(" not in report.html()
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", report.html())


def test_every_pass_is_there_in_order(root: Element, report: Report) -> None:
    target = tk.Target("native")
    names = [pass_name(p) for p in (*relax_passes(target), *tir_passes(target))]
    rows = root.one("section", id="passes").all("tr", "pass")
    assert [r.attributes["data-pass"] for r in rows] == names
    for row, told in zip(rows, report.story.passes, strict=True):
        assert row.all("td")[0].text == str(told.number)
        assert re.fullmatch(r"[\d.]+ (µs|ms|s)", row.all("td")[2].text)
        assert bool(row.all("pre", "diff")) == told.changed
        assert ("unchanged" in row.text) == (not told.changed)
    fused = next(r for r in rows if r.attributes["data-pass"] == "fuse_ops")
    added = [i.text for i in fused.one("pre").all("i", "a")]
    assert any("Module.conv2d_relu(" in line for line in added)
    gone = [i.text for i in fused.one("pre").all("i", "d")]
    assert any("R.conv2d(" in line for line in gone)


def test_every_kernel_is_there_with_its_texts(root: Element, report: Report) -> None:
    module = report.executable.module
    shown = {d.attributes["data-kernel"]: d for d in root.all("details", "kernel")}
    assert set(shown) == {f.name for f in module.prim_funcs}
    listed = {r.one("a").text: r for r in root.one("section", id="kernels").all("tr", "row")}
    assert set(listed) == set(shown)
    for name, kernel in shown.items():
        heads = [h.text for h in kernel.all("h3")]
        assert heads == ["tensor program, as scheduled", "LLVM IR", "assembly"]
        tir, llvm, assembly = (d.one("pre").text for d in kernel.one("div", "sides").children)
        assert f"def {name}(" in tir
        assert f"@{name}(" in llvm and "define" in llvm
        assert f"{name}:" in assembly
        final = [p.text.rstrip() for p in kernel.all("pre")][-1]
        if final != assembly.rstrip():
            assert final == print_function(module[name]).rstrip()
        anchor = listed[name].one("a").attributes["href"]
        assert anchor == f"#{kernel.attributes['id']}"


def test_a_kernel_shows_the_steps_of_its_schedule(root: Element, report: Report) -> None:
    kernels = {d.attributes["data-kernel"]: d for d in root.all("details", "kernel")}
    (steps, *_) = kernels["conv2d_add_relu"].all("details")
    assert steps.one("summary").text == "schedule"
    assert steps.one("pre").text.startswith("f = split")
    told = {k.name: k.trace for k in report.story.kernels}
    assert steps.one("pre").text.rstrip() == told["conv2d_add_relu"].rstrip()
    assert "vectorize" in told["relayout"]


def test_nodes_lead_to_the_kernel_that_computes_them(root: Element, report: Report) -> None:
    kernels = {k.name: k for k in report.story.kernels}
    assert "node add" in kernels["conv2d_add_relu"].nodes
    boxes = root.one("section", id="graph").all("g", "node")
    operators = [b for b in boxes if "op" in b.attributes["class"].split()]
    assert len(operators) == len(MODULE.graphs[0].bindings)
    assert len(boxes) == len(operators) + 2
    linked = [b for b in operators if b.all("a")]
    assert len(linked) == len(operators)  # nothing of this graph is folded away
    fills = {b.one("rect").attributes["fill"] for b in operators}
    assert len(fills) >= 3
    add = next(b for b in operators if b.all("text")[0].text == "add")
    assert "kernel conv2d_add_relu" in add.one("title").text


@tk.script.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        if c:
            y: R.Tensor((4,), "float32") = R.exp(x)
            z: R.Tensor((4,), "float32") = R.neg(y)
        else:
            z: R.Tensor((4,), "float32") = R.tanh(x)
        w: R.Tensor((4,), "float32") = R.softmax(z, axis=-1)
        return w


def test_branches_are_drawn_and_their_parts_have_kernels() -> None:
    """Variables of one name in two branches: neither is given the other's kernel."""
    told = tk.explain(Branches, seconds=0.001).story
    nodes = [(n.label, n.kernel) for n in told.graph.nodes]
    assert nodes == [
        ("x", ""),
        ("c", ""),
        ("exp", "exp_neg"),
        ("neg", ""),
        ("tanh", ""),
        ("if", ""),
        ("softmax", "softmax"),
        ("result", ""),
    ]
    by = {n.label: i for i, n in enumerate(told.graph.nodes)}
    for a, b in (("c", "if"), ("neg", "if"), ("tanh", "if"), ("if", "softmax"), ("x", "exp")):
        assert (by[a], by[b]) in told.graph.edges
    assert {k.name: k.calls for k in told.kernels} == {"tanh": 1, "exp_neg": 1, "softmax": 1}
    assert [m.function for m in told.memory] == ["main_part0", "main_part1", "main_part2"]


def test_times_are_measured(report: Report) -> None:
    for k in report.story.kernels:
        assert 0 < k.micros < 1e6 and k.calls >= 1 and k.size > 100
        assert k.total == k.calls * k.micros
    assert max(report.story.kernels, key=lambda k: k.total) is report.story.kernels[0]
    for p in report.story.passes:
        assert 0 < p.seconds < 60


def test_memory_blocks_are_those_of_the_plan(root: Element, report: Report) -> None:
    (m,) = report.story.memory
    rects = root.one("section", id="memory").all("rect", "block")
    assert len(rects) == len(m.blocks) > 1
    for i, a in enumerate(m.blocks):
        assert a.offset + a.size <= m.total and a.start <= a.end < len(m.calls)
        for b in m.blocks[:i]:
            apart = a.end < b.start or b.end < a.start
            assert apart or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    assert m.live[m.peak] == max(m.live) <= m.total
    titles = [r.one("title").text for r in rects]
    for b, title in zip(m.blocks, titles, strict=True):
        assert all(v in title for v in b.values) and f"calls {b.start + 1} to" in title
    assert f"in use at call {m.peak + 1}" in root.one("section", id="memory").text


def test_a_value_in_the_place_of_another_continues_its_block() -> None:
    """silu may overwrite what softmax made: one rectangle, over both calls."""

    def build(g: Any, x: Any) -> Any:
        s = g.softmax(x, axis=-1)
        return g.softmax(g.silu(s), axis=-1)

    (m,) = memory_pictures(tk.compile(make(build, x=(16, 64))).module, (), {})
    assert [b.values for b in m.blocks] == [("node softmax", "node silu")]
    assert m.blocks[0].kernels == ("softmax", "silu") and m.blocks[0].size == m.total == 4096


def test_the_page_is_the_same_when_nothing_is_timed() -> None:
    one, other = (tk.explain(MODULE, seconds=0).html() for _ in range(2))
    assert one == other
    assert "Kernels were not timed." in one and "–" in one


def test_the_executable_is_what_compile_gives(report: Report) -> None:
    assert report.executable.artifacts == tk.compile(MODULE).artifacts


def test_symbolic_dimensions_take_the_sizes_asked_for() -> None:
    mod = make(
        lambda g, x: g.softmax(g.exp(g.softmax(x, axis=-1)), axis=0),
        x=tensor((Var("rows"), 40), "float32"),
    )
    small, large = (tk.explain(mod, sizes={"rows": n}, seconds=0.001) for n in (2, 2000))
    assert small.story.memory[0].total * 100 < large.story.memory[0].total
    assert "Symbolic dimensions are taken as rows = 2000." in large.html()
    slow = sum(k.total for k in large.story.kernels)
    assert slow > 5 * sum(k.total for k in small.story.kernels)


def test_another_processor_is_told_but_not_timed() -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    told = tk.explain(MODULE, target)
    assert all(math.isnan(k.micros) for k in told.story.kernels)
    assert told.story.notes[0].startswith("Kernels were not timed:")
    assert "aarch64" in read(told.html()).one("header").text
    assert any("fmla" in k.assembly for k in told.story.kernels)


def test_kernels_of_others_are_listed_without_our_texts() -> None:
    mod = make(lambda g, x: g.tanh(g.add(x, 1.0)), x=tensor((Var("n"), 8), "float32"))
    told = tk.explain(mod, externals=[C_REFERENCE], sizes={"n": 50}, seconds=0.001)
    others = [k for k in told.story.kernels if k.op_class == "external:c_reference"]
    assert others
    for k in others:
        assert k.llvm == k.assembly == "" and "R.function" in k.tir
        assert math.isnan(k.micros)
    assert any(f"hidden or of unknown size: {others[0].name}" in n for n in told.story.notes)
    assert "made by another code generator" in read(told.html()).text


def test_large_graphs_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_NODES", 5)
    root = read(tk.explain(MODULE, seconds=0).html()).one("section", id="graph")
    assert root.all("svg") == []
    assert len(root.all("tr")) == len(MODULE.graphs[0].bindings) + 3
    assert "too many for a picture" in root.text


def test_long_texts_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tensorkiln.report.page"], "MOST_LINES", 7)
    told = tk.explain(MODULE, seconds=0)
    (first, *_) = read(told.html()).all("details", "kernel")
    _, _, llvm, *_ = first.all("pre")  # schedule, program, LLVM IR
    text = llvm.text
    whole = told.story.kernels[0].llvm.rstrip("\n").count("\n") + 1
    assert text.count("\n") == 7 and text.endswith(f"… {whole - 7} more lines")


# -- names that are markup ---------------------------------------------------------------------

EVIL = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&amp;"


def evil_model(path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", [f"in{EVIL}", f"w{EVIL}"], [f"a{EVIL}"], f"mm{EVIL}"),
        helper.make_node("Softmax", [f"a{EVIL}"], [f"b{EVIL}"], f"soft{EVIL}"),
        helper.make_node("Softmax", [f"b{EVIL}"], [f"out{EVIL}"], f"soft2{EVIL}", axis=0),
    ]
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), f"w{EVIL}")
    value = helper.make_tensor_value_info
    inputs = [value(f"in{EVIL}", TensorProto.FLOAT, [f"rows{EVIL}", 4])]
    outputs = [value(f"out{EVIL}", TensorProto.FLOAT, [f"rows{EVIL}", 4])]
    made = helper.make_graph(nodes, f"model{EVIL}", inputs, outputs, [weight])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_names_are_never_markup(tmp_path: Path) -> None:
    told = tk.explain(tk.frontend.from_onnx(evil_model(tmp_path / "evil.onnx")), seconds=0)
    html = told.html()
    root = read(html)
    assert len(root.all("script")) == 1 and root.all("img") == []
    assert html.count("<script") == 1 and html.count("</script") == 1
    assert not any(a.startswith("on") for e in everything(root) for a in e.attributes)
    titles = [t.text for t in root.one("section", id="graph").all("title")]
    assert any(EVIL in t for t in titles), titles  # shown as text, whole
    assert EVIL in root.one("section", id="kernels").text


def everything(e: Element) -> list[Element]:
    return [x for c in e.children for x in (c, *everything(c))]


# -- the command -------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = evil_model(tmp_path / "model.onnx")
    folder = tmp_path / "deep" / "report"
    assert main(["explain", str(model), "-o", str(folder), "--no-times"]) == 0
    assert {f.name for f in folder.iterdir()} == {"index.html", ".kiln-files.json"}
    first = (folder / "index.html").read_bytes()
    assert main(["explain", str(model), "-o", str(folder), "--no-times"]) == 0
    assert (folder / "index.html").read_bytes() == first
    assert "index.html: " in capsys.readouterr().err


def test_the_command_refuses_a_file_for_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = evil_model(tmp_path / "model.onnx")
    assert main(["explain", str(model), "-o", str(model)]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none.onnx")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_module_of_tensor_programs_only() -> None:
    from tests.passes.test_instruments import MODULE as small

    lowered = tk.compile(small).module.with_programs()
    programs = IRModule(lowered.prim_funcs, "programs")
    public = IRModule(tuple(_public(f) for f in programs.prim_funcs), "programs")
    root = read(tk.explain(public, seconds=0.001).html())
    assert "No graph function has a memory plan." in root.text
    assert len(root.all("details", "kernel")) == 1


def _public(f: Any) -> Any:
    from dataclasses import replace

    return replace(f, public=True)

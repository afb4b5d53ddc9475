"""The page of a report: its parts, its numbers, its escaping."""

from __future__ import annotations

import base64
import functools
import hashlib
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
from examples.make_mlp import make_mlp
from tensorkiln.base.errors import UserError
from tensorkiln.cli.entry import main
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.report import Report, graph
from tensorkiln.report.memory import memory_pictures
from tensorkiln.script import R, print_function
from tests.report.reading import Element, json_of, read, rows
from tests.transform.graphs import graph as make

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
    assert all("src" not in s.attributes for s in root.all("script"))
    refs = [a.attributes["href"] for a in root.all("a")]
    assert refs and all(r.startswith("#") for r in refs)
    assert "@import" not in report.html() and "url(" not in report.html()
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+|http-equiv", "", report.html())


def test_nothing_is_permitted_but_the_page_s_own_script_and_style(root: Element) -> None:
    policy = root.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    (script,) = (s for s in root.all("script") if "type" not in s.attributes)
    for kind, element in (("script-src", script), ("style-src", root.one("style"))):
        digest = hashlib.sha256(element.text.encode()).digest()
        assert directives[kind] == f"'sha256-{base64.b64encode(digest).decode()}'"
    for e in everything(root):
        assert not any(a == "style" or a.startswith("on") for a in e.attributes)


def test_every_pass_is_there_in_order(root: Element, report: Report) -> None:
    target = tk.Target("native")
    names = [pass_name(p) for p in (*relax_passes(target), *tir_passes(target))]
    table_rows = rows(root, "passes")
    assert [r.cells["pass"] for r in table_rows] == names
    for row, pass_record in zip(table_rows, report.story.passes, strict=True):
        assert row.keys["#"] == pass_record.number and row.keys["time"] == pass_record.seconds
        assert re.fullmatch(r"[\d.]+ (µs|ms|s)", row.cells["time"])
        assert bool(row.texts("diff")) == pass_record.changed
        assert (row.cells["change"] == "unchanged") == (not pass_record.changed)
    fused = next(r for r in table_rows if r.cells["pass"] == "fuse_ops")
    lines = fused.texts("diff")[""].split("\n")
    assert any(x.startswith("+") and "Module.conv2d_relu(" in x for x in lines)
    assert any(x.startswith("-") and "R.conv2d(" in x for x in lines)


def test_every_kernel_is_there_with_its_texts(root: Element, report: Report) -> None:
    module = report.executable.module
    rows_by_kernel = {r.cells["kernel"]: r for r in rows(root, "kernels")}
    assert set(rows_by_kernel) == {f.name for f in module.prim_funcs}
    for name, kernel in rows_by_kernel.items():
        sides = kernel.texts("side")
        assert list(sides) == ["tensor program, as scheduled", "LLVM IR", "assembly"]
        tir, llvm, assembly = sides.values()
        assert f"def {name}(" in tir
        assert f"@{name}(" in llvm and "define" in llvm
        assert f"{name}:" in assembly
        final = kernel.texts("folded").get("the tensor program that the LLVM IR was made from", tir)
        assert final == print_function(module[name]).rstrip()
        record = next(k for k in report.story.kernels if k.name == name)
        assert (kernel.keys["object"], kernel.keys["time of one"]) == (record.size, record.micros)


def test_a_kernel_shows_the_steps_of_its_schedule(root: Element, report: Report) -> None:
    kernels = {r.cells["kernel"]: r for r in rows(root, "kernels")}
    steps = kernels["conv2d_add_relu"].texts("folded")["schedule"]
    assert steps.startswith("f = split")
    traces = {k.name: k.trace for k in report.story.kernels}
    assert steps == traces["conv2d_add_relu"].rstrip()
    assert "vectorize" in traces["relayout"]


def test_nodes_lead_to_the_kernel_that_computes_them(root: Element, report: Report) -> None:
    kernels = {k.name: k for k in report.story.kernels}
    assert "node add" in kernels["conv2d_add_relu"].nodes
    nodes = rows(root, "nodes")
    kinds = json_of(root, "data")["graph"]["kinds"]
    operators = [n for n, kind in zip(nodes, kinds, strict=True) if kind == "op"]
    assert len(operators) == len(MODULE.graphs[0].bindings)
    assert len(nodes) == len(operators) + 2
    assert all(n.cells["kernel"] in kernels for n in operators)  # nothing is folded away
    assert [n.cells["kernel"] for n in operators if n.cells["operator"] == "add"] == [
        "conv2d_add_relu"
    ]
    assert [n.cells["node"] for n in nodes if n.cells["operator"] == "input"] == ["x"]


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
    story = tk.explain(Branches, seconds=0.001).story
    nodes = [(n.label, n.kernel) for n in story.graph.nodes]
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
    by = {n.label: i for i, n in enumerate(story.graph.nodes)}
    for a, b in (("c", "if"), ("neg", "if"), ("tanh", "if"), ("if", "softmax"), ("x", "exp")):
        assert (by[a], by[b]) in story.graph.edges
    assert {k.name: k.calls for k in story.kernels} == {"tanh": 1, "exp_neg": 1, "softmax": 1}
    assert [m.function for m in story.memory] == ["main_part0", "main_part1", "main_part2"]


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
    blocks = rows(root, "memory")
    assert [(r.keys["size"], r.keys["offset"]) for r in blocks] == [
        (b.size, b.offset) for b in m.blocks
    ]
    assert [(r.cells["first call"], r.cells["last call"]) for r in blocks] == [
        (str(b.start + 1), str(b.end + 1)) for b in m.blocks
    ]


def test_a_value_in_the_place_of_another_continues_its_block() -> None:
    """silu may overwrite what softmax made: one rectangle, over both calls."""

    def build(g: Any, x: Any) -> Any:
        s = g.softmax(x, axis=-1)
        return g.softmax(g.silu(s), axis=-1)

    (m,) = memory_pictures(tk.compile(make(build, x=(16, 64))).module, (), {})
    assert [b.values for b in m.blocks] == [("node softmax", "node silu")]
    assert m.blocks[0].kernels == ("softmax", "silu") and m.blocks[0].size == m.total == 4096


def test_the_page_is_the_same_when_nothing_is_timed() -> None:
    first_page, second_page = (tk.explain(MODULE, seconds=0).html() for _ in range(2))
    assert first_page == second_page
    assert "Kernels were not timed." in first_page and "–" in first_page


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
    report = tk.explain(MODULE, target)
    assert all(math.isnan(k.micros) for k in report.story.kernels)
    assert report.story.notes[0].startswith("Kernels were not timed:")
    assert "aarch64" in read(report.html()).one("header").text
    assert any("fmla" in k.assembly for k in report.story.kernels)


def test_kernels_of_others_are_listed_without_our_texts() -> None:
    mod = make(lambda g, x: g.tanh(g.add(x, 1.0)), x=tensor((Var("n"), 8), "float32"))
    report = tk.explain(mod, externals=[C_REFERENCE], sizes={"n": 50}, seconds=0.001)
    external_kernels = [k for k in report.story.kernels if k.op_class == "external:c_reference"]
    assert external_kernels
    for k in external_kernels:
        assert k.llvm == k.assembly == "" and "R.function" in k.tir
        assert math.isnan(k.micros)
    assert any(
        f"hidden or of unknown size: {external_kernels[0].name}" in n for n in report.story.notes
    )
    rows_by_kernel = {r.cells["kernel"]: r for r in rows(read(report.html()), "kernels")}
    for k in external_kernels:
        assert rows_by_kernel[k.name].keys["time of one"] is None
        assert rows_by_kernel[k.name].texts("side")["assembly"] == "made by another code generator"


def test_a_graph_too_large_to_place_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_CELLS", 5)
    root = read(tk.explain(MODULE, seconds=0).html())
    section = root.one("section", id="graph")
    assert section.all("svg") == [] and json_of(root, "data")["graph"] is None
    assert len(rows(root, "nodes")) == len(MODULE.graphs[0].bindings) + 2
    assert "too many for a picture" in section.text


def test_long_texts_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tensorkiln.report.page"], "MOST_LINES", 7)
    report = tk.explain(MODULE, seconds=0)
    text = rows(read(report.html()), "kernels")[0].texts("side")["LLVM IR"]
    whole = report.story.kernels[0].llvm.rstrip("\n").count("\n") + 1
    assert text.count("\n") == 7 and text.endswith(f"… {whole - 7} more lines")


# -- the model's name ------------------------------------------------------------------------------


def shown_name(report: Report) -> str:
    """The headline, which the title has, too."""
    root = read(report.html())
    name = root.one("h1").text
    assert root.one("head").one("title").text == f"{name} · kiln explain"
    return name


def test_every_form_of_model_shows_its_name(tmp_path: Path) -> None:
    explain = functools.partial(tk.explain, seconds=0)
    model = make_mlp()
    onnx.save(model, tmp_path / "my net-2.onnx")
    assert shown_name(explain(tmp_path / "my net-2.onnx")) == "my net-2"
    assert shown_name(explain(str(tmp_path / "my net-2.onnx"), freeze={"batch": 2})) == "my net-2"
    assert shown_name(explain(model)) == shown_name(explain(model.SerializeToString())) == "mlp"
    assert shown_name(explain(IRModule(MODULE.functions, "branches of 2"))) == "branches of 2"
    assert shown_name(explain(MODULE)) == MODULE.name
    assert shown_name(explain(MODULE.graphs[0])) == "main"
    assert shown_name(explain(MODULE, name="a <b> & c")) == "a <b> & c"
    with pytest.raises(UserError, match="name is an int, expected a str"):
        explain(MODULE, name=3)


def test_a_torch_module_shows_its_class() -> None:
    torch = pytest.importorskip("torch")

    class TwoLayers(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x).relu())

    report = tk.explain(TwoLayers(), example_inputs=torch.zeros(3, 4), seconds=0)
    assert shown_name(report) == "TwoLayers"


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
    graph = helper.make_graph(nodes, f"model{EVIL}", inputs, outputs, [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_names_are_never_markup(tmp_path: Path) -> None:
    report = tk.explain(tk.frontend.from_onnx(evil_model(tmp_path / "evil.onnx")), seconds=0)
    html = report.html()
    root = read(html)
    assert root.all("img") == []
    assert html.count("<script") == html.count("</script") == len(root.all("script"))
    scripts = [s for s in root.all("script") if s.attributes.get("type") != "application/json"]
    assert len(scripts) == 1
    nodes = [r.cells["node"] for r in rows(root, "nodes")]
    assert f"mm{EVIL}" in nodes  # whole
    assert any(EVIL in r.cells["nodes of the model"] for r in rows(root, "kernels"))
    named = read(tk.explain(MODULE, seconds=0, name=EVIL).html())
    assert named.one("h1").text == EVIL


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
    assert read(first.decode()).one("h1").text == "model.onnx"


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
    assert len(rows(root, "kernels")) == 1


def _public(f: Any) -> Any:
    from dataclasses import replace

    return replace(f, public=True)

"""What weights take in a library: reported by cause, and not more than the model's where they are
to be small, with the same results."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import PlainProgress, Progress
from tensorkiln.codegen.memory import MemoryReport
from tensorkiln.codegen.memory.measure import memory_report
from tensorkiln.codegen.memory.weights import model_weights
from tensorkiln.executable import Executable
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Tuple, Value, constant, tensor
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.options import target_of
from tensorkiln.pipeline import relax_passes
from tensorkiln.report.story import record
from tensorkiln.target import Target
from tests.frontend.onnx_models import FLOAT, INT64, model, theirs, value
from tests.rotation import rows_in_turn
from tests.transform.graphs import graph

Array = np.ndarray
Model = tuple[onnx.ModelProto, dict[str, Array]]
node = helper.make_node

ALLOWED = 1.05  # of the model's bytes, where weights are to be small
TARGETS: dict[str, Mapping[str, object]] = {
    "v2": {"kind": "llvm", "mcpu": "x86-64-v2"},
    "v3": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "v4": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "native": Target("native").to_json(),
    "c": {"kind": "c"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"},
}
RUNNABLE = ("v2", "v3", "native", "c")


class _Weights:
    """Random weights by name, scaled so that values keep their size."""

    def __init__(self) -> None:
        self.rng, self.made = np.random.default_rng(0), dict[str, Array]()

    def __call__(self, name: str, *shape: int, fan: int = 1) -> str:
        self.made[name] = (self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        return name

    def conv(self, name: str, x: str, o: int, i: int, k: int, **attrs: object) -> onnx.NodeProto:
        w = self(f"{name}.w", o, i, k, k, fan=i * k * k)
        pads = [k // 2] * 4
        return node("Conv", [x, w, self(f"{name}.b", o)], [name], name, pads=pads, **attrs)


def residual() -> Model:
    """Of a ResNet: 3x3 convolutions that Winograd's algorithm takes, a strided shortcut."""
    w = _Weights()
    nodes = [
        w.conv("stem", "x", 64, 3, 7, strides=[2, 2]),
        node("Relu", ["stem"], ["r0"]),
        w.conv("a1", "r0", 64, 64, 3),
        node("Relu", ["a1"], ["r1"]),
        w.conv("a2", "r1", 64, 64, 3),
        node("Add", ["a2", "r0"], ["s1"]),
        w.conv("b1", "s1", 128, 64, 3, strides=[2, 2]),
        node("Relu", ["b1"], ["r2"]),
        w.conv("b2", "r2", 128, 128, 3),
        w.conv("short", "s1", 128, 64, 1, strides=[2, 2]),
        node("Add", ["b2", "short"], ["s2"]),
        node("GlobalAveragePool", ["s2"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", w("fc.w", 10, 128, fan=128), w("fc.b", 10)], ["y"], transB=1),
    ]
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float32)
    return model(nodes, [value("x", FLOAT, x.shape)], ["y"], consts=w.made), {"x": x}


def inverted() -> Model:
    """Of a MobileNet: wide 1x1 convolutions around depthwise ones, channels of no whole vector."""
    w = _Weights()
    nodes = [
        w.conv("stem", "x", 32, 3, 3, strides=[2, 2]),
        w.conv("up", "stem", 192, 32, 1),
        node("Clip", ["up", "low", "high"], ["c1"]),
        w.conv("deep", "c1", 192, 1, 3, group=192),
        node("Clip", ["deep", "low", "high"], ["c2"]),
        w.conv("down", "c2", 40, 192, 1),
        w.conv("last", "down", 1024, 40, 1),
        node("GlobalAveragePool", ["last"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", w("fc.w", 160, 1024, fan=1024), w("fc.b", 160)], ["y"], transB=1),
    ]
    w.made |= {"low": np.float32(0), "high": np.float32(6)}
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    return model(nodes, [value("x", FLOAT, x.shape)], ["y"], consts=w.made), {"x": x}


def _layer(w: _Weights, x: str, n: str, k: int) -> list[onnx.NodeProto]:
    """A layer without attention: what there is to store."""
    return [
        node("MatMul", [x, w(f"{n}.up", k, 4 * k, fan=k)], [f"{n}_u"]),
        node("Tanh", [f"{n}_u"], [f"{n}_t"]),
        node("MatMul", [f"{n}_t", w(f"{n}.down", 4 * k, k, fan=4 * k)], [f"{n}_d"]),
        node("Add", [f"{n}_d", x], [f"{n}_s"]),
    ]


def tied() -> Model:
    """Of a GPT-2: the table of words is the last product's weights, too."""
    w = _Weights()
    words, places = w("wte", 1000, 96, fan=96), w("wpe", 12, 96)
    nodes = [
        node("Gather", [words, "i"], ["e"]),
        node("Add", ["e", places], ["h"]),
        *_layer(w, "h", "l0", 96),
        node("Transpose", [words], ["wt"], perm=[1, 0]),
        node("MatMul", ["l0_s", "wt"], ["y"]),
    ]
    i = np.random.default_rng(1).integers(0, 1000, (1, 12))
    return model(nodes, [value("i", INT64, i.shape)], ["y"], consts=w.made), {"i": i}


def untied() -> Model:
    """Of a BERT: a table of words that nothing else reads."""
    w = _Weights()
    nodes = [
        node("Gather", [w("words", 1000, 96), "i"], ["e"]),
        *_layer(w, "e", "l0", 96),
        *_layer(w, "l0_s", "l1", 96),
        node("MatMul", ["l1_s", w("head", 96, 2, fan=96)], ["y"]),
    ]
    i = np.random.default_rng(1).integers(-1000, 1000, (2, 9))
    return model(nodes, [value("i", INT64, i.shape)], ["y"], consts=w.made), {"i": i}


MODELS: dict[str, Callable[[], Model]] = {
    f.__name__: cache(f) for f in (residual, inverted, tied, untied)
}


def stored(model_proto: onnx.ModelProto) -> int:
    return sum(onnx.numpy_helper.to_array(t).nbytes for t in model_proto.graph.initializer)


def planned(mod: IRModule, target: Mapping[str, object]) -> MemoryReport:
    """The report, without code for the target."""
    weights = model_weights(mod)
    for step in relax_passes(target_of(dict(target))):
        mod = step(mod)
    return memory_report(mod, model=weights)


@pytest.mark.parametrize(
    ("name", "target", "optimize"),
    rows_in_turn(product(MODELS, TARGETS, ("speed", "size")), family=itemgetter(0, 2)),
)
def test_bytes_of_every_target(name: str, target: str, optimize: str) -> None:
    """Small weights take what the model's do; a table that is shared is stored once in any case."""
    model_proto, _ = MODELS[name]()
    mod = tk.frontend.from_onnx(model_proto)
    weights_report = planned(mod, {**TARGETS[target], "optimize": optimize}).weights
    assert (
        weights_report is not None and 0 <= stored(model_proto) - weights_report.model_bytes <= 8
    )  # limits of Clip
    if optimize == "size" or name in ("tied", "untied"):
        assert weights_report.bytes <= ALLOWED * weights_report.model_bytes
    is_larger = name == "residual" and optimize == "speed"
    assert any("Winograd" in c.cause for c in weights_report.causes) == is_larger
    causes = sum(c.more for c in weights_report.causes)
    assert (
        weights_report.bytes - weights_report.model_bytes <= causes
    )  # what is left out needs no cause


@pytest.mark.parametrize(
    ("name", "target", "optimize"),
    rows_in_turn(product(MODELS, RUNNABLE, ("speed", "size")), family=itemgetter(0)),
)
def test_results_are_those_of_onnx_runtime(name: str, target: str, optimize: str) -> None:
    model_proto, feeds = MODELS[name]()
    exe = tk.compile(tk.frontend.from_onnx(model_proto), dict(TARGETS[target]), optimize=optimize)
    assert exe.target["optimize"] == optimize
    (want,) = theirs(model_proto, feeds)
    np.testing.assert_allclose(exe(*feeds.values()), want, rtol=1e-3, atol=2e-4)
    weights = exe.memory().weights
    assert weights is not None and weights.bytes == exe.weights_bytes
    if optimize == "size":
        assert exe.weights_bytes <= ALLOWED * stored(model_proto)


@pytest.mark.parametrize("placement", ["embedded", "beside"])
@pytest.mark.parametrize("optimize", ["speed", "size"])
def test_the_file(optimize: str, placement: str, tmp_path: Path) -> None:
    """Large weights begin at a huge page, which leaves up to 2 MiB empty, or at the next page. The
    link plan says so, so that artifacts that were saved are linked alike."""
    mod = graph(lambda g, x: g.linear(x, rand(1100, 1000)), x=(1, 1100))
    exe = tk.compile(mod, optimize=optimize)
    path = exe.export_library(tmp_path / "net.so", weights=placement)
    files = [path, *path.parent.glob("*.safetensors")]
    size = sum(f.stat().st_size for f in files)
    weight_bytes = 1100 * 1000 * 4
    assert (size <= ALLOWED * weight_bytes + (1 << 17)) == (optimize == "size")
    run = tk.runtime.load_module(path).create_executor()["main"]
    x = np.random.default_rng(0).standard_normal((1, 1100)).astype(np.float32)
    np.testing.assert_array_equal(run(x).numpy(), exe(x))
    exe.artifacts.save(tmp_path / "saved")
    again = tk.export_library(tk.ArtifactSet.load(tmp_path / "saved"), tmp_path / "again.so")
    assert again.read_bytes() == exe.export_library(tmp_path / "once.so").read_bytes()


# -- causes --------------------------------------------------------------------------------------


def causes(
    mod: IRModule, target: Mapping[str, object], **options: object
) -> dict[str, tuple[int, int, int]]:
    weights_report = planned(mod, {**target, **options}).weights
    assert weights_report is not None
    return {c.cause: (c.bytes, c.model_bytes, c.count) for c in weights_report.causes}


V3 = TARGETS["v3"]
W33 = constant(rand(64, 64, 3, 3).array, "w")


def test_causes_by_name_and_number() -> None:
    """Each larger form of a weight, by hand."""

    def winograd(g: Graph, x: RVar) -> Value:
        return g.conv2d(x, W33, padding=(1,) * 4)

    image = {"x": (1, 64, 56, 56)}
    assert causes(graph(winograd, **image), V3) == {
        "transformed by Winograd": (64 * 64 * 36 * 4, 64 * 64 * 9 * 4, 1)
    }
    assert causes(graph(winograd, **image), V3, optimize="size") == {}

    def columns(g: Graph, x: RVar) -> Value:
        return g.linear(x, constant(rand(8, 12).array, "w"))

    assert causes(graph(columns, x=(2, 8)), V3) == {"zeros up to whole blocks": (4 * 8 * 4, 0, 1)}

    def grouped(g: Graph, x: RVar) -> Value:
        w = constant(rand(64, 4, 3, 3).array, "w")
        return g.conv2d(x, w, padding=(1,) * 4, groups=16)

    (row,) = causes(graph(grouped, x=(1, 64, 8, 8)), V3).items()
    assert row[0] == "zeros between groups" and row[1][0] > row[1][1] == 64 * 4 * 9 * 4

    def twice(g: Graph, x: RVar, i: RVar) -> Value:
        table = rand(16, 8).array
        words = constant(table, "w")
        return Tuple((g.take(words, i, axis=1), g.linear(x, constant(table.T, "w"))))

    two_lookups = graph(twice, x=(1, 8), i=tensor((2,), "int64"))
    assert causes(two_lookups, V3) == {"stored a second time": (16 * 8 * 4, 0, 1)}

    def narrow(g: Graph, x: RVar) -> Value:
        w = constant(rand(16, 16).array.astype(np.float16), "w")
        return g.add(x, g.cast(w, dtype="float32"))

    assert causes(graph(narrow, x=(16, 16)), V3) == {"of a wider type": (1024, 512, 1)}

    def small(g: Graph, x: RVar) -> Value:
        return g.mul(g.softmax(g.add(x, constant(rand(5).array, "b")), axis=-1), x)

    assert causes(graph(small, x=(3, 5)), V3) == {"zeros up to 64 bytes": (44, 0, 1)}


def test_slices_of_a_weight_are_the_weight() -> None:
    """The q, k and v of an attention, which are layers of their own."""

    def build(g: Graph, x: RVar) -> Value:
        y = g.linear(x, constant(rand(32, 96).array, "qkv"))
        parts = [g.slice(y, begin=(0, 32 * k), strides=(1, 1), shape=(4, 32)) for k in range(3)]
        return Tuple(tuple(g.relu(p) for p in parts))

    assert causes(graph(build, x=(4, 32)), V3) == {}


def test_equal_constants_of_two_names_are_stored_once() -> None:
    """Whatever reads them: two layers, two additions, two functions."""
    table = rand(64, 64).array

    def build(g: Graph, x: RVar) -> Value:
        a, b = (constant(table.copy(), name) for name in "ab")
        y = g.softmax(g.linear(g.linear(x, a), b), axis=-1)
        c, d = (constant(table[:4].copy(), name) for name in "cd")
        return g.add(g.softmax(g.add(y, c), axis=-1), d)

    mod = graph(build, x=(4, 64))
    weights_report = planned(mod, V3).weights
    assert weights_report is not None and weights_report.bytes == table.nbytes + table[:4].nbytes
    assert weights_report.model_bytes == 2 * weights_report.bytes


def test_a_word_is_read_from_the_last_layer() -> None:
    """One constant; an index from the end, and those out of range, as without the product."""
    exe = compiled("tied", "size")
    rows = json.loads(next(a for a in exe.artifacts.plain if a.file_name == "weights.json").text())
    assert sum(1000 in row["shape"] for row in rows) == 1
    model_proto, _ = MODELS["tied"]()
    i = np.array([[0, 999, -1, -1000, 5, 47, 48, 95, 96, 97, 500, 996]])
    np.testing.assert_allclose(exe(i), theirs(model_proto, {"i": i})[0], rtol=1e-4, atol=1e-5)


@cache
def compiled(name: str, optimize: str | None = None) -> Executable:
    return tk.compile(tk.frontend.from_onnx(MODELS[name]()[0]), optimize=optimize)


# -- the note ------------------------------------------------------------------------------------


def notes(mod: IRModule, **options: object) -> list[str]:
    heard: list[str] = []

    class Listen(Progress):
        def note(self, text: str) -> None:
            heard.append(text)

    tk.compile(mod, V3, progress=Listen(), **options)  # type: ignore[arg-type]
    return heard


def larger(channels: int) -> IRModule:
    w = constant(rand(channels, channels, 3, 3).array, "w")
    return graph(lambda g, x: g.conv2d(x, w, padding=(1,) * 4), x=(1, channels, 28, 28))


def test_a_note_if_weights_are_much_larger() -> None:
    (note,) = notes(larger(128))
    was, now = 128 * 128 * 9 * 4, 128 * 128 * 36 * 4
    assert f"weights take {now:,} bytes, 4.0 times the model's {was:,}" in note
    assert f"transformed by Winograd, {now:,} in place of {was:,}" in note
    assert "--optimize size" in note
    assert notes(larger(128), optimize="size") == []
    assert notes(larger(64)) == []  # less than a megabyte
    weights_report = planned(larger(128), V3).weights
    assert (
        weights_report is not None and weights_report.note and note.startswith(weights_report.note)
    )


def test_the_note_is_a_line_of_progress() -> None:
    stream = io.StringIO()
    tk.compile(larger(128), V3, progress=PlainProgress(stream))
    assert stream.getvalue().count("note: weights take") == 1


def test_the_report_shows_causes(recwarn: pytest.WarningsRecorder) -> None:
    exe = tk.compile(larger(64), V3)
    text, html = str(exe.memory()), exe.memory()._repr_html_()
    assert "weights 589,824, of the model 147,456" in text and not recwarn.list
    for report_text in (text, html):
        assert "transformed by Winograd" in report_text and "in place of" in report_text
    row = json.loads(json.dumps(exe.memory().to_json()))["weights"]
    assert row["causes"][0]["names"] == ["w"] and row["note"] == ""


# -- asking for it -------------------------------------------------------------------------------


def test_it_is_an_option_of_targets(tmp_path: Path) -> None:
    mod = larger(64)
    by_argument = tk.compile(mod, V3, optimize="size")
    by_target = tk.compile(mod, {**V3, "optimize": "size"})
    assert by_argument.target == by_target.target
    assert [a.sha256 for a in by_argument.artifacts] == [a.sha256 for a in by_target.artifacts]
    assert "conv2d_winograd" not in {k.kernel_class for k in by_argument.kernels}
    library = by_argument.export_library(tmp_path / "net.so")
    assert inspect_library(library).metadata.target["optimize"] == "size"


@pytest.mark.parametrize(
    ("target", "optimize", "code", "words"),
    [
        (V3, "sise", "", "'size'"),
        (V3, "fast", "", "speed, size"),
        ({**V3, "optimize": "speed"}, "size", "contradiction", "the target says 'speed'"),
        ({**V3, "winograd": 4}, "size", "contradiction", "winograd 4"),
        ({"kind": "opencl"}, "size", "unknown-key", "optimize"),
    ],
)
def test_refused(target: Mapping[str, object], optimize: str, code: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        tk.compile(larger(64), dict(target), optimize=optimize)
    assert words in str(caught.value) and caught.value.code == (code or caught.value.code)


def test_passes_for_another_target_are_refused() -> None:
    plain, small = Target(V3), Target({**V3, "optimize": "size"})
    tk.compile(larger(64), small, relax_pipeline=relax_passes(small))
    with pytest.raises(UserError, match="passes of relax_pipeline are for one that does not"):
        tk.compile(larger(64), plain, optimize="size", relax_pipeline=relax_passes(plain))


def test_no_winograd_is_no_contradiction() -> None:
    assert Target({**V3, "winograd": 0, "optimize": "size"}).winograd == 0
    assert Target({**V3, "winograd": 2, "optimize": "speed"}).winograd == 2


def test_the_page_of_a_compile_says_it() -> None:
    large, _ = record(larger(128), "net", Target(V3), {}, seconds=0)
    small, _ = record(larger(128), "net", Target({**V3, "optimize": "size"}), {}, seconds=0)
    assert any(note.startswith("weights take") for note in large.notes)
    assert not any(note.startswith("weights take") for note in small.notes)

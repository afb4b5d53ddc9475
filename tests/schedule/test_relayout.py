"""Movement of data: layouts, transposes and slices, with elementwise work, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Tuple, constant, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target
from tests import processors
from tests.emulated.machine import load
from tests.rotation import rows_in_turn
from tests.schedule.battery import Battery, typed

Build = Callable[[GraphBuilder, RVar], RVar]
BLOCKS = "A B/16 C D B%16"
HALO = "A B/16 C+1 D+2 B%16"


def _transpose(*axes: int) -> Build:
    return lambda g, x: g.emit("transpose", x, axes=axes)


def _residual(g: GraphBuilder, x: RVar) -> RVar:
    """One operand lies across, one along the result, one along a single axis of it."""
    y = g.emit("transpose", x, axes=(0, 3, 1, 2))
    bias = constant(np.arange(int(y.tensor.static_shape()[3]), dtype="f4"))  # type: ignore[index]
    again = g.emit("transpose", g.emit("exp", y), axes=(0, 2, 3, 1))
    return g.emit("add", g.emit("add", y, g.emit("reshape", again, shape=y.tensor.shape)), bias)


CASES: tuple[tuple[tuple[int, ...], Build], ...] = (
    ((37, 53), _transpose(1, 0)),
    ((16, 3), _transpose(1, 0)),
    ((3, 5, 7), _transpose(2, 0, 1)),
    ((2, 12, 9, 64), _transpose(0, 2, 1, 3)),
    ((2, 17, 33, 5), _transpose(0, 3, 1, 2)),
    ((4, 1, 6, 1), _transpose(3, 2, 0, 1)),
    ((300, 300), _transpose(1, 0)),
    ((24, 30), lambda g, x: g.emit("relu", g.emit("transpose", g.emit("tanh", x), axes=(1, 0)))),
    ((2, 9, 20, 33), _residual),
    (
        (6, 40),
        lambda g, x: g.emit("transpose", g.emit("reshape", x, shape=(6, 8, 5)), axes=(2, 0, 1)),
    ),
)


def _model() -> IRModule:
    g = GraphBuilder()
    params = [g.param(f"x{k}", tensor(shape, "float32")) for k, (shape, _) in enumerate(CASES)]
    outs = [build(g, x) for x, (_, build) in zip(params, CASES, strict=True)]
    return IRModule((g.finish(Tuple(tuple(outs))),))


@pytest.fixture(scope="module")
def compiled() -> tuple[tk.Executable, dict[str, np.ndarray], list[np.ndarray]]:
    """The library, its inputs, and the reference's results."""
    mod = _model()
    rng = np.random.default_rng(1)
    inputs = {
        f"x{k}": rng.standard_normal(shape).astype("f4") for k, (shape, _) in enumerate(CASES)
    }
    return tk.compile(mod), inputs, evaluate(mod, inputs)


@pytest.mark.parametrize("threads", [1, 2])
def test_movement_matches_the_reference(
    compiled: tuple[tk.Executable, dict[str, np.ndarray], list[np.ndarray]], threads: int
) -> None:
    exe, inputs, expected = compiled
    assert {k.kernel_class for k in exe.kernels if "transpose" in k.symbol} == {"movement"}
    executor = tk.runtime.Executor(exe.jit(), tk.cpu())
    executor.set_num_threads(threads)
    got = executor["main"](*inputs.values())
    for case, have, want in zip(CASES, got, expected, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-5, atol=1e-6, err_msg=str(case))


LAYOUTS = (
    ((1, 32, 5, 9), BLOCKS),
    ((1, 20, 3, 9), HALO),
    ((2, 32, 5, 6), HALO),
    ((1, 17, 18, 19), BLOCKS),
    ((2, 5, 3, 2), HALO),
    ((1, 49, 7, 7), BLOCKS),
    ((1, 3, 4, 37), "A B C+1 D+2"),
    ((1, 2, 21, 6), "A B C/16 D C%16"),
    ((2, 3, 40, 64), "A B C/16 D C%16"),
    ((2, 3, 7, 8), "A B C/16 D C%16"),
    ((1, 40, 6, 5), HALO),
)


TARGETS = {
    "native": "native",
    "v3": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "baseline": "llvm",
}


def _kernels(target: Target) -> IRModule:
    """For each layout a kernel into it, one out of it that also takes a ReLU, one that adds to a
    tensor in it, and one from it to itself."""
    functions = []
    for k, (shape, text) in enumerate(LAYOUTS):
        layout, plain = Layout.parse(text), str(Layout.plain(4))
        g = GraphBuilder()
        y = g.emit("relayout", g.param("x", tensor(shape, "float32")), layout=text)
        functions.append(g.finish(y, f"into{k}", primitive=True))
        g = GraphBuilder()
        x = g.param("x", tensor(shape, "float32").with_layout(layout))
        y = g.emit("relu", g.emit("relayout", x, layout=plain))
        functions.append(g.finish(y, f"out{k}", primitive=True))
        g = GraphBuilder()
        y = g.emit("relayout", g.param("x", tensor(shape, "float32")), layout=text)
        y = g.emit("exp", y)
        y = RVar(y.name, y.tensor.with_layout(layout))
        g.bindings[-1] = replace(g.bindings[-1], var=y)
        r = g.param("r", tensor(shape, "float32").with_layout(layout))
        z = g.emit("add", y, r)
        g.bindings[-1] = replace(g.bindings[-1], var=RVar(z.name, z.tensor.with_layout(layout)))
        functions.append(g.finish(g.bindings[-1].var, f"both{k}", primitive=True))
        g = GraphBuilder()
        x = g.param("x", tensor(shape, "float32").with_layout(layout))
        y = g.emit("relayout", g.emit("relayout", x, layout=plain), layout=text)
        functions.append(g.finish(y, f"same{k}", primitive=True))
    lowered = LowerGroups(target)(IRModule(tuple(functions)))
    assert {f.op_class for f in lowered.prim_funcs} == {"movement"}
    return lowered.map_prim_funcs(lambda f: replace(f, public=True))


@pytest.fixture(scope="module", params=rows_in_turn(TARGETS, family="native".__eq__))
def kernels(request: pytest.FixtureRequest) -> tk.Module:
    """The kernels on their own, in vectors of several lengths."""
    target = Target(TARGETS[request.param])
    processors.require(target)
    return tk.compile(_kernels(target), target, relax_pipeline=None).jit()


@pytest.mark.filterwarnings("ignore:.*is the baseline of")
@pytest.mark.parametrize("k", range(len(LAYOUTS)))
def test_layouts_both_ways(kernels: tk.Module, k: int) -> None:
    """On memory full of ones: what lies outside the tensor becomes zero."""
    shape, text = LAYOUTS[k]
    data = np.random.default_rng(0).standard_normal(shape).astype("f4")
    packed = Layout.parse(text).pack(data)
    into, out = np.ones(packed.size, "f4"), np.ones(data.size, "f4")
    kernels[f"into{k}"](data.reshape(-1), into)
    np.testing.assert_array_equal(into.reshape(packed.shape), packed)
    kernels[f"out{k}"](packed.reshape(-1), out)
    np.testing.assert_array_equal(out.reshape(shape), np.maximum(data, 0))
    both = np.ones(packed.size, "f4")
    kernels[f"both{k}"](data.reshape(-1), packed.reshape(-1), both)
    want = Layout.parse(text).pack(np.exp(data) + data)
    np.testing.assert_allclose(both.reshape(packed.shape), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(both.reshape(packed.shape)[want == 0], 0)
    same = np.ones(packed.size, "f4")
    kernels[f"same{k}"](packed.reshape(-1), same)
    np.testing.assert_array_equal(same.reshape(packed.shape), packed)


# Of elements of 16 bits: in blocks and pairs of as many lanes as a vector of float32 has.
NARROW = (
    *LAYOUTS[:5],
    *(
        (shape, text)
        for shape in ((1, 2, 40, 64), (2, 3, 33, 16), (1, 1, 1, 32), (1, 2, 7, 6))
        for text in (
            "A B C/{lanes} D/2 C%{lanes} D%2",
            "A B C/2 D C%2",
            "A B C/{lanes} D C%{lanes}",
        )
    ),
)
FROM = (("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16"))


def _narrow(target: Target) -> IRModule:
    """For each layout and pair of types a kernel into it that rounds on the way."""
    functions = []
    for (k, (shape, text)), (source, dtype) in product(enumerate(NARROW), FROM):
        g = GraphBuilder()
        x = g.param("x", tensor(shape, source))
        x = x if source == dtype else g.emit("cast", x, dtype=dtype)
        y = g.emit("relayout", x, layout=text.format(lanes=target.vector_lanes("float32")))
        functions.append(g.finish(y, f"{source}_{dtype}_{k}", primitive=True))
    lowered = LowerGroups(target)(IRModule(tuple(functions)))
    classes = [f.op_class for f in lowered.prim_funcs]
    assert classes.count("movement") > 0.9 * len(classes)
    return lowered.map_prim_funcs(lambda f: replace(f, public=True))


@pytest.mark.filterwarnings("ignore:.*is the baseline of")
@pytest.mark.parametrize("name", [*TARGETS, "c"])
def test_elements_of_16_bits(name: str) -> None:
    """Bit for bit, on memory full of ones."""
    target = Target({"kind": "c", "mcpu": "x86-64-v3"} if name == "c" else TARGETS[name])
    processors.require(target)
    run = load(tk.compile(_narrow(target), target, relax_pipeline=None))
    random = np.random.default_rng(0)
    for (k, (shape, text)), (source, dtype) in product(enumerate(NARROW), FROM):
        data = random.standard_normal(shape).astype(source)
        layout = Layout.parse(text.format(lanes=target.vector_lanes("float32")))
        want = layout.pack(data.astype(dtype))
        into = np.ones(want.size, dtype)
        run[f"{source}_{dtype}_{k}"](data.reshape(-1), into)
        bits = into.reshape(want.shape).view("u2"), want.view("u2")
        np.testing.assert_array_equal(*bits, err_msg=f"{shape} {text} {source} {dtype}")


T = Var("T")
# Axes of a transpose, and the shape of its operand.
UNKNOWN = (
    ((0, 2, 1, 3), (2, T, 3, 32)),
    ((1, 0), (T, 48)),
    ((0, 2, 1), (T, 5, 40)),
    ((1, 2, 0), (24, T, 18)),
    ((2, 0, 1), (24, 18, T)),
)


@pytest.mark.parametrize("name", ["native", "v3"])
def test_symbolic_shapes_of_16_bits(name: str) -> None:
    """Exact for every size; the first without loops over single elements."""
    target = Target(TARGETS[name])
    processors.require(target)
    b = Battery()
    sizes = [{"T": n} for n in (0, 1, 2, 15, 16, 33)]
    for (k, (axes, shape)), dtype in product(enumerate(UNKNOWN), ("bfloat16", "float16")):
        spec = typed(dtype, *shape)
        b.add(f"{dtype}_{k}", _transpose(*axes), spec, sizes=sizes, exact=True)
    exe = b.compile(target)
    assert [k.kernel_class for k in exe.kernels].count("movement") >= 2
    run = load(exe)
    for case in b.cases:
        b.check(case, run)


def test_rounds_that_do_not_fit_stay_loops() -> None:
    """Offsets that are not affine (channel shuffle in blocks) are left to the plain loops."""
    g = GraphBuilder()
    x = g.param("x", tensor((1, 51, 2, 2), "float32").with_layout(Layout.parse(BLOCKS)))
    y = g.emit("reshape", g.emit("relayout", x, layout="A B C D"), shape=(1, 3, 17, 2, 2))
    y = g.emit("transpose", y, axes=(0, 2, 1, 3, 4))
    f = g.finish(y, "shuffle", primitive=True)
    lowered = LowerGroups(Target("native"))(IRModule((f,)))
    assert [k.op_class for k in lowered.prim_funcs] == ["loops"]

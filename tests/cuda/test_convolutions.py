"""Convolutions of 16-bit floats with channels last: against float64 through the driver or its
stand-in, by tensor cores of each kind; which of them hardware copies, window by window, and that
what only looks like windows is copied by threads; which values keep the layout; and what the
emulator says of windows that are none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.host.tensor_maps import PixelWindows
from tensorkiln.codegen.ptx.emit import tensor_maps_of
from tensorkiln.ir.expr import Binary, Expr, IntImm, Var, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, Value, constant
from tensorkiln.ir.stmt import If, PrimFunc, Stmt, Store
from tensorkiln.ir.visit import map_stmt
from tensorkiln.kernels.case import Graph, halves
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.fuse_ops import FuseOps
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.driver_calls import Driver
from tests.cuda.lookalike import require_cuda
from tests.cuda.networks import let_run
from tests.cuda.test_tensor_cores import device_function
from tests.schedule.battery import Battery, arguments, typed

HOPPER, AMPERE = ({"kind": "cuda", "arch": arch} for arch in ("sm_90a", "sm_80"))
PAD = {"padding": (1, 1, 1, 1)}
N = Var("N")


@dataclass(frozen=True)
class Row:
    """A graph of an image of this shape, and the windows that hardware copies for its first
    convolution; None for none, "matrix" if it is a product of matrices."""

    build: Callable[[Graph, Value], Value]
    shape: tuple[Any, ...]
    windows: PixelWindows | str | None = None
    sizes: Sequence[Mapping[str, int]] = ({},)


def conv(outputs: int, channels: int, k: int | tuple[int, int] = 3, **attrs: Any) -> Any:
    """A convolution with a bias."""
    kernel = (k, k) if isinstance(k, int) else k
    weights, bias = halves(outputs, channels, *kernel), halves(outputs)
    return lambda g, x: g.conv2d(x, weights, bias, **attrs)


def block(g: Graph, x: Value) -> Value:
    """A bottleneck of a residual network, with pooling before and after."""
    x = g.max_pool2d(g.relu(conv(64, 8, **PAD)(g, x)), kernel=(3, 3), strides=(2, 2), **PAD)
    y = g.relu(conv(40, 64, 1)(g, x))
    y = g.relu(conv(40, 40, **PAD)(g, y))
    y = g.relu(g.add(conv(64, 40, 1)(g, y), x))
    y = g.concat(y, g.avg_pool2d(x, kernel=(3, 3), **PAD), axis=1)
    return g.reshape(g.mean(y, axes=(2, 3), keepdims=True), shape=(2, 128))


SAME = PixelWindows((-1, -1), (-1, -1), (1, 1))
CONVS: dict[str, Row] = {
    "windows": Row(conv(64, 64, **PAD), (2, 64, 7, 9), SAME),
    "bias and relu": Row(lambda g, x: g.relu(conv(72, 64, **PAD)(g, x)), (3, 64, 6, 5), SAME),
    "strides": Row(
        conv(40, 128, strides=(2, 2), **PAD),
        (2, 128, 9, 12),
        PixelWindows((-1, -1), (-2, -1), (2, 2)),
    ),
    "rows alone": Row(
        conv(64, 64, (5, 1), padding=(2, 0, 2, 0)),
        (2, 64, 8, 6),
        PixelWindows((0, -2), (0, -2), (1, 1)),
    ),
    "dilation": Row(
        conv(64, 64, padding=(2, 1, 3, 0), dilation=(2, 1), strides=(1, 3)),
        (2, 64, 13, 11),
        PixelWindows((-1, -2), (-2, -1), (3, 1)),
    ),
    "some pixels": Row(
        conv(64, 128, 1, strides=(2, 2)), (2, 128, 13, 10), PixelWindows((0, 0), (-1, 0), (2, 2))
    ),
    "one by one": Row(conv(64, 136, 1), (2, 136, 6, 7), "matrix"),
    "eight channels": Row(conv(50, 8, **PAD), (2, 8, 7, 9)),
    "odd channels": Row(conv(34, 21, **PAD), (2, 21, 7, 6)),
    "few channels": Row(conv(40, 3, 7, strides=(2, 2), padding=(3, 3, 3, 3)), (2, 3, 17, 15)),
    "groups": Row(conv(80, 64, groups=2, **PAD), (2, 128, 7, 6), SAME),
    "groups of few channels": Row(conv(80, 8, groups=2, **PAD), (2, 16, 7, 6)),
    "parts": Row(conv(64, 256, **PAD), (1, 256, 7, 7), SAME),
    "one channel": Row(conv(40, 1, **PAD), (2, 1, 9, 10)),
    "two channels dilated": Row(conv(40, 2, padding=(1, 2, 1, 2), dilation=(1, 2)), (2, 2, 9, 10)),
    "four channels": Row(conv(40, 4, 2, strides=(1, 3)), (2, 4, 9, 10)),
    "colours": Row(conv(10, 3, 1), (1, 3, 9, 10)),
    "few outputs": Row(conv(10, 64, **PAD), (1, 64, 7, 7)),
    "symbolic images": Row(conv(40, 64, **PAD), (N, 64, 5, 6), None, [{"N": 1}, {"N": 3}]),
    "symbolic pixels": Row(conv(40, 72, 1), (N, 72, 5, 6), "matrix", [{"N": 1}, {"N": 5}]),
    "block": Row(block, (2, 8, 11, 12)),
}
OFTEN = (
    *("strides", "dilation", "few channels", "symbolic images"),
    *("groups", "parts", "block"),
)


@cache
def compiled(arch: str, dtype: str, names: tuple[str, ...]) -> tuple[Battery, Any]:
    """Some graphs in one library, on device 0."""
    battery = filled(dtype, names)
    exe = battery.compile(Target({"kind": "cuda", "arch": arch}))
    let_run(exe, watch=False)
    return battery, tk.runtime.Executor(exe, tk.cuda(0))


def filled(dtype: str, names: Sequence[str] = tuple(CONVS)) -> Battery:
    """The graphs of the table, of this type."""
    battery = Battery()
    for name in names:
        row = CONVS[name]
        build = row.build if dtype == "float16" else _of_type(row.build, dtype)
        battery.add(name.replace(" ", "_"), build, typed(dtype, *row.shape), sizes=row.sizes)
    return battery


def _of_type(build: Callable[[Graph, Value], Value], dtype: str) -> Any:
    """A graph with weights of another type."""

    def built(g: Graph, x: Value) -> Value:
        return build(_Converted(g, dtype), x)  # type: ignore[arg-type]

    return built


class _Converted:
    """A builder whose constants get a type."""

    def __init__(self, g: Graph, dtype: str):
        self.g, self.dtype = g, dtype

    def __getattr__(self, op: str) -> Any:
        def emit(*args: Any, **attrs: Any) -> Any:
            converted = (
                constant(a.array.astype(self.dtype)) if hasattr(a, "data") else a for a in args
            )
            return getattr(self.g, op)(*converted, **attrs)

        return emit


EACH = [
    *(("sm_90a", "float16", n) for n in CONVS),
    *(("sm_80", "float16", n) for n in CONVS),
    *(("sm_90a", "bfloat16", n) for n in CONVS),
]
SLICE = [
    *(("sm_90a", "float16", n) for n in OFTEN),
    *(("sm_80", "float16", n) for n in ("few channels", "block")),
]


@pytest.mark.parametrize(("arch", "dtype", "name"), SLICE)
def test_convolutions(arch: str, dtype: str, name: str) -> None:
    check(arch, dtype, name, tuple(n for a, _, n in SLICE if a == arch))


@pytest.mark.fuzz
@pytest.mark.parametrize(("arch", "dtype", "name"), EACH)
def test_all_convolutions(arch: str, dtype: str, name: str) -> None:
    check(arch, dtype, name, tuple(CONVS))


def check(arch: str, dtype: str, name: str, names: tuple[str, ...]) -> None:
    battery, executor = compiled(arch, dtype, names)
    case = battery.cases[name.replace(" ", "_")]
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        (want,) = case.reference(inputs, sizes)
        case.compare(executor[case.name](*inputs.values()).numpy(), want, name)


# ---- which layouts, and which kernels ------------------------------------------------------------


def laid_out(name: str, options: Mapping[str, object] = HOPPER) -> Function:
    """The graph of a row with layouts, before operators are fused."""
    case = filled("float16", [name]).cases[name.replace(" ", "_")]
    mod: IRModule = IRModule((case.function,))
    for step in (SelectAlgorithms(Target(options)), AssignLayouts(Target(options))):
        mod = step(mod)
    (f,) = mod.graphs
    return f


def layouts(f: Function) -> list[tuple[str, str]]:
    return [(b.value.op, str(b.var.tensor.memory)) for b in f.bindings if isinstance(b.value, Call)]


def test_images_are_converted_once() -> None:
    """At the entry; all of a block keeps the layout, up to the pixels' mean."""
    last = "A C D B"
    ops = layouts(laid_out("block"))
    assert ops[0] == ("relayout", last) and ops[-2:] == [
        ("relayout", "A B C D"),
        ("reshape", "A B"),
    ]
    assert {layout for _, layout in ops[:-2]} == {last}


def test_few_channels_get_more() -> None:
    """A vector has two pixels, so there is an even number of taps and columns."""
    f = laid_out("few channels")
    assert [op for op, _ in layouts(f)] == ["pad", "relayout", "conv2d", "relayout"]
    (image, weights, _) = next(
        b.value for b in f.bindings if isinstance(b.value, Call) and b.value.op == "conv2d"
    ).args
    assert str(image.type.layout) == str(weights.type.layout) == "A C D B"  # type: ignore[union-attr]
    shapes = [[n.value for n in a.type.shape] for a in (image, weights)]  # type: ignore[union-attr]
    assert shapes == [[2, 4, 23, 22], [40, 4, 7, 8]]


@pytest.mark.parametrize(
    ("dtype", "outputs", "attrs", "options"),
    [
        ("float32", 64, {}, HOPPER),
        ("float16", 64, {}, {"kind": "cuda", "arch": "sm_60"}),
        ("float16", 64, {}, {"kind": "opencl"}),
        ("float16", 4, {}, HOPPER),
        ("float16", 64, {"groups": 8}, HOPPER),
    ],
)
def test_others_stay_row_major(
    dtype: str, outputs: int, attrs: dict[str, Any], options: dict[str, object]
) -> None:
    g = Graph()
    x = g.param("x", typed(dtype, 2, 16, 6, 6))
    weights = constant(np.ones((outputs, 16 // attrs.get("groups", 1), 3, 3), dtype))
    mod = IRModule((g.finish(g.conv2d(x, weights, **attrs)),))
    assert AssignLayouts(Target(options))(mod) is mod


def kernel(name: str, options: Mapping[str, object] = HOPPER, check: bool = False) -> PrimFunc:
    """The scheduled kernel of the first convolution of a row."""
    mod: IRModule = IRModule((laid_out(name, options),))
    functions = FuseOps(Target(options))(mod).functions
    group = next(
        f
        for f in functions
        if isinstance(f, Function)
        and f.is_primitive
        and any(isinstance(b.value, Call) and b.value.op == "conv2d" for b in f.bindings)
    )
    return schedule_group(Group(group, group.name, Target(options)), Target(options), check)


@pytest.mark.parametrize("name", CONVS)
def test_what_hardware_copies(name: str) -> None:
    """Windows of images of known sizes whose channels fill rounds, and matrices."""
    f = kernel(name)
    maps, reasons = tensor_maps_of(device_function(f, Target(HOPPER)))
    expected = CONVS[name].windows
    if name in ("few outputs", "colours"):
        assert f.op_class == "gpu_tensor_cores" and not maps
        return
    assert f.op_class == "gpu_wgmma" and not reasons
    windows = [m.window for m in maps]
    if isinstance(expected, PixelWindows):
        assert windows == [expected, None] or windows == [None, expected]
        (window_map,) = (m for m in maps if m.window is not None)
        assert window_map.box[0] == 64 and window_map.entry()["window"] == expected.entry()
    else:
        assert windows == [None, None] if expected == "matrix" else not windows


@pytest.mark.parametrize("name", ["windows", "groups", "some pixels", "one by one"])
@pytest.mark.parametrize("options", [HOPPER, AMPERE], ids=["sm_90a", "sm_80"])
def test_proofs(name: str, options: Mapping[str, object]) -> None:
    """Every step of a schedule is proved, and that no thread disturbs another. (Of copies ahead of
    products of warpgroups, where threads make them of windows, proofs take too long.)"""
    f = kernel(name, options, check=True)
    races = races_of(device_function(f, Target(options)), notes=False)
    assert not races.faults


# ---- what only looks like windows ----------------------------------------------------------------


def changed(f: PrimFunc, change: Callable[[If], If]) -> PrimFunc:
    """A function whose copies of pixels are others."""

    def there(s: Stmt) -> Stmt:
        if isinstance(s, If) and s.orelse is not None and isinstance(s.then, Store):
            return change(s)
        return map_stmt(s, lambda e: e, there)

    return replace(f, body=there(f.body))


def _index(s: If, d: int, of: Callable[[Expr], Expr]) -> If:
    assert isinstance(s.then, Store)
    load: Any = s.then.value
    indices = tuple(of(i) if k == d else i for k, i in enumerate(load.indices))
    return replace(s, then=replace(s.then, value=replace(load, indices=indices)))


def _first_condition(s: If, of: Callable[[Expr], Expr]) -> If:
    assert isinstance(s.cond, Binary)

    def leftmost(e: Expr) -> Expr:
        if isinstance(e, Binary) and e.op == "and":
            return replace(e, a=leftmost(e.a))
        return of(e)

    return replace(s, cond=leftmost(s.cond))


def _looser(e: Expr) -> Expr:
    assert isinstance(e, Binary)
    return replace(e, a=e.a + IntImm(1, e.a.dtype) if e.op == "ge" else e.a - 1)


WRONG: dict[str, Callable[[If], If]] = {
    "images in reverse": lambda s: _index(s, 0, lambda i: 1 - i),
    "another row": lambda s: _index(s, 1, lambda i: i + 1),
    "every other column": lambda s: _index(s, 2, lambda i: i * 2),
    "a condition less": lambda s: _first_condition(s, lambda e: binary("eq", IntImm(1), IntImm(1))),
    "a looser condition": lambda s: _first_condition(s, _looser),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_are_no_windows(name: str) -> None:
    """Threads copy them, and the function says so."""
    f = device_function(kernel("windows"), Target(HOPPER))
    changed_copies = changed(f, WRONG[name])
    assert changed_copies != f
    maps, reasons = tensor_maps_of(changed_copies)
    assert [m.window for m in maps] == [None] and len(reasons) == 1


# ---- the driver ----------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "rank": 4,
    "dims": (64, 9, 7, 2),
    "strides": (128, 1152, 8064),
    "lower": (-1, -1),
    "upper": (-1, -1),
    "channels": 64,
    "pixels": 128,
    "steps": (1, 1, 1, 1),
}
BAD: dict[str, dict[str, Any]] = {
    "three dimensions": {"rank": 3},
    "a corner": {"lower": (-129, 0)},
    "another corner": {"upper": (0, 128)},
    "no windows": {"upper": (-20, 0)},
    "channels": {"channels": 72},
    "pixels": {"pixels": 1025},
    "no pixels": {"pixels": 0},
    "a step": {"steps": (1, 9, 1, 1)},
    "no step": {"steps": (1, 1, 0, 1)},
    "steps of images": {"steps": (1, 1, 1, 2)},
}


@pytest.mark.parametrize("name", [None, *BAD])
def test_the_look_alike_takes_what_the_header_allows(name: str | None) -> None:
    if require_cuda():
        pytest.skip("a GPU's own driver refuses what it likes")
    fields = {**GOOD, **(BAD[name] if name else {})}
    room = ctypes.create_string_buffer(256)
    place = ctypes.addressof(room)
    error = Driver()(
        "cuTensorMapEncodeIm2col",
        ctypes.c_void_p(place + -place % 128),
        6,
        fields["rank"],
        ctypes.c_void_p(0x1000),
        (ctypes.c_uint64 * 4)(*fields["dims"]),
        (ctypes.c_uint64 * 3)(*fields["strides"]),
        (ctypes.c_int * 2)(*fields["lower"]),
        (ctypes.c_int * 2)(*fields["upper"]),
        fields["channels"],
        fields["pixels"],
        (ctypes.c_uint32 * 4)(*fields["steps"]),
        0,
        3,
        2,
        0,
    )
    assert error == (1 if name else 0)

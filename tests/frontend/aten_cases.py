"""Calls of ATen operators: by operator, arguments whose tensors are given by shape.

A tensor is made anew for each element type that its case names; those of a fixed type, such as
indices, are given by a maker. `run` imports one call as a graph of its own and evaluates it by
NumPy; `expected` is torch's result, of floats in float64.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.fx import Graph

from tensorkiln.frontend.torch.importer import GraphInterface, import_graph
from tensorkiln.ops.evaluate import evaluate

FLOATS = ("float32", "float64", "float16")
WIDE = ("float32", "float64")
NUMBERS = ("float32", "float64", "int64", "int32", "uint8")
SIGNED = ("float32", "float64", "int64", "int32")
INTEGERS = ("int64", "int32", "int8", "uint8")
ALL = (*NUMBERS, "bool")
BITS = (*INTEGERS, "bool")


@dataclass(frozen=True)
class T:
    """A tensor of a shape, in the element type of the case; elements within [low, high]."""

    shape: tuple[int, ...]
    low: float = -3
    high: float = 3


@dataclass(frozen=True)
class Fixed:
    """A tensor of its own element type."""

    make: Callable[[], Any]


def t(*shape: int, low: float = -3, high: float = 3) -> T:
    return T(shape, low, high)


def i(*values: Any, dtype: torch.dtype = torch.int64) -> Fixed:
    """A vector of indices, or what nested lists say."""
    return Fixed(lambda: torch.tensor(values[0] if len(values) == 1 else values, dtype=dtype))


def mask(*shape: int) -> Fixed:
    return Fixed(lambda: torch.arange(int(np.prod(shape))).reshape(shape) % 3 == 0)


@dataclass(frozen=True)
class Case:
    op: str
    dtypes: tuple[str, ...]
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()
    number: int = 0

    @property
    def target(self) -> Any:
        name, _, overload = self.op.partition(".")
        return getattr(getattr(torch.ops.aten, name), overload or "default")


Row = tuple[Any, ...]


def _made(spec: Any, dtype: str, seed: list[int]) -> Any:
    if isinstance(spec, Fixed):
        return spec.make()
    if isinstance(spec, T):
        seed[0] += 1
        rng = np.random.default_rng(seed[0])
        kind = getattr(torch, dtype)
        if dtype == "bool":
            return torch.from_numpy(np.asarray(rng.random(spec.shape) < 0.5))
        if dtype.startswith(("int", "uint")):
            low = max(int(np.ceil(spec.low)), 0) if dtype == "uint8" else int(np.ceil(spec.low))
            return torch.from_numpy(rng.integers(low, int(spec.high) + 1, spec.shape)).to(kind)
        values = rng.uniform(spec.low, spec.high, spec.shape).astype(np.float16)
        return torch.from_numpy(np.asarray(values)).to(kind)
    if isinstance(spec, list):
        return [_made(s, dtype, seed) for s in spec]
    return spec


def arguments(case: Case, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    seed = [zlib.crc32(f"{case.op}{case.number}".encode()) % 100000]
    return [_made(a, dtype, seed) for a in case.args], dict(case.options)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, torch.Tensor):
        yield value


def one_node(
    target: Any, args: Sequence[Any], options: dict[str, Any]
) -> tuple[Any, Any, list[Any]]:
    """A graph of one call, its node, and its tensors in order. What torch would find by fake
    tensors is the operator's result itself."""
    graph, tensors = Graph(), list(_tensors(args))
    nodes = []
    for k, x in enumerate(tensors):
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = x
        nodes.append(node)

    def put(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [put(v) for v in value]
        return nodes.pop(0) if isinstance(value, torch.Tensor) else value

    call = graph.call_function(target, tuple(put(args)), options)
    call.meta["val"] = target(*args, **options)
    return graph, call, tensors


def imported(
    target: Any, args: Sequence[Any], options: dict[str, Any], places: Sequence[int]
) -> Any:
    """The module of one call whose results at `places` are outputs, and its tensors."""
    graph, call, tensors = one_node(target, args, options)
    if isinstance(call.meta["val"], tuple | list):
        outs = []
        for k in places:
            item = graph.call_function(operator.getitem, (call, k))
            item.meta["val"] = call.meta["val"][k]
            outs.append(item)
    else:
        outs = [call]
    graph.output(tuple(outs))
    names = {f"x{k}": f"x{k}" for k in range(len(tensors))}
    interface = GraphInterface({}, names, {k: f"y{k}" for k in range(len(outs))})
    return import_graph(SimpleNamespace(graph=graph), interface, name="one"), tensors


def run(case: Case, dtype: str, places: Sequence[int]) -> list[np.ndarray]:
    args, options = arguments(case, dtype)
    module, tensors = imported(case.target, args, options, places)
    return evaluate(module, {f"x{k}": x.numpy() for k, x in enumerate(tensors)})


def expected(case: Case, dtype: str, places: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """torch's results, and those it computes in float64."""
    args, options = arguments(case, dtype)
    plain = _listed(case.target(*args, **options), places)
    wide = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    wide = [
        [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in a]
        if isinstance(a, list)
        else a
        for a in wide
    ]
    if dtype == "float64" or not any(x.is_floating_point() for x in _tensors(args)):
        return plain, plain
    return plain, _listed(case.target(*wide, **options), places)


def _listed(result: Any, places: Sequence[int]) -> list[Any]:
    return [result[k] for k in places] if isinstance(result, tuple | list) else [result]


# -- the table ------------------------------------------------------------------------------------

_SHAPES = ((2, 3), (), (0, 4), (1,), (3, 1, 5))
_PAIRS = (
    ((2, 3), (2, 3)),
    ((4, 1, 3), (5, 1)),
    ((), (3,)),
    ((2, 0), (1, 1)),
    ((), ()),
    ((1,), (7,)),
)


def _unary(names: str, dtypes: tuple[str, ...], low: float = -3, high: float = 3) -> list[Row]:
    return [(n, dtypes, T(s, low, high)) for n in names.split() for s in _SHAPES]


def _binary(names: str, dtypes: tuple[str, ...], low: float = -3, high: float = 3) -> list[Row]:
    return [(n, dtypes, T(a, -3, high), T(b, low, high)) for n in names.split() for a, b in _PAIRS]


def _scalars(names: str, dtypes: tuple[str, ...], *values: float) -> list[Row]:
    return [(n, dtypes, T(s), v) for n in names.split() for s in ((2, 3), (), (0,)) for v in values]


def _reduced(names: str, dtypes: tuple[str, ...]) -> list[Row]:
    rows: list[Row] = []
    for n in names.split():
        for keep in (False, True):
            rows += [
                (n, dtypes, t(2, 3, 4), [1], keep),
                (n, dtypes, t(2, 3, 4), [-1, 0], keep),
                (n, dtypes, t(1, 5), [0], keep),
                (n, dtypes, t(0, 4), [1], keep),
            ]
    return rows


MATH: list[Row] = [
    *_unary("neg", SIGNED),
    *_unary("abs sign", NUMBERS),
    *_unary("sign logical_not bitwise_not", ("bool",)),
    *_unary("relu trunc floor ceil round", NUMBERS),
    *_unary(
        "exp sigmoid tanh sin cos tan sinh cosh asinh atan erf expm1", (*FLOATS, "int64", "bool")
    ),
    *_unary("sqrt rsqrt log log2 log10 reciprocal acosh", WIDE, 1, 6),
    *_unary("log1p asin acos atanh", WIDE, -0.9, 0.9),
    *_unary("log1p sqrt log2", ("int64", "uint8"), 0, 9),
    *_unary("isnan isinf logical_not", ALL),
    *_unary("bitwise_not", BITS),
    *_unary("silu hardswish hardsigmoid gelu softplus elu leaky_relu hardtanh", FLOATS),
    ("gelu", FLOATS, t(3, 4), {"approximate": "tanh"}),
    ("elu", WIDE, t(9), 0.5, 2.0, 3.0),
    ("leaky_relu", WIDE, t(9), 0.3),
    ("softplus", WIDE, t(9, high=30), 2.0, 3.0),
    ("hardtanh", SIGNED, t(9), -1, 2),
    ("round.decimals", WIDE, t(9), {"decimals": 1}),
    ("round.decimals", WIDE, t(9, low=-300, high=300), {"decimals": -1}),
    ("_prelu_kernel", WIDE, t(2, 3, 4), t(1, 3, 1)),
    *_binary("add.Tensor mul.Tensor", ALL),
    *_binary("sub.Tensor", NUMBERS),
    *_binary("maximum minimum", ALL),
    *_binary("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", ALL),
    *_binary("logical_and logical_or logical_xor", ALL),
    *_binary("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", BITS),
    *_binary("div.Tensor fmod.Tensor remainder.Tensor floor_divide", NUMBERS, 1, 5),
    *_binary("fmod.Tensor remainder.Tensor floor_divide", SIGNED, -5, -1),
    *_binary("atan2", SIGNED),
    *_binary("pow.Tensor_Tensor", ("uint8",), 0, 3),
    ("pow.Tensor_Tensor", WIDE, t(3, 4, low=0.5), t(4)),
    ("bitwise_left_shift.Tensor", INTEGERS, t(3, 4), i([0, 1, 2, 3])),
    ("bitwise_right_shift.Tensor", INTEGERS, t(3, 4), i([0, 1, 2, 3])),
    *_scalars("add.Tensor sub.Tensor mul.Tensor", SIGNED, 2, -1.5),
    *_scalars("add.Scalar mul.Scalar eq.Scalar lt.Scalar ge.Scalar", ALL, 1, 2.5),
    *_scalars("ne.Scalar le.Scalar gt.Scalar sub.Scalar rsub.Scalar", SIGNED, 1, -2),
    *_scalars("div.Scalar div.Tensor remainder.Scalar fmod.Scalar", NUMBERS, 2, 1.5),
    *_scalars("floor_divide floor_divide.Scalar", NUMBERS, 2),
    ("rsub.Tensor", SIGNED, t(2, 3), t(3), {"alpha": 2}),
    *_scalars("pow.Tensor_Scalar", NUMBERS, 2, 1, 3),
    *_scalars("pow.Scalar", ()),
    ("pow.Scalar", WIDE, 2, t(3, 4)),
    ("remainder.Scalar_Tensor", NUMBERS, 7, t(5, low=1)),
    *_scalars("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", INTEGERS, 5),
    *[
        (f"div.{o}_mode", NUMBERS, t(4, 5, low=-9, high=9), b, {"rounding_mode": mode})
        for mode in ("trunc", "floor", None)
        for o, b in (("Tensor", t(5, low=1, high=4)), ("Scalar", 2))
    ],
    ("div.Tensor_mode", WIDE, t(8), t(8), {"rounding_mode": "floor"}),
    ("add.Tensor", NUMBERS, t(2, 3), t(3), {"alpha": 2}),
    ("sub.Tensor", NUMBERS, t(2, 3), t(3), {"alpha": 3}),
    ("add.Tensor", NUMBERS, t(2, 3), i([1, 2, 3])),
    ("mul.Tensor", NUMBERS, t(2, 3), Fixed(lambda: torch.tensor(1.5, dtype=torch.float64))),
    ("add.Tensor", ("int64", "bool"), t(2, 3), Fixed(lambda: torch.tensor(1.5))),
    ("clamp", NUMBERS, t(9), 0, 2),
    ("clamp", SIGNED, t(9), -1),
    ("clamp", SIGNED, t(9), None, 1),
    ("clamp", ("int64",), t(9), -0.5, 1.5),
    ("clamp.Tensor", SIGNED, t(4, 3), t(3, high=0), t(1, low=0)),
    ("clamp_min", SIGNED, t(9), 0),
    ("clamp_max", SIGNED, t(9), 0),
    ("where.self", ALL, mask(3, 1), t(1, 4), t(3, 4)),
    ("where.self", ("float32",), mask(3), t(3), i([1, 2, 3])),
    ("masked_fill.Scalar", NUMBERS, t(3, 4), mask(4), 2),
    ("masked_fill.Tensor", WIDE, t(3, 4), mask(3, 1), t()),
    *[
        ("_to_copy", ALL, t(2, 3), {"dtype": d})
        for d in (torch.float32, torch.int64, torch.bool, torch.float64)
    ],
    *[(n, ALL, t(2, 3)) for n in ("clone", "alias", "detach")],
    ("copy", ALL, t(2, 3), t(3)),
    ("native_dropout", WIDE, t(2, 3), 0.5, False),
]

MAKE: list[Row] = [
    ("arange", ("float32",), 5),
    ("arange.start", ("float32",), 2, 9),
    ("arange.start_step", ("float32",), 0, 10, 3),
    ("arange.start_step", ("float32",), 5, -5, -2),
    ("arange.start_step", ("float32",), 0.0, 1.0, 0.25),
    ("arange.start_step", ("float32",), 3, 3, 1),
    ("arange", ("float32",), 4, {"dtype": torch.float32}),
    ("full", ("float32",), [2, 3], 1.5),
    ("full", ("float32",), [], 7),
    ("full", ("float32",), [0, 2], True),
    ("full_like", ALL, t(2, 3), 2),
    ("full_like", ALL, t(2, 3), 2, {"dtype": torch.float64}),
    ("fill.Tensor", ALL, t(2, 3), t()),
    ("lift_fresh_copy", ALL, t(2, 3)),
    ("fill.Scalar", ALL, t(2, 3), 1),
    ("zeros", ("float32",), [2, 0]),
    ("ones", ("float32",), [2, 2], {"dtype": torch.int32}),
    ("ones_like", ALL, t(2, 3)),
    ("zeros_like", ALL, t(2, 3)),
    ("new_full", ALL, t(2), [3, 1], 1),
    ("new_zeros", ALL, t(2), [3, 1]),
    ("new_ones", ALL, t(2), [3, 1]),
    ("scalar_tensor", ("float32",), 3.5),
    ("scalar_tensor", ("float32",), 3, {"dtype": torch.int64}),
    ("eye", ("float32",), 4),
    ("eye.m", ("float32",), 3, 5),
]

SHAPE: list[Row] = [
    ("view", ALL, t(2, 6), [3, -1]),
    ("view", ALL, t(1), []),
    ("view", ALL, t(0, 4), [2, 0]),
    ("_unsafe_view", ALL, t(2, 6), [12]),
    ("reshape", ALL, t(2, 6), [4, 3]),
    ("permute", ALL, t(2, 3, 4), [2, 0, -2]),
    ("permute", ALL, t(), []),
    ("transpose.int", ALL, t(2, 3, 4), 0, -1),
    ("t", ALL, t(2, 3)),
    ("t", ALL, t(3)),
    ("expand", ALL, t(3, 1), [2, -1, 4]),
    ("expand", ALL, t(), [2, 3]),
    ("expand", ALL, t(1, 3), [0, 3]),
    ("squeeze", ALL, t(1, 3, 1)),
    ("squeeze.dim", ALL, t(1, 3, 1), -1),
    ("squeeze.dim", ALL, t(1, 3, 1), 1),
    ("squeeze.dims", ALL, t(1, 3, 1), [0, 1, 2]),
    ("unsqueeze", ALL, t(2, 3), -1),
    ("unsqueeze", ALL, t(), 0),
    ("cat", ALL, [t(2, 3), t(1, 3), t(0, 3)], 0),
    ("cat", ALL, [t(2, 3), t(2, 1)], -1),
    ("cat", ALL, [t(0), t(2, 2)], 0),
    ("cat", ("float32",), [t(2), i([1, 2])], 0),
    ("stack", ALL, [t(2, 3), t(2, 3)], 1),
    ("stack", ALL, [t(), t()], -1),
    *[
        ("slice.Tensor", ALL, t(7, 3), 0, a, b, s)
        for a, b, s in (
            (1, 5, 1),
            (-3, None, 1),
            (None, -2, 2),
            (5, 2, 1),
            (0, 2**63 - 1, 3),
            (-99, 99, 1),
        )
    ],
    ("slice.Tensor", ALL, t(2, 5), -1, 1, 4, 2),
    ("select.int", ALL, t(2, 3), 1, -1),
    ("select.int", ALL, t(3), 0, 1),
    ("split_with_sizes", ALL, t(6, 2), [1, 0, 5], 0),
    ("split_with_sizes", ALL, t(2, 6), [4, 2], -1),
    ("split.Tensor", ALL, t(7), 3),
    ("unbind.int", ALL, t(2, 3), 1),
    ("flip", ALL, t(2, 3, 4), [0, -1]),
    ("flip", ALL, t(0, 3), [0]),
    ("roll", ALL, t(5, 3), [2], [0]),
    ("roll", ALL, t(5, 3), [-1, 2], [0, 1]),
    ("roll", ALL, t(2, 3), [2]),
    ("repeat", ALL, t(2, 3), [2, 1]),
    ("repeat", ALL, t(3), [2, 3]),
    ("repeat", ALL, t(3), [0]),
    ("diagonal", ALL, t(4, 3)),
    ("diagonal", ALL, t(2, 3, 4), 1, -1, 0),
    ("diagonal", ALL, t(3, 3), -2),
    ("diagonal", NUMBERS, t(3, 3), 5),
    ("as_strided", ALL, t(12), [3, 2], [4, 1], 1),
    ("as_strided", ALL, t(3, 4), [2, 2, 2], [1, 0, 3]),
    ("slice_scatter", ALL, t(5, 3), t(2, 3), 0, 1, 3),
    ("slice_scatter", ALL, t(3, 7), t(3, 3), 1, 0, 6, 2),
    ("slice_scatter", ALL, t(3, 7), t(3, 2), -1, -2),
    ("slice_scatter", ALL, t(3), t(0), 0, 3, 3),
    ("select_scatter", ALL, t(3, 4), t(3), 1, -2),
    ("constant_pad_nd", ALL, t(2, 3), [1, 2]),
    ("constant_pad_nd", NUMBERS, t(2, 3), [1, 0, -1, 2], 3),
    ("reflection_pad1d", WIDE, t(2, 5), [2, 3]),
    ("reflection_pad2d", WIDE, t(1, 4, 5), [1, 2, 3, 0]),
    ("reflection_pad3d", WIDE, t(1, 1, 3, 4, 5), [1, 2, 1, 0, 2, 1]),
    ("replication_pad1d", WIDE, t(2, 5), [2, 3]),
    ("replication_pad2d", WIDE, t(2, 1, 4, 5), [1, 2, 3, 0]),
    ("replication_pad3d", WIDE, t(1, 1, 3, 4, 5), [1, 2, 1, 0, 2, 1]),
]

INDEX: list[Row] = [
    ("index_select", ALL, t(4, 3), 0, i([3, 0, 0])),
    ("index_select", ALL, t(2, 4), -1, i([1], dtype=torch.int32)),
    ("embedding", WIDE, t(5, 3), i([[4, 0], [1, 1]])),
    ("embedding", WIDE, t(5, 3), i([], dtype=torch.int64)),
    ("one_hot", ("int64",), i([[3, 0, 1], [2, 2, 0]]), 4),
    ("one_hot", ("int64",), i([], dtype=torch.int64), 2),
    ("index.Tensor", ALL, t(4, 5), [i([3, -1, 0])]),
    ("index.Tensor", ALL, t(4, 5), [None, i([[3, -1], [0, 0]])]),
    ("index.Tensor", ALL, t(4, 5, 3), [i([3, 1]), i([0, -2])]),
    ("index.Tensor", ALL, t(2, 4, 5, 3), [None, i([3, 1]), i([[0], [2]])]),
    ("index.Tensor", ALL, t(2, 4, 5), [i([1, 0]), None, i([4, 2])]),
    ("_unsafe_index.Tensor", ALL, t(2, 4, 5), [None, None, i([4, 2])]),
    ("index_put", NUMBERS, t(4, 3), [i([0, 2])], t(2, 3)),
    ("index_put", NUMBERS, t(4, 3), [i([0, 0, 3])], t(3, 3), True),
    ("index_put", NUMBERS, t(4, 3), [None, i([0, 2])], t(4, 2)),
    ("index_put", NUMBERS, t(4, 3, 2), [i([0, 2]), i([-1, 1])], t(2)),
    ("index_put", NUMBERS, t(2, 4, 3), [None, i([0, 2]), i([[1], [2]])], t()),
    ("index_put", NUMBERS, t(2, 4, 3), [i([0, 1]), None, i([2, 0])], t(2, 4)),
    ("index_put", ALL, t(4, 3), [mask(4, 3)], t()),
    ("index_put", ALL, t(4, 3), [mask(4)], t(3)),
    ("_unsafe_index_put", NUMBERS, t(4, 3), [i([0, 2])], t(2, 3)),
    ("gather", ALL, t(3, 4), 1, i([[0, 3], [1, 1], [2, 0]])),
    ("gather", ALL, t(3, 4), 0, i([[0, 2, 1]])),
    ("gather", ALL, t(), 0, i([0])),
    ("scatter.src", NUMBERS, t(3, 4), 1, i([[0, 3], [1, 2]]), t(3, 2)),
    ("scatter.src", NUMBERS, t(3, 4), 0, i([[0, 2, 1, 0]]), t(1, 4)),
    ("scatter.value", NUMBERS, t(3, 4), 0, i([[0, 2, 1, 0]]), 2),
    ("scatter_add", NUMBERS, t(3), 0, i([0, 0, 2]), t(5)),
    (
        "scatter_add",
        NUMBERS,
        t(3, 2),
        0,
        Fixed(lambda: torch.zeros(0, 2, dtype=torch.int64)),
        t(4, 2),
    ),
    *[
        (
            "scatter_reduce.two",
            SIGNED,
            t(4),
            0,
            i([0, 0, 2]),
            t(3),
            reduction,
            {"include_self": include_self},
        )
        for reduction in ("sum", "prod", "mean", "amax", "amin")
        for include_self in (True, False)
    ],
    ("masked_scatter", NUMBERS, t(3, 4), mask(3, 4), t(12)),
    ("masked_scatter", NUMBERS, t(3, 4), mask(4), t(3, 3)),
    ("topk", NUMBERS, t(3, 7, high=90), 3),
    ("topk", SIGNED, t(5, 2, high=90), 5, 0, False),
    ("topk", SIGNED, t(5, high=90), 0),
    ("sort.stable", NUMBERS, t(3, 7), {"stable": True}),
    ("sort.stable", SIGNED, t(4, 3), {"stable": True, "dim": 0, "descending": True}),
    ("sort", WIDE, t(9)),
    ("sort", WIDE, t()),
    *[(f"_is_{name}_true", ("bool",), t(3, 4)) for name in ("any", "all")],
    *[(f"_is_{name}_true", ("bool",), t(0)) for name in ("any", "all")],
    ("unfold", ALL, t(3, 10), 1, 4, 3),
    ("unfold", ALL, t(3, 10, 2), 1, 4, 3),
    ("unfold", ALL, t(7, 2), -2, 7, 1),
    ("unfold", ALL, t(), 0, 1, 2),
    ("histc", WIDE, t(50), 7, -2, 2),
    ("histc", WIDE, t(5, 6), 4),
    ("histc", WIDE, t(5, 0), 4),
    ("histc", ("float32",), Fixed(lambda: torch.full((3,), 2.5)), 4),
    ("histc", WIDE, t(9), 5, 1, 1),
    ("index_add", NUMBERS, t(4, 3), 0, i([0, 0, 3]), t(3, 3)),
    ("index_add", NUMBERS, t(2, 4), -1, i([1, 3]), t(2, 2), {"alpha": 2}),
    ("index_copy", NUMBERS, t(4, 3), 0, i([0, 3]), t(2, 3)),
    ("index_copy", NUMBERS, t(2, 4, 3), 1, i([3, 1]), t(2, 2, 3)),
    ("index_fill.int_Scalar", NUMBERS, t(4, 3), 0, i([0, -1]), 2),
    ("index_fill.int_Tensor", NUMBERS, t(2, 4), 1, i([3]), t()),
]

REDUCE: list[Row] = [
    *_reduced("sum.dim_IntList any.dims all.dims", ALL),
    *_reduced("mean.dim", WIDE),
    ("mean.dim", WIDE, t(0, 3), [0]),
    ("sum.dim_IntList", ALL, t(2, 3), None),
    ("sum.dim_IntList", ALL, t(2, 3), []),
    ("sum.dim_IntList", ALL, t(), [0]),
    ("sum.dim_IntList", ALL, t(0, 3), [0]),
    ("sum.dim_IntList", ALL, t(2, 3), [1], {"dtype": torch.float64}),
    ("sum", ALL, t(2, 3)),
    ("prod", ALL, t(2, 3)),
    ("prod.dim_int", ALL, t(2, 3), -1, True),
    ("prod.dim_int", ALL, t(0, 3), 0),
    ("mean", WIDE, t(2, 3)),
    *[
        (n, ALL, t(2, 3, 4), a, k)
        for n in ("amax", "amin")
        for a in ([1], [0, -1], [])
        for k in (False, True)
    ],
    *[(n, ALL, t(2, 3, 4)) for n in ("max", "min", "any", "all")],
    *[
        (n, ALL, t(2, 3, 4), -2, k)
        for n in ("max.dim", "min.dim", "any.dim", "all.dim")
        for k in (False, True)
    ],
    *[(n, ALL, t(0, 3), 0) for n in ("any.dim", "all.dim")],
    *[
        (n, NUMBERS, t(2, 3, 4), *a)
        for n in ("argmax", "argmin")
        for a in ((), (1,), (-1, True), (None, True))
    ],
    ("argmax", NUMBERS, t()),
    ("max.dim", ALL, t(), 0),
    *[
        (n, WIDE, t(2, 5, 3), [1], {"correction": c, "keepdim": k})
        for n in ("var.correction", "var_mean.correction")
        for c in (0, 1, None)
        for k in (False, True)
    ],
    ("var.correction", WIDE, t(2, 5)),
    ("var.correction", WIDE, t(2, 1), [1]),
    ("var.dim", WIDE, t(2, 5), [0], False),
    ("_softmax", WIDE, t(2, 3, 4), 1, False),
    ("_softmax", WIDE, t(), 0, False),
    ("_log_softmax", WIDE, t(2, 3, 4), -1, False),
    ("_log_softmax", WIDE, t(0, 4), -1, False),
    *[(n, ALL, t(2, 5), a) for n in ("cumsum", "cumprod") for a in (1, 0, -1)],
    ("cumsum", ALL, t(), 0),
    ("cumsum", ALL, t(0, 3), 0),
    ("cumsum", ALL, t(4), 0, {"dtype": torch.float64}),
    *[
        ("linalg_vector_norm", WIDE, t(2, 3, low=0.5), o, [1], k)
        for o in (2, 1, 0, 3, float("inf"), float("-inf"))
        for k in (False, True)
    ],
]

_CONV = ([1], [0], [1], False, [0], 1)
_SDPA = "scaled_dot_product_attention"
_PLAIN = (False, [0, 0])
_STATISTICS = (t(3), t(3, low=0.5))

NN: list[Row] = [
    ("mm", WIDE, t(2, 3), t(3, 4)),
    ("mm", WIDE, t(0, 3), t(3, 4)),
    ("bmm", WIDE, t(2, 3, 4), t(2, 4, 1)),
    ("matmul", WIDE, t(3), t(3)),
    ("matmul", WIDE, t(2, 3), t(3)),
    ("matmul", WIDE, t(3), t(2, 3, 4)),
    ("matmul", WIDE, t(5, 1, 2, 3), t(4, 3, 2)),
    ("mv", WIDE, t(2, 3), t(3)),
    ("dot", WIDE, t(3), t(3)),
    ("addmm", WIDE, t(4), t(2, 3), t(3, 4)),
    ("addmm", WIDE, t(2, 1), t(2, 3), t(3, 4), {"beta": 2, "alpha": 0.5}),
    ("addmm", WIDE, t(), t(2, 3), t(3, 4), {"beta": 0}),
    ("baddbmm", WIDE, t(2, 1, 4), t(2, 3, 2), t(2, 2, 4), {"alpha": 3}),
    ("linear", WIDE, t(2, 5, 3), t(4, 3), t(4)),
    ("linear", WIDE, t(3), t(4, 3)),
    *[
        ("_cdist_forward", WIDE, t(2, 3, 4), t(2, 5, 4), norm, None)
        for norm in (2.0, 1.0, 0.0, 3.0, float("inf"))
    ],
    ("convolution", WIDE, t(2, 4, 9), t(6, 4, 3), t(6), *_CONV),
    ("convolution", WIDE, t(2, 4, 9, 7), t(6, 2, 3, 2), None, [2, 1], [1, 0], [1, 2], *_PLAIN, 2),
    ("convolution", WIDE, t(1, 4, 5), t(4, 3, 3), t(3), [2], [1], [1], True, [1], 1),
    ("convolution", WIDE, t(1, 4, 5, 4), t(4, 3, 3, 2), None, [2, 3], [1, 0], [1], True, [1, 0], 1),
    ("convolution", WIDE, t(1, 4, 5, 4), t(4, 3, 3, 2), None, [1], [1, 0], [2, 1], True, [0, 0], 2),
    ("max_pool2d_with_indices", WIDE, t(2, 3, 7, 8), [3, 2], [2, 2], [1, 1]),
    ("max_pool2d_with_indices", WIDE, t(3, 7, 8), [3], [], [0], [2], True),
    ("max_pool2d_with_indices", WIDE, t(1, 2, 7, 8), [3, 3], [2, 2], [0, 0], [1, 1], True),
    ("max_pool3d_with_indices", WIDE, t(1, 2, 5, 6, 7), [2, 2, 2]),
    ("max_pool1d", WIDE, t(2, 3, 9), [3]),
    ("max_pool3d", WIDE, t(1, 2, 5, 6, 7), [2, 3, 2], [2], [0], [1], True),
    *[("grid_sampler_3d", WIDE, t(1, 2, 3, 4, 5), t(1, 2, 3, 2, 3), m, 0, True) for m in (0, 1)],
    ("max_pool2d", WIDE, t(2, 3, 9, 5), [3]),
    ("avg_pool1d", WIDE, t(2, 3, 9), [3], [2], [1]),
    ("avg_pool2d", WIDE, t(2, 3, 7, 8), [3, 2], [2, 1], [1, 1], False, False),
    ("avg_pool2d", WIDE, t(2, 3, 7, 8), [3, 2], [2, 1], [1, 1], False, True, 5),
    ("avg_pool2d", WIDE, t(3, 7, 8), [3, 3], [2, 2], [1, 1], True),
    ("avg_pool3d", WIDE, t(1, 2, 5, 6, 7), [2, 3, 2]),
    ("adaptive_avg_pool1d", WIDE, t(2, 3, 7), [3]),
    ("_adaptive_avg_pool2d", WIDE, t(2, 3, 7, 8), [1, 1]),
    ("_adaptive_avg_pool2d", WIDE, t(2, 3, 7, 8), [3, 4]),
    ("_adaptive_avg_pool2d", WIDE, t(3, 2, 5), [4, 7]),
    ("adaptive_avg_pool2d", WIDE, t(2, 3, 7, 8), [2, 4]),
    ("adaptive_avg_pool3d", WIDE, t(2, 3, 4, 6, 2), [1, 1, 1]),
    ("_adaptive_avg_pool3d", WIDE, t(1, 2, 4, 6, 5), [2, 3, 2]),
    ("_native_batch_norm_legit_no_training", WIDE, t(2, 3, 4), t(3), t(3), *_STATISTICS, 0.1, 1e-5),
    ("_native_batch_norm_legit_no_training", WIDE, t(2, 3), None, None, *_STATISTICS, 0.1, 1e-3),
    ("_native_batch_norm_legit", WIDE, t(2, 3, 4), t(3), t(3), *_STATISTICS, False, 0.1, 1e-5),
    ("_native_batch_norm_legit.no_stats", WIDE, t(2, 3, 4, 5), t(3), t(3), True, 0.1, 1e-5),
    ("native_layer_norm", WIDE, t(2, 3, 4), [4], t(4), t(4), 1e-5),
    ("native_layer_norm", WIDE, t(2, 3, 4), [3, 4], None, None, 1e-3),
    ("native_group_norm", WIDE, t(2, 6, 4), t(6), t(6), 2, 6, 4, 3, 1e-5),
    ("native_group_norm", WIDE, t(2, 6, 4, 1), None, None, 2, 6, 4, 2, 1e-5),
    *[
        (_SDPA, WIDE, t(2, 4, 3, 8), t(2, 4, 5, 8), t(2, 4, 5, 6), m, 0.0, c, {"scale": s})
        for m, c, s in (
            (None, False, None),
            (None, True, 0.3),
            (mask(3, 5), False, None),
            (mask(2, 1, 3, 5), False, None),
        )
    ],
    (_SDPA, WIDE, t(4, 3, 8), t(4, 5, 8), t(4, 5, 8), t(4, 3, 5)),
    (_SDPA, WIDE, t(3, 8), t(5, 8), t(5, 8)),
    (
        _SDPA,
        WIDE,
        t(1, 4, 3, 8),
        t(1, 2, 3, 8),
        t(1, 2, 3, 8),
        None,
        0.0,
        True,
        {"enable_gqa": True},
    ),
    *[
        ("grid_sampler_2d", WIDE, t(2, 3, 4, 5), T((2, 6, 3, 2), -1.2, 1.2), mode, pad, corners)
        for mode in (0, 1, 2)
        for pad in (0, 1, 2)
        for corners in (False, True)
    ],
]

RESIZE: list[Row] = [
    ("upsample_nearest1d", WIDE, t(2, 3, 5), [9], 1.8),
    ("upsample_nearest3d", WIDE, t(1, 2, 3, 2, 4), [6, 3, 4]),
    *[
        (f"_upsample_nearest_exact{n}d", WIDE, T((1, 2, 5, 3, 4)[: n + 2]), [7, 6, 8][:n])
        for n in (1, 2, 3)
    ],
    *[
        (f"_upsample_nearest_exact{n}d.vec", WIDE, T((1, 2, 5, 3, 4)[: n + 2]), None, [1.6] * n)
        for n in (1, 3)
    ],
    ("upsample_linear1d", WIDE, t(2, 3, 5), [9], False, 1.8),
    *[
        (name, WIDE, t(1, 2, 5, 4), [8, 3], corners)
        for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa")
        for corners in (False, True)
    ],
    ("_upsample_bicubic2d_aa", WIDE, t(1, 2, 5, 4), [8, 3], False),
    ("upsample_trilinear3d", WIDE, t(1, 2, 3, 2, 4), [5, 4, 6], True),
    ("upsample_nearest1d.vec", WIDE, t(2, 3, 5), [8], None),
    ("upsample_nearest2d.vec", WIDE, t(2, 3, 5, 4), [7, 9], None),
    ("upsample_nearest2d.vec", WIDE, t(2, 3, 5, 4), None, [2.0, 1.7]),
    ("upsample_nearest3d.vec", WIDE, t(1, 2, 3, 2, 4), None, [2.0, 3.0, 0.5]),
    ("upsample_nearest2d", WIDE, t(2, 3, 5, 4), [10, 4], 2.0, None),
    ("_upsample_nearest_exact2d.vec", WIDE, t(2, 3, 5, 4), [7, 9], None),
    *[("upsample_linear1d.vec", WIDE, t(2, 3, 5), [8], c, None) for c in (False, True)],
    *[("upsample_bilinear2d.vec", WIDE, t(2, 3, 5, 4), [8, 3], c, None) for c in (False, True)],
    *[("upsample_bilinear2d.vec", WIDE, t(2, 3, 5, 4), None, c, [1.5, 2.0]) for c in (False, True)],
    *[
        ("upsample_trilinear3d.vec", WIDE, t(1, 2, 3, 2, 4), [5, 4, 4], c, None)
        for c in (False, True)
    ],
    *[("upsample_bicubic2d.vec", WIDE, t(2, 3, 5, 4), [8, 3], c, None) for c in (False, True)],
    *[
        ("_upsample_bilinear2d_aa.vec", WIDE, t(1, 3, 9, 8), [3, 20], c, None)
        for c in (False, True)
    ],
    ("_upsample_bicubic2d_aa.vec", WIDE, t(1, 3, 9, 8), [3, 20], False, None),
]


_ROW = i([1.0, 2, 2, 3, 9], dtype=torch.float32)
_ROWS = i([[1, 3, 5], [0, 0, 7]])
SPECIAL: list[Row] = [
    ("erfinv", WIDE, t(4, 9, low=-1, high=1)),
    ("erfinv", WIDE, Fixed(lambda: torch.tensor([1.0, -1, 2, 0, 1 - 2**-24, -1 + 2**-20]))),
    ("erfinv", ("int64",), i(0, 1, -1)),
    ("lgamma", WIDE, t(5, 9, low=-6, high=40)),
    ("lgamma", WIDE, Fixed(lambda: torch.tensor([0.0, -3, 1, 2, 1e-20, 1e20, -0.5, -1e30]))),
    *((op, ALL, t(3, 7), axis) for op in ("cummax", "cummin") for axis in (0, -1)),
    *((op, ALL, i(2, 1, 2, 2, 0, 3), 0) for op in ("cummax", "cummin")),
    *(
        (
            op,
            WIDE,
            Fixed(lambda: torch.tensor([[1, math.nan, 3, math.nan], [7, 8, math.nan, 9]])),
            d,
        )
        for op in ("cummax", "cummin")
        for d in (0, 1)
    ),
    ("cummax", WIDE, t(), 0),
    *(("logcumsumexp", WIDE, t(2, 3, 5), axis) for axis in (0, 1, -1)),
    ("logcumsumexp", WIDE, Fixed(lambda: torch.tensor([-math.inf, -math.inf, -700, 0, 700])), 0),
    ("logcumsumexp", WIDE, t(), 0),
    *(("kthvalue", ("float32", "float64", "float16"), t(3, 6), k, d) for k, d in ((1, 1), (2, 0))),
    ("kthvalue", WIDE, t(3, 6), 6, -1, True),
    *(("searchsorted.Tensor", SIGNED, _ROW, t(3, 4), {"right": r}) for r in (False, True)),
    ("searchsorted.Tensor", ("int64",), _ROWS, t(2, 4), {"side": "right", "out_int32": True}),
    ("searchsorted.Scalar", ("float32",), _ROW, 2.0),
    *(("bucketize.Tensor", SIGNED, t(3, 4), _ROW, {"right": r}) for r in (False, True)),
    ("bucketize.Scalar", ("float32",), 9, _ROW, {"out_int32": True}),
]


def _cases() -> Iterator[Case]:
    for number, (op, dtypes, *args) in enumerate(
        [*MATH, *MAKE, *SHAPE, *INDEX, *REDUCE, *NN, *RESIZE, *SPECIAL]
    ):
        options = args.pop() if args and isinstance(args[-1], dict) else {}
        yield Case(op, dtypes, tuple(args), tuple(options.items()), number)


CASES = list(_cases())

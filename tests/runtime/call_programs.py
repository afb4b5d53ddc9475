"""Random functions for the fuzz of calls: tensor programs and graphs, their text, and what they
compute, by NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tests.runtime.scalars import DTYPES, numpy_type

Dim = int | str  # a number, a symbol, or "n + 1"
_DIMS: tuple[Dim, ...] = (1, 2, 3, 5, "n", "n", "m")
_NEGATED = tuple(d for d in DTYPES if "uint" not in d and d != "bool")
GRAPH_DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Param:
    """A tensor, or a number when `dims` is None."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None
    written: bool = False


@dataclass(frozen=True)
class Action:
    """What is done to a written parameter, or how a graph's result is made: an operation on
    parameters by their places."""

    op: str
    target: int
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function; the results of a graph are its actions, one each, of a dtype and dims."""

    name: str
    kind: str  # "tensor" or "graph"
    params: tuple[Param, ...]
    actions: tuple[Action, ...]
    results: tuple[tuple[str, tuple[Dim, ...]], ...] = ()

    def text(self) -> str:
        """Its script, as a method of a module."""
        return "\n".join(_graph_lines(self) if self.kind == "graph" else _tensor_lines(self))


# ---- making them --------------------------------------------------------------------------------


def functions(seed: int, count: int) -> tuple[Function, ...]:
    """That many, for a seed."""
    rng = Random(f"functions {seed}")
    return tuple(
        _graph(f"f{k}", rng) if k % 4 == 3 else _tensor_program(f"f{k}", rng) for k in range(count)
    )


def _dims(rng: Random, min_rank: int = 0) -> tuple[Dim, ...]:
    return tuple(rng.choice(_DIMS) for _ in range(rng.choice((1, 1, 2, 2, 3, 4, min_rank))))


def _tensor_program(name: str, rng: Random) -> Function:
    """Up to three written tensors, and where each gets its elements from; numbers of all types."""
    drafts: list[Param] = []
    plans: list[tuple[str, int, list[int]]] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        dtype, dims = rng.choice(DTYPES), _dims(rng, 1)
        target = len(drafts)
        drafts.append(Param("", dtype, dims, written=True))
        op = rng.choice(("copy", "flip", "flip", "number", "first", "own"))
        if op == "own" and dtype not in _NEGATED:
            op = "flip"
        if op != "own":
            drafts.append(Param("", dtype, None if op in ("number", "first") else dims))
        plans.append((op, target, [] if op == "own" else [target + 1]))
    for _ in range(rng.choice((0, 0, 1, 2))):  # those that nothing reads
        drafts.append(Param("", rng.choice(DTYPES), None if rng.random() < 0.6 else _dims(rng, 1)))
    order = list(range(len(drafts)))
    rng.shuffle(order)
    tensors = [i for i, old in enumerate(order) if drafts[old].dims is not None]
    last = sorted((order[i] for i in tensors), key=lambda old: drafts[old].written)
    for i, old in zip(tensors, last, strict=True):  # what is written follows what is read
        order[i] = old
    new_places = {old: new for new, old in enumerate(order)}
    params = [drafts[old] for old in order]
    named = tuple(Param(f"p{i}", p.dtype, p.dims, p.written) for i, p in enumerate(params))
    actions = [
        Action(op, new_places[t], tuple(new_places[s] for s in sources)) for op, t, sources in plans
    ]
    return Function(name, "tensor", named, tuple(sorted(actions, key=lambda a: a.target)))


def _graph(name: str, rng: Random) -> Function:
    dtype, dims = rng.choice(GRAPH_DTYPES), _dims(rng)
    params = [Param("p0", dtype, dims)]
    actions, results = [], []
    for k in range(rng.choice((1, 1, 2))):
        op = rng.choice(("neg", "add", "concat")) if dims else rng.choice(("neg", "add"))
        if op == "neg":
            actions.append(Action("neg", k, (0,)))
            results.append((dtype, dims))
            continue
        operand = Param(f"p{len(params)}", dtype, dims)
        sizes = dims
        if op == "concat":
            first = rng.choice((2, "m"))
            operand = Param(operand.name, dtype, (first, *dims[1:]))
            sizes = (_sum(dims[0], first), *dims[1:])
        params.append(operand)
        actions.append(Action(op, k, (0, len(params) - 1)))
        results.append((dtype, sizes))
    return Function(name, "graph", tuple(params), tuple(actions), tuple(results))


def _sum(a: Dim, b: Dim) -> Dim:
    return a + b if isinstance(a, int) and isinstance(b, int) else f"{a} + {b}"


# ---- their text ---------------------------------------------------------------------------------


def _shape(dims: Sequence[Dim]) -> str:
    inner = ", ".join(f'"{d}"' if isinstance(d, str) else str(d) for d in dims)
    return f"({inner},)" if dims else "()"


def _tensor_lines(f: Function) -> list[str]:
    declared = [
        f"{p.name}: T.{p.dtype}"
        if p.dims is None
        else f'{p.name}: T.Buffer({_shape(p.dims)}, "{p.dtype}")'
        for p in f.params
    ]
    lines = ["    @T.prim_func", f"    def {f.name}({', '.join(declared)}):"]
    for action in f.actions:
        target = f.params[action.target]
        assert target.dims
        loops = target.dims[1:] if action.op == "first" else target.dims
        pad = "        "
        for axis, size in enumerate(loops):
            lines.append(f"{pad}for i{axis} in range({size}):")
            pad += "    "
        index = [f"i{axis}" for axis in range(len(loops))]
        place = ", ".join(["0", *index] if action.op == "first" else index)
        source = f.params[action.sources[0]].name if action.sources else target.name
        flipped = [f"{target.dims[0]} - 1 - i0", *index[1:]]
        value = {
            "number": source,
            "first": source,
            "copy": f"{source}[{', '.join(index)}]",
            "flip": f"{source}[{', '.join(flipped)}]",
            "own": f"-{source}[{', '.join(index)}]",
        }[action.op]
        lines.append(f"{pad}{target.name}[{place}] = {value}")
    return lines


def _graph_lines(f: Function) -> list[str]:
    declared = [f'{p.name}: R.Tensor({_shape(p.dims or ())}, "{p.dtype}")' for p in f.params]
    lines = ["    @R.function", f"    def {f.name}({', '.join(declared)}):"]
    for action in f.actions:
        names = ", ".join(f.params[s].name for s in action.sources)
        call = f"R.concat({names}, axis=0)" if action.op == "concat" else f"R.{action.op}({names})"
        lines.append(f"        y{action.target} = {call}")
    ys = ", ".join(f"y{a.target}" for a in f.actions)
    return [*lines, f"        return {ys if len(f.actions) == 1 else f'({ys})'}"]


def module_text(functions_drawn: Sequence[Function]) -> str:
    """The script of a module of all."""
    head = ['@tk.script.ir_module(name="calls")', "class Calls:"]
    return "\n".join([*head, *(f.text() for f in functions_drawn)])


# ---- what they compute --------------------------------------------------------------------------


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dimension as a number."""
    parts = str(dim).split(" + ")
    return sum(int(p) if p.isdigit() else sizes[p] for p in parts)


def bind(f: Function, shapes: Mapping[int, Sequence[int]]) -> dict[str, int] | None:
    """Sizes of the symbols for shapes of the tensors by place; None where they do not fit."""
    sizes: dict[str, int] = {}
    for i, p in enumerate(f.params):
        if p.dims is None:
            continue
        shape = shapes[i]
        if len(shape) != len(p.dims):
            return None
        for dim, size in zip(p.dims, shape, strict=True):
            if isinstance(dim, str):
                if size < (f.kind == "tensor") or sizes.setdefault(dim, size) != size:
                    return None
            elif dim != size:
                return None
    return sizes


def compute(f: Function, values: Sequence[Any]) -> list[tuple[int, Any]]:
    """What parameters get, or the results of a graph, by place. `values` are arrays as they are
    before the call, and numbers in their types."""
    writes = []
    for action in f.actions:
        sources = [values[s] for s in action.sources]
        match action.op:
            case "number" | "first":
                target = values[action.target].copy()
                target[() if action.op == "number" else 0] = sources[0]
                writes.append((action.target, target))
            case "copy":
                writes.append((action.target, sources[0]))
            case "flip":
                writes.append((action.target, sources[0][::-1]))
            case "own":
                writes.append((action.target, -values[action.target]))
            case "neg":
                writes.append((action.target, -sources[0]))
            case "add":
                writes.append((action.target, sources[0] + sources[1]))
            case "concat":
                writes.append((action.target, np.concatenate(sources)))
    return [(place, np.asarray(array)) for place, array in writes]


__all__ = [
    "Action",
    "Function",
    "Param",
    "bind",
    "compute",
    "functions",
    "module_text",
    "numpy_type",
]

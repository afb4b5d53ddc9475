"""Calls in graphs that have a grammar of their own: `R.call_tir`, `R.match_cast`, `R.const`, ..."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tensorkiln.base.errors import nearest
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import (
    Call,
    Constant,
    FuncType,
    GlobalRef,
    MatchCast,
    ObjectType,
    ShapeValue,
    StringValue,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import Extents, castable, is_condition, loop_type, takes
from tensorkiln.ir.text.print_relax import digest
from tensorkiln.ir.type_text import show
from tensorkiln.script.parse_values import Parsed, ValueParser

# Keywords for the type of a result; scripts of other compilers use the last two.
_OUT = ("out_type", "out_sinfo", "sinfo_args")


class CallParser(ValueParser):
    """Parses the calls `R.name(...)` that are not calls of operators."""

    def _op(self, node: ast.Call) -> Parsed:
        """`R.op("any name", ...)`."""
        if not node.args:
            raise self.fail(node, "expected the operator's name")
        return self.make(node, self.exprs.string(node.args[0]), node.args[1:]), None

    def _out(self, node: ast.Call, position: int) -> Type | None:
        """Return the result type of a call, given as operand number `position` or by keyword; None
        if it is not given."""
        given = [k.value for k in node.keywords if k.arg in _OUT]
        given += node.args[position:]
        if len(given) > 1:
            raise self.fail(given[1], "expected one result type, not several")
        if given and isinstance(given[0], ast.Tuple | ast.List) and len(given[0].elts) == 1:
            return self.types.type(given[0].elts[0])
        return self.types.types(given[0]) if given else None

    def _call_tir(self, node: ast.Call) -> Parsed:
        """`R.call_tir(cls.f, [x, y], R.Tensor(...))`."""
        if len(node.args) not in (2, 3):
            raise self.fail(node, "expected R.call_tir(cls.f, [args], out_type)")
        callee = self._module_function(node.args[0])
        args = _list(node.args[1]) + [k.value for k in node.keywords if k.arg == "tir_vars"]
        call = self.make(node, callee, args, (*_OUT, "tir_vars"))
        out = self._out(node, 2)
        if out is None:
            out = self.inferred(node, call)
        return call, out

    def _module_function(self, node: ast.expr) -> GlobalRef:
        callee = self.callee(node)
        if callee is None:
            raise self.fail(node, "expected a function of this module", "as cls.add_one")
        return callee

    def _call_tir_inplace(self, node: ast.Call) -> Parsed:
        """`R.call_tir_inplace(cls.f, [x, y], [0], R.Tensor(...))`: the list has the index of the
        operand that each result is written to, -1 for a new tensor."""
        if len(node.args) < 2:
            message = "expected R.call_tir_inplace(cls.f, [args], inplace_indices, out_type)"
            raise self.fail(node, message)
        callee = self._module_function(node.args[0])
        f = self.module.functions.get(callee.name)
        if f is not None and not isinstance(f, PrimFunc):
            raise self.fail(node.args[0], f"{callee.name} is not a tensor program")
        at = [k.value for k in node.keywords if k.arg in ("inplace_indices", "inplace")]
        at += node.args[2:3]
        if len(at) != 1:
            raise self.fail(
                node, "expected the indices of the operands that are written", "inplace_indices=[0]"
            )
        args = _list(node.args[1])
        inplace = self._indices(at[0], len(args))
        skip = (*_OUT, "inplace_indices", "inplace")
        call = self.make(node, "call_tir_inplace", [node.args[0], *args], skip, inplace=inplace)
        return call, self._out(node, 3) or self._written(node, call, inplace)

    def _indices(self, node: ast.expr, count: int) -> tuple[int, ...]:
        found = self.exprs.literal(node)
        items = found if isinstance(found, tuple) else (found,)
        indices = tuple(i for i in items if isinstance(i, int))
        if len(indices) != len(items) or not all(-1 <= i < count for i in indices):
            raise self.fail(node, f"expected indices of the {count} operands, -1 for a new tensor")
        return indices

    def _written(self, node: ast.Call, call: Call, inplace: tuple[int, ...]) -> Type:
        """Return the result type if all results are written to operands: the operands' types."""
        if -1 in inplace:
            raise self.fail(node, "the type of this result is not known here", "write out_type=")
        types = tuple(call.args[1 + i].type for i in inplace)
        return types[0] if len(types) == 1 else TupleType(types)

    def _name_of(self, node: ast.Call, form: str) -> str:
        name = self.exprs.literal(node.args[0]) if node.args else None
        if not isinstance(name, str):
            raise self.fail(node.args[0] if node.args else node, f"expected {form}")
        return name

    def _call_packed(self, node: ast.Call) -> Parsed:
        """`R.call_packed("name", x, "text", 3, key="value")`; the last operand may be the result
        type."""
        name = self._name_of(node, 'R.call_packed("name", args...)')
        count = len(node.args)
        if count > 1 and self.types.is_type(node.args[-1]):
            count -= 1
        call = self.make(node, "call_packed", node.args[1:count], _OUT, name=name)
        return call, self._out(node, count)

    def _call_dps_packed(self, node: ast.Call) -> Parsed:
        """`R.call_dps_packed("name", [x, y], R.Tensor(...))`."""
        name = self._name_of(node, 'R.call_dps_packed("name", [args], out_type)')
        if len(node.args) < 2:
            raise self.fail(node, 'expected R.call_dps_packed("name", [args], out_type)')
        call = self.make(node, "call_dps_packed", _list(node.args[1]), _OUT, name=name)
        return call, self._out(node, 2)

    def _alloc_storage(self, node: ast.Call) -> Parsed:
        """`R.alloc_storage(4096)`, or `R.alloc_storage(size=n * 4)`."""
        given = [*node.args, *(k.value for k in node.keywords if k.arg == "size")]
        if len(given) != 1:
            raise self.fail(node, "expected R.alloc_storage(size)")
        call = self.make(node, "alloc_storage", [], ("size",), size=self.exprs.attr(given[0]))
        return call, ObjectType()

    def _while_loop(self, node: ast.Call) -> Parsed:
        """`R.while_loop(cond, body, *state)`."""
        if len(node.args) < 3:
            raise self.fail(node, "expected R.while_loop(cond, body, state...)")
        call = self.make(node, "while_loop", node.args)
        return call, self.loop_type(node.args, call)

    def loop_type(self, nodes: Sequence[ast.AST], call: Call) -> Type:
        """Return the result type of a `while_loop`; raise UserError if the condition or the body
        does not fit the state."""
        cond, body = (self.type_of(a) for a in call.args[:2])
        for at, f in zip(nodes, (cond, body), strict=False):
            if not isinstance(f, FuncType):
                raise self.fail(at, f"{show(f)} is not a function")
        assert isinstance(cond, FuncType) and isinstance(body, FuncType)
        if not is_condition(cond.result):
            raise self.fail(nodes[0], f"a condition is one bool, not {show(cond.result)}")
        state = call.args[2:]
        for f, name in ((cond, "the condition"), (body, "the body")):
            self.check_operands(nodes[0], nodes[2:], f.params, state, name)
        results: tuple[Type, ...] = (body.result,)
        if len(state) != 1 and isinstance(body.result, TupleType):
            results = body.result.fields
        if len(results) != len(state):
            message = f"the body gives {len(results)} values for a state of {len(state)}"
            raise self.fail(nodes[1], message)
        by: Extents = {}
        for p, g in zip(body.params or results, results, strict=True):
            if not takes(p, g, by):
                raise self.fail(nodes[1], f"the body takes {show(p)} and gives {show(g)}")
        return loop_type(body, [a.type for a in state], self.dims())

    # ---- values ------------------------------------------------------------------------------

    def _shape(self, node: ast.Call) -> Parsed:
        """`R.shape(n, 4)` or `R.shape([n, 4])`."""
        args = node.args
        if len(args) == 1 and isinstance(args[0], ast.List | ast.Tuple):
            args = args[0].elts
        value = ShapeValue(tuple(map(self.exprs.expr, args)))
        for at, e in zip(args, value.values, strict=True):
            if not e.dtype.is_int:
                raise self.fail(at, f"an extent is an integer, not {e.dtype}")
        return value, value.type

    def _one(self, node: ast.Call) -> ast.expr:
        if len(node.args) != 1 or node.keywords:
            raise self.fail(node, f"{self.scope.dialect(node.func)} takes one argument")
        return node.args[0]

    def _prim_value(self, node: ast.Call) -> Parsed:
        value = self.number(self._one(node))
        return value, value.type

    def _str(self, node: ast.Call) -> Parsed:
        text = self.exprs.literal(self._one(node))
        if not isinstance(text, str):
            raise self.fail(node.args[0], "expected a string")
        value = StringValue(text)
        return value, value.type

    def _tuple(self, node: ast.Call) -> Parsed:
        value: Value = Tuple(tuple(map(self.value, node.args)))
        return value, value.type

    def _match_cast(self, node: ast.Call) -> Parsed:
        """`R.match_cast(x, R.Tensor(("n", 4), "float32"))`."""
        if len(node.args) != 2 or node.keywords:
            raise self.fail(node, "expected R.match_cast(value, type)")
        value, wanted = self.value(node.args[0]), self.types.type(node.args[1])
        if not castable(value.type, wanted):
            raise self.fail(node.args[1], f"{show(value.type)} can never be {show(wanted)}")
        return MatchCast(value, wanted), wanted

    # ---- constants ---------------------------------------------------------------------------

    def _const(self, node: ast.Call) -> Parsed:
        """`R.const(values, dtype, shape?)`, or `R.const("key", dtype, shape, sha256=...)` for the
        array given as `constants["key"]`."""
        options = {k.arg: k.value for k in node.keywords}
        unknown = [k for k in options if k not in ("layout", "name", "sha256")]
        if unknown or len(node.args) not in (2, 3):
            raise self.fail(node, "expected R.const(values or key, dtype, shape, ...)")
        layout: Layout | None = None
        if "layout" in options:
            layout = self.types.layout(options["layout"])
        dtype = self.exprs.dtype(node.args[1])
        data = self.exprs.literal(node.args[0])
        shape = self.exprs.shape(node.args[2]) if len(node.args) == 3 else None
        if isinstance(data, str):
            found = self._referred(node, data, TensorType(shape or (), dtype, layout), options)
        else:
            name = self.exprs.string(options["name"]) if "name" in options else ""
            array = self._array(node, data, dtype.name)
            kind = TensorType(_extents(array) if shape is None else shape, dtype, layout)
            found = Constant(array.reshape(self._physical(node, kind, array.size)), kind, name)
        return found, found.type

    def _array(self, node: ast.Call, data: object, dtype: str) -> np.ndarray:
        try:
            return np.array(data, dtype)
        except (ValueError, TypeError, OverflowError) as e:
            raise self.fail(node.args[0], f"not {dtype} data: {e}") from None

    def _physical(self, node: ast.Call, kind: TensorType, size: int) -> tuple[int, ...]:
        """Return the shape in memory, after the layout; raise UserError unless it is static and has
        `size` elements."""
        dims = [int_value(d) for d in kind.physical_shape]
        shape = tuple(d for d in dims if d is not None)
        if len(shape) != len(dims) or int(np.prod(shape, dtype=object)) != size:
            raise self.fail(node, f"{size} elements for a constant of shape {shape}")
        return shape

    def _referred(
        self, node: ast.Call, key: str, kind: TensorType, options: dict[str | None, ast.expr]
    ) -> Constant:
        known = self.module.literals.get(key)
        if known is not None and known.type == kind:
            return known
        array = self.module.constants.get(key)
        if array is None:
            names = list(self.module.constants)
            hint = nearest(key, names) or f"pass constants={{{key!r}: array}}"
            raise self.fail(node.args[0], f"no constant {key!r} was given", hint)
        shape = self._physical(node, kind, array.size)
        if array.shape != shape or array.dtype.itemsize != kind.dtype.bytes:
            message = f"{key!r} is {array.dtype}{list(array.shape)}, expected {list(shape)}"
            raise self.fail(node, f"{message} of {kind.dtype}")
        expected = options.get("sha256")
        if expected is not None and self.exprs.literal(expected) != digest(array):
            raise self.fail(expected, f"the bytes given for {key!r} are not these")
        name = key.rpartition("#")[0] or key
        found = Constant(array, kind, "" if name == "const" else name)
        self.module.literals[key] = found
        return found

    special: ClassVar = {
        "R.op": _op,
        "R.call_tir": _call_tir,
        "R.call_tir_inplace": _call_tir_inplace,
        "R.call_packed": _call_packed,
        "R.call_dps_packed": _call_dps_packed,
        "R.alloc_storage": _alloc_storage,
        "R.while_loop": _while_loop,
        "R.shape": _shape,
        "R.prim_value": _prim_value,
        "R.str": _str,
        "R.tuple": _tuple,
        "R.match_cast": _match_cast,
        "R.const": _const,
    }


def _list(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else [node]


def _extents(array: np.ndarray) -> tuple[Expr, ...]:
    return tuple(IntImm(n) for n in array.shape)

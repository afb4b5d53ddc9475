"""Verifier of expressions: scopes, ranks, lane counts and dtypes."""

from __future__ import annotations

import re
from collections.abc import Callable

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import BOOL, FLOAT32, HANDLE, INT64, VOID, DType
from tensorkiln.ir.expr import (
    BINARY,
    BITCASTS,
    DEVICE_INSTRUCTIONS,
    DOTS,
    INTRINSICS,
    REDUCE_BINARY,
    TILE_DOTS,
    UNARY,
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    arity_of,
    int_value,
)
from tensorkiln.ir.known_attrs import CALL_ATTRS, DEPENDENCIES, problem_of
from tensorkiln.ir.malformed import (
    Malformed,
    agree,
    among,
    fresh,
    index,
    instead,
    listed,
    one_element,
    plural,
    unbound,
)
from tensorkiln.ir.operators import ON_BITS
from tensorkiln.ir.reach import Reach
from tensorkiln.ir.tiles import is_tile
from tensorkiln.ir.verify_device import check_instruction
from tensorkiln.ir.visit import free_vars, has_load

_FAR = 1 << 63


class ExprVerifier:
    """Verifies expressions in a scope.

    `_vars` maps each variable to whether it is static (constant after unrolling), `_buffers` each
    buffer to whether it may be stored to.
    """

    def __init__(self, places: bool = False) -> None:
        self._vars: dict[Var, bool] = {}
        self._buffers: dict[Buffer, bool] = {}
        self._reach = Reach(places)

    # ---- expressions -------------------------------------------------------------------------

    def root(self, e: Expr, effect: bool = False) -> DType:
        """The dtype of a whole expression. A Malformed raised gets the path to the faulty part.

        With `effect`, `e` may be a call of a C function that returns void.
        """
        try:
            return self.extern(e) if effect and isinstance(e, CallExtern) else self.expr(e)
        except Malformed as error:
            if error.node is not None:
                error.path += reversed(_path_to(e, error.node) or [])
                error.node = None
            raise

    def scalar(self, e: Expr) -> DType:
        """The dtype of an expression; raise Malformed unless it has exactly one lane."""
        dtype = self.root(e)
        if dtype.lanes != 1:
            message = f"{dtype.lanes} lanes where one value is needed"
            raise Malformed(message, instead(dtype, dtype.element))
        return dtype

    def expr(self, e: Expr) -> DType:
        """Verify `e` and everything below it; return its dtype."""
        check = _EXPRS.get(type(e))
        if check is None:
            name = type(e).__name__
            node_names = (t.__name__ for t in _EXPRS)
            raise Malformed(f"{name} is not an expression", among(name, node_names), e)
        return check(self, e)

    def _var(self, e: Var) -> DType:
        if e not in self._vars:
            hint = unbound(e.name, (v.name for v in self._vars))
            raise Malformed(f"{e.name} is not bound here", hint, e)
        return e.dtype

    def _int(self, e: IntImm) -> DType:
        d = e.dtype
        if d == INT64 and -_FAR <= e.value < _FAR:
            return d
        low = 0 if d.is_unsigned else -(1 << (d.bits - 1))
        if d.is_float or d.lanes != 1 or not low <= e.value < low + (1 << d.bits):
            if d.is_float or d.lanes != 1:
                node = "FloatImm" if d.is_float else "IntImm"
                raise Malformed(f"{e.value} as {d}", _immediate(node, d), e)
            hint = f"{d} holds {low} to {low + (1 << d.bits) - 1}"
            raise Malformed(f"{e.value} as {d}", hint, e)
        return d

    def _float(self, e: FloatImm) -> DType:
        if not e.dtype.is_float or e.dtype.lanes != 1:
            node = "FloatImm" if e.dtype.is_float else "IntImm"
            raise Malformed(f"{e.value} as {e.dtype}", _immediate(node, e.dtype), e)
        return e.dtype

    def _common_dtype(self, e: Expr, a: Expr, b: Expr, operation: str) -> DType:
        return self._agreed(e, self.expr(a), self.expr(b), operation)

    def _agreed(self, e: Expr, x: DType, y: DType, operation: str) -> DType:
        if x is not y and x != y:
            raise Malformed(f"{operation}: {x} against {y}", agree(x, y), e)
        return x

    def _binary(self, e: Binary) -> DType:
        if e.op not in BINARY:
            raise Malformed(f"binary operator {e.op!r}", among(e.op, BINARY), e)
        if e.op == "add" and e.a.dtype == HANDLE:
            return self._further(e)
        dtype = self._logic(e) if e.op in ("and", "or") else self._common_dtype(e, e.a, e.b, e.op)
        if (e.op in ("and", "or") and not dtype.is_bool) or (e.op in ON_BITS and dtype.is_float):
            raise Malformed(f"{e.op} of {dtype}", _of_bits(e.op, dtype), e)
        return BOOL.with_lanes(dtype.lanes) if BINARY[e.op][1] else dtype

    def _logic(self, e: Binary) -> DType:
        """An `and` or `or`, whose second operand may not be computed (`guard_conditions`)."""
        first = self.expr(e.a)
        with self._reach.conditional():
            second = self.expr(e.b)
        return self._agreed(e, first, second, e.op)

    def _further(self, e: Binary) -> DType:
        """An address plus a number of bytes."""
        self.address(e.a)
        if self.expr(e.b) != INT64:
            hint = index(e.b.dtype)
            raise Malformed(f"an address plus {e.b.dtype}: bytes are an int64", hint, e)
        return HANDLE

    def _unary(self, e: Unary) -> DType:
        if e.op not in UNARY:
            hint = among(e.op, UNARY)
            if e.op in INTRINSICS:
                hint = f"{e.op} is an intrinsic: Intrin({e.op!r}, (value,))"
            raise Malformed(f"unary operator {e.op!r}", hint, e)
        dtype = self.expr(e.a)
        if (e.op == "not" and not dtype.is_bool) or (e.op == "sqrt" and not dtype.is_float):
            target = BOOL if e.op == "not" else FLOAT32
            hint = instead(dtype, target.with_lanes(dtype.lanes))
            raise Malformed(f"{e.op} of {dtype}", hint, e)
        return dtype

    def _select(self, e: Select) -> DType:
        cond = self.expr(e.cond)
        with self._reach.conditional():
            dtype = self._common_dtype(e, e.a, e.b, "select")
        if not cond.is_bool or cond.lanes not in (1, dtype.lanes):
            lanes = dtype.lanes if cond.lanes not in (1, dtype.lanes) else cond.lanes
            hint = instead(cond, BOOL.with_lanes(lanes))
            raise Malformed(f"select by {cond} among {dtype}", hint, e)
        return dtype

    def _cast(self, e: Cast) -> DType:
        dtype = self.expr(e.a)
        if dtype.lanes != e.dtype.lanes:
            hint = f"a cast keeps the lanes: to {e.dtype.with_lanes(dtype.lanes)}"
            raise Malformed(f"cast of {dtype} to {e.dtype}", hint, e)
        return e.dtype

    def _ramp(self, e: Ramp) -> DType:
        dtype = self._common_dtype(e, e.base, e.stride, "ramp")
        if not dtype.is_int or dtype.lanes != 1 or e.lanes < 1:
            is_index = dtype.is_int and dtype.lanes == 1
            hint = "at least 1 lane" if is_index else index(dtype)
            raise Malformed(f"ramp of {e.lanes} lanes from {dtype}", hint, e)
        return dtype.with_lanes(e.lanes)

    def _broadcast(self, e: Broadcast) -> DType:
        dtype = self.expr(e.a)
        if dtype.lanes != 1 or e.lanes < 1:
            hint = "at least 1 lane"
            if dtype.lanes != 1:
                hint = f"it has {dtype.lanes} lanes: Shuffle repeats lanes of a vector"
            raise Malformed(f"broadcast of {dtype} to {e.lanes} lanes", hint, e)
        return dtype.with_lanes(e.lanes)

    def _shuffle(self, e: Shuffle) -> DType:
        dtype = self._common_dtype(e, e.a, e.b, "shuffle")
        if not e.lanes or not all(0 <= i < 2 * dtype.lanes for i in e.lanes):
            hint = f"list lanes from 0 to {2 * dtype.lanes - 1}, one or more"
            raise Malformed(f"lanes {e.lanes} of two {dtype}", hint, e)
        return dtype.with_lanes(len(e.lanes))

    def _vector_reduce(self, e: VectorReduce) -> DType:
        if e.op not in REDUCE_BINARY and e.op not in REDUCE_BINARY.values():
            hint = among(e.op, (*REDUCE_BINARY, *REDUCE_BINARY.values()))
            raise Malformed(f"reduction {e.op!r}", hint, e)
        return self.expr(e.a).element

    def _intrin(self, e: Intrin) -> DType:
        arity = arity_of(e.name)
        if arity != len(e.args):
            hint = among(e.name, (*INTRINSICS, *DEVICE_INSTRUCTIONS))
            if arity is not None:
                hint = f"{e.name} takes {plural(arity, 'argument')}"
            raise Malformed(f"{e.name!r} with {len(e.args)} arguments", hint, e)
        if e.name in DEVICE_INSTRUCTIONS:
            for k, a in enumerate(e.args):
                if isinstance(a, Load) and k in DEVICE_INSTRUCTIONS[e.name].memory:
                    self._indices(a.buffer, a.indices, a, several=True)
                else:
                    self.expr(a)
            check_instruction(e)
            return e.dtype
        if e.name in TILE_DOTS:
            hint = "it is the value of a store to a tile, which it adds to"
            raise Malformed(f"{e.name} within another expression", hint, e)
        types = [self.expr(a) for a in e.args]
        if e.name in DOTS:
            lanes = types[0].lanes
            operand_types = [DType(name, lanes * count) for name, count in DOTS[e.name]]
            if types != operand_types:
                hint = f"{e.name} takes {', '.join(map(str, operand_types))}"
                raise Malformed(f"{e.name} of {', '.join(map(str, types))}", hint, e)
            return e.dtype
        mismatch = next((t for t in types if t != types[0]), None)
        if mismatch is not None:
            hint = agree(types[0], mismatch)
            raise Malformed(f"{e.name} of {', '.join(map(str, types))}", hint, e)
        needed = BITCASTS[e.name][0] if e.name in BITCASTS else types[0].name
        if types[0].name != needed:
            fits = [k for k, (a, _) in BITCASTS.items() if a == types[0].name]
            hint = f"{e.name} takes {needed}, {types[0]} takes {listed(fits) or 'a Cast'}"
            raise Malformed(f"{e.name} of {types[0]}", hint, e)
        return e.dtype

    def _reduce(self, e: Reduce) -> DType:
        if e.op not in REDUCE_BINARY:
            raise Malformed(f"reduction {e.op!r}", among(e.op, REDUCE_BINARY), e)
        for var, extent in e.axes:
            size = self.expr(extent)
            if size != var.dtype or var.dtype.lanes != 1:
                hint = index(size, var.dtype)
                raise Malformed(f"axis {var.name} is {var.dtype}, its extent is {size}", hint, e)
            if var in self._vars:
                message = f"{var.name} is bound again while in scope"
                raise Malformed(message, fresh("Var", var.name), e)
            self._vars[var] = False
        with self._reach.conditional():
            dtype = self.expr(e.value)
        for var, _ in e.axes:
            del self._vars[var]
        return dtype

    def _address_of(self, e: AddressOf) -> DType:
        hint = f"Load({e.buffer.name}, ...) is the element itself"
        raise Malformed("an address is an argument of a function only", hint, e)

    def _call_extern(self, e: CallExtern) -> DType:
        if e.dtype == VOID:
            hint = "Evaluate(call) is its statement; give it a dtype if it returns a value"
            raise Malformed(f"{e.name} returns nothing: its call is not a value", hint, e)
        return self.extern(e)

    def extern(self, e: CallExtern) -> DType:
        """Verify a call of a C function; return the dtype of its result, which may be void."""
        if not (e.name.isidentifier() and e.name.isascii()):
            text = re.sub(r"\W", "_", e.name, flags=re.ASCII)
            near = text if text.isidentifier() else f"f{text}"
            hint = f"letters, digits and underscores, such as {near!r}"
            raise Malformed(f"{e.name!r} is not the name of a C function", hint, e)
        if e.dtype.lanes != 1 or e.dtype == HANDLE:
            example = "int64" if e.dtype == HANDLE else e.dtype.name
            hint = f"it returns one value, such as {example}, or void"
            raise Malformed(f"a C function that returns {e.dtype}", hint, e)
        if e.dependencies:
            problem = problem_of(CALL_ATTRS, e.name, DEPENDENCIES, e.dependencies)
            if problem is not None:
                raise Malformed(*problem, e)
        for a in e.args:
            dtype = self.address(a)
            if dtype.lanes != 1:
                hint = instead(dtype, dtype.element)
                raise Malformed(f"{dtype} as an argument of a C function", hint, a)
        return e.dtype

    def address(self, e: Expr) -> DType:
        """Verify an argument, which unlike other expressions may be an AddressOf; its dtype."""
        if not isinstance(e, AddressOf):
            return self.expr(e)
        # The start of a buffer is always a legal address, also that of an empty buffer.
        with self._reach.conditional(any(int_value(i) != 0 for i in e.indices)):
            lanes = self._indices(e.buffer, e.indices, e)
        if lanes != 1 or e.buffer.scope in ("register", "tile"):
            message = "the address is that of one element in memory"
            raise Malformed(message, one_element(e.buffer), e)
        return HANDLE

    def _load(self, e: Load) -> DType:
        return e.buffer.dtype.with_lanes(self._indices(e.buffer, e.indices, e))

    # ---- memory ------------------------------------------------------------------------------

    def _access(self, b: Buffer, indices: tuple[Expr, ...]) -> int:
        """Verify the access of a statement; return its number of lanes."""
        try:
            return self._indices(b, indices, None)
        except Malformed as error:
            if error.node is not None:
                error.path += reversed(_path_to(indices, error.node) or [])
                error.path.append(".indices")
                error.node = None
            raise

    def _indices(
        self, b: Buffer, indices: tuple[Expr, ...], node: Expr | None, several: bool = False
    ) -> int:
        """Verify indices; return their number of lanes. `several` may be vectors: a matrix that an
        instruction reads by itself."""
        if b not in self._buffers:
            hint = unbound(b.name, (buffer.name for buffer in self._buffers))
            raise Malformed(f"buffer {b.name} is not bound here", hint, node)
        if len(indices) != len(b.shape):
            hint = f"{b.name} has {plural(len(b.shape), 'dimension')}: one index for each"
            raise Malformed(f"{len(indices)} indices for {b!r}", hint, node)
        lanes = 1
        for e in indices:
            dtype = self.expr(e)
            fits = 1 in (dtype.lanes, lanes) or (several and dtype.lanes == lanes)
            if not dtype.is_int or not fits:
                types = ", ".join(str(x.dtype) for x in indices)
                hint = "one index may be a vector, beside scalars"
                if not dtype.is_int:
                    hint = instead(dtype, INT64.with_lanes(dtype.lanes))
                raise Malformed(f"indices of {types} into {b!r}", hint, node)
            lanes = max(lanes, dtype.lanes)
        if b.dtype == HANDLE:
            self._item(b, indices, node)
        else:
            self._reach.check(b, indices, node)
        if is_tile(b) and not several:
            hint = "a store moves a whole tile, or multiplies two: ir/tiles.py"
            raise Malformed(f"elements of {b.name}, which is in tiles", hint, node)
        fixed = {"register": len(indices), "tile": len(indices) - 2}.get(b.scope, 0)
        for e, extent in zip(indices[:fixed], b.shape, strict=False):
            self._register(b, e, int_value(extent), node)
        return lanes

    def _item(self, b: Buffer, indices: tuple[Expr, ...], node: Expr | None) -> None:
        """Verify that a constant index into a buffer of handles is in range, in every pass."""
        for e, d in zip(indices, b.shape, strict=True):
            item, extent = int_value(e), int_value(d)
            if item is not None and extent is not None and not 0 <= item < extent:
                hint = f"items are 0 to {extent - 1}" if extent else "it has no items"
                raise Malformed(f"item {item} of {b.name}, which has {extent}", hint, node)

    def _register(self, b: Buffer, e: Expr, size: int | None, node: Expr | None) -> None:
        """Verify one index of a register buffer: registers cannot be addressed at run time, so it
        must be constant after unrolling, or a Ramp of stride 1 that starts at such an index."""
        lanes, start = 1, e
        if isinstance(e, Ramp):
            lanes, start = e.lanes, e.base
            if int_value(e.stride) != 1:
                hint = f"Ramp(start, 1, {lanes}): a vector lies in neighbouring lanes"
                raise Malformed(f"register buffer {b.name} read with a stride", hint, node)
        if isinstance(start, IntImm):
            if size is not None and not 0 <= start.value <= size - lanes:
                hint = f"the dimension holds elements 0..{size - 1}"
                if size < lanes:
                    hint += f": no vector of {lanes} lanes"
                message = f"elements {start.value}..{start.value + lanes - 1} of {b!r}"
                raise Malformed(message, hint, node)
            return
        moving = [v for v in free_vars(e) if not self._vars.get(v)]
        if moving or has_load(e):
            name = moving[0].name if moving else "a load"
            hint = "a number or the variable of an unrolled loop; scope 'local' takes all"
            raise Malformed(f"register buffer {b.name} indexed by {name}", hint, node)


def _immediate(node: str, d: DType) -> str:
    """A hint: the expression for a literal of dtype `d`."""
    text = f"{node}(value, {d.name})"
    return f"{text if d.lanes == 1 else f'Broadcast({text}, {d.lanes})'} makes {d}"


def _of_bits(op: str, dtype: DType) -> str:
    """A hint for `and`/`or` of operands that are not bool, or a bit operator on floats."""
    if op in ON_BITS:
        casts = [name for name, (a, _) in BITCASTS.items() if a == dtype.name]
        return f"integers only: {casts[0] if casts else 'Cast'} makes an integer of {dtype}"
    hint = instead(dtype, BOOL.with_lanes(dtype.lanes))
    return hint if dtype.is_float else f"{hint}; bit{op} works on bits"


def _path_to(root: object, node: Expr) -> list[str] | None:
    """Field names that lead from `root` to `node` (by identity), outermost first, or None."""
    if root is node:
        return []
    items: list[tuple[str, object]] = []
    if isinstance(root, tuple):
        items = [(f"[{i}]", x) for i, x in enumerate(root)]
    elif isinstance(root, Expr):
        fields = getattr(type(root), "__dataclass_fields__", {})
        items = [(f".{name}", getattr(root, name)) for name in fields]
    for name, item in items:
        path = _path_to(item, node) if isinstance(item, (Expr, tuple)) else None
        if path is not None:
            return [name, *path]
    return None


_EXPRS: dict[type, Callable[..., DType]] = {
    Var: ExprVerifier._var,
    IntImm: ExprVerifier._int,
    FloatImm: ExprVerifier._float,
    Binary: ExprVerifier._binary,
    Unary: ExprVerifier._unary,
    Select: ExprVerifier._select,
    Cast: ExprVerifier._cast,
    Ramp: ExprVerifier._ramp,
    Broadcast: ExprVerifier._broadcast,
    Shuffle: ExprVerifier._shuffle,
    VectorReduce: ExprVerifier._vector_reduce,
    Intrin: ExprVerifier._intrin,
    Reduce: ExprVerifier._reduce,
    Load: ExprVerifier._load,
    AddressOf: ExprVerifier._address_of,
    CallExtern: ExprVerifier._call_extern,
}

"""Verifier of expressions: scopes, ranks, lane counts and dtypes."""

from __future__ import annotations

import re
from collections.abc import Callable

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import HANDLE, INT64, VOID, DType
from tensorkiln.ir.expr import (
    DEVICE_INSTRUCTIONS,
    LOGIC,
    REDUCE_BINARY,
    TILE_DOTS,
    Binary,
    CallExtern,
    Expr,
    IntImm,
    Intrin,
    Ramp,
    Reduce,
    Var,
    int_value,
)
from tensorkiln.ir.hints import among, fresh, index, instead, plural, unbound
from tensorkiln.ir.known_attrs import CALL_ATTRS, DEPENDENCIES, problem_of
from tensorkiln.ir.malformed import Malformed, one_element
from tensorkiln.ir.reach import Reach
from tensorkiln.ir.tiles import is_tile
from tensorkiln.ir.verify_device import check_instruction
from tensorkiln.ir.visit import children, free_vars, has_load


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
        return _RULES[type(e)](self, e)

    def _declared(self, e: Expr) -> DType:
        """Verify the operands, then the node by the rule of its class."""
        operands, guards = children(e), e.guards
        types = list(map(self.expr, operands[:guards] if guards else operands))
        if guards:
            with self._reach.conditional():
                types += map(self.expr, operands[guards:])
        fault = e.fault(*types)
        if fault is not None:
            raise Malformed(*fault, e)
        return e.dtype

    def _var(self, e: Var) -> DType:
        if e not in self._vars:
            hint = unbound(e.name, (v.name for v in self._vars))
            raise Malformed(f"{e.name} is not bound here", hint, e)
        return e.dtype

    def _binary(self, e: Binary) -> DType:
        # An address plus a number is the address of what lies after it.
        is_address = e.op == "add" and isinstance(e.a, AddressOf)
        first = self.address(e.a) if is_address else self.expr(e.a)
        if e.op in LOGIC:  # the second operand may not be computed (`guard_conditions`)
            with self._reach.conditional():
                second = self.expr(e.b)
        else:
            second = self.expr(e.b)
        fault = e.fault(first, second)
        if fault is not None:
            raise Malformed(*fault, e)
        return e.result(first)

    def _intrin(self, e: Intrin) -> DType:
        if e.name in TILE_DOTS:
            hint = "it is the value of a store to a tile, which it adds to"
            raise Malformed(f"{e.name} within another expression", hint, e)
        row = DEVICE_INSTRUCTIONS.get(e.name)
        if row is None:
            return self._declared(e)
        types = []
        for k, a in enumerate(e.args):
            if isinstance(a, Load) and k in row.memory:
                lanes = self._indices(a.buffer, a.indices, a, several=True)
                types.append(a.buffer.dtype.with_lanes(lanes))
            else:
                types.append(self.expr(a))
        fault = e.fault(*types)
        if fault is not None:
            raise Malformed(*fault, e)
        check_instruction(e)
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


def _no_expression(v: ExprVerifier, e: Expr) -> DType:
    # Each class once: Python may remember two of one name.
    names, name = dict.fromkeys(t.__name__ for t in Expr.__subclasses__()), type(e).__name__
    raise Malformed(f"{name} is not an expression", among(name, names), e)


class _Rules(dict[type, Callable[..., DType]]):
    """By class of node, what verifies it; others than expressions are refused."""

    def __missing__(self, cls: type) -> Callable[..., DType]:
        is_expression = issubclass(cls, Expr)
        return self.setdefault(cls, ExprVerifier._declared if is_expression else _no_expression)


# Nodes whose validity depends on what is around them.
_SCOPED: dict[type, Callable[..., DType]] = {
    Var: ExprVerifier._var,
    Binary: ExprVerifier._binary,
    Intrin: ExprVerifier._intrin,
    Reduce: ExprVerifier._reduce,
    Load: ExprVerifier._load,
    AddressOf: ExprVerifier._address_of,
    CallExtern: ExprVerifier._call_extern,
}
_RULES = _Rules(_SCOPED)

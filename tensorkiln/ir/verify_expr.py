"""What a well-formed expression is: names, ranks, lanes and dtypes that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, HANDLE, INT64, VOID, DType
from tensorkiln.ir.expr import (
    BINARY,
    BITCASTS,
    DOTS,
    INTRINSICS,
    REDUCE_BINARY,
    UNARY,
    AddressOf,
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    int_value,
)
from tensorkiln.ir.operators import ON_BITS
from tensorkiln.ir.visit import free_vars, has_load

_FAR = 1 << 63


class Malformed(Exception):
    """What is wrong, with its path, innermost step first. `node` is the expression at fault."""

    def __init__(self, message: str, node: Expr | None = None):
        self.message, self.node = message, node
        self.path: list[str] = []
        super().__init__(message)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Errors inside happen below the field `name`."""
    try:
        yield
    except Malformed as e:
        e.path.append(name)
        raise


class ExprVerifier:
    """What is in scope: variables (True: static), and buffers (True: may be stored to)."""

    def __init__(self) -> None:
        self._vars: dict[Var, bool] = {}
        self._buffers: dict[Buffer, bool] = {}

    # ---- expressions -------------------------------------------------------------------------

    def root(self, e: Expr, effect: bool = False) -> DType:
        """The dtype of a whole expression; errors get the path to the part at fault."""
        try:
            return self.extern(e) if effect and isinstance(e, CallExtern) else self.expr(e)
        except Malformed as error:
            if error.node is not None:
                error.path += reversed(_path_to(e, error.node) or [])
                error.node = None
            raise

    def scalar(self, e: Expr) -> DType:
        """The dtype of an expression that must have one lane."""
        found = self.root(e)
        if found.lanes != 1:
            raise Malformed(f"{found.lanes} lanes where one value is needed")
        return found

    def expr(self, e: Expr) -> DType:
        """The dtype, from the leaves up."""
        check = _EXPRS.get(type(e))
        if check is None:
            raise Malformed(f"{type(e).__name__} is not an expression", e)
        return check(self, e)

    def _var(self, e: Var) -> DType:
        if e not in self._vars:
            raise Malformed(f"{e.name} is not bound here", e)
        return e.dtype

    def _int(self, e: IntImm) -> DType:
        d = e.dtype
        if d.name == "int64" and d.lanes == 1 and -_FAR <= e.value < _FAR:
            return d
        low = 0 if d.is_unsigned else -(1 << (d.bits - 1))
        if d.is_float or d.lanes != 1 or not low <= e.value < low + (1 << d.bits):
            raise Malformed(f"{e.value} as {d}", e)
        return d

    def _float(self, e: FloatImm) -> DType:
        if not e.dtype.is_float or e.dtype.lanes != 1:
            raise Malformed(f"{e.value} as {e.dtype}", e)
        return e.dtype

    def _same(self, e: Expr, a: Expr, b: Expr, what: str) -> DType:
        x, y = self.expr(a), self.expr(b)
        if x is not y and x != y:
            raise Malformed(f"{what}: {x} against {y}", e)
        return x

    def _binary(self, e: Binary) -> DType:
        if e.op not in BINARY:
            raise Malformed(f"binary operator {e.op!r}", e)
        if e.op == "add" and e.a.dtype == HANDLE:
            return self._further(e)
        found = self._same(e, e.a, e.b, e.op)
        if (e.op in ("and", "or") and not found.is_bool) or (e.op in ON_BITS and found.is_float):
            raise Malformed(f"{e.op} of {found}", e)
        return BOOL.with_lanes(found.lanes) if BINARY[e.op][1] else found

    def _further(self, e: Binary) -> DType:
        """An address, some bytes further on."""
        self.address(e.a)
        if self.expr(e.b) != INT64:
            raise Malformed(f"an address plus {e.b.dtype}: bytes are an int64", e)
        return HANDLE

    def _unary(self, e: Unary) -> DType:
        if e.op not in UNARY:
            raise Malformed(f"unary operator {e.op!r}", e)
        found = self.expr(e.a)
        if (e.op == "not" and not found.is_bool) or (e.op == "sqrt" and not found.is_float):
            raise Malformed(f"{e.op} of {found}", e)
        return found

    def _select(self, e: Select) -> DType:
        cond, found = self.expr(e.cond), self._same(e, e.a, e.b, "select")
        if not cond.is_bool or cond.lanes not in (1, found.lanes):
            raise Malformed(f"select by {cond} among {found}", e)
        return found

    def _cast(self, e: Cast) -> DType:
        found = self.expr(e.a)
        if found.lanes != e.dtype.lanes:
            raise Malformed(f"cast of {found} to {e.dtype}", e)
        return e.dtype

    def _ramp(self, e: Ramp) -> DType:
        found = self._same(e, e.base, e.stride, "ramp")
        if not found.is_int or found.lanes != 1 or e.lanes < 1:
            raise Malformed(f"ramp of {e.lanes} lanes from {found}", e)
        return found.with_lanes(e.lanes)

    def _broadcast(self, e: Broadcast) -> DType:
        found = self.expr(e.a)
        if found.lanes != 1 or e.lanes < 1:
            raise Malformed(f"broadcast of {found} to {e.lanes} lanes", e)
        return found.with_lanes(e.lanes)

    def _shuffle(self, e: Shuffle) -> DType:
        found = self._same(e, e.a, e.b, "shuffle")
        if not e.lanes or not all(0 <= i < 2 * found.lanes for i in e.lanes):
            raise Malformed(f"lanes {e.lanes} of two {found}", e)
        return found.with_lanes(len(e.lanes))

    def _vector_reduce(self, e: VectorReduce) -> DType:
        if e.op not in REDUCE_BINARY and e.op not in REDUCE_BINARY.values():
            raise Malformed(f"reduction {e.op!r}", e)
        return self.expr(e.a).element

    def _intrin(self, e: Intrin) -> DType:
        if INTRINSICS.get(e.name) != len(e.args):
            raise Malformed(f"{e.name!r} with {len(e.args)} arguments", e)
        types = [self.expr(a) for a in e.args]
        if e.name in DOTS:
            lanes = types[0].lanes
            if types != [DType(name, lanes * count) for name, count in DOTS[e.name]]:
                raise Malformed(f"{e.name} of {', '.join(map(str, types))}", e)
            return e.dtype
        if any(t != types[0] for t in types):
            raise Malformed(f"{e.name} of {', '.join(map(str, types))}", e)
        needed = BITCASTS[e.name][0] if e.name in BITCASTS else types[0].name
        if types[0].name != needed:
            raise Malformed(f"{e.name} of {types[0]}", e)
        return e.dtype

    def _reduce(self, e: Reduce) -> DType:
        if e.op not in REDUCE_BINARY:
            raise Malformed(f"reduction {e.op!r}", e)
        for var, extent in e.axes:
            if self.expr(extent) != var.dtype or var.dtype.lanes != 1:
                raise Malformed(f"axis {var.name} is {var.dtype}, its extent is not", e)
            if var in self._vars:
                raise Malformed(f"{var.name} is bound again while in scope", e)
            self._vars[var] = False
        found = self.expr(e.value)
        for var, _ in e.axes:
            del self._vars[var]
        return found

    def _address_of(self, e: AddressOf) -> DType:
        raise Malformed("an address is an argument of a function only", e)

    def _call_extern(self, e: CallExtern) -> DType:
        if e.dtype == VOID:
            raise Malformed(f"{e.name} returns nothing: its call is no value", e)
        return self.extern(e)

    def extern(self, e: CallExtern) -> DType:
        """The dtype of a call of a C function, which may be void."""
        if not (e.name.isidentifier() and e.name.isascii()):
            raise Malformed(f"{e.name!r} is not the name of a C function", e)
        if e.dtype.lanes != 1 or e.dtype == HANDLE:
            raise Malformed(f"a C function that returns {e.dtype}", e)
        for a in e.args:
            if self.address(a).lanes != 1:
                raise Malformed(f"{a.dtype} as an argument of a C function", a)
        return e.dtype

    def address(self, e: Expr) -> DType:
        """The dtype of an argument, which may be the address of an element."""
        if not isinstance(e, AddressOf):
            return self.expr(e)
        if self._indices(e.buffer, e.indices, e) != 1 or e.buffer.scope == "register":
            raise Malformed("the address is that of one element in memory", e)
        return HANDLE

    def _load(self, e: Load) -> DType:
        return e.buffer.dtype.with_lanes(self._indices(e.buffer, e.indices, e))

    # ---- memory ------------------------------------------------------------------------------

    def _access(self, b: Buffer, indices: tuple[Expr, ...]) -> int:
        """Lanes of a statement's access."""
        try:
            return self._indices(b, indices, None)
        except Malformed as error:
            if error.node is not None:
                error.path += reversed(_path_to(indices, error.node) or [])
                error.path.append(".indices")
                error.node = None
            raise

    def _indices(self, b: Buffer, indices: tuple[Expr, ...], at: Expr | None) -> int:
        if b not in self._buffers:
            raise Malformed(f"buffer {b.name} is not bound here", at)
        if len(indices) != len(b.shape):
            raise Malformed(f"{len(indices)} indices for {b!r}", at)
        lanes = 1
        for e in indices:
            found = self.expr(e)
            if not found.is_int or (found.lanes != 1 and lanes != 1):
                types = ", ".join(str(x.dtype) for x in indices)
                raise Malformed(f"indices of {types} into {b!r}", at)
            lanes = max(lanes, found.lanes)
        if b.dtype == HANDLE:
            self._item(b, indices, at)
        if b.scope == "register":
            for e, extent in zip(indices, b.shape, strict=True):
                self._register(b, e, int_value(extent), at)
        return lanes

    def _item(self, b: Buffer, indices: tuple[Expr, ...], at: Expr | None) -> None:
        """Sets of storages are small and known: an index that is a number is in range."""
        for e, d in zip(indices, b.shape, strict=True):
            index, extent = int_value(e), int_value(d)
            if index is not None and extent is not None and not 0 <= index < extent:
                raise Malformed(f"item {index} of {b.name}, which has {extent}", at)

    def _register(self, b: Buffer, e: Expr, size: int | None, at: Expr | None) -> None:
        """Registers have no address: every index must be a number once loops are unrolled."""
        lanes, start = 1, e
        if isinstance(e, Ramp):
            lanes, start = e.lanes, e.base
            if int_value(e.stride) != 1:
                raise Malformed(f"register buffer {b.name} read with a stride", at)
        if isinstance(start, IntImm):
            if size is not None and not 0 <= start.value <= size - lanes:
                raise Malformed(f"elements {start.value}..{start.value + lanes - 1} of {b!r}", at)
            return
        moving = [v for v in free_vars(e) if not self._vars.get(v)]
        if moving or has_load(e):
            name = moving[0].name if moving else "a load"
            raise Malformed(f"register buffer {b.name} indexed by {name}", at)


def _path_to(root: object, node: Expr) -> list[str] | None:
    """Field names from `root` to the node that is `node`, outermost first."""
    if root is node:
        return []
    items: list[tuple[str, object]] = []
    if isinstance(root, tuple):
        items = [(f"[{i}]", x) for i, x in enumerate(root)]
    elif isinstance(root, Expr):
        fields = getattr(type(root), "__dataclass_fields__", {})
        items = [(f".{name}", getattr(root, name)) for name in fields]
    for name, item in items:
        found = _path_to(item, node) if isinstance(item, (Expr, tuple)) else None
        if found is not None:
            return [name, *found]
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

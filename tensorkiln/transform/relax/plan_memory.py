"""Give every intermediate tensor its place in one workspace.

    y = kernel(x)    ->   attrs homes = (("y", "workspace", 0), ...), workspace_bytes = ...

Row-major reshapes share their operand's memory. A kernel whose result may replace an operand that
dies there does so. Static tensors are placed largest first at the lowest offset that is free over
their lifetime; tensors of symbolic size reuse a dead one of provably equal size, else they follow.
A value that only waits while memory is fullest is computed just before it is read, where that makes
the workspace smaller: the shortcut of a residual block goes behind the block's first layers.

Needs: `lower_groups` (which operands a kernel may overwrite is written on it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.arith import prove_equal, simplify
from tensorkiln.base.errors import InternalError
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.expr import Expr, IntImm, as_expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Tuple,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc

ALIGN = 64


def plan_memory(mod: IRModule) -> IRModule:
    """Plan every graph function of the module."""
    return mod.map_graphs(lambda f: _smallest(_Plan(f, mod)).function())


def _smallest(plan: _Plan) -> _Plan:
    """The plan after every delay that makes it smaller."""
    while (total := int_value(plan.total)) is not None:
        tried = (_Plan(_delayed(plan.f, at), plan.mod) for at in plan.waiting())
        better = next((p for p in tried if (int_value(p.total) or 0) < total), None)
        if better is None:
            break
        plan = better
    return plan


def _delayed(f: Function, at: int) -> Function:
    """The function with one binding moved to just before the first that reads it."""
    b = f.bindings[at]
    rest = f.bindings[at + 1 :]
    reader = next(
        i for i, r in enumerate(rest) if isinstance(r.value, Call) and b.var in r.value.args
    )
    return replace(f, bindings=(*f.bindings[:at], *rest[:reader], b, *rest[reader:]))


@dataclass(slots=True, eq=False)
class _Storage:
    """Memory of one or more values: live from binding `start` to binding `end`."""

    size: Expr
    start: int
    end: int
    offset: Expr | None = None


class _Plan:
    def __init__(self, f: Function, mod: IRModule):
        self.f, self.mod = f, mod
        self.root: dict[RVar, Value] = {}
        self.storage: dict[RVar, _Storage] = {}
        self.homes: dict[RVar, tuple[str, AttrValue]] = {}
        self._find_homes()
        self._lifetimes()
        self.total = self._place()

    def _find_homes(self) -> None:
        """Parameters, results, and values that are views of others."""
        f = self.f
        for i, p in enumerate(f.params):
            self.homes[p] = ("arg", i)
        for b in f.bindings:
            call = b.value
            if isinstance(call, Call) and call.op == "reshape":
                self.root[b.var] = self._root(call.args[0])
            elif not (isinstance(call, Call) and isinstance(call.callee, GlobalRef)):
                raise InternalError(f"{f.name}: {b.var} is not a kernel call or a view")
        for j, v in enumerate(_fields(f.result)):
            root = self._root(v)
            if not isinstance(root, RVar) or root in self.homes:
                raise InternalError(f"{f.name}: result {j} has no memory of its own")
            self.homes[root] = ("arg", len(f.params) + j)

    def function(self) -> Function:
        """The function with the plan on it."""
        f = self.f
        homes = [(v.name, kind, at) for v, (kind, at) in self.homes.items()]
        for v, s in self.storage.items():
            homes.append((v.name, "workspace", _value(s.offset)))
        names = [h[0] for h in homes]
        if len(set(names)) != len(names):
            raise InternalError(f"{f.name}: two values share a name")
        attrs = dict(f.attrs) | {"homes": tuple(homes), "workspace_bytes": _value(self.total)}
        return replace(f, attrs=Attrs.of(**attrs))

    def _root(self, v: Value) -> Value:
        return self.root.get(v, v) if isinstance(v, RVar) else v

    # -- lifetimes -----------------------------------------------------------------------

    def _lifetimes(self) -> None:
        last: dict[Value, int] = {}
        for i, b in enumerate(self.f.bindings):
            assert isinstance(b.value, Call)
            for a in b.value.args:
                if isinstance(a, RVar):
                    last[self._root(a)] = i
        for i, b in enumerate(self.f.bindings):
            if b.var in self.root or b.var in self.homes:
                continue
            call = b.value
            assert isinstance(call, Call)
            size = _bytes(b.var.tensor)
            reused = self._in_place(call, i, last, size)
            if reused is not None:
                reused.end = last.get(b.var, i)
                self.storage[b.var] = reused
            else:
                self.storage[b.var] = _Storage(size, i, last.get(b.var, i))

    def _in_place(self, call: Call, i: int, last: dict[Value, int], size: Expr) -> _Storage | None:
        """The storage of an operand that dies here and that the kernel may overwrite."""
        assert isinstance(call.callee, GlobalRef)
        kernel = self.mod[call.callee.name]
        if not isinstance(kernel, PrimFunc):
            return None  # an external's: nothing is known about the order of its accesses
        for k in kernel.inplace:
            a = self._root(call.args[k])
            s = self.storage.get(a) if isinstance(a, RVar) else None
            read_twice = sum(self._root(x) is a for x in call.args) > 1
            dies = s is not None and s.end == i == last[a] and not read_twice
            if s is not None and dies and prove_equal(s.size, size):
                return s
        return None

    def waiting(self) -> list[int]:
        """Bindings of values that nothing reads before, or when, memory is fullest."""
        storages = set(self.storage.values())
        sizes = [(s.start, s.end, int_value(s.size) or 0) for s in storages]
        live = [sum(n for a, e, n in sizes if a <= i <= e) for i in range(len(self.f.bindings))]
        fullest = max(range(len(live)), key=live.__getitem__, default=0)
        first: dict[Value, int] = {}
        for i, b in enumerate(self.f.bindings):
            for a in b.value.args if isinstance(b.value, Call) else ():
                first.setdefault(a, i)
        made = [(i, b.var) for i, b in enumerate(self.f.bindings) if b.var in self.storage]
        return [i for i, v in made if i < fullest < first.get(v, 0)]

    # -- placement -----------------------------------------------------------------------

    def _place(self) -> Expr:
        storages = list(dict.fromkeys(self.storage.values()))
        fixed = [s for s in storages if int_value(s.size) is not None]
        fixed.sort(key=lambda s: (-(int_value(s.size) or 0), s.start))
        placed: list[tuple[int, int, _Storage]] = []
        end = 0
        for s in fixed:
            size = int_value(s.size) or 0
            at = 0
            for lo, hi, other in sorted(placed, key=lambda p: p[0]):
                if other.end < s.start or s.end < other.start:
                    continue
                if at + size <= lo:
                    break
                at = max(at, hi)
            s.offset = as_expr(at)
            placed.append((at, at + size, s))
            end = max(end, at + size)
        return self._place_symbolic([s for s in storages if int_value(s.size) is None], end)

    def _place_symbolic(self, storages: list[_Storage], start: int) -> Expr:
        free_after: list[_Storage] = []
        total: Expr = as_expr(start)
        for s in sorted(storages, key=lambda s: s.start):
            match = next(
                (o for o in free_after if o.end < s.start and prove_equal(o.size, s.size)), None
            )
            if match is not None:
                free_after.remove(match)
                s.offset = match.offset
            else:
                s.offset = total
                total = simplify(total + s.size)
            free_after.append(s)
        return total


def _fields(v: Value) -> tuple[Value, ...]:
    return v.fields if isinstance(v, Tuple) else (v,)


def _bytes(t: TensorType) -> Expr:
    """Bytes of a tensor in memory, rounded up to whole cache lines."""
    n: Expr = IntImm(t.dtype.bytes)
    for d in t.physical_shape:
        n = n * d
    return simplify((simplify(n) + (ALIGN - 1)) // ALIGN * ALIGN)


def _value(e: Expr | None) -> AttrValue:
    """Integers as themselves, symbolic sizes as expressions."""
    n = int_value(e) if e is not None else None
    return e if n is None else n

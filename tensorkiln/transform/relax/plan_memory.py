"""Give every intermediate tensor its place in one workspace.

    y = kernel(x)    ->   attrs homes = (("y", "workspace", 0), ...), workspace_bytes = ...

Each of several results of a kernel has a place of its own, read or not. Row-major reshapes share
their operand's memory, and operands of a concatenation that `fuse_ops` left an operator lie side by
side, where the result is. A kernel whose result may replace an operand that dies there does so, and
goes behind the other readers of that operand where this makes the workspace smaller. A value that
only waits while memory is fullest is computed just before it is read, where that does: the shortcut
of a residual block goes behind the block's first layers.

Needs: `lower_groups` (which operands a kernel may overwrite is written on it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensorkiln.arith import prove_equal, simplify
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.transform.relax.adjacent_concats import offsets_within
from tensorkiln.transform.relax.results import made_values, with_all_items
from tensorkiln.transform.relax.storages import Part, Storage, place_storages

ALIGN = 64


def plan_memory(mod: IRModule) -> IRModule:
    """Plan every graph function of the module."""
    return mod.map_graphs(lambda f: _smallest(_Plan(with_all_items(f), mod)).function())


def _smallest(plan: _Plan) -> _Plan:
    """The plan after every change of order that makes it smaller."""
    while (total := int_value(plan.total)) is not None:
        tried = (_Plan(_moved(plan.f, at, to), plan.mod) for at, to in plan.moves())
        better = next((p for p in tried if (int_value(p.total) or 0) < total), None)
        if better is None:
            break
        plan = better
    return plan


def _moved(f: Function, at: int, to: int) -> Function:
    """The function with binding `at` moved to just before binding `to`."""
    b = f.bindings
    if to < at:
        return replace(f, bindings=(*b[:to], b[at], *b[to:at], *b[at + 1 :]))
    return replace(f, bindings=(*b[:at], *b[at + 1 : to], b[at], *b[to:]))


class _Plan:
    def __init__(self, f: Function, mod: IRModule):
        self.f, self.mod = f, mod
        self.made = made_values(f)
        self.homes: dict[RVar, tuple[str, AttrValue]] = {}
        # Values that share memory: reshapes with their operand, operands with a concatenation,
        # from a byte of it. `owners` are the kernels' results among which a value is.
        self.view_of: dict[RVar, Value] = {}
        self.within: dict[RVar, tuple[RVar, int]] = {}
        self.owners: dict[Value, tuple[RVar, ...]] = {}
        # Where values lie that are within no other: byte `at` of a storage.
        self.places: dict[RVar, tuple[Storage, int]] = {}
        self._find_homes()
        self._lifetimes()
        self.storages = list(dict.fromkeys(s for s, _ in self.places.values()))
        self.total = place_storages(self.storages)

    def _find_homes(self) -> None:
        """Parameters, results, and values that share the memory of others."""
        f = self.f
        for i, p in enumerate(f.params):
            self.homes[p] = ("arg", i)
        for b in f.bindings:
            call = b.value
            if isinstance(call, Call) and call.op == "reshape":
                self.view_of[b.var] = self._root(call.args[0])
                self.owners[b.var] = self._owners(call.args[0])
            elif isinstance(call, Call) and call.op == "concat":
                self.owners[b.var] = tuple(v for a in call.args for v in self._owners(a))
                for a, at in zip(call.args, offsets_within(b.var.tensor, call), strict=True):
                    assert isinstance(a, RVar)
                    self.within[a] = (b.var, at)
            elif b.var not in self.made and not isinstance(call, TupleItem):
                what = f"{call.op}(...)" if isinstance(call, Call) else type(call).__name__
                raise UserError(
                    f"{b.var.name} = {what} is no kernel call and no view: run fuse_ops, "
                    "lower_groups before plan_memory",
                    code="not-lowered",
                    where=f.name,
                    hint="pipeline.relax_passes is the list, in its order",
                )
        for j, v in enumerate(_fields(f.result)):
            root = self._root(v)
            if not isinstance(root, RVar) or root in self.homes or self._owners(root) != (root,):
                raise InternalError(f"{f.name}: result {j} has no memory of its own")
            self.homes[root] = ("arg", len(f.params) + j)

    def function(self) -> Function:
        """The function with the plan on it."""
        f = self.f
        homes = [(v.name, kind, at) for v, (kind, at) in self.homes.items()]
        for v in (v for made in self.made.values() for v in made):
            if v not in self.homes:
                storage, at = self._place(v)
                assert storage.offset is not None
                homes.append((v.name, "workspace", _value(simplify(storage.offset + at))))
        names = [h[0] for h in homes]
        if len(set(names)) != len(names):
            raise InternalError(f"{f.name}: two values share a name")
        attrs = dict(f.attrs) | {"homes": tuple(homes), "workspace_bytes": _value(self.total)}
        return replace(f, attrs=Attrs.of(**attrs))

    def _root(self, v: Value) -> Value:
        return self.view_of.get(v, v) if isinstance(v, RVar) else v

    def _owners(self, v: Value) -> tuple[RVar, ...]:
        return self.owners.get(v, (v,) if isinstance(v, RVar) else ())

    def _place(self, v: RVar) -> tuple[Storage, int]:
        """Where a value lies; a storage of its own when nobody has said yet."""
        at = 0
        while v in self.within:
            v, further = self.within[v]
            at += further
        storage, start = self.places.setdefault(v, (Storage(), 0))
        return storage, start + at

    # -- lifetimes -----------------------------------------------------------------------

    def _lifetimes(self) -> None:
        last: dict[RVar, int] = {}
        for i, b in enumerate(self.f.bindings):
            args = b.value.args if isinstance(b.value, Call) else ()
            last |= {v: i for a in args for v in self._owners(a)}
        dying: dict[int, set[RVar]] = {}
        for v, i in last.items():
            dying.setdefault(i, set()).add(v)
        for i, b in enumerate(self.f.bindings):
            for v in self.made.get(b.var, ()):
                if v in self.homes:
                    continue
                call, start = b.value, i
                assert isinstance(call, Call)
                replaced = self._replaced(v, call, dying.get(i, set()))
                if replaced is not None:
                    self.places[v] = self._place(replaced)
                    start = i + 1  # until then it is the operand's
                storage, at = self._place(v)
                storage.parts.append(Part(at, _bytes(v.tensor), start, last.get(v, i)))

    def _replaced(self, var: RVar, call: Call, dying: set[RVar]) -> RVar | None:
        """The operand that dies here and whose memory is the result's."""
        if var in self.within:
            return None
        for k in self._inplace(call):
            a = self._root(call.args[k])
            owners = set(self._owners(a))
            if not isinstance(a, RVar) or not owners <= dying or owners & set(self.homes):
                continue
            read_twice = sum(bool(owners & set(self._owners(x))) for x in call.args) > 1
            if not read_twice and _holds(_bytes(a.tensor), _bytes(var.tensor)):
                return a
        return None

    def _inplace(self, call: Call) -> tuple[int, ...]:
        """Operands that the kernel may overwrite. Nothing is known about the order in which an
        external's accesses memory."""
        if not isinstance(call.callee, GlobalRef):
            return ()
        kernel = self.mod[call.callee.name]
        return kernel.inplace if isinstance(kernel, PrimFunc) else ()

    # -- order ---------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[int, int]]:
        """Bindings that might better stand just before another one: (which, before which)."""
        parts = [p for s in self.storages for p in s.parts]
        live = [sum(p.bytes for p in parts if p.start <= i <= p.end)
                for i in range(len(self.f.bindings))]  # fmt: skip
        fullest = max(range(len(live)), key=live.__getitem__, default=0)
        made: dict[Value, int] = {}
        readers: dict[Value, list[int]] = {}
        for i, b in enumerate(self.f.bindings):
            made[b.var] = i
            for a in b.value.args if isinstance(b.value, Call) else ():
                readers.setdefault(a, []).append(i)
        for i, b in enumerate(self.f.bindings):
            call, first = b.value, readers.get(b.var, [0])[0]
            if b.var in self.homes or self.made.get(b.var) != (b.var,):
                continue
            assert isinstance(call, Call)
            if i < fullest < first:  # nothing reads it before, or when, memory is fullest
                yield i, first
            ready = 1 + max((made.get(a, -1) for a in call.args), default=-1)
            for k in self._inplace(call):
                a = call.args[k]
                behind = 1 + max((r for r in readers[a] if r != i), default=ready - 1)
                smaller = _bytes(a.type) != _bytes(b.var.type)  # type: ignore[arg-type]
                if smaller and ready <= behind <= first and behind not in (i, i + 1):
                    yield i, behind


def _fields(v: Value) -> tuple[Value, ...]:
    return v.fields if isinstance(v, Tuple) else (v,)


def _bytes(t: TensorType) -> Expr:
    """Bytes of a tensor in memory, rounded up to whole cache lines."""
    n: Expr = IntImm(t.dtype.bytes)
    for d in t.physical_shape:
        n = n * d
    return simplify((simplify(n) + (ALIGN - 1)) // ALIGN * ALIGN)


def _holds(memory: Expr, size: Expr) -> bool:
    """Whether `size` bytes fit: as far as can be told."""
    have, want = int_value(memory), int_value(size)
    if have is None or want is None:
        return prove_equal(memory, size)
    return want <= have


def _value(e: Expr) -> AttrValue:
    """Integers as themselves, symbolic sizes as expressions."""
    n = int_value(e)
    return e if n is None else n

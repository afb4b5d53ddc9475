"""Assign every intermediate tensor an offset in one workspace.

    y = kernel(x)    ->   attrs homes = (("y", "workspace", 0), ...), workspace_bytes = ...

A home is (name, "workspace", byte offset) or (name, "arg", number of the parameter or result). Each
result of a kernel with several has its own memory, even if it is unused. A row-major reshape shares
its operand's memory; the operands of a concatenation that `fuse_ops` has left as an operator lie
side by side in the memory of its result. A result overwrites an operand whose last reader is the
kernel, if the kernel permits it.

Bindings are reordered if that makes the workspace smaller. A kernel that could overwrite an operand
is moved behind the operand's other readers. A value that is live but not read while most memory is
in use is computed just before its first reader: in a residual block, the shortcut's layer moves
behind the first layers of the main path.

Needs: `lower_groups`, which records on each kernel the operands that it may overwrite.
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
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.transform.relax.adjacent_concats import offsets_within
from tensorkiln.transform.relax.results import made_values, with_all_items
from tensorkiln.transform.relax.storages import Part, Storage, place_storages

ALIGN = 64


def plan_memory(mod: IRModule) -> IRModule:
    """Plan the memory of every graph function.

    Raises UserError (code `not-lowered`) if one has an operator that is not a kernel call, a
    reshape or a concatenation.
    """
    return mod.map_graphs(lambda f: _smallest(_Plan(with_all_items(f), mod)).function())


def _smallest(plan: _Plan) -> _Plan:
    """The plan after moving bindings greedily as long as one move makes the workspace smaller.

    A workspace of symbolic size is left as it is.
    """
    while (total := int_value(plan.total)) is not None:
        tried = (_Plan(_moved(plan.f, at, to), plan.mod) for at, to in plan.moves())
        better = next((p for p in tried if (int_value(p.total) or 0) < total), None)
        if better is None:
            break
        plan = better
    return plan


def _moved(f: Function, at: int, to: int) -> Function:
    """The function with binding `at` moved to just before binding `to`, in the old numbering."""
    b = f.bindings
    if to < at:
        return replace(f, bindings=(*b[:to], b[at], *b[to:at], *b[at + 1 :]))
    return replace(f, bindings=(*b[:at], *b[at + 1 : to], b[at], *b[to:]))


class _Plan:
    def __init__(self, f: Function, mod: IRModule):
        self.f, self.mod = f, mod
        self.made = made_values(f)
        self.homes: dict[RVar, tuple[str, AttrValue]] = {}
        # Values that share memory. `view_of`: a reshape -> the value that it is a view of.
        # `within`: an operand of a concatenation -> (the result, byte offset in it). `owners`: a
        # value -> the kernel results in whose memory it lies (several for a concatenation).
        self.view_of: dict[RVar, Value] = {}
        self.within: dict[RVar, tuple[RVar, int]] = {}
        self.owners: dict[Value, tuple[RVar, ...]] = {}
        # A value that is not within another -> (its storage, byte offset in the storage).
        self.places: dict[RVar, tuple[Storage, int]] = {}
        self._find_homes()
        self._lifetimes()
        self.storages = list(dict.fromkeys(s for s, _ in self.places.values()))
        self.total = place_storages(self.storages)

    def _find_homes(self) -> None:
        """Find the homes of parameters and results, and the values that share memory."""
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
                    f"{b.var.name} = {what} is neither a kernel call nor a view: run fuse_ops, "
                    "lower_groups before plan_memory",
                    code="not-lowered",
                    where=f.name,
                    hint="pipeline.relax_passes lists the passes in order",
                )
        for j, v in enumerate(_fields(f.result)):
            root = self._root(v)
            if not isinstance(root, RVar) or root in self.homes or self._owners(root) != (root,):
                raise InternalError(f"{f.name}: result {j} has no memory of its own")
            self.homes[root] = ("arg", len(f.params) + j)

    def function(self) -> Function:
        """The function with the plan as its attributes `homes` and `workspace_bytes`."""
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
        """(storage, byte offset) of a value; a new storage if it has none yet."""
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
                    start = i + 1  # up to binding i, the operand's part covers the memory
                storage, at = self._place(v)
                storage.parts.append(Part(at, _bytes(v.tensor), start, last.get(v, i)))

    def _replaced(self, var: RVar, call: Call, dying: set[RVar]) -> RVar | None:
        """The operand of `call` whose memory its result `var` takes over, or None.

        `dying` are the values whose last reader is `call`. The operand must be one of them, not a
        parameter or result of the function, read by no other operand, and at least as large.
        """
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
        """The operands that the kernel may overwrite: none for a kernel of an external code
        generator, whose order of memory accesses is unknown."""
        if not isinstance(call.callee, GlobalRef):
            return ()
        kernel = self.mod[call.callee.name]
        return kernel.inplace if isinstance(kernel, TensorProgram) else ()

    # -- order ---------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[int, int]]:
        """Yield moves that may make the workspace smaller: (binding, binding to put it before)."""
        parts = [p for s in self.storages for p in s.parts]
        live = [
            sum(p.bytes for p in parts if p.start <= i <= p.end)
            for i in range(len(self.f.bindings))
        ]
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
            if i < fullest < first:  # live, but not read, when the most memory is in use
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
    """Whether `size` bytes fit into `memory` bytes; symbolic sizes must be proved equal."""
    have, want = int_value(memory), int_value(size)
    if have is None or want is None:
        return prove_equal(memory, size)
    return want <= have


def _value(e: Expr) -> AttrValue:
    """A size as an attribute: an int, or an expression if it is symbolic."""
    n = int_value(e)
    return e if n is None else n

"""Assign every intermediate tensor an offset in one workspace, or in pools of memory.

    y = kernel(x)    ->   attrs homes = (("y", "workspace", 0), ...), workspace_bytes = ...

A home is (name, "workspace", byte offset) or (name, "arg", number of the parameter or result). For
a target with pools of memory (`PlanMemory`) it is (name, the pool's name, byte offset), and an
attribute pools = ((name, bytes, alignment), ...) takes the place of workspace_bytes. The memory of
a device that has its own is a pool too, called by the device's key, beside the workspace. Each
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

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from tensorkiln.arith import prove_equal, simplify
from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import bound
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.conditions import conditions_of
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    TupleItem,
    Value,
)
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.tensor_bytes import bytes_of
from tensorkiln.ir.visit import free_vars
from tensorkiln.kernels import VIEWS
from tensorkiln.target import MemoryPool, Target, accelerators, cpu_target
from tensorkiln.transform.relax.adjacent_concats import offsets_within
from tensorkiln.transform.relax.pools import divide
from tensorkiln.transform.relax.results import made_values, with_all_items
from tensorkiln.transform.relax.storages import StoragePart, StorageParts, place_storages

ALIGN = 64


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Plan the memory of every graph function, in the pools of memory that a CPU's target lists.

    Each value gets a place in the fastest pool in which it fits (`transform/relax/pools.py`). A
    plan may exceed a pool, which `compile` then refuses. A symbolic size counts as its upper bound
    where the function's `assumes` give one. Raises UserError (code `not-lowered`) if a function has
    an operator other than kernel calls, reshapes and concatenations.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The module whose graph functions have the attributes `homes`, and `workspace_bytes` or
        `pools`."""
        ram = tuple(p for p in cpu_target(self.target).memory if p.kind == "ram")
        accelerator_keys = accelerators(self.target)
        if not ram:
            return mod.map_graphs(lambda f: _planned(f, mod, accelerator_keys))
        if accelerator_keys:
            raise UnsupportedError(
                "a target has pools of memory for its CPU, or devices with memory of their own",
                where="target.host.memory",
                hint="leave the pools out",
            )
        return mod.map_graphs(lambda f: _pooled(with_all_items(f), mod, ram))


def plan_memory(mod: IRModule) -> IRModule:
    """`PlanMemory` for a target without pools: all values in one workspace."""
    return mod.map_graphs(lambda f: _planned(f, mod, ()))


def _planned(f: Function, mod: IRModule, accelerator_keys: Collection[str]) -> Function:
    return _smallest(_Plan(with_all_items(f), mod, _lines, accelerator_keys)).function()


def _pooled(f: Function, mod: IRModule, ram: tuple[MemoryPool, ...]) -> Function:
    return _smallest(_Plan(f, mod, _Bytes(f))).pooled(ram)


class _Bytes:
    """Bytes of tensors in plans of pools: exact, not rounded up to cache lines; for a symbolic
    size, its upper bound. Without an upper bound, whole cache lines."""

    def __init__(self, f: Function):
        types = [p.tensor for p in f.params] + [b.var.type for b in f.bindings]
        dims = [d for t in types if isinstance(t, TensorType) for d in t.shape]
        self.bounds = Bounds.dims([v for d in dims for v in free_vars(d)])
        for condition in conditions_of(f):
            self.bounds = self.bounds.given(condition.holds)

    def __call__(self, t: TensorType) -> Expr:
        size = _exact(t)
        upper = bound(size, self.bounds)[1]
        return _lines(t) if upper is None else IntImm(upper)


def _smallest(plan: _Plan) -> _Plan:
    """The plan after moving bindings greedily as long as one move makes the workspace smaller.

    A workspace of symbolic size is left as it is.
    """
    while (total := int_value(plan.total)) is not None:
        tried = (
            _Plan(_moved(plan.f, source, to), plan.mod, plan.size, plan.accelerator_keys)
            for source, to in plan.moves()
        )
        better = next((p for p in tried if (int_value(p.total) or 0) < total), None)
        if better is None:
            break
        plan = better
    return plan


def _moved(f: Function, source: int, to: int) -> Function:
    """The function with binding `source` moved to just before binding `to`, in old numbers."""
    b = f.bindings
    if to < source:
        return replace(f, bindings=(*b[:to], b[source], *b[to:source], *b[source + 1 :]))
    return replace(f, bindings=(*b[:source], *b[source + 1 : to], b[source], *b[to:]))


class _Plan:
    """The plan of one function. `size` gives the bytes to plan for a tensor; `accelerator_keys` are
    the devices with memory of their own, each of which is a pool."""

    def __init__(
        self,
        f: Function,
        mod: IRModule,
        size: Callable[[TensorType], Expr],
        accelerator_keys: Collection[str] = (),
    ):
        self.f, self.mod, self.size, self.accelerator_keys = f, mod, size, accelerator_keys
        self.results = made_values(f)
        self.homes: dict[RVar, tuple[str, AttrValue]] = {}
        # Values that share memory. `view_of`: a reshape -> the value that it is a view of.
        # `within`: an operand of a concatenation -> (the result, byte offset in it). `owners`: a
        # value -> the kernel results in whose memory it lies (several for a concatenation).
        self.view_of: dict[RVar, Value] = {}
        self.within: dict[RVar, tuple[RVar, int]] = {}
        self.owners: dict[Value, tuple[RVar, ...]] = {}
        # A value that is not within another -> (its storage, byte offset in the storage).
        self.places: dict[RVar, tuple[StorageParts, int]] = {}
        self._find_homes()
        self._lifetimes()
        self.storages = list(dict.fromkeys(s for s, _ in self.places.values()))
        self.total = place_storages(s for s in self.storages if not s.pool)
        self.device_totals = {
            key: place_storages(s for s in self.storages if s.pool == key)
            for key in accelerator_keys
        }

    def _find_homes(self) -> None:
        """Find the homes of parameters and results, and the values that share memory."""
        f = self.f
        for i, p in enumerate(f.params):
            self.homes[p] = ("arg", i)
        for b in f.bindings:
            call = b.value
            if isinstance(call, Call) and call.op in VIEWS:
                self.view_of[b.var] = self._root(call.args[0])
                self.owners[b.var] = self._owners(call.args[0])
            elif isinstance(call, Call) and call.op == "concat":
                self.owners[b.var] = tuple(v for a in call.args for v in self._owners(a))
                for a, offset in zip(call.args, offsets_within(b.var.tensor, call), strict=True):
                    assert isinstance(a, RVar)
                    self.within[a] = (b.var, offset)
            elif b.var not in self.results and not isinstance(call, TupleItem):
                text = f"{call.op}(...)" if isinstance(call, Call) else type(call).__name__
                raise UserError(
                    f"{b.var.name} = {text} is neither a kernel call nor a view: run fuse_ops, "
                    "lower_groups before plan_memory",
                    code="not-lowered",
                    where=f.name,
                    hint="pipeline.relax_passes lists the passes in order",
                )
        for j, v in enumerate(f.results):
            root = self._root(v)
            if not isinstance(root, RVar) or root in self.homes or self._owners(root) != (root,):
                raise InternalError(f"{f.name}: result {j} has no memory of its own")
            self.homes[root] = ("arg", len(f.params) + j)

    def function(self) -> Function:
        """The function with the plan as its attributes `homes` and `workspace_bytes`."""
        sizes = {key: _value(total) for key, total in self.device_totals.items()}
        pools = tuple((key, size, ALIGN) for key, size in sizes.items() if size != 0)
        return self._with(workspace_bytes=_value(self.total), **({"pools": pools} if pools else {}))

    def pooled(self, ram: tuple[MemoryPool, ...]) -> Function:
        """The function with its values in these pools, as its attributes `homes` and `pools`."""
        self._measure_traffic()
        rows = [(p.pool.name, _value(p.size), p.pool.align) for p in divide(self.storages, ram)]
        return self._with(pools=tuple(row for row in rows if row[1] != 0))

    def _with(self, **sizes: AttrValue) -> Function:
        f = self.f
        homes = [(v.name, kind, position) for v, (kind, position) in self.homes.items()]
        for v in (v for results in self.results.values() for v in results):
            if v not in self.homes:
                storage, offset = self._place(v)
                assert storage.offset is not None
                kind = storage.pool or "workspace"
                homes.append((v.name, kind, _value(simplify(storage.offset + offset))))
        names = [h[0] for h in homes]
        if len(set(names)) != len(names):
            raise InternalError(f"{f.name}: two values share a name")
        return replace(f, attrs=Attrs.of(**dict(f.attrs) | {"homes": tuple(homes), **sizes}))

    def _measure_traffic(self) -> None:
        """Count the bytes that kernels read and write in each storage."""
        for b in self.f.bindings:
            reads = [v for a in _arguments(b) for v in self._owners(a)]
            for v in (*reads, *self.results.get(b.var, ())):
                if v not in self.homes and isinstance(v.type, TensorType):
                    self._place(v)[0].traffic += int_value(self.size(v.type)) or 0

    def _root(self, v: Value) -> Value:
        return self.view_of.get(v, v) if isinstance(v, RVar) else v

    def _owners(self, v: Value) -> tuple[RVar, ...]:
        return self.owners.get(v, (v,) if isinstance(v, RVar) else ())

    def _place(self, v: RVar) -> tuple[StorageParts, int]:
        """(storage, byte offset) of a value, in a new storage if it has no place yet."""
        offset = 0
        while v in self.within:
            v, further = self.within[v]
            offset += further
        storage, start = self.places.setdefault(v, (StorageParts(), 0))
        return storage, start + offset

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
            for v in self.results.get(b.var, ()):
                if v in self.homes:
                    continue
                call, start = b.value, i
                assert isinstance(call, Call)
                replaced = self._replaced(v, call, dying.get(i, set()))
                if replaced is not None:
                    self.places[v] = self._place(replaced)
                    start = i + 1  # up to binding i, the operand's part covers the memory
                storage, offset = self._place(v)
                storage.pool = self._memory(call)
                storage.parts.append(
                    StoragePart(offset, self.size(v.tensor), start, last.get(v, i))
                )

    def _memory(self, call: Call) -> str:
        """The device in whose memory a kernel has its results, empty for the host."""
        if not self.accelerator_keys or not isinstance(call.callee, GlobalRef):
            return ""
        kernel = self.mod[call.callee.name]
        key = str(kernel.attrs.get("target", ""))
        if isinstance(kernel, TensorProgram) and kernel.copies is not None:
            key = kernel.copies[1]
        return key if key in self.accelerator_keys else ""

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
            if not read_twice and self._holds(a.tensor, var.tensor):
                return a
        return None

    def _holds(self, memory: TensorType, t: TensorType) -> bool:
        """Whether a tensor fits into the memory of another; symbolic sizes must be proved equal."""
        if memory.static_shape() is None or t.static_shape() is None:
            return prove_equal(_lines(memory), _lines(t))
        have, want = int_value(self.size(memory)), int_value(self.size(t))
        return have is not None and want is not None and want <= have

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
        number: dict[Value, int] = {}
        readers: dict[Value, list[int]] = {}
        for i, b in enumerate(self.f.bindings):
            number[b.var] = i
            for a in b.value.args if isinstance(b.value, Call) else ():
                readers.setdefault(a, []).append(i)
        for i, b in enumerate(self.f.bindings):
            call, first = b.value, readers.get(b.var, [0])[0]
            if b.var in self.homes or self.results.get(b.var) != (b.var,):
                continue
            assert isinstance(call, Call)
            if i < fullest < first:  # live, but not read, when the most memory is in use
                yield i, first
            ready = 1 + max((number.get(a, -1) for a in call.args), default=-1)
            for k in self._inplace(call):
                a = call.args[k]
                behind = 1 + max((r for r in readers[a] if r != i), default=ready - 1)
                smaller = self.size(a.type) != self.size(b.var.type)  # type: ignore[arg-type]
                if smaller and ready <= behind <= first and behind not in (i, i + 1):
                    yield i, behind


def _arguments(b: Binding) -> tuple[Value, ...]:
    """The operands of a kernel's call; none for a view, which reads nothing."""
    call = b.value
    return call.args if isinstance(call, Call) and isinstance(call.callee, GlobalRef) else ()


def _exact(t: TensorType) -> Expr:
    """Bytes of a tensor in memory."""
    return simplify(bytes_of(t.dtype, t.physical_shape))


def _lines(t: TensorType) -> Expr:
    """Bytes of a tensor in memory, rounded up to whole cache lines."""
    return simplify((_exact(t) + (ALIGN - 1)) // ALIGN * ALIGN)


def _value(e: Expr) -> AttrValue:
    """A size as an attribute: an int, or an expression if it is symbolic."""
    n = int_value(e)
    return e if n is None else n

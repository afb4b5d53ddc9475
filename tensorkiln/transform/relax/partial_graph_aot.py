"""Split a planned graph function into one that allocates its workspace, one that runs its kernels,
and one that calls these two.

    main(x) [homes, workspace_bytes]: h = k1(x, w); y = k2(h); return y
    ->
    main_init():  storage0 = alloc_storage(size=4096); return (storage0,)
    main(x):      storages = call_packed("alloc_cached_storage_set", main_init, key="main")
                  y = main_run(x, storages, (w,)); return y
    T.prim_func main_run(x, storages, constants, y):
                  T.call(k1, x, constants[0], storages[0]); T.call(k2, storages[0], y)

Each pool of memory (`PlanMemory`) is a storage of its own: storage1 =
alloc_storage(size=4096, pool="sram", align=8).
The storages are allocated once per executor and kept; `main_run` allocates nothing and loads the
addresses from `storages` and `constants` itself. Without intermediate values there is no
`main_init`, and without constants `main_run` has no such parameter. Symbolic dimensions are numbers
that `main_init` and `main_run` take after all other parameters.

Needs: `plan_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import prove
from tensorkiln.base.errors import UserError
from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.conditions import SizeCondition, conditions_of, with_conditions
from tensorkiln.ir.dtype import HANDLE
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, binary
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.planned import CACHED_STORAGE_SET
from tensorkiln.ir.relax import (
    STORAGE_ALIGN,
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    ObjectType,
    RVar,
    ShapeType,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Value,
)
from tensorkiln.ir.stmt import CallKernel, Param, PrimFunc, seq
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.transform.relax.results import made_values

_WORKSPACE = "workspace"  # the kind of a home in no pool
_PLAN = ("homes", "pools", "workspace_bytes")


def partial_graph_aot(mod: IRModule) -> IRModule:
    """Split every graph function that `plan_memory` has planned.

    Raises UserError (code `not-lowered`) if one still calls a fused group.
    """
    names = set(mod)
    functions: list[AnyFunction] = []
    for f in mod.functions:
        if isinstance(f, Function) and "homes" in f.attrs:
            _require_kernels(f, mod)
            functions += _Split(f, names).functions()
        else:
            functions.append(f)
    return mod.with_functions(tuple(functions)) if len(functions) > len(mod) else mod


def _require_kernels(f: Function, mod: IRModule) -> None:
    """Raise UserError (code `not-lowered`) if a call in `f` is of a fused group without loops."""
    for b in f.bindings:
        if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef):
            callee = mod[b.value.callee.name]
            if isinstance(callee, Function) and not callee.external:
                raise UserError(
                    f"{callee.name} is a fused group without loops: run lower_groups before "
                    "partial_graph_aot",
                    code="not-lowered",
                    where=f.name,
                    hint="pipeline.relax_passes lists the passes in order",
                )


class _Split:
    """Splits one graph function.

    `homes` maps a value's name to its place (`plan_memory`), `storages` are (kind of home, bytes,
    alignment), `views` maps a reshape to its operand, and `constants` the identity of a constant's
    data to the constant, in the order kernels read them.
    """

    def __init__(self, f: Function, names: set[str]):
        self.f = f
        self.init_name = unused(f"{f.name}_init", names)
        self.run_name = unused(f"{f.name}_run", names)
        names |= {self.init_name, self.run_name}
        results = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
        self.results = [r for r in results if isinstance(r, RVar)]
        types = [v.tensor for v in (*f.params, *self.results)]
        self.symbols = list(dict.fromkeys(v for t in types for d in t.shape for v in free_vars(d)))
        self.homes = {name: (kind, position) for name, kind, position in f.attrs["homes"]}
        size = f.attrs.get("workspace_bytes", 0)
        self.storages: list[tuple[str, AttrValue, AttrValue]] = list(f.attrs.get("pools", ()))
        if size != 0:
            self.storages.append((_WORKSPACE, size, STORAGE_ALIGN))
        # Where all values of a memory are empty, they have an address nevertheless.
        kinds = {"arg", *(kind for kind, _, _ in self.storages)}
        empty = dict.fromkeys(kind for kind, _ in self.homes.values() if kind not in kinds)
        self.storages += [(kind, 1, STORAGE_ALIGN) for kind in empty]
        self.views: dict[RVar, Value] = {}
        self.constants: dict[int, Constant] = {}

    def functions(self) -> list[AnyFunction]:
        """The function that allocates storages (if any), the graph function, the run function."""
        run = self._run()
        init = [self._init()] if self.storages else []
        return [*init, self._main(run), run]

    # -- the function that allocates storages ------------------------------------------------

    def _init(self) -> Function:
        symbols, renamed = _copies(self.symbols)
        params: tuple[RVar, ...] = ()
        if self._init_takes_sizes:
            params = (RVar("sizes", ShapeType(len(symbols), tuple(symbols))),)
        bindings = []
        for i, (kind, size, align) in enumerate(self.storages):
            size = substitute(size, renamed) if isinstance(size, Expr) else size
            options = {} if kind == _WORKSPACE else {"pool": kind, "align": align}
            call = Call("alloc_storage", (), Attrs.of(size=size, **options))
            bindings.append(Binding(RVar(f"storage{i}", ObjectType()), call))
        storages = Tuple(tuple(b.var for b in bindings))
        return Function(self.init_name, params, tuple(bindings), storages, Attrs.of(storages=True))

    @property
    def _init_takes_sizes(self) -> bool:
        return any(isinstance(size, Expr) for _, size, _ in self.storages)

    # -- the graph function --------------------------------------------------------------------

    def _main(self, run: PrimFunc) -> Function:
        f = self.f
        bindings: list[Binding] = []
        args: list[Value] = list(f.params)
        if self.storages:
            storages = RVar("storages", TupleType((ObjectType(),) * len(self.storages)))
            bindings.append(Binding(storages, self._cached_set()))
            args.append(storages)
        if self.constants:
            named = [(RVar(c.name or "const", c.type), c) for c in self.constants.values()]
            bindings += [Binding(var, c) for var, c in named]
            args.append(Tuple(tuple(var for var, _ in named)))
        if self.symbols:
            args.append(ShapeValue(tuple(self.symbols)))
        result = f.result if isinstance(f.result, RVar) else RVar("results", f.result.type)
        out = RVar(result.name, result.type)
        bindings.append(Binding(out, Call(GlobalRef(run.name), tuple(args))))
        source_attrs = {k: v for k, v in f.attrs.items() if k not in _PLAN}
        conditions = (*conditions_of(f), *map(SizeCondition, _not_negative(f)))
        attrs = with_conditions(Attrs.of(**source_attrs, planned=True), conditions)
        return Function(f.name, f.params, tuple(bindings), out, attrs)

    def _cached_set(self) -> Call:
        sizes = (ShapeValue(tuple(self.symbols)),) if self._init_takes_sizes else ()
        attrs = Attrs.of(name=CACHED_STORAGE_SET, key=self.f.name)
        return Call("call_packed", (GlobalRef(self.init_name), *sizes), attrs)

    # -- the function that runs the kernels -----------------------------------------------------

    def _run(self) -> PrimFunc:
        f = self.f
        symbols, renamed = _copies(self.symbols)
        tensors = [_buffer(v, renamed) for v in (*f.params, *self.results)]
        storages = Buffer("storages", HANDLE, (as_expr(len(self.storages)),), align=8)
        number = {kind: i for i, (kind, _, _) in enumerate(self.storages)}
        self._place_constants()
        constants = Buffer("constants", HANDLE, (as_expr(len(self.constants)),), align=8)
        order = {key: k for k, key in enumerate(self.constants)}

        def address(v: Value) -> Expr:
            v = self._root(v)
            if isinstance(v, Constant):
                return Load(constants, (as_expr(order[id(v.data)]),))
            assert isinstance(v, RVar)
            kind, position = self.homes[v.name]
            if kind == "arg":
                return _start(tensors[position])
            offset = (
                substitute(position, renamed) if isinstance(position, Expr) else as_expr(position)
            )
            return Load(storages, (as_expr(number[kind]),)) + offset

        calls, outputs = [], made_values(f)
        for b in f.bindings:
            call = b.value
            if not isinstance(call, Call) or not isinstance(call.callee, GlobalRef):
                continue
            args = [address(a) for a in call.args if not isinstance(a, ShapeValue)]
            shapes = [a for a in call.args if isinstance(a, ShapeValue)]
            scalars = [substitute(e, renamed) for s in shapes for e in s.values]
            args = [*args, *map(address, outputs[b.var]), *scalars]
            calls.append(CallKernel(call.callee.name, tuple(args), call.span))
        sets = [storages] * bool(self.storages) + [constants] * bool(self.constants)
        n = len(f.params)
        params: tuple[Param, ...] = (*tensors[:n], *sets, *tensors[n:], *symbols)
        return PrimFunc(
            self.run_name,
            params,
            seq(*calls),
            outputs=len(self.results),
            op_class="graph",
            attrs=Attrs.of(host=True),
        )

    def _place_constants(self) -> None:
        """Collect the constants in the order in which kernels read them; fills `views` too."""
        for b in self.f.bindings:
            call = b.value
            if isinstance(call, TupleItem):
                continue
            assert isinstance(call, Call)
            if not isinstance(call.callee, GlobalRef):
                self.views[b.var] = call.args[0]
                continue
            for v in map(self._root, call.args):
                if isinstance(v, Constant):
                    self.constants.setdefault(id(v.data), v)

    def _root(self, v: Value) -> Value:
        while isinstance(v, RVar) and v in self.views:
            v = self.views[v]
        return v


def _copies(symbols: list[Var]) -> tuple[list[Var], Mapping[Var, Expr]]:
    """New variables for the same dimensions in another function, and the map to them."""
    copies = [Var(v.name, v.dtype) for v in symbols]
    return copies, dict(zip(symbols, copies, strict=True))


def _buffer(v: RVar, renamed: Mapping[Var, Expr]) -> Buffer:
    """The buffer parameter for a parameter or result of the graph function. Its alignment is that
    of one element: callers guarantee no more."""
    t = v.tensor
    shape = tuple(substitute(d, renamed) for d in t.physical_shape)
    return Buffer(v.name, t.dtype, shape, align=t.dtype.bytes)


def _start(b: Buffer) -> Expr:
    """The address of a buffer's first element."""
    return AddressOf(b, tuple(as_expr(0) for _ in b.shape))


def _not_negative(f: Function) -> list[Expr]:
    """The condition `extent >= 0` for each computed extent that is not proved to be non-negative.

    A window may be larger than its input, as for the extent `h - 6` and h = 3; memory was planned
    for extents that are not negative.
    """
    sizes = {
        d: None
        for b in f.bindings
        if isinstance(b.var.type, TensorType)
        for d in b.var.type.shape
        if not isinstance(d, IntImm | Var)
    }
    bounds = Bounds.dims([v for d in sizes for v in free_vars(d)])
    for condition in conditions_of(f):
        bounds = bounds.given(condition.holds)
    return [c for c in (binary("ge", d, 0) for d in sizes) if not prove(c, bounds)]

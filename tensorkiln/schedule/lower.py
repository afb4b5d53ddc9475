"""Fused groups -> tensor programs: each primitive function becomes one scheduled PrimFunc."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.base.cache import Cache, key_of, user_cache
from tensorkiln.ir.derived import Head, Origin, derived, head_key, promised
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Binding, Call, Function, GlobalRef, ShapeValue
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import nameless_text
from tensorkiln.kernels import families
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target


@dataclass(frozen=True, slots=True)
class LowerGroups:
    """Schedule every primitive function for a target; equal groups share one kernel.

    R.function conv2d_relu(x, w) [primitive] + main: y = conv2d_relu(x, w)
    ->  T.prim_func conv2d_relu(...)         + main: y = conv2d_relu(x, w, symbols)

    Needs: `fuse_ops`.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with a kernel for each distinct group in place of the primitive functions;
        `mod` itself if it has no primitive functions."""
        cache = user_cache()
        kernels: dict[str, PrimFunc] = {}
        renamed: dict[str, str] = {}
        symbols: dict[str, tuple[Expr, ...]] = {}
        others: list[AnyFunction] = []
        for f in mod.functions:
            if not isinstance(f, Function) or not f.is_primitive or f.external:
                others.append(f)
                continue
            group = Group(f, f.name, self.target)
            symbols[f.name] = group.symbols
            key, names = nameless_text(f)
            if key not in kernels:
                kernels[key] = kernel_of(group, f"{self.target}\n{key}", names, self.target, cache)
            renamed[f.name] = kernels[key].name
        if not renamed:
            return mod
        graphs = [
            _call_kernels(f, renamed, symbols) if isinstance(f, Function) else f for f in others
        ]
        return mod.with_functions((*graphs, *kernels.values()))


def kernel_of(
    group: Group, source: str, names: tuple[str, ...], target: Target, cache: Cache | None
) -> PrimFunc:
    """The scheduled kernel of a group, which `source` (target and canonical text) and `names`
    determine. If `cache` has the head of the kernel of `source` (parameters, outputs, op class),
    the body is scheduled lazily, when it is first read; else it is scheduled now."""
    # The two forms of each parameter: as the group has it, and one-dimensional.
    forms = tuple(zip(group.params, group.flat_params, strict=True))

    def make() -> PrimFunc:
        from tensorkiln.schedule.choose import schedule_group  # loads every schedule

        return schedule_group(group, target)

    if any(row.owner for row in families(target).of(group.main.op)):
        return make()  # `source` does not say what the code of another package depends on
    found = cache.get(key_of(head_key(source))) if cache is not None else None
    if found is None:
        return derived(make(), source, names, forms)
    return promised(group.name, Origin(source, Head.from_bytes(found), names), forms, make)


def _call_kernels(
    f: Function, renamed: dict[str, str], symbols: dict[str, tuple[Expr, ...]]
) -> Function:
    """`f` with calls of fused groups replaced by calls of their kernels, which also take the values
    of their symbolic dimensions."""
    bindings = []
    for b in f.bindings:
        call = b.value
        if isinstance(call, Call) and isinstance(call.callee, GlobalRef):
            name = call.callee.name
            if name in renamed:
                extra = (ShapeValue(symbols[name]),) if symbols[name] else ()
                call = replace(call, callee=GlobalRef(renamed[name]), args=(*call.args, *extra))
                b = Binding(b.var, call)
        bindings.append(b)
    return replace(f, bindings=tuple(bindings))

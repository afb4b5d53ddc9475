"""State what operators require of symbolic extents as conditions of calls.

An importer does so for what it imports; this pass for modules that were not imported, and for the
parts of outer functions, so that a condition on a size which data decides is checked as soon as
that size is known.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Binding, Call, Function
from tensorkiln.ops.conditions import stated


def state_conditions(mod: IRModule) -> IRModule:
    """Add to the attribute `assumes` of graph functions what their operators require of symbolic
    extents, as far as it is not proved; `require` operators, which say no more, become identities.

    Before:  main(x: (n, 2)): y = take(x, [5], axis=0)
    After:   main(x: (n, 2)), assumes n >= 6: y = take(x, [5], axis=0)
    Needs:   types inferred; straight-line parts of outer functions outlined, so that a condition
             on a size that data decides, or of a branch, is checked where it is known.
    """
    new = tuple(map(_stated, mod.functions))
    is_unchanged = all(a is b for a, b in zip(new, mod.functions, strict=True))
    return mod if is_unchanged else mod.with_functions(new)


def _stated(f: AnyFunction) -> AnyFunction:
    if not isinstance(f, Function) or f.is_primitive or f.is_planned:
        return f
    f = stated(f)
    bindings = tuple(map(_plain, f.bindings))
    is_unchanged = all(a is b for a, b in zip(bindings, f.bindings, strict=True))
    return f if is_unchanged else replace(f, bindings=bindings)


def _plain(b: Binding) -> Binding:
    if isinstance(b.value, Call) and b.value.op == "require":
        return Binding(b.var, replace(b.value, callee="identity", attrs=NO_ATTRS))
    return b

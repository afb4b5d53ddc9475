"""Fused groups -> tensor programs: each primitive function becomes one scheduled PrimFunc."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.conditions import SizeCondition, conditions_of, with_conditions
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, binary
from tensorkiln.ir.kept import with_kernels_renamed
from tensorkiln.ir.known_attrs import CHECKED_INDICES
from tensorkiln.ir.known_kernel import KernelKey
from tensorkiln.ir.module import AnyFunction, AnyKernel, IRModule
from tensorkiln.ir.relax import Binding, Call, Function, GlobalRef, ShapeValue
from tensorkiln.ir.stmt import Assert, Param, PrimFunc, TensorProgram
from tensorkiln.ir.subtype import symbols as dims_of
from tensorkiln.ir.text.printer import nameless_text
from tensorkiln.ir.visit import extern_names, walk_stmt
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.kernels import families
from tensorkiln.kernels.knobs import text_of
from tensorkiln.schedule.group import Group, product
from tensorkiln.target import Target, device_key, target_in, target_of_kernels
from tensorkiln.target.kinds import KINDS


@dataclass(frozen=True, slots=True)
class LowerGroups:
    """Schedule every primitive function for a target; equal groups share one kernel.

    R.function conv2d_relu(x, w) [primitive] + main: y = conv2d_relu(x, w)
    ->  T.prim_func conv2d_relu(...)         + main: y = conv2d_relu(x, w, symbols)

    Kernels that `cache` knows are not scheduled: they become `KnownKernel`s. `compile` hands it to
    the pass; without it, every kernel is scheduled.

    Needs: `fuse_ops`.
    """

    target: Target
    cache: KernelCache | None = field(default=None, repr=False, compare=False)

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with a kernel for each distinct group in place of the primitive functions;
        `mod` itself if it has no primitive functions."""
        kernels: dict[str, AnyKernel] = {}
        keys: dict[str, KernelKey] = {}
        renamed: dict[str, str] = {}
        symbols: dict[str, tuple[Expr, ...]] = {}
        tuned: dict[str, tuple[str, str]] = {}
        other_functions: list[AnyFunction] = []
        for f in mod.functions:
            if not isinstance(f, Function) or not f.is_primitive or f.external:
                other_functions.append(f)
                continue
            target, device = target_in(self.target, f.attrs), device_key(self.target, f.attrs)
            group = Group(f, f.name, target)
            symbols[f.name] = (*group.symbols, *_index_numbers(group))
            text, names = nameless_text(f)
            if text not in kernels:
                key = KernelKey(f"{target_of_kernels(target)}\n{text}", names)
                kernel, is_known = self._kernel(group, target, key)
                kernels[text] = _on_device(_with_checked_indices(kernel, group), device)
                if is_known:
                    keys[f.name] = key
            renamed[f.name] = kernels[text].name
            knobs = group.given(kernels[text].op_class)
            if knobs:
                tuned[kernels[text].name] = kernels[text].op_class, text_of(knobs)
        written = {f.name for f in other_functions if _by_others(f)}
        if not renamed and not written:
            return mod
        graphs = [
            _call_kernels(_for_others(f, written), renamed, symbols, tuned)
            if isinstance(f, Function)
            else f
            for f in other_functions
        ]
        lowered = mod.with_functions((*graphs, *kernels.values()))
        return replace(lowered, kernel_keys={**lowered.kernel_keys, **keys})

    def _kernel(self, group: Group, target: Target, key: KernelKey) -> tuple[AnyKernel, bool]:
        """The kernel of a group, from the cache or scheduled now, and whether a later compile may
        take it from the cache by `key`."""
        numbers = _index_params(group)
        if any(row.owner for row in families(target).of(group.main.op)):
            # `key` does not cover the code of the other package.
            return _scheduled(group, target, numbers), False
        forms = tuple(zip((*group.params, *numbers), (*group.flat_params, *numbers), strict=True))
        if self.cache is not None and KINDS[target.kind].is_cpu:
            make = partial(_scheduled_anew, group.function, target)
            cached_kernel = self.cache.kernel(group.name, key.source, forms, make)
            if cached_kernel is not None:
                return cached_kernel, True
        kernel = _scheduled(group, target, numbers)
        return kernel, _is_described(kernel, group.name, forms)


def _index_numbers(group: Group) -> tuple[Expr, ...]:
    """Numbers by which the host checks the indices that a group computes: the extent that they
    index, whether negative ones count from its end, how many they are, and their own extents. Empty
    for other groups, and on devices whose memory the host cannot read."""
    call = group.anchor
    if call is None or call.op != "bounds_check" or not KINDS[group.target.kind].is_cpu:
        return ()
    negative = call.attrs.negative and not group.out_type.dtype.is_unsigned
    shape = group.out_type.shape
    return (as_expr(call.attrs.extent), IntImm(int(negative)), product(shape), *shape)


def _index_params(group: Group) -> tuple[Var, ...]:
    """Parameters for `_index_numbers`, which come after all that the kernel reads."""
    if not _index_numbers(group):
        return ()
    names = ("extent", "negative", "count", *(f"n{i}" for i in range(group.out_type.ndim)))
    return tuple(map(Var, names))


def _with_checked_indices(kernel: AnyKernel, group: Group) -> AnyKernel:
    """A kernel with the attribute that has the host check its result, if the group computes
    indices."""
    if not _index_numbers(group):
        return kernel
    attrs = Attrs.of(**kernel.attrs, **{CHECKED_INDICES: group.out_type.ndim})
    return replace(kernel, attrs=attrs)


def _on_device(kernel: AnyKernel, device: str) -> AnyKernel:
    """A kernel with the key of the device of a composite that it is compiled for, if there is
    one."""
    return replace(kernel, attrs=Attrs.of(**kernel.attrs, target=device)) if device else kernel


def _scheduled(group: Group, target: Target, numbers: tuple[Var, ...]) -> PrimFunc:
    """The kernel of a group, which takes `numbers` after its own parameters."""
    from tensorkiln.schedule.choose import schedule_group  # loads every schedule

    kernel = schedule_group(group, target)
    return replace(kernel, params=(*kernel.params, *numbers)) if numbers else kernel


def _scheduled_anew(f: Function, target: Target) -> PrimFunc:
    group = Group(f, f.name, target)
    return _scheduled(group, target, _index_params(group))


def _is_described(f: PrimFunc, name: str, forms: Sequence[tuple[Param, Param]]) -> bool:
    """Whether a `KnownKernel` can stand for a kernel: it has its group's name, and parameters in
    one of their two forms, and no attributes, assertions or calls of C functions."""
    if f.name != name or f.public or f.attrs != NO_ATTRS or len(f.params) != len(forms):
        return False
    matches = all(
        p is shaped or p is flat for p, (shaped, flat) in zip(f.params, forms, strict=True)
    )
    return matches and not (
        extern_names(f) or any(isinstance(s, Assert) for s in walk_stmt(f.body))
    )


def _by_others(f: AnyFunction) -> bool:
    if isinstance(f, TensorProgram):
        return f.copies is None
    return bool(f.external)


def _for_others(f: Function, written: Container[str]) -> Function:
    """`f`, with the condition that sizes are at least 1 if it calls kernels of others: a tensor
    program may access element 0 of a buffer of n elements, and an external library may not support
    empty tensors."""
    calls = (b.value.callee for b in f.bindings if isinstance(b.value, Call))
    calls_them = any(isinstance(c, GlobalRef) and c.name in written for c in calls)
    if f.is_outer or f.is_planned or not calls_them:
        return f
    dims = dict.fromkeys(v for p in f.params for v in dims_of(p.type))
    sizes = (SizeCondition(binary("ge", v, 1)) for v in dims)
    return replace(f, attrs=with_conditions(f.attrs, (*conditions_of(f), *sizes))) if dims else f


def _call_kernels(
    f: Function,
    renamed: dict[str, str],
    symbols: dict[str, tuple[Expr, ...]],
    tuned: dict[str, tuple[str, str]],
) -> Function:
    """`f` with calls of fused groups replaced by calls of their kernels, which also take the values
    of their symbolic dimensions; the attribute `tuned` says which of these have knobs."""
    bindings = []
    rows: dict[str, tuple[str, str, str]] = {}
    for b in f.bindings:
        call = b.value
        if isinstance(call, Call) and isinstance(call.callee, GlobalRef):
            name = call.callee.name
            if name in renamed:
                extra = (ShapeValue(symbols[name]),) if symbols[name] else ()
                call = replace(call, callee=GlobalRef(renamed[name]), args=(*call.args, *extra))
                b = Binding(b.var, call)
                kernel = renamed[name]
                if kernel in tuned:
                    rows[kernel] = kernel, *tuned[kernel]
        bindings.append(b)
    attrs = with_kernels_renamed(f.attrs, renamed)
    if rows:
        attrs = Attrs.of(**{**attrs, "tuned": tuple(rows.values())})
    return replace(f, bindings=tuple(bindings), attrs=attrs)

"""Fused groups -> tensor programs: each primitive function becomes one scheduled PrimFunc."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeGuard

from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.conditions import SizeCondition, conditions_of, with_conditions
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, binary
from tensorkiln.ir.kept import with_kernels_renamed
from tensorkiln.ir.known_attrs import CHECKED_INDICES
from tensorkiln.ir.known_kernel import KernelKey, KnownKernel
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
    the pass; without it, every kernel is scheduled. Of many kernels `jobs` are scheduled at a time.

    Needs: `fuse_ops`.
    """

    target: Target
    cache: KernelCache | None = field(default=None, repr=False, compare=False)
    jobs: int = field(default=1, repr=False, compare=False)

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with a kernel for each distinct group in place of the primitive functions;
        `mod` itself if it has no primitive functions."""
        other_functions = [f for f in mod.functions if not _is_group(f)]
        groups: list[tuple[Group, str]] = []
        distinct: dict[str, _DistinctGroup] = {}
        for f in filter(_is_group, mod.functions):
            group = Group(f, f.name, target_in(self.target, f.attrs))
            text, names = nameless_text(f)
            groups.append((group, text))
            if text not in distinct:
                key = KernelKey(f"{target_of_kernels(group.target)}\n{text}", names)
                device = device_key(self.target, f.attrs)
                distinct[text] = _DistinctGroup.of(group, key, device)
        kernels, keys = self._kernels(distinct)
        renamed = {group.name: kernels[text].name for group, text in groups}
        symbols = {g.name: (*g.symbols, *_index_numbers(g)) for g, _ in groups}
        tuned = _tuned((group, kernels[text]) for group, text in groups)
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

    def _kernels(
        self, groups: Mapping[str, _DistinctGroup]
    ) -> tuple[dict[str, AnyKernel], dict[str, KernelKey]]:
        """The kernels of groups, from the cache or scheduled now, by the texts of the groups; and
        by name the keys of those that a later compile may take from the cache."""
        stored = {text: self._stored(g) for text, g in groups.items()}
        missing = [g for text, g in groups.items() if stored[text] is None]
        programs = iter(_scheduled(missing, self.jobs) if missing else ())
        kernels: dict[str, AnyKernel] = {}
        keys: dict[str, KernelKey] = {}
        for text, g in groups.items():
            kernel = stored[text] or next(programs)
            if isinstance(kernel, KnownKernel) or g.is_described_by(kernel):
                keys[g.group.name] = g.key
            kernels[text] = _on_device(_with_checked_indices(kernel, g.group), g.device)
        return kernels, keys

    def _stored(self, g: _DistinctGroup) -> KnownKernel | None:
        """The kernel of a group if the cache has it."""
        if self.cache is None or g.is_foreign or not KINDS[g.group.target.kind].is_cpu:
            return None
        make = partial(_scheduled_anew, g.group.function, g.group.target)
        return self.cache.kernel(g.group.name, g.key.source, g.forms, make)


@dataclass(frozen=True, slots=True)
class _DistinctGroup:
    """A group that shares its kernel with groups of the same text. `numbers` are parameters that
    the kernel takes after those of the group, and `forms` the two forms of each parameter, before
    the group is scheduled; `device` is the key of the device of a composite that it is for."""

    group: Group
    key: KernelKey
    device: str
    numbers: tuple[Var, ...]
    forms: tuple[tuple[Param, Param], ...]

    @staticmethod
    def of(group: Group, key: KernelKey, device: str) -> _DistinctGroup:
        """The group before it is scheduled, which changes its parameters."""
        numbers = _index_params(group)
        shaped, flat = (*group.params, *numbers), (*group.flat_params, *numbers)
        return _DistinctGroup(group, key, device, numbers, (*zip(shaped, flat, strict=True),))

    @property
    def is_foreign(self) -> bool:
        """Whether another package may schedule it, whose code `key` does not cover."""
        group = self.group
        return any(row.owner for row in families(group.target).of(group.main.op))

    def is_described_by(self, f: PrimFunc) -> bool:
        """Whether a `KnownKernel` can stand for the group's kernel: it has its group's name, and
        parameters in one of their two forms, and no attributes, assertions or calls of C
        functions."""
        if self.is_foreign or f.name != self.group.name or f.public or f.attrs != NO_ATTRS:
            return False
        if len(f.params) != len(self.forms) or extern_names(f):
            return False
        pairs = zip(f.params, self.forms, strict=True)
        matches = all(p is shaped or p is flat for p, (shaped, flat) in pairs)
        return matches and not any(isinstance(s, Assert) for s in walk_stmt(f.body))


def _is_group(f: AnyFunction) -> TypeGuard[Function]:
    return isinstance(f, Function) and f.is_primitive and not f.external


def _tuned(kernels: Iterable[tuple[Group, AnyKernel]]) -> dict[str, tuple[str, str]]:
    """The class of each kernel whose knobs a group says, and these, by the kernel's name."""
    rows = ((kernel, group.given(kernel.op_class)) for group, kernel in kernels)
    return {f.name: (f.op_class, text_of(knobs)) for f, knobs in rows if knobs}


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


def _scheduled(groups: Sequence[_DistinctGroup], jobs: int) -> list[PrimFunc]:
    """The kernels of groups, which take `numbers` after their own parameters. Groups that another
    package may schedule are all scheduled in this process, which may have changed it."""
    from tensorkiln.schedule.helpers import schedule_groups  # loads every schedule

    jobs = 1 if any(g.is_foreign for g in groups) else jobs
    kernels = schedule_groups([g.group for g in groups], jobs)
    return [_with_numbers(f, g.numbers) for f, g in zip(kernels, groups, strict=True)]


def _with_numbers(kernel: PrimFunc, numbers: tuple[Var, ...]) -> PrimFunc:
    return replace(kernel, params=(*kernel.params, *numbers)) if numbers else kernel


def _scheduled_anew(f: Function, target: Target) -> PrimFunc:
    from tensorkiln.schedule.choose import schedule_group

    group = Group(f, f.name, target)
    return _with_numbers(schedule_group(group, target), _index_params(group))


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

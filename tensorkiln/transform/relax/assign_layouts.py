"""Choose a memory layout for every value, insert conversions (each once), and pack weights.

    y = conv2d(x, w)      ->   x1 = relayout(x, "A B/16 C+1 D+1 B%16")
                               y: layout="A B/16 C D B%16" = conv2d(x1, packed w)
    t = take(w, i)        ->   t = take(packed w, i)                          a table of words
    y = linear(x, w^T)         y = linear(x, packed w^T)                      that is stored once

Kernel families say which layouts they ask for (`Family.layouts`); the zero halo of an image is as
wide as the widest that a reader asks for. Operators after them keep channel blocks if they can
compute in blocks (`Family.in_blocks`). Constants are packed here, at compile time; a kernel may
read one as another kernel has it (`Family.shares`).

Needs: `infer_types`, `fold_constants`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, RVar, TensorType, Tuple, Value
from tensorkiln.kernels import Layouts, Packed, families
from tensorkiln.kernels.family import AsItIs
from tensorkiln.kernels.layouts import image_layout
from tensorkiln.target import Target, target_in

# Elements by which arrays are compared before all are, and rows that are compared at once: of a
# transposed array these are in the cache.
_SAMPLE, _ROWS = 64, 256
# Ranks of operands beside those in blocks: of images, and of what has no channels (rows, columns,
# indices of them); what has one element for each channel would be read element by element.
_BESIDE_BLOCKS = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class AssignLayouts:
    """Assign every value of every graph function its layout on a target.

    A graph function in which some value has a layout already is returned unchanged.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the module with layouts; `mod` itself if nothing changed."""
        return mod.map_graphs(self._function)

    def _function(self, f: Function) -> Function:
        return f if _is_assigned(f) else _Assign(f, target_in(self.target, f.attrs)).run()


def _is_assigned(f: Function) -> bool:
    """Whether a value has a layout already: a second run would pack packed weights again."""
    types = [b.var.type for b in f.bindings]
    for b in f.bindings:
        types += [a.type for a in b.value.args] if isinstance(b.value, Call) else []
    return any(isinstance(t, TensorType) and t.layout is not None for t in types)


class _Assign:
    def __init__(self, f: Function, target: Target):
        self.f, self.target, self.families = f, target, families(target)
        self.bindings: list[Binding] = []
        self.now: dict[RVar, Value] = {}
        self.converted: dict[tuple[Value, Layout], RVar] = {}
        self.packed: dict[tuple[int, Layout | Packed], Constant] = {}
        self.layouts = self._layouts()
        self.stored = self._stored()
        self.halos = self._wanted_halos()
        self.counter = 0

    def run(self) -> Function:
        for b in self.f.bindings:
            self._bind(b)
        result = self._plain_value(self.f.result)
        changed = len(self.bindings) != len(self.f.bindings) or any(
            new is not old for new, old in zip(self.bindings, self.f.bindings, strict=True)
        )
        if not changed:
            return self.f
        return replace(self.f, bindings=tuple(self.bindings), result=result)

    # -- what kernels ask for ----------------------------------------------------------------------

    def _layouts(self) -> dict[RVar, Layouts]:
        """The layouts that kernels ask for, by the value that they compute."""
        layouts = {}
        for b in self.f.bindings:
            call, t = b.value, b.var.type
            if isinstance(call, Call) and call.op and isinstance(t, TensorType):
                call_layouts = self.families.layouts(call, t, self.target)
                if call_layouts is not None:
                    layouts[b.var] = call_layouts
        return layouts

    def _wanted_halos(self) -> dict[RVar, tuple[int, int]]:
        """For each image, the largest (vertical, horizontal) halo that a kernel asks for.

        Its buffer gets that halo at once, so that no reader needs a copy with a larger one.
        """
        halos: dict[RVar, tuple[int, int]] = {}
        for b in self.f.bindings:
            if b.var not in self.layouts:
                continue
            assert isinstance(b.value, Call)
            for x, want in zip(b.value.args, self.layouts[b.var].operands, strict=True):
                if isinstance(x, RVar) and isinstance(want, Layout):
                    h, w = halos.get(x, (0, 0))
                    halos[x] = (max(h, want.halo(2)), max(w, want.halo(3)))
        return halos

    def _stored(self) -> dict[Hashable, list[tuple[Constant, Layout]]]:
        """The constants that kernels ask for in layouts of their own, by type and extents:
        candidates for what other kernels may read, perhaps transposed."""
        constants: dict[Hashable, list[tuple[Constant, Layout]]] = {}
        for b in self.f.bindings:
            if b.var in self.layouts:
                assert isinstance(b.value, Call)
                for x, want in zip(b.value.args, self.layouts[b.var].operands, strict=True):
                    if isinstance(x, Constant) and isinstance(want, Layout):
                        constants.setdefault(_extents(x), []).append((x, want))
        return constants

    # -- bindings ----------------------------------------------------------------------------------

    def _bind(self, b: Binding) -> None:
        call, want = b.value, self.layouts.get(b.var)
        if not isinstance(call, Call) or not call.op:
            self._emit_same(b)
        elif want is not None:
            args = map(self._convert, call.args, want.operands)
            result = want.result and self._with_halo(b.var, want.result)
            attrs = _with_prepared(call, want)
            self._emit(b.var, replace(call, args=tuple(args), attrs=attrs), result)
        elif self._keeps_blocks(b.var, call):
            args = map(self._blocked_operand, call.args)
            result = self._with_halo(b.var, self._blocks(b.var.tensor))
            self._emit(b.var, replace(call, args=tuple(args)), result)
        else:
            self._emit_same(self._shared(b, call))

    def _shared(self, b: Binding, call: Call) -> Binding:
        """`b` with each constant that its kernel reads in the layout in which another kernel has
        it."""
        args = list(call.args)
        for k, a in enumerate(call.args):
            if not isinstance(a, Constant) or not isinstance(b.var.type, TensorType):
                continue
            candidates = self.stored.get(_extents(a), [])
            if not candidates or not self.families.shares(call, b.var.type, k, self.target):
                continue
            for candidate, layout in candidates:
                order = _order(a, candidate)
                if order is not None:
                    data = self._pack(candidate, layout).data
                    args[k] = Constant(data, a.type.with_layout(layout.renamed(order)), a.name)
                    break
        is_unchanged = all(x is y for x, y in zip(args, call.args, strict=True))
        return b if is_unchanged else Binding(b.var, replace(call, args=tuple(args)))

    def _emit_same(self, b: Binding) -> None:
        """Append `b` with row-major operands and a row-major result."""
        value = b.value
        if isinstance(value, Call):
            args = tuple(self._plain_value(a) for a in value.args)
            if all(x is y for x, y in zip(args, value.args, strict=True)):
                self.bindings.append(b)
                return
            value = replace(value, args=args)
        elif isinstance(value, (RVar, Tuple)):
            value = self._plain_value(value)
        self.bindings.append(b if value is b.value else Binding(b.var, value))

    def _emit(self, old: RVar, call: Call, layout: Layout | None) -> RVar:
        new = RVar(old.name, old.tensor.with_layout(layout))
        self.bindings.append(Binding(new, call))
        self.now[old] = new
        return new

    def _with_halo(self, var: RVar, layout: Layout) -> Layout:
        if var not in self.halos:
            return layout
        h, w = self.halos[var]
        return layout.with_halo({2: h, 3: w})

    # -- operators that keep blocked layouts -------------------------------------------------------

    def _keeps_blocks(self, var: RVar, call: Call) -> bool:
        """Whether to compute `call` in channel blocks, since an operand of 4 dimensions is blocked
        and a kernel can compute in them."""
        if not isinstance(var.type, TensorType) or var.type.ndim != 4:
            return False
        predicates = (row.in_blocks for row in self.families.of(call.op))
        if not any(can(call, var.type, self.target) for can in predicates if can is not None):
            return False
        if int_value(var.type.shape[1]) is None:
            return False
        blocked_args = [a for a in call.args if isinstance(a, RVar) and self._is_blocked(a)]
        return bool(blocked_args) and all(
            self._is_blocked(a) or isinstance(a, Constant) or _ndim(a) in _BESIDE_BLOCKS
            for a in call.args
        )

    def _is_blocked(self, a: Value) -> bool:
        new = self.now.get(a) if isinstance(a, RVar) else None
        return (
            isinstance(new, RVar)
            and new.tensor.layout is not None
            and new.tensor.layout.with_halo({}) == self._blocks(new.tensor)
        )

    def _blocks(self, t: TensorType) -> Layout:
        return image_layout(self.target, t)

    def _blocked_operand(self, a: Value) -> Value:
        if self._is_blocked(a):
            return self.now[a]  # type: ignore[index]
        if isinstance(a, RVar) and a.tensor.ndim == 4 and (int_value(a.tensor.shape[1]) or 0) > 1:
            return self._convert(a, self._blocks(a.tensor))
        if isinstance(a, Constant) and a.type.ndim == 4 and (int_value(a.type.shape[1]) or 0) > 1:
            return self._pack(a, self._blocks(a.type))
        return self._plain_value(a)

    # -- conversions -------------------------------------------------------------------------------

    def _plain_value(self, a: Value) -> Value:
        """`a` in row-major memory."""
        if isinstance(a, Tuple):
            fields = tuple(map(self._plain_value, a.fields))
            is_unchanged = all(x is y for x, y in zip(fields, a.fields, strict=True))
            return a if is_unchanged else Tuple(fields)
        new = self.now.get(a, a) if isinstance(a, RVar) else a
        t = new.type
        if isinstance(new, RVar) and isinstance(t, TensorType) and t.layout is not None:
            return self._relayout(new, Layout.plain(t.ndim))
        return new

    def _convert(self, a: Value, want: Layout | Packed | AsItIs | None) -> Value:
        """`a` in the layout that a kernel asks for, or with a larger halo."""
        if isinstance(want, AsItIs) and isinstance(a, RVar) and self._is_blocked(a):
            return self.now[a]
        if want is None or isinstance(want, AsItIs):
            return self._plain_value(a)
        new = self.now.get(a, a) if isinstance(a, RVar) else a
        if isinstance(new, Constant):
            return self._pack(new, want)
        assert isinstance(new, RVar) and isinstance(want, Layout), "Packed is for constants"
        have = new.tensor.memory
        wider = all(have.halo(d) >= want.halo(d) for d in (2, 3))
        if wider and have.with_halo({}) == want.with_halo({}):
            return new
        return self._relayout(new, want)

    def _relayout(self, a: RVar, want: Layout) -> RVar:
        relayout_var = self.converted.get((a, want))
        if relayout_var is None:
            self.counter += 1
            relayout_var = RVar(f"{a.name}_layout{self.counter}", a.tensor.with_layout(want))
            span = next(
                (
                    b.value.span
                    for b in reversed(self.bindings)
                    if b.var is a and isinstance(b.value, Call)
                ),
                "",
            )
            call = Call("relayout", (a,), Attrs.of(layout=str(want)), span)
            self.bindings.append(Binding(relayout_var, call))
            self.converted[a, want] = relayout_var
        return relayout_var

    def _pack(self, c: Constant, want: Layout | Packed) -> Constant:
        """The packed constant; memoised per constant and layout."""
        key = (id(c), want)
        if key not in self.packed:
            array, t = c.array, c.type
            if isinstance(want, Packed):
                array, to = want.prepare(array), want.layout
                t = replace(t, shape=tuple(map(as_expr, array.shape)))
            else:
                to = want
            self.packed[key] = Constant(to.packed(array), t.with_layout(to), c.name)
        return self.packed[key]


def _with_prepared(call: Call, want: Layouts) -> Attrs:
    """The attributes of a call, and those that say how its constants were prepared."""
    preparations = [w.attrs for w in want.operands if isinstance(w, Packed) and w.attrs]
    return Attrs.of(**{k: v for a in (call.attrs, *preparations) for k, v in a.items()})


def _extents(c: Constant) -> Hashable:
    return c.type.dtype, tuple(sorted(c.data.shape))


def _order(a: Constant, b: Constant) -> tuple[int, ...] | None:
    """For each dimension of `b`, the dimension of `a` with the same elements. None unless both
    have the same bits, as they are or transposed."""
    dims = range(a.data.ndim)
    for order in (tuple(dims), tuple(reversed(dims))):
        if _equal(a.array.transpose(order), b.array):
            return order
    return None


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same memory or, which takes longer, hold the same bits."""
    if a.shape != b.shape or not a.size:
        return False
    address, other_address = (x.__array_interface__["data"][0] for x in (a, b))
    if address == other_address and a.strides == b.strides:
        return True
    few = tuple(np.linspace(0, n - 1, _SAMPLE, dtype=np.int64) for n in a.shape)
    if a[few].tobytes() != b[few].tobytes():
        return False
    bits = np.dtype(f"u{a.itemsize}")
    x, y = a.view(bits), b.view(bits)
    parts = (slice(first, first + _ROWS) for first in range(0, len(x), _ROWS))
    return all(np.array_equal(x[part], y[part]) for part in parts)


def _ndim(a: Value) -> int:
    return a.type.ndim if isinstance(a.type, TensorType) else -1

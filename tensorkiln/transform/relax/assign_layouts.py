"""Choose a memory layout for every value, insert conversions (each once), and pack weights.

    y = conv2d(x, w)      ->   x1 = relayout(x, "A B/16 C+1 D+1 B%16")
                               y: layout="A B/16 C D B%16" = conv2d(x1, packed w)

Convolutions read channels in blocks of the vector width, from a buffer with a zero halo (C+1: one
row above and below) in place of padding. Operators after them keep the blocks if they can compute
in any layout. The weights of linear layers are packed in panels of columns, the keys of attention
by vector lanes. Constants are packed here, at compile time.

Needs: `infer_types`, `fold_constants`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    RVar,
    TensorType,
    Tuple,
    Value,
)  # fmt: skip
from tensorkiln.ops.channel_window import ChannelWindow
from tensorkiln.target import Target
from tensorkiln.target.registers import max_rows
from tensorkiln.transform.relax.select_strassen import PANEL_VECTORS, parts_layout

# Operators that compute in whatever layout their first operand has.
_KEEPS = ("max_pool2d", "avg_pool2d", "concat", "lrn", "slice")
_CONVOLUTIONS = ("conv2d", "winograd_conv2d")
# Columns of a linear panel, in vectors, the preferred width first. Tiles (rows x vectors) of 8 x 3
# or 14 x 2 fill 32 registers. With 16 registers and AVX2, 3 x 3 runs at 1.03 times the speed of
# 6 x 2. On targets whose instructions overwrite an operand (SSE), 4 x 2 and 2 x 3 fit, and the
# order is reversed.
_PANEL_VECTORS = (3, 2)
# Rows a multiple of _WAY bytes apart map to the same set of a first-level cache, which holds _WAYS
# of them. With 1024 terms, tiles of 14 x 2 run at 75% of the peak, 6 x 4 and 8 x 3 at 95%.
_WAY, _WAYS = 4096, 8
# From this many rows and multiply-adds on, packing the right operand of a matmul at run time costs
# less than it saves.
_PACKED_ROWS, _PACKED_WORK = 8, 1 << 15


@dataclass(frozen=True, slots=True)
class AssignLayouts:
    """Assign every value of every graph function its layout on a target.

    A graph function in which some value has a layout already is returned unchanged.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the module with layouts; `mod` itself if nothing changed."""
        return mod.map_graphs(lambda f: f if _is_assigned(f) else _Assign(f, self.target).run())


def _is_assigned(f: Function) -> bool:
    """Whether a value has a layout already: a second run would pack packed weights again."""
    types = [b.var.type for b in f.bindings]
    for b in f.bindings:
        types += [a.type for a in b.value.args] if isinstance(b.value, Call) else []
    return any(isinstance(t, TensorType) and t.layout is not None for t in types)


class _Assign:
    def __init__(self, f: Function, target: Target):
        self.f, self.target = f, target
        self.lanes = target.vector_lanes("float32")
        self.blocked = Layout.parse(f"A B/{self.lanes} C D B%{self.lanes}")
        self.bindings: list[Binding] = []
        self.now: dict[RVar, Value] = {}
        self.converted: dict[tuple[Value, Layout], RVar] = {}
        self.packed: dict[tuple[int, str], Constant] = {}
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

    # -- what convolutions need --------------------------------------------------------------------

    def _wanted_halos(self) -> dict[RVar, tuple[int, int]]:
        """For each value, the largest (vertical, horizontal) padding of convolutions that read it.

        Its buffer gets that halo at once, so that no convolution needs a copy with a larger one.
        """
        halos: dict[RVar, tuple[int, int]] = {}
        for b in self.f.bindings:
            call = b.value
            if isinstance(call, Call) and self._is_blocked_conv(call):
                x, (top, left, bottom, right) = call.args[0], call.attrs.padding
                if isinstance(x, RVar):
                    h, w = halos.get(x, (0, 0))
                    halos[x] = (max(h, top, bottom), max(w, left, right))
        return halos

    def _is_blocked_conv(self, call: Call) -> bool:
        """Whether the blocked schedules can compute `call`: a convolution with constant weights,
        a supported dtype, and known channels and image size."""
        if call.op not in _CONVOLUTIONS:
            return False
        x, w = call.args[0].type, call.args[1]
        if not isinstance(x, TensorType) or not isinstance(w, Constant):
            return False
        return _has_kernel(call) and None not in [int_value(d) for d in x.shape[1:]]

    # -- bindings ----------------------------------------------------------------------------------

    def _bind(self, b: Binding) -> None:
        call = b.value
        if not isinstance(call, Call) or not call.op:
            self._emit_same(b)
        elif self._is_blocked_conv(call):
            self._conv(b.var, call)
        elif call.op == "linear" and isinstance(call.args[1], Constant) and _has_kernel(call):
            self._linear(b.var, call)
        elif call.op == "matmul" and _wants_panels(call):
            self._matmul(b.var, call)
        elif call.op == "strassen_parts" and _is_float32(call):
            self._strassen_parts(b.var, call)
        elif call.op == "strassen_linear" and _is_float32(call):
            self._strassen_linear(b.var, call)
        elif call.op == "attention" and _is_float32(call):
            self._attention(b.var, call)
        elif self._keeps_blocks(b.var, call):
            args = [self._blocked_operand(a) for a in call.args]
            self._emit(b.var, replace(call, args=tuple(args)), self._with_halo(b.var))
        else:
            self._emit_same(b)

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

    def _with_halo(self, var: RVar) -> Layout:
        h, w = self.halos.get(var, (0, 0))
        return self.blocked.with_halo({2: h, 3: w})

    def _conv(self, var: RVar, call: Call) -> None:
        w = call.args[1]
        assert isinstance(w, Constant)
        x = call.args[0]
        channels = int_value(x.type.shape[1]) or 0  # type: ignore[union-attr]
        top, left, bottom, right = call.attrs.padding
        halo = {2: max(top, bottom), 3: max(left, right)}
        groups = call.attrs.get("groups", 1)
        integers = w.type.dtype.name == "int8"
        if channels <= 4 and groups == 1 and integers:
            want = Layout.parse("A B/4 C D B%4").with_halo(halo)
        elif channels < self.lanes // 2 and groups == 1 and call.op == "conv2d" and not integers:
            want = Layout.plain(4).with_halo(halo)
        else:
            want = self.blocked.with_halo(halo)
        operands: list[Value] = [self._convert(x, want, at_least=True)]
        if call.op == "conv2d":
            operands.append(self._filter(w, channels, groups))
        else:
            nr, v = self.lanes * self._filter_vectors(w)[0], self.lanes
            operands.append(self._pack(w, f"A/{nr} C D B/{v} B%{v} A%{nr}"))
        if len(call.args) > 2:
            by_lanes = Layout.parse(f"A/{self.lanes} A%{self.lanes}")
            operands.append(self._convert(call.args[2], by_lanes))
        self._emit(var, replace(call, args=tuple(operands)), self._with_halo(var))

    def _filter(self, w: Constant, channels: int, groups: int) -> Constant:
        """The packed weights of a direct convolution: of a depthwise one in blocks of channels, of
        others in panels of output channels."""
        v = self.lanes
        outputs, inputs = (int_value(d) or 0 for d in w.type.shape[:2])
        if groups > 1 and groups == outputs and inputs == 1:
            return self._pack(w, f"A/{v} C D B A%{v}")
        widths = self._filter_vectors(w)
        if groups > 1:
            return self._grouped_filter(w, groups, [1, *widths])
        nr = v * widths[0]
        if w.type.dtype.name == "int8":
            block = 4 if channels <= 4 else v
            return self._pack(w, f"A/{nr} B/{block} C D B/4%{block // 4} A%{nr} B%4")
        if channels < v // 2:
            return self._pack(w, f"A/{nr} B C D A%{nr}")
        return self._pack(w, f"A/{nr} B/{v} C D B%{v} A%{nr}")

    def _filter_vectors(self, w: Constant) -> list[int]:
        """The widths that a panel may have, in vectors of output channels, the preferred first."""
        blocks = -(-(int_value(w.type.shape[0]) or 0) // self.lanes)
        budget = 4 if self.target.num_vector_registers >= 32 else 3
        return [n for n in (2, 3, 4)[: budget - 1] if blocks % n == 0] or [1]

    def _grouped_filter(self, w: Constant, groups: int, widths: list[int]) -> Constant:
        """Weights of a grouped convolution, spread over each panel's window of input channels
        (`ChannelWindow`), in the panel width that costs least."""
        v = self.lanes
        outputs, inputs = (int_value(d) or 0 for d in w.type.shape[:2])
        granule = v if inputs % v == 0 else min(4, v)
        windows = [ChannelWindow(groups, outputs, inputs, v * n, granule) for n in widths]
        # A broadcast that feeds one vector is about a tenth slower than one that feeds more.
        best = min(windows, key=lambda c: c.steps * c.nr * (1.1 if c.nr == v else 1.0))
        layout = f"A/{best.nr} B/{granule} C D B%{granule} A%{best.nr}"
        if w.type.dtype.name == "int8":
            layout = f"A/{best.nr} B/{granule} C D B/4%{granule // 4} A%{best.nr} B%4"
        key = (id(w), f"{groups}: {layout}")
        if key not in self.packed:
            wide = best.spread(w.array)
            t = replace(w.type, shape=tuple(map(as_expr, wide.shape)))
            to = Layout.parse(layout)
            self.packed[key] = Constant(to.packed(wide), t.with_layout(to), w.name)
        return self.packed[key]

    def _linear(self, var: RVar, call: Call) -> None:
        w = call.args[1]
        assert isinstance(w, Constant)
        x = self._plain_value(call.args[0])
        columns = int_value(w.type.shape[1]) or 0
        terms = int_value(w.type.shape[0]) or 0
        nr = self.lanes * self._panel_vectors(x, columns, terms)
        by_lanes = Layout.parse(f"A/{self.lanes} A%{self.lanes}")
        bias = [self._convert(b, by_lanes) for b in call.args[2:]]
        panels = f"B/{nr} A/4 B%{nr} A%4" if w.type.dtype.name == "int8" else f"B/{nr} A B%{nr}"
        operands = [x, self._pack(w, panels), *bias]
        self._emit(var, replace(call, args=tuple(operands)), None)

    def _matmul(self, var: RVar, call: Call) -> None:
        """Convert the right operand of a matmul to panels, at run time."""
        x, w = self._plain_value(call.args[0]), call.args[1]
        assert isinstance(w.type, TensorType)
        *batch, row, column = (chr(ord("A") + d) for d in range(w.type.ndim))
        terms, columns = (int_value(d) or 0 for d in w.type.shape[-2:])
        nr = self.lanes * self._panel_vectors(x, columns, terms)
        panels = [f"{column}/{nr}", row, f"{column}%{nr}"]
        if call.attrs.wide:
            panels = [f"{column}/{nr}", f"{row}/2", f"{column}%{nr}", f"{row}%2"]
        right = self._convert(w, Layout.parse(" ".join([*batch, *panels])))
        self._emit(var, replace(call, args=(x, right)), None)

    def _strassen_parts(self, var: RVar, call: Call) -> None:
        half, k = (int_value(d) or 0 for d in var.tensor.shape[1:])
        operands = (self._plain_value(call.args[0]),)
        self._emit(var, replace(call, args=operands), parts_layout(half, k, self.target))

    def _strassen_linear(self, var: RVar, call: Call) -> None:
        parts, w = call.args[:2]
        if isinstance(w, Constant):
            nr = self.lanes * PANEL_VECTORS
            w = self._pack(w, f"B/{nr} A B%{nr}")
        by_lanes = Layout.parse(f"A/{self.lanes} A%{self.lanes}")
        bias = [self._convert(b, by_lanes) for b in call.args[2:]]
        operands = (self.now.get(parts, parts), w, *bias)  # type: ignore[arg-type]
        self._emit(var, replace(call, args=operands), None)

    def _panel_vectors(self, x: Value, columns: int, terms: int) -> int:
        """The width of a linear panel, in vectors.

        Few rows need wide panels, for enough independent accumulators; more rows a width that
        divides the columns evenly. Where rows lie a multiple of `_WAY` bytes apart, panels are
        wide enough that a tile has at most `_WAYS` rows.
        """
        target = self.target
        blocks = -(-columns // self.lanes)
        rows = 1
        assert isinstance(x.type, TensorType)
        for d in x.type.shape[:-1]:
            rows *= int_value(d) or 64
        if rows < 4:
            return min(blocks, 6 if target.overwrites_operands else 8)
        size = x.type.dtype.bytes
        widths: tuple[int, ...] = _PANEL_VECTORS[:: -1 if target.overwrites_operands else 1]
        if terms * size % _WAY == 0 and max_rows(target, 2) > _WAYS and blocks > 3:
            widths = (3, 4)
        return next((n for n in widths if blocks % n == 0), widths[-1])

    def _attention(self, var: RVar, call: Call) -> None:
        q, k, *rest = call.args
        v = self.lanes
        keys = self._convert(k, Layout.parse(f"A B C/{v} D C%{v}"))
        operands = (self._plain_value(q), keys, *map(self._plain_value, rest))
        self._emit(var, replace(call, args=operands), None)

    # -- operators that keep blocked layouts -------------------------------------------------------

    def _keeps_blocks(self, var: RVar, call: Call) -> bool:
        """Whether to compute `call` in channel blocks, since an operand of 4 dimensions is blocked
        and the operator can compute in any layout."""
        if not isinstance(var.type, TensorType) or var.type.ndim != 4:
            return False
        pattern = ops.get(call.op).pattern
        if pattern not in ("elementwise", "broadcast") and call.op not in _KEEPS:
            return False
        if call.op == "concat" and not self._concat_in_blocks(call):
            return False
        if call.op == "slice" and not _slices_pixels(var, call):
            return False
        if int_value(var.type.shape[1]) is None:
            return False
        same = [a for a in call.args if isinstance(a, RVar) and self._is_blocked(a)]
        return bool(same) and all(
            self._is_blocked(a) or isinstance(a, Constant) or _ndim(a) in (0, 4) for a in call.args
        )

    def _concat_in_blocks(self, call: Call) -> bool:
        if call.attrs.axis not in (1, -3):
            return False
        sizes = [int_value(a.type.shape[1]) for a in call.args]  # type: ignore[union-attr]
        return all(s is not None and s % self.lanes == 0 for s in sizes)

    def _is_blocked(self, a: Value) -> bool:
        new = self.now.get(a) if isinstance(a, RVar) else None
        return (
            isinstance(new, RVar) and new.tensor.layout is not None
            and len(new.tensor.layout.axes) == 5 and new.tensor.layout.block(1) == self.lanes
        )  # fmt: skip

    def _blocked_operand(self, a: Value) -> Value:
        if self._is_blocked(a):
            return self.now[a]  # type: ignore[index]
        if isinstance(a, RVar) and a.tensor.ndim == 4 and (int_value(a.tensor.shape[1]) or 0) > 1:
            return self._convert(a, self.blocked)
        if isinstance(a, Constant) and a.type.ndim == 4 and (int_value(a.type.shape[1]) or 0) > 1:
            return self._pack(a, str(self.blocked))
        return self._plain_value(a)

    # -- conversions -------------------------------------------------------------------------------

    def _plain_value(self, a: Value) -> Value:
        """`a` in row-major memory."""
        if isinstance(a, Tuple):
            fields = tuple(map(self._plain_value, a.fields))
            same = all(x is y for x, y in zip(fields, a.fields, strict=True))
            return a if same else Tuple(fields)
        new = self.now.get(a, a) if isinstance(a, RVar) else a
        t = new.type
        if isinstance(new, RVar) and isinstance(t, TensorType) and t.layout is not None:
            return self._relayout(new, Layout.plain(t.ndim))
        return new

    def _convert(self, a: Value, want: Layout, at_least: bool = False) -> Value:
        """`a` in layout `want`; with `at_least`, its halo may be larger than in `want`."""
        new = self.now.get(a, a) if isinstance(a, RVar) else a
        if isinstance(new, Constant):
            return self._pack(new, str(want))
        assert isinstance(new, RVar)
        have = new.tensor.memory
        if have == want:
            return new
        if (
            at_least
            and have.with_halo({}) == want.with_halo({})
            and all(have.halo(d) >= want.halo(d) for d in (2, 3))
        ):
            return new
        return self._relayout(new, want)

    def _relayout(self, a: RVar, want: Layout) -> RVar:
        found = self.converted.get((a, want))
        if found is None:
            self.counter += 1
            found = RVar(f"{a.name}_layout{self.counter}", a.tensor.with_layout(want))
            span = next((b.value.span for b in reversed(self.bindings)
                         if b.var is a and isinstance(b.value, Call)), "")  # fmt: skip
            call = Call("relayout", (a,), Attrs.of(layout=str(want)), span)
            self.bindings.append(Binding(found, call))
            self.converted[a, want] = found
        return found

    def _pack(self, c: Constant, layout: str) -> Constant:
        """The constant packed in `layout`; memoised per constant and layout."""
        key = (id(c), layout)
        if key not in self.packed:
            to = Layout.parse(layout)
            self.packed[key] = Constant(to.packed(c.array), c.type.with_layout(to), c.name)
        return self.packed[key]


def _slices_pixels(var: RVar, call: Call) -> bool:
    """Whether a slice of [N, C, H, W] keeps all images and channels."""
    x, a = call.args[0].type, call.attrs
    assert isinstance(x, TensorType)
    first = all(int_value(i) == 0 for i in a.begin[:2])
    return first and var.tensor.shape[:2] == x.shape[:2] and a.strides[:2] == (1, 1)


def _ndim(a: Value) -> int:
    return a.type.ndim if isinstance(a.type, TensorType) else -1


def _has_kernel(call: Call) -> bool:
    """Whether a packed schedule supports the dtypes: float32, or uint8 by int8 into int32."""
    types = [a.type.dtype.name for a in call.args[:2] if isinstance(a.type, TensorType)]
    return types in (["float32", "float32"], ["uint8", "int8"])


def _wants_panels(call: Call) -> bool:
    """Whether to pack the right operand of a matmul at run time.

    Its last two extents must be known, and operands must not be transposed or broadcast in a way
    that the schedule lacks. A `wide` product (int16 into int32) is then packed if its number of
    terms is even, a float32 one if it has enough rows and multiply-adds.
    """
    x, w = (a.type for a in call.args)
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    sizes = [int_value(d) for d in w.shape[-2:]]
    if None in sizes or min(x.ndim, w.ndim) < 2 or call.attrs.transpose_a or call.attrs.transpose_b:
        return False
    if x.shape[:-2] != w.shape[:-2] and (w.ndim > 2 or call.attrs.wide):
        return False
    k, n = (d or 0 for d in sizes)
    if call.attrs.wide:
        return k % 2 == 0
    rows = int_value(x.shape[-2]) or 64
    return _is_float32(call) and rows >= _PACKED_ROWS and rows * k * n >= _PACKED_WORK


def _is_float32(call: Call) -> bool:
    return all(
        isinstance(a.type, TensorType) and (a.type.dtype.name == "float32" or i > 2)
        for i, a in enumerate(call.args)
    )

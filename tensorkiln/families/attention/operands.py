"""Sizes and operands of an attention, whatever computes it."""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, IntImm, binary, cast, const, int_value, select
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.shape import reshaped_index
from tensorkiln.schedule.group import Group, static


class AttentionOperands:
    """q [batch, heads, rows, depth], k [batch, heads, keys, depth], v [batch, heads, keys, width],
    an optional mask. `q` and `v` give the elements of these operands, with their prologues."""

    def __init__(self, group: Group):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        self.group, self.call, self.var = group, call, var
        qt, kt, vt = (a.type for a in call.args[:3])
        assert isinstance(qt, TensorType) and isinstance(kt, TensorType)
        assert isinstance(vt, TensorType)
        self.batch, self.heads, self.rows = qt.shape[0], qt.shape[1], qt.shape[2]
        self.depth, self.width = static(qt.shape[3], "head size"), static(vt.shape[3], "head size")
        self.keys = kt.shape[2]
        self.dtype = var.tensor.dtype  # of scores and sums
        self.q, self.v = group.element(call.args[0]), group.element(call.args[2])
        self.mask = group.element(call.args[3]) if len(call.args) > 3 else None
        self.mask_type = call.args[3].type if len(call.args) > 3 else None
        self.causal = bool(call.attrs.causal)
        self.scale = float(call.attrs.scale)

    @property
    def keeps_zero(self) -> bool:
        """Whether a query that sees no key gives zeros, not NaN."""
        return bool(self.call.attrs.unseen == "zero")

    def score(self, raw: Expr, b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
        """scale * raw + mask; minus infinity where a boolean mask is false, or with `causal` where
        key t comes after query s (the last query sees the last key)."""
        return self.masked(raw * const(self.scale, self.dtype), b, h, s, t)

    @property
    def adds_mask(self) -> bool:
        """Whether the mask is a number that is added to each score."""
        return isinstance(self.mask_type, TensorType) and not self.mask_type.dtype.is_bool

    def masked(self, value: Expr, b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
        """As `score`, of scale * raw."""
        if self.mask is not None:
            assert isinstance(self.mask_type, TensorType)
            shape = self.mask_type.shape
            full = (b, h, s, t)[4 - len(shape) :]
            pairs = zip(full, shape, strict=True)
            index = [IntImm(0) if int_value(e) == 1 else i for i, e in pairs]
            m = self.mask(*index)
            low = const(float("-inf"), self.dtype)
            value = select(m, value, low) if m.dtype.is_bool else value + cast(m, self.dtype)
        return self.after_causal(value, s, t)

    def after_causal(self, score: Expr, s: Expr, t: Expr) -> Expr:
        """The score, with `causal` minus infinity where key t comes after query s."""
        if not self.causal:
            return score
        visible = binary("le", t, s + (self.keys - self.rows))
        return select(visible, score, const(float("-inf"), self.dtype))

    def outer_index(self, b: Expr, h: Expr, s: Expr, d: Expr) -> tuple[Expr, ...]:
        """The logical index in the group's output of element (b, h, s, d) of the attention, after
        the transposes, reshapes and casts of the epilogue."""
        index: tuple[Expr, ...] = (b, h, s, d)
        var = self.var
        while var is not self.group.out_var:
            consumer, call = next((v, k) for v, k in self.group.calls.items() if var in k.args)
            if call.op == "cast":
                pass
            elif call.op == "transpose":
                index = tuple(index[a] for a in call.attrs.axes)
            else:
                index = reshaped_index(consumer.tensor.shape, var.tensor.shape, index)
            var = consumer
        return tuple(map(simplify, index))

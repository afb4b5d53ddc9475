"""Element types that are stored and not computed with: floats of 4 to 8 bits, integers of 2 and 4.

Programs have no such types. A tensor of one is a tensor of bytes in graphs: each element takes a
byte, which holds the bits of a float (uint8), or the value of an integer (uint8 or int8). Casts and
quantisation convert; operators that only move elements move the bytes; all others refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorkiln.base.element_types import NARROW_TYPES, ElementType
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.ir.relax import TensorType

if TYPE_CHECKING:
    from tensorkiln.frontend.graph.context import Context
    from tensorkiln.frontend.graph.values import SymbolicTensor, Val
    from tensorkiln.ir.relax import Constant, RVar


@dataclass(frozen=True, slots=True)
class Format:
    """An element type, of which arrays have type `row`, and ONNX's name for it.

    Of a float with a sign the largest magnitude is `greatest`, as bits. What is beyond is `beyond`:
    the bits of an infinity, of NaN, or `greatest` where the type has neither. `nan` is None without
    one. With `fnuz` there is no negative zero, its bits are NaN, and the bias is one more.
    """

    name: str
    row: ElementType
    greatest: int = 0
    beyond: int = 0
    nan: int | None = None
    fnuz: bool = False

    @property
    def is_float(self) -> bool:
        """Whether it is a float with a sign; `float8e8m0` is a power of two and has none."""
        return self.greatest > 0

    @property
    def bias(self) -> int:
        """What is added to exponents."""
        return self.row.bias + self.fnuz


SCALE = Format("float8e8m0", NARROW_TYPES["float8_e8m0fnu"])
_ALL = (
    Format("float8e4m3fn", NARROW_TYPES["float8_e4m3fn"], 0x7E, 0x7F, 0x7F),
    Format("float8e4m3fnuz", NARROW_TYPES["float8_e4m3fnuz"], 0x7F, 0x80, 0x80, fnuz=True),
    Format("float8e5m2", NARROW_TYPES["float8_e5m2"], 0x7B, 0x7C, 0x7E),
    Format("float8e5m2fnuz", NARROW_TYPES["float8_e5m2fnuz"], 0x7F, 0x80, 0x80, fnuz=True),
    Format("float6e2m3", NARROW_TYPES["float6_e2m3fn"], 0x1F, 0x1F),
    Format("float6e3m2", NARROW_TYPES["float6_e3m2fn"], 0x1F, 0x1F),
    Format("float4e2m1", NARROW_TYPES["float4_e2m1fn"], 0x07, 0x07),
    SCALE,
    Format("uint4", NARROW_TYPES["uint4"]),
    Format("int4", NARROW_TYPES["int4"]),
    Format("uint2", NARROW_TYPES["uint2"]),
    Format("int2", NARROW_TYPES["int2"]),
)
FORMATS = {f.name: f for f in _ALL}


@dataclass(frozen=True, slots=True, eq=False)
class Narrow:
    """A tensor of a narrow type: its bytes in a graph."""

    stored: RVar | Constant | SymbolicTensor
    format: Format

    @property
    def tensor(self) -> TensorType:
        """The type of the bytes."""
        tensor_type: TensorType = self.stored.tensor
        return tensor_type


def unpacked(data: np.ndarray, row: ElementType, count: int) -> np.ndarray:
    """The bytes of `count` elements that are packed in `data`, uint8, from the lowest bit on; of 8
    bits a view."""
    if row.bits == 8:
        return data[:count].view(row.stored.name)
    bits = np.unpackbits(data, bitorder="little")[: count * row.bits].reshape(-1, row.bits)
    wide = np.zeros((count, 8), np.uint8)
    wide[:, : row.bits] = bits
    if row.stored.is_signed:
        wide[:, row.bits :] = bits[:, -1:]
    return np.packbits(wide, axis=1, bitorder="little").reshape(count).view(row.storage)


def taken(g: Context, param: RVar, f: Format) -> Narrow:
    """An input. Of its bytes the lowest bits count; those above become what `Narrow` has there."""
    row = f.row
    if row.bits == 8:
        return Narrow(param, f)
    if not row.stored.is_signed:
        low = g.const((1 << row.bits) - 1, row.storage)
        return Narrow(g.emit("bitwise_and", param, low), f)
    up = g.const(8 - row.bits, row.storage)
    return Narrow(g.emit("right_shift", g.emit("left_shift", param, up), up), f)


# -- conversions ------------------------------------------------------------------------------


def decoded(g: Context, x: Narrow, dtype: str) -> Val:
    """The elements as numbers of another type; floats by way of float32, which has them all."""
    f = x.format
    if f.is_float:
        return g.cast(_from_bits(g, x.stored, f), dtype)
    if f is SCALE:
        return g.cast(_from_exponent(g, x.stored), dtype)
    return g.cast(x.stored, dtype)


def encoded(g: Context, x: Val, f: Format, saturate: bool, rounding: str = "up") -> Narrow:
    """Numbers as a narrow type. Floats are rounded to the nearest, halves to even; those beyond the
    greatest become it with `saturate`, else an infinity or NaN as far as the type has one. Integers
    keep their lowest bits. `rounding` is how float8e8m0 is: up, down or nearest."""
    if f.is_float:
        return Narrow(_to_bits(g, _single(g, x), f, saturate), f)
    if f is SCALE:
        return Narrow(_to_exponent(g, _single(g, x), saturate, rounding), f)
    i = _Ints(g)
    whole: Val = g.cast(x, "int32")
    if f.row.is_signed:
        up = 32 - f.row.bits
        whole = i("right_shift", i("left_shift", whole, up), up)
    else:
        whole = i("bitwise_and", whole, (1 << f.row.bits) - 1)
    return Narrow(g.cast(whole, f.row.storage), f)


class _Ints:
    """Applies operators, to operands of which some are Python's integers."""

    def __init__(self, g: Context) -> None:
        self.g = g

    def __call__(self, op: str, *args: Val | int) -> Val:
        return self.g.emit(
            op, *(self.g.const(a, "int32") if isinstance(a, int) else a for a in args)
        )

    def bits(self, x: Val) -> Val:
        """The bits of float32."""
        return self.g.emit("bitcast", x, dtype="int32")

    def number(self, bits: Val) -> Val:
        """float32 of these bits."""
        return self.g.emit("bitcast", bits, dtype="float32")


def _single(g: Context, x: Val) -> Val:
    """`x` as float32. float64 is rounded to odd, so that rounding again gives what rounding once
    would."""
    if g.dtype(x) != "float64":
        return g.cast(x, "float32")
    i, near = _Ints(g), g.cast(x, "float32")
    back = g.cast(near, "float64")
    over = g.emit("greater", g.emit("abs", back), g.emit("abs", x))
    exact = g.emit("logical_or", g.emit("equal", back, x), g.emit("isnan", x))
    floor_bits = i("sub", i.bits(near), g.cast(over, "int32"))
    return g.emit("where", exact, near, i.number(i("bitwise_or", floor_bits, 1)))


def _from_bits(g: Context, stored: Val, f: Format) -> Val:
    i = _Ints(g)
    bits = g.cast(stored, "int32")
    magnitude = i("bitwise_and", bits, (1 << f.row.bits - 1) - 1)
    exponent = i("left_shift", magnitude, 23 - f.row.mantissa)
    normal = i.number(i("add", exponent, (127 - f.bias) << 23))
    unit = g.const(2.0 ** (1 - f.bias - f.row.mantissa), "float32")
    small = g.emit("mul", g.cast(magnitude, "float32"), unit)
    value = g.emit("where", i("less", magnitude, 1 << f.row.mantissa), small, normal)
    infinite = f.beyond if f.beyond not in (f.greatest, f.nan) else None
    if infinite is not None:
        value = g.emit("where", i("equal", magnitude, infinite), g.const(np.inf, "float32"), value)
    negative = i("not_equal", i("bitwise_and", bits, 1 << f.row.bits - 1), 0)
    value = g.emit("where", negative, g.emit("neg", value), value)
    if f.nan is None:
        return value
    is_nan = i("equal", bits, f.nan)
    if not f.fnuz:
        is_nan = i("greater", magnitude, f.greatest if infinite is None else infinite)
    return g.emit("where", is_nan, g.const(np.nan, "float32"), value)


def _to_bits(g: Context, x: Val, f: Format, saturate: bool) -> Val:
    i, drop = _Ints(g), 23 - f.row.mantissa
    bits = i.bits(x)
    magnitude = i("bitwise_and", bits, 0x7FFFFFFF)
    sign = i("left_shift", g.cast(i("less", bits, 0), "int32"), f.row.bits - 1)
    odd = i("bitwise_and", i("right_shift", magnitude, drop), 1)
    half = i("add", i("add", magnitude, (1 << drop - 1) - 1), odd)
    normal = i("sub", i("right_shift", half, drop), (127 - f.bias) << f.row.mantissa)
    unit = g.const(2.0 ** (f.bias + f.row.mantissa - 1), "float32")
    size = i.number(magnitude)
    min_normal = g.const(2.0 ** (1 - f.bias), "float32")
    below = g.emit("less", size, min_normal)
    # Chosen before it is scaled: what is far greater would be no integer.
    small = g.emit("where", below, size, g.const(0, "float32"))
    small = g.cast(g.emit("round", g.emit("mul", small, unit)), "int32")
    code = g.emit("where", below, small, normal)
    beyond = f.greatest if saturate else f.beyond
    code = g.emit("where", i("greater", code, f.greatest), g.const(beyond, "int32"), code)
    if f.nan is None:
        # As other libraries have it: NaN becomes a negative zero.
        nan: Val = g.const(1 << f.row.bits - 1, "int32")
    else:
        nan = g.const(f.nan, "int32") if f.fnuz else i("bitwise_or", sign, f.nan)
    signed = i("bitwise_or", code, sign)
    if f.fnuz:
        empty = g.emit("logical_or", i("equal", code, 0), i("equal", code, f.nan or 0))
        signed = g.emit("where", empty, code, signed)
    codes = g.emit("where", i("greater", magnitude, 0x7F800000), nan, signed)
    return g.cast(codes, "uint8")


def _from_exponent(g: Context, stored: Val) -> Val:
    """2**(stored - 127); NaN for 255."""
    i, bits = _Ints(g), g.cast(stored, "int32")
    # 2**-127 has no exponent of float32: it is half of the least normal number.
    normal = i.number(i("left_shift", bits, 23))
    subnormal = g.const(np.ldexp(np.float32(1), -127), "float32")
    value = g.emit("where", i("equal", bits, 0), subnormal, normal)
    return g.emit("where", i("equal", bits, 255), g.const(np.nan, "float32"), value)


def _to_exponent(g: Context, x: Val, saturate: bool, rounding: str) -> Val:
    """The exponents of numbers, whose signs are ignored; 255 of infinities and NaN."""
    i = _Ints(g)
    bits = i("bitwise_and", i.bits(x), 0x7FFFFFFF)
    exponent = i("right_shift", bits, 23)
    fraction = i("bitwise_and", bits, 0x7FFFFF)
    match rounding:
        case "up":
            increment = i("greater", fraction, 0)
        case "down":
            increment = i("less", fraction, 0)
        case "nearest":
            # A tie rounds away from an exponent that is not the least.
            is_lowest = g.cast(i("equal", exponent, 0), "int32")
            increment = g.emit("greater_equal", fraction, i("add", is_lowest, 1 << 22))
        case _:
            raise malformed(f"round_mode={rounding!r}; expected 'up', 'down' or 'nearest'")
    rounded = i("add", exponent, g.cast(increment, "int32"))
    code = i("minimum", rounded, 254) if saturate else rounded
    return g.cast(g.emit("where", i("equal", exponent, 255), g.const(255, "int32"), code), "uint8")


# -- operators --------------------------------------------------------------------------------

# Operators that move elements, and need not know what the bytes mean.
MOVEMENT = frozenset(
    [
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "ReverseSequence",
        "Transpose",
        "Unsqueeze",
    ]
)
# Operators that say nothing of elements.
SHAPES = frozenset({"Shape", "Size"})
# Operators whose importers take Narrow operands.
CONVERSIONS = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})


def moved(
    op: str,
    run: Callable[[Sequence[Val | None]], Sequence[Val]],
    operands: Sequence[Val | Narrow | None],
) -> Sequence[Val | Narrow]:
    """What an operator that moves elements gives for operands of which some are Narrow. The data
    are the first operand, of Concat all; NodeProblem if their types differ."""
    data = operands if op == "Concat" else operands[:1]
    names = {element_type(v) for v in data if v is not None}
    if len(names) > 1 or not isinstance(operands[0], Narrow):
        listed = ", ".join(sorted({element_type(v) for v in operands if v is not None}))
        raise malformed(f"operands have different element types: {listed}")
    format = operands[0].format
    plain = [v.stored if isinstance(v, Narrow) else v for v in operands]
    return [Narrow(v, format) for v in run(plain)]


def element_type(x: Val | Narrow) -> str:
    """The name of the element type."""
    return x.format.name if isinstance(x, Narrow) else x.tensor.dtype.name

"""Operators of ATen on complex numbers, and Fourier transforms.

What moves elements, and sums, is applied to both parts by the importer of real tensors; products,
magnitudes and elementary functions are written out here. Transforms are products with constant
matrices, as ONNX's DFT is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorkiln.frontend.graph.fourier import transform
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.aten_math import atan2
from tensorkiln.frontend.torch.aten_reduce import vector_norm
from tensorkiln.frontend.torch.complex_values import Complex, is_complex
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.frontend.torch.values import part_name
from tensorkiln.ir.expr import Expr, int_value

_MOVED = """view _unsafe_view reshape squeeze squeeze.dim squeeze.dims unsqueeze permute
transpose.int t expand cat stack slice.Tensor select.int split_with_sizes split.Tensor unbind.int
flip roll repeat diagonal as_strided unfold clone alias detach lift_fresh_copy index_select
index.Tensor _unsafe_index.Tensor gather embedding reflection_pad1d reflection_pad2d
reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"""
_SUMMED = "neg _neg_view sum sum.dim_IntList mean mean.dim cumsum"
_OF_TWO = """add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar copy slice_scatter
select_scatter full_like fill.Scalar fill.Tensor"""
_BLANK = "zeros empty.memory_format empty_strided empty_permuted"
_BLANK_LIKE = "zeros_like new_zeros empty_like new_empty"

# Operators that treat both parts alike, with the places of the arguments that have parts; others,
# such as sizes, indices and conditions, are the same for both.
PART_WISE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys((*_MOVED.split(), *_SUMMED.split(), *_BLANK_LIKE.split()), (0,)),
    **dict.fromkeys(_OF_TWO.split(), (0, 1)),
    **dict.fromkeys(_BLANK.split(), ()),
    "constant_pad_nd": (0, 2),
    "where.self": (1, 2),
    "masked_fill.Scalar": (0, 2),
    "masked_fill.Tensor": (0, 2),
    "index_put": (0, 2),
    "_unsafe_index_put": (0, 2),
    "scatter.src": (0, 3),
    "scatter_add": (0, 3),
    "index_add": (0, 3),
    "index_copy": (0, 3),
    "full": (1,),
    "new_full": (0, 2),
    "scalar_tensor": (0,),
}


def complex_importer(name: str, importers: AtenTable) -> AtenImporter:
    """The importer of an operator that has complex operands or results; `importers` are those of
    real tensors. NodeProblem, with the way around, without one."""
    if name in TABLE:
        return TABLE[name]
    if name in OVERLOADS:
        return OVERLOADS[name]
    if name in PART_WISE and name in importers:
        return _part_wise(importers[name], PART_WISE[name])
    raise unsupported(
        f"the operator {name} is not supported for complex numbers",
        "torch.view_as_real gives both parts as floats",
        "operator",
    )


def _part_wise(importer: AtenImporter, places: Sequence[int]) -> AtenImporter:
    def run(g: AtenContext, *operands: Any, **options: Any) -> Any:
        plain_operands = [v for k, v in enumerate(operands) if k not in places]
        if is_complex([*plain_operands, *options.values()]):
            raise unsupported("a complex factor", "torch.view_as_real gives both parts as floats")
        parts: list[Any] = []
        for part in (_real, _imag):
            args = [part(g, v) if k in places else v for k, v in enumerate(operands)]
            parts.append(importer(g, *args, **options))
        real, imag = parts
        if isinstance(real, Val) and isinstance(imag, Val):
            return Complex(real, imag)
        return [Complex(a, b) for a, b in zip(real, imag, strict=True)]

    # What the dispatcher reads of an importer is what it reads of the one for real tensors.
    run.__signature__ = inspect.signature(importer)  # type: ignore[attr-defined]
    return run


def _real(g: AtenContext, value: Any) -> Any:
    """The real part of an argument: a tensor, a number, or a list of them."""
    if isinstance(value, list | tuple):
        return [_real(g, v) for v in value]
    return value.real if isinstance(value, Complex | complex) else value


def _imag(g: AtenContext, value: Any) -> Any:
    """The imaginary part of an argument; that of a real one is 0."""
    if isinstance(value, list | tuple):
        return [_imag(g, v) for v in value]
    if isinstance(value, Complex | complex):
        return value.imag
    if isinstance(value, Val):
        return g.spread(g.like(0, value), g.shape(value))
    return 0 if isinstance(value, bool | int | float | Expr) else value


# -- parts ----------------------------------------------------------------------------------------


def view_as_complex(g: AtenContext, x: Val) -> Complex:
    """Numbers of parts that are the two elements of the last dimension."""
    shape = g.shape(x)[:-1]
    real, imag = (g.reshape(g.sliced(x, len(shape), k, 1), shape) for k in range(2))
    return Complex(real, imag)


def view_as_real(g: AtenContext, x: Complex) -> Val:
    """Both parts as a last dimension."""
    rank = g.rank(x.real)
    return g.emit("concat", *(g.reshape(v, (*g.shape(v), 1)) for v in (x.real, x.imag)), axis=rank)


def complex_of(g: AtenContext, real: Val, imag: Val) -> Complex:
    """Numbers of their parts."""
    shape = g.out.shape
    return Complex(g.spread(real, shape), g.spread(imag, shape))


def polar(g: AtenContext, magnitude: Val, angle: Val) -> Complex:
    """Numbers of their magnitudes and angles."""
    shape, (cos, sin) = g.out.shape, _turn(g, angle)
    parts = (g.emit("mul", magnitude, v) for v in (cos, sin))
    real, imag = (g.spread(v, shape) for v in parts)
    return Complex(real, imag)


def conj(g: AtenContext, x: Val | Complex) -> Val | Complex:
    """The conjugate; a real tensor is its own."""
    return Complex(x.real, g.emit("neg", x.imag)) if isinstance(x, Complex) else x


def to_copy(g: AtenContext, x: Val | Complex, *, dtype: Any = None) -> Val | Complex:
    """In another element type; real numbers have the imaginary part 0, and lose it from complex."""
    if dtype is None:
        return x
    name = part_name(dtype)
    if not dtype.is_complex:
        return g.cast(_real(g, x), name)
    return Complex(g.cast(_real(g, x), name), g.cast(_imag(g, x), name))


def magnitude(g: AtenContext, x: Complex) -> Val:
    """The absolute value, whose squares neither overflow nor vanish; NaN if a part is."""
    a, b = (g.emit("abs", v) for v in (x.real, x.imag))
    high, low = g.emit("maximum", a, b), g.emit("minimum", a, b)
    # Two zeros and two infinities have the ratio 1, too.
    ratio = g.emit("where", g.emit("equal", a, b), g.like(1, a), g.emit("div", low, high))
    square = g.emit("mul", ratio, ratio)
    return g.emit("mul", high, g.emit("sqrt", g.emit("add", square, g.like(1, a))))


def angle(g: AtenContext, x: Val | Complex) -> Val:
    """The angle from -pi to pi; that of a negative number is pi."""
    if isinstance(x, Complex):
        return atan2(g, x.imag, x.real)
    y = g.floating(x)
    half = g.emit("where", g.emit("less", y, g.like(0, y)), g.like(math.pi, y), g.like(0, y))
    return g.emit("where", g.emit("not_equal", y, y), y, half)


# -- arithmetic -----------------------------------------------------------------------------------


def _typed(g: AtenContext, x: Operand) -> Val | Complex:
    """An operand in the element type of the result's parts."""
    name = g.out.dtype.name
    if isinstance(x, Complex | complex):
        return Complex(g.number(x.real, name), g.number(x.imag, name))
    return g.number(x, name)


def _multiplied(
    g: AtenContext, a: Val | Complex, b: Val | Complex, product: Callable[[Val, Val], Val]
) -> Val | Complex:
    """The product of numbers by a product of their parts."""
    if not isinstance(a, Complex) and not isinstance(b, Complex):
        return product(a, b)
    if not isinstance(b, Complex):
        assert isinstance(a, Complex)
        return Complex(product(a.real, b), product(a.imag, b))
    if not isinstance(a, Complex):
        return Complex(product(a, b.real), product(a, b.imag))
    return Complex(
        g.emit("sub", product(a.real, b.real), product(a.imag, b.imag)),
        g.emit("add", product(a.real, b.imag), product(a.imag, b.real)),
    )


def _times(g: AtenContext, a: Val | Complex, b: Val | Complex) -> Val | Complex:
    return _multiplied(g, a, b, lambda x, y: g.emit("mul", x, y))


def mul(g: AtenContext, a: Operand, b: Operand) -> Val | Complex:
    """a * b"""
    return _times(g, _typed(g, a), _typed(g, b))


def div(g: AtenContext, a: Operand, b: Operand) -> Val | Complex:
    """a / b; a complex divisor is divided by its larger part first, so that its square is
    finite."""
    x, y = _typed(g, a), _typed(g, b)
    if not isinstance(y, Complex):
        return _over(g, x, y)
    scale = g.emit("maximum", *(g.emit("abs", v) for v in (y.real, y.imag)))
    near = _over(g, y, scale)
    assert isinstance(near, Complex)
    square = g.emit("add", *(g.emit("mul", v, v) for v in (near.real, near.imag)))
    turned = _times(g, x, Complex(near.real, g.emit("neg", near.imag)))
    return _over(g, _over(g, turned, square), scale)


def _over(g: AtenContext, x: Val | Complex, y: Val) -> Val | Complex:
    if isinstance(x, Complex):
        return Complex(g.emit("div", x.real, y), g.emit("div", x.imag, y))
    return g.emit("div", x, y)


def matmul(g: AtenContext, a: Val | Complex, b: Val | Complex) -> Val | Complex:
    """The product of matrices."""
    return _multiplied(g, a, b, lambda x, y: g.emit("matmul", x, y))


def addmm(
    g: AtenContext, c: Operand, a: Operand, b: Operand, *, beta: Operand = 1, alpha: Operand = 1
) -> Val | Complex:
    """beta * c + alpha * (a @ b)"""
    product = _scaled(g, matmul(g, _typed(g, a), _typed(g, b)), alpha)
    addend = _scaled(g, _typed(g, c), beta)
    parts = (g.emit("add", part(g, addend), part(g, product)) for part in (_real, _imag))
    real, imag = (g.spread(v, g.out.shape) for v in parts)
    return Complex(real, imag)


def linear(g: AtenContext, x: Operand, weight: Operand, bias: Operand = None) -> Val | Complex:
    """x @ weight.T + bias"""
    product = _multiplied(
        g,
        _typed(g, x),
        _typed(g, weight),
        lambda a, b: g.emit("matmul", a, b, transpose_b=True),
    )
    if bias is None:
        return product
    addend = _typed(g, bias)
    return Complex(*(g.emit("add", part(g, product), part(g, addend)) for part in (_real, _imag)))


def _scaled(g: AtenContext, x: Val | Complex, factor: Operand) -> Val | Complex:
    return x if factor == 1 else _times(g, x, _typed(g, factor))


def equal(g: AtenContext, a: Operand, b: Operand) -> Val:
    """Whether both parts are equal."""
    pairs = _compared_parts(g, a, b)
    return g.emit("logical_and", *(g.emit("equal", x, y) for x, y in pairs))


def not_equal(g: AtenContext, a: Operand, b: Operand) -> Val:
    """Whether one of the parts differs."""
    pairs = _compared_parts(g, a, b)
    return g.emit("logical_or", *(g.emit("not_equal", x, y) for x, y in pairs))


def _compared_parts(g: AtenContext, a: Operand, b: Operand) -> list[list[Val]]:
    return [g.promoted(part(g, a), part(g, b)) for part in (_real, _imag)]


def is_nan(g: AtenContext, x: Complex) -> Val:
    """Whether a part is not a number."""
    return g.emit("logical_or", *(g.emit("not_equal", v, v) for v in (x.real, x.imag)))


# -- elementary functions -------------------------------------------------------------------------


def _turn(g: AtenContext, angle: Val) -> tuple[Val, Val]:
    return g.emit("cos", angle), g.emit("sin", angle)


def exp(g: AtenContext, x: Complex) -> Complex:
    """e ** x"""
    return polar(g, g.emit("exp", x.real), x.imag)


def log(g: AtenContext, x: Complex) -> Complex:
    """The logarithm whose imaginary part is the angle."""
    return Complex(g.emit("log", magnitude(g, x)), angle(g, x))


def sqrt(g: AtenContext, x: Complex) -> Complex:
    """The square root with a real part that is not negative."""
    return _power(g, x, 0.5)


def _power(g: AtenContext, x: Complex, exponent: float) -> Complex:
    size = g.emit("pow", magnitude(g, x), g.like(exponent, x.real))
    return polar(g, size, g.emit("mul", angle(g, x), g.like(exponent, x.real)))


def pow_(g: AtenContext, x: Complex, exponent: Operand) -> Val | Complex:
    """x ** exponent for a real number; small whole ones are products."""
    if not isinstance(x, Complex) or not isinstance(exponent, bool | int | float):
        raise unsupported("a power of complex numbers with a complex or symbolic exponent")
    if exponent not in range(1, 9):
        return _power(g, x, float(exponent))
    total: Val | Complex = x
    for _ in range(int(exponent) - 1):
        total = _times(g, total, x)
    return total


def sgn(g: AtenContext, x: Complex) -> Complex:
    """x / |x|; of 0 it is 0."""
    size = magnitude(g, x)
    safe = g.emit("where", g.emit("equal", size, g.like(0, size)), g.like(1, size), size)
    return Complex(g.emit("div", x.real, safe), g.emit("div", x.imag, safe))


# -- Fourier transforms ---------------------------------------------------------------------------


def fft_r2c(
    g: AtenContext, x: Val, axes: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    """The transform of a real tensor; with `onesided`, the first half along the last of `axes`."""
    *leading_axes, last = axes
    half = _along(g, [x], last, normalization, onesided=onesided)
    for axis in leading_axes:
        half = _along(g, half, axis, normalization)
    return Complex(*half)


def fft_c2c(
    g: AtenContext, x: Complex, axes: Sequence[int], normalization: int, forward: bool
) -> Complex:
    """The transform along some dimensions, or its inverse."""
    parts = [x.real, x.imag]
    for axis in axes:
        parts = _along(g, parts, axis, normalization, inverse=not forward)
    return Complex(*parts)


def fft_c2r(
    g: AtenContext, x: Complex, axes: Sequence[int], normalization: int, last_dim_size: Operand
) -> Val:
    """The inverse transform of a half, with a real result of this extent along the last axis."""
    *leading_axes, last = axes
    parts = [x.real, x.imag]
    for axis in leading_axes:
        parts = _along(g, parts, axis, normalization, inverse=True)
    (size,) = g.extents_of([last_dim_size])
    return _along(g, parts, last, normalization, inverse=True, onesided=True, size=int_value(size))[
        0
    ]


def _along(
    g: AtenContext,
    parts: Sequence[Val],
    axis: int,
    normalization: int,
    *,
    inverse: bool = False,
    onesided: bool = False,
    size: int | None = None,
) -> list[Val]:
    """The parts of the transform along one dimension. `normalization` is torch's: nothing, division
    by the root of the size, or by the size."""
    rank = g.rank(parts[0])
    place = g.axis(axis, rank)
    size = int_value(g.shape(parts[0])[place]) if size is None else size
    if size is None:
        raise unsupported("a transform of symbolic length", "freeze={name: size}")
    order = [i for i in range(rank) if i != place] + [place]
    back = [order.index(i) for i in range(rank)]
    moved = [g.transpose(v, order) for v in parts]
    factor = size ** -(normalization / 2)
    results = transform(g, moved, size, inverse=inverse, onesided=onesided, factor=factor)
    return [g.transpose(v, back) for v in results]


# Operators of complex numbers, or of real ones with complex results.
TABLE: AtenTable = {
    "view_as_complex": view_as_complex,
    "view_as_real": view_as_real,
    "complex": complex_of,
    "polar": polar,
    "_conj": conj,
    "_conj_physical": conj,
    "conj_physical": conj,
    "angle": angle,
    "sgn": sgn,
    "_fft_r2c": fft_r2c,
    "_fft_c2c": fft_c2c,
    "_fft_c2r": fft_c2r,
}

# Those that real tensors have, too.
OVERLOADS: AtenTable = {
    "abs": magnitude,
    "_to_copy": to_copy,
    "prims::convert_element_type": lambda g, x, dtype: to_copy(g, x, dtype=dtype),
    **dict.fromkeys(("mul.Tensor", "mul.Scalar"), mul),
    **dict.fromkeys(("div.Tensor", "div.Scalar"), div),
    "reciprocal": lambda g, x: div(g, 1, x),
    **dict.fromkeys(
        ("mm", "bmm", "matmul", "mv", "dot"),
        lambda g, a, b: matmul(g, _typed(g, a), _typed(g, b)),
    ),
    "addmm": addmm,
    "baddbmm": addmm,
    "linear": linear,
    "linalg_vector_norm": lambda g, x, *operands, **options: vector_norm(
        g, magnitude(g, x), *operands, **options
    ),
    **dict.fromkeys(("eq.Tensor", "eq.Scalar"), equal),
    **dict.fromkeys(("ne.Tensor", "ne.Scalar"), not_equal),
    "isnan": is_nan,
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "pow.Tensor_Scalar": pow_,
    **dict.fromkeys(
        ("ones", "ones_like", "new_ones"),
        lambda g, *operands, **options: Complex(
            g.spread(g.number(1, g.out.dtype.name), g.out.shape),
            g.spread(g.number(0, g.out.dtype.name), g.out.shape),
        ),
    ),
}

"""Elementary functions as straight-line float32 programs, the same on every target.

Coefficients are minimax fits (iteratively reweighted least squares on Chebyshev points, weighted by
relative error). Accuracy against float64, in units of the last place (tests/codegen measures): exp
1, log 2, erf 3, tanh 3, sigmoid 3, gelu 8 for x > -1 (below, exp(-x*x/2) amplifies the rounding of
x*x: 8 + x*x/2), sin and cos 2 and tan 3 for |x| < 8192. pow is exp(y log x): 4 + 2|y log x|.
float16 and bfloat16 are computed in float32, GELU by a shorter program that is within 0.53 of their
own units of the last place; `math_double` holds the float64 forms, `math_shared` and `math_inverse`
what both have in common.

Where exp, sigmoid or a power would be below the smallest normal number (1.2e-38 in float32), the
result is 0, and GELU's tail ends at -3e-37: an operation on a denormal number takes Intel's
processors 150 cycles, and softmax, whose sum is at least 1, loses nothing. No function computes a
denormal number on the way to the result for a normal one. `python -m bench.denormals` measures what
they cost in every family of kernels.
"""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.expand import math_double, math_inverse, math_shared
from tensorkiln.codegen.expand.math_builder import Builder, Kit, Lets
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    INTRINSICS,
    Expr,
    Unary,
    Var,
    binary,
    cast,
    maximum,
    minimum,
    select,
)

_ERF = (
    1.1283791065216064,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853816583752632,
    0.00518833426758647,
    -0.0008010247256606817,
    7.854025170672685e-05,
)
_ERFCX = (
    0.2257036715745926,
    0.22501525282859802,
    0.21439090371131897,
    0.132155641913414,
    0.26487624645233154,
    -0.2709278464317322,
    0.5312324166297913,
    -0.4866328835487366,
    0.19282373785972595,
    -0.02863716147840023,
)
# e**r, with a relative error of 1.5 * 2**-24.
_EXP_SHORT = (
    1.0,
    0.9999997019767761,
    0.4999914765357971,
    0.1666763871908188,
    0.04189816117286682,
    0.008290272206068039,
)
# Phi(-x) exp(x*x/2) / t as a polynomial in t = 1 / (1 + 0.36 x), to 2**-24.
_NORMAL_TAIL = (
    0.14362458884716034,
    0.1435573548078537,
    0.12492797523736954,
    0.09239602833986282,
    0.008149692788720131,
    0.09519646316766739,
    -0.21323977410793304,
    0.13467757403850555,
    -0.029289940372109413,
)
# Phi(-x) ** (1/32) as a polynomial in x, and up to where, for results of 16 bits, by the bits of
# their exponent: to where GELU of float16 rounds to 0, and as far as that of float32 goes.
_NARROW_TAILS = {
    5: (
        5.8,
        (
            0.9785721898078918,
            -0.024403855204582214,
            -0.009409184567630291,
            -0.0009105024510063231,
            0.00025841896422207355,
            -1.559988595545292e-05,
            2.7105318167741643e-07,
        ),
    ),
    8: (
        12.9,
        (
            0.9785739779472351,
            -0.024388983845710754,
            -0.009455164894461632,
            -0.0008691155817359686,
            0.00024110250524245203,
            -1.169275856227614e-05,
            -2.2182985048857518e-07,
            3.1844972880890055e-08,
            -6.894231296961095e-10,
        ),
    ),
}
_TANH = (
    -0.3333325982093811,
    0.1333083063364029,
    -0.05368802323937416,
    0.02046942338347435,
    -0.005515167023986578,
)
_LOG = (
    0.3333333134651184,
    -0.250008225440979,
    0.20001226663589478,
    -0.16623356938362122,
    0.14201761782169342,
    -0.131601944565773,
    0.12761549651622772,
    -0.07634429633617401,
)


def _log(b: Builder, x: Expr) -> Expr:
    """log(m 2**e) = e ln 2 + log(m), m in [sqrt(1/2), sqrt(2))."""
    m, e, shift = math_shared.mantissa_exponent(b, x)
    ef = b.let(cast(e, b.dtype) + shift)
    f = b.let(m - b.num(1.0))
    f2 = b.let(f * f)
    p = b.let(b.poly(f, _LOG) * f2 * f)
    y = b.fma(ef, b.num(-2.12194440e-4), p)
    y = b.fma(f2, b.num(-0.5), y)
    y = b.let(b.let(f + y) + ef * b.num(0.693359375))
    return math_shared.log_special(b, x, y)


def _erfcx(b: Builder, z: Expr) -> Expr:
    """t P(t) with t = 1 / (1 + 0.4 z)."""
    t = b.let(b.num(1.0) / b.fma(z, b.num(0.4), b.num(1.0)))
    return b.let(b.poly(t, _ERFCX) * t)


def _tanh(b: Builder, x: Expr) -> Expr:
    z = b.let(Unary("abs", x))
    x2 = b.square(x)
    small = b.fma(b.let(b.poly(x2, _TANH) * x2), x, x)
    e = math_shared.exp_plain(b, b.let(minimum(b.num(64.0), z + z)))
    large = b.let(b.num(1.0) - b.num(2.0) / (e + b.num(1.0)))
    signed = select(x < b.num(0.0), -large, large)
    return b.let(select(b.num(0.625) < z, signed, small))


def _gelu(b: Builder, x: Expr) -> Expr:
    """max(x, 0) - |x| Phi(-|x|): without cancellation, so that the negative tail keeps its
    precision. There |x| is clamped to 12.9, where the tail is below 1e-36, and still normal."""
    z = b.let(minimum(b.num(12.9), Unary("abs", x)))
    s = b.square(z)
    t = b.let(b.num(1.0) / b.fma(z, b.num(0.36), b.num(1.0)))
    # exp(-s/2) = 2**k e**(-r/2), r = s + 2 k ln 2.
    shift = math_shared.scale_rounder(b)
    k, n = math_shared.nearest(b, s, -0.7213475204444817, shift)
    r = s
    for piece in b.kit.ln2:
        r = b.fma(n, b.num(2 * piece), r)
    p = b.poly(r, [c * (-0.5) ** n for n, c in enumerate(_EXP_SHORT)])
    density = b.let(p * math_shared.scale_of(b, k))
    tail = b.let(b.poly(t, _NORMAL_TAIL) * density)
    return b.fma(-b.let(z * t), tail, maximum(b.num(0.0), x))


def _narrow_gelu(b: Builder, x: Expr, dtype: DType) -> Expr:
    """As `_gelu`, for a result of `dtype`, 16 bits: few enough that the tail needs neither an
    exponential nor a division, but a polynomial, raised to a power by squaring."""
    end, coefficients = _NARROW_TAILS[dtype.row.exponent]
    z = b.let(minimum(b.num(end), Unary("abs", x)))
    root = b.poly(z, coefficients)
    for _ in range(4):
        root = b.let(root * root)
    return b.fma(-b.let(z * root), root, maximum(b.num(0.0), x))


def _pow(b: Builder, x: Expr, y: Expr) -> Expr:
    """pow(x, 0) = 1, also where log(x) is not a number."""
    general, _ = math_shared.general_pow(b, x, y)
    return b.let(select(binary("eq", y, b.num(0.0)), b.num(1.0), general))


_KIT = Kit(
    sqrt_half_bits=0x3F3504F3,
    exp_range=(-87.33654, 89.0),
    ln2=(0.693145751953125, 1.42860677e-06),
    half_pi=(1.5703125, 4.837512969970703e-4, 7.549789948768648e-8),
    exp=(0.49999994, 0.16666521, 0.041668389, 0.0083687156, 0.00138146),
    exp_short=_EXP_SHORT,
    sin=(-0.1666666716337204, 0.008333329111337662, -0.00019839312881231308, 2.718121777434135e-06),
    cos=(0.04166664555668831, -0.0013887316454201937, 2.44331567955669e-05),
    erf=_ERF,
    erfcx=_erfcx,
    log=_log,
)
_FUNCTIONS = (
    math_shared.FUNCTIONS
    | math_inverse.FUNCTIONS
    | {
        "gelu": _gelu,
        "tanh": _tanh,
        "pow": _pow,
    }
)
_TYPES = {"float32": (_KIT, _FUNCTIONS), "float64": (math_double.KIT, math_double.FUNCTIONS)}


def _narrow(
    name: str, dtype: DType, wide: DType, reassociates: bool
) -> tuple[list[Var], Lets, Expr]:
    """As `expand` on `wide`, whose result is rounded to `dtype`."""
    if name != "gelu":
        return expand(name, wide, reassociates)
    x, b = Var("a0", wide), Builder(wide, _KIT, reassociates)
    result = _narrow_gelu(b, x, dtype.element)
    return [x], b.lets, result


def expand(name: str, dtype: DType, reassociates: bool = False) -> tuple[list[Var], Lets, Expr]:
    """`name` on `dtype` as (parameters, let-bindings in order, result); see `Builder`.

    Raises UnsupportedError for integers.
    """
    if dtype.is_half:
        wide = DType("float32", dtype.lanes)
        outer = [Var(f"a{i}", dtype) for i in range(INTRINSICS[name].arity)]
        params, lets, result = _narrow(name, dtype, wide, reassociates)
        casts: Lets = [(p, cast(o, wide)) for p, o in zip(params, outer, strict=True)]
        return outer, casts + lets, cast(result, dtype)
    kit, table = _TYPES.get(dtype.name, (_KIT, {}))
    if name not in table:
        raise UnsupportedError(
            f"{name} on {dtype.element} is not implemented", hint="floats are; cast the operand"
        )
    params = [Var(f"a{i}", dtype) for i in range(INTRINSICS[name].arity)]
    b = Builder(dtype, kit, reassociates)
    result = table[name](b, *params)
    return params, b.lets, result

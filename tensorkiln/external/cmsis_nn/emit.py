"""C that calls CMSIS-NN: one file per external function.

    void symbol(const int8_t *p0, const int8_t *p1, const int32_t *p2, int8_t *out)

The file holds the tables of multipliers and shifts. The working memory of the library's function is
an array on the stack whose size is computed here, for cores with and without vector instructions
(M-Profile Vector Extension, MVE), and compared with what the library asks for when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import InternalError
from tensorkiln.external.cmsis_nn.fixed_point import FixedPointFactor
from tensorkiln.external.cmsis_nn.layers import ADD_SHIFT, PROBABILITY, CmsisLayer, layer
from tensorkiln.external.cmsis_nn.quantised import HIGHEST, LOWEST, Activation, parameter_of
from tensorkiln.external.cmsis_nn.version import URL, VERSION
from tensorkiln.external.cmsis_nn.workspace import Workspace, workspace
from tensorkiln.external.match import Definitions
from tensorkiln.ir.relax import Constant, Function, RVar, Value

_SOFTMAX_BITS = 5  # integer bits of the scaled differences in softmax


def emit(f: Function, symbol: str) -> list[Artifact]:
    """Return one C file that defines `symbol`."""
    return [Artifact("cmsis_nn", "native", f"{symbol}.c", source(f, symbol).encode())]


def source(f: Function, symbol: str) -> str:
    """The text of the C file of an external function."""
    graph = Definitions(f)
    cmsis_layer = next((x for b in f.bindings if (x := layer(b, graph)) is not None), None)
    if cmsis_layer is None:
        raise InternalError(f"function {f.name!r} has no layer of CMSIS-NN")
    names = {p: p.name for p in f.params}

    def pointer(v: Value | None) -> str:
        p = parameter_of(graph, v) if isinstance(v, RVar) else None
        return "NULL" if p is None else names[p]

    shape = _Call(cmsis_layer, symbol, pointer)
    params = [f"const {p.tensor.dtype.name}_t *{p.name}" for p in f.params]
    head = f"void {symbol}({', '.join([*params, 'int8_t *out'])})"
    lines = [*_tables(cmsis_layer), *_BODIES[cmsis_layer.kind](shape)]
    body = "\n".join(line if line.startswith("#") else f"    {line}" for line in lines)
    return (
        f"{_comment(cmsis_layer)}\n{_INCLUDES}\n{_room(shape.room)}"
        f"void kiln_assertion_failed(const char *message);\n{head};\n\n"
        f"{head}\n{{\n{body}\n}}\n"
    )


_INCLUDES = f"""#include <stddef.h>
#include <stdint.h>
#if defined(__has_include)
#if !__has_include("arm_nnfunctions.h")
#error "cmsis-nn {VERSION} is needed: git clone --branch {VERSION} {URL}, -I CMSIS-NN/Include"
#endif
#endif
#include "arm_nnfunctions.h"
"""


@dataclass(frozen=True, slots=True)
class _Call:
    """A layer with the names that its C has for operands."""

    layer: CmsisLayer
    symbol: str
    pointer: Callable[[Value | None], str]

    @property
    def room(self) -> Workspace:
        return workspace(self.layer)

    @property
    def x(self) -> Activation:
        return self.layer.inputs[0]

    @property
    def weights(self) -> str:
        return self.pointer(_variable(self.layer.weights.value if self.layer.weights else None))

    @property
    def bias(self) -> str:
        return self.pointer(_variable(self.layer.bias))


def _variable(v: Constant | RVar | None) -> RVar | None:
    return v if isinstance(v, RVar) else None


def _comment(x: CmsisLayer) -> str:
    shapes = " and ".join("x".join(map(str, a.shape)) for a in x.inputs)
    out = "x".join(map(str, x.output.shape))
    return f"/* {x.kind} by CMSIS-NN: int8 {shapes} -> {out} */"


def _room(room: Workspace) -> str:
    """Constants for the bytes of working memory."""
    if not room:
        return ""
    return f"""#if defined(ARM_MATH_MVEI)
enum {{ WORKSPACE = {room.vector} }};
#else
enum {{ WORKSPACE = {room.scalar} }};
#endif
"""


def _tables(x: CmsisLayer) -> Iterator[str]:
    """The factors of output channels. A convolution reads one for each, a matrix product only where
    its weights have several scales."""
    factors = x.factors
    if x.kind.endswith("conv2d") and len(factors) == 1:
        factors *= x.output.shape[1]
    if x.kind.endswith("conv2d") or (x.kind == "fully_connected" and len(factors) > 1):
        for name in ("multiplier", "shift"):
            values = _wrapped([getattr(f, name) for f in factors])
            yield f"static const int32_t {name}[] = {{{values}}};"


def _wrapped(values: Sequence[int]) -> str:
    rows = [values[i : i + 8] for i in range(0, len(values), 8)]
    if len(rows) == 1:
        return ", ".join(map(str, values))
    return "\n        " + ",\n        ".join(", ".join(map(str, r)) for r in rows)


def _dims(name: str, n: int, h: int, w: int, c: int) -> str:
    return f"const cmsis_nn_dims {name} = {{.n = {n}, .h = {h}, .w = {w}, .c = {c}}};"


def _image(name: str, a: Activation, batch: int | None = None) -> str:
    n, c, *spatial = a.shape
    h, w = spatial or (1, 1)
    return _dims(name, n if batch is None else batch, h, w, c)


def _tile(name: str, pair: Sequence[int]) -> str:
    return f".{name} = {{.w = {pair[1]}, .h = {pair[0]}}}"


def _activation(x: CmsisLayer) -> str:
    return f".activation = {{.min = {x.result.low}, .max = {x.result.high}}}"


def _offsets(c: _Call) -> str:
    return f".input_offset = {-c.x.zero}, .output_offset = {c.layer.output.zero}"


_CHANNELS = (
    "const cmsis_nn_per_channel_quant_params scales = {",
    "    .multiplier = (int32_t *)(uintptr_t)multiplier, .shift = (int32_t *)(uintptr_t)shift};",
)


def _context(c: _Call, size: str) -> Iterator[str]:
    """The array and the test of its size."""
    if not c.room:
        yield "const cmsis_nn_context context = {.buf = NULL, .size = 0};"
        return
    yield "int32_t workspace[WORKSPACE > 0 ? (WORKSPACE + 3) / 4 : 1];"
    yield f"const int32_t need = {size};"
    yield "const cmsis_nn_context context = {.buf = workspace, .size = WORKSPACE};"
    yield "if (need > WORKSPACE) {"
    yield f'    kiln_assertion_failed("{c.symbol}: CMSIS-NN asks for more working memory than "'
    yield f'                          "version {VERSION} does");'
    yield "    return;"
    yield "}"


def _checked(c: _Call, call: str) -> Iterator[str]:
    yield f"if ({call} != ARM_CMSIS_NN_SUCCESS)"
    yield f'    kiln_assertion_failed("{c.symbol}: CMSIS-NN refused the arguments");'


def _conv2d(c: _Call) -> Iterator[str]:
    x, w = c.layer, c.layer.weights
    assert w is not None
    depthwise = x.kind == "depthwise_conv2d"
    out, per_group, kh, kw = w.shape
    channels = c.x.shape[1]
    struct, function, extra = "cmsis_nn_conv_params", "arm_convolve_wrapper_s8", ""
    filter_dims = _dims("filter", out, kh, kw, per_group)
    if depthwise:
        struct, function = "cmsis_nn_dw_conv_params", "arm_depthwise_conv_wrapper_s8"
        extra = f".ch_mult = {out // channels}, "
        filter_dims = _dims("filter", 1, kh, kw, out)
    yield f"const {struct} params = {{"
    yield f"    {_offsets(c)}, {extra}{_tile('stride', x.attrs['strides'])},"
    yield f"    {_tile('padding', x.attrs['padding'])}, {_tile('dilation', x.attrs['dilation'])},"
    yield f"    {_activation(x)}}};"
    yield from _CHANNELS
    yield _image("input", c.x)
    yield filter_dims
    yield _dims("bias", 1, 1, 1, out)
    yield _image("output", x.output)
    yield from _context(c, f"{function}_get_buffer_size(&params, &input, &filter, &output)")
    yield from _checked(
        c,
        f"{function}(&context, &params, &scales, &input, {c.pointer(c.x.value)},\n"
        f"            &filter, {c.weights}, &bias, {c.bias}, &output, out)",
    )


def _fully_connected(c: _Call) -> Iterator[str]:
    x, w = c.layer, c.layer.weights
    assert w is not None
    depth, out = c.x.shape[-1], x.output.shape[-1]
    rows = 1
    for n in c.x.shape[:-1]:
        rows *= n
    yield f"const cmsis_nn_fc_params params = {{{_offsets(c)}, .filter_offset = 0,"
    yield f"    {_activation(x)}}};"
    function = "arm_fully_connected_s8"
    if len(w.scales) > 1:
        function = "arm_fully_connected_per_channel_s8"
        yield from _CHANNELS
    else:
        yield f"const cmsis_nn_per_tensor_quant_params scales = {_factor(x.factors[0])};"
    yield _dims("input", rows, 1, 1, depth)
    yield _dims("filter", depth, 1, 1, out)
    yield _dims("bias", 1, 1, 1, out)
    yield _dims("output", rows, 1, 1, out)
    yield from _context(c, "arm_fully_connected_s8_get_buffer_size(&filter)")
    yield "#if defined(ARM_MATH_MVEI) /* sums start from the bias and the zero point's terms */"
    yield from _checked(
        c,
        f"arm_vector_sum_s8(workspace, {depth}, {out}, {c.weights}, params.input_offset, 0,\n"
        f"            {c.bias})",
    )
    yield "#endif"
    yield from _checked(
        c,
        f"{function}(&context, &params, &scales, &input, {c.pointer(c.x.value)},\n"
        f"            &filter, {c.weights}, &bias, {c.bias}, &output, out)",
    )


def _factor(f: FixedPointFactor) -> str:
    return f"{{.multiplier = {f.multiplier}, .shift = {f.shift}}}"


def _pool(c: _Call) -> Iterator[str]:
    x = c.layer
    average = x.kind == "avg_pool"
    function = "arm_avgpool_s8" if average else "arm_max_pool_s8"
    kh, kw = x.attrs["kernel"]
    batch, channels, h, w = c.x.shape
    out_h, out_w = (*x.output.shape[2:], 1, 1)[:2]
    yield "const cmsis_nn_pool_params params = {"
    yield f"    {_tile('stride', x.attrs['strides'])}, {_tile('padding', x.attrs['padding'])},"
    yield f"    {_activation(x)}}};"
    yield _image("input", c.x, 1)
    yield _dims("filter", 1, kh, kw, 1)
    yield _dims("output", 1, out_h, out_w, channels)
    yield from _context(c, f"{function}_get_buffer_size({out_w}, {channels})")
    yield f"for (int32_t i = 0; i < {batch}; ++i)"
    source = f"{c.pointer(c.x.value)} + i * {channels * h * w}"
    target = f"out + i * {channels * out_h * out_w}"
    call = f"{function}(&context, &params, &input, {source}, &filter, &output,\n"
    yield from (f"    {line}" for line in _checked(c, f"{call}                {target})"))


def _softmax(c: _Call) -> Iterator[str]:
    (factor,) = c.layer.factors
    columns = c.x.shape[c.layer.attrs["axis"]]
    rows = 1
    for n in c.x.shape:
        rows *= n
    # The largest difference whose exponential is not zero in the library's fixed point.
    radius = ((1 << _SOFTMAX_BITS) - 1) * (1 << 31 - _SOFTMAX_BITS) >> factor.shift
    yield f"arm_softmax_s8({c.pointer(c.x.value)}, {rows // columns}, {columns},"
    yield f"               {factor.multiplier}, {factor.shift}, {-radius}, out);"
    if (c.layer.output.scale, c.layer.output.zero) == (PROBABILITY, -128):
        return
    yield "/* from steps of 1/256 to the scale and zero point of the result */"
    yield f"static const int8_t steps[] = {{{_wrapped(_probability_steps(c.layer.output))}}};"
    yield f"for (int32_t i = 0; i < {rows}; ++i)"
    yield "    out[i] = steps[out[i] + 128];"


def _probability_steps(y: Activation) -> list[int]:
    """The result for each of the 256 results of the library's softmax."""
    values = np.arange(256, dtype=np.float32) * np.float32(PROBABILITY) / np.float32(y.scale)
    return [int(v) for v in np.clip(np.rint(values) + y.zero, LOWEST, HIGHEST)]


def _add(c: _Call) -> Iterator[str]:
    x, y = c.layer.inputs
    count = 1
    for n in x.shape:
        count *= n
    left, right, last = (f"{f.multiplier}, {f.shift}" for f in c.layer.factors)
    result = c.layer.result
    yield from _checked(
        c,
        f"arm_elementwise_add_s8({c.pointer(x.value)}, {c.pointer(y.value)},\n"
        f"            {-x.zero}, {left}, {-y.zero}, {right}, {ADD_SHIFT},\n"
        f"            out, {result.activation.zero}, {last}, {result.low}, {result.high}, {count})",
    )


_BODIES: dict[str, Callable[[_Call], Iterator[str]]] = {
    "conv2d": _conv2d,
    "depthwise_conv2d": _conv2d,
    "fully_connected": _fully_connected,
    "max_pool": _pool,
    "avg_pool": _pool,
    "softmax": _softmax,
    "add": _add,
}

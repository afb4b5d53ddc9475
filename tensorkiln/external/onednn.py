"""The external `onednn`: convolutions and linear layers in float32 by oneDNN 2.

    exe = tk.compile(module, externals=["onednn"])

It takes `conv2d` and `linear`. The C code declares what it uses of oneDNN's interface (version 2,
`libdnnl.so.2`; version 3 has another), so that no headers are needed. Tensors stay row-major, and
each call makes its primitive anew: oneDNN keeps the code of primitives in a cache of its own, and a
primitive may be used by one thread at a time. The library of this machine is linked, and must be
there when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.external.c_text import KernelExtents, c_source, kernel_head
from tensorkiln.external.host_library import LibraryExternal
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, Function, TensorType

# What the C code uses of the interface; ROOM holds any descriptor of it.
ROOM = 16384
CONSTANTS = {
    "dnnl_cpu": 1,
    "dnnl_f32": 3,
    "dnnl_forward_inference": 96,
    "dnnl_convolution_auto": 3,
    "dnnl_stream_default_flags": 1,
    "DNNL_ARG_SRC": 1,
    "DNNL_ARG_DST": 17,
    "DNNL_ARG_WEIGHTS": 33,
    "DNNL_ARG_BIAS": 41,
}
_FUNCTIONS = """
int dnnl_engine_create(void **engine, int kind, size_t index);
int dnnl_engine_destroy(void *engine);
int dnnl_stream_create(void **stream, void *engine, unsigned flags);
int dnnl_stream_wait(void *stream);
int dnnl_stream_destroy(void *stream);
int dnnl_memory_desc_init_by_strides(onednn_desc *made, int ndims, const int64_t *dims, int type,
                                     const int64_t *strides);
int dnnl_memory_create(void **memory, const onednn_desc *desc, void *engine, void *data);
int dnnl_memory_destroy(void *memory);
int dnnl_dilated_convolution_forward_desc_init(
    onednn_desc *made, int kind, int algorithm, const onednn_desc *src, const onednn_desc *weights,
    const onednn_desc *bias, const onednn_desc *dst, const int64_t *strides,
    const int64_t *dilates, const int64_t *before, const int64_t *after);
int dnnl_inner_product_forward_desc_init(onednn_desc *made, int kind, const onednn_desc *src,
                                         const onednn_desc *weights, const onednn_desc *bias,
                                         const onednn_desc *dst);
int dnnl_primitive_desc_create(void **made, const onednn_desc *op, const void *attr, void *engine,
                               const void *hint);
int dnnl_primitive_desc_destroy(void *made);
int dnnl_primitive_create(void **primitive, const void *desc);
int dnnl_primitive_destroy(void *primitive);
int dnnl_primitive_execute(const void *primitive, void *stream, int count, const onednn_arg *args);
void kiln_assertion_failed(const char *message);
"""
# The parts of every kernel: `tensors` of them have descriptors `md` and addresses `data`.
_RUN = """\
    void *engine = NULL, *stream = NULL, *pd = NULL, *primitive = NULL;
    void *memory[4] = {NULL, NULL, NULL, NULL};
    onednn_arg args[4];
    int failed = dnnl_engine_create(&engine, dnnl_cpu, 0) ||
                 dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    for (int i = 0; i < COUNT; i++) {
        failed = failed || dnnl_memory_desc_init_by_strides(&md[i], ndims[i], dims[i], dnnl_f32,
                                                            strides[i]) ||
                 dnnl_memory_create(&memory[i], &md[i], engine, data[i]);
        args[i].arg = kinds[i];
        args[i].memory = memory[i];
    }
    failed = failed || INIT ||
             dnnl_primitive_desc_create(&pd, &op, NULL, engine, NULL) ||
             dnnl_primitive_create(&primitive, pd) ||
             dnnl_primitive_execute(primitive, stream, COUNT, args) || dnnl_stream_wait(stream);
    if (primitive != NULL)
        dnnl_primitive_destroy(primitive);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    for (int i = 0; i < COUNT; i++)
        if (memory[i] != NULL)
            dnnl_memory_destroy(memory[i]);
    if (stream != NULL)
        dnnl_stream_destroy(stream);
    if (engine != NULL)
        dnnl_engine_destroy(engine);
    if (failed)
        kiln_assertion_failed("SYMBOL: oneDNN cannot compute it");
"""


def _linear(call: Call, types: Sequence[TensorType]) -> str:
    symbolic = any(int_value(d) is None for t in types[1:] for d in t.shape)
    return "the weights have symbolic sizes" if symbolic else ""


def _conv2d(call: Call, types: Sequence[TensorType]) -> str:
    if symbolic := _linear(call, types):
        return symbolic
    if "channel_window" in call.attrs:
        return "its weights are stored for the windows of a kernel"
    images = None in map(int_value, types[0].shape[1:])
    return "only the batch of a convolution may be symbolic" if images else ""


def emit(f: Function, symbol: str) -> list[Artifact]:
    """One C file that computes one call."""
    (binding,) = f.bindings
    call = binding.value
    assert isinstance(call, Call)
    kinds = ["SRC", "WEIGHTS", *(["BIAS"] if len(f.params) == 3 else []), "DST"]
    names = [kind.lower() for kind in kinds]
    dims = _convolution_dims(f, call) if call.op == "conv2d" else _linear_dims(f)
    strides = [_row_major(d) for d in dims]
    if call.op == "linear":  # weights are [K, N], of which oneDNN sees the transpose
        strides[1] = ["1", dims[1][0]]
    bias = "&md[2]" if len(kinds) == 4 else "NULL"
    tensors = f"&md[0], &md[1], {bias}, &md[{len(kinds) - 1}]"
    init = f"dnnl_inner_product_forward_desc_init(&op, dnnl_forward_inference, {tensors})"
    windows = ""
    if call.op == "conv2d":
        init = (
            "dnnl_dilated_convolution_forward_desc_init(\n                 &op, "
            f"dnnl_forward_inference, dnnl_convolution_auto, {tensors},\n"
            "                 steps, dilates, before, after)"
        )
        windows = _windows(call)
    body = [
        f"    const int64_t dims[][5] = {{{', '.join(map(_braces, dims))}}};",
        f"    const int64_t strides[][5] = {{{', '.join(map(_braces, strides))}}};",
        f"    const int ndims[] = {_braces([str(len(d)) for d in dims])};",
        f"    const int kinds[] = {_braces([f'DNNL_ARG_{kind}' for kind in kinds])};",
        f"    void *const data[] = {_braces([f'(void *){name}' for name in names])};",
        f"{windows}    onednn_desc md[4], op;",
        _RUN.replace("COUNT", str(len(kinds))).replace("INIT", init).replace("SYMBOL", symbol),
    ]
    constants = ", ".join(f"{name} = {value}" for name, value in CONSTANTS.items())
    declared = (
        f"enum {{ {constants} }};\n"
        f"typedef struct onednn_desc {{\n    int64_t room[{ROOM // 8}];\n}} onednn_desc;\n"
        "typedef struct onednn_arg {\n    int arg;\n    void *memory;\n} onednn_arg;\n"
        f"{_FUNCTIONS}"
    )
    text = c_source(kernel_head(f, symbol, names), declared, "\n".join(body))
    return [Artifact("onednn", "native", f"{symbol}.c", text)]


def _convolution_dims(f: Function, call: Call) -> list[list[str]]:
    """Dimensions of operands and result, as C; weights of groups are [groups, O / groups, ...]."""
    types = [*(p.tensor for p in f.params), f.result.type]
    sizes, groups = KernelExtents(f), int(call.attrs.groups)
    dims = [[sizes.one(d) for d in t.shape] for t in types if isinstance(t, TensorType)]
    if groups > 1:
        outputs = int_value(f.params[1].tensor.shape[0])
        assert outputs is not None
        dims[1] = [f"INT64_C({groups})", f"INT64_C({outputs // groups})", *dims[1][1:]]
    return dims


def _linear_dims(f: Function) -> list[list[str]]:
    """All leading dimensions as one; weights as [N, K]."""
    x, w = (p.tensor for p in f.params[:2])
    sizes = KernelExtents(f)
    rows, (k, n) = sizes.product(x.shape[:-1]), map(sizes.one, w.shape)
    return [[rows, k], [n, k], *([[n]] if len(f.params) == 3 else []), [rows, n]]


def _row_major(dims: Sequence[str]) -> list[str]:
    return [" * ".join(dims[i + 1 :]) or "1" for i in range(len(dims))]


def _windows(call: Call) -> str:
    a = call.attrs
    top, left, bottom, right = a.padding
    rows = {
        "steps": a.strides,
        "dilates": [d - 1 for d in a.dilation],
        "before": (top, left),
        "after": (bottom, right),
    }
    return "".join(
        f"    const int64_t {name}[] = {_braces([str(v) for v in values])};\n"
        for name, values in rows.items()
    )


def _braces(items: Sequence[str]) -> str:
    return f"{{{', '.join(items)}}}"


ONEDNN = LibraryExternal(
    name="onednn",
    file="libdnnl.so.2",
    install="apt-get install libdnnl2 (oneDNN 2)",
    short_name="onednn",
    url="https://github.com/oneapi-src/oneDNN.git",
    license="Apache-2.0",
    dtypes=("float32",),
    reasons={"conv2d": _conv2d, "linear": _linear},
    emit=emit,
    fallible=True,
)
onednn = ONEDNN.external

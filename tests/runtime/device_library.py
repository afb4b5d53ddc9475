"""A library with devices, written by hand as generated code would be: the tests of crt/device.h.

Rows 1 and 2 of its table of devices are both of one kind, OpenCL or CUDA, with other target keys.

`main(x[n]) -> y[n]`: on the host; copied to device 1, y = (x + w) * 2 there, copied back.
`there(x[n], y[n])`: the same on tensors of device 1.
`across(x[n]) -> y[n]`: device 1 adds w, device 2 doubles, so it is copied from one to the other.
`host_only(x[n]) -> y[n]`: x + 1, without devices.
`twice(y[n])`: a tensor function that doubles in place on device 2.
`stray(x[n]) -> y[n]`: launches with an address that is of no device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.metadata import DeviceInfo, FunctionInfo, Metadata, ParamInfo
from tensorkiln.codegen.c_text.text import quote
from tensorkiln.link.artifacts import LinkPlan, link_artifacts
from tests.link.sample import TRIPLE

COUNT = 300_000  # the most for `n`: more bytes than one piece of a copy between devices
W = np.random.default_rng(5).standard_normal(2 * COUNT).astype(np.float32)

KERNELS = r"""
__kernel void add(__global uchar *p0_memory, long p0_start, __global uchar *p1_memory,
                  long p1_start, __global uchar *p2_memory, long p2_start, long n)
{
    __global const float *x = (__global const float *)(p0_memory + p0_start);
    __global const float *w = (__global const float *)(p1_memory + p1_start);
    __global float *y = (__global float *)(p2_memory + p2_start);
    const long i = (long)get_group_id(0) * 64 + (long)get_local_id(0);
    if (i < n)
        y[i] = x[i] + w[i];
}

__kernel void scale(__global uchar *p0_memory, long p0_start, float factor, long n)
{
    __global float *x = (__global float *)(p0_memory + p0_start);
    const long i = (long)get_group_id(0) * 64 + (long)get_local_id(0);
    if (i < n)
        x[i] = x[i] * factor;
}
"""
# The same for CUDA. Threads are counted in 32 bits: there are fewer.
_HEAD = """\
	.reg .pred %p<2>;
	.reg .f32 %f<4>;
	.reg .b32 %r<4>;
	.reg .b64 %d<9>;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	mad.lo.u32 %r3, %r1, 64, %r2;
	cvt.u64.u32 %d1, %r3;
	mul.wide.u32 %d2, %r3, 4;
	ld.param.u64 %d3, [{n}];
	setp.ge.s64 %p1, %d1, %d3;
	@%p1 bra $END;
"""
PTX = f"""\
.version 7.0
.target sm_80
.address_size 64

.visible .entry add(
	.param .u64 .ptr .global .align 4 add_x,
	.param .u64 .ptr .global .align 4 add_w,
	.param .u64 .ptr .global .align 4 add_y,
	.param .u64 add_n
)
{{
{_HEAD.format(n="add_n")}\
	ld.param.u64 %d4, [add_x];
	add.s64 %d5, %d4, %d2;
	ld.global.f32 %f1, [%d5];
	ld.param.u64 %d4, [add_w];
	add.s64 %d6, %d4, %d2;
	ld.global.f32 %f2, [%d6];
	add.rn.f32 %f3, %f1, %f2;
	ld.param.u64 %d4, [add_y];
	add.s64 %d7, %d4, %d2;
	st.global.f32 [%d7], %f3;
$END:
	ret;
}}

.visible .entry scale(
	.param .u64 .ptr .global .align 4 scale_x,
	.param .f32 scale_factor,
	.param .u64 scale_n
)
{{
{_HEAD.format(n="scale_n")}\
	ld.param.u64 %d4, [scale_x];
	add.s64 %d5, %d4, %d2;
	ld.global.f32 %f1, [%d5];
	ld.param.f32 %f2, [scale_factor];
	mul.rn.f32 %f3, %f1, %f2;
	st.global.f32 [%d5], %f3;
$END:
	ret;
}}
"""
FMAP = {
    "format": 1,
    "functions": {
        "add": {
            "params": ["buffer", "buffer", "buffer", "int64"],
            "block": [64, 1, 1],
            "shared_bytes": 0,
            "extensions": [],
        },
        "scale": {
            "params": ["buffer", "float32", "int64"],
            "block": [64, 1, 1],
            "shared_bytes": 0,
            "extensions": [],
        },
    },
}

_FUNCTIONS = r"""
static const uint8_t params_add[] = {KILN_BUFFER, KILN_BUFFER, KILN_BUFFER, KILN_BITS64};
@MORE@
static const uint8_t params_scale[] = {KILN_BUFFER, @FACTOR_BYTES@, KILN_BITS64};
static const char *const extensions[] = {@EXTENSIONS@NULL};
static const kiln_device_function add_1 = {
    "add", 1, 0, 4, params_add, {@BLOCK@, 1, 1}, @SHARED@, extensions,
};
static const kiln_device_function scale_1 = {"@SCALE@", 1, 1, 3, params_scale, {64, 1, 1}, 0, NULL};
static const kiln_device_function scale_2 = {"scale", 2, 0, 3, params_scale, {64, 1, 1}, 0, NULL};

static void add(void *x, void *w, void *y, int64_t n)
{
    const int64_t grid[3] = {(n + 63) / 64, 1, 1};
    const kiln_argument argument[] = {
        {.buffer = x}, {.buffer = w}, {.buffer = y}, {.int64 = n},
    };
    kiln_launch(&add_1, grid, argument, 4);
}

static void scale(const kiln_device_function *function, void *x, float factor, int64_t n)
{
    const int64_t grid[3] = {(n + 63) / 64, 1, 1};
    const kiln_argument argument[] = {{.buffer = x}, {@FACTOR@}, {.int64 = n}};
    kiln_launch(function, grid, argument, 3);
}

static const kiln_device_function *const functions_1[] = {&add_1, &scale_1};
static const kiln_device_function *const functions_2[] = {&scale_2};
/* The second half of the weights lies before the first one on the device. */
static const kiln_device_weights weights_1[] = {
    {0, @HALF@, @HALF@},
    {@HALF@, 0, @HALF@},
};
static const kiln_device_target devices[] = {
    {"@KIND@ a", &kiln_@KIND@, 2, functions_1, 2, weights_1, 2 * @HALF@},
    {"@KIND@ b", &kiln_@KIND@, 1, functions_2, 0, NULL, 0},
};

static void run_main(const kiln_frame *frame)
{
    char *const weights_1 = frame->device[1].weights;
    char *const workspace_1 = frame->device[1].workspace;
    const int64_t n = frame->symbol[0];
    kiln_device_copy(workspace_1, 1, frame->arg[0], 0, n * 4);
    add(workspace_1, weights_1 + @HALF@, workspace_1 + n * 4, n);
    scale(&scale_1, workspace_1 + n * 4, 2.0f, n);
    kiln_device_copy(frame->arg[1], 0, workspace_1 + n * 4, 1, n * 4);
}

static void run_there(const kiln_frame *frame)
{
    const int64_t n = frame->symbol[0];
    add(frame->arg[0], frame->device[1].weights + @HALF@, frame->arg[1], n);
    scale(&scale_1, frame->arg[1], 2.0f, n);
}

static void run_across(const kiln_frame *frame)
{
    char *const workspace_1 = frame->device[1].workspace;
    char *const workspace_2 = frame->device[2].workspace;
    const int64_t n = frame->symbol[0];
    kiln_device_copy(workspace_1, 1, frame->arg[0], 0, n * 4);
    kiln_device_copy(workspace_1 + n * 4, 1, workspace_1, 1, n * 4);
    add(workspace_1 + n * 4, frame->device[1].weights + @HALF@, workspace_1, n);
    kiln_device_copy(workspace_2, 2, workspace_1, 1, n * 4);
    scale(&scale_2, workspace_2, 2.0f, n);
    kiln_device_copy(frame->arg[1], 0, workspace_2, 2, n * 4);
}

static void run_host_only(const kiln_frame *frame)
{
    for (int64_t i = 0; i < frame->symbol[0]; i++)
        ((float *)(void *)frame->arg[1])[i] = ((float *)(void *)frame->arg[0])[i] + 1;
}

static void run_twice(const kiln_frame *frame)
{
    scale(&scale_2, frame->arg[0], 2.0f, frame->symbol[0]);
}

static void run_stray(const kiln_frame *frame)
{
    scale(&scale_1, frame->arg[0], 2.0f, 1);
    kiln_device_copy(frame->arg[1], 0, frame->device[1].workspace, 1, 4);
}

static int no_workspace(const int64_t *symbol, int64_t *bytes)
{
    (void)symbol;
    *bytes = 0;
    return KILN_OK;
}

static int device_workspace_main(const int64_t *symbol, int64_t *bytes)
{
    bytes[1] = symbol[0] * 8;
    return KILN_OK;
}

static int device_workspace_across(const int64_t *symbol, int64_t *bytes)
{
    bytes[1] = symbol[0] * 8;
    bytes[2] = symbol[0] * 4;
    return KILN_OK;
}
"""

_NAMES = ("main", "there", "across", "host_only", "twice", "stray")
_ON = {"there": 1, "twice": 2}  # the device of the parameters
_DEVICES = {"main": "2u", "there": "2u", "across": "6u", "twice": "4u", "stray": "2u"}
_WORKSPACE = {
    "main": "device_workspace_main",
    "across": "device_workspace_across",
    "stray": "device_workspace_main",
}


def _params(name: str) -> tuple[ParamInfo, ...]:
    on = _ON.get(name, 0)
    if name == "twice":
        return (ParamInfo("y", "float32", ("n",), "inout", on),)
    return tuple(
        ParamInfo(p, "float32", ("n",), role, on) for p, role in (("x", "in"), ("y", "out"))
    )


def _function_c(name: str) -> str:
    params = _params(name)
    roles = {"in": "KILN_IN", "out": "KILN_OUT", "inout": "KILN_INOUT"}
    rows = "".join(
        f'    {{"{p.name}", "[n]", dims_n, {{2, 32, 1}}, {roles[p.role]}, 1, 4, {p.device}}},\n'
        for p in params
    )
    kind = "KILN_TENSOR_FUNCTION" if name == "twice" else "KILN_GRAPH"
    return (
        f"static const kiln_param params_{name}[] = {{\n{rows}}};\n"
        f"static const kiln_function function_{name} = {{\n"
        f'    "{name}", {kind}, {len(params)}, 1, 1,\n'
        f"    params_{name}, symbols, symbol_min, NULL, NULL, NULL, run_{name}, NULL,\n"
        "    no_workspace,\n"
        f"    {_DEVICES.get(name, '0')}, {_WORKSPACE.get(name, 'NULL')},\n}};\n"
    )


def _entry(metadata: Metadata, changes: dict[str, str]) -> str:
    values = {
        "EXTENSIONS": "",
        "BLOCK": "64",
        "SHARED": "0",
        "SCALE": "scale",
        "KIND": "opencl",
        "MORE": "",
        "FACTOR_BYTES": "KILN_BITS32",
        "FACTOR": ".float32 = factor",
        **changes,
    }
    body = _FUNCTIONS.replace("@HALF@", str(W.nbytes // 2))
    for key, value in values.items():
        body = body.replace(f"@{key}@", value)
    text = quote(json.dumps(metadata.to_json()))
    functions = "".join(f"    &function_{name},\n" for name in _NAMES)
    return (
        '#include "device.h"\n'
        f'__attribute__((section(".kiln.meta"), used))\nstatic const char metadata[] = {text};\n'
        "extern char *const kiln_weights;\n"
        "static const int64_t dims_n[] = {KILN_SYMBOL(0)};\n"
        'static const char *const symbols[] = {"n"};\n'
        "static const int64_t symbol_min[] = {0};\n"
        f"{body}{''.join(map(_function_c, _NAMES))}"
        f"static const kiln_function *const functions[] = {{\n{functions}}};\n"
        "static const char *const cpu_features[] = {NULL};\n"
        "const kiln_library kiln_this_library = {\n"
        f'    "gpu", metadata, cpu_features, {len(_NAMES)}, functions, &kiln_weights, {W.nbytes},\n'
        "    0, NULL, kiln_call_any_import, 2, devices,\n};\n"
    )


def _info(name: str) -> FunctionInfo:
    params = _params(name)
    if name == "twice":
        return FunctionInfo(name, "tensor", params, (), {"n": 0})
    return FunctionInfo(name, "graph", params[:1], params[1:], {"n": 0})


def keys(kind: str = "opencl") -> tuple[str, str]:
    """The target keys of rows 1 and 2."""
    return f"{kind} a", f"{kind} b"


def artifacts(
    code: Mapping[str, str | bytes] | str | None = None, kind: str = "opencl", **changes: str
) -> ArtifactSet:
    """The artifacts of the library for devices of a kind; `code` are the texts of its kernels by
    file name, or that of kernels.cl, `changes` values of the placeholders in the entry file."""
    files = {"opencl": {"kernels.cl": KERNELS}, "cuda": {"kernels.sm_80.ptx": PTX}}
    if isinstance(code, str):
        code = {"kernels.cl": code}
    contents = {
        name: text if isinstance(text, bytes) else text.encode()
        for name, text in (files[kind] if code is None else code).items()
    }
    metadata = Metadata(
        "gpu",
        "gpu",
        "0",
        {},
        (),
        W.nbytes,
        tuple(map(_info, _NAMES)),
        devices=(
            DeviceInfo("llvm host", "cpu", 0),
            *(DeviceInfo(key, kind, i + 1) for i, key in enumerate(keys(kind))),
        ),
    )
    entry = _entry(metadata, {"KIND": kind, **changes})
    plan = LinkPlan("gpu", TRIPLE)
    members = [
        Artifact("host", "native", "link.json", plan.to_bytes()),
        Artifact("host", "native", "entry.c", entry.encode()),
        Artifact("host", "native", "weights.bin", W.tobytes()),
    ]
    for key in keys(kind):
        members += [Artifact(kind, kind, name, data, key) for name, data in contents.items()]
        fmap = json.dumps(FMAP).encode()
        members.append(Artifact(kind, kind, "kernels.fmap.json", fmap, key))
    return ArtifactSet(members)


def build(
    output: Path,
    code: Mapping[str, str | bytes] | str | None = None,
    kind: str = "opencl",
    **changes: str,
) -> Path:
    """Link the library; arguments as of `artifacts`."""
    return link_artifacts(artifacts(code, kind, **changes), output)


def expected(x: np.ndarray) -> np.ndarray:
    """What `main`, `there` and `across` compute."""
    return (x + W[: len(x)]) * np.float32(2)

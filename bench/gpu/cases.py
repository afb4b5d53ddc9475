"""What `make gpu` measures: each case with its sizes on a GPU and in a dry run, its peers, a
reference by somebody else, and the first goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from bench.gpu.device import Array, Contender, Gpu, Ours, failure
from bench.gpu.peers import Peer, imported, torch_programs, zoo_network
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import constant, tensor
from tensorkiln.ops.builder import GraphBuilder

CHECKED_ROWS = 64  # of large results, against float64
# Largest error as a share of the largest element.
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-5}
NETWORK_TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


@dataclass
class Work:
    """Who is timed, and what they do: `amount` of a `unit` in one run. `peer` is made when ours has
    been timed, since that can take long. Shares are of the speed of `rival`, a word of a label."""

    contenders: list[Contender]
    peer: Callable[[], Contender]
    check: Callable[[list[Array]], str]  # of outputs; empty when they are right
    amount: float
    unit: str
    rival: str


@dataclass(frozen=True)
class Case:
    """`make` prepares the work; `goal` is the first goal, a share of the rival's speed."""

    name: str
    make: Callable[[Gpu], Work]
    goal: float | None = None


def off_by(have: Array, want: Array, tolerance: float) -> str:
    """Empty when all elements are within a share of the largest; else a short sentence."""
    if have.shape != want.shape:
        return f"shape {have.shape}, expected {want.shape}"
    x, y = have.astype(np.float64), want.astype(np.float64)
    scale = float(np.abs(y).max(initial=1e-30))
    worst = float(np.abs(x - y).max(initial=0.0))
    if not np.isfinite(x).all() or worst > tolerance * scale:
        return f"off by {worst:.3g} at scale {scale:.3g}"
    return ""


# ---- products -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rung:
    """A way to multiply: options of the target that lead to kernels of one of some classes. Code
    for an older architecture beside that of the GPU keeps kernels to what both have. `only`: the
    architecture that has it, where others have not."""

    label: str
    options: dict[str, object]
    kernel_classes: tuple[str, ...]
    only: str = ""


_TENSOR_CORES, _WARPGROUPS = ("gpu_tensor_cores",), ("gpu_wgmma",)
_SIMT = Rung("Tensorkiln, no tensor cores", {"also": ["sm_70"]}, ("gpu_contraction",))


def _warps(parts: int) -> Rung:
    """Products of warps (mma.sync), of factors in so many parts of shared memory."""
    label = f"Tensorkiln, warps, {parts} part{'s' * (parts > 1)}"
    return Rung(label, {"matmul_kernel": "mma", "matmul_stages": parts}, _TENSOR_CORES)


def _warpgroups(parts: int, copies: str = "threads") -> Rung:
    """Products of warpgroups (wgmma), whose factors all threads copy, a warp of its own, or
    hardware (TMA)."""
    label = f"Tensorkiln, warpgroups, {parts} part{'s' * (parts > 1)}"
    label += {"threads": "", "warp": ", a warp copies", "tma": ", TMA copies"}[copies]
    options = {"matmul_stages": parts, "matmul_copies": copies}
    return Rung(label, options, _WARPGROUPS, "sm_90a")


_LADDER = (
    *(_warpgroups(parts, copies) for copies in ("tma", "warp") for parts in (4, 3, 2)),
    *(_warpgroups(parts) for parts in (4, 3, 2, 1)),
    *(_warps(parts) for parts in (3, 2, 1)),
)
# By type of the factors: what the compiler chooses for the architecture, then each rung of the
# ladder, the highest first.
RUNGS: dict[str, tuple[Rung, ...]] = {
    "float32": (Rung("Tensorkiln", {}, ("gpu_contraction",)),),
    "bfloat16": (Rung("Tensorkiln", {}, _TENSOR_CORES + _WARPGROUPS), *_LADDER, _SIMT),
    "float16": (
        Rung("Tensorkiln", {}, _TENSOR_CORES + _WARPGROUPS),
        *_LADDER,
        Rung("Tensorkiln, products of sm_75", {"also": ["sm_75"]}, _TENSOR_CORES),
        _SIMT,
    ),
}


def climbed(gpu: Gpu, rung: Rung, mod: IRModule, inputs: list[Array]) -> Contender:
    """A module by way of a rung, or the reason why it cannot be."""
    try:
        return Ours(gpu, mod, inputs, rung.options, rung.kernel_classes).contender(rung.label)
    except Exception as error:  # the table reports it, whatever it is
        return Contender(rung.label, status=failure(error))


def product(dtype: str, n: int, dry: int) -> Callable[[Gpu], Work]:
    """Square matrices, both given at run time, by each rung, beside cuBLAS."""

    def make(gpu: Gpu) -> Work:
        size = dry if gpu.dry else n
        g = GraphBuilder()
        a, b = (g.param(name, tensor((size, size), dtype)) for name in "ab")
        mod = IRModule((g.finish(g.emit("matmul", a, b)),))
        generator = np.random.default_rng(size)
        elements = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        x, y = (generator.standard_normal((size, size), "float32").astype(elements) for _ in "ab")
        some = generator.choice(size, min(size, CHECKED_ROWS), replace=False)
        want = x[some].astype(np.float64) @ y.astype(np.float64)

        def check(outputs: list[Array]) -> str:
            return off_by(outputs[0][some], want, TOLERANCE[dtype])

        rungs = (r for r in RUNGS[dtype] if r.only in ("", gpu.arch))
        rung_contenders = [climbed(gpu, rung, mod, [x, y]) for rung in rungs]
        peer = Peer("cuBLAS, torch", lambda torch: torch.mm, gpu, [x, y])
        return Work(rung_contenders, peer.contender, check, 2.0 * size**3, "FLOP", "cuBLAS")

    return make


# ---- attention ----------------------------------------------------------------------------------

Sizes = tuple[int, int, int]  # heads, positions, size of a head


def attention(dtype: str, shape: Sizes, dry: Sizes) -> Callable[[Gpu], Work]:
    """Queries, keys and values given at run time, beside torch's own kernel."""

    def make(gpu: Gpu) -> Work:
        heads, length, size = dry if gpu.dry else shape
        scale = size**-0.5
        g = GraphBuilder()
        operands = [g.param(name, tensor((1, heads, length, size), dtype)) for name in "qkv"]
        mod = IRModule((g.finish(g.emit("attention", *operands, scale=scale)),))
        generator = np.random.default_rng(size)
        elements = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        inputs = [
            generator.standard_normal((1, heads, length, size), "float32").astype(elements)
            for _ in operands
        ]
        some = generator.choice(length, min(length, CHECKED_ROWS), replace=False)
        q, k, v = (x[0].astype(np.float64) for x in inputs)
        scores = scale * q[:, some] @ k.swapaxes(1, 2)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        want = weights / weights.sum(axis=2, keepdims=True) @ v

        def check(outputs: list[Array]) -> str:
            return off_by(outputs[0][0][:, some], want, TOLERANCE[dtype])

        warps = Rung(
            "Tensorkiln, warps", {"matmul_kernel": "mma"}, ("gpu_attention_tensor_cores",), "sm_90a"
        )
        warpgroups = Rung("Tensorkiln", {}, (*warps.kernel_classes, "gpu_attention_wgmma"))
        rungs = (r for r in (warpgroups, warps) if r.only in ("", gpu.arch))
        attend = "scaled_dot_product_attention"
        peer = Peer("sdpa, torch", lambda t: getattr(t.nn.functional, attend), gpu, inputs)
        contenders = [climbed(gpu, rung, mod, inputs) for rung in rungs]
        return Work(
            contenders, peer.contender, check, 4.0 * heads * length**2 * size, "FLOP", "sdpa"
        )

    return make


# ---- rows and elementwise, by the bytes that they must move -------------------------------------


def _elementwise(g: GraphBuilder, x: Any, columns: int) -> Any:
    y = g.emit("mul", x, constant(np.asarray(2, np.float32)))
    return g.emit("relu", g.emit("add", y, constant(np.asarray(1, np.float32))))


def _softmax(g: GraphBuilder, x: Any, columns: int) -> Any:
    return g.emit("softmax", x, axis=1)


def _layer_norm(g: GraphBuilder, x: Any, columns: int) -> Any:
    scales, zeros = (constant(np.full(columns, v, np.float32)) for v in (1, 0))
    return g.emit("layer_norm", x, scales, zeros, eps=1e-5)


def _softmax64(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _layer_norm64(x: Array) -> Array:
    centered = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5))


# The graph, and NumPy's meaning of it.
MEMORY: dict[str, tuple[Callable[[GraphBuilder, Any, int], Any], Callable[[Array], Array]]] = {
    "elementwise": (_elementwise, lambda x: np.maximum(x * 2 + 1, 0)),
    "softmax": (_softmax, _softmax64),
    "layer norm": (_layer_norm, _layer_norm64),
}


def memory(kind: str, shape: tuple[int, int], dry: tuple[int, int]) -> Callable[[Gpu], Work]:
    """An operator on rows of float32, beside the driver's copy of as many bytes."""

    def make(gpu: Gpu) -> Work:
        rows, columns = dry if gpu.dry else shape
        build, meaning = MEMORY[kind]
        g = GraphBuilder()
        operand = g.param("x", tensor((rows, columns), "float32"))
        mod = IRModule((g.finish(build(g, operand, columns)),))
        x = np.random.default_rng(columns).standard_normal((rows, columns), "float32")
        some = np.linspace(0, rows - 1, min(rows, CHECKED_ROWS)).astype(int)
        want = meaning(x[some].astype(np.float64))

        def check(outputs: list[Array]) -> str:
            return off_by(outputs[0][some], want, TOLERANCE["float32"])

        copy = Contender("copy by the driver", gpu.copy(x.nbytes), gpu.wait)
        contenders = [Ours(gpu, mod, [x]).contender(), copy]
        peer = Peer("torch.compile", torch_programs(kind), gpu, [x])
        return Work(contenders, peer.contender, check, 2.0 * x.nbytes, "B", "copy")

    return make


# ---- networks -----------------------------------------------------------------------------------


def network(name: str, batch: int, dtype: str = "float32") -> Callable[[Gpu], Work]:
    """A network, kernel by kernel and captured, beside torch.compile; the reference is torch's in
    float32 on the processor."""

    def make(gpu: Gpu) -> Work:
        module, inputs = zoo_network(name, min(batch, 2) if gpu.dry else batch, small=gpu.dry)
        import torch

        with torch.no_grad():
            result = module(*(torch.from_numpy(a) for a in inputs))
        module = module.to(getattr(torch, dtype))
        inputs = [a.astype(dtype) if a.dtype == np.float32 else a for a in inputs]
        torch_inputs = [torch.from_numpy(a) for a in inputs]
        want = [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]

        def check(outputs: list[Array]) -> str:
            if len(outputs) != len(want):
                return f"{len(outputs)} results, expected {len(want)}"
            pairs = zip(outputs, want, strict=True)
            return next((s for h, w in pairs if (s := off_by(h, w, NETWORK_TOLERANCE[dtype]))), "")

        tensorkiln = Ours(gpu, imported(module, torch_inputs), inputs)
        contenders = [tensorkiln.contender(), tensorkiln.replayed()]

        def compiled(torch: Any) -> Callable[..., Any]:
            mode = "reduce-overhead"  # graphs; "max-autotune" takes minutes a network
            return torch.compile(module.to("cuda"), mode=mode)  # type: ignore[no-any-return]

        peer = Peer("torch.compile", compiled, gpu, inputs)
        return Work(contenders, peer.contender, check, float(len(inputs[0])), "samples", peer.label)

    return make


CASES = (
    Case("product bfloat16 4096", product("bfloat16", 4096, 72), 0.6),
    Case("product bfloat16 8192", product("bfloat16", 8192, 136), 0.6),
    Case("product float16 4096", product("float16", 4096, 72), 0.6),
    Case("product float16 8192", product("float16", 8192, 136), 0.6),
    Case("product float32 4096", product("float32", 4096, 32), 0.9),
    Case("product float32 8192", product("float32", 8192, 48), 0.9),
    Case("attention float16, head 64", attention("float16", (32, 4096, 64), (2, 40, 64)), 0.45),
    Case(
        "attention bfloat16, head 128", attention("bfloat16", (16, 4096, 128), (1, 24, 128)), 0.45
    ),
    Case("elementwise", memory("elementwise", (1 << 14, 1 << 12), (16, 64)), 0.85),
    Case("softmax", memory("softmax", (1 << 14, 1 << 12), (5, 300)), 0.85),
    Case("layer norm", memory("layer norm", (1 << 14, 1 << 12), (5, 300)), 0.85),
    Case("resnet50, batch 1", network("resnet50", 1)),
    Case("resnet50, batch 64", network("resnet50", 64)),
    Case("bert, batch 1", network("bert", 1)),
    Case("resnet50 float16, batch 64", network("resnet50", 64, "float16")),
    Case("bert float16, batch 1", network("bert", 1, "float16")),
    Case("bert float16, batch 32", network("bert", 32, "float16")),
)

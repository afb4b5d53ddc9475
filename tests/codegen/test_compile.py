"""From tensor program to object: golden text, the worker, the cache."""

from __future__ import annotations

import ast
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.cache import Cache
from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.llvm import compile as kernel_compiler
from tensorkiln.codegen.llvm import emit, worker
from tensorkiln.codegen.llvm.compile import compile_kernels, options_of
from tensorkiln.codegen.llvm.texts import kernel_text
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import IntImm, Ramp, Var, VectorReduce, cast, intrin, unary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.target import Target
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen.kernels import elementwise, program
from tests.transform.graphs import graph

V4 = Target({"kind": "llvm", "mcpu": "x86-64-v4"})
V3 = Target({"kind": "llvm", "mcpu": "haswell"})
V1 = Target("llvm")
GOLDEN = Path(__file__).parent / "golden"


def _lowered(*funcs: PrimFunc) -> tuple[PrimFunc, ...]:
    return vectorize_loops(IRModule(funcs)).prim_funcs


def _fma() -> PrimFunc:
    ins = ("float32", "float32")
    return elementwise("fma", lambda x, y: intrin("fma", x, y, x), ins, "float32", 8, 64)


def _round() -> PrimFunc:
    """What SSE2 lacks: a rounding and a half."""
    return elementwise(
        "rounded", lambda x: cast(unary("floor", x), "float16"), ("float32",), "float16", 4, 64
    )


def _row_sums() -> PrimFunc:
    def body(x, out):  # noqa: ANN001, ANN202
        i = Var("i")
        row = Load(x, (i, Ramp(IntImm(0), IntImm(1), 4)))
        return For(i, IntImm(0), IntImm(32), "parallel", Store(out, (i,), VectorReduce("sum", row)))

    return program("row_sums", [((32, 4), "float32"), ((32,), "float32")], body)


@pytest.mark.parametrize(
    ("make", "target"), [(_fma, V3), (_round, V1), (_row_sums, V4)], ids=["fma", "rounded", "sums"]
)
def test_llvm_text(
    make: Callable[[], PrimFunc], target: Target, golden: Callable[[Path, str], None]
) -> None:
    (f,) = _lowered(make())
    golden(GOLDEN / f"{f.name}.ll", kernel_text(f, target, "llvm"))


# -- worker and cache ------------------------------------------------------------------------------

# The assembler does not know this instruction: LLVM ends the process.
ABORTS = """
define void @doomed(ptr %a) {
  call void asm sideeffect "no_such_instruction", ""()
  ret void
}
"""
REFUSED = "define void @doomed(ptr %a) { ret i32 %missing }"


@pytest.mark.parametrize(("text", "code"), [(ABORTS, "llvm-abort"), (REFUSED, "llvm-error")])
def test_a_failing_kernel_is_named_and_those_before_it_compile(
    text: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = emit.emit_llvm
    monkeypatch.setattr(emit, "emit_llvm", lambda f, t: text if f.name == "doomed" else real(f, t))
    good = _fma()
    doomed = elementwise("doomed", lambda x: x, ("float32",), "float32", 1, 8)
    finished: list[str] = []
    with pytest.raises(InternalError) as caught:
        compile_kernels(_lowered(good, doomed), V3, on_done=finished.append)
    assert caught.value.code == code
    assert "kernel doomed" in str(caught.value)
    words = caught.value.hint.split()
    assert words[:3] == ["python", "-m", "tensorkiln.codegen.llvm.worker"]
    again = subprocess.run([sys.executable, *words[1:5]], capture_output=True)
    assert again.returncode != 0
    assert finished == ["fma"]


def test_cache_hits_and_misses(tmp_path: Path) -> None:
    cache = KernelCache(Cache(tmp_path))
    funcs = _lowered(_fma(), _row_sums())
    first = compile_kernels(funcs, V3, cache=cache)
    again = compile_kernels(funcs, V3, cache=cache)
    kernels_of_v4 = compile_kernels(funcs, V4, cache=cache)
    assert [k.cached for k in first] == [False, False]
    assert [k.cached for k in again] == [True, True]
    assert [k.cached for k in kernels_of_v4] == [False, False]
    assert [k.object for k in first] == [k.object for k in again]
    changed = elementwise("fma", lambda x, y: x + y, ("float32",) * 2, "float32", 8, 64)
    assert not compile_kernels(_lowered(changed), V3, cache=cache)[0].cached


def test_the_cache_knows_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, funcs = KernelCache(Cache(tmp_path)), _lowered(_fma())
    compile_kernels(funcs, V3, cache=cache)
    monkeypatch.setattr(kernel_compiler, "source_digest", lambda *rooms: "another")
    assert not compile_kernels(funcs, V3, cache=cache)[0].cached


def test_the_cache_knows_every_file_of_code_generation_that_emits() -> None:
    """All that emitting imports of `codegen`, at any distance, is in the digest."""
    package = Path(tk.__file__).parent
    queue, modules_read = (
        ["tensorkiln.codegen.llvm.emit", "tensorkiln.codegen.llvm.worker"],
        set[str](),
    )
    while queue:
        name = queue.pop()
        file = package.parent / f"{name.replace('.', '/')}.py"
        if name in modules_read or not name.startswith("tensorkiln.codegen.") or not file.exists():
            continue
        modules_read.add(name)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                queue += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    rooms = {
        name.removeprefix("tensorkiln.").rpartition(".")[0].replace(".", "/")
        for name in modules_read
    }
    assert len(modules_read) > 20
    assert rooms == set(kernel_compiler.GENERATOR)


def test_objects_are_the_same_bytes_every_time() -> None:
    funcs = _lowered(_fma(), _round(), _row_sums())
    first_kernels = compile_kernels(funcs, V4, jobs=1)
    two = compile_kernels(_lowered(_fma(), _round(), _row_sums()), V4, jobs=2)
    assert [k.object for k in first_kernels] == [k.object for k in two]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="llvmlite assembles for its own CPU")
@pytest.mark.parametrize("target", [V1, V3, V4], ids=["v1", "v3", "v4"])
def test_objects_made_of_their_assembly_are_those_made_at_once(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of a kernel is what runs, to the byte."""
    net = graph(_net, x=(1, 16, 12, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the baseline
        kernels = [*tk.compile(net, target).module.with_programs().prim_funcs]
    kernels += _lowered(_fma(), _round(), _row_sums())
    kernels = [f for f in kernels if not f.attrs.get("host")]
    assert len(kernels) > 8
    options = options_of(target, target.features, "object")
    compiled_texts = [worker.compile_text(emit.emit_llvm(f, target), options) for f in kernels]
    monkeypatch.setattr(worker, "_assembles", lambda triple: False)
    for f, (code, assembly) in zip(kernels, compiled_texts, strict=True):
        text = emit.emit_llvm(f, target)
        assert worker.compile_text(text, options) == (code, b""), f.name
        assert worker.compile_text(text, {**options, "emit": "assembly"}) == (assembly, b"")


def _net(g: Graph, x: RVar) -> Value:
    """Sums, tables of constants, functions of libm, branches."""
    y = g.relu(g.conv2d(x, rand(32, 16, 3, 3), padding=(1, 1, 1, 1)))
    z = g.max_pool2d(g.sigmoid(y), kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    z = g.reshape(g.erf(g.pow(z, 3.0)), shape=(32, 36))
    return g.softmax(g.linear(g.transpose(z, axes=(1, 0)), rand(32, 10)), axis=1)


# -- spills ------------------------------------------------------------------------------

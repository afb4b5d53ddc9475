"""`denormals="flush"`: numbers below the smallest normal one are 0 in every thread that computes,
and no thread notices afterwards. Without it all bits are kept, whoever made the threads."""

from __future__ import annotations

import ctypes
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.cli.entry import main
from tensorkiln.executable import Executable
from tensorkiln.ir.relax import Tuple, tensor
from tensorkiln.runtime.failures import IndexOutsideError
from tests.emulated.machine import load
from tests.transform.graphs import graph

ROWS, COLUMNS = 64, 8192
TINY = np.float32(np.finfo(np.float32).tiny)
X86 = platform.machine() == "x86_64"
needs_gcc = pytest.mark.skipif(
    not X86 or shutil.which("gcc") is None, reason="gcc is not installed"
)

# The state of a thread, and a pool of threads that begin as the process does; `changed` counts
# bodies after which a thread's state is another one.
STATES = """
#include <pthread.h>
#include <stdint.h>
#include <xmmintrin.h>
typedef void (*body_of_loop)(void *, int64_t, int64_t);
typedef struct { body_of_loop body; void *closure; int64_t begin, end; } part;
int loops, changed;
unsigned state(void) { return _mm_getcsr(); }
void set_state(unsigned s) { _mm_setcsr(s); }
static void *run(void *p)
{
    part *const it = p;
    const unsigned before = _mm_getcsr();
    it->body(it->closure, it->begin, it->end);
    changed += ((_mm_getcsr() ^ before) & 0xffc0) != 0;
    return NULL;
}
void parallel_for(body_of_loop body, void *closure, int64_t n, int threads)
{
    part parts[2] = {{body, closure, 0, n / 2}, {body, closure, n / 2, n}};
    (void)threads;
    loops++;
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        const unsigned before = _mm_getcsr();
        _mm_setcsr(0x1f80);
        pthread_create(&thread, NULL, run, &parts[i]);
        _mm_setcsr(before);
        pthread_join(thread, NULL);
    }
}
"""


def exported(**options: Any) -> Executable:
    """y = x / 4, by rows in parallel; rows of x by indices, which may be outside."""
    mod = graph(
        lambda g, x, i: Tuple((g.mul(x, 0.25), g.take(g.mul(x, 0.5), i, axis=0))),
        x=(ROWS, COLUMNS),
        i=tensor((2,), "int64"),
    )
    return tk.compile(mod, name="quarter", **options)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tk.LoadedModel]:
    folder, kinds = tmp_path_factory.mktemp("denormals"), ("keep", "flush")
    return {k: tk.load(exported(denormals=k).export_library(folder / f"{k}.so")) for k in kinds}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("states")
    (folder / "states.c").write_text(STATES)
    command = ["gcc", "-O1", "-shared", "-fPIC", "states.c", "-o", "states.so", "-pthread"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "states.so"))


def numbers() -> np.ndarray:
    """Denormal numbers, normal ones of which a quarter is denormal, and others."""
    rng = np.random.default_rng(3)
    sizes = np.exp2(rng.uniform(-148, -120, (ROWS, COLUMNS)))
    sizes[:, ::7] = 1.5
    return (sizes * rng.choice([-1, 1], sizes.shape)).astype(np.float32)


def quarter(x: np.ndarray, flushed: bool) -> np.ndarray:
    """x / 4 as it is computed."""
    flush = (lambda v: np.where(np.abs(v) < TINY, np.float32(0), v)) if flushed else np.array
    return np.asarray(flush(flush(x) * np.float32(0.25)))


INDICES = np.array([0, 1])


@needs_gcc
@pytest.mark.parametrize("threads", [1, 4])
def test_every_thread_flushes_and_none_keeps_it(
    libraries: Mapping[str, tk.LoadedModel], states: ctypes.CDLL, threads: int
) -> None:
    x, before = numbers(), states.state()
    flushing, keeping = (libraries[k].with_threads(threads) for k in ("flush", "keep"))
    for _ in range(3):  # the same workers serve both libraries; those of the first call are new
        np.testing.assert_array_equal(flushing(x, INDICES)[0], quarter(x, True))
        assert states.state() & 0xFFC0 == before & 0xFFC0
        np.testing.assert_array_equal(keeping(x, INDICES)[0], quarter(x, False))


@needs_gcc
def test_a_call_that_fails(libraries: Mapping[str, tk.LoadedModel], states: ctypes.CDLL) -> None:
    x, before = numbers(), states.state()
    for wrong in (np.array([0, ROWS]), np.array([0.5, 1]), np.array([1])):
        with pytest.raises((IndexOutsideError, UserError)):
            libraries["flush"](x, wrong)
        assert states.state() & 0xFFC0 == before & 0xFFC0


@needs_gcc
def test_a_pool_of_the_callers(
    libraries: Mapping[str, tk.LoadedModel], states: ctypes.CDLL
) -> None:
    x, flushing = numbers(), libraries["flush"].with_threads(4)
    loops, changed = (ctypes.c_int.in_dll(states, name) for name in ("loops", "changed"))
    flushing.module.use_pool(states.parallel_for)
    try:
        np.testing.assert_array_equal(flushing(x, INDICES)[0], quarter(x, True))
    finally:
        flushing.module.use_pool(None)
    assert loops.value > 0 and changed.value == 0


@needs_gcc
def test_the_callers_own_state_holds_in_every_thread(
    libraries: Mapping[str, tk.LoadedModel], states: ctypes.CDLL
) -> None:
    """A caller who flushes, as torch.set_flush_denormal does, gets the same on any number of
    threads, and from a library that was told nothing."""
    x, before = numbers(), states.state()
    states.set_state(before | 0x8040)
    try:
        outputs = [libraries[k].with_threads(n)(x, INDICES)[0] for k in libraries for n in (1, 4)]
        after = states.state()
    finally:
        states.set_state(before)
    assert after & 0xFFC0 == (before | 0x8040) & 0xFFC0
    for y in outputs:
        np.testing.assert_array_equal(y, quarter(x, True))


@pytest.mark.parametrize("target", ["llvm", "c", pytest.param("arm", marks=pytest.mark.emulated)])
def test_kinds_and_levels(target: str) -> None:
    """Also of AArch64, and float16 without instructions for it: its small numbers are normal ones
    of float32."""
    triple = {"arm": {"mtriple": "aarch64-linux-gnu"}}.get(target, {})
    wide = graph(
        lambda g, x: g.mul(g.cast(x, dtype="float32"), 1.0), x=tensor((1 << 16,), "float16")
    )
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    options = {"kind": "llvm" if target == "arm" else target, "denormals": "flush", **triple}
    f, g = (load(e) for e in (exported(target=options), tk.compile(wide, options)))
    x = numbers()
    np.testing.assert_array_equal(f["main"](x, INDICES)[0], quarter(x, True))
    np.testing.assert_array_equal(g["main"](half), half.astype(np.float32))


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "tan")},
    **{name: getattr(np, name) for name in ("sinh", "cosh", "floor", "ceil")},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "asinh", "atanh")},
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}


def test_functions_of_flushed_numbers() -> None:
    """Are those of 0, or of the number itself."""
    mod = graph(lambda g, x: Tuple(tuple(getattr(g, n)(x) for n in FUNCTIONS)), x=(1024,))
    x = np.zeros(1024, np.float32)
    x[1:512] = np.exp2(np.linspace(-148.9, -126.1, 511))
    x[512:] = -x[:512]
    results = tk.compile(mod, denormals="flush")(x)
    for (name, f), y in zip(FUNCTIONS.items(), results, strict=True):
        with np.errstate(all="ignore"):
            of_number, zero = (f(v.astype(np.float64)).astype(np.float32) for v in (x, 0 * x))
        close_enough = [
            np.isclose(y, v, rtol=1e-6, atol=TINY, equal_nan=True) for v in (of_number, zero)
        ]
        assert (close_enough[0] | close_enough[1]).all(), (
            name,
            x[~(close_enough[0] | close_enough[1])][:3],
        )


def test_it_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In metadata, in the report, in the header; where it is not asked for, in none."""
    for mode, count in (("keep", 0), ("flush", 1)):
        exe = exported(denormals=mode)
        path = exe.export_library(tmp_path / f"{mode}.so")
        assert len(re.findall("#define QUARTER_FLUSHES_DENORMALS 1", exe.header())) == count
        assert main(["inspect", str(path)]) == 0
        assert len(re.findall("denormals +count as 0", capsys.readouterr().out)) == count
        assert main(["inspect", str(path), "--json"]) == 0
        target_fields = json.loads(capsys.readouterr().out)["metadata"]["target"]
        assert target_fields.get("denormals", "keep") == mode
    assert exported(denormals="flush").target.flushes_denormals


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"kind": "opencl", "host": {"kind": "llvm", "denormals": "flush"}}, "kind 'opencl'"),
    ({"kind": "cuda", "host": {"kind": "llvm", "denormals": "flush"}}, "kind 'cuda'"),
    ({"kind": "c", "mtriple": "wasm32-unknown-wasi", "denormals": "flush"}, "wasm32"),
    ({"kind": "c", "mtriple": "thumbv7em-none-eabi", "denormals": "flush"}, "thumbv7em"),
    ({"kind": "c", "mtriple": "riscv32-unknown-none-elf", "denormals": "flush"}, "riscv32"),
    ({"mtriple": "riscv64-linux-gnu", "denormals": "flush"}, "riscv64"),
]


@pytest.mark.parametrize(("target", "words"), REFUSED)
def test_refused(target: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedError, match="denormals 'flush'") as caught:
        exported(target=target)
    assert words in str(caught.value)


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'flush'"):
        exported(denormals="flus")
    with pytest.raises(UserError, match="the target says 'keep'"):
        exported(target={"kind": "native", "denormals": "keep"}, denormals="flush")
    plain = exported(target={"kind": "c", "indices": "clamp"}, denormals="flush")
    with pytest.raises(UnsupportedError, match="denormals 'flush' is done by the runtime"):
        plain.export_model_library_format(tmp_path / "quarter.tar")

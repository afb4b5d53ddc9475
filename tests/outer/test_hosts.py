"""Outer functions in other hosts: tvm-ffi, and a C program under a memory checker."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.link.shared import CRT, crt_sources
from tests.outer.build import (
    BOOL,
    FUNC,
    OBJECT,
    SCALAR,
    STRING,
    AnyTensorType,
    F,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ShapeType,
    StringValue,
    Tuple,
    Var,
    binary,
    number,
    tensor,
)

ROOT = Path(__file__).parents[2]


def _everything() -> Any:
    """Each form of control flow with a call of `hook` in it, and every kind of value."""
    n = Var("n")
    row = tensor((n,), "float32")
    f = F("main", x=AnyTensorType(1, row.dtype), label=STRING, shape=ShapeType(2), f=FUNC)
    x = f.let("sized", row, MatchCast(f["x"], row))
    row_function = F("less", y=row)
    inner = row_function.packed("inner", row, "hook", row_function["y"])
    closure = f.let("closure", FuncType((row,), row), Lambda(row_function.done(inner)))
    called = f.call("called", row, closure, x)
    total = f.call("total", SCALAR, GlobalRef("total"), called)
    looped = f.call("looped", SCALAR, "while_loop", GlobalRef("positive"), GlobalRef("step"), total)
    applied = f.call("applied", SCALAR, f["f"], looped)
    deep = f.call("deep", SCALAR, GlobalRef("recursion"), total)
    nonzero = f.call("kept", AnyTensorType(2, tensor((), "int64").dtype), "nonzero", x)
    values = Tuple((f["label"], f["shape"], Tuple((applied, deep, nonzero)), closure))
    whole = F("total", x=row)
    positive, step = F("positive", x=SCALAR), F("step", x=SCALAR)
    go = positive.call("go", BOOL, GlobalRef("gt"), positive["x"], number(0))
    once = step.call("once", SCALAR, GlobalRef("sub"), step["x"], number(1))
    recursion = F("recursion", x=SCALAR)
    is_positive = recursion.call("more", BOOL, GlobalRef("gt"), recursion["x"], number(0))
    then_branch, end = F("then"), F("end")
    smaller = then_branch.call("smaller", SCALAR, GlobalRef("sub"), recursion["x"], number(1))
    deeper = then_branch.call("deeper", SCALAR, GlobalRef("recursion"), smaller)
    last = end.packed("last", SCALAR, "hook", recursion["x"])
    result = recursion.let(
        "both", SCALAR, If(is_positive, then_branch.body(deeper), end.body(last))
    )
    raising = F("text")
    return (
        binary("gt", "greater", SCALAR, BOOL),
        binary("sub", "sub"),
        whole.done(whole.call("y", SCALAR, "sum", whole["x"], axes=(0,), keepdims=False)),
        positive.outer(go),
        step.outer(step.packed("seen", SCALAR, "hook", once)),
        recursion.outer(result),
        raising.outer(raising.packed("y", OBJECT, "hook", StringValue("a long string here"))),
        f.outer(values),
    )


@pytest.fixture(scope="module")
def exe() -> Any:
    return tk.compile(IRModule(_everything(), "whole"), "llvm")


@pytest.fixture(scope="module")
def library(exe: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(exe.export_library(tmp_path_factory.mktemp("hosts") / "whole.so"))


FFI = r"""
import sys, traceback, gc
sys.modules["tensorkiln"] = sys.modules["torch"] = None
import ctypes, numpy as np, tvm_ffi
lib = tvm_ffi.load_module(sys.argv[1])
raw = ctypes.CDLL(sys.argv[1])
fail = 0
@tvm_ffi.register_global_func("hook")
def hook(x):
    global fail
    fail -= 1
    if fail == 0:
        raise KeyError("from the callback")
    return x
x = tvm_ffi.from_dlpack(np.array([1, 0, 2], np.float32))
def call():
    return lib["main"](x, "a name of a certain length", (4, 5), lambda t: t)
out = call()
name, shape, (applied, deep, kept), closure = out
assert name == "a name of a certain length" and tuple(shape) == (4, 5), out
assert np.from_dlpack(applied) == 0 and np.from_dlpack(deep) == 0
assert np.from_dlpack(kept).tolist() == [[0, 2]]
assert np.from_dlpack(closure(x)).tolist() == [1, 0, 2]
del out, name, shape, applied, deep, kept, closure
for k in range(1, 6):
    fail = k
    try:
        call()
    except KeyError as error:
        assert "from the callback" in str(error)
        assert "hook" in [f.name for f in traceback.extract_tb(error.__traceback__)], error
    else:
        raise AssertionError(k)
for bad, kind in (((x, 3, (4, 5), len), TypeError), ((x,), TypeError),
                  ((x, "", (4,), len), ValueError)):
    try:
        lib["main"](*bad)
    except kind as error:
        print(error)
    else:
        raise AssertionError(bad)
gc.collect()
assert raw.kiln_live_objects() == 0, raw.kiln_live_objects()
"""

needs_ffi = pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed"
)


@needs_ffi
def test_a_tvm_ffi_host_without_us(library: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", FFI, str(library)], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "main: argument 'label' must be a string, received an integer" in process.stdout
    assert "main: expected 4 arguments, received 1" in process.stdout
    assert "argument 'shape' must be a shape of 2, received" in process.stdout


OURS_AND_FFI = r"""
import sys, numpy as np, tvm_ffi, tensorkiln as tk
run = tk.runtime.Executor(tk.runtime.load_module(sys.argv[1]), tk.cpu())
@tvm_ffi.register_global_func("hook")
def hook(x):
    if fail:
        raise KeyError("from tvm-ffi")
    return x
x, fail = np.array([1, 0, 2], np.float32), False
values = run["main"](x, "name", (4, 5), lambda t: t)
assert values[2][2].numpy().tolist() == [[0, 2]]
fail = True
for _ in range(2):
    try:
        run["main"](x, "name", (4, 5), lambda t: t)
    except KeyError as error:
        assert "from tvm-ffi" in str(error)
    else:
        raise AssertionError
tk.runtime.register_function("hook", lambda x: x)  # ours comes first
run["main"](x, "name", (4, 5), tvm_ffi.convert(lambda t: t))
"""


@needs_ffi
def test_our_executor_calls_functions_of_tvm_ffi(library: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", OURS_AND_FFI, str(library)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr


# Runs everything once, then with a failure in the k-th call of the host, for each k.
C_HOST = r"""
#include "kiln.h"
#include <stdio.h>
#include <string.h>
#define CHECK(condition) do { if (!(condition)) { printf("line %d: %s\n", __LINE__, \
    kiln_last_error()); return 1; } } while (0)

static int calls, fail_at;

static int hook(void *context, const kiln_value *args, int32_t count, kiln_value *result)
{
    (void)context;
    if (count != 1 || ++calls == fail_at) {
        kiln_set_last_error("the host said no");
        return KILN_ERROR_CALLBACK;
    }
    kiln_retain(&args[0]);
    *result = args[0];
    return KILN_OK;
}

static void destroyed(void *context)
{
    ++*(int *)context;
}

static int run(kiln_executor *executor, kiln_value *args, kiln_value *result)
{
    calls = 0;
    return kiln_executor_invoke(executor, kiln_function_index("main"), args, 4, result);
}

static int look_into(const kiln_value *result)
{
    int count = 0, inner = 0;
    int64_t bytes = 0;
    const kiln_value *items = kiln_items_of(result, &count), *tensors;
    CHECK(items != NULL && count == 4);
    CHECK(strcmp(kiln_string_of(&items[0], &bytes), "a string of some length") == 0);
    CHECK(kiln_shape_of(&items[1], &inner)[1] == 5 && inner == 2);
    tensors = kiln_items_of(&items[2], &inner);
    CHECK(inner == 3 && kiln_tensor_of(&tensors[2])->shape[1] == 2);
    CHECK(items[3].kind == KILN_FUNCTION && kiln_tensor_of(&items[3]) == NULL);
    return 0;
}

int main(void)
{
    const int64_t three = 3, sizes[] = {4, 5};
    int gone = 0, failures = 0;
    kiln_value args[4], host, result, again;
    kiln_executor *executor;
    CHECK(kiln_executor_create(&executor) == KILN_OK);
    CHECK(kiln_make_tensor(&three, 1, (kiln_dtype){2, 32, 1}, &args[0]) == KILN_OK);
    memcpy(kiln_tensor_of(&args[0])->data, (float[]){1, 0, 2}, 12);
    CHECK(kiln_make_string("a string of some length", 23, &args[1]) == KILN_OK);
    CHECK(kiln_make_shape(sizes, 2, &args[2]) == KILN_OK);
    CHECK(kiln_make_function(hook, &gone, destroyed, &args[3]) == KILN_OK);

    CHECK(run(executor, args, &result) == KILN_ERROR_NAME);
    CHECK(strstr(kiln_last_error(), "no function 'hook'") != NULL);
    CHECK(kiln_make_function(hook, &gone, destroyed, &host) == KILN_OK);
    CHECK(kiln_register_function("hook", &host) == KILN_OK);
    kiln_release(&host);

    CHECK(run(executor, args, &result) == KILN_OK);
    CHECK(look_into(&result) == 0);
    int count;
    CHECK(kiln_call_value(&kiln_items_of(&result, &count)[3], args, 1, &again) == KILN_OK);
    CHECK(kiln_tensor_of(&again)->shape[0] == 3);
    kiln_release(&again);
    CHECK(kiln_call_value(&args[1], args, 1, &again) == KILN_ERROR_ARGUMENT);
    CHECK(kiln_call_value(&kiln_items_of(&result, &count)[3], args, 2, &again) != KILN_OK);
    kiln_release(&result);
    const int64_t live = kiln_live_objects(); /* the arguments, and what is registered */

    for (fail_at = 1; run(executor, args, &result) != KILN_OK; fail_at++) {
        CHECK(strstr(kiln_last_error(), "the host said no [in ") != NULL);
        CHECK(result.kind == KILN_NONE && kiln_live_objects() == live);
        failures++;
    }
    CHECK(failures == calls && failures > 5);
    kiln_release(&result);
    fail_at = 0;

    kiln_value wrong[4] = {args[0], args[2], args[2], args[3]};
    CHECK(run(executor, wrong, &result) == KILN_ERROR_ARGUMENT);
    CHECK(run(NULL, args, &result) == KILN_OK);
    kiln_release(&result);
    kiln_tensor borrowed = *kiln_tensor_of(&args[0]);
    kiln_value lent[4] = {{KILN_TENSOR, 0, {0}}, {KILN_C_STRING, 0, {0}}, args[2], args[3]};
    lent[0].as.pointer = &borrowed;
    lent[1].as.pointer = "a string of some length";
    CHECK(run(executor, lent, &result) == KILN_OK && look_into(&result) == 0);
    kiln_release(&result);

    CHECK(kiln_register_function("hook", NULL) == KILN_OK && gone == 1);
    for (int i = 0; i < 4; i++)
        kiln_release(&args[i]);
    CHECK(gone == 2 && kiln_live_objects() == 0);
    kiln_executor_destroy(executor);
    printf("%d failures\n", failures);
    return 0;
}
"""


def _build(exe: Any, folder: Path, flags: list[str]) -> Path:
    """Runtime, generated C, kernels and the C host as one program."""
    sources = [str(path) for path in crt_sources()]
    for a in exe.artifacts:
        if a.file_name.endswith(".o"):
            (folder / a.file_name).write_bytes(a.view)
            sources.append(a.file_name)
    (folder / "entry.c").write_text(
        next(a for a in exe.artifacts if a.file_name == "entry.c").text()
    )
    (folder / "host.c").write_text(C_HOST)
    weights = next(a for a in exe.artifacts if a.file_name == "weights.bin")
    data = ", ".join(map(str, bytes(weights.view)))
    (folder / "weights.c").write_text(
        f"static char data[{len(weights.view)} + 65536] "
        f"__attribute__((aligned(64))) = {{{data}}};\n"
        "struct place { char *data; long more[5]; };\n"  # weights_place in crt/weights.c
        "extern const struct place kiln_weights;\nconst struct place kiln_weights = {data, {0}};\n"
    )
    command = ["gcc", "-std=c99", "-g", "-O1", *flags, f"-I{CRT}", "host.c", "entry.c", "weights.c"]
    subprocess.run([*command, *sources, "-lpthread", "-ldl", "-o", "host"], check=True, cwd=folder)
    return folder / "host"


needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@needs_gcc
def test_no_leak_and_no_error_under_the_sanitizers(exe: Any, tmp_path: Path) -> None:
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra"]
    host = _build(exe, tmp_path, flags)
    process = subprocess.run(
        [str(host)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "KILN_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "failures" in process.stdout


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@needs_gcc
def test_no_leak_and_no_error_under_valgrind(exe: Any, tmp_path: Path) -> None:
    host = _build(exe, tmp_path, [])
    command = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9", str(host)]
    process = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "KILN_NUM_THREADS": "1"}
    )
    assert process.returncode == 0, process.stdout + process.stderr


@needs_gcc
def test_the_generated_c_compiles_without_a_warning(exe: Any, tmp_path: Path) -> None:
    (tmp_path / "entry.c").write_text(
        next(a for a in exe.artifacts if a.file_name == "entry.c").text()
    )
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-fno-builtin"]
    subprocess.run(
        ["gcc", *strict, "-c", f"-I{CRT}", "entry.c", "-o", "x.o"], check=True, cwd=tmp_path
    )


def test_the_header_says_how_to_call_them(exe: Any) -> None:
    assert 'kiln_executor_invoke(executor, kiln_function_index("main"), ...' in exe.header()


def test_a_python_process_ends_quietly(library: Path) -> None:
    """Functions that Python registered and values that it still holds are no trouble at exit."""
    script = (
        "import sys, numpy as np, tensorkiln as tk\n"
        "tk.runtime.register_function('hook', lambda x: x)\n"
        "run = tk.runtime.Executor(tk.runtime.load_module(sys.argv[1]), tk.cpu())\n"
        "kept = run['main'](np.ones(3, np.float32), 'x', (1, 2), lambda t: t)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(library)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (process.returncode, process.stderr) == (0, "")

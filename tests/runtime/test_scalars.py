"""Numbers of every type, place and caller in this process: their exact bits."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.codegen.c_text.literals import integer_literal
from tensorkiln.codegen.c_text.types import entry_type
from tensorkiln.runtime import Executor, load_module
from tests.hosts.build import require
from tests.runtime import scalars
from tests.runtime.test_hosts import needs_ffi


@pytest.fixture(scope="module", params=["native", "llvmjit"])
def lib(request: pytest.FixtureRequest) -> Any:
    return tk.compile(scalars.module(), tk.Target(request.param)).jit()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scalars")
    exe = tk.compile(scalars.module(), tk.Target("native"))
    (folder / "scalars.h").write_text(exe.header())
    return exe.export_library(folder / "scalars.so")


def test_python(lib: Any) -> None:
    for functions in (lib, Executor(lib)):
        for name, numbers in scalars.calls(scalars.GOOD):
            tensors = scalars.tensors_of(name)
            functions[name](*scalars.in_order(name, numbers, tensors))
            assert scalars.wrong_bits(name, numbers, [t.tobytes() for t in tensors]) == []


@pytest.mark.parametrize("dtype", scalars.DTYPES)
def test_what_the_type_cannot_hold_is_refused(lib: Any, dtype: str) -> None:
    for place in ("first", "middle", "last"):
        name = f"{place}_{dtype}"
        for value, code in scalars.bad_values(dtype):
            tensors = scalars.tensors_of(name)
            with pytest.raises(UserError) as caught:
                lib[name](*scalars.in_order(name, [value], tensors))
            message = str(caught.value)
            assert (caught.value.code, message.split(" must be ")[0]) == (
                code,
                f"{name}: argument 'p{int(place != 'first')}'",
            )
            assert isinstance(caught.value, ValueError if code == "out-of-range" else TypeError)
            if code == "out-of-range" and abs(value) < 1e30:
                assert message.endswith((f"received {value}", f"received {float(value):.9g}")), (
                    message
                )
            assert not any(t.tobytes().strip(b"\0") for t in tensors)


@pytest.mark.parametrize("dtype", scalars.DTYPES)
def test_numbers_of_numpy(lib: Any, dtype: str) -> None:
    """A NumPy number is the Python number that it is."""
    kind = scalars.numpy_type(dtype).type
    convertible = [
        np.int8(3),
        np.uint64(1),
        np.bool_(True),
        np.float32(0.5),
        np.float64(1),
        kind(1),
    ]
    for value in [*convertible, np.longdouble(0.5), scalars.FLOATS["bfloat16"](0.5)]:
        whole = isinstance(value, np.integer | np.bool_)
        item = value.item() if whole else float(value)
        (tensor,) = tensors = scalars.tensors_of(f"first_{dtype}")
        try:
            lib[f"first_{dtype}"](item, tensor)
        except UserError as error:
            with pytest.raises(type(error)) as caught:
                lib[f"first_{dtype}"](value, tensor)
            assert str(caught.value) == str(error)
        else:
            expected = tensor.tobytes()
            tensor.fill(0)
            lib[f"first_{dtype}"](value, *tensors)
            assert tensor.tobytes() == expected


@pytest.mark.parametrize(
    "thing",
    [
        *(None, "1", b"1", [1], (1,), {}, 1j, object(), int, slice(1), np.str_("1")),
        *(np.array(1), np.ones(1), np.complex64(1), np.datetime64(1, "s"), np.timedelta64(1, "s")),
    ],
    ids=lambda t: type(t).__name__,
)
def test_what_is_no_number(lib: Any, thing: object) -> None:
    for dtype in ("bool", "int32", "uint64", "float16", "float64"):
        (tensor,) = scalars.tensors_of(f"last_{dtype}")
        with pytest.raises(TypeError, match=f"last_{dtype}: argument 'p1' must be a") as caught:
            lib[f"last_{dtype}"](tensor, thing)
        assert isinstance(caught.value, UserError)
        is_tensor = isinstance(thing, np.ndarray)
        assert (".item()" in caught.value.hint) == is_tensor


_C = {"double": ctypes.c_double, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64}


def test_plain_c_entries(exported: Path) -> None:
    dll = ctypes.CDLL(str(exported))
    dll.scalars_last_error.restype = ctypes.c_char_p
    for name, (params, _) in scalars.SIGNATURES.items():
        getattr(dll, f"scalars_{name}").argtypes = [
            ctypes.c_void_p if d[:2] == "t:" else _C[entry_type(d)] for d in params
        ]
    for name, numbers in scalars.calls(scalars.GOOD):
        tensors = scalars.tensors_of(name)
        arguments = scalars.in_order(name, numbers, [t.ctypes.data for t in tensors])
        assert getattr(dll, f"scalars_{name}")(*arguments) == 0, dll.scalars_last_error()
        assert scalars.wrong_bits(name, numbers, [t.tobytes() for t in tensors]) == []
    for dtype in scalars.DTYPES:
        for value, code in scalars.bad_values(dtype):
            fits = isinstance(value, float) or abs(value) < 1 << 63
            if code != "out-of-range" or not fits or (dtype == "uint64" and value < 0):
                continue  # the C type cannot say it
            tensors = scalars.tensors_of(f"first_{dtype}")
            assert getattr(dll, f"scalars_first_{dtype}")(value, tensors[0].ctypes.data) == 19
            assert b"argument 'p0' must be" in dll.scalars_last_error()


def _c_number(value: Any) -> str:
    if value != value:
        return '__builtin_nan("")'
    if value in (np.inf, -np.inf):
        return f"{'-' if value < 0 else ''}__builtin_inf()"
    if isinstance(value, float):
        return value.hex()
    return integer_literal(int(value))


def test_the_header(exported: Path, tmp_path: Path) -> None:
    """A C program over the generated header, with all warnings."""
    gcc, body, expected = require("gcc"), [], []
    for name, numbers in scalars.calls(scalars.GOOD):
        tensors = [d for d in scalars.SIGNATURES[name][0] if d[:2] == "t:"]
        places = [f"(void *)&room[{i}]" for i in range(len(tensors))]
        arguments = scalars.in_order(name, [*map(_c_number, numbers)], places)
        body.append(f"    say(scalars_{name}({', '.join(arguments)}), {len(tensors)});")
        expected.append((name, numbers))
    text = f"""#include "scalars.h"
#include <stdio.h>
static uint64_t room[32];
static void say(int code, int count)
{{
    printf("%d", code);
    for (int i = 0; i < count; i++)
        printf(" %016llx", (unsigned long long)room[i]);
    puts("");
}}
int main(void)
{{
{chr(10).join(body)}
    return 0;
}}
"""
    (tmp_path / "all.c").write_text(text)
    warn = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wconversion"]
    command = [gcc, "-std=c99", *warn, f"-I{exported.parent}", "all.c", str(exported), "-o", "all"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    process = subprocess.run([tmp_path / "all"], capture_output=True, text=True, check=True)
    for (name, numbers), row in zip(expected, process.stdout.splitlines(), strict=True):
        assert row.split()[0] == "0"
        assert wrong_words(name, numbers, row.split()[1:]) == []


def wrong_words(name: str, numbers: list[Any], words: list[str]) -> list[object]:
    """As `wrong_bits`, of 8 bytes each that a program printed as one number."""
    types = [scalars.numpy_type(d[2:]) for d in scalars.SIGNATURES[name][0] if d[:2] == "t:"]
    data = [
        int(w, 16).to_bytes(8, "little")[: t.itemsize] for w, t in zip(words, types, strict=True)
    ]
    return scalars.wrong_bits(name, numbers, data)


@needs_ffi
def test_tvm_ffi(exported: Path) -> None:
    import tvm_ffi

    lib = tvm_ffi.load_module(str(exported))
    for name, numbers in scalars.calls(scalars.GOOD):
        if any(isinstance(v, int) and v >= 1 << 63 for v in numbers):
            continue  # its integers are int64
        tensors = scalars.tensors_of(name)
        # Its DLPack has no place for bfloat16 of NumPy.
        visible_arrays = [t.view(np.uint16) if t.dtype.name == "bfloat16" else t for t in tensors]
        lent = [_with_type(t, s) for t, s in zip(tensors, visible_arrays, strict=True)]
        lib[name](*scalars.in_order(name, numbers, lent))
        assert scalars.wrong_bits(name, numbers, [t.tobytes() for t in tensors]) == []
    for dtype in scalars.DTYPES:
        for value, code in scalars.bad_values(dtype):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                continue
            (tensor,) = scalars.tensors_of(f"first_{dtype}")
            place = _with_type(tensor, tensor.view(np.uint16) if dtype == "bfloat16" else tensor)
            kind = ValueError if code == "out-of-range" else TypeError
            with pytest.raises(kind, match="argument 'p0' must be"):
                lib[f"first_{dtype}"](value, place)


def _with_type(array: Any, visible_array: Any) -> Any:
    """The tensor for tvm-ffi, which takes bfloat16 from torch only."""
    if array.dtype.name != "bfloat16":
        return visible_array
    torch = pytest.importorskip("torch")
    return torch.from_numpy(visible_array.view(np.int16)).view(torch.bfloat16)


def _finite(dtype: str) -> list[Any]:
    return [v for v in scalars.GOOD[dtype] if isinstance(v, int) or np.isfinite(v)]


def test_numbers_in_a_graph() -> None:
    """R.call_tir with numbers of every type: constants of the program."""
    from tensorkiln import ops
    from tensorkiln.script import from_source

    head, calls, cases = [], [], []
    for dtype in scalars.DTYPES:
        head.append(
            f"    @T.prim_func(private=True)\n    def copy_{dtype}(v: T.{dtype}, "
            f'Y: T.Buffer((1,), "{dtype}")):\n        Y[0] = v'
        )
        for value in _finite(dtype):
            text = f"T.{dtype}({bool(value) if dtype == 'bool' else value!r})"
            calls.append(
                f"        y{len(cases)} = R.call_tir(cls.copy_{dtype}, (R.prim_value({text}),), "
                f'R.Tensor((1,), "{dtype}"))'
            )
            cases.append((dtype, value))
    names = ", ".join(f"y{i}" for i in range(len(cases)))
    text = "\n".join(
        [
            "@tk.script.ir_module",
            "class M:",
            *head,
            "    @R.function",
            "    def main():",
            *calls,
            f"        return ({names})",
        ]
    )
    results = Executor(tk.compile(from_source(text, infer=ops.infer)))["main"]()
    wrong = [
        (dtype, value, result)
        for (dtype, value), result in zip(cases, results, strict=True)
        if not scalars.same(dtype, result.numpy().tobytes(), value)
    ]
    assert wrong == []


def test_a_loaded_library_says_the_types(exported: Path) -> None:
    inputs = load_module(exported).functions["mixed"].inputs
    assert [(p.dtype, p.shape is None) for p in inputs] == [
        (d.removeprefix("t:"), d[:2] != "t:") for d in scalars.SIGNATURES["mixed"][0]
    ]

"""Every function that a library shows, with a null pointer in the place of each pointer that it
takes: an error with a sentence where one is documented, and never a crash. The calls are made
in a child of this process."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.link.shared import DEVICE_EXPORTS, LEVEL_EXPORTS
from tensorkiln.runtime import load_module
from tensorkiln.runtime.native import Value
from tensorkiln.runtime.tensor import DLTensor
from tensorkiln.script import from_source
from tests.artifact.test_loaders import STREAMER

CRT = Path(tk.__file__).parent / "crt"
MODULE = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.mul(x, R.const(2.0, "float32"))
    return a

@R.function
def outer(x: R.Object) -> R.Object:
    return x

@T.prim_func
def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = 2.0 * x[i]
"""
# Where a null pointer has a meaning: it is no error.
MEANT = {
    ("kiln_executor_destroy", "executor"),
    ("kiln_executor_invoke", "executor"),
    ("kiln_make_function", "context"),
    ("kiln_make_function", "destroy"),
    ("kiln_register_function", "function"),
    ("kiln_register_loader", "loader"),
    ("kiln_set_module", "module"),
    ("kiln_string_of", "bytes"),
    ("kiln_shape_of", "count"),
    ("kiln_items_of", "count"),
    ("kiln_has_loader", "name"),  # there is none of that name
}
# Called by the interpreter alone, with objects of its own.
NOT_FOR_HOSTS = {"kiln_python_call", "kiln_python_calls"}


class Params(ctypes.Structure):
    """`kiln_loader`."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        *((n, ctypes.c_void_p) for n in ("context", "load", "call", "unload")),
    ]


def prototypes() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """name -> (type of the result, types and names of parameters), as kiln.h has them."""
    text = re.sub(r"/\*.*?\*/", "", (CRT / "kiln.h").read_text(), flags=re.S)
    functions = {}
    pattern = r"^([\w ]+?[ *]+)(kiln_\w+)\(((?:[^()]|\([^()]*\))*)\);"
    for result, name, inside in re.findall(pattern, text, flags=re.M):
        parts = re.findall(r"(?:[^,()]|\([^()]*\))+", inside.replace("\n", " "))
        params = []
        for part in filter(lambda p: p.strip() != "void", parts):
            function = re.match(r"\s*void \(\*(\w+)\)\(", part)
            if function:
                params.append(("void *", function[1]))
            else:
                kind, param = re.match(r"(.*?)(\w+)\s*$", part.strip()).groups()  # type: ignore[union-attr]
                params.append((kind.strip(), param))
        functions[name] = result.strip(), params
    return functions


PROTOTYPES = prototypes()
# Only libraries with devices have them (tests/runtime/test_devices.py, tests/cuda/test_streams.py),
# or with kernels for several processors (tests/test_levels.py).
for name in (*DEVICE_EXPORTS, *LEVEL_EXPORTS):
    del PROTOTYPES[name]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    exe = tk.compile(from_source(MODULE), externals=[STREAMER], name="net")
    path = exe.export_library(tmp_path_factory.mktemp("null") / "net.so")
    return load_module(path)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
def nothing(*_: object) -> int:
    return 0


class Given:
    """Valid arguments for every parameter."""

    def __init__(self, dll: Any):
        self.dll = dll
        self.data = (ctypes.c_float * 4)()
        self.shape = (ctypes.c_int64 * 1)(4)
        self.tensor = DLTensor()
        tensor = self.tensor
        tensor.data, tensor.ndim, tensor.code, tensor.bits = ctypes.addressof(self.data), 1, 2, 32
        tensor.device_type, tensor.lanes, tensor.shape = 1, 1, self.shape
        self.tensors = (ctypes.c_void_p * 2)(*[ctypes.addressof(tensor)] * 2)
        self.values = (Value * 2)()
        for value in self.values:
            value.kind, value.payload.pointer = 7, ctypes.addressof(tensor)
        self.executor = ctypes.c_void_p()
        assert dll.kiln_executor_create(ctypes.byref(self.executor)) == 0
        self.function = Value()
        assert dll.kiln_make_function(nothing, None, None, ctypes.byref(self.function)) == 0
        address = ctypes.cast(nothing, ctypes.c_void_p)
        self.loader = Params(ctypes.sizeof(Params), None, address, address, None)
        self.pool = (ctypes.c_void_p * 2)(1 | 16 << 32, address)
        self.room = (ctypes.c_int64 * 64)()

    def argument(self, function: str, kind: str, name: str) -> Any:
        if "*" not in kind and kind not in ("kiln_callback", "kiln_body"):
            if kind == "kiln_dtype":
                return 2 | 32 << 8 | 1 << 16
            numbers = {"count": 1, "function": 0, "bytes": 3, "ndim": 1, "threads": 1, "output": 0}
            numbers |= {"kind": 0, "inputs": 1, "outputs": 1, "file": -1}
            count = 2 if function in ("kiln_executor_run", "kiln_call") and name == "count" else 0
            return count or numbers[name]
        if kind == "kiln_executor *" or kind == "const kiln_executor *":
            return self.executor
        texts = {"loader": b"stream", "function": b"streamer_mul", "text": b"abc"}
        if kind == "const char *":
            return texts.get(name, b"main" if function == "kiln_function_index" else b"")
        if kind == "const kiln_value *" and name == "function":
            return ctypes.byref(self.function)
        return {
            "const kiln_tensor *const *": self.tensors,
            "const kiln_value *": self.values,
            "const kiln_loader *": ctypes.byref(self.loader),
            "const kiln_pool_api *": self.pool,
            "const int64_t *": self.shape,
            "kiln_callback": nothing,
        }.get(kind, self.room)


def sentence_after(dll: Any, call: Callable[[], Any]) -> tuple[Any, bytes]:
    dll.kiln_set_last_error(b"")
    result = call()
    return result, dll.kiln_last_error()


def in_children(looks: Mapping[str, Callable[[], None]]) -> list[str]:
    """What goes wrong in looks, by name: the text of an exception, or the signal that ended the
    process. They are done in one child after the other: the next begins behind the look that ended
    one."""
    reports: dict[str, str] = {}
    while len(reports) < len(looks):
        names = [*looks][len(reports) :]
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for name in names:
                report = ""
                try:
                    looks[name]()
                except BaseException as error:
                    report = " ".join(f"{type(error).__name__}: {error}".split())  # one line
                os.write(write, f"{report}\n".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as stream:
            reports |= zip(names, stream.read().splitlines(), strict=False)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if len(reports) < len(looks):
            end = signal.Signals(-code).name if code < 0 else f"the process ended with {code}"
            reports[[*looks][len(reports)]] = end
    return [f"{name}: {report}" for name, report in reports.items() if report]


def cases() -> Iterator[tuple[str, int]]:
    for name, (_, params) in PROTOTYPES.items():
        for i, (kind, _) in enumerate(params):
            if "*" in kind or kind == "kiln_callback":
                yield name, i


def test_all_functions_are_here(library: Any) -> None:
    """kiln.h declares what libraries show, and the pattern above reads all of it."""
    exported = {
        s.name
        for s in read_binary(library.path).symbols(dynamic=True)
        if s.is_defined and s.name.startswith("kiln_")
    }
    private = {"kiln_python_open"} | NOT_FOR_HOSTS
    assert exported - private <= set(PROTOTYPES)
    assert set(PROTOTYPES) <= exported
    assert len(list(cases())) > 50


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_null_for_each_pointer(library: Any) -> None:
    dll = ctypes.CDLL(os.fspath(library.path))
    dll.kiln_last_error.restype = ctypes.c_char_p
    looks: dict[str, Callable[[], None]] = {}
    for name, index in cases():
        result, params = PROTOTYPES[name]
        param = params[index][1]

        def look(
            name: str = name,
            index: int = index,
            result: str = result,
            params: Any = params,
            param: str = param,
        ) -> None:
            call_arguments = Given(dll)
            arguments = [call_arguments.argument(name, *p) for p in params]
            arguments[index] = None
            function = getattr(dll, name)
            function.restype = {"void": None, "int64_t": ctypes.c_int64, "int": ctypes.c_int}.get(
                result, ctypes.c_void_p
            )
            code, sentence = sentence_after(dll, lambda: function(*arguments))
            if result == "int" and (name, param) not in MEANT:
                assert code != 0, "no error"
                assert b"null pointer" in sentence or b"address is null" in sentence, sentence
            elif result.endswith("*") and (name, param) not in MEANT:
                assert code is None, "no error"
            elif result == "int" and name != "kiln_has_loader":
                assert code == 0 or name == "kiln_executor_invoke", sentence

        looks[f"{name}({param})"] = look
    wrong = in_children(looks)
    assert not wrong, "\n".join(wrong)


def test_null_inside_of_arguments(library: Any) -> None:
    """A tensor that is none, one without data or shape, texts and bytes that are none."""
    dll = ctypes.CDLL(os.fspath(library.path))
    dll.kiln_last_error.restype = ctypes.c_char_p
    outer = next(i for i in range(9) if dll.kiln_function_index(b"outer") == i)
    looks: dict[str, Callable[[], None]] = {}
    for missing_part in ("tensor", "data", "shape", 8, 9, 65, 66, 68, 69, 70, 71, 75):
        for call in (
            "run",
            "call",
            "invoke",
            "invoke outer",
            "output_shape",
            "make_tuple",
            "call_value",
            "register_function",
            "string_of",
            "shape_of",
            "items_of",
            "tensor_of",
            "retain",
            "release",
            "ffi",
        ):

            def look(missing_part: object = missing_part, call: str = call) -> None:
                call_arguments = Given(dll)
                tensors, values = call_arguments.tensors, call_arguments.values
                if missing_part == "tensor":
                    tensors[0] = values[0].payload.pointer = None
                elif missing_part == "data":
                    call_arguments.tensor.data = None
                elif missing_part == "shape":
                    call_arguments.tensor.shape = ctypes.POINTER(ctypes.c_int64)()
                else:
                    values[0].kind, values[0].payload.pointer = missing_part, None
                room, result = call_arguments.room, Value()
                arguments: dict[str, tuple[str, tuple[Any, ...]]] = {
                    "run": ("kiln_executor_run", (call_arguments.executor, 0, tensors, 2)),
                    "call": ("kiln_call", (0, values, 2)),
                    "invoke": (
                        "kiln_executor_invoke",
                        (call_arguments.executor, 0, values, 1, ctypes.byref(result)),
                    ),
                    "invoke outer": (
                        "kiln_executor_invoke",
                        (call_arguments.executor, outer, values, 1, ctypes.byref(result)),
                    ),
                    "output_shape": ("kiln_output_shape", (0, tensors, 1, 0, room, room)),
                    "make_tuple": ("kiln_make_tuple", (values, 1, ctypes.byref(result))),
                    "call_value": ("kiln_call_value", (values, values, 1, ctypes.byref(result))),
                    "register_function": ("kiln_register_function", (b"f", values)),
                    "ffi": ("__tvm_ffi_main", (None, values, 2, ctypes.byref(result))),
                }
                name, args = arguments.get(call, (f"kiln_{call}", (values, room)))
                code, sentence = sentence_after(dll, lambda: getattr(dll, name)(*args))
                if call in ("run", "output_shape") and missing_part not in (
                    "tensor",
                    "data",
                    "shape",
                ):
                    return
                if call in arguments and (call, missing_part) != ("output_shape", "data"):
                    assert code != 0, "no error"
                    assert sentence, "no sentence"

            looks[f"{missing_part} in {call}"] = look
    wrong = in_children(looks)
    assert not wrong, "\n".join(wrong)


def test_null_for_python(library: Any) -> None:
    """What CPython calls: without CPython, and without objects."""
    dll = ctypes.CDLL(os.fspath(library.path))
    dll.kiln_last_error.restype = ctypes.c_char_p
    dll.kiln_python_call.restype = ctypes.c_void_p

    def look() -> None:
        address = ctypes.c_void_p(8)
        for arguments in (
            (None, None, 0, None),
            (None, address, 1, None),
            (address, None, 1, None),
        ):
            dll.kiln_set_last_error(b"")
            result = dll.kiln_python_call(*arguments)
            sentence = dll.kiln_last_error()
            assert result is None and b"null pointer" in sentence

    assert not in_children({"python": look})


def test_null_for_entries(library: Any) -> None:
    """The plain C entries, and those of tvm-ffi."""
    dll = ctypes.CDLL(os.fspath(library.path))
    dll.net_last_error.restype = ctypes.c_char_p

    def look() -> None:
        data = (ctypes.c_float * 4)()
        assert dll.net_twice(data, data) == 0
        for entry in (dll.net_main, dll.net_twice):
            for arguments in ((None, data), (data, None)):
                assert entry(*arguments) == 6
                assert b"address is null" in dll.net_last_error()
        for entry in (dll.__tvm_ffi_main, dll.__tvm_ffi_twice, dll.__tvm_ffi_outer):
            values = (Value * 2)()
            assert entry(None, None, 2, ctypes.byref(values)) == -1
            assert entry(None, values, 0, None) == -1

    assert not in_children({"python": look})

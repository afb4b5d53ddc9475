"""Every way into a library with tensors of extreme ranks and sizes: `python -m tests.crt.extremes
LIBRARY HOST`. Each call gives a result or a typed error with a sentence; a crash ends the program,
and the file LAST in the working folder says in which call.

The tensors are legal where their memory is concerned: large extents have stride 0.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import AnyTensorType, GlobalRef
from tensorkiln.runtime import Executor, load_module
from tensorkiln.runtime.native import Value
from tensorkiln.runtime.tensor import DLTensor
from tensorkiln.script import from_source
from tests.outer.build import BOOL, OBJECT, F, If, PrimType, ShapeType, tensor
from tests.outer.test_dynamic import _op as dynamic

ANY, I64, F32 = AnyTensorType(), tensor((), "int64").dtype, tensor((), "float32").dtype
MOST_RANK = 16  # KILN_MAX_RANK
MEMORY = 1 << 16  # bytes behind each tensor
ROOM = 1 << 30  # bytes that the calls may take
TENSOR, TENSOR_OBJECT = 7, 70

PROGRAMS = """
@R.function
def matmul_sum(
    x: R.Tensor(("n", 1), "float32"), y: R.Tensor((1, "n"), "float32")
) -> R.Tensor((), "float32"):
    a: R.Tensor(("n", "n"), "float32") = R.matmul(x, y)
    b: R.Tensor((), "float32") = R.sum(a, axes=(0, 1), keepdims=False)
    return b

@R.function
def four(
    a: R.Tensor(("n",), "float32"), b: R.Tensor(("n",), "float32"),
    c: R.Tensor(("n",), "float32"), d: R.Tensor(("n",), "float32"),
) -> R.Tensor(("n",), "float32"):
    x: R.Tensor(("n",), "float32") = R.add(a, b)
    y: R.Tensor(("n",), "float32") = R.add(c, d)
    z: R.Tensor(("n",), "float32") = R.mul(x, y)
    return z

@R.function
def flat(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n * m * 4",), "float32"):
    a: R.Tensor(("n * m",), "float32") = R.reshape(x, shape=(n * m,))
    b: R.Tensor(("n * m * 4",), "float32") = R.concat(a, a, a, a, axis=0)
    return b

@T.prim_func
def twice(x: T.Buffer(("n", "m"), "float32"), y: T.Buffer(("n", "m"), "float32")):
    for i in range(n):
        for j in range(m):
            y[i, j] = 2.0 * x[i, j]

@T.prim_func
def total(x: T.Buffer(("n", "m"), "float32"), k: T.int64, y: T.Buffer((1,), "float32")):
    for i in range(n):
        for j in range(m):
            y[0] = y[0] + x[i, j]
"""


def module() -> IRModule:
    """Functions of every kind, and every operator that looks into tensors of any shape."""
    three = AnyTensorType(3)
    x = F("branch", x=BOOL)
    then_function = F("then")
    branch = x.outer(
        x.let("y", BOOL, If(x["x"], then_function.body(x["x"]), then_function.body(x["x"])))
    )
    same_function, number = F("same", x=OBJECT), F("number", x=PrimType(I64))
    sizes, give = F("sizes", x=ShapeType(2)), F("give")
    index = AnyTensorType(1, I64)
    functions = from_source(PROGRAMS).functions
    return IRModule(
        (
            *(functions.values() if isinstance(functions, dict) else functions),
            same_function.outer(same_function["x"]),
            number.outer(number["x"]),
            sizes.outer(sizes["x"]),
            give.outer(GlobalRef("unique")),
            branch,
            dynamic("nonzero", "nonzero", {"x": ANY}),
            dynamic("unique", "unique", {"x": ANY}),
            *(dynamic(f"unique{a}", "unique", {"x": three}, axis=a) for a in (0, 1, 2)),
            dynamic("compress_flat", "compress", {"x": ANY, "c": ANY}),
            *(
                dynamic(f"compress{a}", "compress", {"x": three, "c": ANY}, axis=a)
                for a in (0, 1, 2)
            ),
            dynamic("slice2", "slice_dynamic", {"x": ANY, "s": index, "e": index}),
            dynamic("slice4", "slice_dynamic", {k: ANY if k == "x" else index for k in "xseat"}),
            dynamic("nms5", "non_max_suppression", dict.fromkeys(("b", "s", "m", "o", "t"), ANY)),
        ),
        "extremes",
    )


HOST = r"""
#include "kiln_host.h"

/* What the header's functions say of a tensor that is given as every argument. */
int host_calls(const char *path, const char *function, const kiln_tensor *tensor, int how,
               char *said, int *count);
int host_calls(const char *path, const char *function, const kiln_tensor *tensor, int how,
               char *said, int *count)
{
    static kiln_host_library *library;
    static kiln_host_executor *executor;
    const kiln_host_function *f;
    kiln_host_error error = {0, ""};
    kiln_tensor all[8];
    kiln_value values[8], result = kiln_host_value(KILN_NONE);
    int64_t shape[KILN_MAX_RANK];
    int ndim, code = 0;
    if (library == NULL && (kiln_host_open(path, &library, &error) != 0 ||
                            kiln_host_executor_create(library, &executor, &error) != 0))
        return -1;
    if (kiln_host_find(library, function, &f, &error) != 0)
        return -2;
    for (int i = 0; i < 8; i++) {
        all[i] = *tensor;
        values[i] = kiln_host_lend(tensor);
    }
    if (how == 0)
        code = kiln_host_run(executor, f, all, f->n_inputs, all, f->n_outputs, &error);
    else if (how == 1)
        code = kiln_host_output_shape(library, f, all, f->n_inputs, 0, shape, &ndim, &error);
    else if (how == 2)
        code = kiln_host_call(library, f, values, f->n_inputs, &error);
    else if (how == 3)
        code = kiln_host_invoke(executor, f, values, f->n_inputs, &result, &error);
    else
        *count += kiln_host_is_packed(tensor);
    library->api.release(&result);
    snprintf(said, 1024, "%s", error.sentence);
    return code;
}
"""


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Object(ctypes.Structure):
    """A tensor object of tvm-ffi, that nobody frees."""

    _fields_ = [
        ("counts", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("release", ctypes.c_void_p),
        ("tensor", DLTensor),
    ]


# name -> code and bits of DLPack, lanes
TYPES = {
    "float32": (2, 32, 1),
    "int64": (0, 64, 1),
    "bool": (6, 8, 1),
    "uint8": (1, 8, 1),
    "bfloat16": (4, 16, 1),
    "int4": (0, 4, 1),
    "bool1": (6, 1, 1),
    "complex128": (5, 128, 1),
    "float32x4": (2, 32, 4),
    "nothing": (2, 0, 0),
}
_memory = ctypes.create_string_buffer(MEMORY)
_kept = collections.deque[Any](maxlen=64)  # what C may still look at


def describe(shape: Sequence[int], dtype: str, ndim: int | None = None) -> DLTensor:
    """A tensor of that shape over a few bytes: stride 0 where an extent is large."""
    tensor = DLTensor()
    tensor.data, tensor.device_type = ctypes.addressof(_memory), 1
    tensor.ndim = len(shape) if ndim is None else ndim
    tensor.code, tensor.bits, tensor.lanes = TYPES[dtype]
    sizes = ctypes.c_int64 * max(1, len(shape))
    small = abs(math.prod(shape)) * 64 <= MEMORY
    steps, step = list[int](), 1
    for size in reversed(shape):
        steps.insert(0, step if small else 0)
        step *= size if small else 1
    rows = sizes(*shape), sizes(*steps)
    tensor.shape, tensor.strides = rows
    _kept.append((rows, tensor))
    return tensor


EXTENTS = (0, 1, 2, 1 << 31, 1 << 60)


def shapes() -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Shapes, and the rank that a tensor claims where that is another."""
    for rank in range(65):
        yield (1,) * rank, None
    for claimed in (-1, -(1 << 31)):
        yield (1,), claimed
    for rank in (1, 2, 3):
        for shape in itertools.product(EXTENTS, repeat=rank):
            yield shape, None
    for rank in (4, 15, 16, 17, 63, 64):
        for extent, axis in itertools.product((*EXTENTS, -1, -(1 << 63)), (0, rank - 1)):
            yield (1,) * axis + (extent,) + (1,) * (rank - 1 - axis), None
        for extent in EXTENTS[3:]:
            yield (extent,) * rank, None
            yield (*((extent,) * (rank - 1)), 0), None
            yield (0, *((extent,) * (rank - 1))), None
    for boxes in ((1 << 31, 1 << 31, 4), (1, 0, 4), (1 << 31, 0, 4), (0, 1 << 31, 4), (1, 3, 4)):
        yield boxes, None


class Exports:
    """An object whose memory anybody may have, by DLPack."""

    def __init__(self, tensor: DLTensor):
        self._managed = Managed(tensor, None, None)
        _kept.append(self)

    def __dlpack__(self, **_: object) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Calls:
    """All calls of one library."""

    def __init__(self, library: Path, host: Path):
        self.path, self.lib = library, load_module(library)
        self.run = Executor(self.lib)
        self.dll: Any = ctypes.CDLL(os.fspath(library))
        self.dll.kiln_last_error.restype = ctypes.c_char_p
        self.host: Any = ctypes.CDLL(os.fspath(host))
        self.executor = ctypes.c_void_p()
        assert self.dll.kiln_executor_create(ctypes.byref(self.executor)) == 0
        self.counts = {name: len(info.inputs) for name, info in self.lib.functions.items()}
        self.kinds = {name: info.kind for name, info in self.lib.functions.items()}
        self.outputs = {
            name: 0 if info.kind == "outer" else len(info.outputs)
            for name, info in self.lib.functions.items()
        }
        self.index = {name: self.dll.kiln_function_index(name.encode()) for name in self.counts}
        self.unique = Value()
        give = self.dll.kiln_executor_invoke
        assert give(self.executor, self.index["give"], None, 0, ctypes.byref(self.unique)) == 0

    def code(self, code: int) -> str:
        """A result code, which has a sentence."""
        assert 0 <= code < 20, code
        assert code == 0 or self.dll.kiln_last_error(), "no sentence"
        return str(code)

    def into(self, result: Value, code: int) -> str:
        sentence = self.code(code)
        self.dll.kiln_release(ctypes.byref(result))
        return sentence

    def values(self, t: DLTensor, count: int, kind: int = TENSOR) -> Any:
        value_array = (Value * max(1, count))()
        if kind == TENSOR_OBJECT:
            foreign = Object(1 | 1 << 32, TENSOR_OBJECT, 0, None, t)
            _kept.append(foreign)
        for value in value_array:
            value.kind = kind
            address = ctypes.addressof(t if kind == TENSOR else foreign)
            value.payload.pointer = address
        return value_array

    def of_values(self, t: DLTensor) -> Iterator[tuple[str, Callable[[], str]]]:
        """Those that make values, of no function."""
        value = Value()
        dtype = t.code | t.bits << 8 | t.lanes << 16
        dll, out = self.dll, ctypes.byref(value)
        managed = Managed(t, None, None)
        _kept.append(managed)
        values = self.values(t, 1)
        objects = self.values(t, 1, TENSOR_OBJECT)
        make, take, pack = dll.kiln_make_tensor, dll.kiln_take_dlpack, dll.kiln_make_tuple
        yield "make_tensor", lambda: self.into(value, make(t.shape, t.ndim, dtype, out))
        yield "take_dlpack", lambda: self.into(value, take(ctypes.byref(managed), out))
        for suffix, argument_values in (("", values), (" of an object", objects)):
            yield (
                f"make_tuple{suffix}",
                lambda argument_values=argument_values: self.into(
                    value, pack(argument_values, 1, out)
                ),
            )  # type: ignore[misc]
            yield (
                f"call_value{suffix}",
                lambda argument_values=argument_values: self.into(  # type: ignore[misc]
                    value, dll.kiln_call_value(ctypes.byref(self.unique), argument_values, 1, out)
                ),
            )

    def of_function(self, name: str, t: DLTensor) -> Iterator[tuple[str, Callable[[], str]]]:
        """The ways into one function, with the tensor as every argument."""
        dll, index, count = self.dll, self.index[name], self.counts[name] + self.outputs[name]
        pointers = (ctypes.c_void_p * max(1, count))(*[ctypes.addressof(t)] * count)
        room, ndim = (ctypes.c_int64 * MOST_RANK)(), ctypes.c_int()
        values, result = self.values(t, count), Value()
        objects, out = self.values(t, count, TENSOR_OBJECT), ctypes.byref(result)
        inputs = self.counts[name]
        invoke = dll.kiln_executor_invoke
        if self.kinds[name] != "outer":
            run = dll.kiln_executor_run
            yield "run", lambda: self.code(run(self.executor, index, pointers, count))
            yield "call", lambda: self.code(dll.kiln_call(index, values, count))
            yield (
                "output_shape",
                lambda: self.code(
                    dll.kiln_output_shape(index, pointers, inputs, 0, room, ctypes.byref(ndim))
                ),
            )
        for suffix, argument_values in (("", values), (" of objects", objects)):
            yield (
                f"invoke{suffix}",
                lambda argument_values=argument_values: self.into(  # type: ignore[misc]
                    result, invoke(self.executor, index, argument_values, inputs, out)
                ),
            )
            yield (
                f"ffi{suffix}",
                lambda argument_values=argument_values: self.ffi(
                    name, argument_values, count, result
                ),
            )  # type: ignore[misc]
        sentence = ctypes.create_string_buffer(1024)
        for mode in range(3 if self.kinds[name] == "outer" else 0, 5):
            yield f"host {mode}", lambda mode=mode: self.of_host(name, t, mode, sentence)  # type: ignore[misc]
        yield "python", lambda: self.python(name, [Exports(t)] * inputs)
        if self.outputs[name] == 1:
            yield "python, out=", lambda: self.python(name, [Exports(t)] * inputs, out=Exports(t))

    def ffi(self, name: str, values: Any, count: int, result: Value) -> str:
        entry = getattr(self.dll, f"__tvm_ffi_{name}")
        code = entry(None, values, count, ctypes.byref(result))
        assert code in (0, -1), code
        if code == 0 and result.kind >= 64 and self.kinds[name] == "outer":
            self.dll.kiln_release(ctypes.byref(result))
        return str(code)

    def of_host(self, name: str, t: DLTensor, mode: int, sentence: Any) -> str:
        path, count = os.fspath(self.path).encode(), ctypes.c_int()
        code = self.host.host_calls(
            path, name.encode(), ctypes.byref(t), mode, sentence, ctypes.byref(count)
        )
        assert 0 <= code < 20, (code, sentence.value)
        assert code == 0 or sentence.value, "no sentence"
        return str(code)

    def python(self, name: str, inputs: Sequence[Any], **options: Any) -> str:
        function = self.lib[name] if self.kinds[name] == "tensor" else self.run[name]
        try:
            function(*inputs, **options)
        except UserError as error:
            return type(error).__name__
        return "0"


def arrays() -> Iterator[Any]:
    """What NumPy has itself: none is copied to be made."""
    base = np.zeros(16, np.float32)
    for shape, claimed in shapes():
        if claimed is None and min(shape, default=0) >= 0:
            try:
                yield np.lib.stride_tricks.as_strided(base, shape, (0,) * len(shape))
            except ValueError:  # more than NumPy has
                continue


def main(library: str, host: str) -> None:
    """All calls; how often which answer came."""
    calls, answers = Calls(Path(library), Path(host)), collections.Counter[tuple[str, str]]()
    used_bytes = (
        next(
            int(row.split()[1])
            for row in Path("/proc/self/status").read_text().splitlines()
            if row.startswith("VmData")
        )
        << 10
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used_bytes + ROOM, used_bytes + ROOM))
    last = os.open("LAST", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def do(place: str, call_name: str, call: Callable[[], str]) -> None:
        os.pwrite(last, f"{place}: {call_name}".ljust(500).encode(), 0)
        try:
            answers[call_name, call()] += 1
        except Exception as error:
            raise AssertionError(
                f"{place}: {call_name}: {type(error).__name__}: {error}"
            ) from error

    for shape, claimed in shapes():
        odd = len(shape) in (0, 1, 2, 3, 17) and claimed is None
        for dtype in TYPES if odd else ("float32",):
            t = describe(shape, dtype, claimed)
            place = f"{dtype} {list(shape)} of rank {t.ndim}"
            for call_name, call in calls.of_values(t):
                do(place, call_name, call)
            for name in (
                calls.counts
                if dtype == "float32"
                else (
                    "unique",
                    "nonzero",
                    "nms5",
                    "compress_flat",
                    "slice2",
                    "branch",
                    "number",
                    "sizes",
                    "same",
                )
            ):
                for call_name, call in calls.of_function(name, t):
                    do(f"{name} of {place}", call_name, call)
    for array in arrays():
        for name, count in calls.counts.items():
            do(
                f"{name} of {list(array.shape)}",
                "numpy",
                lambda name=name, count=count, a=array: calls.python(name, [a] * count),
            )  # type: ignore[misc]
    entries = {s.name for s in read_binary(calls.path).symbols(dynamic=True) if s.is_defined}
    assert {f"__tvm_ffi_{name}" for name in calls.counts} <= entries
    print(sum(answers.values()), "calls,", sum(answers[k] for k in answers if k[1] == "0"), "gave")
    for (call_name, sentence), count in sorted(answers.items()):
        print(f"{call_name}\t{sentence}\t{count}")


if __name__ == "__main__":
    main(*sys.argv[1:])

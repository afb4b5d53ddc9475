"""The GPU of a run, and contenders that queue work on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Function, RVar, TensorType, Tuple
from tensorkiln.ir.visit_graph import substitute, substitute_value
from tensorkiln.runtime import DeviceTensor
from tensorkiln.target.gpus import CUDA_ARCHS
from tests.cuda import lookalike
from tests.cuda.driver_calls import Driver

Array = np.ndarray
_NOT_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


class Gpu:
    """Device 0 and a stream on it; `dry`: the tests' stand-in for the driver, whatever the machine
    has, which runs kernels thread by thread on the processor."""

    def __init__(self, dry: bool):
        self.dry = dry
        if dry:
            lookalike.load_lookalike()
        self.driver = Driver()
        self.stream = self.driver.make("cuStreamCreate", _NOT_BLOCKING).value or 0

    def _number(self, attribute: int) -> int:
        value = ctypes.c_int()
        assert self.driver("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0) == 0
        return value.value

    @cached_property
    def arch(self) -> str:
        """The newest architecture that targets know and the device runs."""
        capability = 10 * self._number(_MAJOR) + self._number(_MINOR)
        capabilities = [int(a[3:]) for a in CUDA_ARCHS if a[3:].isdigit()]
        arch = f"sm_{max(a for a in capabilities if a <= capability)}"
        return f"{arch}a" if arch == f"sm_{capability}" and f"{arch}a" in CUDA_ARCHS else arch

    @cached_property
    def name(self) -> str:
        """Its name, capability and driver."""
        text, version = ctypes.create_string_buffer(256), ctypes.c_int()
        assert self.driver("cuDeviceGetName", text, 255, 0) == 0
        assert self.driver("cuDriverGetVersion", ctypes.byref(version)) == 0
        cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        return f"{text.value.decode(errors='replace')}, {self.arch}, driver of {cuda}"

    def wait(self) -> None:
        """Wait for the stream."""
        self.driver.context.wait(self.stream)

    def is_lost(self) -> bool:
        """Whether the driver has given the device up, for this process."""
        try:
            self.driver.context.wait(0)
            self.wait()
        except RuntimeError:
            return True
        return False

    def array(self, values: Array) -> DeviceTensor:
        """A copy on the device."""
        tensor = tk.nd.array(values, tk.cuda(0), values.dtype)
        assert isinstance(tensor, DeviceTensor)
        return tensor

    def copy(self, nbytes: int) -> Callable[[], None]:
        """What queues a copy of so many bytes by the driver, from one tensor to another."""
        source, target = (self.array(np.zeros(nbytes, np.uint8)) for _ in range(2))
        places = [ctypes.c_void_p(t._memory.handle) for t in (target, source)]

        def call(keep: object = (source, target)) -> None:
            size, stream = ctypes.c_size_t(nbytes), ctypes.c_void_p(self.stream)
            assert self.driver("cuMemcpyDtoDAsync", *places, size, stream) == 0

        return call

    def let_run(self, exe: tk.Executable) -> None:
        """Without a GPU: make what the stand-in runs in the place of an executable's kernels."""
        if self.dry:
            from tests.cuda.emulator.build import build_all

            for path in build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"])):
                ctypes.CDLL(str(path)).emulator_watch(0)  # races in buffers: ten times as long


@dataclass
class Contender:
    """`queue` queues one run, `wait` waits for all; `outputs` are those of the last run, `clear`
    overwrites them. One that cannot run has a `status` other than "ok", which says why."""

    label: str
    queue: Callable[[], object] = lambda: None
    wait: Callable[[], None] = lambda: None
    outputs: Callable[[], list[Array]] = list
    clear: Callable[[], None] = lambda: None
    status: str = "ok"


def failure(error: BaseException) -> str:
    """A status: the exception and the first line of what it says."""
    first = (str(error).splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first[:160]}"


def on_device(mod: IRModule, key: str) -> IRModule:
    """The module with the parameters and results of its functions in a device's memory."""

    def there(v: RVar, name: str) -> RVar:
        assert isinstance(v.type, TensorType)
        return RVar(name, replace(v.type, device=key))

    def placed(f: Function) -> Function:
        params = {p: there(p, p.name) for p in f.params}
        bindings = [Binding(b.var, substitute(b.value, params)) for b in f.bindings]
        result = substitute_value(f.result, params)
        fields = result.fields if isinstance(result, Tuple) else (result,)
        named = [there(v, f"result_{i}") for i, v in enumerate(fields)]  # type: ignore[arg-type]
        bindings += [Binding(n, v) for n, v in zip(named, fields, strict=True)]
        last = Tuple(tuple(named)) if isinstance(result, Tuple) else named[0]
        return replace(f, params=tuple(params.values()), bindings=tuple(bindings), result=last)

    return mod.map_graphs(placed)


class Ours:
    """A module compiled for the GPU, its inputs and results on it; `contender` queues a run kernel
    by kernel, `replayed` the graph that the driver has captured of one.

    `options`: further ones of the target. Raises RuntimeError if a kernel is on the host, or of
    another class than `kernel_classes`, if there are any.
    """

    def __init__(
        self,
        gpu: Gpu,
        mod: IRModule,
        inputs: Sequence[Array],
        options: Mapping[str, object] | None = None,
        kernel_classes: Collection[str] = (),
    ):
        self.gpu = gpu
        target = {"kind": "cuda", "arch": gpu.arch, **(options or {})}
        exe = tk.compile(on_device(mod, "cuda"), target)
        elsewhere = [p.kernel for p in exe.placement() if p.device != "cuda"]
        if elsewhere:
            raise RuntimeError(f"not on the device: {', '.join(elsewhere[:3])}")
        classes = {p.kernel_class for p in exe.placement()}
        if kernel_classes and not classes <= set(kernel_classes):
            expected = " or ".join(kernel_classes)
            raise RuntimeError(f"{', '.join(sorted(classes))} instead of {expected}")
        gpu.let_run(exe)
        executor = tk.runtime.Executor(exe, tk.cuda(0))
        executor.set_stream(gpu.stream)
        self._run, self._inputs = executor["main"], [gpu.array(a) for a in inputs]
        self._out: Any = self._run(*self._inputs)
        gpu.wait()

    def _queue(self) -> None:
        self._run(*self._inputs, out=self._out)

    def _results(self) -> Sequence[DeviceTensor]:
        return self._out if isinstance(self._out, tuple | list) else (self._out,)

    def _clear(self) -> None:
        for t in self._results():
            t.copyfrom(np.full(t.shape, np.nan if t.dtype.kind != "i" else -1).astype(t.dtype))

    def _contender(self, label: str, queue: Callable[[], object]) -> Contender:
        def outputs() -> list[Array]:
            return [t.numpy() for t in self._results()]

        return Contender(label, queue, self.gpu.wait, outputs, self._clear)

    def contender(self, label: str = "Tensorkiln") -> Contender:
        """A run that is queued kernel by kernel."""
        return self._contender(label, self._queue)

    def replayed(self) -> Contender:
        """A run that was captured in a graph of the driver."""
        driver, stream = self.gpu.driver, self.gpu.stream
        driver.begin_capture(stream)
        try:
            self._queue()
        finally:
            graph = driver.end_capture(stream)
        ready = driver.instantiate(graph)
        return self._contender("Tensorkiln, captured", lambda: driver.launch(ready, stream))

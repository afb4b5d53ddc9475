"""WebGPU by the package wgpu, for tests of device functions as text: validate them, dispatch them
on NumPy arrays. Where there is no adapter, tests are skipped.

The device has WebGPU's default limits, whatever the adapter has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from tensorkiln.codegen.c_like.wgsl import WgslFunction

_GUARD, _ALIGN = 64, 256  # bytes; WebGPU aligns bindings so
_LIMITS = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
}


@cache
def device() -> Any:
    """A device of wgpu, one that the CPU executes if there is one; skips the test where there is
    none."""
    wgpu = pytest.importorskip("wgpu")
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
    if not adapters:
        pytest.skip("no Vulkan driver")
    adapter = min(adapters, key=lambda a: a.info["adapter_type"] != "CPU")
    return adapter.request_device_sync(required_limits=_LIMITS)


class Program:
    """Device functions as pipelines, by name. Each is validated, with the layout of its bindings,
    when it is made."""

    def __init__(self, functions: Sequence[WgslFunction]):
        self.device = device()
        self.functions = {f.name: f for f in functions}
        self._pipelines = {f.name: self._pipeline(f) for f in functions}

    def _pipeline(self, f: WgslFunction) -> tuple[Any, Any]:
        import wgpu

        kinds = ["storage" if written else "read-only-storage" for _, _, written in f.bindings]
        kinds += ["uniform"] * bool(f.numbers)
        entries = [
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for k, kind in enumerate(kinds)
        ]
        layout = self.device.create_bind_group_layout(entries=entries)
        module = self.device.create_shader_module(code=f.text)
        pipeline = self.device.create_compute_pipeline(
            layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": f.name},
        )
        return pipeline, layout

    def run(
        self, name: str, grid: Sequence[int], block: Sequence[int], args: Sequence[object]
    ) -> None:
        """Dispatch a function on arrays, which it may change, and NumPy numbers, in the order in
        which it takes them. Each array lies at an offset of its own in a buffer. The grid that the
        function says it needs must be that of the launch, or one of as many blocks."""
        f = self.functions[name]
        assert f.block == tuple(block)
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        numbers = [a for a in args if not isinstance(a, np.ndarray)]
        member_names = [member for member, _ in f.numbers]
        values = dict(zip(member_names, numbers, strict=True))
        memory = [
            _Memory(self.device, a, _ALIGN * (k % 3 + 1), written)
            for k, (a, (_, _, written)) in enumerate(zip(arrays, f.bindings, strict=True))
        ]
        resources = [m.binding for m in memory]
        if numbers:
            resources.append(self._uniform(f, values))
        pipeline, layout = self._pipelines[name]
        entries = [{"binding": k, "resource": r} for k, r in enumerate(resources)]
        group = self.device.create_bind_group(layout=layout, entries=entries)
        encoder = self.device.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(pipeline)
        step.set_bind_group(0, group)
        needed_grid = [extent(e, values) for e in f.grid]
        folded = needed_grid[0] * needed_grid[1] >= grid[0] and needed_grid[0] == 65535
        assert needed_grid == list(grid) or folded or (0 in needed_grid and 0 in grid), (
            needed_grid
        )  # no block is no block
        step.dispatch_workgroups(*needed_grid)
        step.end()
        self.device.queue.submit([encoder.finish()])
        for m in memory:
            m.read()

    def _uniform(self, f: WgslFunction, values: Mapping[str, object]) -> dict[str, Any]:
        import wgpu

        data = b"".join(_four_bytes(values[name], dtype) for name, dtype in f.numbers)
        uniform_buffer = self.device.create_buffer_with_data(
            data=data, usage=wgpu.BufferUsage.UNIFORM
        )
        return {"buffer": uniform_buffer, "offset": 0, "size": len(data)}


def extent(e: int | str, values: Mapping[str, object]) -> int:
    """The number of workgroups that a function's description says."""
    names = {name: int(v) for name, v in values.items()}  # type: ignore[call-overload]
    return e if isinstance(e, int) else int(eval(e, {"min": min, "max": max}, names))


def _four_bytes(value: object, dtype: str) -> bytes:
    """A number as a member of the uniform struct."""
    x = np.asarray(value)
    if dtype in ("float16", "bfloat16"):
        return x.view(np.uint16).astype(np.uint32).tobytes()
    if dtype == "float32":
        return x.astype(np.float32).tobytes()
    return x.astype(np.uint32 if dtype[0] in "ub" else np.int32).tobytes()


class _Memory:
    """A buffer that holds a copy of an array from byte `start` on, with bytes around it that a
    function may not change: also those that fill its last word."""

    def __init__(self, device: Any, array: np.ndarray, start: int, written: bool):
        import wgpu

        self.device, self.array, self.start, self.written = device, array, start, written
        size = max(4, -(-array.nbytes // 4) * 4)
        self.bytes = np.random.default_rng(start).integers(0, 256, start + size + _GUARD, np.uint8)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes[start : start + content.size] = content
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self.buffer = device.create_buffer_with_data(data=self.bytes, usage=usage)
        self.binding = {"buffer": self.buffer, "offset": start, "size": size}

    def read(self) -> None:
        """Copy the result into the array."""
        if not self.written:
            return
        content = np.frombuffer(self.device.queue.read_buffer(self.buffer), np.uint8)
        end = self.start + self.array.nbytes
        for part in (slice(0, self.start), slice(end, None)):
            assert np.array_equal(content[part], self.bytes[part]), "wrote outside of its buffer"
        result = content[self.start : end].view(self.array.dtype)
        self.array[...] = result.reshape(self.array.shape)

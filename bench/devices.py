"""`python -m bench.devices`: models on OpenCL beside our own code for the CPU, in one run.

Where OpenCL runs on the CPU, as PoCL does, times say that device code is right and not absurd; they
are no goal. Launches of a run are counted, and set beside the fused groups that TVM makes of the
same model: what its passes for LLVM leave as calls (DecomposeOpsForInference, FoldConstant,
LegalizeOps, FuseOps, FuseTIR). `--tvm` names the Python that has apache-tvm and onnx, if it is not
this one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from bench.plain_c import first_output
from bench.store import add
from tensorkiln.measure.latency import measure
from tests.codegen.opencl.device import device as opencl_device
from tests.zoo.export import model_path
from tests.zoo.registry import EXPORTS, NETWORKS, inputs

MODELS = ("resnet18", "mobilenetv2", "bert_2", "bert")
_NAME = 0x102B  # CL_DEVICE_NAME
# Prints the number of fused groups of a model, and of TVM.
GROUPS = """
import json, sys
import onnx, tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
shapes = json.loads(sys.argv[2])
mod = from_onnx(onnx.load(sys.argv[1]), shape_dict=shapes, keep_params_in_input=False)
passes = tvm.ir.transform.Sequential([
    relax.transform.DecomposeOpsForInference(), relax.transform.FoldConstant(),
    relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
    relax.transform.FoldConstant(), relax.transform.FuseOps(), relax.transform.FuseTIR(),
])
with tvm.target.Target("llvm"):
    mod = passes(mod)
calls = 0
def count(e):
    global calls
    calls += isinstance(e, relax.Call) and getattr(e.op, "name", "") == "relax.call_tir"
relax.analysis.post_order_visit(mod["main"], count)
print(json.dumps({"groups": calls, "version": tvm.__version__}))
"""
HEAD = [
    "Least time of one inference from Python (and the median); the CPU has one thread, the driver",
    "as many as it takes. Launches are those of one run, without copies; TVM's groups the calls",
    "that its fusion leaves (bench/devices.py).\n",
    "| model | CPU ms | OpenCL ms | device | launches | kernels | copies | TVM's groups | run |",
    "|---|--:|--:|---|--:|--:|--:|--:|---|",
]


def device_name() -> str:
    """What the driver calls the first OpenCL device."""
    device, text = opencl_device(), ctypes.create_string_buffer(256)
    device.library.clGetDeviceInfo(device.handle, _NAME, ctypes.c_size_t(255), text, None)
    return text.value.decode(errors="replace").strip()


def launches(exe: tk.Executable) -> int:
    """Device functions that one run of all graph functions starts."""
    functions = [
        name
        for artifact in exe.artifacts
        if artifact.file_name.endswith("kernels.fmap.json")
        for name in json.loads(bytes(artifact.view))["functions"]
    ]
    copies = {f.name for f in exe.module.copies}
    calls = [c.symbol for f in exe.functions for c in f.calls if c.symbol not in copies]
    return sum(_of(symbol, functions) for symbol in calls)


def _of(symbol: str, functions: list[str]) -> int:
    """How many device functions are one kernel's: kernel_device, kernel_device_1, ..."""
    head = f"{symbol}_device"
    return sum(f == head or f.removeprefix(f"{head}_").isdigit() for f in functions)


def groups_of_tvm(python: str, path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """{groups, version}; or {status}, with the reason, where there is no TVM."""
    shapes = json.dumps({name: list(a.shape) for name, a in arrays.items()})
    process = subprocess.run(
        [python, "-c", GROUPS, str(path), shapes], capture_output=True, text=True, check=False
    )
    if process.returncode == 0:
        groups: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return groups
    message = (process.stderr.strip().splitlines() or ["failed"])[-1]
    return {"status": "not installed" if "ModuleNotFoundError" in message else message[:200]}


def run(name: str, seconds: float, tvm: str) -> dict[str, Any]:
    """The record of a model. Results are compared: AssertionError if they differ."""
    module, path = tk.frontend.from_onnx(model_path(name)), Path(model_path(name))
    arrays = inputs(NETWORKS[EXPORTS[name].network], 0)
    executables = {
        "cpu": tk.compile(module, tk.Target("native")),
        "opencl": tk.compile(module, "opencl"),
    }
    calls: dict[str, Callable[[], object]] = {}
    for kind, exe in executables.items():
        library = exe.jit()
        library.set_num_threads(1)
        main = tk.runtime.Executor(library)["main"]
        calls[kind] = lambda main=main: main(*arrays.values())  # type: ignore[misc]
    have, want = (first_output(calls[kind]()) for kind in ("opencl", "cpu"))
    scale = float(np.abs(want).max())
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * scale, err_msg=name)
    times = measure(calls, seconds=seconds, reps=3)
    device = executables["opencl"]
    rows = [
        {"name": kind, "min_ms": t.min_ms, "median_ms": t.median_ms} for kind, t in times.items()
    ]
    return {
        "rows": rows,
        "device": device_name(),
        "launches": launches(device),
        "kernels": sum(k.target_key is not None for k in device.kernels),
        "copies": len(device.copies()),
        "tvm": groups_of_tvm(tvm, path, arrays),
    }


def line(record: dict[str, Any]) -> str:
    """A row of the table."""
    times = {row["name"]: f"{row['min_ms']:.2f} ({row['median_ms']:.2f})" for row in record["rows"]}
    tvm = record["tvm"]
    groups = f"{tvm['groups']} ({tvm['version']})" if "groups" in tvm else tvm["status"]
    cells = [record["model"], times["cpu"], times["opencl"], record["device"]]
    cells += [str(record[key]) for key in ("launches", "kernels", "copies")]
    return "| " + " | ".join([*cells, groups, record["run"]]) + " |"


def main(arguments: list[str] | None = None) -> None:
    """Measure, keep, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated, of the zoo")
    parser.add_argument("--seconds", type=float, default=5.0, help="least time per library")
    parser.add_argument("--tvm", default=sys.executable, help="the Python that has apache-tvm")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    for name in names:
        if name not in EXPORTS:
            parser.error(f"unknown model {name!r}; known: {', '.join(EXPORTS)}")
    warnings.filterwarnings("ignore", message=".*is the baseline")
    print("\n".join(HEAD), flush=True)
    for name in names:
        print(line(add("devices", name, 1, run(name, options.seconds, options.tvm))), flush=True)


if __name__ == "__main__":
    main()

"""The other engines. Each one turns a case and a thread count into a callable.

They are imported when prepared, never before, so that one that is missing becomes a row that says
so. All are given the same ONNX file, except torch.compile, which gets the module it came from.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.contenders import Array, Case, Contender, Runner


def onnx_runtime(case: Case, threads: int, arena: bool = True) -> Runner:
    """All graph optimisations, which is its default. The arena keeps what is given back."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = arena
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(case.path), options, providers=["CPUExecutionProvider"]
    )
    feeds = dict(case.inputs)
    return lambda: tuple(session.run(None, feeds))


def openvino(case: Case, threads: int) -> Runner:
    """One stream for latency, the precision as asked for, tensors shared both ways. As it comes it
    computes in bfloat16 where the processor can."""
    import openvino

    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": True,
        "INFERENCE_PRECISION_HINT": "bf16" if case.precision == "bfloat16" else "f32",
    }
    compiled = core.compile_model(str(case.path), "CPU", options)
    request = compiled.create_infer_request()
    feeds = {compiled.input(name): values for name, values in case.inputs.items()}

    def run() -> tuple[Array, ...]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return tuple(results[port] for port in compiled.outputs)

    return run


def torch_compile(case: Case, threads: int) -> Runner:
    """Inductor with frozen weights in its default mode, as untuned as everyone; bfloat16 by
    autocast."""
    import torch
    import torch._dynamo
    import torch._inductor.config

    from tests.zoo.export import build

    torch.set_num_threads(threads)
    torch._dynamo.reset()
    torch._inductor.config.freezing = True
    compiled = torch.compile(build(case.network))
    tensors = [torch.from_numpy(values) for values in case.inputs.values()]

    lower = case.precision == "bfloat16"

    def run() -> tuple[Array, ...]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=lower):
            result = compiled(*tensors)
        outputs = result if isinstance(result, tuple) else (result,)
        return tuple(output.float().numpy() for output in outputs)

    run()  # Compiles here, so that what it raises belongs to preparation.
    return run


def iree(case: Case, threads: int) -> Runner:
    """Compiled for this processor with data tiling, its default for performance on CPUs."""
    import iree.runtime

    if threads > 1:
        iree.runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
    tool = Path(sys.executable).parent
    folder = case.folder
    mlir, module = folder / "iree.mlir", folder / "iree.vmfb"
    _run([tool / "iree-import-onnx", case.path, "-o", mlir, "--opset-version", "17"])
    _run(
        [
            tool / "iree-compile",
            mlir,
            "-o",
            module,
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
            "--iree-opt-level=O3",
            "--iree-llvmcpu-stack-allocation-limit=1048576",  # 32 KiB refuses BERT
        ]
    )
    driver = "local-sync" if threads == 1 else "local-task"
    loaded = iree.runtime.load_vm_flatbuffer_file(str(module), driver=driver)
    (name,) = [n for n in loaded.vm_module.function_names if "$" not in n and not n.startswith("_")]
    function = loaded[name]
    arrays = tuple(case.inputs.values())

    def run() -> tuple[Array, ...]:
        results = function(*arrays)
        outputs = results if isinstance(results, tuple | list) else (results,)
        return tuple(output.to_host() for output in outputs)

    return run


def _run(command: list[Any]) -> None:
    process = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        error_lines = [line for line in process.stderr.splitlines() if "error" in line.lower()]
        raise RuntimeError((error_lines or process.stderr.splitlines() or ["failed"])[0])


def tvm(case: Case, threads: int) -> Runner:
    """Relax's default pipeline for CPUs: untuned, since tuning takes hours for a model."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: list(values.shape) for name, values in case.inputs.items()}
    mod = from_onnx(onnx.load(case.path), shape_dict=shapes, keep_params_in_input=False)
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    executable = tvm.compile(mod, tvm.target.Target({"kind": "llvm", "mcpu": cpu}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arrays = [tvm.runtime.tensor(values) for values in case.inputs.values()]

    def run() -> tuple[Array, ...]:
        results = machine["main"](*arrays)
        outputs = [results] if isinstance(results, tvm.runtime.Tensor) else list(results)
        return tuple(output.numpy() for output in outputs)

    return run


_BOTH = ("float32", "bfloat16")
PEERS: dict[str, Contender] = {
    peer.name: peer
    for peer in (
        Contender(
            "ort",
            "ONNX Runtime",
            "onnxruntime",
            "onnxruntime",
            onnx_runtime,
            precisions=("float32", "int8"),
        ),
        Contender(
            "openvino",
            "OpenVINO",
            "openvino",
            "openvino",
            openvino,
            precisions=(*_BOTH, "int8"),
        ),
        Contender("torch", "torch.compile", "torch", "torch", torch_compile, True, _BOTH),
        Contender("iree", "IREE", "iree.compiler", "iree-base-compiler", iree, slow=True),
        Contender("tvm", "TVM (untuned)", "tvm", "apache-tvm", tvm, slow=True),
    )
}

"""CUDA in the hands of somebody who has never used it, on a machine that may have no GPU: which
targets there are and how they are misspelt, what a library says where there is no driver, by every
way in, and what is no device for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tensorkiln.link.shared import CRT
from tensorkiln.runtime import Executor, Module, load_module
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
from tensorkiln.target.gpus import CUDA_ARCHS
from tensorkiln.target.tags import TAGS
from tests.cuda.networks import let_run
from tests.hosts.build import require
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")
ROOT = Path(__file__).parents[2]


def network() -> tk.IRModule:
    return graph(lambda g, x: g.softmax(g.linear(x, rand(20, 9)), axis=1), x=(3, 20))


# ---- targets ------------------------------------------------------------------------------------

OWN = sorted({t.name for t in TAGS.all() if t.name.startswith("nvidia/") and "arch" in t.target})


def test_every_gpu_of_the_table_is_a_target() -> None:
    """A tag gives code for its architecture, and for no other."""
    assert {"nvidia/a100", "nvidia/h100", "nvidia/h200"} <= {*OWN} and len(OWN) > 30
    texts_by_arch: dict[str, list[str]] = {}
    for name in OWN:
        arch = str(tk.Target(name)["arch"])
        assert arch in CUDA_ARCHS, name
        if arch not in texts_by_arch:
            artifacts = tk.compile(graph(lambda g, x: g.exp(x), x=(8,)), name).artifacts
            texts_by_arch[arch] = [a.text() for a in artifacts if a.file_name.endswith(".ptx")]
    for arch, texts in texts_by_arch.items():
        (text,) = texts
        assert f".target {arch}\n" in text and ".visible .entry exp_device(" in text


@pytest.mark.parametrize("form", ["text", "json", "kind", "dict"])
def test_spellings_of_a_target(form: str) -> None:
    spelt: dict[str, Any] = {
        "text": "nvidia/a100",
        "json": '{"kind": "cuda", "arch": "sm_80"}',
        "kind": "cuda",
        "dict": {"id": "cuda", "attrs": {"arch": "sm_80"}},
    }
    target = tk.Target(spelt[form])
    assert target.kind == "cuda" and target["arch"] == ("sm_75" if form == "kind" else "sm_80")


MISSPELT: list[tuple[Any, str, str]] = [
    ("sm_90", "unknown kind 'sm_90'", 'write {"kind":"cuda","arch":"sm_90"}'),
    ("SM_90A", "unknown kind", 'write {"kind":"cuda","arch":"sm_90a"}'),
    ("sm90", "unknown kind", 'write {"kind":"cuda","arch":"sm_90"}'),
    ("compute_80", "unknown kind", 'write {"kind":"cuda","arch":"sm_80"}'),
    ("sm_99", "unknown kind", "an architecture is an option"),
    ("sm_99", "unknown kind", "'sm_90'"),
    ("gfx1100", "unknown kind", 'write {"kind":"rocm","arch":"gfx1100"}'),
    ("CUDA", "unknown kind", "'cuda'"),
    ("cuda:0", "unknown kind", "'cuda'"),
    ("cdua", "unknown kind", "'cuda'"),
    ("nvptx64", "unknown kind", "write 'cuda'"),
    ("gpu", "unknown kind", "'cuda'"),
    ("H100", "unknown kind", "'h100'"),
    ("nvidia", "unknown kind", "'nvidia/a100'"),
    ("nvidia/H100", "unknown tag", "'nvidia/h100'"),
    ("nvidia/h10", "unknown tag", "'nvidia/h100'"),
    ("nvidia/rtx-4090", "unknown tag", "'nvidia/rtx4090'"),
    ("cuda -arch=sm_90", "option string", 'write JSON: {"kind":"cuda","arch":"sm_90"}'),
    ({"kind": "cuda", "arch": "sm90"}, "target.arch: unknown value 'sm90'", "'sm_90'"),
    ({"kind": "cuda", "arch": "90"}, "unknown value '90'", "'sm_90'"),
    ({"kind": "cuda", "arch": 90}, "expected text, got 90", "sm_XY"),
    ({"kind": "cuda", "arch": "sm_95"}, "unknown value 'sm_95'", "'sm_90'"),
    ({"kind": "cuda", "architecture": "sm_90"}, "unknown key 'architecture'", "'arch'"),
    ({"kind": "cuda", "mcpu": "sm_90"}, "unknown key 'mcpu' for kind 'cuda'", "arch, also"),
    ({"kind": "cuda", "also": ["sm_9"]}, "target.also: unknown value 'sm_9'", "'sm_90'"),
    ({"kind": "cuda", "max_shared_memory_per_block": 100000}, "contradiction", "optin is 65536"),
    ({"kind": "cuda", "arch": "sm_80", "thread_warp_size": 64}, "contradiction", "lockstep"),
    ({"kind": "cuda", "max_num_threads": 2048}, "max_num_threads", "1024"),
]


@pytest.mark.parametrize(("spelt", "message", "hint"), MISSPELT, ids=lambda v: str(v)[:40])
def test_misspelt_targets(spelt: Any, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        tk.compile(network(), spelt)
    assert message in str(caught.value) and hint in str(caught.value), str(caught.value)


# ---- without a driver ---------------------------------------------------------------------------
# In processes of their own: this one may have a driver, or the stand-in for one.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library and its model, and a file that is no driver."""
    folder = tmp_path_factory.mktemp("first_use")
    tk.compile(network(), "nvidia/a100", name="net").export_library(folder / "net.so")
    (folder / "libcuda.so.1").write_text("not a library")
    np.save(folder / "x.npy", np.ones((3, 20), np.float32))
    return folder


def without_driver(place: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": str(place),
        "KILN_PROGRESS": "off",
    }
    return subprocess.run(
        [*map(str, command)], cwd=place, env=variables, capture_output=True, text=True, check=False
    )


_WAYS = """
import json, sys
import numpy as np
import tensorkiln as tk
from tensorkiln.base.errors import InternalError
from tensorkiln.runtime import DeviceError, Executor, load_module

lib = load_module("net.so")  # needs no driver
x = np.ones((3, 20), np.float32)
ways = {
    "Executor": lambda: Executor(lib),
    "Executor of a device": lambda: Executor(lib, tk.cuda(0)),
    "Executor of another": lambda: Executor(lib, tk.cuda(5)),
    "Executor by key": lambda: Executor(lib, {"cuda": tk.cuda(0)}),
    "create_executor": lambda: lib.create_executor(),
    "chosen at load": lambda: Executor(load_module("net.so", tk.cuda(1))),
    "fallback": lambda: Executor(lib, fallback=tk.cuda(1)),
    "nd.array": lambda: tk.nd.array(x, tk.cuda(0)),
    "nd.empty": lambda: tk.nd.empty((2,), "float32", tk.cuda(0)),
}
said = {"kinds": [m.type_key for m in lib.imported_modules], "names": sorted(lib.functions)}
for name, way in ways.items():
    try:
        said[name] = f"no error: {way()}"
    except DeviceError as error:
        said[name] = [error.code, str(error)]
print(json.dumps(said))
"""


def test_python_without_a_driver(place: Path) -> None:
    """A library loads and tells what is in it; whatever needs a device says what lacks."""
    process = without_driver(place, sys.executable, "-c", _WAYS)
    assert process.returncode == 0, process.stderr
    answers = json.loads(process.stdout)
    assert answers.pop("kinds") == ["cuda"] and answers.pop("names") == ["main"]
    assert len(answers) == 9
    for way_name, (code, text) in answers.items():
        assert code == "no-driver" and text.startswith("libcuda.so.1, which CUDA devices"), way_name
        assert "install the driver of an NVIDIA GPU, of CUDA 11.3 or newer" in text, way_name


_C_HOST = """
#include <stdio.h>
#include "crt.h"
#include "net.h"

int main(void)
{
    static float x[60], y[27];
    const int code = net_main(x, y);
    printf("%d %s\\n", code, kiln_last_error());
    return 0;
}
"""


def test_c_without_a_driver(place: Path) -> None:
    """A program that is linked with the library starts; the call says what lacks."""
    gcc = require("gcc")
    header = tk.compile(network(), "nvidia/a100", name="net").header()
    (place / "net.h").write_text(header)
    (place / "host.c").write_text(_C_HOST)
    command = [gcc, "-Wall", "-Werror", f"-I{CRT}", f"-I{place}", place / "host.c", "-o"]
    process = subprocess.run(
        [*command, place / "host", place / "net.so", f"-Wl,-rpath,{place}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    output = without_driver(place, place / "host").stdout
    assert output.startswith("21 library net runs on CUDA, and libcuda.so.1 cannot be opened"), (
        output
    )
    assert "install the driver of an NVIDIA GPU" in output


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("inspect net.so", 0, "cuda/cuda/kernels.sm_80.ptx"),
        ("run net.so --input x=x.npy", 2, "libcuda.so.1, which CUDA devices need, cannot be"),
        ("run net.so --random", 2, "install the driver of an NVIDIA GPU, of CUDA 11.3 or newer"),
        ("bench net.so", 2, "libcuda.so.1, which CUDA devices need, cannot be opened"),
        ("targets nvidia/h100", 0, "sm_90"),
        ("targets sm_90", 2, '{"kind":"cuda","arch":"sm_90"}'),
    ],
)
def test_kiln_without_a_driver(command: str, code: int, words: str, place: Path) -> None:
    process = without_driver(place, sys.executable, "-m", "tensorkiln.cli", *command.split())
    text = process.stdout + process.stderr
    assert process.returncode == code and words in text, text
    assert "Traceback" not in text and "InternalError" not in text


def test_kiln_checks_and_compiles_without_a_driver(place: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=1)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 20]) for n in "xy")
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "net", [x], [y])
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), place / "net.onnx")
    kiln = (sys.executable, "-m", "tensorkiln.cli")
    process = without_driver(place, *kiln, "check", "net.onnx", "--target", "nvidia/h100")
    assert process.returncode == 0 and "every node can be compiled" in process.stdout
    process = without_driver(place, *kiln, "compile", "net.onnx", "--target", "cuda", "-o", "o.so")
    assert process.returncode == 0 and ", sm_75, host " in process.stderr, process.stderr
    process = without_driver(place, *kiln, "compile", "net.onnx", "--target", "sm_90", "-o", "p.so")
    assert process.returncode == 2 and 'write {"kind":"cuda","arch":"sm_90"}' in process.stderr
    assert not (place / "p.so").exists()


# ---- what is no device for it -------------------------------------------------------------------


@pytest.fixture(scope="module")
def lib(place: Path) -> Module:
    let_run(tk.compile(network(), "nvidia/a100", name="net"))
    return load_module(place / "net.so")


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (tk.cpu(), "needs a device for cuda (target key 'cuda'), received cpu:0"),
        (tk.cpu(), "tk.cuda(0); it has code for cuda"),
        (tk.opencl(0), "needs a device for cuda (target key 'cuda'), received opencl:0"),
        ([tk.cuda(0), tk.cuda(1)], "has no code for cuda:1"),
        ([tk.cuda(0), tk.opencl(0)], "has no code for opencl:0"),
        ({"gpu": tk.cuda(0)}, "has no code of target key 'gpu'; it has 'cuda'"),
        ({"cdua": tk.cuda(0)}, "did you mean 'cuda'?"),
        ({"cuda": tk.cpu()}, "which cpu:0 does not run"),
        (tk.cuda(5000), "there is no device cuda:5000: this system has "),
        (
            "cuda",
            "devices are made by tk.cpu(), tk.opencl(), tk.cuda() and tk.ext_dev(), received str",
        ),
        (0, "received int"),
        ([], "expected at least one device"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_wrong_devices(lib: Module, devices: Any, words: str) -> None:
    with pytest.raises((UserError, RuntimeError, TypeError)) as caught:
        Executor(lib, devices)
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("index", [-1, 1 << 31, "0", True, 1.0, None])
def test_wrong_indices(index: Any) -> None:
    with pytest.raises(TypeError, match="expected an integer from 0 to 2147483647") as caught:
        tk.cuda(index)
    assert f"tk.cuda({index!r})" in str(caught.value)


def test_a_graph_function_names_the_device_that_it_needs(lib: Module) -> None:
    with pytest.raises(LookupError) as caught:
        lib["main"]
    assert 'Executor(lib, tk.cuda(0))["main"]' in caught.value.hint  # type: ignore[attr-defined]


def test_tensors_elsewhere(lib: Module) -> None:
    """A parameter on the host and a tensor on the device, the reverse, and another device: the
    sentence names both places, and the copy that is missing."""
    x = np.ones((3, 20), np.float32)
    device_tensor = tk.nd.array(x, tk.cuda(0))
    with pytest.raises(UserError) as caught:
        Executor(lib)["main"](device_tensor)
    assert "'x' must be in CPU memory" in str(caught.value)
    assert "received a tensor in cuda:0 (device type 2)" in str(caught.value)
    assert "copy it to the host first: x.numpy()" in str(caught.value)

    device_main: Callable[..., Any] = Executor(_on_device())["main"]
    assert isinstance(device_main(device_tensor), tk.runtime.DeviceTensor)
    with pytest.raises(UserError) as caught:
        device_main(x)
    words = "must be in memory of a device of cuda (device type 2), received a tensor in CPU memory"
    assert words in str(caught.value)
    if CUDA_DRIVER.count_devices() > 1:
        with pytest.raises(UserError, match="'x' must be on device cuda:0, received cuda:1"):
            device_main(tk.nd.array(x, tk.cuda(1)))


def _on_device() -> tk.Executable:
    from bench.gpu.device import on_device

    exe = tk.compile(on_device(network(), "cuda"), "nvidia/a100", name="net")
    let_run(exe)
    return exe

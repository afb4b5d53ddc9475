"""CUDA by the stand-in of driver/: every call fails in turn, what it says, which code it gets.
tests/runtime/test_devices.py runs libraries on it, or on the machine's GPU, from Python."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorkiln.link.shared import CRT
from tests.hosts.build import require
from tests.runtime import device_library
from tests.runtime.device_library import PTX
from tests.runtime.device_stand import Stand, build_driver, build_kernels

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
SCALE = HERE / "kernels.c"


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("checked"), "cuda", "address")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("plain"), "cuda", "none")


# The code that follows where a function fails; 2 is of memory: 24.
DRIVER, MEMORY, BUILD, LAUNCH, LATER, ARGUMENT, LOST = 21, 24, 25, 26, 27, 7, 28
CODES = {
    "cuInit": {DRIVER},
    "cuDeviceGetCount": {DRIVER},
    "cuDeviceGet": {DRIVER},
    "cuDeviceGetAttribute": {DRIVER},
    "cuDevicePrimaryCtxRetain": {DRIVER},
    "cuCtxPushCurrent": {DRIVER},
    "cuCtxGetDevice": {DRIVER},
    "cuModuleLoadDataEx": {BUILD},
    "cuModuleGetFunction": {BUILD},
    "cuFuncGetAttribute": {BUILD},
    "cuFuncSetAttribute": {BUILD},
    "cuStreamCreate": {DRIVER},
    "cuStreamIsCapturing": {ARGUMENT},
    "cuStreamWaitEvent": {ARGUMENT},
    "cuEventCreate": {LATER},
    "cuEventRecord": {LATER},
    "cuStreamSynchronize": {LAUNCH, LATER},  # of a copy from the host, of anything else
    "cuMemAlloc": {MEMORY},
    "cuPointerGetAttributes": {ARGUMENT},
    "cuMemcpyHtoDAsync": {LAUNCH},
    "cuMemcpyDtoHAsync": {LATER},
    "cuMemcpyDtoDAsync": {LAUNCH},
    "cuLaunchKernel": {LAUNCH},
    "cuGraphCreate": {LAUNCH},
    "cuGraphAddKernelNode": {LAUNCH},
    "cuGraphAddMemcpyNode": {LAUNCH},
    "cuGraphInstantiateWithFlags": {LAUNCH},
    "cuGraphExecKernelNodeSetParams": {LAUNCH},
    "cuGraphExecMemcpyNodeSetParams": {LAUNCH},
    "cuGraphLaunch": {LAUNCH},
}
# Those without which a run goes on, and those that are not about a device yet.
HARMLESS = ("cuDeviceGetName", "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode")
PLAIN = ("cuInit", "cuDeviceGetCount", "cuDeviceGet")


def test_every_call_of_the_driver_fails_in_turn(checked: Stand) -> None:
    """A sentence and a code for each; nothing leaks, by the address sanitizer and by counting what
    the driver has handed out."""
    api = (CRT / "cuda_api.h").read_text()
    uncounted = {"GetErrorName", "DevicePrimaryCtxRelease", "CtxPopCurrent", "ModuleUnload"}
    uncounted |= {"StreamDestroy", "MemFree", "EventDestroy", "GraphDestroy", "GraphExecDestroy"}
    driver_functions = {f"cu{n}" for n in {*re.findall(r"\b[XY]\((\w+), \d", api)} - uncounted}
    assert driver_functions == {*CODES, *HARMLESS}
    rows = [line.split(" ", 5) for line in checked.run("table", LOOKALIKE_SHARED="50000")]
    assert {row[0] for row in rows} == {*CODES, *HARMLESS} and len(rows) > 600
    passed = set()
    for name, call, error, code, live, sentence in rows:
        description = f"{name}, call {call}, error {error}: code {code}, {sentence}"
        frees = name == "cuCtxPushCurrent" and code == "0"  # what then cannot be freed, is not
        assert live == "0" or frees, description
        if code == "0":  # the host's own call, one that frees, or one that is for messages only
            passed.add(name)
            continue
        expected_codes = CODES.get(name, {DRIVER})
        if name not in PLAIN:  # from 700 on all calls fail, also those of the next context
            expected_codes = {"2": {MEMORY}, "700": {LATER, LOST, DRIVER}}.get(
                error, expected_codes
            )
        assert int(code) in expected_codes, description
        assert f"({error})" in sentence and len(sentence) > 30, description
        assert ("out of memory" in sentence) == (MEMORY in expected_codes and error == "2"), (
            description
        )
        is_lost = error == "700" and int(code) != DRIVER
        assert ("lost" in sentence) == is_lost, description
    tolerated = {"cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuCtxPushCurrent", "cuCtxGetCurrent"}
    tolerated.add("cuStreamSynchronize")
    tolerated.add(
        "cuGraphExecMemcpyNodeSetParams"
    )  # with 1: memory of another kind, for a graph anew
    assert passed == {*tolerated, "cuDeviceGetName", "cuThreadExchangeStreamCaptureMode"}


def test_a_run_makes_nothing_new(checked: Stand) -> None:
    calls = [line.split()[0] for line in checked.run("quiet")]
    assert calls == [
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamSynchronize",
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuMemcpyDtoDAsync",
        "cuLaunchKernel",
    ]


def test_a_run_by_graphs_makes_nothing_new(checked: Stand) -> None:
    """A launch between two copies is itself; `across` has another between two devices."""
    call_counts = dict(line.split() for line in checked.run("graphs"))
    assert call_counts["cuGraphLaunch"] == "2" and call_counts["cuLaunchKernel"] == "1"
    assert set(call_counts) == {
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamSynchronize",
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuLaunchKernel",
        "cuGraphLaunch",
    }


def test_threads_that_share_executors(tmp_path: Path) -> None:
    """One runs by graphs; without a data race, by the thread sanitizer."""
    assert Stand(tmp_path, "cuda", "thread").run("threads") == []


def test_threads_forks_and_the_end(checked: Stand, plain: Stand) -> None:
    assert checked.run("threads") == []
    first, host, later, live_count = plain.run("fork")
    assert (first, host, live_count) == ("0 ", "0", "0")
    assert later.startswith("21 cuda was in use before this process was forked")
    for _ in range(5):
        assert plain.run("exit") == []


def test_valgrind(plain: Stand) -> None:
    plain.check_valgrind()


SAYS: list[tuple[dict[str, str], str]] = [
    ({"DEVICES": "0"}, "22 there is no device cuda:0: this system has 0 CUDA devices"),
    ({"FAIL": "cuInit:1:100"}, "22 there is no device cuda:0: this system has 0 CUDA devices"),
    (
        {"CAPABILITY": "7.5"},
        "23 cuda:0 (Look-alike, compute capability 7.5) cannot run the code of target key "
        "'cuda a', which is for sm_80",
    ),
    ({"THREADS": "32"}, "it needs 64 threads in a block of its own, the device has 32"),
    ({"SHARED": "232449"}, "it needs 232449 bytes of shared memory in all, the device has 232448"),
    ({"LACKS": "cuLaunchKernel"}, "21 libcuda.so.1 has no function cuLaunchKernel: expected the"),
    (
        {"FAIL": "cuModuleLoadDataEx:1:218", "LOG": "line 3: what\nline 4"},
        "line 3: what\nline 4; cu",
    ),
    (
        {"FAIL": "cuModuleLoadDataEx:1:218", "LOG": "x" * 5000},
        f"kernels.sm_80.ptx: {'x' * 600}; cu",
    ),
    ({"FAIL": "cuModuleLoadDataEx:1:218", "LOG": ""}, "kernels.sm_80.ptx: it gives no reason; cu"),
    ({"FAIL": "cuModuleLoadDataEx:1:222"}, "the driver is older than the code; update the driver"),
    ({"FAIL": "cuModuleLoadDataEx:1:221"}, "(libnvidia-ptxjitcompiler.so.1)"),
    ({"FAIL": "cuModuleLoadDataEx:1:223"}, "(CUDA_DISABLE_PTX_JIT)"),
    ({"FAIL": "cuGetErrorName:1:1", "DEVICES": "1"}, "0 "),
]


@pytest.mark.parametrize(("environment", "words"), SAYS, ids=lambda v: str(v)[:40])
def test_what_a_driver_says(plain: Stand, environment: dict[str, str], words: str) -> None:
    output = "\n".join(plain.run("once", **{f"LOOKALIKE_{k}": v for k, v in environment.items()}))
    assert words in output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"EXTENSIONS": '"wgmma", '}, "23 cuda:0 (Look-alike) cannot run add: it lacks wgmma"),
        ({"BLOCK": "2048"}, "it needs 2048 threads in a block, the device has 1024"),
        ({"SHARED": "300000"}, "it needs 300000 bytes of shared memory, the device has 232448"),
        ({"SCALE": "scael"}, "25 the code of target key 'cuda a' has no function scael"),
    ],
    ids=["extension", "threads", "shared", "name"],
)
def test_what_the_device_lacks(
    plain: Stand, changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    library = device_library.build(tmp_path / "gpu.so", kind="cuda", **changes)
    assert words in "\n".join(plain.run("once", library))


# What a library with these files loads on a device.
FILES = ["sm_75.ptx", "sm_80.ptx", "sm_90.ptx", "sm_90a.ptx", "sm_86.cubin", "sm_100f.ptx", "ptx"]
CHOSEN = {
    "7.0": None,
    "7.5": "sm_75.ptx",
    "8.0": "sm_80.ptx",
    "8.6": "sm_86.cubin",
    "8.7": "sm_86.cubin",  # a binary runs on later devices of its generation
    "9.0": "sm_90a.ptx",  # and such code on this one only
    "9.1": "sm_90.ptx",
    "10.0": "sm_100f.ptx",
    "10.3": "sm_100f.ptx",
    "12.0": "sm_90.ptx",
}


def test_which_code_a_device_gets(plain: Stand, tmp_path: Path) -> None:
    """The driver has no emulator of any: its log names what it was given."""
    code = {f"kernels.{name}": f"// {name}\n" for name in FILES}
    library = device_library.build(tmp_path / "gpu.so", code, "cuda")
    for capability, name in CHOSEN.items():
        output = "\n".join(plain.run("once", library, LOOKALIKE_CAPABILITY=capability))
        if name is None:
            file_targets = ", ".join(n.split(".")[0] for n in FILES[:-1])
            assert output.startswith("23 ") and output.endswith(f"which is for {file_targets}"), (
                output
            )
        else:
            assert f"kernels.{name}: this driver has no emulator" in output, (capability, output)
    library = device_library.build(tmp_path / "none.so", {"kernels.ptx": PTX}, "cuda")
    assert "16 target key 'cuda a' has no file kernels.<arch>.ptx" in plain.run("once", library)[0]


def test_a_binary_reaches_the_driver_whole(plain: Stand, tmp_path: Path) -> None:
    """The driver looks for the hash of an ELF file, whose end its tables tell."""
    object_path = tmp_path / "kernels.o"
    subprocess.run([require("gcc"), "-g", "-c", SCALE, "-o", object_path], check=True)
    code = {"kernels.sm_90.cubin": object_path.read_bytes()}
    (line,) = plain.run("once", device_library.build(tmp_path / "gpu.so", code, "cuda"))
    assert f"/{hashlib.sha256(object_path.read_bytes()).hexdigest()}.so" in line


def test_drivers_of_other_ages(plain: Stand, tmp_path: Path) -> None:
    """CUDA 11's form of cuGetProcAddress is enough; without any the sentence has the version."""
    for name, flag in (("a", "-DDRIVER_11"), ("b", "-DOLD_DRIVER")):
        (tmp_path / name).mkdir()
        build_driver(tmp_path / name, "cuda", flag)
    assert plain.run("once", LD_LIBRARY_PATH=str(tmp_path / "a")) == ["0 "]
    place = {"LD_LIBRARY_PATH": str(tmp_path / "b"), "LOOKALIKE_VERSION": "11020"}
    assert plain.run("once", **place) == [
        "21 libcuda.so.1 is a driver of CUDA 11.2: expected the driver of CUDA 11.3 or newer"
    ]


PROGRAM = """
import json, sys
import numpy as np, tensorkiln as tk
from tensorkiln.runtime import load_module, Executor
lib = load_module(sys.argv[1])
said = [sorted(lib.functions), [m.type_key for m in lib.imported_modules]]
run = None
def again():
    global run
    run = run or Executor(lib)
    run["main"](np.ones(9, "float32"))
for use in (again, again, lambda: tk.nd.array([1.0], tk.cuda(0))):
    try:
        use()
        said.append(["none", ""])
    except RuntimeError as error:
        said.append([error.code, str(error)])
said.append(Executor(lib)["host_only"](np.ones(2, "float32")).numpy().tolist() if run else None)
print(json.dumps(said))
"""


def python(library: Path, folder: Path) -> list[list[str]]:
    """What a Python program says of a library, with the driver in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(folder)}
    environment["LOOKALIKE_DIR"] = str(folder)
    command = [sys.executable, "-c", PROGRAM, str(library)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    answers: list[list[str]] = json.loads(process.stdout)
    return answers


def test_without_a_driver(tmp_path: Path, plain: Stand) -> None:
    """A damaged one and one of something else: the library loads, runs what needs no device, and
    says what lacks; so does Python."""
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a/libcuda.so.1").write_text("not a library")
    (tmp_path / "empty.c").write_text("int nothing;")
    empty = [require("gcc"), "-shared", "-fPIC", tmp_path / "empty.c", "-o"]
    subprocess.run([*empty, tmp_path / "b/libcuda.so.1"], check=True)
    sentences = {
        "a": "21 library gpu runs on CUDA, and libcuda.so.1 cannot be opened; install the driver "
        "of an NVIDIA GPU",
        "b": "21 libcuda.so.1 has no function cuGetProcAddress: expected the driver of CUDA 11.3 "
        "or newer",
    }
    library = device_library.build(tmp_path / "gpu.so", kind="cuda")
    for folder, sentence in sentences.items():
        assert plain.run("once", LD_LIBRARY_PATH=str(tmp_path / folder)) == [sentence]
    names, kinds, *errors, _ = python(library, tmp_path / "a")
    assert "host_only" in names and kinds == ["cuda", "cuda"] and len(errors) == 3
    assert all(code == "no-driver" and "libcuda.so.1" in message for code, message in errors)


def test_a_device_that_is_lost(tmp_path: Path) -> None:
    """A kernel that the emulator finds at fault: known at the next wait, and from then on every use
    of the device says so."""
    code = PTX + "// a race\n"
    library = device_library.build(tmp_path / "gpu.so", {"kernels.sm_80.ptx": code}, "cuda")
    build_driver(tmp_path, "cuda")
    build_kernels(tmp_path, code, SCALE, "-DRACE=2.0f")
    names, _, first, second, third, host = python(library, tmp_path)
    assert names and host == [2.0, 2.0]
    assert first[0] == "device-failed" and "failed with CUDA_ERROR_LAUNCH_FAILED (719)" in first[1]
    assert second[0] == "device-lost" and "was lost by CUDA_ERROR_LAUNCH_FAILED" in second[1]
    assert third[0] == "device-lost" and "cannot be used any more" in third[1]

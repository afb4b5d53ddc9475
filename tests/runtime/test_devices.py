"""Libraries with devices: on the machine's own driver, and on a stand-in whose calls fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.sections import METADATA
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.link.shared import CRT
from tensorkiln.runtime import DeviceTensor, Executor, Module, load_module, read_metadata
from tensorkiln.runtime.device import Device
from tensorkiln.runtime.failures import DeviceError
from tests.capabilities import opencl_devices
from tests.cuda.lookalike import require_cuda
from tests.hosts.build import require
from tests.link import sample
from tests.runtime import device_library
from tests.runtime.device_library import COUNT, KERNELS, expected
from tests.runtime.device_stand import Stand, numbers

KEYS = device_library.keys("opencl")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_library.build(tmp_path_factory.mktemp("devices") / "gpu.so")


@pytest.fixture(scope="session")
def cuda_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return device_library.build(tmp_path_factory.mktemp("cuda") / "gpu.so", kind="cuda")


# ---- on the machine's driver -------------------------------------------------------------------


@pytest.fixture
def module(path: Path) -> Iterator[Module]:
    if not opencl_devices():
        pytest.skip("no device of OpenCL")
    loaded = load_module(path)
    yield loaded
    loaded.close()


@pytest.fixture(params=["opencl", "cuda"])
def either(cuda_path: Path, request: pytest.FixtureRequest) -> Iterator[Module]:
    """The library on a device of OpenCL, and on one of CUDA or its stand-in."""
    if request.param == "opencl":
        yield request.getfixturevalue("module")
        return
    require_cuda()
    loaded = load_module(cuda_path)
    yield loaded
    loaded.close()


def on(module: Module, index: int = 0) -> Device:
    """A device of the kind that the module is for."""
    device: Device = getattr(tk, module.assigned(None)[1].kind)(index)
    return device


@pytest.mark.parametrize("name", ["main", "across"])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 1000, COUNT])
def test_host_tensors_are_copied_there_and_back(either: Module, name: str, n: int) -> None:
    run = Executor(either)[name]
    for _ in range(2):  # the second time in memory that is there
        assert np.array_equal(run(numbers(n)), expected(numbers(n)))


def test_memory_grows_and_is_kept(either: Module) -> None:
    run = Executor(either)["across"]
    for n in (10, COUNT, 3, COUNT - 1):
        assert np.array_equal(run(numbers(n)), expected(numbers(n)))


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_tensors_stay_on_their_device(either: Module, n: int) -> None:
    run = Executor(either)["there"]
    y = run(tk.nd.array(numbers(n), on(either)))
    assert isinstance(y, DeviceTensor) and y.device == on(either) and y.shape == (n,)
    assert np.array_equal(y.numpy(), expected(numbers(n)))
    assert np.array_equal(run(y).numpy(), expected(expected(numbers(n))))


def test_results_are_written_where_the_caller_says(either: Module) -> None:
    x, y = tk.nd.array(numbers(7), on(either)), tk.nd.zeros(7, device=on(either))
    executor = Executor(either)
    assert executor["there"](x, out=y) is y
    assert np.array_equal(y.numpy(), expected(numbers(7)))
    executor.set_input("there", y)
    executor.set_output("there", 0, x)
    executor.invoke("there")
    assert executor.get_outputs("there") is x
    assert np.array_equal(x.numpy(), expected(expected(numbers(7))))


def test_a_tensor_function_writes_in_place(either: Module) -> None:
    x = tk.nd.array(numbers(100), on(either))
    either["twice"](x)
    Executor(either)["twice"](x)
    assert np.array_equal(x.numpy(), 4 * numbers(100))


def test_a_part_of_a_memory_object(either: Module) -> None:
    """byte_offset of DLPack, which is behind a cl_mem."""
    whole = tk.nd.array(numbers(100), on(either))

    def part_at(offset: int) -> DeviceTensor:
        return DeviceTensor(whole._memory, (30,), whole.dtype, whole.device, offset)

    part = part_at(40)
    assert np.array_equal(part.numpy(), numbers(100)[10:40])
    assert np.array_equal(Executor(either)["there"](part).numpy(), expected(numbers(100)[10:40]))
    with pytest.raises(
        TypeError, match=f"'x' on {on(either)} begins where its alignment does not allow"
    ):
        Executor(either)["there"](part_at(2))
    if on(either).kind == "cuda":
        return  # an address has no end that the driver would tell: torch's memory has many parts
    with pytest.raises(ValueError, match="an argument needs 404 bytes, its memory object has 400"):
        Executor(either)["there"](part_at(400 - 30 * 4 + 4))


def test_what_a_device_does_not_take(either: Module) -> None:
    executor = Executor(either)
    kind, number = on(either).kind, on(either).dlpack_type
    x = tk.nd.array(numbers(4), on(either))
    for call, words in {
        lambda: executor["there"](
            numbers(4)
        ): rf"'x' must be in memory of a device of {kind} \(device "
        rf"type {number}\), received a tensor in CPU memory.*: tk\.nd\.array\(x, tk\.{kind}\(0\)\)",
        lambda: executor["main"](
            x
        ): rf"'x' must be in CPU memory .*, received a tensor in {kind}:0 \(device type {number}\)",
        lambda: executor["there"](x, out=x): f"'y' on {kind}:0 shares memory with another argument",
        lambda: executor["there"](tk.nd.array(np.zeros(4), on(either))): "must be float32",
        lambda: executor["there"](tk.nd.zeros((2, 2), device=on(either))): "1 dimension",
        lambda: executor["stray"](numbers(4)): "scale: argument 0 is not an address of device 1",
    }.items():
        with pytest.raises(UserError, match=words):
            call()
    assert np.array_equal(executor["main"](numbers(4)), expected(numbers(4)))  # all is well


def test_functions_without_devices(either: Module) -> None:
    assert np.array_equal(Executor(either)["host_only"](numbers(4)), numbers(4) + 1)


def test_an_executor_goes_on_after_a_failed_close(path: Path) -> None:
    if not opencl_devices():
        pytest.skip("no device of OpenCL")
    module = load_module(path)
    executor = Executor(module)
    y = executor["main"](numbers(4))
    module.close()
    with pytest.raises(UserError, match="is closed"):
        executor["main"](numbers(4))
    assert np.array_equal(y, expected(numbers(4)))


@pytest.mark.parametrize("place", ["x", "y", "z"])
def test_where_each_function_is_built(place: str, tmp_path: Path) -> None:
    """The sentences of a build that fails, on the real compiler."""
    if not opencl_devices():
        pytest.skip("no device of OpenCL")
    broken = {
        "x": (
            KERNELS.replace("const long i", "const lnog i"),
            {},
            "cannot compile .*opencl a.*lnog",
        ),
        "y": (KERNELS, {"SCALE": "scael"}, "target key 'opencl a' has no function scael"),
        "z": (KERNELS.replace("float factor, long n", "long n"), {}, None),
    }
    kernels, changes, words = broken[place]
    kernels = kernels.replace("* factor", "* 2") if place == "z" else kernels
    words = words or "scale takes 3 arguments, expected 4"
    code = {"kernels.cl": kernels}
    module = load_module(device_library.build(tmp_path / "broken.so", code, **changes))
    with pytest.raises(DeviceError, match=f"(?s){words}") as error:
        Executor(module)
    assert error.value.code == "device-build"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"EXTENSIONS": '"cl_not_there", '}, "cannot run add: it lacks extension cl_not_there"),
        ({"BLOCK": "1048576"}, "it needs 1048576 work-items in a work-group, the device has"),
        (
            {"SHARED": "1099511627776"},
            "it needs 1099511627776 bytes of local memory, the device has",
        ),
    ],
    ids=["extension", "threads", "local memory"],
)
def test_what_the_device_lacks(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    if not opencl_devices():
        pytest.skip("no device of OpenCL")
    module = load_module(device_library.build(tmp_path / "lacks.so", **changes))
    with pytest.raises(DeviceError, match=words) as error:
        Executor(module)
    assert error.value.code == "device-capability"


# ---- which device runs what --------------------------------------------------------------------


def test_the_table_of_devices(path: Path) -> None:
    rows = read_metadata(path)["devices"]
    assert [(row["target_key"], row["kind"], row["number"]) for row in rows] == [
        ("llvm host", "cpu", 0),
        (KEYS[0], "opencl", 1),
        (KEYS[1], "opencl", 2),
    ]


# what is given -> the devices of the three rows, or the words of the error
CHOICES: list[tuple[Any, Any]] = [
    (None, "cpu:0 opencl:0 opencl:0"),
    ([tk.opencl(0), tk.opencl(1)], "cpu:0 opencl:0 opencl:1"),
    ([tk.opencl(1), tk.cpu(), tk.opencl(0)], "cpu:0 opencl:1 opencl:0"),
    ({KEYS[1]: tk.opencl(1)}, "cpu:0 opencl:0 opencl:1"),
    ({KEYS[1]: [tk.opencl(1)], "llvm host": tk.cpu(2)}, "cpu:2 opencl:0 opencl:1"),
    (tk.cpu(), r"needs a device for opencl \(target key 'opencl a'\), received cpu:0"),
    (tk.opencl(), r"needs a device for opencl \(target key 'opencl b'\), received opencl:0"),
    ([tk.opencl(i) for i in range(3)], "has no code for opencl:2"),
    ([tk.cpu(), tk.cpu(1), tk.opencl(), tk.opencl()], "has no code for cpu:1"),
    (
        {"opencl c": tk.opencl()},
        "no code of target key 'opencl c'; it has .*did you mean 'opencl a'",
    ),
    (
        {KEYS[0]: tk.cpu()},
        r"has code of opencl \(target key 'opencl a'\), which cpu:0 does not run",
    ),
    ({KEYS[0]: [tk.opencl(), tk.opencl(1)]}, "has no use for opencl:1: too many devices"),
    ({KEYS[0]: []}, "at least one device"),
    ({}, "at least one device"),
    ([], "at least one device"),
    ({KEYS[0]: 0}, "received int"),
    ({1: tk.opencl()}, "expected a string, received int"),
]


@pytest.mark.parametrize(("selection", "expected"), CHOICES, ids=lambda c: str(c)[:40])
def test_choices(path: Path, selection: Any, expected: str) -> None:
    if re.fullmatch(r"cpu:\d opencl:\d opencl:\d", expected):
        module = load_module(path, selection)  # opens no device
        assert " ".join(map(str, module.assigned(None))) == expected
        assert " ".join(map(str, module.assigned(selection))) == expected
        return
    for use in (
        lambda: load_module(path, selection),
        lambda: Executor(load_module(path), selection),
    ):
        with pytest.raises(UserError, match=f"(?s){expected}") as error:
            use()
        assert error.value.code == "device"


def test_one_key_for_several_rows() -> None:
    from tensorkiln.artifact.metadata import DeviceInfo
    from tensorkiln.runtime.device import assign_devices

    rows = [DeviceInfo("k", "opencl", 1), DeviceInfo("k", "opencl", 2)]
    assigned_devices = assign_devices(rows, {"k": [tk.opencl(3), tk.opencl(1)]}, "it")
    assert list(map(str, assigned_devices)) == ["opencl:3", "opencl:1"]
    with pytest.raises(UserError, match="needs one more device for opencl"):
        assign_devices(rows, {"k": tk.opencl(3)}, "it")


def test_libraries_without_a_table(tmp_path: Path) -> None:
    module = load_module(sample.build(tmp_path / "mlp.so"))
    assert "devices" not in module.metadata
    for device_choice in (None, tk.cpu(), [tk.cpu(1)]):
        Executor(module, device_choice)
    with pytest.raises(UserError, match="has no code for cpu:1"):
        Executor(module, [tk.cpu(), tk.cpu(1)])
    with pytest.raises(UserError, match="has no code for opencl:0"):
        Executor(module, tk.opencl())
    with pytest.raises(UserError, match="no code of target key 'k'"):
        Executor(module, {"k": tk.cpu()})


def test_tensor_functions_run_on_the_devices_of_their_module(either: Module) -> None:
    either.devices = (tk.cpu(), on(either, 1), on(either, 1))
    words = f"on the devices of its module: cpu:0, {on(either, 1)}"
    with pytest.raises(UnsupportedError, match=words):
        Executor(either, [on(either), on(either)])["twice"]
    either.devices = None


def test_kinds_of_devices() -> None:
    assert str(tk.opencl(2)) == "opencl:2" and tk.opencl().dlpack_type == 4
    assert str(tk.cuda(1)) == "cuda:1" and tk.cuda().dlpack_type == 2
    for make in (tk.cpu, tk.opencl, tk.cuda, tk.ext_dev):
        for bad in (-1, 1 << 31, True, 1.0, "0", None):
            with pytest.raises(TypeError, match="expected an integer from 0"):
                make(bad)  # type: ignore[arg-type]


def test_no_device_of_that_index(either: Module) -> None:
    far = on(either, 99)
    key = device_library.keys(far.kind)[0]
    for use in (
        lambda: Executor(either, {key: far}),
        lambda: tk.nd.array([1.0], far),
    ):
        with pytest.raises(DeviceError, match=f"there is no device {far}: this system has") as e:
            use()
        assert e.value.code == "no-device"


# ---- in the place of a device that cannot be had -------------------------------------------------

AWAY, HERE_0 = tk.opencl(99), tk.opencl(0)


@pytest.mark.parametrize("fallback", [HERE_0, [tk.opencl(98), HERE_0], dict.fromkeys(KEYS, HERE_0)])
def test_what_fallback_names_is_asked(module: Module, path: Path, fallback: Any) -> None:
    executor = Executor(module, [AWAY, AWAY], fallback=fallback)
    assert executor.devices == (tk.cpu(), HERE_0, HERE_0)
    assert np.array_equal(executor["across"](numbers(9)), expected(numbers(9)))
    x = tk.nd.array(numbers(9), HERE_0)
    assert np.array_equal(module.create_executor()["there"](x).numpy(), expected(numbers(9)))
    loaded = load_module(path, [AWAY, AWAY], fallback=fallback)
    assert np.array_equal(Executor(loaded)["across"](numbers(9)), expected(numbers(9)))
    y = tk.nd.array(numbers(9), HERE_0)
    loaded["twice"](y)
    assert np.array_equal(y.numpy(), 2 * numbers(9))
    loaded.close()


def test_what_is_there_is_not_replaced(module: Module) -> None:
    assert Executor(module, [HERE_0, HERE_0], fallback=AWAY).devices[1:] == (HERE_0, HERE_0)
    with pytest.raises(DeviceError, match="opencl:99"):
        Executor(module, [AWAY, AWAY], fallback={KEYS[1]: HERE_0})
    with pytest.raises(DeviceError, match="opencl:99.*in its place.*opencl:98") as error:
        Executor(module, [AWAY, AWAY], fallback=tk.opencl(98))
    assert error.value.code == "no-device"


@pytest.mark.parametrize(
    ("fallback", "says"),
    [
        ("host", "no code for cpu:0 in the place of a device"),
        (tk.cpu(), "no code for cpu:0 in the place of a device"),
        ({KEYS[0]: tk.cpu()}, "no code for cpu:0 in the place of a device"),
        ({"opencl c": HERE_0}, "no device of target key 'opencl c'"),
        ([], "at least one device"),
        ({KEYS[0]: []}, "at least one device"),
        ("gpu", "devices are made by"),
        ([7], "devices are made by"),
    ],
)
def test_what_fallback_cannot_name(path: Path, fallback: Any, says: str) -> None:
    module = load_module(path)
    for use in (
        lambda: Executor(module, fallback=fallback),
        lambda: load_module(path, fallback=fallback),
    ):
        with pytest.raises(UserError, match=says) as error:
            use()
        assert error.value.code == "device"
    module.close()


def test_faults_are_not_hidden(tmp_path: Path) -> None:
    """Code that does not compile is an error, whatever else could be asked."""
    if not opencl_devices():
        pytest.skip("no device of OpenCL")
    broken = load_module(device_library.build(tmp_path / "broken.so", KERNELS + "nonsense"))
    with pytest.raises(DeviceError) as error:
        Executor(broken, fallback=AWAY)
    assert error.value.code == "device-build" and "in its place" not in str(error.value)


# ---- on a stand-in for the driver --------------------------------------------------------------


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("checked"), "opencl", "address")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("plain"), "opencl", "none")


# The code that follows where a function fails; -4 and -6 are of memory: 24 and 8.
DRIVER, MEMORY, BUILD, LAUNCH, LATER, ARGUMENT = 21, 24, 25, 26, 27, 7
CODES = {
    "clGetPlatformIDs": DRIVER,
    "clGetDeviceIDs": DRIVER,
    "clGetDeviceInfo": DRIVER,
    "clCreateContext": DRIVER,
    "clRetainContext": DRIVER,
    "clGetContextInfo": ARGUMENT,
    "clCreateProgramWithSource": BUILD,
    "clBuildProgram": BUILD,
    "clCreateKernel": BUILD,
    "clGetKernelInfo": BUILD,
    "clGetKernelWorkGroupInfo": BUILD,
    "clCreateCommandQueue": DRIVER,
    "clCreateBuffer": MEMORY,
    "clGetMemObjectInfo": ARGUMENT,
    "clRetainMemObject": ARGUMENT,
    "clSetKernelArg": LAUNCH,
    "clEnqueueNDRangeKernel": LAUNCH,
    "clEnqueueWriteBuffer": LAUNCH,
    "clEnqueueReadBuffer": LATER,
    "clEnqueueCopyBuffer": LAUNCH,
    "clFinish": LATER,
}
# Not about memory, whatever the error: no object is made by them.
PLAIN = ("clGetPlatformIDs", "clGetDeviceIDs", "clGetContextInfo")


def test_every_call_of_the_driver_fails_in_turn(checked: Stand) -> None:
    """A sentence and a code for each; nothing leaks, by the address sanitizer and by counting the
    driver's objects."""
    api = (CRT / "opencl_api.h").read_text()
    releases = {"ReleaseContext", "ReleaseProgram", "ReleaseKernel", "ReleaseCommandQueue"}
    releases |= {"ReleaseMemObject", "GetProgramBuildInfo"}  # the last one: below
    assert {f"cl{n}" for n in {*re.findall(r"\bX\((\w+), \w", api)} - {"name"} - releases} == {
        *CODES
    }
    rows = [line.split(" ", 5) for line in checked.run("table")]
    assert {row[0] for row in rows} == {*CODES} and len(rows) > 600
    passed = set()
    for name, call, error, code, live, sentence in rows:
        context_text = f"{name}, call {call}, error {error}: {sentence}"
        assert live == "0", context_text
        if code == "0":  # the host's own call, or the name of a device, which is for messages only
            passed.add((name, call))
            continue
        expected_code = CODES[name]
        if name not in PLAIN:
            expected_code = {"-4": MEMORY, "-6": 8}.get(error, expected_code)
        assert int(code) == expected_code, context_text
        assert f"({error})" in sentence and len(sentence) > 30, context_text
        assert ("out of memory" in sentence) == (
            expected_code in (8, MEMORY) and error in "-4-5-6"
        ), context_text
    names = {name for name, _ in passed}
    assert names == {"clGetDeviceIDs", "clGetDeviceInfo", "clCreateContext", "clCreateBuffer"}
    assert len(passed) == 7


def test_a_run_makes_nothing_new(checked: Stand) -> None:
    calls = [line.split()[0] for line in checked.run("quiet")]
    assert calls == [
        "clSetKernelArg",
        "clEnqueueNDRangeKernel",
        "clEnqueueWriteBuffer",
        "clEnqueueReadBuffer",
        "clEnqueueCopyBuffer",
        "clFinish",
    ]


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_four_threads_on_two_executors(
    checked: Stand, sanitizer: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stand = checked
    if sanitizer == "thread":
        stand = Stand(tmp_path_factory.mktemp("threads"), "opencl", sanitizer)
    assert stand.run("threads") == []


def test_a_child_of_fork(plain: Stand) -> None:
    """Before the parent has used devices it may use them; later it cannot, but the rest runs."""
    first, host, later, remaining_status = plain.run("fork")
    assert (first, host, remaining_status) == ("0 ", "0", "0")
    assert later.startswith("21 opencl was in use before this process was forked")


def test_exit_in_the_middle_of_a_run(plain: Stand) -> None:
    for _ in range(5):
        assert plain.run("exit") == []


def test_valgrind(plain: Stand) -> None:
    plain.check_valgrind()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FAKE_PLATFORMS": "0"}, "21 libOpenCL.so.1 finds no platform: no driver of OpenCL"),
        ({"FAKE_DEVICES": "0"}, "22 there is no device opencl:0: this system has 0 OpenCL devices"),
        ({"FAKE_LACKS": str(0x1027)}, r"23 opencl:0 (Fake) is not available"),
        ({"FAKE_LACKS": str(0x1028)}, r"23 opencl:0 (Fake) has no compiler of OpenCL C"),
        ({"FAKE_LACKS": str(0x1026)}, r"23 opencl:0 (Fake) is not little-endian"),
        ({"FAKE_ARGUMENTS": "1"}, "25 add takes 8 arguments, expected 7"),
        (
            {"FAKE_THREADS": "32"},
            "it needs 64 work-items in a work-group of its own, the device has 32",
        ),
        ({"FAKE_SHARED": "65536"}, "it needs 65536 bytes of local memory, the device has 32768"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_a_driver_says(plain: Stand, environment: dict[str, str], words: str) -> None:
    (line,) = plain.run("once", **environment)
    assert words in line


@pytest.mark.parametrize("log", ["", "line 1: no such type\nline 2: nor this", "x" * 5000])
def test_the_log_of_a_failed_build(plain: Stand, log: str) -> None:
    message = "\n".join(plain.run("once", FAKE_LOG=log, FAKE_BUILD="-11"))
    reason = log[:600] or "it gives no reason"
    assert (
        message == f"25 opencl:0 (Fake) cannot compile the code of target key 'opencl a': {reason}"
    )


def test_extensions_are_whole_words(plain: Stand, tmp_path: Path) -> None:
    library = device_library.build(tmp_path / "gpu.so", EXTENSIONS='"cl_khr_fp16", ')
    for extensions, code in {
        "cl_khr_fp16": "0",
        "cl_a cl_khr_fp16": "0",
        "cl_khr_fp16 cl_a ": "0",
        "cl_khr_fp16x": "23",
        "x_cl_khr_fp16": "23",
        "": "23",
    }.items():
        (line,) = plain.run("once", library, FAKE_EXTENSIONS=extensions)
        assert line.split()[0] == code, (extensions, line)


def test_no_library_of_drivers(plain: Stand, path: Path, tmp_path: Path) -> None:
    """A damaged one and one of something else: the library loads, runs what needs no device, and
    says what lacks; so does Python."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/libOpenCL.so.1").write_text("not a library")
    (tmp_path / "empty.c").write_text("int nothing;")
    empty = [require("gcc"), "-shared", "-fPIC", tmp_path / "empty.c", "-o"]
    subprocess.run([*empty, tmp_path / "b/libOpenCL.so.1"], check=True)
    sentences = {
        "a": "21 library gpu runs on OpenCL, and libOpenCL.so.1 cannot be opened; install the "
        "driver of a device, or a loader of drivers",
        "b": "21 libOpenCL.so.1 has no function clGetPlatformIDs: expected OpenCL 1.2",
    }
    program = f"""
import json, numpy as np, tensorkiln as tk
from tensorkiln.runtime import load_module, Executor
lib = load_module({str(path)!r})
out = []
for use in (lambda: Executor(lib), lambda: tk.nd.array([1.0], tk.opencl(0))):
    try:
        use()
    except RuntimeError as error:
        out.append([error.code, str(error)])
print(json.dumps([sorted(lib.functions), *out]))
"""
    for folder, sentence in sentences.items():
        place = str(tmp_path / folder)
        assert plain.run("once", LD_LIBRARY_PATH=place) == [sentence]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": place}
        process = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        names, *errors = json.loads(process.stdout or "[]") or [process.stderr]
        assert "host_only" in names
        assert len(errors) == 2
        assert all(code == "no-driver" and "libOpenCL.so.1" in message for code, message in errors)


def test_sections_of_a_library_with_devices(path: Path) -> None:
    """The OpenCL text lies in the library as it was generated, and its metadata beside it."""
    data = path.read_bytes()
    assert data.count(KERNELS.encode()) == len(KEYS) and METADATA.encode() in data

"""What a machine may lack, and the tests that are skipped where it does.

Every skip has a reason that belongs to one capability of this table: the end of a run counts those
that wait for each, and a test that is skipped for any other reason fails the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Capability:
    """How a machine gets it, and an expression for the reasons of the tests that wait for it."""

    get: str
    reasons: str


_PACKAGES = (
    "apache-tvm-ffi|fsspec|llvmlite.binding|ml_dtypes|numpy|onnx|onnx.defs|onnx.parser|"
    "onnxruntime|onnxruntime.quantization|onnxscript|"
    "islpy|llvmlite|pip|pyarrow|pyarrow.dataset|pyarrow.parquet|setuptools|shtab|scipy-openblas32|torch|"
    "tvm_ffi|typing_extensions|wgpu|ziglang"
)
_TOOLS = "nm|objcopy|objdump|readelf|strip"

# By name, as in the table of CONTRIBUTING.md.
CAPABILITIES = {
    "AArch64": Capability(
        "`apt-get install qemu-user libc6-arm64-cross`",
        r"no qemu-aarch64|no C library in \S*aarch64|qemu-aarch64(, /\S+)? is not installed",
    ),
    "binutils": Capability("`apt-get install binutils`", rf"(no )?({_TOOLS})( is not installed)?$"),
    "Chromium": Capability("`apt-get install chromium`", "no chromium"),
    "clang": Capability("`apt-get install clang`", r"clang(\+\+)? is not installed"),
    # Not of `dev`: Ray is 100 MB, and has no wheels for some Pythons on which all else is tested.
    "clusters": Capability("`make scale`", "(ray|distributed) is not installed"),
    "CMake": Capability(
        "`apt-get install cmake make pkg-config`", "(c?make|pkg-config) is not installed"
    ),
    "Cortex-M": Capability(
        "`apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm`",
        "no (arm-none-eabi-|qemu-system-arm|C library of arm-none-eabi-)",
    ),
    "gcc": Capability("`apt-get install gcc g++`", r"(gcc|g\+\+) is not installed"),
    "gcc for 32 bits": Capability("`apt-get install gcc-multilib`", "gcc -m32 is not installed"),
    "gcc 12": Capability("that version: others warn of other things", r"gcc \d+ sees other things"),
    "libraries": Capability(
        "`apt-get install libopenblas0 libdnnl-dev`", "(OpenBLAS|oneDNN) is not installed"
    ),
    "linkers": Capability("`apt-get install lld mold binutils`", r"ld\.\w+ is not installed"),
    "Linux on x86-64": Capability(
        "a machine of that kind",
        "RLIMIT_DATA|notes of ELF|fork$|targets of x86-64|the golden libraries are for|"
        "llvmlite assembles for|namespaces, tmpfs|no seccomp|/proc is Linux's|no fcntl",
    ),
    # That of AArch64 is package musl:arm64, behind `dpkg --add-architecture arm64`; Debian has one
    # of RISC-V since version 13.
    "musl": Capability("`apt-get install musl`", "no musl's loader in"),
    "MkDocs": Capability(
        "`pip install -e .[docs]`", "(mkdocs|material|mkdocstrings) is not installed"
    ),
    "no GPU of NVIDIA": Capability("a machine without one", "a GPU's own driver"),
    "OpenCL": Capability(
        "`apt-get install pocl-opencl-icd`", r"no libOpenCL\.so\.1|no device of OpenCL"
    ),
    "packages": Capability(
        "`pip install -e .[dev]`",
        rf"({_PACKAGES}) is not installed|could not import '({_PACKAGES})'|"
        "neither torch nor onnxruntime",
    ),
    "older x86-64": Capability("`apt-get install qemu-user`", "qemu-x86_64 is not installed"),
    "processor": Capability(
        "one with AVX-512, and one without; `make processors` emulates others",
        "this machine (has|lacks|is older)",
    ),
    "ptxas": Capability(
        "`pip install 'tensorkiln[cuda]'`",
        r"(ptxas|nvdisasm|cuda_occupancy\.h) is not installed|ptxas [\d.]+ gives other figures",
    ),
    "Pythons": Capability(
        "`uv python install 3.12 3.13 3.14`, then `make pythons`",
        r"python3\.\d+ with NumPy is not installed",
    ),
    "Ray": Capability(
        "`pip install -e .[ray] 'ray[serve]' distributed`",
        r"could not import '(ray|ray\.serve|distributed)'",
    ),
    "RISC-V": Capability(
        "`apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc`",
        "no (riscv64-unknown-elf-|qemu-system-riscv|C library of riscv64-unknown-elf-)",
    ),
    "RISC-V of 64 bits": Capability(
        "`apt-get install qemu-user libc6-riscv64-cross`",
        r"no qemu-riscv64 on the PATH|no C library in \S*riscv64",
    ),
    "root": Capability("`sudo`", "only root|this user has no group|no access lists here"),
    "Rust": Capability("`apt-get install rustc cargo`", "(rustc|cargo) is not installed"),
    "shells": Capability("`apt-get install zsh fish`", "(bash|zsh|fish) is not installed"),
    "user namespaces": Capability(
        "`sysctl kernel.unprivileged_userns_clone=1`", "no user namespace"
    ),
    "valgrind": Capability("`apt-get install valgrind`", "valgrind "),
    "Vulkan": Capability("`apt-get install mesa-vulkan-drivers`", "no Vulkan driver"),
}


def opencl_devices() -> int:
    """How many OpenCL devices the machine has."""
    from tensorkiln.runtime.failures import DeviceError
    from tensorkiln.runtime.opencl_memory import OPENCL_DRIVER

    try:
        return OPENCL_DRIVER.count_devices()
    except DeviceError:
        return 0


def packages() -> list[str]:
    """Debian's packages for all capabilities that come as such."""
    install_lines = re.findall(
        "`apt-get install (.*)`", "\n".join(c.get for c in CAPABILITIES.values())
    )
    return sorted({name for line in install_lines for name in line.split()})


def capability(reason: str) -> str | None:
    """What a test that is skipped for this reason waits for; None if no capability has it."""
    return next((name for name, c in CAPABILITIES.items() if re.match(c.reasons, reason)), None)


class Skips:
    """The plugin that counts. With xdist, workers tell what whole files were skipped, which it does
    not forward; the rest comes to the controller with the reports of tests."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}  # by test, or by file where all of it is skipped

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if (
            report.skipped
            and isinstance(report.longrepr, tuple)
            and not hasattr(report, "wasxfail")
        ):
            self.reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    pytest_collectreport = pytest_runtest_logreport = _note

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.reasons |= getattr(node, "workeroutput", {}).get("skips", {})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["skips"] = self.reasons
        elif session.exitstatus == pytest.ExitCode.OK and self.unknown():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def unknown(self) -> dict[str, str]:
        """Skipped tests whose reasons belong to no capability."""
        return {test: reason for test, reason in self.reasons.items() if not capability(reason)}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each capability that tests wait for, and one for each test of no such."""
        say = terminalreporter.write_line
        waiting = [name for reason in self.reasons.values() if (name := capability(reason))]
        for name in sorted(set(waiting)):
            say(f"{waiting.count(name)} wait for {name}: {CAPABILITIES[name].get}")
        for test, reason in self.unknown().items():
            say(
                f"{test} is skipped for a reason that tests/capabilities.py lacks: {reason}",
                red=True,
            )


if __name__ == "__main__":
    print(*packages())

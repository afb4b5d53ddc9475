"""Tests that depend on the processor at hand, and running them on others under an emulator:

    python -m tests.processors [CPU ...]

runs them as qemu's user mode shows those processors (`qemu-x86_64 -cpu help`), which must be
installed. What a test compiles is then compiled and called on a processor that has just the
features of that model. Each processor has a cache of its own, since the compiler keeps what LLVM
says of the processor.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from tensorkiln.target import Target

# Files whose tests ask which features the processor has, take some away, or emulate some. All other
# tests compile for whatever processor they run on.
DEPENDENT = (
    "tests/codegen/c_like/test_dots.py",
    "tests/codegen/tiles/test_tiles.py",
    "tests/release/test_docker_page.py",
    "tests/schedule/test_attention_of_halves.py",
    "tests/schedule/test_independent_rows.py",
    "tests/schedule/test_integer_products.py",
    "tests/schedule/test_knobs.py",
    "tests/schedule/test_relayout.py",
    "tests/target/test_isa.py",
    "tests/target/test_resnet_targets.py",
    "tests/target/test_target.py",
    "tests/verification/test_planted.py",
)
# One of each level; newer ones have AVX-512, which the emulator has not.
PROCESSORS = ("Nehalem", "Haswell", "EPYC")


def lacking(target: Target) -> list[str]:
    """Features that code for `target` needs and the processor at hand has not."""
    native = Target("native")
    if target.arch != native.arch:
        return [target.arch]
    return sorted(set(target.required_features) - native.features)


def require(target: Target) -> None:
    """Skip the test where the processor at hand cannot run code for `target`."""
    if features := lacking(target):
        pytest.skip(f"this machine lacks {', '.join(features)}")


def run_on(processor: str) -> int:
    """Run the tests of DEPENDENT as on `processor`; pytest's status."""
    with tempfile.TemporaryDirectory(prefix="processors-") as cache:
        command = ["qemu-x86_64", "-cpu", processor, sys.executable, "-m", "pytest", "-q"]
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        return subprocess.run([*command, *DEPENDENT], env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processors", nargs="*", default=PROCESSORS, metavar="CPU")
    if shutil.which("qemu-x86_64") is None:
        parser.error("qemu-x86_64 is not installed: apt-get install qemu-user")
    failed = [name for name in parser.parse_args().processors if run_on(name) != 0]
    print(f"failed on {', '.join(failed)}" if failed else "passed on all")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

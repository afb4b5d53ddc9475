"""What depends on the command, and is not in pyproject.toml. A wheel of `tensorkiln` holds what
`tensorkiln-runtime` does not, and requires it; an editable install is all of the package, so that a
checkout needs no index."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "release"))

from partition import in_runtime, index_readme, version  # noqa: E402

NEEDS = [
    "numpy>=1.26",
    "ml_dtypes>=0.4",  # elements of bfloat16, and of 8 bits and fewer, in models
    # Code of kernels; a newer one brings another LLVM. It has no wheel for Macs with processors of
    # Intel, where kind `c` remains.
    "llvmlite==0.50.*; platform_system != 'Darwin' or platform_machine == 'arm64'",
    # Proofs that a schedule keeps results; it has no wheel for Windows.
    "islpy>=2025.1; platform_system != 'Windows'",
    "shtab>=1.13",  # scripts of `kiln completion`
    "ziglang==0.17.*",  # compiles C and links: its version is part of what a library is linked from
]


class CompilerFiles(build_py):
    """The package without the files of the runtime, unless it is installed in place."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """(package, module, file) of the modules of one package that the wheel holds."""
        found = super().find_package_modules(package, package_dir)
        return [row for row in found if self._is_ours(row[2])]

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        """Data files of one package that the wheel holds."""
        return [file for file in super().find_data_files(package, src_dir) if self._is_ours(file)]

    def _is_ours(self, file: Any) -> bool:
        path = PurePosixPath(Path(file).resolve().relative_to(ROOT / "tensorkiln").as_posix())
        return self.editable_mode or not in_runtime(path)


runtime = [] if "editable_wheel" in sys.argv else [f"tensorkiln-runtime=={version(ROOT)}"]
setup(
    cmdclass={"build_py": CompilerFiles},
    install_requires=[*runtime, *NEEDS],
    long_description=index_readme((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)

from pathlib import Path

import pytest

from tests.hosts.build import CHECKED, HERE, ROOT, c_program, cpp_program, rust_program
from tests.link import sample


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample library, linked with the packaged tools."""
    return sample.build(tmp_path_factory.mktemp("sample") / "mlp.so")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs are built, each once."""
    return tmp_path_factory.mktemp("programs")


SUFFIXES = {"C": "c", "C++": "cpp", "Rust": "rs"}


def in_each(stem: str) -> dict[str, Path]:
    """A program of this folder, by language."""
    return {language: HERE / f"{stem}.{suffix}" for language, suffix in SUFFIXES.items()}


EXAMPLES = {
    "C": ROOT / "examples/c_host/any_model.c",
    "C++": ROOT / "examples/cpp_host/main.cpp",
    "Rust": ROOT / "examples/rust_host/src/main.rs",
}
REFUSALS, STRESS, VALUES, LOADERS, DTYPES, SCALARS = map(
    in_each, ("refusals", "stress", "values", "loaders", "dtypes", "scalars")
)


def program(sources: dict[str, Path], language: str, folder: Path) -> Path:
    """A program in that language; C and C++ under the sanitizers."""
    source = sources[language]
    output = folder / f"{source.parent.name}-{source.name.replace('.', '-')}"
    if output.exists():
        return output
    if language == "C":
        return c_program(source, output, *CHECKED)
    if language == "C++":
        return cpp_program(source, output, *CHECKED)
    return rust_program(source, output)

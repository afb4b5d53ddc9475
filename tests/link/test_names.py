"""Two models of one name in one program: both are right, or the link says which name they share."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.script import from_source
from tests.hosts.build import require

OPS = {"one": "tanh", "two": "exp"}
FORMS = [("a", "a"), ("a", "o"), ("o", "o"), ("so", "so"), ("a", "so"), ("so", "o")]
# How the two are told apart: not at all, by the caller's name, by a prefix.
NAMES = {"same": {}, "name": {"name": "other"}, "prefix": {"system_lib_prefix": "other_"}}
MODELS = {
    folder: from_source(f"""
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    y: R.Tensor((4,), "float32") = R.{op}(x)
    return y
""")
    for folder, op in OPS.items()
}
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17")
LINKERS = {
    "bfd": ("gcc", "-fuse-ld=bfd"),
    "gold": ("gcc", "-fuse-ld=gold"),
    "lld": ("gcc", "-fuse-ld=lld"),
    "mold": ("gcc", "-fuse-ld=mold"),
    "collected": ("gcc", "-Wl,--gc-sections"),
    "lto": ("gcc", "-flto", "-O2"),
    "zig": ZIG,
    "zig-lto": (*ZIG, "-flto=full", "-O2"),
}
USE = """
#include "{header}.h"
void use_{folder}(const float *x, float *y);
void use_{folder}(const float *x, float *y) {{ {prefix}_main(x, y); }}
"""
PROGRAM = """
#include <stdio.h>
void use_one(const float *x, float *y);
void use_two(const float *x, float *y);
int main(void)
{
    const float x[4] = {1, 1, 1, 1};
    float y[4] = {0}, z[4] = {0};
    use_one(x, y);
    use_two(x, z);
    printf("%.4f %.4f", (double)y[0], (double)z[3]);
    return 0;
}
"""


def linker(name: str) -> tuple[str, ...]:
    command = LINKERS[name]
    used = [word.removeprefix("-fuse-ld=") for word in command if word.startswith("-fuse-ld=")]
    if used and not shutil.which(f"ld.{used[0]}"):
        pytest.skip(f"ld.{used[0]} is not installed")
    if command[0] == "gcc":
        require("gcc")
    return command


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of both models, the second with each way to name it; all forms in each."""
    place = tmp_path_factory.mktemp("names")
    for folder, how in [("one", "same"), *(("two", how) for how in NAMES)]:
        here = place / how / folder
        here.mkdir(parents=True)
        exe = tk.compile(MODELS[folder], **NAMES[how])  # type: ignore[arg-type]
        header = exe.header()
        (here / f"{exe.name}.h").write_text(header)
        prefix = header.partition("_last_error")[0].split()[-1].lstrip("*")
        text = USE.format(folder=folder, header=f"{folder}/{exe.name}", prefix=prefix)
        (here / "use.c").write_text(text)
        for form in ("a", "o", "so"):
            exe.export_library(here / f"net.{form}")
    for how in ("name", "prefix"):
        shutil.copytree(place / "same" / "one", place / how / "one")
    for how in NAMES:
        (place / how / "main.c").write_text(PROGRAM)
    return place


def output_of(folder: Path) -> str:
    """What the program says; shared libraries are found from its folder."""
    program = folder / "program"
    return subprocess.run(
        [program], cwd=folder, capture_output=True, text=True, check=True, timeout=30
    ).stdout


def link(folder: Path, command: tuple[str, ...], *files: str) -> tuple[int, str]:
    """Status and words of a compiler; the program is `program`."""
    options = ("-I.", "-o", "program", "-lpthread", "-ldl", "-lm")
    done = subprocess.run(
        [*command, *files, *options], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.in_turn("how")
@pytest.mark.parametrize("name", list(LINKERS))
@pytest.mark.parametrize("how", list(NAMES))
def test_two_models_of_one_name(libraries: Path, how: str, name: str) -> None:
    """Each form with each, in both orders."""
    command, folder = linker(name), libraries / how
    forms = FORMS if name in ("bfd", "zig") else FORMS[::3]
    for first, second in forms:
        files = [f"one/net.{first}", f"two/net.{second}"]
        for order in (files, files[::-1]):
            code, said = link(folder, command, "main.c", "one/use.c", "two/use.c", *order)
            if how == "same":
                assert code != 0 and "model_names_one_library" in said, (order, said)
                continue
            assert code == 0, (order, said)
            assert output_of(folder) == "0.7616 2.7183", order


@pytest.mark.parametrize("name", list(LINKERS))
def test_many_files_may_include_the_header_of_one(libraries: Path, name: str) -> None:
    command, folder = linker(name), libraries / "same"
    for form in ("a", "so"):
        again = USE.format(folder="two", header="one/model", prefix="model")
        (folder / "again.c").write_text(again)
        code, said = link(folder, command, "main.c", "one/use.c", "again.c", f"one/net.{form}")
        assert code == 0, said
        assert output_of(folder) == "0.7616 0.7616"


@pytest.mark.parametrize("language", ["c", "c++"])
def test_one_file_cannot_include_both(libraries: Path, language: str) -> None:
    for first, second in itertools.permutations(("one", "two")):
        text = f'#include "{first}/model.h"\n#include "{second}/model.h"\n'
        command = [require("gcc"), "-x", language, "-fsyntax-only", "-I.", "-"]
        done = subprocess.run(
            command, cwd=libraries / "same", input=text, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert "two libraries are named model: compile one with --name, or name=" in done.stderr
    text = '#include "one/model.h"\n#include "one/model.h"\n#include "two/other.h"\n'
    subprocess.run(command, cwd=libraries / "name", input=text, text=True, check=True)


def test_the_same_compile_gives_the_same_header(libraries: Path) -> None:
    """Other weights of one network are another library; the same ones are the same."""

    def header(weights: list[float]) -> str:
        import numpy as np

        text = """
@R.function
def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
    y: R.Tensor((2,), "float32") = R.mul(x, w)
    return y
"""
        array = np.array(weights, np.float32)
        return tk.compile(from_source(text, namespace={"w": array})).header()

    assert header([1, 2]) == header([1, 2]) != header([1, 3])


@pytest.mark.parametrize("name", ["", "a-b", "1a", "a b", "ü", "a\0"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UserError, match="name .*symbols cannot begin with it") as caught:
        tk.compile(MODELS["one"], name=name)
    assert caught.value.code == "bad-name" and caught.value.hint


@pytest.mark.parametrize("name", [5, b"a", Path("a")])
def test_names_that_are_no_text(name: object) -> None:
    with pytest.raises(UserError, match="name is an? .*, expected a str") as caught:
        tk.compile(MODELS["one"], name=name)  # type: ignore[arg-type]
    assert caught.value.code == "wrong-type"


@pytest.mark.parametrize("argument", ["name", "system_lib_prefix"])
def test_a_library_is_not_called_as_the_runtime(argument: str, tmp_path: Path) -> None:
    module = replace(MODELS["one"], name="kiln")
    tk.compile(module).export_library(tmp_path / "net.so")  # named after the module and `_`
    with pytest.raises(UserError, match="symbols of the runtime begin with it"):
        tk.compile(module, **{argument: "kiln"})  # type: ignore[arg-type]

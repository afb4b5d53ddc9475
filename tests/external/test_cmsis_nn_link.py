"""How code for CMSIS-NN meets the library: a user's copy, none at all, another version."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UserError
from tensorkiln.external import External, ExternalDependency
from tensorkiln.external.cmsis_nn import CMSIS_NN, DEPENDENCY
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.attrs import Attrs
from tests.external.cmsis_nn_cases import Conv, Linear, Pool, module
from tests.external.test_cmsis_nn import COMPILER, STAND_IN, stand_in

CASES = [Conv("conv").case(), Linear("product").case(), Pool("avg", "avg").case()]


@pytest.fixture(scope="module")
def executable() -> tk.Executable:
    return tk.compile(module(CASES), externals=[CMSIS_NN])


def test_a_users_checkout_takes_the_place_of_the_stand_in(
    executable: tk.Executable, tmp_path: Path
) -> None:
    """Only paths change: the folder of the header, and that of the library."""
    checkout = tmp_path / "CMSIS-NN"
    include, build = checkout / "Include", checkout / "build"
    include.mkdir(parents=True)
    build.mkdir()
    header = (STAND_IN / "arm_nnfunctions.h").read_text()
    (include / "arm_nnfunctions.h").write_text(header)
    object_file = stand_in(build, "-DSTAND_IN_MARKER=a_users_own_checkout")
    library = executable.export_library(
        tmp_path / "net.so", fcompile=f"gcc -I{include}", addons=[object_file]
    )
    symbols = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout
    assert "a_users_own_checkout" in symbols and "cmsis_nn_stand_in" not in symbols
    loaded = tk.runtime.load_module(library).create_executor()
    for i, case in enumerate(CASES):
        result = loaded[f"case{i}"](*case.inputs()).numpy()
        np.testing.assert_array_equal(result, case.expected(*case.inputs()))


def test_without_the_header_the_compiler_says_what_to_fetch(executable: tk.Executable) -> None:
    with pytest.raises(UserError) as caught:
        executable.jit("gcc")
    message = str(caught.value)
    assert f"cmsis-nn {DEPENDENCY.version_spec} is needed" in message
    assert f"git clone --branch {DEPENDENCY.version_spec} {DEPENDENCY.url}" in message
    assert "cmsis_nn" in caught.value.where


def test_without_the_library_the_missing_functions_are_named(executable: tk.Executable) -> None:
    with pytest.raises(UserError, match="arm_convolve_wrapper_s8"):
        executable.jit(COMPILER)


def test_a_library_that_needs_more_memory_ends_the_run_with_an_error(
    executable: tk.Executable, tmp_path: Path
) -> None:
    larger = stand_in(tmp_path, "-DSTAND_IN_EXTRA=64")
    run = executable.jit(COMPILER, addons=[larger]).create_executor()
    for i, case in enumerate(CASES):
        with pytest.raises(UserError, match="asks for more working memory than version v7.0.0"):
            run[f"case{i}"](*case.inputs())


def test_the_dependency_is_part_of_the_metadata(executable: tk.Executable, tmp_path: Path) -> None:
    object_file = stand_in(tmp_path)
    library = executable.export_library(tmp_path / "n.so", fcompile=COMPILER, addons=[object_file])
    assert inspect_library(library).metadata.dependencies == (DEPENDENCY,)
    assert (DEPENDENCY.short_name, DEPENDENCY.url_type) == ("cmsis-nn", "git")
    assert DEPENDENCY.license == "Apache-2.0"
    assert DEPENDENCY.url == "https://github.com/ARM-software/CMSIS-NN.git"


def test_an_archive_says_what_to_link(tmp_path: Path) -> None:
    """The fields of the proposal of external dependencies, and ours."""
    exe = tk.compile(module(CASES[:1]), externals=["cmsis_nn"])
    archive = exe.export_model_library_format(tmp_path / "net")
    metadata = json.loads((archive / "metadata.json").read_text())
    (row,) = metadata["modules"]["net"]["external_dependencies"]
    assert {k: v for k, v in row.items() if v} == {
        "short_name": "cmsis-nn",
        "url": "https://github.com/ARM-software/CMSIS-NN.git",
        "url_type": "git",
        "version_spec": "v7.0.0",
        "license": "Apache-2.0",
    }


def test_another_version_is_refused_naming_both_places() -> None:
    other_dependency = ExternalDependency("cmsis-nn", DEPENDENCY.url, "git", "v6.0.0")
    source = b"void dsp_tanh(const float *x, float *y) { *y = *x; }\n"
    dsp = External(
        "dsp",
        lambda call, target: call.op == "tanh",
        lambda f, symbol: [Artifact("dsp", "native", "dsp.c", source)],
        (other_dependency,),
    )
    mod = module(CASES[:1])
    tanh = tk.script.from_source(
        "from tensorkiln.script import R\n@R.function\n"
        'def other(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):\n'
        '    y: R.Tensor((1,), "float32") = R.tanh(x)\n'
        "    return y\n"
    )
    two_networks = mod.with_functions((*mod.functions, *tanh.functions))
    with pytest.raises(UserError, match="external 'cmsis_nn'.* and external 'dsp'") as caught:
        tk.compile(two_networks, externals=[CMSIS_NN, dsp])
    assert caught.value.code == "dependency-clash"
    assert "version_spec 'v7.0.0' against 'v6.0.0'" in str(caught.value)


def test_a_functions_attribute_may_not_ask_for_another_version() -> None:
    other_dependency = replace(DEPENDENCY, version_spec="v6.0.0")
    mod = module(CASES[:1])
    (f,) = mod.graphs
    asks = replace(f, attrs=Attrs.of(**f.attrs, kExternalDependency=(other_dependency,)))
    with pytest.raises(UserError, match="external 'cmsis_nn'.*and function 'case0'") as caught:
        tk.compile(mod.with_functions((asks,)), externals=[CMSIS_NN])
    assert caught.value.code == "dependency-clash"


def test_a_program_built_from_source(tmp_path: Path) -> None:
    """Model Library Format, as a firmware project builds it, by gcc alone."""
    case = Conv("conv", x=(1, 3, 6, 6)).case()
    exe = tk.compile(module([case]), externals=[CMSIS_NN])
    folder = exe.export_model_library_format(tmp_path / "net")
    host = folder / "codegen" / "host"
    (q,) = case.inputs()
    (tmp_path / "main.c").write_text(_program(q, case.expected(q)))
    files = [*sorted(host.glob("src/*.c")), *sorted(host.glob("lib/*.o")), tmp_path / "main.c"]
    include = [f"-I{STAND_IN}", f"-I{host / 'include'}"]
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", *include, *files]
    program = tmp_path / "program"
    stand = STAND_IN / "arm_nnfunctions.c"
    subprocess.run([*command, stand, "-o", program], check=True)
    subprocess.run([program], check=True)
    # a failure ends the program
    subprocess.run([*command, "-DSTAND_IN_EXTRA=64", stand, "-o", program], check=True)
    process = subprocess.run([program], capture_output=True, text=True)
    assert process.returncode == 3
    assert "asks for more working memory" in process.stdout


def _program(q: np.ndarray, want: np.ndarray) -> str:
    values = ", ".join(map(str, q.reshape(-1)))
    expected = ", ".join(map(str, want.reshape(-1)))
    return f"""#include "kiln_net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const int8_t input[] = {{{values}}};
static const int8_t expected[] = {{{expected}}};
static int8_t output[sizeof expected];
static int64_t workspace[4096] __attribute__((aligned(64)));
void kiln_net_on_failure(const char *message)
{{
    puts(message);
    exit(3);
}}
int main(void)
{{
    struct kiln_net_inputs inputs = {{input}};
    struct kiln_net_outputs outputs = {{output}};
    struct kiln_net_pools pools = {{workspace}};
    if (KILN_NET_WORKSPACE_SIZE > sizeof workspace)
        return 1;
    if (kiln_net_run(&inputs, &outputs, &pools) != 0)
        return 2;
    return memcmp(output, expected, sizeof expected) != 0;
}}
"""

"""crt/cuda_api.h declares CUDA's driver by itself: versions, numbers and layouts are those of
NVIDIA's headers, which come with its assembler."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tensorkiln.codegen.host.tensor_maps import MAP_BYTES, MAPPED_TYPES, MOST_MAPS
from tensorkiln.link.ptxas import ptxas_path
from tensorkiln.link.shared import CRT
from tensorkiln.runtime.cuda_memory import _PROTOTYPES, _STICKY
from tests.hosts.build import require

OURS = (CRT / "cuda_api.h").read_text()
# Ours, CUDA's. A vector of three is named by its first member.
KERNEL_NODE = {
    "func": "func",
    "grid": "gridDimX",
    "block": "blockDimX",
    "shared_bytes": "sharedMemBytes",
    "values": "kernelParams",
    "extra": "extra",
    "kern": "kern",
    "ctx": "ctx",
}
COPY_END = {
    "x_in_bytes": "XInBytes",
    "y": "Y",
    "z": "Z",
    "lod": "LOD",
    "type": "MemoryType",
    "host": "Host",
    "device": "Device",
    "array": "Array",
    "pitch": "Pitch",
    "height": "Height",
}
COPY_NODE = {
    **{f"from.{name}": f"src{driver_name}" for name, driver_name in COPY_END.items()},
    **{f"to.{name}": f"dst{driver_name}" for name, driver_name in COPY_END.items()},
    "from.reserved": "reserved0",
    "to.reserved": "reserved1",
    "width_in_bytes": "WidthInBytes",
    "height": "Height",
    "depth": "Depth",
}
STRUCTS = {
    "kiln_cuda_kernel_node": ("CUDA_KERNEL_NODE_PARAMS_v2", KERNEL_NODE),
    "kiln_cuda_copy_node": ("CUDA_MEMCPY3D_v2", COPY_NODE),
}
# Names of ours are CUDA's without a word; one is the last of a range.
LONGER = {
    "CU_DEVICE_": "CU_DEVICE_ATTRIBUTE_",
    "CU_FUNC_": "CU_FUNC_ATTRIBUTE_",
    "CU_POINTER_": "CU_POINTER_ATTRIBUTE_",
}
RENAMED = {"CUDA_ERROR_STREAM_CAPTURE_LAST": "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"}


@pytest.fixture(scope="module")
def headers() -> Path:
    tool = ptxas_path()
    include_folder = tool.parents[1] / "include" if tool is not None else Path("/nowhere")
    if not (include_folder / "cuda.h").exists():
        pytest.skip("ptxas is not installed")
    return include_folder


def offsets(folder: Path, include: Path, header: str, structs: dict[str, list[str]]) -> list[int]:
    """Sizes of structs and offsets of their members, as a C compiler has them."""
    lines = [f'#include "{header}"', "#include <stddef.h>", "#include <stdio.h>"]
    lines.append("int main(void)\n{")
    for struct, members in structs.items():
        lines.append(f'    printf("%zu\\n", sizeof({struct}));')
        lines += [f'    printf("%zu\\n", offsetof({struct}, {m}));' for m in members]
    (folder / "offsets.c").write_text("\n".join([*lines, "    return 0;\n}\n"]))
    command = [require("gcc"), "-I", include, "-o", folder / "offsets", folder / "offsets.c"]
    subprocess.run(command, check=True)
    output = subprocess.run([folder / "offsets"], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in output.split()]


def test_layouts(headers: Path, tmp_path: Path) -> None:
    own_members = {name: list(members) for name, (_, members) in STRUCTS.items()}
    driver_members = {name: list(members.values()) for name, members in STRUCTS.values()}
    own_offsets = offsets(tmp_path, CRT, "cuda_api.h", own_members)
    assert own_offsets == offsets(tmp_path, headers, "cuda.h", driver_members)
    assert (
        len(own_offsets) == sum(1 + len(members) for _, members in STRUCTS.values())
        and own_offsets[0] == 72
    )


def test_functions_are_asked_for_in_versions_that_they_have(headers: Path) -> None:
    known_functions = set(
        re.findall(r"\bPFN_cu(\w+_v\d+)\b", (headers / "cudaTypedefs.h").read_text())
    )
    requested_functions = {
        f"{name}_v{number}"
        for name, *versions in re.findall(r"\b[XY]\((\w+), (\d+)(?:, (\d+))?", OURS)
        for number in versions
        if number not in ("", "0")
    }
    assert len(requested_functions) > 40 and not requested_functions - known_functions
    encode = re.findall(r"KILN_CUDA_ENCODE(?:_VERSION)? \"?(\w+)", OURS)
    assert f"{encode[0][2:]}_v{encode[1]}" in known_functions, encode
    assert (
        not {f"{name[2:]}_v{version}" for name, (version, _) in _PROTOTYPES.items()}
        - known_functions
    )


def test_numbers(headers: Path, tmp_path: Path) -> None:
    own_numbers = re.findall(r"^    (CU\w+) = (\d+)\b", OURS, re.M)
    lines = ['#include "cuda.h"']
    for name, number in own_numbers:
        start = next((s for s in LONGER if name.startswith(s)), "")
        driver_name = RENAMED.get(name, LONGER.get(start, "") + name[len(start) :])
        lines.append(f'_Static_assert({driver_name} == {number}, "{name}");')
    (tmp_path / "numbers.c").write_text("\n".join(lines) + "\n")
    command = [require("gcc"), "-fsyntax-only", "-I", headers, tmp_path / "numbers.c"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert len(own_numbers) >= 40
    sticky = re.search(r"sticky\[\] = \{(.*?)\};", (CRT / "cuda.c").read_text(), re.S)
    assert sticky is not None
    numbers = dict(own_numbers)
    assert sorted(_STICKY) == sorted(int(numbers[n]) for n in re.findall(r"CUDA_\w+", sticky[1]))


def test_tensor_maps(headers: Path, tmp_path: Path) -> None:
    """What a map is, and numbers of types of elements."""
    lines = ['#include "cuda.h"']
    for name, number in MAPPED_TYPES.items():
        driver_name = f"CU_TENSOR_MAP_DATA_TYPE_{name.upper()}"
        lines.append(f'_Static_assert({driver_name} == {number}, "{name}");')
    lines.append(f'_Static_assert(sizeof(CUtensorMap) == {MAP_BYTES}, "bytes");')
    lines.append(f'_Static_assert({MAP_BYTES} % _Alignof(CUtensorMap) == 0, "alignment");')
    (tmp_path / "maps.c").write_text("\n".join(lines) + "\n")
    command = [require("gcc"), "-std=c11", "-fsyntax-only", "-I", headers, tmp_path / "maps.c"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert f"KILN_CUDA_MAP_BYTES {MAP_BYTES}\n" in OURS
    assert f"KILN_CUDA_MOST_MAPS {MOST_MAPS} " in OURS

"""The libraries and the C driver, with or without sanitizers, in a folder."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from tensorkiln.artifact import container
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.link.headers import HOSTS
from tensorkiln.link.shared import CRT, runtime_source
from tests.safety.libraries import NAMES, executable

C = Path(__file__).resolve().parent / "c"
# What the runtime asks of the system, and the driver may refuse (c/faults.c).
WRAPPED = ("malloc", "calloc", "posix_memalign", "mmap", "open", "read")
WARN = ("-Wall", "-Wextra", "-Wshadow", "-Werror")


def sanitize(sanitizers: str) -> tuple[str, ...]:
    """Compiler options for "address,undefined", "thread" or ""; "quick" is for tests that shall not
    wait for the compiler."""
    if sanitizers == "quick":
        return ("-g1", "-O0", "-fsanitize=address", "-fno-omit-frame-pointer")
    if not sanitizers:
        return ("-g", "-O1")
    return ("-g", "-O1", f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer")


def _gcc(*words: str | Path) -> None:
    process = subprocess.run(["gcc", *map(str, words)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def build_libraries(folder: Path) -> None:
    """graphs.so, outers.so and loaders.so as users have them."""
    for name in NAMES:
        executable(name).export_library(folder / f"{name}.so")


def build_checked(folder: Path, sanitizers: str) -> None:
    """The same linked by gcc, with what the driver needs besides, and the driver. Its working
    folder is `folder`."""
    build_program(folder, sanitizers, build_checked_libraries(folder, sanitizers))


def build_checked_libraries(folder: Path, sanitizers: str) -> dict[str, str]:
    """The libraries, one of them also with its weights beside it; their headers by name."""
    options = sanitize(sanitizers)
    runtime, source = folder / "runtime.o", folder / "runtime.c"
    source.write_text(runtime_source())
    hidden: tuple[str, ...] = ("-std=c99", "-fPIC", "-fvisibility=hidden", "-fno-builtin")
    # By another name than the linker would give it, which libgcc has.
    hidden = (*hidden, "-Dpthread_create=safety_pthread_create")
    _gcc(*options, *hidden, "-I", CRT, "-c", source, "-o", runtime)

    def link(output: str, files: Sequence[str], flags: Sequence[str]) -> None:
        own_files = [f for f in files if Path(f).parent != CRT]
        # The driver has the functions that are wrapped.
        flags = [f.replace("-z,defs,", "") for f in flags if f not in ("-O2", "-g0")]
        wrapped = [f"-Wl,--wrap={name}" for name in WRAPPED]
        _gcc(*options, *own_files, runtime, *flags, *wrapped, "-o", output)

    headers = {}
    for name in NAMES:
        library = executable(name)
        library.export_library(folder / f"{name}.so", fcompile=link)
        headers[name] = library.header()
        if name == "graphs":
            (folder / "beside").mkdir(exist_ok=True)
            library.export_library(folder / "beside" / "net.so", fcompile=link, weights="beside")
            _decoy(folder)
            for megabytes in (1, 57):
                _many_dimensions(folder, megabytes)
        if name == "loaders":
            with _newer_containers():
                executable(name).export_library(folder / "newer.so", fcompile=link)
    return headers


def build_program(folder: Path, sanitizers: str, headers: dict[str, str]) -> None:
    """The driver."""
    options = sanitize(sanitizers)
    (folder / "plain.c").write_text(plain_entries(headers))
    names = ("calls", "faults", "loaders", "main", "processes", "tensors", "threads", "values")
    head: tuple[str | Path, ...] = (
        *options,
        *WARN,
        "-std=c11",
        "-D_GNU_SOURCE",
        "-I",
        CRT,
        "-I",
        HOSTS,
        "-I",
        C,
    )
    opening = folder / "opening.o"
    # There kiln_host.h asks the system by way of the driver.
    through = ("-Dcalloc=__wrap_calloc", "-Dread=__wrap_read", "-Dopen=__wrap_open")
    _gcc(*head, *through, "-c", C / "opening.c", "-o", opening)
    driver = folder / "driver"
    files: tuple[Path, ...] = (*(C / f"{name}.c" for name in names), folder / "plain.c", opening)
    _gcc(*head, "-rdynamic", *files, "-o", driver, "-ldl", "-lpthread")


def _decoy(folder: Path) -> None:
    """Weights of another model under the same name, in another folder."""
    (folder / "other").mkdir(exist_ok=True)
    shutil.copy(folder / "beside" / "net.safetensors", folder / "other")
    with (folder / "other" / "net.safetensors").open("r+b") as stream:
        start = 8 + int.from_bytes(stream.read(8), "little")
        stream.seek(0, 2)
        size = stream.tell() - start
        stream.seek(start)
        stream.write(b"\0\0\x80\x3f" * (size // 4))  # ones


@contextmanager
def _newer_containers() -> Iterator[None]:
    """Meanwhile containers are written as a later version may: with a node of its own."""
    write = container.pack

    def pack(nodes: Sequence[container.Node]) -> Iterator[bytes | memoryview]:
        first = replace(nodes[0], children=(*nodes[0].children, len(nodes)))
        return write([first, *nodes[1:], container.Node("_signature")])

    with patch.object(container, "MINOR", 7), patch.object(container, "pack", pack):
        yield


def _many_dimensions(folder: Path, megabytes: int) -> None:
    """dims-<megabytes>.so: a library whose metadata gives a tensor that many dimensions."""
    data = bytearray((folder / "graphs.so").read_bytes())
    sections = read_binary(folder / "graphs.so").sections
    index, metadata_section = next((i, s) for i, s in enumerate(sections) if s.name == ".kiln.meta")
    metadata = bytes(
        data[metadata_section.offset : metadata_section.offset + metadata_section.size]
    ).rstrip(b"\0")
    many = b"[" + b'"n", ' * (megabytes * 200_000) + b'"n"]'
    text, count = re.subn(rb'(?<="shape": )\[[^]]*\]', many, metadata, count=1)
    assert count == 1
    table = struct.unpack_from("<Q", data, 0x28)[0]
    struct.pack_into("<QQ", data, table + 64 * index + 24, len(data), len(text))
    (folder / f"dims-{megabytes}.so").write_bytes(data + text)


def plain_entries(headers: dict[str, str]) -> str:
    """C that calls every plain entry of some headers with arguments from arrays."""
    text, rows = ['#include "driver.h"\n'], []
    for library, header in headers.items():
        pattern = rf"^int {library}_(\w+)\(([^;]*)\);"
        for name, inside in re.findall(pattern, header, flags=re.M):
            if "(" in inside or name == "get_num_threads":
                continue
            kinds = [p.strip().rsplit(" ", 1)[0] + "*" * p.count("*") for p in inside.split(",")]
            counts, arguments = {"integers": 0, "data": 0, "reals": 0}, []
            for kind in kinds:
                source = "data" if "*" in kind else "reals" if "double" in kind else "integers"
                cast = "" if source == "data" else f"({kind})"
                arguments.append(f"{cast}{source}[{counts[source]}]")
                counts[source] += 1
            rows.append(
                f'    {{"{library}", "{name}", {counts["integers"]}, {counts["data"]}, '
                f"{counts['reals']}, call_{library}_{name}}},\n"
            )
            text.append(
                f"static int call_{library}_{name}(void *entry, const int64_t *integers, "
                "void *const *data, const double *reals)\n{\n"
                f"    int (*f)({', '.join(kinds)});\n    memcpy(&f, &entry, sizeof f);\n"
                "    (void)integers, (void)data, (void)reals;\n"
                f"    return f({', '.join(arguments)});\n}}\n"
            )
    table = "".join(rows)
    text.append(f"const plain_function plain_functions[] = {{\n{table}}};\n")
    text.append("const int n_plain_functions = sizeof plain_functions / sizeof *plain_functions;\n")
    return "\n".join(text)

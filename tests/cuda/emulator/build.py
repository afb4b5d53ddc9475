"""LLVM IR of kernels -> a shared object that runs them on a CPU, thread by thread.

For each kernel it exports

    int emulate_<kernel>(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                         void **args);

with arguments as cuLaunchKernel takes them: pointers to each. It returns 0 or the number of a fault
(`FAULTS`), of which `const char *emulator_message(void)` says in a sentence what and who it was.
`emulator_order`, `emulator_watch`, `emulator_buffer` and `emulator_forget` are told in emulator.c,
`emulator_products` in warpgroups.h, `emulator_copies` in copies.h, `emulator_tensor_map` in bulk.h,
`emulator_count` and `emulator_counts` in counts.h.
"""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import llvmlite.binding as llvm

from tensorkiln.artifact import ArtifactSet
from tensorkiln.ir.dtype import DType
from tensorkiln.schedule.intrin.fragments import (
    Fragment,
    left_fragment,
    matrix_fragment,
    right_fragment,
    shape_named,
    sums_fragment,
)
from tests.codegen.c_like.build import require_compiler
from tests.cuda.emulator.assembly import DECLARATIONS, is_assembly, translated

FAULTS = {
    1: "race",
    2: "barrier",
    3: "shared memory out of bounds",
    4: "buffer out of bounds",
    5: "alignment",
    6: "launch",
    7: "undefined shared memory",
    8: "warp",
    9: "operand",
    10: "copy",
    11: "product",
    12: "proxy",
    13: "deadlock",
    14: "bytes",
}
_SOURCE = Path(__file__).parent / "emulator.c"
# Instructions of warps, with the types of factors as warps.h numbers them.
_WARP = re.compile(
    r"@llvm\.nvvm\.(mma\.m\d+n8k\d+\.row\.col|ldmatrix\.sync\.aligned|shfl\.sync)\.([\w.]+)\("
)
# Copies are told their place too, by which they are counted.
_COPY = re.compile(r"@llvm\.nvvm\.cp\.async\.c[ag]\.")
_FACTORS = {"f32": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4}
# The shapes of products as warps.h numbers them, with a type of as many bytes.
_SHAPES = {
    ("m16n8k8", "tf32"): "float32",
    ("m16n8k16", ""): "float16",
    ("m16n8k32", ""): "int8",
    ("m16n8k8", ""): "float16",
    ("m8n8k16", ""): "int8",
}
_KERNEL = re.compile(r"define ptx_kernel void @(\w+)\((.*)\) #0 \{")
_THREADS = re.compile(r'"nvvm.reqntid"="(\d+),(\d+),(\d+)"')
_LOAD = re.compile(r"  (%\S+) = load ([^,]+), ptr (%\S+?)(?:, align (\d+))?$")
_STORE = re.compile(r"  store (<[^>]+>|\S+) (?:<.*>|\S+), ptr (%\S+?)(?:, align (\d+))?(?:, !.*)?$")
_BYTES = {"half": 2, "float": 4, "double": 8, "ptr": 8}
_LEFT_OUT = ("attributes ", "target ", ";", "!0 =")
_HEAD = """\
declare void @emulator_load(ptr, i32, i32, i32)
declare void @emulator_store(ptr, i32, i32, i32)
declare ptr @emulator_shared()
declare i32 @emulator_run(ptr, ptr, ptr, ptr, ptr, i32, ptr)
declare void @emulator_mma(ptr, i32, i32)
declare void @emulator_ldmatrix(ptr, ptr, i32, i32)
declare void @emulator_exchange(ptr, i32, i32, i32, i32)
declare i32 @emulator_bfloat(float)
"""
# Conversions whose types C has not: defined where a kernel declares them.
_DEFINED = {
    "ff2bf16x2.rn": """\
define internal <2 x bfloat> @nvvm_ff2bf16x2_rn(float %a, float %b) {
  %x = call i32 @emulator_bfloat(float %a)
  %y = call i32 @emulator_bfloat(float %b)
  %h = shl i32 %x, 16
  %i = or i32 %h, %y
  %v = bitcast i32 %i to <2 x bfloat>
  ret <2 x bfloat> %v
}""",
    "f2bf16.rn": """\
define internal bfloat @nvvm_f2bf16_rn(float %a) {
  %x = call i32 @emulator_bfloat(float %a)
  %i = trunc i32 %x to i16
  %v = bitcast i16 %i to bfloat
  ret bfloat %v
}""",
}


def _tables() -> str:
    """fragments.h: rows and columns of the elements of each thread."""

    def table(places: Sequence[tuple[int, int]]) -> str:
        return "{" + ", ".join(f"{{{r}, {c}}}" for r, c in places) + "}"

    def threads(f: Fragment) -> str:
        rows = (table([f.place(t, k) for k in range(f.count)]) for t in range(32))
        return "{" + ", ".join(rows) + "}"

    def several(head: str, fragments: Sequence[Fragment]) -> str:
        largest = max(f.count for f in fragments)
        inside = ",\n".join(map(threads, fragments))
        return (
            f"static const unsigned char {head}[{len(fragments)}][32][{largest}][2] = {{{inside}}};"
        )

    types = [DType(t) for t in _SHAPES.values()]
    shapes = [shape_named(name, t) for (name, _), t in zip(_SHAPES, types, strict=True)]
    matrices = [matrix_fragment(DType("float16"), 4, flip) for flip in (False, True)]
    left_fragments, right = (
        [f(t, s) for t, s in zip(types, shapes, strict=True)]
        for f in (left_fragment, right_fragment)
    )
    sums = [sums_fragment(s) for s in shapes]
    parts = [several("MATRIX", matrices)]
    for name, operand_fragments in (("LEFT", left_fragments), ("RIGHT", right), ("SUMS", sums)):
        counts = ", ".join(str(f.count) for f in operand_fragments)
        parts += [
            several(name, operand_fragments),
            f"static const int {name}_COUNT[] = {{{counts}}};",
        ]
    terms = ", ".join(str(f.columns) for f in left_fragments)
    return "\n".join([*parts, f"static const int TERMS[] = {{{terms}}};"]) + "\n"


def build(irs: Iterable[str], out: Path) -> Path:
    """A shared object of kernels, each given as the text of its LLVM IR (`<kernel>.ll`)."""
    parts, declared = list[str](), dict[str, None]()
    for ir in irs:
        parts.append(_emulated(ir, declared))
    text = "\n".join([_HEAD, DECLARATIONS, *declared, *parts, "!0 = !{i32 1}\n"])
    with tempfile.TemporaryDirectory() as folder:
        object_ = Path(folder) / "kernels.o"
        object_.write_bytes(_compiled(text))
        linker_arguments = [
            "-shared",
            "-o",
            str(out),
            str(object_),
            str(_runtime()),
            "-lpthread",
            "-lm",
        ]
        subprocess.run([require_compiler("gcc"), *linker_arguments], check=True)
    return out


def build_all(artifacts: ArtifactSet, folder: Path) -> list[Path]:
    """For each PTX module among the artifacts of a compile, `<SHA-256 of its bytes>.so`, whose
    kernels are those of the module."""
    groups: dict[str, list[str]] = {}
    for a in artifacts:
        if a.codegen_id == "cuda" and a.file_name.endswith(".ll"):
            groups.setdefault(a.target_key, []).append(a.text())
    libraries = []
    for a in artifacts:
        if a.codegen_id == "cuda" and a.file_name.endswith((".ptx", ".cubin")):
            digest = hashlib.sha256(bytes(a.view)).hexdigest()
            libraries.append(build(groups[a.target_key], folder / f"{digest}.so"))
    return libraries


@functools.cache
def _runtime() -> Path:
    """emulator.c as an object, compiled once."""
    object_path = Path(tempfile.mkdtemp(prefix="kiln-emulator-")) / "emulator.o"
    (object_path.parent / "fragments.h").write_text(_tables())
    options = (
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        f"-I{object_path.parent}",
    )
    command = [require_compiler("gcc"), *options, "-c", str(_SOURCE), "-o", str(object_path)]
    subprocess.run(command, check=True)
    return object_path


def _compiled(text: str) -> bytes:
    """An object for this machine; local memory of kernels becomes registers, as for a GPU."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=1,
        reloc="pic",
        codemodel="small",
    )
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = llvm.get_default_triple(), str(machine.target_data)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0)))
    return bytes(machine.emit_object(module))


def _emulated(ir: str, declared: dict[str, None]) -> str:
    """The IR of one kernel with calls of the emulator, and what launches it; adds its declarations
    to `declared`."""
    header, threads = _KERNEL.search(ir), _THREADS.search(ir)
    assert header is not None and threads is not None, ir
    lines: list[str] = []
    slots: set[str] = set()
    assembly = []
    for number, line in enumerate(ir.splitlines()):
        if is_assembly(line):
            called, function = translated(line, f"{header[1]}$assembly{number}", number)
            lines.append(called)
            assembly.append(function)
        elif line.startswith("declare ") and _WARP.search(line):
            declared[_in_memory(line)] = None
        elif rounds := re.match(r"declare .* @llvm\.nvvm\.([\w.]*bf16\w*\.rn)\(", line):
            declared[_DEFINED[rounds[1]]] = None
        elif line.startswith("declare ") and _COPY.search(line):
            declared[re.sub(r"@llvm\.nvvm\.([\w.]+)", _function, line[:-1]) + ", i32)"] = None
        elif line.startswith("declare "):
            declared[re.sub(r"@llvm\.nvvm\.([\w.]+)", _function, line)] = None
        elif not line.startswith(_LEFT_OUT) and " external addrspace(3)" not in line:
            lines += _line(line, slots, number)
    # What is passed by value is where its bytes are.
    types = ["" if " byval(" in p else p.split()[0] for p in _split(header[2])]
    name = header[1]
    return "\n".join(
        [*lines, *assembly, _launcher(name, types, [int(n) for n in threads.groups()])]
    )


def _function(match: re.Match[str]) -> str:
    return "@nvvm_" + match[1].replace(".", "_")


def _split(params: str) -> list[str]:
    return [p for p in params.split(", ") if p]


def _line(line: str, slots: set[str], number: int) -> Iterator[str]:
    """A line of a kernel, the `number`-th; loads and stores after a call that tells of them, but
    for local variables (`slots`)."""
    if kernel := _KERNEL.match(line):
        params = ", ".join(f"{p.split()[0]} {p.split()[-1]}" for p in _split(kernel[2]))
        yield f"define internal void @{kernel[1]}({params}) {{"
        return
    if " = alloca " in line:
        slots.add(line.split()[0])
    if "addrspacecast ptr addrspace(3)" in line:
        yield f"{line.split(' = ')[0]} = call ptr @emulator_shared()"
        return
    if (load := _LOAD.match(line)) and load[3] not in slots:
        yield _told("load", load[3], load[2], load[4], number)
    elif (store := _STORE.match(line)) and store[2] not in slots:
        yield _told("store", store[2], store[1], store[3], number)
    else:
        is_reported = load or store or not re.search(r"(= load|^  store) ", line)
        assert is_reported, f"an access in a form that the emulator does not know: {line}"
    if _WARP.search(line) or _COPY.search(line):
        line = f"{line[:-1]}, i32 {number})"
    yield re.sub(r"@llvm\.nvvm\.([\w.]+)", _function, line)


def _in_memory(declaration: str) -> str:
    """An instruction of a warp, whose registers the emulator gets in memory. Its last operand is
    the place of the program."""
    match = re.fullmatch(r"declare (.+) @llvm\.nvvm\.([\w.]+)\((.*)\)", declaration)
    assert match is not None, declaration
    result, name, types = match[1], match[2], _split(match[3])
    returned = _split(result.strip("{}"))
    parameters = ", ".join(f"{t} %a{k}" for k, t in enumerate(types))
    lines = [f"define internal {result} @nvvm_{name.replace('.', '_')}({parameters}, i32 %site) {{"]
    lines.append("  %m = alloca [10 x i32], align 16")
    if name.startswith("mma"):
        shape, factors = name.split(".")[1], name.split(".col.")[1].split(".")
        shape_index = [*_SHAPES].index((shape, "tf32" if factors[0] == "tf32" else ""))
        # Of each operand the first register has a place of its own.
        factor_count, sums = len(types) - len(returned), len(returned)
        right = factor_count // (3 if sums == 4 else 2)  # of 8 columns, where the left has 16 rows
        left_count = factor_count - right
        places = [*range(left_count), *range(4, 4 + right), *range(6, 6 + sums)]
        for k, (t, place) in enumerate(zip(types, places, strict=True)):
            lines += [f"  %p{k} = getelementptr i32, ptr %m, i32 {place}"]
            lines += [f"  store {t} %a{k}, ptr %p{k}, align 4"]
        codes = [_FACTORS[t] for t in factors]
        type_codes = codes[0] | codes[-1] << 4 | shape_index << 8
        lines.append(f"  call void @emulator_mma(ptr %m, i32 {type_codes}, i32 %site)")
        first = 6
    elif name.startswith("shfl"):
        lines.append(f"  store {types[1]} %a1, ptr %m, align 4")
        parameters = "ptr %m, i32 %a0, i32 %a2, i32 %a3, i32 %site"
        lines.append(f"  call void @emulator_exchange({parameters})")
        first = 0
    else:
        type_codes = int(re.findall(r"\.x(\d)", name)[0]) | 8 * (".trans" in name)
        lines.append("  %row = addrspacecast ptr addrspace(3) %a0 to ptr")
        lines.append(
            f"  call void @emulator_ldmatrix(ptr %m, ptr %row, i32 {type_codes}, i32 %site)"
        )
        first = 0
    aggregate = "poison"
    for k, t in enumerate(returned):
        lines.append(f"  %q{k} = getelementptr i32, ptr %m, i32 {first + k}")
        lines.append(f"  %v{k} = load {t}, ptr %q{k}, align 4")
        if len(returned) > 1:
            lines.append(f"  %r{k} = insertvalue {result} {aggregate}, {t} %v{k}, {k}")
            aggregate = f"%r{k}"
    lines.append(f"  ret {result} {aggregate if len(returned) > 1 else '%v0'}\n}}")
    return "\n".join(lines)


def _told(function_suffix: str, pointer: str, t: str, align: str | None, site: int) -> str:
    size = _size(t)
    arguments = f"ptr {pointer}, i32 {size}, i32 {align or size}, i32 {site}"
    return f"  call void @emulator_{function_suffix}({arguments})"


def _size(t: str) -> int:
    """The bytes of an LLVM type in memory."""
    if vector := re.fullmatch(r"<(\d+) x (\w+)>", t):
        return int(vector[1]) * _size(vector[2])
    return _BYTES[t] if t in _BYTES else int(t[1:]) // 8


def _launcher(name: str, types: Sequence[str], threads: Sequence[int]) -> str:
    """`emulate_<name>`, and the call of a kernel with arguments from an array of pointers."""
    text = [f"define internal void @{name}$call(ptr %args) {{"]
    for i, t in enumerate(types):
        text += [
            f"  %a{i} = getelementptr ptr, ptr %args, i64 {i}",
            f"  %p{i} = load ptr, ptr %a{i}",
            *([f"  %v{i} = load {t}, ptr %p{i}"] if t else []),
        ]
    arguments = ", ".join(f"{t} %v{i}" if t else f"ptr %p{i}" for i, t in enumerate(types))
    words = ", ".join(f"i32 {n}" for n in threads)
    return "\n".join(
        [
            *text,
            f"  call void @{name}({arguments})\n  ret void\n}}",
            f'@{name}$name = private constant [{len(name) + 1} x i8] c"{name}\\00"',
            f"@{name}$threads = private constant [3 x i32] [{words}]",
            f"define i32 @emulate_{name}(ptr %grid, ptr %block, i32 %shared, ptr %args) {{",
            f"  %fault = call i32 @emulator_run(ptr @{name}$name, ptr @{name}$call, ptr %grid, "
            f"ptr %block, ptr @{name}$threads, i32 %shared, ptr %args)",
            "  ret i32 %fault\n}",
        ]
    )

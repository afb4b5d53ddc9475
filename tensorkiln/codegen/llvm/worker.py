"""Compiles LLVM IR text to object code in its own process: `python -m ...worker`.

LLVM reports a code-generation failure by aborting, and holds a global lock; a process of its own
turns the first into an error and makes the second harmless. Requests and replies are
length-prefixed on stdin and stdout: options in JSON and the text of a module; then a status, the
code and the assembly. With two arguments, a module file and an options file, it compiles that
module: these are the files that a failed compile leaves on disk.

On x86-64 the object is assembled from the assembly text, which gives the same bytes as LLVM's
direct output. So code is generated once for both; assembling takes a tenth of the time of
generating.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tensorkiln.base.processes import read_frame, write_frame

# Bytes that a string of LLVM IR holds as two hexadecimal digits.
_QUOTED = re.compile(rb'[^ -~]|["\\]')


def compile_text(text: str, options: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the code of one module, and the assembly that an object was made from (else empty).
    `options`: triple, cpu, features, opt (0..3), emit (`object`, `assembly`, `annotated` assembly,
    which names loops and spills, or `bitcode`)."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine, module = _parsed(text, options)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0))
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(module, builder)
    if options["emit"] == "bitcode":
        return bytes(module.as_bitcode()), b""
    if options["emit"] == "object" and not _assembles(options["triple"]):
        return bytes(machine.emit_object(module)), b""
    machine.set_asm_verbosity(options["emit"] == "annotated")
    assembly = machine.emit_assembly(module)
    if options["emit"] != "object":
        return assembly.encode(), b""
    return _assembled(assembly, options), assembly.encode()


def _parsed(text: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The target machine, and the module parsed for it."""
    import llvmlite.binding as llvm

    machine = llvm.Target.from_triple(options["triple"]).create_target_machine(
        cpu=options["cpu"],
        features=options["features"],
        opt=options["opt"],
        reloc="pic",
        codemodel="small",
        abiname=options.get("abi", ""),
    )
    module = llvm.parse_assembly(text)
    module.triple = options["triple"]
    module.data_layout = str(machine.target_data)
    return machine, module


def _assembles(triple: str) -> bool:
    """Whether objects are assembled from assembly text. The text is kept to be read; generating
    code a second time for it would take ten times as long as assembling. llvmlite can assemble only
    for the processor that it runs on, and that both objects are equal is tested on x86-64 only."""
    import llvmlite.binding as llvm

    return all(t.startswith("x86_64-") for t in (triple, llvm.get_default_triple()))


def _assembled(assembly: str, options: dict[str, Any]) -> bytes:
    """Assemble text: compile a module that consists of it as inline assembly."""
    import llvmlite.binding as llvm

    llvm.initialize_native_asmparser()
    # LLVM emits a `.file` directive for the module itself.
    lines = (line for line in assembly.splitlines() if not line.startswith("\t.file\t"))
    text = "\n".join([*lines, ""]).encode()
    quoted = _QUOTED.sub(lambda m: b"\\%02X" % m[0][0], text).decode()
    # LLVM generates code for `x86-64` tuned as for `generic`, and the tuning decides how gaps for
    # alignment are filled.
    cpu = "generic" if options["cpu"] == "x86-64" else options["cpu"]
    machine, module = _parsed(f'module asm "{quoted}"\n', {**options, "cpu": cpu})
    return bytes(machine.emit_object(module))


def main() -> None:
    """Serve requests until the input closes."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    while (head := read_frame(stdin)) is not None:
        text = read_frame(stdin)
        if text is None:
            return
        try:
            status, result = b"ok", compile_text(text.decode(), json.loads(head))
        except Exception as e:
            status, result = b"error", (f"{type(e).__name__}: {e}".encode(), b"")
        for frame in (status, *result):
            write_frame(stdout, frame)


def reproduce(module: str, options: str) -> None:
    """Compile one module file with the options of an options file, as the hints of errors say."""
    code, _ = compile_text(Path(module).read_text(), json.loads(Path(options).read_text()))
    print(f"{module}: compiled to {len(code)} bytes")


if __name__ == "__main__":
    reproduce(*sys.argv[1:]) if len(sys.argv) == 3 else main()

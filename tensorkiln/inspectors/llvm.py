"""LLVM modules, text or bitcode: as text, as assembly for their target, and their functions.

LLVM aborts its process for some damaged modules, so all of this happens in a subprocess, which runs
`python -m tensorkiln.inspectors.llvm`.
"""

from __future__ import annotations

import re
import subprocess
import sys

from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UserError
from tensorkiln.base.packages import require_package
from tensorkiln.base.processes import python_command

BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")  # magic of raw bitcode, and of the wrapper format
_SECONDS = 300
_CPU = re.compile(r'"(target-cpu|target-features)"="([^"]*)"')


def show_ll(artifact: Artifact) -> str:
    """The module as text. Raises UserError (code `bad-llvm`)."""
    return _asked("ll", artifact)


def show_assembly(artifact: Artifact) -> str:
    """Assembly for the module's triple and for the processor that is first named by a function's
    attributes. No passes are run before code generation. Raises UserError (code `bad-llvm`)."""
    return _asked("assembly", artifact)


def show_functions(artifact: Artifact) -> str:
    """A line for each function: defined or declared, number of instructions, type, name. Raises
    UserError (code `bad-llvm`)."""
    return _asked("functions", artifact)


def _asked(form: str, artifact: Artifact) -> str:
    require_package("llvmlite", "reading LLVM's code")
    command = python_command("tensorkiln.inspectors.llvm", form)

    def bad(reason: str, hint: str = "") -> UserError:
        return UserError(reason, code="bad-llvm", where=artifact.name, hint=hint)

    try:
        process = subprocess.run(
            command, input=artifact.view, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise bad(f"LLVM did not finish within {_SECONDS} s") from None
    if process.returncode == 0:
        return process.stdout.decode()
    words = process.stderr.decode(errors="replace").strip()[-500:]
    if process.returncode == 1:
        raise bad(f"LLVM cannot read it: {words}", "--as hexdump shows any bytes")
    raise bad(f"LLVM ended its process (status {process.returncode}): {words}", "it may be damaged")


def _shown(data: bytes, form: str) -> str:
    import llvmlite.binding as llvm

    is_bitcode = data.startswith(BITCODE)
    module = llvm.parse_bitcode(data) if is_bitcode else llvm.parse_assembly(data.decode())
    module.verify()
    if form == "ll":
        return str(module)
    if form == "functions":
        return "".join(_function_line(f) for f in module.functions)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = module.triple or llvm.get_default_triple()
    attributes = " ".join(a.decode() for f in module.functions for a in f.attributes)
    named = dict(reversed(_CPU.findall(attributes)))  # the first value of each attribute
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=named.get("target-cpu", ""),
        features=named.get("target-features", ""),
        opt=2,
        reloc="pic",
        codemodel="small",
    )
    module.triple, module.data_layout = triple, str(machine.target_data)
    cpu = named.get("target-cpu") or "the baseline"
    machine.set_asm_verbosity(False)
    return f"# {triple}, {cpu}\n{machine.emit_assembly(module)}"


def _function_line(f: object) -> str:
    from typing import Any

    function: Any = f
    kind = str(function.global_value_type)
    if function.is_declaration:
        return f"declared            {kind}  {function.name}\n"
    count = sum(1 for block in function.blocks for _ in block.instructions)
    return f"defined  {count:>6} ins.  {kind}  {function.name}\n"


def main() -> None:
    """The subprocess: a module on standard input, its text on standard output; status 1 and LLVM's
    message on standard error if LLVM rejects the module."""
    try:
        text = _shown(sys.stdin.buffer.read(), sys.argv[1])
    except (RuntimeError, UnicodeDecodeError) as error:
        sys.stderr.write(str(error))
        sys.exit(1)
    sys.stdout.buffer.write(text.encode())

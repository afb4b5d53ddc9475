"""Kernels and host code of a compile, linked in this process's memory: target `llvmjit`.

Kernels stay LLVM bitcode, host code and runtime are compiled to objects (`link/jit_objects.py`),
and LLVM's ORC links both within one range of memory (`one_piece.py`). `runtime/native.py` gets
addresses of functions instead of a file. No file is written and no linker runs: this is the only
way to run without a linker. In return LLVM works in this process, so that an abort of LLVM ends the
process, and profilers have no symbols for the code.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.codegen.llvm.one_piece import one_piece

_numbers = itertools.count(1)


@dataclass(slots=True)
class Linked:
    """Code in memory, until `unload`: addresses by symbol."""

    addresses: Mapping[str, int]
    _kept: list[Any]

    def unload(self) -> None:
        """Free the code, whose addresses become invalid. Destructors in it do not run."""
        while self._kept:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._kept.pop()))


def link_in_memory(
    bitcode: Iterable[tuple[str, bytes]],
    objects: Sequence[bytes],
    symbols: Sequence[str],
    constants: Mapping[str, int],
) -> Linked:
    """Compile `bitcode` (names and modules), add `objects`, and find `symbols`.

    `constants` maps symbols to addresses. Each becomes a pointer to that address, followed by 40
    zero bytes: a `weights_place` (crt/weights.c) of weights that are not in a separate file. Raises
    UserError for a module that is not LLVM bitcode, UnsupportedError if a weak symbol, or libgcc's
    support of thread-local variables, is not in this system, InternalError if symbols are missing.
    """
    builder = llvm.JITLibraryBuilder()
    for name, data in bitcode:
        builder.add_ir(_text_of(name, data))
    for item in objects:
        builder.add_object_img(item)
    lacking = _lacking_weak(objects)
    if lacking:
        raise UnsupportedError(
            f"llvmjit finds no {', '.join(lacking)}, and cannot leave open what C declares weak",
            hint="target llvm",
        )
    pointers = "".join(
        f"@{name} = constant {{ ptr, [5 x i64] }} "
        f"{{ ptr inttoptr (i64 {address} to ptr), [5 x i64] zeroinitializer }}\n"
        for name, address in constants.items()
    )
    builder.add_ir(pointers or "; no constants\n")
    builder.import_symbol("__emutls_get_address", _thread_local_storage())
    builder.add_current_process()
    for name in symbols:
        builder.export_symbol(name)
    try:
        with one_piece():
            tracker = builder.link(_compiler(), f"library{next(_numbers)}")
    except RuntimeError as error:
        raise InternalError(f"linking in memory failed: {error}", code="link-failed") from error
    return Linked({name: tracker[name] for name in symbols}, [_immortal(tracker)])


def _immortal(owner: Any) -> Any:
    """Keep an object alive until the process ends, by an extra reference: threads may still run its
    code, and exit() calls into it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    return owner


def _text_of(name: str, data: bytes) -> str:
    try:
        return str(llvm.parse_bitcode(data))
    except RuntimeError as error:
        raise UserError(
            f"artifact {name} is not LLVM bitcode: {error}", code="bad-artifact"
        ) from None


@functools.cache
def _compiler() -> Any:
    """The JIT compiler of this process, which owns the memory of all code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    # Where `one_piece` finds no room, references of our own code have 64 bits at least.
    large = target.name == "x86-64"
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static" if large else "pic",
        codemodel="large" if large else "jitdefault",
        jit=True,
    )
    return _immortal(llvm.create_lljit_compiler(machine))


def _lacking_weak(objects: Sequence[bytes]) -> list[str]:
    """Weak undefined symbols of the objects that neither they nor the process define."""
    symbols = [
        s for data in objects for s in binary_of(memoryview(data), "object").symbols() if s.name
    ]
    defined = {s.name for s in symbols if s.is_defined}
    weak = dict.fromkeys(s.name for s in symbols if s.is_weak and not s.is_defined)
    process = ctypes.CDLL(None)
    return [name for name in weak if name not in defined and not hasattr(process, name)]


def _thread_local_storage() -> int:
    """The address of libgcc's __emutls_get_address, which code with emulated thread-local variables
    calls (link/jit_objects.py)."""
    try:
        function = ctypes.CDLL("libgcc_s.so.1").__emutls_get_address
    except (OSError, AttributeError):
        raise UnsupportedError(
            "llvmjit needs libgcc_s.so.1 for thread-local variables", hint="target llvm"
        ) from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0

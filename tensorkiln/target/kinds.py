"""Target kinds and the schema of their options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One attribute of a kind: `type` is str, int or list (of strings); ints have a range."""

    name: str
    type: type
    doc: str
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of target: the device its code runs on, default keys, its options."""

    name: str
    device: str
    keys: tuple[str, ...]
    options: tuple[Option, ...]
    doc: str


_CPU_OPTIONS: tuple[Option, ...] = (
    Option("mtriple", str, "machine, as arch-vendor-os[-environment]"),
    Option("mcpu", str, "processor, in LLVM's spelling"),
    Option("mattr", list, "features added (+name) to or taken (-name) from the processor's own"),
    Option("l1d_bytes", int, "first-level data cache of one core", 1 << 10, 1 << 30),
    Option("l2_bytes", int, "second-level cache of one core", 1 << 12, 1 << 32),
)

KINDS: dict[str, Kind] = {
    "llvm": Kind("llvm", "cpu", ("cpu",), _CPU_OPTIONS, "native code for a CPU, linked"),
    "llvmjit": Kind("llvmjit", "cpu", ("cpu",), _CPU_OPTIONS, "native code, loaded from memory"),
}

# Other spellings of the fields, and what to say about options that belong elsewhere.
FIELD_ALIASES: dict[str, str] = {"id": "kind", "target_host": "host", "targets": "devices"}
_RUNTIME = "a Target holds only what changes the generated module; "
ELSEWHERE: dict[str, str] = {
    "system_lib": _RUNTIME + "pass system_lib_prefix= to compile()",
    "system_lib_prefix": _RUNTIME + "it is an argument of compile()",
    "lto": _RUNTIME + "link options belong to export_library(fcompile=...)",
    "linker": _RUNTIME + "link options belong to export_library(fcompile=...)",
    "num_threads": _RUNTIME + "threads are chosen when the library runs",
    "runtime": _RUNTIME + "every exported library brings its own runtime",
}

"""Target kinds: the class `Kind` and the table of the built-in ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tensorkiln.base.errors import UserError
from tensorkiln.target import gpus
from tensorkiln.target.cpu import CPU_OPTIONS, canonical_cpu, canonical_one_cpu, known_of_cpu
from tensorkiln.target.hooks import Hooks
from tensorkiln.target.options import Option, Value, Values, unknown_key

FIELDS = (
    "kind",
    "tag",
    "tag_hash",
    "base_tag",
    "keys",
    "libs",
    "target_key",
    "operators",
    "host",
    "devices",
    "attrs",
)
HOST = "host"  # what a pin calls the host: no device has this key, and no kind this name
Canonicalizer = Callable[[Values, str], Values]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of target: the device its code runs on, default keys, its options.

    `canonicalizer(values, where)` brings checked options to one spelling, or raises UserError. It
    must be idempotent. A composite kind has `devices`, and its hooks say how work is divided among
    them. `known(values)` returns values that follow for options that are not given: `Target[name]`
    returns them, but they are not part of the target's JSON. `is_cpu` means that the compiler's own
    code generator is used, for the architectures in `triple.LIBRARIES` or, with `any_machine`, for
    all: the text that it makes is compiled by somebody else. The compiler also generates code for
    an accelerator, whose threads run in blocks and which has memory of its own; operators on
    elements of a type that it `lacks` stay on the host.
    """

    name: str
    device: str
    keys: tuple[str, ...]
    options: tuple[Option, ...]
    doc: str
    canonicalizer: Canonicalizer | None = None
    hooks: Hooks = field(default_factory=Hooks)
    composite: bool = False
    is_cpu: bool = False
    any_machine: bool = False
    is_accelerator: bool = False
    lacks: tuple[str, ...] = ()  # types that elements of its tensors cannot have
    overwrites: bool = True  # whether a kernel may write where it reads another parameter
    known: Callable[[Values], Values] = lambda values: {}

    @property
    def has_codegen(self) -> bool:
        """Whether the compiler or a hook generates code for this kind."""
        return bool(
            self.is_cpu or self.is_accelerator or self.hooks.relax_codegen or self.hooks.tir_codegen
        )

    def values(self, raw: dict[str, object], place: str) -> Values:
        """Return checked and canonical options with defaults, sorted by name. In `raw`, None
        means not given: the option keeps its default. Raises UserError."""
        options = {option.name: option for option in self.options}
        out: Values = {o.name: o.default for o in self.options if o.default is not None}
        for name, value in raw.items():
            if name not in options:
                raise unknown_key(name, self.name, options, FIELDS, place)
            if value is not None:
                out[name] = self._checked(options[name], value, f"{place}.{name}")
        if self.canonicalizer is not None:
            out = self._canonical(out, options, place)
        return dict(sorted(out.items()))

    def _checked(self, option: Option, value: object, place: str) -> Value:
        try:
            return option.check(value, place)
        except UserError as error:
            owner = next((k.name for k in KINDS.values() if _offers(k, option.name, value)), "")
            if error.code != "unknown-value" or not owner:
                raise
            hint = f"a value of kind {owner!r}: write kind {owner!r}"
            raise UserError(error.message, code=error.code, where=place, hint=hint) from None

    def _canonical(self, values: Values, options: dict[str, Option], place: str) -> Values:
        """Run the canonicalizer, and check its result, since it may be a user's function."""
        assert self.canonicalizer is not None
        result: object = self.canonicalizer(dict(values), place)
        if not isinstance(result, dict) or not set(result) <= set(options):
            raise UserError(
                f"the canonicalizer of kind {self.name!r} returned {result!r}, "
                f"expected a dict of {', '.join(options)}",
                code="bad-kind",
                where=place,
            )
        return {name: options[name].check(v, f"{place}.{name}") for name, v in result.items()}


def _offers(kind: Kind, name: str, value: object) -> bool:
    """Whether the kind has an option of that name with `value` among its choices."""
    return any(o.name == name and value in o.choices for o in kind.options)


_GPU = ("gpu",)
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "llvm",
            "cpu",
            ("cpu",),
            CPU_OPTIONS,
            "native code for a CPU, linked",
            canonical_cpu,
            is_cpu=True,
            known=known_of_cpu,
        ),
        Kind(
            "llvmjit",
            "cpu",
            ("cpu",),
            CPU_OPTIONS,
            "native code, loaded from memory",
            canonical_one_cpu,
            is_cpu=True,
            known=known_of_cpu,
        ),
        Kind(
            "c",
            "cpu",
            ("cpu",),
            CPU_OPTIONS,
            "C99 for a compiler of yours",
            canonical_one_cpu,
            is_cpu=True,
            known=known_of_cpu,
            any_machine=True,
        ),
        Kind(
            "cuda",
            "cuda",
            ("cuda", *_GPU),
            gpus.CUDA_OPTIONS,
            "GPUs of NVIDIA",
            gpus.canonical_cuda,
            is_accelerator=True,
            known=gpus.known_of_cuda,
        ),
        Kind(
            "rocm", "rocm", ("rocm", *_GPU), gpus.ROCM_OPTIONS, "GPUs of AMD", gpus.canonical_rocm
        ),
        Kind(
            "opencl",
            "opencl",
            ("opencl", *_GPU),
            gpus.OPENCL_OPTIONS,
            "GPUs through OpenCL",
            is_accelerator=True,
            known=gpus.known_costs,
        ),
        Kind("metal", "metal", ("metal", *_GPU), gpus.METAL_OPTIONS, "GPUs of Apple"),
        Kind("vulkan", "vulkan", ("vulkan", *_GPU), gpus.VULKAN_OPTIONS, "GPUs through Vulkan"),
        Kind(
            "webgpu",
            "webgpu",
            ("webgpu", *_GPU),
            gpus.WEBGPU_OPTIONS,
            "GPUs in a browser",
            is_accelerator=True,
            known=gpus.known_costs,
            lacks=("int64", "uint64", "float64"),
            overwrites=False,
        ),
        Kind("composite", "", (), (), "several targets that share the work", composite=True),
    )
}

# Hints for names that are not kinds, such as an architecture, which is an option of kind llvm.
INSTEAD: dict[str, str] = {
    "wasm": 'write {"kind":"llvm","mtriple":"wasm32-unknown-unknown"}',
    "aarch64": 'write {"kind":"llvm","mtriple":"aarch64-linux-gnu"}',
    "riscv64": 'write {"kind":"llvm","mtriple":"riscv64-linux-gnu"}',
    "x86_64": "write 'x86-64' for kernels for several processors, or 'native'",
    "cpu": "write 'llvm', or 'native' for this machine",
    "gpu": "write 'cuda', 'rocm', 'metal', 'vulkan', 'opencl' or 'webgpu'",
    "nvptx": "write 'cuda'",
    "nvptx64": "write 'cuda'",
    "amdgpu": "write 'rocm'",
    "ext_dev": "register a kind of your own: register_target_kind",
}

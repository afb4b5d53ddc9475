"""Kernels that an earlier compile made, known by what they were made from, without their programs.

If the cache has a kernel, a module holds a `KnownKernel` instead of a PrimFunc: name, parameters
and attributes, but no body. What a kernel is made from is its `KernelKey` in
`IRModule.kernel_keys`, from which cache keys follow; kernels that are scheduled now have one too.
`IRModule.map_bodies` keeps keys: it adds the name of the rewrite, and a known kernel applies the
rewrite once its program is made. Any other change of a kernel ends its key, and so does a rewrite
from outside the package, because what it depends on is unknown.

A program is made, by scheduling again, only where a call says so: `KnownKernel.program` and
`IRModule.with_programs`. Printing and comparing do so, passes from outside the package, instruments
and the hook `tir_codegen`, and `compile` for kernels whose objects the cache lacks.
`IRModule.prim_funcs` are the kernels with bodies, all that checks need to read, since the compile
that stored a kernel has verified it; `IRModule.kernels` are all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.stmt import Param, PrimFunc, TensorProgram

Rewrite = Callable[[PrimFunc], PrimFunc]

_PACKAGE = __name__.split(".")[0]


@dataclass(frozen=True, slots=True)
class KernelKey:
    """Everything that determines a kernel but this compiler's sources.

    `source` is the target and the canonical text of the fused group, which has no names; `names`
    are the names left out of it; `steps` are the qualified names of the rewrites of its body since.
    """

    source: str
    names: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    def then(self, step: str) -> KernelKey:
        """The key of the kernel after one more rewrite."""
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KnownKernel(TensorProgram):
    """A kernel that an earlier compile made and verified: all of its PrimFunc but the body.

    Its key is in `IRModule.kernel_keys`. `program` makes the PrimFunc: it calls `make`, then the
    `rewrites` that passes asked for since. `stack` are the bytes of its local buffers, `features`
    those of the processor that its code was generated for.
    """

    name: str
    params: tuple[Param, ...]
    make: Callable[[], PrimFunc]
    outputs: int = 1
    inplace: tuple[int, ...] = ()
    op_class: str = "loops"
    rewrites: tuple[Rewrite, ...] = ()
    stack: int = 0
    features: frozenset[str] = frozenset()
    public: bool = field(default=False, init=False)
    attrs: Attrs = NO_ATTRS

    def program(self) -> PrimFunc:
        """Make the tensor program, which takes long: a schedule is found for it again."""
        f = self.make()
        for rewrite in self.rewrites:
            f = rewrite(f)
        signature = (self.name, self.outputs, self.inplace, self.op_class)
        assert (f.name, f.outputs, f.inplace, f.op_class) == signature, (
            f"{f.name} is not {signature}"
        )
        return replace(f, attrs=self.attrs) if self.attrs != f.attrs else f

    def then(self, rewrite: Rewrite) -> KnownKernel:
        """The kernel whose program is rewritten by `rewrite` as well, once it is made."""
        return replace(self, rewrites=(*self.rewrites, rewrite))


def step_of(rewrite: Rewrite) -> str:
    """The name of a rewrite in the keys of kernels: empty for a function from outside this package,
    a local one or a lambda. What such a function depends on is unknown, so its results have no key.
    """
    if rewrite.__module__.split(".")[0] != _PACKAGE or "<" in rewrite.__qualname__:
        return ""
    return f"{rewrite.__module__}.{rewrite.__qualname__}"

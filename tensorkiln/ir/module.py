"""IRModule: the named functions of both levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.scripted import Scripted

AnyFunction = Function | PrimFunc


@dataclass(frozen=True, slots=True)
class IRModule(Mapping[str, AnyFunction], Scripted):
    """Functions in a fixed order. A pass makes a new module, or returns the one it was given."""

    functions: tuple[AnyFunction, ...] = ()
    name: str = field(default="model", compare=False)

    def __getitem__(self, name: str) -> AnyFunction:
        for f in self.functions:
            if f.name == name:
                return f
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    @property
    def graphs(self) -> tuple[Function, ...]:
        """Graph functions that a call plan runs: neither fused groups nor outer functions."""
        return tuple(f for f in self.functions if _is_graph(f))  # type: ignore[misc]

    @property
    def outers(self) -> tuple[Function, ...]:
        """Functions that run as host steps."""
        return tuple(f for f in self.functions if isinstance(f, Function) and f.is_outer)

    @property
    def prim_funcs(self) -> tuple[PrimFunc, ...]:
        return tuple(f for f in self.functions if isinstance(f, PrimFunc))

    @property
    def externals(self) -> tuple[Function, ...]:
        """Functions that external code generators compile."""
        return tuple(f for f in self.functions if isinstance(f, Function) and f.external)

    def with_functions(self, functions: tuple[AnyFunction, ...]) -> IRModule:
        return IRModule(functions, self.name)

    def map_graphs(self, rewrite: Callable[[Function], Function]) -> IRModule:
        """Rewrite every function of `graphs`; this very module when none changed."""
        new = tuple(
            rewrite(f) if _is_graph(f) else f  # type: ignore[arg-type]
            for f in self.functions
        )
        same = all(a is b for a, b in zip(new, self.functions, strict=True))
        return self if same else self.with_functions(new)

    def map_prim_funcs(self, rewrite: Callable[[PrimFunc], PrimFunc]) -> IRModule:
        """Rewrite every tensor program; this very module when none changed."""
        new = tuple(rewrite(f) if isinstance(f, PrimFunc) else f for f in self.functions)
        same = all(a is b for a, b in zip(new, self.functions, strict=True))
        return self if same else self.with_functions(new)


def _is_graph(f: AnyFunction) -> bool:
    return isinstance(f, Function) and not f.is_primitive and not f.is_outer

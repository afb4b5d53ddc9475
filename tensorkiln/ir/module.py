"""IRModule: named graph functions and tensor programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tensorkiln.base.text import listed
from tensorkiln.ir.derived import Derived, Rewrite
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.scripted import Scripted

AnyFunction = Function | PrimFunc


@dataclass(frozen=True, slots=True)
class IRModule(Mapping[str, AnyFunction], Scripted):
    """Functions in a fixed order, looked up by name. Immutable: a pass returns a new module, or the
    same object if it changed nothing."""

    functions: tuple[AnyFunction, ...] = ()
    name: str = field(default="model", compare=False)
    _by_name: dict[str, AnyFunction] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The first of two functions of one name wins; the verifier refuses such a module.
        object.__setattr__(self, "_by_name", {f.name: f for f in reversed(self.functions)})

    def __getitem__(self, name: str) -> AnyFunction:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    @property
    def graphs(self) -> tuple[Function, ...]:
        """Graph functions that a call plan runs: no fused groups, no outer functions, and no
        functions that only allocate the storages of a planned one."""
        return tuple(f for f in self.functions if _is_graph(f))  # type: ignore[misc]

    @property
    def unplanned(self) -> tuple[Function, ...]:
        """Graph functions that passes still transform; they leave planned ones alone."""
        return tuple(f for f in self.graphs if not f.is_planned)

    @property
    def outers(self) -> tuple[Function, ...]:
        """Outer functions: graph functions that run as host steps."""
        return tuple(f for f in self.functions if isinstance(f, Function) and f.is_outer)

    @property
    def prim_funcs(self) -> tuple[PrimFunc, ...]:
        """Tensor programs that become kernels: all but the host ones, which the entry file runs."""
        return tuple(f for f in self.functions if isinstance(f, PrimFunc) and not f.is_host)

    @property
    def externals(self) -> tuple[Function, ...]:
        """Functions that external code generators compile."""
        return tuple(f for f in self.functions if isinstance(f, Function) and f.external)

    def with_functions(self, functions: tuple[AnyFunction, ...]) -> IRModule:
        return IRModule(functions, self.name)

    def __repr__(self) -> str:
        """Name and functions; `script()` gives the whole text."""
        return f"<IRModule {self.name!r}: {listed(self, 8)}>"

    def map_graphs(self, rewrite: Callable[[Function], Function]) -> IRModule:
        """Rewrite every function of `unplanned`; return this same object when none changed."""
        todo = {f.name for f in self.unplanned}
        new = tuple(
            rewrite(f) if isinstance(f, Function) and f.name in todo else f for f in self.functions
        )
        same = all(a is b for a, b in zip(new, self.functions, strict=True))
        return self if same else self.with_functions(new)

    def map_bodies(self, rewrite: Rewrite) -> IRModule:
        """`map_prim_funcs` for a `rewrite` that changes only the body and depends on nothing but
        the function. A function whose body is deferred (`Derived`) is rewritten when the body is
        made, so this does not force it."""
        return self.map_prim_funcs(
            lambda f: f.then(rewrite) if isinstance(f, Derived) else rewrite(f)
        )

    def map_prim_funcs(self, rewrite: Rewrite) -> IRModule:
        """Rewrite every tensor program but host ones; return this same object when none changed."""
        new = tuple(
            rewrite(f) if isinstance(f, PrimFunc) and not f.is_host else f for f in self.functions
        )
        same = all(a is b for a, b in zip(new, self.functions, strict=True))
        return self if same else self.with_functions(new)


def _is_graph(f: AnyFunction) -> bool:
    return isinstance(f, Function) and not (f.is_primitive or f.is_outer or f.makes_storages)

"""IRModule: named graph functions and tensor programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tensorkiln.base.origin import ModelSource
from tensorkiln.base.text import listed
from tensorkiln.ir.known_kernel import KernelKey, KnownKernel, Rewrite, step_of
from tensorkiln.ir.plan import Plan
from tensorkiln.ir.plan_form import read_plan
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.scripted import Scripted

AnyKernel = PrimFunc | KnownKernel
AnyFunction = Function | AnyKernel


@dataclass(frozen=True, slots=True)
class IRModule(Mapping[str, AnyFunction], Scripted):
    """Functions in a fixed order, looked up by name. Immutable: a pass returns a new module, or the
    same object if it changed nothing.

    `kernel_keys` has, by name, what kernels were made from, where that is known: a function loses
    its key when it is changed other than by `map_bodies`. `source` is what an importer has read the
    module from; one whose functions were changed has none. `plans` has the plans of graph
    functions that are known; ask `plan` for one.
    """

    functions: tuple[AnyFunction, ...] = ()
    name: str = field(default="model", compare=False)
    kernel_keys: Mapping[str, KernelKey] = field(default_factory=dict, compare=False)
    source: ModelSource | None = field(default=None, compare=False)
    plans: dict[str, Plan] = field(default_factory=dict, compare=False, repr=False)
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

    def plan(self, name: str) -> Plan:
        """The plan of a planned graph function, which is read from its text if no pass has made it.

        Raise Malformed if the text is not that of a plan (`ir/plan_form.py`).
        """
        plan = self.plans.get(name)
        if plan is None or any(self.get(f.name) is not f for f in plan.functions):
            f = self[name]
            assert isinstance(f, Function), name
            plan = self.plans[name] = read_plan(f, self)
        return plan

    @property
    def planned(self) -> tuple[Plan, ...]:
        """The plans of all planned graph functions."""
        return tuple(self.plan(f.name) for f in self.graphs if f.is_planned)

    def nodes(self) -> dict[str, list[str]]:
        """By kernel, the nodes of the model that calls of it compute, in their order."""
        nodes: dict[str, list[str]] = {}
        for call in (c for plan in self.planned for c in plan.calls if c.span):
            nodes.setdefault(call.name, []).append(call.span)
        return nodes

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
        """The kernels whose bodies are there: all of them, unless the cache knew some."""
        return tuple(f for f in self.kernels if isinstance(f, PrimFunc))

    @property
    def kernels(self) -> tuple[AnyKernel, ...]:
        """Tensor programs that are compiled: all but the host ones, which the entry file runs, and
        copies between devices."""
        programs = (f for f in self.functions if not isinstance(f, Function))
        return tuple(f for f in programs if not f.is_host and f.copies is None)

    @property
    def copies(self) -> tuple[PrimFunc, ...]:
        """Tensor programs that stand for copies between devices."""
        return tuple(f for f in self.functions if isinstance(f, PrimFunc) and f.copies is not None)

    @property
    def externals(self) -> tuple[Function, ...]:
        """Functions that external code generators compile."""
        return tuple(f for f in self.functions if isinstance(f, Function) and f.external)

    def with_functions(self, functions: tuple[AnyFunction, ...]) -> IRModule:
        """A module of this name with these functions; those of this module keep their keys."""
        keys = self.kernel_keys
        kernel_keys = {
            f.name: keys[f.name] for f in functions if f.name in keys and self.get(f.name) is f
        }
        return self._with(functions, kernel_keys)

    def _with(self, functions: tuple[AnyFunction, ...], keys: Mapping[str, KernelKey]) -> IRModule:
        """A module of this name with these functions and keys, and the plans of this module."""
        return IRModule(functions, self.name, keys, plans=dict(self.plans))

    def with_programs(self, but: Collection[str] = ()) -> IRModule:
        """This module with the programs of all known kernels made, except of those named in `but`;
        this same object when there are none."""
        new = tuple(
            f.program() if isinstance(f, KnownKernel) and f.name not in but else f
            for f in self.functions
        )
        return self if new == self.functions else self._with(new, self.kernel_keys)

    def __repr__(self) -> str:
        """Name and functions; `script()` gives the whole text."""
        return f"<IRModule {self.name!r}: {listed(self, 8)}>"

    def map_graphs(self, rewrite: Callable[[Function], Function]) -> IRModule:
        """Rewrite every function of `unplanned`; return this same object when none changed."""
        todo = {f.name for f in self.unplanned}
        new = tuple(
            rewrite(f) if isinstance(f, Function) and f.name in todo else f for f in self.functions
        )
        is_unchanged = all(a is b for a, b in zip(new, self.functions, strict=True))
        return self if is_unchanged else self.with_functions(new)

    def map_bodies(self, rewrite: Rewrite) -> IRModule:
        """`map_prim_funcs` for a `rewrite` that changes only the body and depends on nothing but
        the function. Known kernels stay known: they are rewritten when their programs are made. A
        `rewrite` from outside this package ends that (see `step_of`)."""
        step = step_of(rewrite)
        if not step or not self.kernel_keys:
            return self.map_prim_funcs(rewrite)

        def rewritten(f: AnyFunction) -> AnyFunction:
            if isinstance(f, KnownKernel):
                return f.then(rewrite)
            return rewrite(f) if isinstance(f, PrimFunc) and not f.is_host else f

        new = tuple(map(rewritten, self.functions))
        keys = {name: key.then(step) for name, key in self.kernel_keys.items()}
        return self._with(new, keys)

    def map_prim_funcs(self, rewrite: Rewrite) -> IRModule:
        """Rewrite every kernel, of known ones the program; return this same object when none
        changed."""
        mod = self.with_programs()
        new = tuple(
            rewrite(f) if isinstance(f, PrimFunc) and not f.is_host else f for f in mod.functions
        )
        is_unchanged = all(a is b for a, b in zip(new, mod.functions, strict=True))
        return mod if is_unchanged else mod.with_functions(new)


def _is_graph(f: AnyFunction) -> bool:
    return isinstance(f, Function) and not (f.is_primitive or f.is_outer or f.makes_storages)

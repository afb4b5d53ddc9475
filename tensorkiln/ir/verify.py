"""Whether a module is well formed: what every pass may rely on, and must leave true."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.ir.derived import is_pending
from tensorkiln.ir.known_attrs import GRAPH_ATTRS, PROGRAM_ATTRS
from tensorkiln.ir.malformed import Malformed, is_text, listed, require_attrs, require_texts, step
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.planned import storage_sizes
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.type_text import show
from tensorkiln.ir.verify_graph import GraphVerifier
from tensorkiln.ir.verify_planned import check_kernel_calls, check_planned
from tensorkiln.ir.verify_tir import TirVerifier


def verify(mod: IRModule, known: dict[int, object] | None = None, *, places: bool = False) -> None:
    """Raise InternalError with the path of the first thing that is wrong.

    Tensor programs, fused groups and parts of graphs in `known`, by identity, were found right
    before; those found right are added.

    Checked: names are bound before use and once (a loop variable may be bound again beside its
    scope); indices match ranks; dtypes and lanes agree; register buffers are indexed by numbers
    and unrolled loops; called functions exist and take what they are given; types of bindings
    match their values, branches and states of loops each other; a branch and a closure bind
    nothing for what follows them; planned graphs stay within their storages. Types of operator
    calls are the operators' own business. With `places`, as for what people write, no access is
    outside of its buffer for certain; passes may lead through the next dimension.
    """
    seen: set[str] = set()
    if not is_text(mod.name):
        hint = "a name without NUL and without halves of surrogate pairs"
        raise InternalError(f"module name {mod.name!r}", code="malformed-ir", hint=hint)
    known = {} if known is None else known
    # Tensor programs first: what graphs are checked for relies on them.
    for f in sorted(mod.functions, key=lambda f: not isinstance(f, PrimFunc)):
        try:
            with step(f.name if is_text(f.name) else ascii(f.name)):
                if f.name in seen:
                    hint = f"rename one of them; taken are {listed(mod)}"
                    raise Malformed("two functions of this name", hint)
                seen.add(f.name)
                if is_pending(f):
                    continue  # found right when the cache learned of it
                if known.get(id(f)) is f:
                    if isinstance(f, PrimFunc):
                        check_kernel_calls(f, mod)  # what others say of it is not its own
                    continue
                verify_function(f, mod, known, places)
                if isinstance(f, PrimFunc) or f.is_primitive:
                    known[id(f)] = f
        except Malformed as e:
            where = "".join(reversed(e.path))
            raise InternalError(e.message, code="malformed-ir", where=where, hint=e.hint) from None


def verify_function(
    f: AnyFunction, mod: IRModule, known: dict[int, object], places: bool = False
) -> None:
    """Raise Malformed where one function is not well formed; `known`, `places` as in `verify`."""
    require_texts(f.name, tuple(p.name for p in f.params), f.attrs.items_)
    is_program = isinstance(f, PrimFunc)
    require_attrs(PROGRAM_ATTRS if is_program else GRAPH_ATTRS, f.name, f.attrs)
    if isinstance(f, PrimFunc):
        TirVerifier(places).function(f)
        check_kernel_calls(f, mod)
        return
    GraphVerifier(mod, known).function(f)
    if f.is_planned:
        check_planned(f, mod)
    elif f.makes_storages:
        storage_sizes(f)


__all__ = ["show", "verify", "verify_function"]

"""The verifier: the invariants of a module that every pass may rely on and must preserve."""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.ir.array_types import check_array_types
from tensorkiln.ir.checked_arguments import check_checked_arguments
from tensorkiln.ir.known_attrs import GRAPH_ATTRS, PROGRAM_ATTRS
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.malformed import Malformed, is_text, listed, require_attrs, require_texts, step
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.plan_form import made_storages
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.type_text import show
from tensorkiln.ir.verify_device import check_device_function
from tensorkiln.ir.verify_graph import GraphVerifier
from tensorkiln.ir.verify_planned import check_kernel_calls, check_planned, check_recursion
from tensorkiln.ir.verify_tir import TirVerifier


def verify(
    mod: IRModule, verified: dict[int, object] | None = None, *, places: bool = False
) -> None:
    """Raise InternalError (`malformed-ir`) with the path of the first violation.

    `verified` maps the id of a node to the node, for tensor programs, fused groups, constants and
    types that an earlier call found well formed; these are skipped, and new ones are added.

    Checked: names are bound before use and once (a loop variable may be bound again after its scope
    ended); indices match ranks; dtypes and lanes agree; register buffers are indexed by constants
    and variables of unrolled or vectorized loops; called functions exist and take the given
    arguments; no tensor program calls itself; types of bindings match their values, the two
    branches of an If agree, and so do the parameters and the result of a loop body; names bound in
    a branch or closure are not used after it; kernels of planned graphs stay within their storages.
    Type rules of operators are checked in
    `ops/verify.py`. With `places`, as for a module given to `compile`, an access that is certainly
    out of bounds is an error too. Between passes it is not, since passes may index past the end of
    a dimension to reach the next row.
    """
    names: set[str] = set()
    callees: dict[str, tuple[str, ...]] = {}
    if not is_text(mod.name):
        hint = "a name without NUL and without unpaired surrogates"
        raise InternalError(f"module name {mod.name!r}", code="malformed-ir", hint=hint)
    verified = {} if verified is None else verified
    # Tensor programs first: checks of graphs rely on well-formed kernels.
    for f in sorted(mod.functions, key=lambda f: isinstance(f, Function)):
        try:
            with step(f.name if is_text(f.name) else ascii(f.name)):
                if f.name in names:
                    hint = f"rename one of them; taken are {listed(mod)}"
                    raise Malformed("two functions of this name", hint)
                names.add(f.name)
                if isinstance(f, KnownKernel):
                    continue  # verified by the compile that made it
                if verified.get(id(f)) is f:
                    if isinstance(f, PrimFunc):  # its callees may have changed
                        callees[f.name] = check_kernel_calls(f, mod)
                    continue
                callees[f.name] = verify_function(f, mod, verified, places)
                if isinstance(f, PrimFunc) or f.is_primitive:
                    verified[id(f)] = f
        except Malformed as e:
            raise _error(e) from None
    try:
        check_recursion(callees)
    except Malformed as e:
        raise _error(e) from None


def _error(e: Malformed) -> InternalError:
    path = "".join(reversed(e.path))
    return InternalError(e.message, code="malformed-ir", where=path, hint=e.hint)


def verify_function(
    f: Function | PrimFunc, mod: IRModule, verified: dict[int, object], places: bool = False
) -> tuple[str, ...]:
    """Raise Malformed if `f` is not well formed; `verified` and `places` are those of `verify`.
    Return the names of the functions that a tensor program calls."""
    require_texts(f.name, tuple(p.name for p in f.params), f.attrs.items_)
    is_program = isinstance(f, PrimFunc)
    require_attrs(PROGRAM_ATTRS if is_program else GRAPH_ATTRS, f.name, f.attrs)
    if isinstance(f, PrimFunc):
        TirVerifier(places).function(f)
        if f.is_device:
            check_device_function(f)
        return check_kernel_calls(f, mod)
    GraphVerifier(mod, verified).function(f)
    check_array_types(f)
    check_checked_arguments(f)
    if f.is_planned:
        check_planned(f, mod)
    elif f.makes_storages:
        made_storages(f)
    return ()


__all__ = ["show", "verify", "verify_function"]

"""The outer functions of a module as C for entry.c, and their metadata. An outer function is one
that a call plan cannot express: it has control flow, data-dependent sizes, closures or strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorkiln.artifact.metadata import FunctionInfo, KeptInfo, ParamInfo
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.text import heading
from tensorkiln.codegen.host.call_plan import (
    graph_host_function,
    implied_sizes,
    tensor_host_function,
)
from tensorkiln.codegen.host.function import OuterCode, PublicOuter
from tensorkiln.codegen.host.weights import WeightArena
from tensorkiln.codegen.outer.calls import emit_call
from tensorkiln.codegen.outer.function import OuterLibrary, OuterWriter, called_name
from tensorkiln.codegen.outer.scope import type_sizes
from tensorkiln.codegen.outer.types import type_text
from tensorkiln.ir.expr import Var
from tensorkiln.ir.kept import kept_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import AnyTensorType, Function, PrimType, TensorType, Type
from tensorkiln.ir.text.printer import printed_names
from tensorkiln.ir.visit import free_vars

# Functions of kiln.h that work on values; libraries with an outer function export them.
OUTER_EXPORTS: tuple[str, ...] = (
    "kiln_call_value",
    "kiln_executor_invoke",
    "kiln_items_of",
    "kiln_live_objects",
    "kiln_make_function",
    "kiln_make_shape",
    "kiln_make_string",
    "kiln_make_tensor",
    "kiln_make_tuple",
    "kiln_register_function",
    "kiln_release",
    "kiln_retain",
    "kiln_set_last_error",
    "kiln_shape_of",
    "kiln_string_of",
    "kiln_take_dlpack",
    "kiln_tensor_of",
)


def outer_code(mod: IRModule, arena: WeightArena) -> OuterCode | None:
    """C for all outer functions of a module, whose constants are placed in `arena`; None if it has
    no outer functions."""
    outers = mod.outers
    if not outers:
        return None
    library = OuterLibrary(mod, arena, emit_call)
    library.names.update(c_name(f.name) for f in outers)
    for f in outers:
        library.spelled.update(printed_names(f))
        OuterWriter(library, f, c_name(f.name)).function()
    helpers = [graph_host_function(f, mod, arena) for f in mod.graphs if f.is_private]
    helpers += [
        tensor_host_function(f, called_name(f), mod, implied_sizes(f))
        for f in library.prim_funcs.values()
        if not f.public or implied_sizes(f)
    ]
    public_functions = [f for f in outers if not f.is_private]
    text = "\n".join(
        [
            heading("outer functions"),
            *library.tables.lines(),
            "",
            *(_declaration(d) for d in library.descriptors),
            "\n" + "\n".join(library.texts),
            *library.descriptors,
            "",
            _table(outers),
        ]
    )
    entries = (f"__tvm_ffi_{f.name}" for f in public_functions)
    return OuterCode(
        text,
        tuple(_info(f, library.spelled) for f in public_functions),
        (*OUTER_EXPORTS, *entries),
        tuple(helpers),
        len(outers),
        tuple(PublicOuter(f.name, outers.index(f)) for f in public_functions),
    )


def _declaration(descriptor: str) -> str:
    """Forward declarations, since outer functions may call each other in any order."""
    name = descriptor.split(" ")[3].removeprefix("outer_")
    return (
        f"static const kiln_outer outer_{name};\n"
        f"static int body_{name}(const kiln_value *, const kiln_value *, kiln_value *);"
    )


def _table(outers: tuple[Function, ...]) -> str:
    rows = "\n".join(f"    &outer_{c_name(f.name)}," for f in outers)
    return f"static const struct kiln_outer *const outers[] = {{\n{rows}\n}};\n"


def _info(f: Function, spelled: Mapping[object, str]) -> FunctionInfo:
    names = [str(n) for n in f.attrs.get("input_names") or [spelled[p] for p in f.params]]
    dim_names = {**spelled, **dict(f.attrs.get("dim_names", ()))}
    symbols: dict[Var, str] = {}
    inputs = [_param(n, p.type, symbols, dim_names) for n, p in zip(names, f.params, strict=True)]
    result = _param("result", f.result.type, symbols, dim_names)
    kept_outputs = tuple(KeptInfo(k.output, k.kernel, k.names) for k in kept_of(f.attrs))
    return FunctionInfo(
        f.name, "outer", tuple(inputs), (replace(result, role="out"),), kept=kept_outputs
    )


def _param(
    name: str, t: Type, symbols: dict[Var, str], dim_names: Mapping[object, str]
) -> ParamInfo:
    """`dtype` is the element type of a tensor or a number, else the type in words."""
    for d in type_sizes(t):
        symbols.update((v, dim_names[v]) for v in free_vars(d))
    if isinstance(t, TensorType):
        dims = [type_text(TensorType((d,), t.dtype), symbols) for d in t.shape]
        texts = [d.partition("[")[2][:-1] for d in dims]
        return ParamInfo(name, t.dtype.name, tuple(int(d) if d.isdigit() else d for d in texts))
    if isinstance(t, AnyTensorType | PrimType) and t.dtype is not None:
        return ParamInfo(name, t.dtype.name, None)
    return ParamInfo(name, type_text(t, symbols), None)


__all__ = ["OUTER_EXPORTS", "outer_code"]

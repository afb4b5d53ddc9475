"""The host entry file `entry.c`: plain C99 that ties kernels, weights and runtime together.

It is meant to be read: a table per function that says what may be passed, and a call plan with one
line per kernel, each naming the node of the model it came from. It compiles against headers of the
runtime only: crt.h, and outer.h and loader.h if the library needs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorkiln.artifact.metadata import Metadata
from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.codegen.c_text.function import CFunction, ffi_entry
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.size_locals import DECLARATION, checked, measured
from tensorkiln.codegen.c_text.sizes import Formula, Size, symbols_in
from tensorkiln.codegen.c_text.text import comment, heading, quote, wrap
from tensorkiln.codegen.c_text.types import entry_member, entry_value
from tensorkiln.codegen.host.devices import NO_DEVICES, HostDevices
from tensorkiln.codegen.host.function import (
    USUAL_PARAMS,
    HostFunction,
    OuterCode,
    Param,
    Ptr,
    check,
    computed_sizes,
)
from tensorkiln.codegen.host.header import entry_parameters
from tensorkiln.codegen.host.run_c import measured_sizes, prototypes, run_text, symbol_lines

_ROLES = {"in": "KILN_IN", "out": "KILN_OUT", "inout": "KILN_INOUT", "scalar": "KILN_SCALAR"}


def exported_symbols(
    functions: Sequence[HostFunction], *, prefix: str, outer: OuterCode | None = None
) -> tuple[str, ...]:
    """Symbols that the entry file makes visible, sorted (the runtime adds its own `kiln_*`)."""
    names = [f"{prefix}_{name}" for _, name, _, _ in _COMMON]
    for function in functions:
        names += [f"__tvm_ffi_{function.info.name}", f"{prefix}_{function.info.name}"]
    return tuple(sorted([*names, *(outer.exports if outer else ())]))


def entry_c(
    functions: Sequence[HostFunction],
    metadata: Metadata,
    *,
    outer: OuterCode | None = None,
    imports: bool = False,
    devices: HostDevices = NO_DEVICES,
    device_text: str = "",
    flushes: bool = False,
    level: Level | None = None,
    features: Sequence[str] | None = None,
) -> str:
    """The text of entry.c, for a library of these `functions` and those of `outer`; of one with
    several levels, the tables of `level`, whose code needs `features`; `levels_c` is entry.c.

    `metadata.cpu_features` are those that the processor must have, by LLVM's names
    (crt/cpu_features.h); names of plain C entries start with `metadata.prefix`. `imports` says that
    the library carries artifacts for loaders, `flushes` that denormal numbers are 0 in its runs.
    Raises UserError (code `bad-name`) for a prefix that is not a C identifier and for two entries
    of one name; errors of `check` for functions that cannot be expressed.
    """
    _check_names(functions, metadata.prefix, metadata.weights_bytes)
    helpers = outer.helpers if outer else ()
    prefix = "" if level else metadata.prefix
    subject = f" on a processor {level.name}" if level else ""
    title = f"the functions of this library, and the kernels each one calls{subject}"
    public = outer.public if outer and not level else ()
    entries = [f.entry(f"&outer_{f.c_name}") for f in public]
    parts = [
        _head(metadata, title, [*functions, *helpers], outer, flushes, level, devices)
        + ('#include "loader.h"\n' if imports else ""),
        f"{_METADATA_DECLARATION}{_weights(metadata)}" if level else _data(metadata),
        prototypes([*functions, *helpers]),
        device_text,
        *(_function(function, prefix, devices) for function in functions),
        *(_function(function, "", devices) for function in helpers),
        outer.text if outer else "",
        *entries,
        _tables_of_library(functions, metadata, outer, imports, devices, level, features),
        "" if level else _common(metadata.prefix),
    ]
    return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Level:
    """One of the `count` processors that a library has kernels for, by LLVM's name."""

    name: str
    count: int

    @property
    def c_name(self) -> str:
        """`x86_64_v3`."""
        return c_name(self.name)

    @property
    def tables(self) -> str:
        """The C name of its kiln_library."""
        return f"kiln_library_{self.c_name}"


def levels_c(
    functions: Sequence[HostFunction],
    metadata: Metadata,
    levels: Sequence[Level],
    *,
    outer: OuterCode | None = None,
    flushes: bool = False,
) -> str:
    """The text of entry.c of a library with several levels: its entries, which take functions from
    the tables of the level that was chosen. `functions` and `outer` are those of any level."""
    helpers = outer.helpers if outer else ()
    externs = "\n".join(f"extern const kiln_library {level.tables};" for level in levels)
    rows = wrap("    ", [f"&{level.tables}" for level in levels], "")
    title = "the functions of this library, which has kernels for several processors"
    tables = f"""{heading("levels", 93)}
/* One of these is chosen before the first call, by the features of the processor. */
{externs}
const kiln_library *const kiln_levels[KILN_LEVELS] = {{
{rows}
}};
const kiln_library *kiln_level;
"""
    parts = [
        _head(metadata, title, [*functions, *helpers], outer, flushes, levels[0], NO_DEVICES),
        _data(metadata, "kiln_metadata_text", weights=False),
        tables,
        *(
            _entries(function, metadata.prefix, f"kiln_this_library.functions[{i}]")
            for i, function in enumerate(functions)
        ),
        *(
            f.entry(f"kiln_this_library.outers[{f.number}]")
            for f in (outer.public if outer else ())
        ),
        _common(metadata.prefix),
    ]
    return "\n".join(parts)


_METADATA_DECLARATION = "extern const char kiln_metadata_text[];\n"


def _head(
    metadata: Metadata,
    title: str,
    functions: Sequence[HostFunction],
    outer: OuterCode | None,
    flushes: bool,
    level: Level | None,
    devices: HostDevices,
) -> str:
    """A comment, the definitions that headers of the runtime look at, and the headers."""
    return (
        f"/* {metadata.library}: {title}.\n"
        " * Generated by Tensorkiln; see crt.h for the tables and kiln.h for the host's side. */\n"
        + _params_text(functions)
        + ("#define KILN_FLUSHES_DENORMALS 1\n" if flushes else "")
        + (f"#define KILN_LEVELS {level.count}\n" if level else "")
        + ('#include "device.h"\n' if devices.kinds else "")
        + f'#include "{"outer.h" if outer else "crt.h"}"\n'
    )


def _params_text(functions: Sequence[HostFunction]) -> str:
    """The definition of KILN_MAX_PARAMS for functions that have more than the usual number, which
    the link gives to the runtime too (`runtime_defines` in link/shared.py)."""
    count = max((len(f.params) for f in functions), default=0)
    if count <= USUAL_PARAMS:
        return ""
    return f"#define KILN_MAX_PARAMS {-(-count // USUAL_PARAMS) * USUAL_PARAMS}\n"


def _check_names(functions: Sequence[HostFunction], prefix: str, weights_size: int) -> None:
    if c_name(prefix) != prefix:
        raise UserError(f"prefix {prefix!r}: expected a C identifier", code="bad-name")
    symbols: set[str] = {f"{prefix}_{name}" for _, name, _, _ in _COMMON}
    for function in functions:
        check(function)
        name = f"{prefix}_{function.info.name}"
        if name in symbols:
            raise UserError(f"two entries of the library would be called {name!r}", code="bad-name")
        symbols.add(name)
        pointers = [a for call in function.calls for a in call.args if isinstance(a, Ptr)]
        if not weights_size and any(pointer.base == "weights" for pointer in pointers):
            raise InternalError(f"{function.info.name} reads weights, but there are none")


def _json_lines(value: object, lead: str = "", indent: int = 0) -> list[str]:
    """Lines of JSON: a value that fits is on one line, a longer one has one line per member."""
    pad, text = " " * indent, json.dumps(value)
    if indent + len(lead) + len(text) <= 80 or not isinstance(value, dict | list):
        return [f"{pad}{lead}{text}"]
    if isinstance(value, dict):
        members = [_json_lines(v, f"{json.dumps(k)}: ", indent + 1) for k, v in value.items()]
    else:
        members = [_json_lines(v, "", indent + 1) for v in value]
    for member in members[:-1]:
        member[-1] += ","
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return [f"{pad}{lead}{opening}", *(line for m in members for line in m), f"{pad}{closing}"]


def _data(metadata: Metadata, name: str = "", weights: bool = True) -> str:
    """The metadata, as a variable of this file without a `name`, and a declaration of the
    weights."""
    lines = _json_lines(metadata.to_json())
    body = "\n".join(f"    {quote(line)}" for line in lines)
    declaration = f"extern const char {name}[];\nconst char {name}[]" if name else ""
    out = (
        f"{heading('data', 93)}\n"
        "/* Readable without loading the library: objcopy -O binary --only-section=.kiln.meta */\n"
        "#if defined(__GNUC__)\n"
        '#pragma GCC diagnostic ignored "-Woverlength-strings"\n'
        '__attribute__((section(".kiln.meta"), used))\n'
        "#endif\n"
        f"{declaration or 'static const char metadata[]'} =\n{body};\n"
    )
    return out + (_weights(metadata) if weights else "")


def _weights(metadata: Metadata) -> str:
    size = metadata.weights_bytes
    if not size:
        return ""
    return (
        f"\n/* {size} bytes, 64-byte aligned, in the order they are read. */\n"
        "extern char *const kiln_weights;\n"
    )


def _function(function: HostFunction, prefix: str, devices: HostDevices) -> str:
    tensors = [p.info for p in function.params if p.dims is not None]
    shapes = ", ".join(f"{t.name} {t.dtype} {t.shape_text}" for t in tensors)
    parts = [
        heading(function.info.name),
        f"/* {comment(shapes)} */",
        *_tables(function),
        *_size_functions(function),
        run_text(function),
        _descriptor(function, devices),
    ]
    if prefix:  # only outer functions call a function without a prefix: it has no entries
        parts.append(_entries(function, prefix, f"&function_{function.info.name}"))
    return "\n".join(parts)


def _tables(function: HostFunction) -> Iterator[str]:
    computed = computed_sizes(function)
    name = function.info.name
    for i, param in enumerate(function.params):
        if param.dims:
            dims = ", ".join(_dim(function, dim, computed) for dim in param.dims)
            yield f"static const int64_t dims_{name}_{i}[] = {{{dims}}};"
    if function.params:
        rows = ",\n".join(f"    {_row(function, i, p)}" for i, p in enumerate(function.params))
        yield f"static const kiln_param params_{name}[] = {{\n{rows},\n}};"
    if function.symbols:
        names = ", ".join(map(quote, function.symbols.values()))
        minima = ", ".join(str(function.least(s)) for s in function.symbols)
        yield f"static const char *const symbols_{name}[] = {{{names}}};"
        yield f"static const int64_t symbol_min_{name}[] = {{{minima}}};"
    yield ""


def _dim(function: HostFunction, dim: Size, computed: list[Formula]) -> str:
    if isinstance(dim, str):
        return f"KILN_SYMBOL({list(function.symbols).index(dim[2:])})"
    return f"KILN_COMPUTED({computed.index(dim)})" if isinstance(dim, Formula) else str(dim)


def _row(function: HostFunction, index: int, param: Param) -> str:
    info, row = param.info, PARAMETER_TYPES[param.info.dtype]
    kind = _ROLES[info.role]
    if param.dims is None:
        return f'{{{quote(info.name)}, "", NULL, {row.c_dtype}, {kind}, 0, 1}}'
    align = max(param.align, row.argument.size(1))
    dims = f"dims_{function.info.name}_{index}" if param.dims else "NULL"
    text = f"{{{quote(info.name)}, {quote(info.shape_text)}, {dims}, "
    device = f", {info.device}" if info.device else ""
    return text + f"{row.c_dtype}, {kind}, {len(param.dims)}, {align}{device}}}"


def _size_functions(function: HostFunction) -> Iterator[str]:
    computed = computed_sizes(function)
    name = function.info.name
    if computed:
        sizes = [(f"size[{i}]", formula) for i, formula in enumerate(computed)]
        body = symbol_lines(function.symbols, computed, "symbol")
        body += measured_sizes(function, sizes, "KILN_ERROR_RANGE")
        head = f"static int computed_{name}(const int64_t *symbol, int64_t *size)"
        yield CFunction(head, body).definition
    yield from _requirements(function)
    size = function.workspace_bytes
    body = symbol_lines(function.symbols, [size], "symbol") or ["    (void)symbol;"]
    if isinstance(size, int):
        body += [f"    *bytes = {size};", "    return KILN_OK;"]
    else:
        body += measured_sizes(function, [("*bytes", size)], "KILN_ERROR_MEMORY")
    head = f"static int workspace_{name}(const int64_t *symbol, int64_t *bytes)"
    yield CFunction(head, body).definition


def _requirements(function: HostFunction) -> Iterator[str]:
    """Yield the C function that checks `function.requires`, with an error message for each
    condition; nothing if there are none."""
    if not function.requires:
        return
    texts = [condition.holds for condition in function.requires]
    name = function.info.name
    body = [*symbol_lines(function.symbols, texts, "symbol"), DECLARATION, "    int64_t holds;"]
    for condition in function.requires:
        names = list(dict.fromkeys(symbols_in(condition.holds)))
        sizes = ", ".join(f"{_literal(function.symbols[n])} is %lld" for n in names)
        words = f"{name}: {sizes}; expected {_literal(condition.sentence)}"
        values = [f"(long long)s_{n}" for n in names]
        head = "        return kiln_fail("
        body += [
            measured("holds", checked(condition.holds), condition.sentence),
            "    if (large.what != NULL)",
            f"        return kiln_fits(KILN_ERROR_RANGE, {quote(name)}, &large);",
            "    if (!holds)",
            wrap(head, ["KILN_ERROR_CONDITION", quote(words), *values], ");"),
        ]
    body.append("    return KILN_OK;")
    yield CFunction(f"static int requires_{name}(const int64_t *symbol)", body).definition


def _literal(text: str) -> str:
    """`text` escaped for a format string of printf."""
    return text.replace("%", "%%")


def _descriptor(function: HostFunction, devices: HostDevices) -> str:
    name, symbols = function.info.name, bool(function.symbols)
    kind = "KILN_GRAPH" if function.info.kind == "graph" else "KILN_TENSOR_FUNCTION"
    fields = [
        f"{quote(name)}, {kind}, {len(function.params)}, {len(function.info.inputs)}, "
        f"{len(function.symbols)}",
        f"params_{name}" if function.params else "NULL",
        f"symbols_{name}, symbol_min_{name}" if symbols else "NULL, NULL",
        "NULL",
        f"requires_{name}" if function.requires else "NULL",
        f"NULL, run_{name}",
        f"computed_{name}" if computed_sizes(function) else "NULL",
        f"workspace_{name}",
    ]
    if devices.kinds:
        bits = sum(1 << devices.number(key) for key in function.devices)
        fields.append(f"{bits}u, {f'device_workspace_{name}' if bits else 'NULL'}")
    body = ",\n".join(f"    {field}" for field in fields)
    return f"static const kiln_function function_{name} = {{\n{body},\n}};\n"


def _entries(function: HostFunction, prefix: str, pointer: str) -> str:
    """The tvm-ffi entry and the plain C entry; `pointer` is a kiln_function's in C."""
    name = function.info.name
    params = entry_parameters(function)
    c_names = [p.name for p in params]
    symbols = [n for n, p in zip(c_names, params, strict=True) if p.kind == "symbol"]
    entry_args = [(n, p.kind) for n, p in zip(c_names, params, strict=True) if p.kind != "symbol"]
    data = ", ".join("NULL" if k == "scalar" else f"(void *)(uintptr_t){n}" for n, k in entry_args)
    lines: list[str] = []
    symbol_arg = data_arg = scalar_arg = "NULL"
    if symbols:
        lines.append(f"    const int64_t symbol[] = {{{', '.join(symbols)}}};")
        symbol_arg = "symbol"
    if entry_args:
        lines.append(wrap("    void *const data[] = {", data.split(", "), "};"))
        data_arg = "data"
    if any(kind == "scalar" for _, kind in entry_args):
        lines.append(f"    kiln_scalar scalar[{len(entry_args)}] = {{{{0}}}};")
        for i, (param_name, kind) in enumerate(entry_args):
            if kind == "scalar":
                dtype = function.params[i].info.dtype
                value = entry_value(dtype, param_name)
                lines.append(f"    scalar[{i}].{entry_member(dtype)} = {value};")
        scalar_arg = "scalar"
    arguments = f"{pointer}, {symbol_arg}, {data_arg}, {scalar_arg}"
    body = [*lines, f"    return kiln_call_plain({arguments});"]
    declarations = [p.declaration for p in params]
    plain = CFunction.of("KILN_API int", f"{prefix}_{name}", declarations, body)
    return f"{ffi_entry(name, f'kiln_ffi_call({pointer}')}\n{plain.exported}"


# What every library has: result, name, parameters, statement.
_COMMON: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("const char *", "last_error", (), "return kiln_last_error();"),
    ("void", "set_num_threads", ("int threads",), "kiln_set_num_threads(threads);"),
    ("int", "get_num_threads", (), "return kiln_get_num_threads();"),
)


def _common(prefix: str) -> str:
    return "\n".join(
        CFunction.of(f"KILN_API {result}", f"{prefix}_{name}", parameters, [f"    {body}"]).exported
        for result, name, parameters, body in _COMMON
    )


def _tables_of_library(
    functions: Sequence[HostFunction],
    metadata: Metadata,
    outer: OuterCode | None,
    imports: bool,
    devices: HostDevices,
    level: Level | None,
    features: Sequence[str] | None,
) -> str:
    features = metadata.cpu_features if features is None else features
    weights_size = metadata.weights_bytes
    names = "\n".join(f"    &function_{function.info.name}," for function in functions)
    feature_list = wrap(
        "static const char *const cpu_features[] = {", [quote(f) for f in features], ""
    )
    table = f"static const kiln_function *const functions[] = {{\n{names}\n}};" if names else ""
    pointer = "functions" if names else "NULL"
    weights = "&kiln_weights" if weights_size else "NULL"
    outers = f"{outer.count}, outers" if outer else "0, NULL"
    called = "kiln_call_any_import" if imports or devices.kinds else "NULL"
    table_of_devices = f" {len(devices.kinds)}, devices," if devices.kinds else ""
    declared, tables, text, named = "", "kiln_this_library", "metadata", ""
    if level:
        tables, text, named = level.tables, "kiln_metadata_text", f" {quote(level.name)},"
        declared = f"extern const kiln_library {tables};\n"
    return f"""{heading("the library", 93)}
{feature_list}{", " if features else ""}NULL}};
{table}
{declared}const kiln_library {tables} = {{
    {quote(metadata.library)}, {text}, cpu_features, {len(functions)}, {pointer},
    {weights}, {weights_size}, {outers}, {called},{table_of_devices}{named}
}};
"""

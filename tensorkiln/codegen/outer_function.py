"""One outer function as C: a frame of owned values, one step per binding, one way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.codegen.call_plan import WeightArena, implied_sizes
from tensorkiln.codegen.host_function import c_name
from tensorkiln.codegen.host_header import comment, quote
from tensorkiln.codegen.outer_scope import captured_symbols, captured_values, last_uses
from tensorkiln.codegen.outer_text import Tables, c_dtype, is_unknown, type_dims
from tensorkiln.codegen.size_text import c_expression
from tensorkiln.ir.expr import Expr, FloatImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Body,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ObjectType,
    PrimType,
    PrimValue,
    RVar,
    ShapeType,
    ShapeValue,
    StringType,
    StringValue,
    TensorType,
    Tuple,
    TupleItem,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import free_vars

_SMALL = PrimType | ShapeType | StringType  # types of values that are not worth giving back early


@dataclass(slots=True)
class OuterLibrary:
    """What the outer functions of one module share. `prim_funcs` are those that they call."""

    mod: IRModule
    arena: WeightArena
    emit_call: Callable[[OuterWriter, RVar, Call, str], None]
    tables: Tables = field(default_factory=Tables)
    prim_funcs: dict[str, PrimFunc] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    descriptors: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    spelled: dict[RVar, str] = field(default_factory=dict)  # names as they are printed

    def fresh(self, name: str) -> str:
        """A C name for a function, not taken yet."""
        base, k = c_name(name), 1
        name = base
        while name in self.names:
            k += 1
            name = f"{base}_{k}"
        self.names.add(name)
        return name


def called_name(f: PrimFunc) -> str:
    """What the table is called that outer functions call a tensor program by: its own, or that of
    its public entry where that takes the same parameters."""
    return f"call_{f.name}" if f.public and implied_sizes(f) else f.name


class OuterWriter:
    """Writes the C of one function, and before it that of the functions made inside."""

    def __init__(self, library: OuterLibrary, f: Function, c: str):
        self.library, self.f, self.c = library, f, c
        self.lines: list[str] = []
        self._slots: dict[str, None] = {}
        self._slot_sizes: dict[str, int] = {}
        self._values: dict[RVar, str] = {}
        self.symbols: dict[Var, str] = {}
        self._known: set[Var] = set()
        self._indent = "    "
        self.where = ""  # the binding that steps are for
        self.dim_names = dict(f.attrs.get("dim_names", ()))

    # ---- names -------------------------------------------------------------------------------

    def slot(self, name: str, count: int = 0) -> str:
        """A new owned value in the frame (or an array of them); its C text."""
        unique = base = c_name(name)
        k = 0
        while unique in self._slots:
            k += 1
            unique = f"{base}_{k}"
        self._slots[unique] = None
        self._slot_sizes[unique] = count
        return f"v.{unique}"

    def _symbol(self, v: Var) -> str:
        if v not in self.symbols:
            name = base = c_name(v.name)
            k = 0  # counted as the printer does: C made from the text again is the same
            while name in self.symbols.values():
                k += 1
                name = f"{base}_{k}"
            self.symbols[v] = name
        return self.symbols[v]

    def size(self, e: Expr) -> str:
        """C text of a size or number over dimensions that have values here."""
        for v in free_vars(e):
            if v not in self._known:
                raise InternalError(
                    f"{self.f.name}: {self.where}: dimension {v.name} has no value here",
                    code="unbound-dimension",
                )
        return c_expression(e, self.symbols)

    def name(self, var: RVar) -> str:
        """What a value is called in the text of its function."""
        return self.library.spelled.get(var, var.name)

    # ---- lines -------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line at the present depth."""
        self.lines.append(self._indent + text if text else "")

    def step(self, call: str) -> None:
        """A call that may fail."""
        self.line(f"KILN_TRY({quote(self.where)}, {call});")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines between braces."""
        self.line(f"{head} {{".lstrip())
        self._indent += "    "
        yield
        self._indent = self._indent[4:]
        self.line("}")

    # ---- values ------------------------------------------------------------------------------

    def operand(self, v: Value) -> str:
        """C text of a kiln_value; makes what does not exist yet in a slot of the frame."""
        match v:
            case RVar():
                if v not in self._values:
                    raise InternalError(f"{self.f.name}: {v.name} is not bound here")
                return self._values[v]
            case PrimValue(value):
                return self._number(value)
            case Constant():
                return self._constant(v)
            case GlobalRef(name):
                return self._made(self.reference(name))
            case StringValue(text):
                count = len(text.encode())
                return self._made(f"kiln_make_string({quote(text)}, {count}, &%s)")
            case ShapeValue(values):
                sizes = ", ".join(self.size(e) for e in values)
                array = f"(const int64_t[]){{{sizes}}}" if values else "NULL"
                return self._made(f"kiln_make_shape({array}, {len(values)}, &%s)")
            case Tuple(fields):
                return self._made(f"kiln_make_tuple({self.array(fields)}, {len(fields)}, &%s)")

    def _made(self, call: str) -> str:
        slot = self.slot("t")
        self.step(call.replace("&%s", f"&{slot}"))
        return slot

    def _number(self, e: Expr) -> str:
        if isinstance(e, FloatImm):
            text = repr(e.value).replace("inf", "__builtin_inf()").replace("nan", "__builtin_nan()")
            return f"kiln_real({text})"
        if not e.dtype.is_int and e.dtype.name != "bool":
            raise UnsupportedError(f"{self.f.name}: a computed number of {e.dtype.name}")
        return f"kiln_{'bool' if e.dtype.name == 'bool' else 'int'}({self.size(e)})"

    def _constant(self, c: Constant) -> str:
        at = self.library.arena.place(c.array)
        shape = self.library.tables.constant_shape(c)
        fields = f"{{kiln_weights + {at}, 1, 0, {c.array.ndim}, {c_dtype(c.type.dtype)}"
        return f"kiln_view(&(kiln_tensor){fields}, {shape}, NULL, 0}})"

    def owned(self, v: Value) -> str:
        """As `operand`, in a slot: what may be written to, or kept, by others."""
        text = self.operand(v)
        return self._made(f"kiln_take({self.pointer(v)}, &%s)") if text[:5] == "kiln_" else text

    def pointer(self, v: Value) -> str:
        """C text of a pointer to a value."""
        text = self.operand(v)
        return f"(const kiln_value[]){{{text}}}" if text.startswith("kiln_") else f"&{text}"

    def array(self, values: Sequence[Value]) -> str:
        """C text of an array of values; they stay owned where they are."""
        if not values:
            return "NULL"
        return f"(const kiln_value[]){{{', '.join([self.operand(v) for v in values])}}}"

    def reference(self, name: str) -> str:
        """The call that makes a function of the module a value."""
        f = self.library.mod[name]
        if isinstance(f, Function) and f.is_outer:
            return f"kiln_make_closure(&outer_{c_name(name)}, NULL, 0, &%s)"
        if isinstance(f, PrimFunc):
            self.library.prim_funcs[name] = f
            name = called_name(f)
        as_tuple = isinstance(f, Function) and isinstance(f.result, Tuple)
        return f"kiln_make_native(&function_{name}, {int(as_tuple)}, &%s)"

    # ---- bindings ----------------------------------------------------------------------------

    def body(self, body: Body) -> None:
        """The bindings of a branch."""
        for b in body.bindings:
            self.binding(b.var, b.value)

    def binding(self, var: RVar, value: Bound) -> None:
        """The steps that give a variable its value."""
        self.where = self.name(var)
        out = self.slot(self.where)
        match value:
            case Call():
                self.library.emit_call(self, var, value, out)
            case If():
                self._if(value, out)
            case Lambda(function):
                self._lambda(var, function, out)
            case TupleItem(v, index):
                self.step(f"kiln_item({self.pointer(v)}, {index}, &{out})")
            case MatchCast(v, t):
                self.step(f"kiln_take({self.pointer(v)}, &{out})")
                self.match(out, t, f"the value of {self.where}")
            case _:
                self.step(f"kiln_take({self.pointer(value)}, &{out})")
        self._values[var] = out

    def _if(self, value: If, out: str) -> None:
        where, known = self.where, set(self._known)
        self.line("{")
        self._indent += "    "
        self.line("int truth;")
        self.step(f"kiln_truth({self.pointer(value.cond)}, &truth)")
        for head, branch in (("if (truth)", value.then), ("else", value.orelse)):
            with self.block(head):
                self.body(branch)
                self.where = where
                self.step(f"kiln_take({self.pointer(branch.result)}, &{out})")
            self._known = set(known)
        self._indent = self._indent[4:]
        self.line("}")

    def _lambda(self, var: RVar, f: Function, out: str) -> None:
        values, symbols = captured_values(f), captured_symbols(f, self._known)
        c = self.library.fresh(f"{self.c}__{f.name or self.where}")
        OuterWriter(self.library, f, c).function(values, symbols)
        texts = [self.operand(v) for v in values]
        texts += [f"kiln_int(s_{self.symbols[s]})" for s in symbols]
        array = f"(const kiln_value[]){{{', '.join(texts)}}}" if texts else "NULL"
        self.step(f"kiln_make_closure(&outer_{c}, {array}, {len(texts)}, &{out})")

    # ---- types -------------------------------------------------------------------------------

    def unknown(self, t: Type) -> bool:
        """Whether a type brings in a dimension that has no value here yet."""
        dims = [d for d in type_dims(t) if not is_unknown(d)]
        return any(v not in self._known for d in dims for v in free_vars(d))

    def match(self, slot: str, t: Type, what: str) -> None:
        """Check a value against a type, and give new dimensions their values."""
        self._match_round(slot, t, what)
        self._check_sizes(slot, t, what)

    def _name_sizes(self, slot: str, names: tuple[Expr, ...], what: str) -> None:
        """Numbers of a shape that have names give them their values, or have them already."""
        with self.block(""):
            self.line("int count = 0;")
            self.line(f"const int64_t *d = kiln_shape_of(&{slot}, &count);")
            for i, v in enumerate(names):
                assert isinstance(v, Var), v
                if v not in self._known:
                    self.line(f"s_{self._symbol(v)} = d[{i}];")
                    self._known.add(v)
                    continue
                text = f"{self.f.name}: {what} has %lld for {self.shown(v)}, expected %lld"
                values = f"(long long)d[{i}], (long long)s_{self._symbol(v)}"
                fail = f"kiln_fail(KILN_ERROR_SHAPE, {quote(text)}, {values})"
                self.step(f"d[{i}] == s_{self._symbol(v)} ? KILN_OK : {fail}")

    def _match_round(self, slot: str, t: Type, what: str) -> None:
        dims = type_dims(t)
        for v in {v: None for d in dims if not is_unknown(d) for v in free_vars(d)}:
            self._symbol(v)
        if isinstance(t, ObjectType):
            return
        table = self.library.tables.type(t, {v: self.shown(v) for v in self.symbols})
        tail = f"{quote(self.f.name)}, {quote(what)})"
        if not dims:
            self.step(f"kiln_match(&{slot}, &{table}, NULL, {tail}")
            if isinstance(t, ShapeType) and t.values:
                self._name_sizes(slot, t.values, what)
            return
        with self.block(""):
            sizes = ", ".join(self._known_size(d) for d in dims)
            self.line(f"int64_t d[] = {{{sizes}}};")
            self.step(f"kiln_match(&{slot}, &{table}, d, {tail}")
            for i, d in enumerate(dims):
                if isinstance(d, Var) and not is_unknown(d) and d not in self._known:
                    self.line(f"s_{self.symbols[d]} = d[{i}];")
                    self._known.add(d)

    def _known_size(self, d: Expr) -> str:
        return "-1" if any(v not in self._known for v in free_vars(d)) else self.size(d)

    def _check_sizes(self, slot: str, t: Type, what: str) -> None:
        """The second look: sizes that depend on dimensions of the same type, or on later ones."""
        dims = type_dims(t)
        asked = [d for d in dims if not is_unknown(d) and free_vars(d)]
        if len(asked) == len(set(asked)) and all(isinstance(d, Var) for d in asked):
            return
        table = self.library.tables.type(t, {v: self.shown(v) for v in self.symbols})
        sizes = ", ".join("-1" if is_unknown(d) else self.size(d) for d in dims)
        array = f"(int64_t[]){{{sizes}}}"
        tail = f"{quote(self.f.name)}, {quote(what)})"
        self.step(f"kiln_match(&{slot}, &{table}, {array}, {tail}")

    def shown(self, v: Var) -> str:
        """What the model calls a dimension."""
        return str(self.dim_names.get(v.name, self.symbols.get(v, v.name)))

    def new_tensor(self, t: TensorType, out: str) -> None:
        """Memory for a tensor of a known type."""
        shape = [self.size(d) for d in t.physical_shape]
        array = f"(const int64_t[]){{{', '.join(shape)}}}" if shape else "NULL"
        dtype = f"(kiln_dtype){c_dtype(t.dtype)}"
        self.step(f"kiln_make_tensor({array}, {len(shape)}, {dtype}, &{out})")

    def _summary(self, var: RVar, value: Bound) -> str:
        """One line on a binding, for its comment."""
        name, short = self.name(var), self._short
        match value:
            case Call(callee, args, _, span):
                what = callee if isinstance(callee, str) else short(callee)
                tail = f"    {span}" if span else ""
                return f"{name} = {what}({', '.join(map(short, args))}){tail}"
            case If(cond):
                return f"{name} = ... if {short(cond)} else ..."
            case Lambda(function):
                return f"{name} = a function ({', '.join(map(short, function.params))})"
            case TupleItem(v, index):
                return f"{name} = {short(v)}[{index}]"
            case MatchCast(v, _):
                return f"{name} = {short(v)}, checked"
            case _:
                return f"{name} = {short(value)}"

    def _short(self, v: Value) -> str:
        if isinstance(v, Tuple):
            return f"({', '.join(map(self._short, v.fields))})"
        if isinstance(v, RVar):
            return self.name(v)
        return v.name if isinstance(v, GlobalRef) else type(v).__name__

    # ---- the function ------------------------------------------------------------------------

    def function(self, values: Sequence[RVar] = (), symbols: Sequence[Var] = ()) -> None:
        """Add the C of the whole function to the library."""
        f = self.f
        for i, var in enumerate(values):
            self._values[var] = f"captured[{i}]"
        for i, s in enumerate(symbols):
            self.line(f"s_{self._symbol(s)} = captured[{len(values) + i}].as.integer;")
            self._known.add(s)
        names = f.attrs.get("input_names") or list(map(self.name, f.params))
        slots = []
        for i, p in enumerate(f.params):
            self.where = self.name(p)
            slots.append(self.slot(self.where))
            self._values[p] = slots[i]
            self.step(f"kiln_take(&args[{i}], &{slots[i]})")
            self._match_round(slots[i], p.type, f"argument '{names[i]}'")
        for i, p in enumerate(f.params):
            self.where = self.name(p)
            self._check_sizes(slots[i], p.type, f"argument '{names[i]}'")
        for b, dead in zip(f.bindings, last_uses(f), strict=True):
            self.line("")
            self.line(f"/* {comment(self._summary(b.var, b.value))} */")
            before = len(self._slots)
            self.binding(b.var, b.value)
            if b is not f.bindings[-1]:
                self._release(before, dead)
        self.line("")
        self.where = "its result"
        self.step(f"kiln_take({self.pointer(f.result)}, result)")
        self._finish(len(f.params))

    def _release(self, before: int, dead: Sequence[RVar]) -> None:
        """Give back early what holds memory and is not used again: variables, and what the last
        binding made for itself (slots from number `before` on, its own variable's first)."""
        slots = [self._values[v] for v in dead if not isinstance(v.type, _SMALL)]
        slots += [f"v.{s}" for s in list(self._slots)[before + 1 :] if not self._slot_sizes[s]]
        for slot in dict.fromkeys(slots):
            self.line(f"kiln_release(&{slot});")

    def _finish(self, n_params: int) -> None:
        name = quote(self.f.name)
        frame = "".join(
            f"        kiln_value {s}{f'[{n}]' if (n := self._slot_sizes[s]) else ''};\n"
            for s in self._slots
        )
        text = "\n".join(self.lines)
        declared = [
            f"    int64_t s_{s} = -1;\n"
            for s in self.symbols.values()
            if re.search(rf"\bs_{s}\b(?! = )", text)
        ]
        dropped = [s for s in self.symbols.values() if f"    int64_t s_{s} = -1;\n" not in declared]
        for s in dropped:
            text = re.sub(rf"^ *s_{s} = .*;\n?", "", text, flags=re.M)
        title = f"/* ---- {comment(self.f.name)} "
        self.library.texts.append(
            f"{title}{'-' * max(4, 94 - len(title))} */\n\n"
            f"static int body_{self.c}(const kiln_value *captured, const kiln_value *args,\n"
            f"{' ' * (len(self.c) + 17)}kiln_value *result)\n{{\n"
            f"    struct {{\n{frame or '        kiln_value none;' + chr(10)}    }} v;\n"
            f"{''.join(declared)}"
            f'    const char *at = "";\n'
            f"    int code = kiln_enter({name}, (kiln_value *)&v, sizeof v);\n"
            f"    (void)captured;\n    (void)args;\n"
            f"    if (code != KILN_OK)\n        goto end;\n{text}\n"
            f"end:\n"
            f"    return kiln_leave({name}, at, code, (kiln_value *)&v, sizeof v);\n}}\n"
        )
        self.library.descriptors.append(
            f"static const kiln_outer outer_{self.c} = {{{name}, {n_params}, body_{self.c}}};"
        )


__all__ = ["OuterLibrary", "OuterWriter"]

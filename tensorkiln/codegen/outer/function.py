"""One outer function as C: a frame of owned values, the steps of each binding, a single exit that
releases the frame."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.codegen.c_text.literals import integer_literal, real_literal
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.sizes import condition_text
from tensorkiln.codegen.c_text.text import comment, quote
from tensorkiln.codegen.host.call_plan import implied_sizes
from tensorkiln.codegen.outer.frame import Frame, OuterLibrary
from tensorkiln.codegen.outer.scope import captured_symbols, captured_values, last_uses
from tensorkiln.codegen.outer.types import c_dtype, is_unknown, type_dims
from tensorkiln.ir.conditions import SizeCondition, conditions_of
from tensorkiln.ir.expr import Expr, FloatImm, IntImm, Var
from tensorkiln.ir.module import AnyKernel
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
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.visit import free_vars

_SMALL = PrimType | ShapeType | StringType  # types of values that are too small to release early


def called_name(f: AnyKernel) -> str:
    """The name N of the table `function_N` by which outer functions call a tensor program. A public
    program has a table for its entry, which outer functions share, unless it has implied sizes:
    outer functions do not pass these, so they use a table `call_<name>` without them."""
    if not f.public:
        return f.name
    return f"call_{f.name}" if implied_sizes(f) else f.public_name


class OuterWriter(Frame):
    """Writes the C of one outer function, after that of the closures created in it."""

    def __init__(self, library: OuterLibrary, f: Function, c: str):
        super().__init__(library, f, c)
        self._values: dict[RVar, str] = {}

    # ---- values ------------------------------------------------------------------------------

    def operand(self, v: Value) -> str:
        """C text of a kiln_value. Strings, shapes, tuples and references to functions are created
        first, in a new slot of the frame."""
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
                return self._made(f"kiln_make_string({quote(text)}, {count}")
            case ShapeValue(values):
                sizes = ", ".join(self.size(e) for e in values)
                array = f"(const int64_t[]){{{sizes}}}" if values else "NULL"
                return self._made(f"kiln_make_shape({array}, {len(values)}")
            case Tuple(fields):
                return self._made(f"kiln_make_tuple({self.array(fields)}, {len(fields)}")

    def _made(self, call: str) -> str:
        """Emit `call`, which lacks its last argument and closing parenthesis, with the address of a
        new slot as that argument; return the slot."""
        slot = self.slot("t")
        self.step(f"{call}, &{slot})")
        return slot

    def _number(self, e: Expr) -> str:
        if isinstance(e, FloatImm):
            return f"kiln_real({real_literal(e.value)})"
        if isinstance(e, IntImm) and e.value >= 1 << 63:
            return f"kiln_unsigned({integer_literal(e.value)})"
        if not e.dtype.is_int and not e.dtype.is_bool:
            raise UnsupportedError(f"{self.f.name}: a computed number of {e.dtype.name}")
        return f"kiln_{'bool' if e.dtype.name == 'bool' else 'int'}({self.size(e)})"

    def _constant(self, c: Constant) -> str:
        offset = self.library.arena.place_constant(c)
        shape = self.library.tables.constant_shape(c)
        fields = f"{{kiln_weights + {offset}, 1, 0, {c.data.ndim}, {c_dtype(c.type.dtype)}"
        return f"kiln_view(&(kiln_tensor){fields}, {shape}, NULL, 0}})"

    def owned(self, v: Value) -> str:
        """As `operand`, but always a slot with a reference of its own, which a callee may write to
        or keep: a constant, which is a view of the weights, is copied."""
        text = self.operand(v)
        return self._made(f"kiln_take({self.pointer(v)}") if text[:5] == "kiln_" else text

    def pointer(self, v: Value) -> str:
        """C text of a pointer to a value."""
        text = self.operand(v)
        return f"(const kiln_value[]){{{text}}}" if text.startswith("kiln_") else f"&{text}"

    def array(self, values: Sequence[Value]) -> str:
        """C text of an array of values, without new references to them."""
        if not values:
            return "NULL"
        return f"(const kiln_value[]){{{', '.join([self.operand(v) for v in values])}}}"

    def reference(self, name: str) -> str:
        """A call, as `_made` takes it, that creates a value of a function of the module."""
        f = self.library.mod[name]
        if isinstance(f, Function) and f.is_outer:
            return f"kiln_make_closure(&outer_{c_name(name)}, NULL, 0"
        if isinstance(f, TensorProgram):
            self.library.prim_funcs[name] = f
            name = called_name(f)
        as_tuple = isinstance(f, Function) and isinstance(f.result, Tuple)
        return f"kiln_make_native(&function_{name}, {int(as_tuple)}"

    # ---- bindings ----------------------------------------------------------------------------

    def body(self, body: Body) -> None:
        """Emit the bindings of a branch."""
        for b in body.bindings:
            self.binding(b.var, b.value)

    def binding(self, var: RVar, value: Bound) -> None:
        """Emit the steps that give a variable its value."""
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
        place, symbols = self.where, set(self.known)
        self.line("{")
        self._indent += "    "
        self.line("int truth;")
        self.step(f"kiln_truth({self.pointer(value.cond)}, &truth)")
        for head, branch in (("if (truth)", value.then), ("else", value.orelse)):
            with self.block(head):
                self.body(branch)
                self.where = place
                self.step(f"kiln_take({self.pointer(branch.result)}, &{out})")
            self.known = set(symbols)
        self._indent = self._indent[4:]
        self.line("}")

    def _lambda(self, var: RVar, f: Function, out: str) -> None:
        values, symbols = captured_values(f), captured_symbols(f, self.known)
        c = self.library.fresh(f"{self.c}__{f.name or self.where}")
        OuterWriter(self.library, f, c).function(values, symbols)
        texts = [self.operand(v) for v in values]
        texts += [f"kiln_int(s_{self.symbols[s]})" for s in symbols]
        array = f"(const kiln_value[]){{{', '.join(texts)}}}" if texts else "NULL"
        self.step(f"kiln_make_closure(&outer_{c}, {array}, {len(texts)}, &{out})")

    # ---- types -------------------------------------------------------------------------------

    def unknown(self, t: Type) -> bool:
        """Whether a type has a dimension without a value at this point."""
        dims = [d for d in type_dims(t) if not is_unknown(d)]
        return any(v not in self.known for d in dims for v in free_vars(d))

    def match(self, slot: str, t: Type, subject: str) -> None:
        """Emit the check of a value against a type, which gives new dimensions their values."""
        self._match_round(slot, t, subject)
        self._check_sizes(slot, t, subject)

    def _name_sizes(self, slot: str, names: tuple[Expr, ...], subject: str) -> None:
        """Bind the dimensions `names` to the numbers of the shape value in `slot`; a dimension that
        has a value already must be equal to its number."""
        with self.block(""):
            self.line("int count = 0;")
            self.line(f"const int64_t *d = kiln_shape_of(&{slot}, &count);")
            for i, v in enumerate(names):
                assert isinstance(v, Var), v
                if v not in self.known:
                    self.line(f"s_{self.symbol(v)} = d[{i}];")
                    self.known.add(v)
                    continue
                text = f"{self.f.name}: {subject} has %lld for {self.shown(v)}, expected %lld"
                values = f"(long long)d[{i}], (long long)s_{self.symbol(v)}"
                fail = f"kiln_fail(KILN_ERROR_SHAPE, {quote(text)}, {values})"
                self.step(f"d[{i}] == s_{self.symbol(v)} ? KILN_OK : {fail}")

    def _name_number(self, slot: str, name: Var, subject: str) -> None:
        """Bind the symbol `name` to the number in `slot`, which is one of integers."""
        number = f"{slot}.as.integer"
        if name not in self.known:
            self.line(f"s_{self.symbol(name)} = {number};")
            self.known.add(name)
            return
        text = f"{self.f.name}: {subject} is %lld, expected %lld"
        values = f"(long long){number}, (long long)s_{self.symbol(name)}"
        fail = f"kiln_fail(KILN_ERROR_SHAPE, {quote(text)}, {values})"
        self.step(f"{number} == s_{self.symbol(name)} ? KILN_OK : {fail}")

    def _match_round(self, slot: str, t: Type, subject: str) -> None:
        dims = type_dims(t)
        for v in {v: None for d in dims if not is_unknown(d) for v in free_vars(d)}:
            self.symbol(v)
        if isinstance(t, ObjectType):
            return
        table = self.library.tables.type(t, {v: self.shown(v) for v in self.symbols})
        tail = f"{quote(self.f.name)}, {quote(subject)})"
        if not dims:
            self.step(f"kiln_match(&{slot}, &{table}, NULL, {tail}")
            if isinstance(t, ShapeType) and t.values:
                self._name_sizes(slot, t.values, subject)
            if isinstance(t, PrimType) and t.value is not None:
                self._name_number(slot, t.value, subject)
            return
        with self.block(""):
            sizes = ", ".join(self._known_size(d) for d in dims)
            self.line(f"int64_t d[] = {{{sizes}}};")
            self.step(f"kiln_match(&{slot}, &{table}, d, {tail}")
            for i, d in enumerate(dims):
                if isinstance(d, Var) and not is_unknown(d) and d not in self.known:
                    self.line(f"s_{self.symbols[d]} = d[{i}];")
                    self.known.add(d)

    def _known_size(self, d: Expr) -> str:
        return "-1" if any(v not in self.known for v in free_vars(d)) else self.size(d)

    def _check_sizes(self, slot: str, t: Type, subject: str) -> None:
        """Emit a second check, for sizes that are expressions or repeat a dimension, such as
        `n + 1` before or after `n`: all dimensions have their values by now. Nothing is emitted if
        each size is a different dimension."""
        dims = type_dims(t)
        dependent_dims = [d for d in dims if not is_unknown(d) and free_vars(d)]
        if len(dependent_dims) == len(set(dependent_dims)) and all(
            isinstance(d, Var) for d in dependent_dims
        ):
            return
        table = self.library.tables.type(t, {v: self.shown(v) for v in self.symbols})
        sizes = ", ".join("-1" if is_unknown(d) else self.size(d) for d in dims)
        array = f"(int64_t[]){{{sizes}}}"
        tail = f"{quote(self.f.name)}, {quote(subject)})"
        self.step(f"kiln_match(&{slot}, &{table}, {array}, {tail}")

    def new_tensor(self, t: TensorType, out: str) -> None:
        """Emit the allocation of a tensor of physical shape `t.physical_shape` into slot `out`."""
        shape = [self.size(d) for d in t.physical_shape]
        array = f"(const int64_t[]){{{', '.join(shape)}}}" if shape else "NULL"
        dtype = f"(kiln_dtype){c_dtype(t.dtype)}"
        self.step(f"kiln_make_tensor({array}, {len(shape)}, {dtype}, &{out})")

    # ---- the function ------------------------------------------------------------------------

    def function(self, values: Sequence[RVar] = (), symbols: Sequence[Var] = ()) -> None:
        """Add the C of the whole function to the library. As a closure it captures `values` and
        `symbols`, in this order."""
        f = self.f
        for i, var in enumerate(values):
            self._values[var] = f"captured[{i}]"
        for i, s in enumerate(symbols):
            self.line(f"s_{self.symbol(s)} = captured[{len(values) + i}].as.integer;")
            self.known.add(s)
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
        for condition in conditions_of(f):
            self._require(condition)
        for b, dead in zip(f.bindings, last_uses(f), strict=True):
            self.line("")
            self.line(f"/* {comment(self.summary(b.var, b.value))} */")
            before = len(self.slots)
            self.binding(b.var, b.value)
            if b is not f.bindings[-1]:
                self._release(before, dead)
        self.line("")
        self.where = "its result"
        self.step(f"kiln_take({self.pointer(f.result)}, result)")
        self.finish(len(f.params))

    def _require(self, condition: SizeCondition) -> None:
        """Emit the check of a condition on the sizes of arguments."""
        model_names = {v: self.shown(v) for v in free_vars(condition.holds)}
        sizes = ", ".join(f"{name} is %lld" for name in model_names.values())
        words = f"{self.f.name}: {sizes}; expected {condition_text(condition, model_names)}"
        values = ", ".join(f"(long long)s_{self.symbol(v)}" for v in model_names)
        fail = f"kiln_fail(KILN_ERROR_CONDITION, {quote(words)}, {values})"
        self.step(f"{self.size(condition.holds)} ? KILN_OK : {fail}")

    def _release(self, before: int, dead: Sequence[RVar]) -> None:
        """Release memory before the function ends: the variables `dead`, which are not used again,
        and the temporaries of the last binding (its slots from number `before` on, of which the
        first is its variable)."""
        slots = [self._values[v] for v in dead if not isinstance(v.type, _SMALL)]
        slots += [f"v.{s}" for s in list(self.slots)[before + 1 :] if not self.slot_sizes[s]]
        for slot in dict.fromkeys(slots):
            self.line(f"kiln_release(&{slot});")


__all__ = ["OuterLibrary", "OuterWriter"]

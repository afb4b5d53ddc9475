"""The text of one kernel while it is written: functions, blocks, names, helpers.

The files beside this one print the nodes of a tensor program, each a function of the writer and the
node, in a table by class of node at the end of their file. A value is the text of an expression.
Subexpressions that occur more than once become constants of the block first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorkiln.arith.tame import Tame
from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.base.text import unused
from tensorkiln.codegen.c_like.dialect import Dialect
from tensorkiln.codegen.c_like.sharing import Sharing
from tensorkiln.codegen.c_like.words import Words
from tensorkiln.codegen.c_text.names import c_name, is_of_headers
from tensorkiln.codegen.expand.only_read import only_read
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    Select,
    Shuffle,
    Unary,
    Var,
)
from tensorkiln.ir.operators import BINARY
from tensorkiln.ir.stmt import PrimFunc, Stmt
from tensorkiln.ir.text.printer import printed_names
from tensorkiln.ir.visit import walk
from tensorkiln.target import Target
from tensorkiln.target.isa import word_bits

Expressions = Mapping[type[Expr], Callable[["TextWriter", Any], str]]
Statements = Mapping[type[Stmt], Callable[["TextWriter", Any], None]]

_INDENT = "    "
_LONG = 240  # a longer text becomes a constant, where that does not part a product from its sum
_NUMBERED = re.compile(r"_\d+$")
# The part of a name that types, and functions for them, have.
_HELPER = re.compile(r"(^|_)(i|u|f|bf)(8|16|32|64)(x\d+)?(_|$)|^call_")
# Names of constants for subexpressions, and their declarations.
_CONSTANT = re.compile(r"\bt\d+\b")
_DECLARED = re.compile(r"\s*(?:const \w+|let) (t\d+) = ")
_OF_VECTORS = re.compile(r"(i|u|f)\d+x\d+|oddx\d+")
_LEAVES = (Var, IntImm, FloatImm)


@dataclass(slots=True)
class FunctionText:
    """The state of the function that is being written."""

    names: dict[Buffer | Var, str] = field(default_factory=dict)
    masks: dict[Var, int] = field(
        default_factory=dict
    )  # bits per lane of variables of bool vectors
    bytes: set[Var] = field(default_factory=set)  # parameters that are a bool in a byte
    registers: dict[Buffer, dict[tuple[tuple[int, ...], int], str]] = field(default_factory=dict)
    homes: dict[Buffer, int] = field(default_factory=dict)  # the block that declares its variables
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    blocks: list[list[str]] = field(default_factory=lambda: [[]])  # names that each open block gave
    names_in_use: set[str] = field(default_factory=set)  # all of those
    constants: int = 0
    failure: str | None = None  # in the body of a parallel loop: where a message goes
    in_parallel: bool = False
    in_threads: bool = False  # in one of several nests of loops over the threads of a block


@dataclass(slots=True)
class FileText:
    """The text that the kernels of one file share: types, functions that they call,
    declarations."""

    target: Target
    dialect: Dialect
    reserved: frozenset[str]  # names that variables may not have
    kernels: frozenset[str]
    types: dict[str, str] = field(default_factory=dict)  # declarations of vector types, by name
    helpers: dict[str, str] = field(default_factory=dict)  # by name, callees first
    externs: dict[str, str] = field(default_factory=dict)  # functions that are elsewhere
    headers: set[str] = field(default_factory=set)
    bodies: set[str] = field(default_factory=set)  # functions of parallel loops


class TextWriter:
    """Writes one PrimFunc and the bodies of its parallel loops as functions of a C-like language.

    `original` is the program that `func` was made from by unrolling: names are those of its text.
    """

    def __init__(
        self,
        func: PrimFunc,
        original: PrimFunc,
        file: FileText,
        expressions: Expressions,
        statements: Statements,
    ):
        self.func, self.file = func, file
        self.target, self.dialect = file.target, file.dialect
        self._expressions, self._statements = expressions, statements
        self.state = FunctionText()
        self.functions: list[str] = []  # the bodies of parallel loops
        self.shared: list[str] = []  # declarations of buffers that the threads of a block share
        shapes = [x for b in func.buffers for d in b.shape for x in walk(d)]
        self._printed = printed_names(original)
        self.sizes = {x for x in shapes if isinstance(x, Var)}
        self.tame = Tame([v for v in func.scalars if v not in self.sizes])
        bits = file.dialect.word_bits or word_bits(file.target.arch)
        self.words = Words(bits, file.dialect.only_words)
        self.read_only = only_read(func)
        self.natural: set[Var] = set(self.sizes)  # variables that are never negative
        self._sharing: Sharing | None = None
        self._made: dict[int, str] = {}

    # ---- nodes -------------------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """The text of `e`. Where it is an outermost expression, what it shares is declared here."""
        if self._sharing is not None:
            return self._value(e, self._sharing)
        self._sharing, self._made = Sharing(e), {}
        try:
            return self._value(e, self._sharing)
        finally:
            self._sharing = None

    def _value(self, e: Expr, sharing: Sharing) -> str:
        number = sharing.number(e)
        shared_text = self._made.get(number)
        if shared_text is not None:
            return shared_text
        emit = self._expressions.get(type(e))
        if emit is None:
            raise InternalError(f"{self.func.name}: cannot print expression {type(e).__name__}")
        text = emit(self, e)
        if isinstance(e, CallExtern):
            self._made.clear()  # what a C function wrote is read again
            return text
        once = not sharing.is_shared(number) or isinstance(e, (*_LEAVES, Ramp))
        once = once or (isinstance(e, Broadcast) and isinstance(e.a, _LEAVES))
        product = isinstance(e, Binary) and e.op == "mul"
        if sharing.in_order:
            once = isinstance(e, _LEAVES) or not isinstance(e, Load)
        if not once or (len(text) > _LONG and not product):
            text = self._made[number] = self.constant(text, e)
        return text

    def constant(self, text: str, e: Expr, name: str = "") -> str:
        """Declare a constant with the value `text` of `e`; return its name, by default a fresh
        one."""
        name = self.name(name) if name else self.fresh()
        self.declare(self.type_of(e), name, text)
        return name

    def declare(self, t: str, name: str, text: str) -> None:
        """A line that declares a constant of type `t`."""
        self.line(self.dialect.constant.format(type=t, name=name, x=text))

    def statement(self, s: Stmt) -> None:
        """Print a statement."""
        emit = self._statements.get(type(s))
        if emit is None:
            raise InternalError(f"{self.func.name}: cannot print {type(s).__name__}")
        emit(self, s)

    # ---- types -------------------------------------------------------------------------------

    def type_of(self, e: Expr) -> str:
        """The type of a value."""
        if e.dtype.is_bool and e.dtype.lanes > 1:
            return self.mask_type(self.mask_bits(e), e.dtype.lanes)
        return self.type(e.dtype)

    def type(self, dtype: DType) -> str:
        """The type of values of `dtype`, which is not a vector of bool; vectors get declared."""
        if not self.dialect.has(dtype):
            message = f"it computes in {dtype.element}, which the language lacks"
            raise UnsupportedError(message, where=self.func.name)
        if dtype.lanes == 1:
            return self.dialect.scalar(dtype)
        count = 1 << (dtype.lanes - 1).bit_length()
        element = self.dialect.scalar(dtype.element)
        lane = dtype.row.stored.short
        name = self.dialect.vector_name.format(lane=lane, element=element, count=count)
        if 0 < self.dialect.most_lanes < count:
            raise UnsupportedError(
                f"a vector of {dtype.lanes} {dtype.element} is wider than the language has",
                where=self.func.name,
                hint=f"vectorize loops of at most {self.dialect.most_lanes} iterations",
            )
        if self.dialect.vector_declaration and name not in self.file.types:
            size = count * dtype.bytes
            self.file.types[name] = self.dialect.vector_declaration.format(
                type=name, element=element, count=count, bytes=size
            )
        return name

    def memory_type(self, dtype: DType) -> None:
        """The type, declared if need be, that vectors of `dtype` have in memory."""
        t = self.type(dtype)
        element, size = self.dialect.scalar(dtype.element), self.count(dtype) * dtype.bytes
        text = self.dialect.memory_declaration.format(
            type=t, element=element, bytes=size, align=dtype.bytes
        )
        if not text:
            return
        self.file.types.setdefault(f"{t}_in_memory", text)

    def pointer_to(self, buf: Buffer) -> str:
        """The type of a pointer to the elements of a buffer: `const float *`."""
        const = "const " if buf in self.read_only else ""
        space = self.dialect.spaces.get(buf.scope, "")
        return f"{space}{const}{self.dialect.element(buf.dtype)} *"

    def count(self, dtype: DType) -> int:
        """How many lanes the vector of a language has for `dtype`: a power of two."""
        return 1 << (dtype.lanes - 1).bit_length()

    def mask_type(self, bits: int, lanes: int) -> str:
        """The type of a vector of conditions: integers that are 0 or -1."""
        return self.type(DType(f"int{bits}", lanes))

    def mask_bits(self, e: Expr) -> int:
        """The bits per lane of a vector of conditions: those of the operands of a comparison."""
        match e:
            case Var():
                return self.state.masks.get(e, 8)
            case Binary(op, a, _) if BINARY[op][1] and op not in ("and", "or"):
                return self.compared_bits(a)
            case Binary(_, a, _) | Unary(_, a) | Select(_, a, _) | Shuffle(a, _, _):
                return self.mask_bits(a)
            case Cast(a, _) | Intrin(_, (a,)):
                return self.compared_bits(a)
        return 8

    def compared_bits(self, e: Expr) -> int:
        """The bits per lane of a comparison of operands like `e`."""
        if e.dtype.is_bool:
            return self.mask_bits(e)
        return 32 if e.dtype.is_half else e.dtype.bits

    # ---- functions, blocks, lines, names -----------------------------------------------------

    def helper(self, name: str, make: Callable[[], str]) -> str:
        """The name of a function whose text `make` writes; it is written once per file."""
        if name not in self.file.helpers:
            if name in self.file.kernels:
                raise UnsupportedError(
                    f"{name!r} is a function that its C calls, and the name of a kernel",
                    where=name,
                    hint=f"my_{name}",
                )
            text = make()
            self.file.helpers[name] = text
        return name

    def function_of(self, name: str) -> str:
        """The beginning of the definition of a helper."""
        vectors = _OF_VECTORS.search(name) is not None
        return self.dialect.vector_function if vectors else self.dialect.function

    def definition(self, name: str, result: str, parameters: Sequence[tuple[str, str]]) -> str:
        """The head of a helper: `parameters` are types and names."""
        params = ", ".join(self.dialect.parameter.format(type=t, name=p) for t, p in parameters)
        return self.dialect.definition.format(
            how=self.function_of(name), result=result, name=name, parameters=params
        )

    @contextmanager
    def function(self) -> Iterator[FunctionText]:
        """Write a function: the body is what the context prints into the state that it gets."""
        saved = self.state, self._sharing, self._made
        self.state, self._sharing = FunctionText(), None
        yield self.state
        self.state, self._sharing, self._made = saved

    def body(self) -> str:
        """The lines of the current function, without declarations of constants that are not
        used."""
        lines = self.state.lines
        while True:
            count = Counter(word for line in lines for word in _CONSTANT.findall(line))
            live_lines = [x for x in lines if not (d := _DECLARED.match(x)) or count[d[1]] > 1]
            if len(live_lines) == len(lines):
                return "\n".join(lines)
            lines = live_lines

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """`head {`, what the context prints, and `tail`."""
        self.line(f"{head} {{" if head else "{")
        with self.inner():
            yield
        self.line(tail)

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A deeper indentation; names that are given inside are free again afterwards."""
        self.state.depth += 1
        self.state.blocks.append([])
        yield
        self.state.names_in_use.difference_update(self.state.blocks.pop())
        self.state.depth -= 1

    def line(self, text: str) -> None:
        """Add a line at the indentation of the innermost block."""
        self.state.lines.append(self.indented(text))

    def indented(self, text: str) -> str:
        """A line at the indentation of the innermost block."""
        return _INDENT * self.state.depth + text

    def is_used(self, name: str, start: int) -> bool:
        """Whether the lines of this function from `start` on mention a name."""
        word = re.compile(rf"\b{name}\b")
        return any(word.search(line) for line in self.state.lines[start:])

    def is_read(self, name: str, start: int) -> bool:
        """Whether these lines mention a variable or array other than to assign to it."""
        # An index may compare: `a[x != 0] = 1` only assigns.
        assigned = re.compile(rf"^\s*{name}(\[.*?\])? = ")
        word = re.compile(rf"\b{name}\b")
        return any(word.search(assigned.sub("", x, 1)) for x in self.state.lines[start:])

    def name_of(self, p: Buffer | Var, block: int = -1) -> str:
        """A name for a variable or buffer: its name in the program's text. A copy that unrolling
        made gets the name of the original, without the number that distinguished it."""
        return self.name(self.printed(p), block)

    def printed(self, p: Buffer | Var) -> str:
        """The name of a variable or buffer in the program's text, without the number that
        distinguishes copies."""
        return self._printed.get(p) or _NUMBERED.sub("", p.name)

    def fresh(self) -> str:
        """A name for a constant: t1, t2, ..."""
        self.state.constants += 1
        return self.name(f"t{self.state.constants}")

    def name(self, stem: str, block: int = -1) -> str:
        """A name that no open block has: `stem`, or `stem` with a number. It is free again at
        the end of the innermost open block, or of `block`."""
        st = self.state
        stem = c_name(stem).lstrip("_") or "v"
        is_taken = stem in self.file.reserved or is_of_headers(stem)
        if is_taken or stem[0].isdigit() or _HELPER.search(stem):
            stem = f"v_{stem}"
        name = unused(stem, st.names_in_use)
        st.names_in_use.add(name)
        st.blocks[block].append(name)
        return name

"""What the verifier raises, and the words of its hints: what would be right instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorkiln.base.errors import nearest
from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, HANDLE, INT64, DType
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.known_attrs import Table, problem_of
from tensorkiln.ir.relax import AnyTensorType, ObjectType, TensorType, TupleType, Type
from tensorkiln.ir.type_text import show


class Malformed(Exception):
    """What is wrong, and what would be right, with the path, innermost step first. `node` is the
    expression at fault."""

    def __init__(self, message: str, hint: str, node: Expr | None = None):
        self.message, self.hint, self.node = message, hint, node
        self.path: list[str] = []
        super().__init__(message)


class step:
    """Errors inside `with step(name)` happen below the field `name`.

    A class, since a generator takes three times as long, and this is half of the verifier's work.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        """Nothing happens."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Adds the name to the path."""
        if isinstance(error, Malformed):
            error.path.append(self._name)


def is_text(text: str) -> bool:
    """Whether files can hold it: no NUL, no half of a surrogate pair."""
    return text.isidentifier() or not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def require_texts(*values: object) -> None:
    """Malformed for names and texts, in tuples too, that no file can hold."""
    for value in values:
        if isinstance(value, tuple):
            require_texts(*value)
        elif isinstance(value, str) and not is_text(value):
            hint = "text without NUL and without halves of surrogate pairs"
            raise Malformed(f"a text {value!r}", hint)


def require_attrs(table: Table, node: str, attrs: Attrs) -> None:
    """Malformed for an attribute that nodes of the table's kind do not have."""
    for key, value in attrs.items_:
        problem = problem_of(table, node, key, value)
        if problem is not None:
            with step(f".attrs.{key}"):
                raise Malformed(*problem)


# ---- names ----------------------------------------------------------------------------------


def among(name: str, known: Iterable[str]) -> str:
    """The nearest of the names that there are, or else those."""
    names = list(known)
    return nearest(name, names) or f"there are {listed(names) or 'none'}"


def unbound(name: str, known: Iterable[str]) -> str:
    """What is in scope where `name` is not."""
    names = list(known)
    if name in names:
        return f"another {name} is bound: use that very object, its name is not enough"
    return nearest(name, names) or f"bound here are {listed(names) or 'no names yet'}"


def fresh(kind: str, name: str) -> str:
    """What to bind where something is bound already."""
    return f"bind a new {kind}({name!r}, ...), which is another one though of the same name"


# ---- expressions ----------------------------------------------------------------------------


def instead(found: DType, wanted: DType) -> str:
    """What makes a value of dtype `wanted` from one of dtype `found`."""
    if HANDLE in (found.element, wanted.element):
        return f"{wanted} needed: an address is never a number, a Load reads what is there"
    text, lanes = "value", found.lanes
    if wanted.lanes == 1 < lanes:
        text, lanes = f"VectorReduce(op, {text})", 1
    elif wanted.lanes != lanes > 1:
        text, lanes = f"Shuffle({text}, {text}, {wanted.lanes} lanes)", wanted.lanes
    if wanted.is_bool and not found.is_bool:
        text = f"Binary('ne', {text}, 0)"
    elif wanted.name != found.name:
        text = f"Cast({text}, {wanted.with_lanes(lanes)})"
    if lanes != wanted.lanes:
        text = f"Broadcast({text}, {wanted.lanes})"
    return f"{text} makes {wanted} of {found}"


def agree(x: DType, y: DType) -> str:
    """What makes two dtypes one: few lanes become many, else the second becomes the first."""
    return instead(x, y) if x.lanes < y.lanes else instead(y, x)


def index(found: DType, wanted: DType = INT64) -> str:
    """What makes a scalar integer, such as an extent or a loop's bound."""
    if not wanted.is_int or wanted.lanes != 1:
        return f"{wanted} counts nothing: take a variable of {INT64}"
    return instead(found, wanted)


def extent(found: DType) -> str:
    """What an extent is."""
    return index(found) if not found.is_int else "an extent is 0 or more"


def condition(found: DType) -> str:
    """What makes a condition."""
    return instead(found, BOOL)


def stored(buffers: dict[Buffer, bool]) -> str:
    """What may be stored to."""
    return f"stores go to {listed(b.name for b, ours in buffers.items() if ours) or 'nothing'}"


def one_element(b: Buffer) -> str:
    """How to name one element that has an address."""
    if b.scope == "register":
        return f"registers have no address: put {b.name} in scope 'local' or 'global'"
    return f"index {b.name} with {plural(len(b.shape), 'number')} of one lane"


# ---- types ----------------------------------------------------------------------------------


def plural(count: int, what: str) -> str:
    """`1 item`, `2 items`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def fitting(wanted: Type, given: Type) -> str:
    """What makes a value of type `given` one of type `wanted`."""
    if isinstance(wanted, TensorType) and isinstance(given, TensorType):
        return _tensor(wanted, given)
    if isinstance(wanted, TupleType) and isinstance(given, TupleType):
        if len(wanted.fields) != len(given.fields):
            return f"a tuple of {plural(len(wanted.fields), 'item')} belongs here"
        pairs = zip(wanted.fields, given.fields, strict=True)
        for i, (w, g) in enumerate(pairs):
            if w != g:
                return f"item {i}: {fitting(w, g)}"
    if isinstance(given, ObjectType | AnyTensorType):
        return f"MatchCast(value, {show(wanted)}) checks it when it runs"
    if isinstance(wanted, TupleType) and given in wanted.fields:
        return f"Tuple((value,)) of {plural(len(wanted.fields), 'item')} is one"
    if isinstance(given, TupleType) and wanted in given.fields:
        return f"TupleItem(value, {given.fields.index(wanted)}) is {show(wanted)}"
    return f"give a {show(wanted)}"


def _tensor(wanted: TensorType, given: TensorType) -> str:
    if wanted.dtype != given.dtype:
        return f'cast(value, dtype="{wanted.dtype}") makes {wanted.dtype} of {given.dtype}'
    if wanted.ndim != given.ndim:
        return f"{plural(wanted.ndim, 'dimension')} needed, as reshape makes them"
    if wanted.memory != given.memory:
        return f"layout {wanted.memory} needed, it lies in {given.memory}"
    pairs = enumerate(zip(wanted.shape, given.shape, strict=True))
    others = [(i, w, g) for i, (w, g) in pairs if w != g]
    if not others:
        return f"give a {show(wanted)}"
    # Numbers that differ are wrong, symbols may only be.
    numbers = (x for x in others if None not in (int_value(x[1]), int_value(x[2])))
    i, w, g = next(numbers, others[0])
    return f"dimension {i} must be {_size(w)}, it is {_size(g)}"


def _size(e: Expr) -> str:
    return show(TensorType((e,), INT64)).removeprefix("int64[").removesuffix("]")


def operands(params: Sequence[Type]) -> str:
    """What a callee takes."""
    return f"one operand for each of: {'; '.join(map(show, params)) or 'nothing'}"

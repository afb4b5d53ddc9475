"""The verifier's exception, and the texts of its hints: how to correct what is malformed."""

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
    """A violation: what is wrong, a hint how to correct it, and the path to it, innermost step
    first. `node` is the offending expression, whose own path the verifier adds later."""

    def __init__(self, message: str, hint: str, node: Expr | None = None):
        self.message, self.hint, self.node = message, hint, node
        self.path: list[str] = []
        super().__init__(message)


class step:
    """`with step(".body"):` appends ".body" to the path of a Malformed raised inside.

    A class rather than a generator, which takes three times as long: entering and leaving steps is
    half of the verifier's time.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Append the name to the path of a Malformed, and let it propagate."""
        if isinstance(error, Malformed):
            error.path.append(self._name)


def is_text(text: str) -> bool:
    """Whether `text` can be written to a file: it has no NUL and no unpaired surrogate."""
    return text.isidentifier() or not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def require_texts(*values: object) -> None:
    """Raise Malformed for a string, also one inside tuples, for which `is_text` is false."""
    for value in values:
        if isinstance(value, tuple):
            require_texts(*value)
        elif isinstance(value, str) and not is_text(value):
            hint = "text without NUL and without unpaired surrogates"
            raise Malformed(f"the text {value!r} cannot be written to a file", hint)


def require_attrs(table: Table, node: str, attrs: Attrs) -> None:
    """Raise Malformed for an attribute that `table` does not have, or that has an illegal value."""
    for key, value in attrs.items_:
        problem = problem_of(table, node, key, value)
        if problem is not None:
            with step(f".attrs.{key}"):
                raise Malformed(*problem)


# ---- names ----------------------------------------------------------------------------------


def among(name: str, candidates: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar of the `candidates`, or else a list of them."""
    names = list(candidates)
    return nearest(name, names) or f"there are {listed(names) or 'none'}"


def unbound(name: str, names_in_scope: Iterable[str]) -> str:
    """A hint for a name that is not bound: a similar bound name, or the list of those in scope."""
    names = list(names_in_scope)
    if name in names:
        return f"another {name} is bound: use the same object, not one of the same name"
    return nearest(name, names) or f"names bound here: {listed(names) or 'none'}"


def fresh(kind: str, name: str) -> str:
    """A hint for a variable that is bound twice."""
    return f"bind a new {kind}({name!r}, ...): another object may have the same name"


# ---- expressions ----------------------------------------------------------------------------


def instead(source: DType, target: DType) -> str:
    """A hint: the expression that converts a value of dtype `source` to dtype `target`."""
    if HANDLE in (source.element, target.element):
        return f"expected {target}: an address is not a number, a Load reads the value at it"
    text, lanes = "value", source.lanes
    if target.lanes == 1 < lanes:
        text, lanes = f"VectorReduce(op, {text})", 1
    elif target.lanes != lanes > 1:
        text, lanes = f"Shuffle({text}, {text}, {target.lanes} lanes)", target.lanes
    if target.is_bool and not source.is_bool:
        text = f"Binary('ne', {text}, 0)"
    elif target.name != source.name:
        text = f"Cast({text}, {target.with_lanes(lanes)})"
    if lanes != target.lanes:
        text = f"Broadcast({text}, {target.lanes})"
    return f"{text} makes {target} of {source}"


def agree(x: DType, y: DType) -> str:
    """A hint: how to bring two operands to one dtype.

    The operand with fewer lanes is converted to the other; with equal lanes, the second to the
    first.
    """
    return instead(x, y) if x.lanes < y.lanes else instead(y, x)


def index(source: DType, target: DType = INT64) -> str:
    """A hint: how to make a scalar integer, such as an extent or a loop bound, from `source`."""
    if not target.is_int or target.lanes != 1:
        return f"{target} is not a scalar integer: use a variable of {INT64}"
    return instead(source, target)


def extent(dtype: DType) -> str:
    """A hint for an illegal extent: not an integer, or negative."""
    return index(dtype) if not dtype.is_int else "an extent is 0 or more"


def condition(dtype: DType) -> str:
    """A hint: how to make a condition, one bool, from `dtype`."""
    return instead(dtype, BOOL)


def stored(buffers: dict[Buffer, bool]) -> str:
    """A hint: the names of the buffers that may be stored to."""
    names = listed(b.name for b, may_store in buffers.items() if may_store)
    return f"stores go to {names or 'nothing'}"


def one_element(b: Buffer) -> str:
    """A hint: how to index a single element of `b` that has an address."""
    if b.scope in ("register", "tile"):
        return f"registers have no address: put {b.name} in scope 'local' or 'global'"
    return f"index {b.name} with {plural(len(b.shape), 'number')} of one lane"


# ---- types ----------------------------------------------------------------------------------


def plural(count: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def fitting(target: Type, source: Type) -> str:
    """A hint: how to make a value of type `target` from one of type `source`."""
    if isinstance(target, TensorType) and isinstance(source, TensorType):
        return _tensor(target, source)
    if isinstance(target, TupleType) and isinstance(source, TupleType):
        if len(target.fields) != len(source.fields):
            return f"a tuple of {plural(len(target.fields), 'item')} belongs here"
        pairs = zip(target.fields, source.fields, strict=True)
        for i, (w, g) in enumerate(pairs):
            if w != g:
                return f"item {i}: {fitting(w, g)}"
    if isinstance(source, ObjectType | AnyTensorType):
        return f"MatchCast(value, {show(target)}) checks it when it runs"
    if isinstance(target, TupleType) and source in target.fields:
        return f"Tuple((value,)) makes a tuple of {plural(len(target.fields), 'item')}"
    if isinstance(source, TupleType) and target in source.fields:
        return f"TupleItem(value, {source.fields.index(target)}) is {show(target)}"
    return f"give a {show(target)}"


def _tensor(target: TensorType, source: TensorType) -> str:
    if target.dtype != source.dtype:
        return f'cast(value, dtype="{target.dtype}") makes {target.dtype} of {source.dtype}'
    if target.ndim != source.ndim:
        return f"{plural(target.ndim, 'dimension')} needed: use reshape"
    if target.memory != source.memory:
        return f"layout {target.memory} needed, it lies in {source.memory}"
    pairs = enumerate(zip(target.shape, source.shape, strict=True))
    mismatches = [(i, w, g) for i, (w, g) in pairs if w != g]
    if not mismatches:
        return f"give a {show(target)}"
    # Prefer a pair of constants: they certainly differ, symbolic extents may be equal at run time.
    numbers = (x for x in mismatches if None not in (int_value(x[1]), int_value(x[2])))
    i, w, g = next(numbers, mismatches[0])
    return f"dimension {i} must be {_size(w)}, it is {_size(g)}"


def _size(e: Expr) -> str:
    return show(TensorType((e,), INT64)).removeprefix("int64[").removesuffix("]")


def operands(params: Sequence[Type]) -> str:
    """A hint: the types of the operands that a callee takes."""
    return f"one operand for each of: {'; '.join(map(show, params)) or 'nothing'}"

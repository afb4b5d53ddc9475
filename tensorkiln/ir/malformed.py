"""The verifier's exception, and the texts of its hints: how to correct what is malformed."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.hints import plural
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


# ---- memory ----------------------------------------------------------------------------------


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
